/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention: checks and runs. */
#include "backend/cuda/mla/mla.h"

static int attr(const pz_launch *l, const char *name) {
    return (int)pz_node_int(l->node, name);
}

static int64_t columns(const pz_cuda_run *r, const pz_launch *l, const char *operand) {
    return r->plan->places.at[pz_cuda_in(l, operand)].type.dim[1];
}

/* ---- the cache ---- */
static pz_status check_rows(const pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_i32(r, l, "pos", 0, err));
    return pz_cuda_check_i32(r, l, "seq", 0, err);
}

/* In a run: a check does not see the cache. */
static pz_status need_cache(const pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    return r->cache ? PZ_OK : pz_cuda_refuse(l, PZ_E_INVAL, err, "this plan needs a latent cache");
}

pz_status pz_cuda_check_cache_write(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cuda_check_act(r, l, "kv", 0, err));
    const pz_cuda_weight *freq = pz_cuda_in_weight(r, l, "inv_freq");
    int64_t entry = columns(r, l, "kv"), rope = freq ? 2 * freq->cols : 0;
    PZ_TRY(pz_cuda_check_vector(r, l, "inv_freq", rope / 2, err));
    if (rope >= entry)
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "%lld rotated columns of %lld", (long long)rope, (long long)entry);
    PZ_TRY(pz_cuda_check_vector(r, l, "w", entry - rope, err));
    return check_rows(r, l, err);
}

pz_status pz_cuda_run_cache_write(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(need_cache(r, l, err));
    pz_cache_write_params p = {.kv = pz_cuda_matrix(r, pz_cuda_in(l, "kv")), .cache = r->cache, .m = r->m};
    const pz_cuda_weight *freq = pz_cuda_in_weight(r, l, "inv_freq");
    p.pos = pz_cuda_in_i32(r, l, "pos");
    p.seq = pz_cuda_in_i32(r, l, "seq");
    p.w = pz_cuda_in_weight(r, l, "w")->vector;
    p.inv_freq = freq->vector;
    p.rope = 2 * (int)freq->cols;
    p.latent = (int)columns(r, l, "kv") - p.rope;
    p.layer = attr(l, "layer");
    p.eps = pz_node_float(l->node, "eps");
    p.rope_scale = (float)pz_node_float(l->node, "rope_scale");
    return pz_cuda_launch_cache_write(r, &p, err);
}

/* ---- kv_b ---- */
static pz_status check_kv_b(const pz_cuda_run *r, const pz_launch *l, const pz_cuda_weight **out, pz_error *err) {
    const pz_cuda_weight *w = pz_cuda_in_weight(r, l, "kv_b");
    int64_t heads = pz_node_int(l->node, "heads"), nope = pz_node_int(l->node, "nope"), v = pz_node_int(l->node, "v");
    if (!w || !w->bf16)
        return pz_cuda_refuse(l, PZ_E_INVAL, err, "weight %s is not loaded for %s", w ? w->name : "?",
                              pz_op_text(l->op));
    if (heads < 1 || nope < 1 || v < 1 || w->rows != heads * (nope + v))
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "weight %s has %lld rows, expected %lld heads of %lld + %lld", w->name,
                              (long long)w->rows, (long long)heads, (long long)nope, (long long)v);
    if (w->cols % 8 != 0 || w->cols > PZ_ABSORB_MAX_LATENT || nope > PZ_ABSORB_MAX_NOPE)
        return pz_cuda_refuse(
            l, PZ_E_UNSUPPORTED, err,
            "a latent of %lld and %lld values a head without rope; the kernel takes multiples of 8 up "
            "to %d and up to %d",
            (long long)w->cols, (long long)nope, PZ_ABSORB_MAX_LATENT, PZ_ABSORB_MAX_NOPE);
    *out = w;
    return PZ_OK;
}

pz_status pz_cuda_check_absorb_q(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    int64_t heads = pz_node_int(l->node, "heads"), rope = pz_node_int(l->node, "rope");
    const pz_cuda_weight *w;
    PZ_TRY(check_kv_b(r, l, &w, err));
    PZ_TRY(pz_cuda_check_act(r, l, "q", heads * (pz_node_int(l->node, "nope") + rope), err));
    PZ_TRY(pz_cuda_check_vector(r, l, "inv_freq", rope / 2, err));
    PZ_TRY(pz_cuda_check_i32(r, l, "pos", 0, err));
    return pz_cuda_check_out(r, l, 0, heads * (w->cols + rope), err);
}

