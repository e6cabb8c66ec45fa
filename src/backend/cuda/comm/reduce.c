/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of a plan: checks and runs. On one rank they are a norm and a copy. */
#include "backend/cuda/comm/group.h"
#include "backend/cuda/comm/nccl.h"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/state.h"

static int columns(const pz_cuda_run *r, const pz_launch *l) {
    return (int)r->plan->places.at[l->out[0]].type.dim[1];
}

/* ---- both ---- */
/* The partial sums of some rows to their place among those of all ranks, which NCCL then gathers. */
static pz_status gather(const pz_cuda_run *r, const pz_norm_args *a, const pz_group_view *g, pz_error *err) {
    pz_add_params p = {.a = a->x, .m = a->m, .cols = a->hidden};
    size_t bytes = (size_t)a->m * (size_t)a->hidden * (size_t)pz_elem_bytes(pz_group_payload(a->x.elem));
    unsigned char *all = g->workspace[g->rank];
    p.y = (pz_matrix){.data = all + (size_t)g->rank * bytes, .ld = a->hidden, .elem = pz_group_payload(a->x.elem)};
    PZ_TRY(pz_cuda_launch_add(r, &p, err));
    if (r->alone) return PZ_OK;
    return pz_nccl_all_gather(pz_cuda_group_nccl(r->b), p.y.data, all, bytes, r->stream, err);
}

static pz_status reduce(const pz_cuda_run *r, const pz_launch *l, const pz_norm_args *all, pz_error *err) {
    pz_group_view view = pz_cuda_group_view(r->b, r->alone, l->donor.one_shot);
    if (!view.gathered) return pz_cuda_reduce_norm(all, &view, err);
    for (int first = 0; first < all->m; first += PZ_GATHERED_ROWS) {
        pz_norm_args a = *all;
        a.m = all->m - first < PZ_GATHERED_ROWS ? all->m - first : PZ_GATHERED_ROWS;
        a.x = pz_matrix_from_row(a.x, first);
        a.res = pz_matrix_from_row(a.res, first);
        a.y = pz_matrix_from_row(a.y, first);
        a.r = pz_matrix_from_row(a.r, first);
        if (a.x_norm) a.x_norm += first;
        if (first) a.zero = NULL;
        a.dependent = 0;
        PZ_TRY(gather(r, &a, &view, err));
        PZ_TRY(pz_cuda_reduce_norm(&a, &view, err));
    }
    return PZ_OK;
}

/* ---- fused_allreduce_rmsnorm ---- */
pz_status pz_cuda_check_reduce_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_norm(r, l, err));
    if (r->b->group) pz_cuda_want_group(r, l, columns(r, l));
    return PZ_OK;
}

pz_status pz_cuda_run_reduce_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    if (!r->b->group) return pz_cuda_run_norm(r, l, err);
    pz_norm_args a = pz_cuda_norm_args(r, l);
    return reduce(r, l, &a, err);
}

/* ---- all_reduce ---- */
pz_status pz_cuda_check_all_reduce(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_add(r, l, err));
    if (r->b->group) pz_cuda_want_group(r, l, columns(r, l));
    return PZ_OK;
}

pz_status pz_cuda_run_all_reduce(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    if (!r->b->group) return pz_cuda_run_add(r, l, err);
    pz_norm_args a = {.size = sizeof a,
                      .x = pz_cuda_matrix(r, pz_cuda_in(l, "x")),
                      .r = pz_cuda_matrix(r, l->out[0]),
                      .m = r->m,
                      .hidden = columns(r, l),
                      .dependent = r->dependent,
                      .stream = r->stream};
    return reduce(r, l, &a, err);
}
