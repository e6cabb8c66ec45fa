/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/measure/rival.h"

#include <stdio.h>

#if PZ_HAVE_CUBLASLT
#include "backend/cuda/gemm/cublaslt.h"

struct pz_rival {
    pz_cublaslt lt;
    cublasLtMatmulHeuristicResult_t results[PZ_CUBLASLT_HEURISTICS];
    int n;
    void *workspace;
    cudaStream_t stream;
};

static pz_status open_rival(pz_rival *r, pz_lab *lab, int m, int n, int k, pz_elem elem, pz_error *err) {
    const pz_cublaslt_shape shape = {
        .ldx = k, .ldw = k, .ldy = n, .m = m, .n = n, .k = k, .bf16_out = elem == PZ_ELEM_BF16};
    r->stream = lab->stream;
    PZ_TRY(pz_cublaslt_init(&shape, &r->lt, err));
    PZ_TRY(pz_cublaslt_heuristics(&r->lt, PZ_CUBLASLT_ALIGN, PZ_CUBLASLT_WORKSPACE, r->results, &r->n, err));
    return pz_lab_alloc(lab, "the workspace of cuBLASLt", PZ_CUBLASLT_WORKSPACE, &r->workspace, err);
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
    pz_free(r);
}

int pz_rival_heuristics(const pz_rival *r) {
    return r->n;
}

pz_status pz_rival_run(const pz_rival *r, int heuristic, const void *x, const void *w, void *y, pz_error *err) {
    return pz_cublaslt_launch(&r->lt, &r->results[heuristic].algo, x, w, y, r->workspace, PZ_CUBLASLT_WORKSPACE,
                              r->stream, err);
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
