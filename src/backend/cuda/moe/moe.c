/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of experts, and the experts: checks and runs. */
#include "backend/cuda/moe/moe.h"

#include "base/base.h"

static int64_t columns(const pz_cuda_run *r, const pz_launch *l, const char *operand) {
    return r->plan->places.at[pz_cuda_in(l, operand)].type.dim[1];
}

/* ---- router ---- */
static bool is_sigmoid(const pz_launch *l) {
    return pz_streq(pz_node_str(l->node, "scoring"), "sigmoid");
}

pz_status pz_cuda_check_router(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    int64_t top_k = pz_node_int(l->node, "top_k"), groups = pz_node_int(l->node, "n_group");
    int64_t kept = pz_node_int(l->node, "topk_group"), group_top = pz_node_int(l->node, "group_top");
    PZ_TRY(pz_cuda_check_act(r, l, "logits", 0, err));
    int64_t n = columns(r, l, "logits");
    if (groups < 1 || n % groups != 0 || kept < 1 || kept > groups || group_top < 1 || group_top > n / groups ||
        top_k < 1 || top_k > kept * (n / groups))
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "top %lld of %lld experts in the best %lld of %lld groups",
                              (long long)top_k, (long long)n, (long long)kept, (long long)groups);
    if (n > PZ_ROUTER_MAX_EXPERTS)
        return pz_cuda_refuse(l, PZ_E_UNSUPPORTED, err, "%lld experts; the kernel takes up to %d", (long long)n,
                              PZ_ROUTER_MAX_EXPERTS);
    if (!is_sigmoid(l) && !pz_streq(pz_node_str(l->node, "scoring"), "softmax"))
        return pz_cuda_refuse(l, PZ_E_UNSUPPORTED, err, "scoring %s; there are sigmoid, softmax",
                              pz_node_str(l->node, "scoring"));
    if (pz_cuda_in_weight(r, l, "bias")) PZ_TRY(pz_cuda_check_vector(r, l, "bias", n, err));
    const pz_place *ids = l->out[0] >= 0 ? &r->plan->places.at[l->out[0]] : NULL;
    if (!ids || ids->type.dt != PZ_DT_I32 || ids->ld != top_k)
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "ids must be i32[m,%lld]", (long long)top_k);
    return pz_cuda_check_out(r, l, 1, top_k, err);
}

pz_status pz_cuda_run_router(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    const pz_cuda_weight *bias = pz_cuda_in_weight(r, l, "bias");
    pz_router_params p = {.logits = pz_cuda_matrix(r, pz_cuda_in(l, "logits")), .m = r->m};
    p.weights = pz_cuda_matrix(r, l->out[1]);
    p.ids = (int32_t *)(void *)(r->arena + r->plan->places.at[l->out[0]].offset);
    p.bias = bias ? bias->vector : NULL;
    p.experts = (int)columns(r, l, "logits");
    p.top_k = (int)pz_node_int(l->node, "top_k");
    p.n_group = (int)pz_node_int(l->node, "n_group");
    p.topk_group = (int)pz_node_int(l->node, "topk_group");
    p.group_top = (int)pz_node_int(l->node, "group_top");
    p.sigmoid = is_sigmoid(l);
    p.norm = pz_node_int(l->node, "norm") != 0;
    p.scale = (float)pz_node_float(l->node, "scale");
    return pz_cuda_launch_router(r, &p, err);
}

/* ---- experts ---- */
static const pz_weight *weight_of(const pz_launch *l, const char *operand) {
    return l->in[pz_op_operand_index(l->op, operand)].weight;
}

static pz_status check_weight(const pz_cuda_run *r, const pz_launch *l, const char *operand, pz_error *err) {
    const pz_weight *w = weight_of(l, operand);
    const pz_cuda_weight *e = pz_cuda_in_weight(r, l, operand);
    if (!w || w->type.rank != 3 || !e || !(e->bf16 || (e->fp4 && e->scale)))
        return pz_cuda_refuse(l, PZ_E_INVAL, err, "weight %s is not loaded for moe_experts", w ? w->name : "?");
    int64_t k = w->type.dim[2], of = e->fp4 ? 32 : 8;
    if (k % of == 0) return PZ_OK;
    return pz_cuda_refuse(l, PZ_E_UNSUPPORTED, err, "weight %s has %lld columns; the kernel takes multiples of %lld",
                          w->name, (long long)k, (long long)of);
}

