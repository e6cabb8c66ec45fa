/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of a plan: checks and runs. On one rank they are a norm and a copy. */
#include "backend/cuda/comm/group.h"
#include "backend/cuda/state.h"

static int columns(const pz_cuda_run *r, const pz_launch *l) {
    return (int)r->plan->places.at[l->out[0]].type.dim[1];
}

/* ---- fused_allreduce_rmsnorm ---- */
pz_status pz_cuda_check_reduce_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_norm(r, l, err));
    if (r->b->group) pz_cuda_want_group(r, columns(r, l));
    return PZ_OK;
}

pz_status pz_cuda_run_reduce_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    if (!r->b->group) return pz_cuda_run_norm(r, l, err);
    pz_norm_args a = pz_cuda_norm_args(r, l);
    pz_group_view view = pz_cuda_group_view(r->b, r->alone);
    return pz_cuda_reduce_norm(&a, &view, err);
}

/* ---- all_reduce ---- */
pz_status pz_cuda_check_all_reduce(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_add(r, l, err));
    if (r->b->group) pz_cuda_want_group(r, columns(r, l));
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
    pz_group_view view = pz_cuda_group_view(r->b, r->alone);
    return pz_cuda_reduce_norm(&a, &view, err);
}
