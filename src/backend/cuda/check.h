/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the debug mode. */
#ifndef PZ_CUDA_CHECK_H
#define PZ_CUDA_CHECK_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pz_cuda_ranges {
    int n;
    int64_t begin[PZ_MAX_ACCESSES], end[PZ_MAX_ACCESSES]; /* bytes */
} pz_cuda_ranges;

/* What a check found, in device memory; starts as {0, -1}. */
typedef struct pz_cuda_finding {
    unsigned long long count, first; /* words that are wrong, byte offset of the first */
} pz_cuda_finding;

/* Words of [p, p + bytes) that are not zero. */
pz_status pz_cuda_find_nonzero(const unsigned char *p, int64_t bytes, pz_cuda_finding *out, cudaStream_t stream,
                               pz_error *err);
/* Words of which a byte outside the ranges differs between now and before. bytes: a multiple of 4. */
pz_status pz_cuda_find_changed(const unsigned char *now, const unsigned char *before, int64_t bytes,
                               const pz_cuda_ranges *allowed, pz_cuda_finding *out, cudaStream_t stream, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