/* silu(gate) * up is rounded as x is. */
static bool middle_is_bf16(const pz_cuda_run *r, const pz_launch *l) {
    return r->plan->places.at[pz_cuda_in(l, "x")].type.dt == PZ_DT_BF16;
}

pz_status pz_cuda_check_experts(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(check_weight(r, l, "gate_up", err));
    PZ_TRY(check_weight(r, l, "down", err));
    const pz_type *g = &weight_of(l, "gate_up")->type, *d = &weight_of(l, "down")->type;
    if (g->dim[1] != 2 * d->dim[2] || g->dim[0] != d->dim[0] || g->dim[2] != d->dim[1])
        return pz_cuda_refuse(
            l, PZ_E_TYPE, err,
            "gate_up is [%lld,%lld,%lld], down [%lld,%lld,%lld]; [e,2i,h] and [e,h,i] belong together",
            (long long)g->dim[0], (long long)g->dim[1], (long long)g->dim[2], (long long)d->dim[0],
            (long long)d->dim[1], (long long)d->dim[2]);
    int64_t first = pz_node_int(l->node, "first"), total = pz_node_int(l->node, "total");
    if (first < 0 || total > INT32_MAX || first > (total ? total : d->dim[0]) - d->dim[0])
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "%lld experts from %lld on of %lld", (long long)d->dim[0],
                              (long long)first, (long long)total);
    PZ_TRY(pz_cuda_check_act(r, l, "x", g->dim[2], err));
    PZ_TRY(pz_cuda_check_act(r, l, "weights", 0, err));
    int64_t top_k = columns(r, l, "weights");
    if (top_k > PZ_ROUTER_MAX_EXPERTS)
        return pz_cuda_refuse(l, PZ_E_UNSUPPORTED, err, "%lld experts a row; the kernel takes up to %d",
                              (long long)top_k, PZ_ROUTER_MAX_EXPERTS);
    PZ_TRY(pz_cuda_check_i32(r, l, "ids", top_k, err));
    PZ_TRY(pz_cuda_check_out(r, l, 0, g->dim[2], err));
    size_t bytes;
    size_t row = (size_t)d->dim[2] * (middle_is_bf16(r, l) ? 2 : 4);
    if (!pz_mul_ok((size_t)r->m * (size_t)top_k, row, &bytes))
        return pz_cuda_refuse(l, PZ_E_NOMEM, err, "too many rows for its scratch memory");
    pz_cuda_want(r, l, bytes);
    return PZ_OK;
}

static pz_expert_weight expert_weight(const pz_cuda_weight *w) {
    return w->fp4 ? (pz_expert_weight){w->fp4, w->scale} : (pz_expert_weight){w->bf16, NULL};
}

pz_status pz_cuda_run_experts(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    const pz_type *down = &weight_of(l, "down")->type;
    pz_experts_params p = {.x = pz_cuda_matrix(r, pz_cuda_in(l, "x")), .y = pz_cuda_matrix(r, l->out[0]), .m = r->m};
    p.weights = pz_cuda_matrix(r, pz_cuda_in(l, "weights"));
    p.ids = pz_cuda_in_i32(r, l, "ids");
    p.gate_up = expert_weight(pz_cuda_in_weight(r, l, "gate_up"));
    p.down = expert_weight(pz_cuda_in_weight(r, l, "down"));
    p.experts = (int)down->dim[0];
    p.first = (int)pz_node_int(l->node, "first");
    p.total = (int)pz_node_int(l->node, "total");
    if (!p.total) p.total = p.experts;
    p.top_k = (int)columns(r, l, "weights");
    p.hidden = (int)down->dim[1];
    p.inner = (int)down->dim[2];
    p.middle = (pz_matrix){.data = pz_cuda_scratch(r, l), .ld = p.inner};
    p.middle.elem = middle_is_bf16(r, l) ? PZ_ELEM_BF16 : PZ_ELEM_F32;
    return pz_cuda_launch_experts(r, &p, err);
}
