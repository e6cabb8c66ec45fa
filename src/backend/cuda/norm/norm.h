/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PZ_CUDA_NORM_H
#define PZ_CUDA_NORM_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What pz_cuda_rms_norm checks before it launches. */
pz_status pz_cuda_norm_check(const pz_norm_args *args, pz_error *err);
pz_status pz_cuda_rms_norm(const pz_norm_args *args, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
