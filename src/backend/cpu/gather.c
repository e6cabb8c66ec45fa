/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks see of each other: partial sums, as f32, in one of two buffers taken in turn. */
#include "backend/cpu/cpu.h"

void pz_cpu_want_gather(pz_cpu_run *r, int64_t cols) {
    size_t bytes = pz_floats(r->m, cols);
    if (bytes > r->shown_need) r->shown_need = bytes;
}

void pz_cpu_show_free(pz_backend *b) {
    for (int i = 0; i < 2; i++) {
        pz_free(b->shown[i]);
        b->shown[i] = NULL;
    }
    b->shown_bytes = 0;
}

pz_status pz_cpu_show_grow(pz_cpu_run *r, pz_error *err) {
    pz_backend *b = r->b;
    if (r->shown_need <= b->shown_bytes) return PZ_OK;
    pz_cpu_show_free(b);
    for (int i = 0; i < 2; i++) {
        b->shown[i] = pz_aligned_calloc(r->shown_need);
        if (!b->shown[i])
            return pz_fail(err, PZ_E_NOMEM, "out of memory: %zu bytes for the partial sums of a rank", r->shown_need);
    }
    b->shown_bytes = r->shown_need;
    return PZ_OK;
}

typedef struct show_job {
    const pz_cpu_run *r;
    const pz_rows *x;
    float *dst;
} show_job;

static void show_region(void *arg, int tid, int nthreads) {
    const show_job *j = arg;
    int64_t begin, end, n = j->x->cols;
    pz_cpu_share(j->r->m, tid, nthreads, &begin, &end);
    for (int64_t row = begin; row < end; row++) pz_rows_copy(j->r->simd, j->x, row, 0, n, j->dst + row * n);
}

pz_status pz_cpu_gather(const pz_cpu_run *r, const pz_rows *x, const float *parts[PZ_MAX_RANKS], pz_error *err) {
    pz_comm *comm = r->b->comm;
    show_job j = {.r = r, .x = x, .dst = r->b->shown[pz_comm_epoch(comm) & 1]};
    void *all[PZ_MAX_RANKS];
    pz_cpu_par(r, r->m * x->cols, show_region, &j);
    PZ_TRY(pz_comm_exchange(comm, j.dst, all, err));
    for (int p = 0; p < pz_comm_ranks(comm); p++) parts[p] = all[p];
    return PZ_OK;
}
