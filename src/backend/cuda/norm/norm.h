/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PZ_CUDA_NORM_H
#define PZ_CUDA_NORM_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

pz_status pz_cuda_rms_norm(const pz_norm_args *args, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