pz_status pz_cuda_run_absorb_q(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    const pz_cuda_weight *w = pz_cuda_in_weight(r, l, "kv_b");
    pz_absorb_q_params p = {.q = pz_cuda_matrix(r, pz_cuda_in(l, "q")), .y = pz_cuda_matrix(r, l->out[0]), .m = r->m};
    p.pos = pz_cuda_in_i32(r, l, "pos");
    p.kv_b = w->bf16;
    p.inv_freq = pz_cuda_in_weight(r, l, "inv_freq")->vector;
    p.rope_scale = (float)pz_node_float(l->node, "rope_scale");
    p.heads = attr(l, "heads");
    p.nope = attr(l, "nope");
    p.rope = attr(l, "rope");
    p.v = attr(l, "v");
    p.latent = (int)w->cols;
    return pz_cuda_launch_absorb_q(r, &p, err);
}

pz_status pz_cuda_check_absorb_v(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    int64_t heads = pz_node_int(l->node, "heads");
    const pz_cuda_weight *w;
    PZ_TRY(check_kv_b(r, l, &w, err));
    PZ_TRY(pz_cuda_check_act(r, l, "o", heads * w->cols, err));
    PZ_TRY(pz_cuda_check_out(r, l, 0, heads * pz_node_int(l->node, "v"), err));
    if (r->plan->places.at[l->out[0]].norm >= 0) pz_cuda_want(r, l, (size_t)PZ_ABSORB_TICKETS(r->m) * sizeof(uint32_t));
    return PZ_OK;
}

pz_status pz_cuda_run_absorb_v(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    const pz_cuda_weight *w = pz_cuda_in_weight(r, l, "kv_b");
    pz_absorb_v_params p = {.o = pz_cuda_matrix(r, pz_cuda_in(l, "o")), .y = pz_cuda_matrix(r, l->out[0]), .m = r->m};
    p.kv_b = w->bf16;
    p.x_norm = pz_cuda_norm(r, l->out[0]);
    if (p.x_norm) p.tickets = pz_cuda_scratch(r, l);
    p.heads = attr(l, "heads");
    p.nope = attr(l, "nope");
    p.v = attr(l, "v");
    p.latent = (int)w->cols;
    return pz_cuda_launch_absorb_v(r, &p, err);
}

/* ---- attention ---- */
pz_status pz_cuda_check_attention(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    int64_t heads = pz_node_int(l->node, "heads"), latent = pz_node_int(l->node, "latent");
    int64_t entry = latent + pz_node_int(l->node, "rope");
    if (heads < 1 || latent < 1 || entry <= latent)
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "%lld heads of %lld + %lld values", (long long)heads,
                              (long long)latent, (long long)(entry - latent));
    if (latent > PZ_ATTENTION_MAX_LATENT || entry > PZ_ATTENTION_MAX_ENTRY)
        return pz_cuda_refuse(l, PZ_E_UNSUPPORTED, err, "%lld + %lld values a token; the kernel takes %d, %d in all",
                              (long long)latent, (long long)(entry - latent), PZ_ATTENTION_MAX_LATENT,
                              PZ_ATTENTION_MAX_ENTRY);
    PZ_TRY(check_rows(r, l, err));
    PZ_TRY(pz_cuda_check_act(r, l, "ql", heads * entry, err));
    return pz_cuda_check_out(r, l, 0, heads * latent, err);
}

pz_status pz_cuda_run_attention(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(need_cache(r, l, err));
    pz_attention_params p = {.q = pz_cuda_matrix(r, pz_cuda_in(l, "ql")), .y = pz_cuda_matrix(r, l->out[0]), .m = r->m};
    p.pos = pz_cuda_in_i32(r, l, "pos");
    p.seq = pz_cuda_in_i32(r, l, "seq");
    p.cache = r->cache;
    p.scale = (float)pz_node_float(l->node, "scale");
    p.heads = attr(l, "heads");
    p.latent = attr(l, "latent");
    p.rope = attr(l, "rope");
    p.layer = attr(l, "layer");
    return pz_cuda_launch_attention(r, &p, err);
}
