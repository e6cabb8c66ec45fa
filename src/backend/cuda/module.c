/* SPDX-License-Identifier: Apache-2.0 */
/* The module's table. */
#include "backend/cuda_module.h"

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/measure/measure.h"
#include "backend/cuda/norm/norm.h"
#include "backend/cuda/state.h"

const pz_cuda_module pz_cuda_module_table = {
    .abi = PZ_CUDA_ABI,
    .version = PZ_VERSION,
    .probe = pz_cuda_probe,
    .backend = &pz_cuda_backend,
    .gemm = pz_cuda_gemm,
    .gemm_workspace = pz_cuda_gemm_workspace,
    .weight_norms = pz_cuda_weight_norms,
    .rms_norm = pz_cuda_rms_norm,
    .measure_gemm = pz_cuda_measure_gemm,
    .measure_norm = pz_cuda_measure_norm,
    .measure_reduce = pz_cuda_measure_reduce,
    .measure_device = pz_cuda_measure_device,
};
