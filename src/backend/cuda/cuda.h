/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the CUDA backend: weights, a run, and what every kernel's host side uses. Seen by C and by CUDA C++. */
#ifndef PZ_CUDA_H
#define PZ_CUDA_H

#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" { /* the core's headers are C, and what they include has been included above */
#endif

#include "backend/backend.h"

/* PZ_E_INTERNAL (PZ_E_NOMEM for memory) with CUDA's name of the error; clears CUDA's own record of it. */
pz_status pz_cuda_check(cudaError_t code, const char *what, pz_error *err);
#define PZ_CUDA_TRY(call, err) PZ_TRY(pz_cuda_check((call), #call, (err)))
/* An attribute of the calling thread's device, asked of the runtime once a process; from any thread, also while a
 * stream is captured. */
pz_status pz_cuda_attribute(enum cudaDeviceAttr attribute, int *value, pz_error *err);

static inline int pz_elem_bytes(pz_elem e) {
    return e == PZ_ELEM_BF16 ? 2 : 4;
}

/* ---- weights ---- */
typedef struct pz_cuda_weight {
    char *name; /* NULL: not loaded */
    int64_t rows, cols;
    float *vector;  /* norms, biases, frequencies */
    void *bf16;     /* [rows, cols] for GEMM, embed and absorb; mxfp4 ones are converted, which is exact */
    uint8_t *fp4;   /* experts: [rows, cols / 2], low nibble the even column */
    uint8_t *scale; /* experts: e8m0 [rows, cols / 32] */
    float *w_norm;  /* [rows], GEMM weights */
    int64_t bytes;
} pz_cuda_weight;

/* What attention and the cache writer read, in device memory: it changes when the pool grows, a captured graph does
 * not. */
typedef struct pz_cuda_cache {
    unsigned char *data;
    int64_t layer_stride; /* bytes */
    const int32_t *block_table;
    int table_stride, page_tokens, entry, bf16 /* else f32 */;
} pz_cuda_cache;

/* ---- a run ---- */
typedef struct pz_cuda_run {
    pz_backend *b;
    const pz_plan *plan;
    struct pz_cuda_plan *state; /* state.h */
    unsigned char *arena;
    const pz_cuda_cache *cache; /* device memory */
    int m;
    cudaStream_t stream;
    bool alone;     /* collectives do not wait for other ranks: loads their kernels, results are those of one rank */
    bool dependent; /* the launch before it in this stream may still run: programmatic stream serialization */
} pz_cuda_run;

typedef pz_status (*pz_cuda_check_fn)(pz_cuda_run *r, const pz_launch *l, pz_error *err);
typedef pz_status (*pz_cuda_run_fn)(pz_cuda_run *r, const pz_launch *l, pz_error *err);
#define KERNEL(op, name)                                                               \
    pz_status pz_cuda_check_##name(pz_cuda_run *r, const pz_launch *l, pz_error *err); \
    pz_status pz_cuda_run_##name(pz_cuda_run *r, const pz_launch *l, pz_error *err);
#include "backend/cuda/kernels.def"
#undef KERNEL

/* Arguments of a launch of a norm. */
pz_norm_args pz_cuda_norm_args(const pz_cuda_run *r, const pz_launch *l);

/* PZ_E_UNSUPPORTED or PZ_E_TYPE with the launch's name in front. */
pz_status pz_cuda_refuse(const pz_launch *l, pz_status code, pz_error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#ifdef __clang_analyzer__ /* as for pz_fail */
#define pz_cuda_refuse(l, code, err, ...) ((void)(pz_cuda_refuse)((l), (code), (err), __VA_ARGS__), (code))
#endif
/* Operand by name: its place, -1 if absent; its loaded weight, NULL if absent. */
int pz_cuda_in(const pz_launch *l, const char *operand);
const pz_cuda_weight *pz_cuda_in_weight(const pz_cuda_run *r, const pz_launch *l, const char *operand);
/* A place as kernels see it: data at element (0, 0) of the view, with the scales of FIXED. */
pz_matrix pz_cuda_matrix(const pz_cuda_run *r, int place);
/* x_norm to be written along with a place, NULL if it has none. */
float *pz_cuda_norm(const pz_cuda_run *r, int place);
const int32_t *pz_cuda_in_i32(const pz_cuda_run *r, const pz_launch *l, const char *operand);
/* Scratch memory of this launch in this plan: zeroed when the plan is prepared, never shared with another launch. */
void *pz_cuda_scratch(const pz_cuda_run *r, const pz_launch *l);
/* Checks, by operand name or result index; `cols` 0: any. */
pz_status pz_cuda_check_act(const pz_cuda_run *r, const pz_launch *l, const char *operand, int64_t cols, pz_error *err);
pz_status pz_cuda_check_out(const pz_cuda_run *r, const pz_launch *l, int index, int64_t cols, pz_error *err);
pz_status pz_cuda_check_i32(const pz_cuda_run *r, const pz_launch *l, const char *operand, int64_t count,
                            pz_error *err);
pz_status pz_cuda_check_vector(const pz_cuda_run *r, const pz_launch *l, const char *operand, int64_t n, pz_error *err);
/* In a check: the launch is a collective over rows of `hidden`. */
void pz_cuda_want_group(pz_cuda_run *r, const pz_launch *l, int hidden);
/* In a check: asks for `bytes` of scratch for this launch. */
void pz_cuda_want(pz_cuda_run *r, const pz_launch *l, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
