/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the kernels that are public too: a plan's decisions become their arguments. */
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/norm/norm.h"
#include "backend/cuda/state.h"

/* ---- gemm ---- */
/* Without addresses of x and y, which a check does not need. */
static pz_gemm_args gemm_args(const pz_cuda_run *r, const pz_launch *l, const pz_cuda_weight *w) {
    const pz_place *x = &r->plan->places.at[pz_cuda_in(l, "x")], *y = &r->plan->places.at[l->out[0]];
    return (pz_gemm_args){.size = sizeof(pz_gemm_args),
                          .w = w->bf16,
                          .ldx = x->ld,
                          .ldw = w->cols,
                          .ldy = y->ld,
                          .m = r->m,
                          .n = (int)w->rows,
                          .k = (int)w->cols,
                          .accum = l->accum,
                          .w_norm = l->accum == PZ_ACCUM_FIXED ? w->w_norm : NULL,
                          .strategy = l->strategy,
                          .config = l->gemm};
}

pz_status pz_cuda_check_gemm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    const pz_weight *named = l->in[pz_op_operand_index(l->op, "w")].weight;
    const pz_cuda_weight *w = pz_cuda_in_weight(r, l, "w");
    if (!w || !w->bf16 || !w->w_norm)
        return pz_cuda_refuse(l, PZ_E_INVAL, err, "weight %s is not loaded for gemm", named ? named->name : "?");
    PZ_TRY(pz_cuda_check_act(r, l, "x", w->cols, err));
    const pz_place *x = &r->plan->places.at[pz_cuda_in(l, "x")];
    if (x->type.dt != PZ_DT_BF16)
        return pz_cuda_refuse(l, PZ_E_UNSUPPORTED, err,
                              "x is %s; GEMMs on a GPU multiply bf16 (activations in f32 need the CPU)",
                              pz_dtype_text(x->type.dt));
    const pz_place *y = l->out[0] >= 0 ? &r->plan->places.at[l->out[0]] : NULL;
    if (!y || y->type.rank != 2 || y->type.dim[1] != w->rows || y->type.dt != pz_accum_dtype(l->accum))
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "result must be %s[m,%lld]", pz_accum_text(l->accum),
                              (long long)w->rows);
    if (l->accum == PZ_ACCUM_FIXED && (y->scale_norm < 0 || y->scale_norm >= r->plan->places.n || y->scale_col != 0 ||
                                       !y->scale_weight || !pz_streq(y->scale_weight->name, w->name)))
        return pz_cuda_refuse(l, PZ_E_INTERNAL, err, "the fixed accumulator needs the x_norm of its input");
    size_t bytes = 0;
    pz_gemm_args a = gemm_args(r, l, w);
    pz_status st = pz_cuda_gemm_workspace(&a, &bytes, err);
    if (st != PZ_OK) return pz_fail_context(err, st, "cuda, %s", l->role);
    pz_cuda_want(r, l, bytes);
    return PZ_OK;
}

pz_status pz_cuda_run_gemm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    pz_gemm_args a = gemm_args(r, l, pz_cuda_in_weight(r, l, "w"));
    pz_matrix y = pz_cuda_matrix(r, l->out[0]);
    a.x = pz_cuda_matrix(r, pz_cuda_in(l, "x")).data;
    a.y = y.data;
    a.x_norm = y.x_norm;
    a.workspace = pz_cuda_scratch(r, l);
    a.dependent = r->dependent;
    a.stream = r->stream;
    return pz_cuda_gemm(&a, err);
}

/* ---- norms with a rider ---- */
pz_status pz_cuda_check_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_out(r, l, 0, 0, err));
    int64_t cols = r->plan->places.at[l->out[0]].type.dim[1];
    PZ_TRY(pz_cuda_check_act(r, l, "x", cols, err));
    PZ_TRY(pz_cuda_check_vector(r, l, "w", cols, err));
    if (pz_op_operand_index(l->op, "res") >= 0) {
        PZ_TRY(pz_cuda_check_act(r, l, "res", cols, err));
        PZ_TRY(pz_cuda_check_out(r, l, 1, cols, err));
    }
    if (l->fill >= r->plan->fills.n) return pz_cuda_refuse(l, PZ_E_INTERNAL, err, "no fill %d", l->fill);
    return PZ_OK;
}

pz_norm_args pz_cuda_norm_args(const pz_cuda_run *r, const pz_launch *l) {
    pz_norm_args a = {.size = sizeof a,
                      .x = pz_cuda_matrix(r, pz_cuda_in(l, "x")),
                      .w = pz_cuda_in_weight(r, l, "w")->vector,
                      .eps = (float)pz_node_float(l->node, "eps"),
                      .y = pz_cuda_matrix(r, l->out[0]),
                      .x_norm = pz_cuda_norm(r, l->out[0]),
                      .m = r->m,
                      .hidden = (int)r->plan->places.at[l->out[0]].type.dim[1],
                      .dependent = r->dependent,
                      .stream = r->stream};
    if (pz_op_operand_index(l->op, "res") >= 0) {
        a.res = pz_cuda_matrix(r, pz_cuda_in(l, "res"));
        a.r = pz_cuda_matrix(r, l->out[1]);
    }
    const pz_fill *fill = l->fill >= 0 ? &r->plan->fills.at[l->fill] : NULL;
    if (fill && fill->bytes > 0) {
        a.zero = r->arena + fill->offset;
        a.zero_bytes = (size_t)fill->bytes;
    }
    return a;
}

pz_status pz_cuda_run_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    pz_norm_args a = pz_cuda_norm_args(r, l);
    return pz_cuda_rms_norm(&a, err);
}

/* ---- no kernel ---- */
pz_status pz_cuda_check_none(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    (void)r;
    return pz_cuda_refuse(l, PZ_E_UNSUPPORTED, err, "op %s is no kernel and cannot be launched", pz_op_text(l->op));
}

pz_status pz_cuda_run_none(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    return pz_cuda_check_none(r, l, err);
}
