/* SPDX-License-Identifier: Apache-2.0 */
/* Row by row kernels: checks and runs. */
#include "backend/cuda/rows/rows.h"

static int columns(const pz_cuda_run *r, int place) {
    return (int)r->plan->places.at[place].type.dim[1];
}

/* ---- embed ---- */
pz_status pz_cuda_check_embed(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    const pz_cuda_weight *w = pz_cuda_in_weight(r, l, "w");
    if (!w || !w->bf16)
        return pz_cuda_refuse(l, PZ_E_INVAL, err, "weight %s is not loaded for embed", w ? w->name : "?");
    PZ_TRY(pz_cuda_check_i32(r, l, "ids", 0, err));
    return pz_cuda_check_out(r, l, 0, w->cols, err);
}

pz_status pz_cuda_run_embed(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    const pz_cuda_weight *w = pz_cuda_in_weight(r, l, "w");
    pz_embed_params p = {.ids = pz_cuda_in_i32(r, l, "ids"), .w = w->bf16, .vocab = w->rows, .m = r->m};
    p.y = pz_cuda_matrix(r, l->out[0]);
    p.cols = (int)w->cols;
    return pz_cuda_launch_embed(r, &p, err);
}

/* ---- add; all_reduce on one rank ---- */
pz_status pz_cuda_check_add(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_out(r, l, 0, 0, err));
    int cols = columns(r, l->out[0]);
    if (l->op == PZ_OP_ALL_REDUCE) return pz_cuda_check_act(r, l, "x", cols, err);
    PZ_TRY(pz_cuda_check_act(r, l, "a", cols, err));
    return pz_cuda_check_act(r, l, "b", cols, err);
}

pz_status pz_cuda_run_add(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    pz_add_params p = {.y = pz_cuda_matrix(r, l->out[0]), .m = r->m, .cols = columns(r, l->out[0])};
    p.a = pz_cuda_matrix(r, pz_cuda_in(l, l->op == PZ_OP_ALL_REDUCE ? "x" : "a"));
    if (l->op == PZ_OP_ADD) p.b = pz_cuda_matrix(r, pz_cuda_in(l, "b"));
    return pz_cuda_launch_add(r, &p, err);
}

/* ---- silu_mul ---- */
pz_status pz_cuda_check_silu_mul(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_out(r, l, 0, 0, err));
    return pz_cuda_check_act(r, l, "x", 2 * (int64_t)columns(r, l->out[0]), err);
}

pz_status pz_cuda_run_silu_mul(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    pz_silu_params p = {.x = pz_cuda_matrix(r, pz_cuda_in(l, "x")), .y = pz_cuda_matrix(r, l->out[0]), .m = r->m};
    p.x_norm = pz_cuda_norm(r, l->out[0]);
    p.cols = columns(r, l->out[0]);
    return pz_cuda_launch_silu_mul(r, &p, err);
}

/* ---- norm of a compressed latent ---- */
pz_status pz_cuda_check_latent_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_out(r, l, 0, 0, err));
    int cols = columns(r, l->out[0]);
    PZ_TRY(pz_cuda_check_act(r, l, "x", cols, err));
    return pz_cuda_check_vector(r, l, "w", cols, err);
}

pz_status pz_cuda_run_latent_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    pz_latent_norm_params p = {.x = pz_cuda_matrix(r, pz_cuda_in(l, "x")), .y = pz_cuda_matrix(r, l->out[0])};
    p.w = pz_cuda_in_weight(r, l, "w")->vector;
    p.eps = pz_node_float(l->node, "eps");
    p.x_norm = pz_cuda_norm(r, l->out[0]);
    p.m = r->m;
    p.cols = columns(r, l->out[0]);
    return pz_cuda_launch_latent_norm(r, &p, err);
}
