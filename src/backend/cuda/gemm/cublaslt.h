/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt for one shape: what the family of GEMMs and the measurements of cuBLASLt by itself both call, so that the
 * number of a heuristic means the same algorithm in both. Only in builds with PZ_HAVE_CUBLASLT. */
#ifndef PZ_CUDA_GEMM_CUBLASLT_H
#define PZ_CUDA_GEMM_CUBLASLT_H

#include <cublasLt.h>

#include "backend/cuda/cuda.h"

/* Heuristics asked for; the largest workspace in bytes that an algorithm may want; what x, w, the workspace and, for
 * full speed, y are aligned to. */
enum { PZ_CUBLASLT_HEURISTICS = 100, PZ_CUBLASLT_WORKSPACE = 32 << 20, PZ_CUBLASLT_ALIGN = 16 };

/* y[m, n] = x[m, k] w[n, k]^T; x and w bf16, sums in f32. */
typedef struct pz_cublaslt_shape {
    int64_t ldx, ldw, ldy; /* elements */
    int32_t m, n, k, bf16_out /* y is bf16, else f32 */;
} pz_cublaslt_shape;

/* A plain value: nothing is to be released. */
typedef struct pz_cublaslt {
    cublasLtHandle_t handle; /* of the current device, for the life of the process */
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} pz_cublaslt;

/* Threads: any. E_UNSUPPORTED for a device beyond the first 64. */
pz_status pz_cublaslt_init(const pz_cublaslt_shape *shape, pz_cublaslt *lt, pz_error *err);
/* Algorithms for a y aligned to y_align bytes and a workspace of at most `workspace` bytes.
 * results[PZ_CUBLASLT_HEURISTICS] receives n >= 1, the one thought fastest first. E_UNSUPPORTED: there is none. */
pz_status pz_cublaslt_heuristics(pz_cublaslt *lt, int y_align, size_t workspace,
                                 cublasLtMatmulHeuristicResult_t *results, int *n, pz_error *err);
/* Launches; may be captured. */
pz_status pz_cublaslt_launch(const pz_cublaslt *lt, const cublasLtMatmulAlgo_t *algo, const void *x, const void *w,
                             void *y, void *workspace, size_t workspace_bytes, cudaStream_t stream, pz_error *err);

#endif
