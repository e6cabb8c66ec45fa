/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy choice over logits: launcher. */
#ifndef PZ_CUDA_ARGMAX_H
#define PZ_CUDA_ARGMAX_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PZ_ARGMAX_ROWS = 64 /* of one launch */, PZ_ARGMAX_SPAN = 4096 /* columns of a part */ };

/* The largest value of a part of a row and its column, the lowest of equals. */
typedef struct pz_argmax_part {
    float value;
    int32_t column; /* -1: nothing but NaN and -Inf */
    int32_t finite; /* 1: a finite value is among them */
} pz_argmax_part;

/* out: [n][parts] in page-locked host memory, ready when the stream is. */
typedef struct pz_argmax_params {
    pz_matrix x;
    pz_argmax_part *out;
    int cols, n, parts; /* parts: ceil(cols / PZ_ARGMAX_SPAN) */
    int rows[PZ_ARGMAX_ROWS];
} pz_argmax_params;
pz_status pz_cuda_launch_argmax(const pz_argmax_params *p, cudaStream_t stream, pz_error *err);

/* pz_backend_api.argmax */
pz_status pz_cuda_argmax(pz_backend *b, const pz_plan *plan, const pz_run_args *args, int place, const int *rows, int n,
                         int32_t *ids, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
