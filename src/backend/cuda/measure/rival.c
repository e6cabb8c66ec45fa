/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/measure/rival.h"

#include <stdio.h>

#if PZ_HAVE_CUBLASLT
#include <cublasLt.h>

enum { HEURISTICS = 100, WORKSPACE = 64 << 20 };

struct pz_rival {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t *results;
    int n;
    void *workspace;
    cudaStream_t stream;
};

static pz_status check(cublasStatus_t code, const char *what, pz_error *err) {
    if (code == CUBLAS_STATUS_SUCCESS) return PZ_OK;
    pz_status status = code == CUBLAS_STATUS_ALLOC_FAILED    ? PZ_E_NOMEM
                       : code == CUBLAS_STATUS_NOT_SUPPORTED ? PZ_E_UNSUPPORTED
                                                             : PZ_E_INTERNAL;
    return pz_fail(err, status, "%s: %s", what, cublasLtGetStatusString(code));
}
#define LT_TRY(call, err) PZ_TRY(check(call, #call, err))

/* cuBLASLt counts by columns: y^T = w x^T, where a matrix that is dense by rows is its transpose by columns. */
static pz_status describe(pz_rival *r, int m, int n, int k, pz_elem elem, pz_error *err) {
    const uint64_t un = (uint64_t)n, um = (uint64_t)m, uk = (uint64_t)k, workspace = WORKSPACE;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    LT_TRY(cublasLtMatmulDescCreate(&r->op, CUBLAS_COMPUTE_32F, CUDA_R_32F), err);
    LT_TRY(cublasLtMatmulDescSetAttribute(r->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), err);
    LT_TRY(cublasLtMatrixLayoutCreate(&r->w, CUDA_R_16BF, uk, un, k), err);
    LT_TRY(cublasLtMatrixLayoutCreate(&r->x, CUDA_R_16BF, uk, um, k), err);
    LT_TRY(cublasLtMatrixLayoutCreate(&r->y, elem == PZ_ELEM_F32 ? CUDA_R_32F : CUDA_R_16BF, un, um, n), err);
    LT_TRY(cublasLtMatmulPreferenceCreate(&r->preference), err);
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(r->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                sizeof workspace),
           err);
    return check(cublasLtMatmulAlgoGetHeuristic(r->handle, r->op, r->w, r->x, r->y, r->y, r->preference, HEURISTICS,
                                                r->results, &r->n),
                 "cublasLtMatmulAlgoGetHeuristic", err);
}

static pz_status open_rival(pz_rival *r, pz_lab *lab, int m, int n, int k, pz_elem elem, pz_error *err) {
    r->stream = lab->stream;
    r->results = pz_calloc(HEURISTICS, sizeof *r->results);
    if (!r->results) return PZ_NOMEM(err);
    LT_TRY(cublasLtCreate(&r->handle), err);
    PZ_TRY(describe(r, m, n, k, elem, err));
    return pz_lab_alloc(lab, "the workspace of cuBLASLt", WORKSPACE, &r->workspace, err);
}

pz_status pz_rival_open(pz_lab *lab, int m, int n, int k, pz_elem y, pz_rival **out, pz_error *err) {
    pz_rival *r = pz_calloc(1, sizeof *r);
    if (!r) return PZ_NOMEM(err);
    pz_status st = open_rival(r, lab, m, n, k, y, err);
    if (st == PZ_OK)
        *out = r;
    else
        pz_rival_close(r);
    return st;
}

void pz_rival_close(pz_rival *r) {
    if (!r) return;
    if (r->preference) cublasLtMatmulPreferenceDestroy(r->preference);
    if (r->w) cublasLtMatrixLayoutDestroy(r->w);
    if (r->x) cublasLtMatrixLayoutDestroy(r->x);
    if (r->y) cublasLtMatrixLayoutDestroy(r->y);
    if (r->op) cublasLtMatmulDescDestroy(r->op);
    if (r->handle) cublasLtDestroy(r->handle);
    pz_free(r->results);
    pz_free(r);
}

int pz_rival_heuristics(const pz_rival *r) {
    return r->n;
}

pz_status pz_rival_run(const pz_rival *r, int heuristic, const void *x, const void *w, void *y, pz_error *err) {
    const float one = 1, zero = 0;
    return check(cublasLtMatmul(r->handle, r->op, &one, w, r->w, x, r->x, &zero, y, r->y, y, r->y,
                                &r->results[heuristic].algo, r->workspace, WORKSPACE, r->stream),
                 "cublasLtMatmul", err);
}

static unsigned attribute(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what, size_t size) {
    uint32_t value = 0;
    size_t written;
    return cublasLtMatmulAlgoConfigGetAttribute(algo, what, &value, size, &written) == CUBLAS_STATUS_SUCCESS ? value
                                                                                                             : 0;
}

void pz_rival_name(const pz_rival *r, int heuristic, char *buf, size_t size) {
    const cublasLtMatmulAlgo_t *algo = &r->results[heuristic].algo;
    int n =
        snprintf(buf, size, "algo %u, tile %u, stages %u, split %u", attribute(algo, CUBLASLT_ALGO_CONFIG_ID, 4),
                 attribute(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, 4), attribute(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
                 attribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4));
    unsigned cluster = attribute(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2);
    if (cluster && n > 0 && (size_t)n < size) snprintf(buf + n, size - (size_t)n, ", cluster %u", cluster);
}

int64_t pz_rival_version(void) {
    return (int64_t)cublasLtGetVersion();
}

#else

pz_status pz_rival_open(pz_lab *lab, int m, int n, int k, pz_elem y, pz_rival **out, pz_error *err) {
    (void)lab, (void)m, (void)n, (void)k, (void)y, (void)out;
    return pz_fail(err, PZ_E_UNSUPPORTED, "this build has no cuBLASLt");
}
void pz_rival_close(pz_rival *r) {
    (void)r;
}
int pz_rival_heuristics(const pz_rival *r) {
    (void)r;
    return 0;
}
pz_status pz_rival_run(const pz_rival *r, int heuristic, const void *x, const void *w, void *y, pz_error *err) {
    (void)r, (void)heuristic, (void)x, (void)w, (void)y;
    return pz_fail(err, PZ_E_UNSUPPORTED, "this build has no cuBLASLt");
}
void pz_rival_name(const pz_rival *r, int heuristic, char *buf, size_t size) {
    (void)r, (void)heuristic;
    snprintf(buf, size, "cuBLASLt");
}
int64_t pz_rival_version(void) {
    return 0;
}

#endif
