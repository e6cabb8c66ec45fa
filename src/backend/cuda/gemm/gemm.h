/* SPDX-License-Identifier: Apache-2.0 */
/* GEMM in the module: what the public functions of kernels.h forward to, and what the families share. */
#ifndef PZ_CUDA_GEMM_H
#define PZ_CUDA_GEMM_H

#include "backend/cuda/cuda.h"
#include "plan/gemm_unit.h"

#ifdef __cplusplus
extern "C" {
#endif

pz_status pz_cuda_gemm(const pz_gemm_args *args, pz_error *err);
pz_status pz_cuda_gemm_workspace(const pz_gemm_args *args, size_t *bytes, pz_error *err);
pz_status pz_cuda_weight_norms(const void *w, int64_t ldw, int n, int k, float *w_norm, void *stream, pz_error *err);

/* What an output tile needs to come from partial sums of several blocks; the head of every kernel's parameters. */
typedef struct pz_gemm_output {
    void *y; /* int32, f32 or bf16 */
    int64_t ldy;
    const float *x_norm, *w_norm; /* FIXED */
    int m, n;
    int strategy;       /* pz_strategy */
    int bf16;           /* y is bf16, added or stored from f32 */
    int split;          /* blocks a tile */
    uint32_t *counters; /* SELF, TICKET: 3 a tile, zero between launches */
    void *partial;      /* REDUCE, TICKET: [split][m][n] of int32 or f32 */
} pz_gemm_output;

/* One launch, checked and with its geometry resolved. */
typedef struct pz_gemm_launch {
    pz_gemm_args args;
    pz_gemm_config config;
    pz_gemm_output out;
    size_t workspace_bytes;
    int tiles_n, tiles_m, tile_m; /* grid of output tiles and rows of one */
} pz_gemm_launch;

/* wgmma is in compute capability 9.0 alone; elsewhere kernels that use it have no body. */
pz_status pz_gemm_need_wgmma(const char *family, pz_error *err);

/* Each family: checks and completes a launch (geometry, workspace), then launches it. */
/* Skinny and group. */
pz_status pz_gemm_skinny_plan(pz_gemm_launch *l, pz_error *err);
pz_status pz_gemm_skinny_run(const pz_gemm_launch *l, pz_error *err);
pz_status pz_gemm_wide_plan(pz_gemm_launch *l, pz_error *err);
pz_status pz_gemm_wide_run(const pz_gemm_launch *l, pz_error *err);
pz_status pz_gemm_cublaslt_plan(pz_gemm_launch *l, pz_error *err);
pz_status pz_gemm_cublaslt_run(const pz_gemm_launch *l, pz_error *err);
/* What the tuned table or the cost model says for this device, shape and strategy. */
pz_status pz_gemm_geometry(const pz_gemm_args *args, pz_gemm_config *out, pz_error *err);
/* The second kernel of REDUCE. */
pz_status pz_gemm_reduce_run(const pz_gemm_launch *l, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
