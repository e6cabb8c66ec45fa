/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PZ_CUDA_NORM_H
#define PZ_CUDA_NORM_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

pz_status pz_cuda_rms_norm(const pz_norm_args *args, pz_error *err);

/* Blocks of the norm's launch: one a row, and those of the rider after them. */
enum { PZ_NORM_THREADS = 512 };
int pz_cuda_norm_rider_blocks(int m, size_t zero_bytes, int units);

#ifdef __cplusplus
}
#endif
#endif
