/* SPDX-License-Identifier: Apache-2.0 */
/* The decode graph of the DeepSeek/Kimi family, as a model author writes it: no fusion, no buffers. */
#include <inttypes.h>
#include <stdio.h>

#include "model/weights.h"

/* What transformers gives the norms of the latents, whatever rms_norm_eps says. */
static const double latent_eps = 1e-6;

/* `st` is sticky: after a failure every step does nothing and gives NULL, and the first message stays. */
typedef struct builder {
    const pz_hf_config *c;
    pz_shard shard;
    int64_t heads; /* of the rank */
    pz_accum accum;
    pz_dtype act;
    bool inlined;
    pz_graph *g;
    pz_func *f;
    int64_t layer; /* of the weights */
    bool numbered; /* value names end in the layer: in functions that hold several */
    pz_value *pos, *seq;
    pz_weight *inv_freq;
    pz_status st;
    pz_error *err;
} builder;

/* ---- steps ---- */
static pz_weight *weight(builder *b, pz_role r) {
    if (b->st != PZ_OK) return NULL;
    char name[64];
    pz_weight *w = NULL;
    pz_role_weight_name(r, b->layer, name, sizeof name);
    b->st = pz_graph_add_weight(b->g, name, pz_role_type(b->c, r, b->layer, &b->shard), &w, b->err);
    return w;
}

static pz_node *begin(builder *b, pz_op op) {
    pz_node *n = NULL;
    if (b->st == PZ_OK) b->st = pz_node_new(b->f, -1, op, &n, b->err);
    return n;
}

static void give(builder *b, pz_node *n, const char *operand, pz_value *v) {
    if (b->st == PZ_OK) b->st = pz_node_add_value(n, operand, v, NULL, b->err);
}

static void give_weight(builder *b, pz_node *n, const char *operand, pz_weight *w) {
    if (b->st == PZ_OK) b->st = pz_node_add_weight(n, operand, w, b->err);
}

static void set_int(builder *b, pz_node *n, const char *name, int64_t v) {
    if (b->st == PZ_OK) b->st = pz_node_set_int(n, name, v, b->err);
}

static void set_text(builder *b, pz_node *n, const char *name, const char *v) {
    if (b->st == PZ_OK) b->st = pz_node_set_str(n, name, v, b->err);
}

/* Written only where it differs from the op's default. */
static void opt_int(builder *b, pz_node *n, const char *name, int64_t v) {
    if (b->st == PZ_OK && pz_node_int(n, name) != v) set_int(b, n, name, v);
}

static void opt_float(builder *b, pz_node *n, const char *name, double v) {
    if (b->st == PZ_OK && pz_node_float(n, name) != v) b->st = pz_node_set_float(n, name, v, b->err);
}

static void infer(builder *b, pz_node *n, const char *name, const char *second) {
    char text[2][64];
    const char *given[2] = {name, second}, *names[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        if (!given[i]) continue;
        if (b->numbered)
            snprintf(text[i], sizeof text[i], "%s.%" PRId64, given[i], b->layer);
        else
            snprintf(text[i], sizeof text[i], "%s", given[i]);
        names[i] = text[i];
    }
    if (b->st == PZ_OK) b->st = pz_node_infer(n, names, b->err);
}

static pz_value *end(builder *b, pz_node *n, const char *name) {
    infer(b, n, name, NULL);
    return b->st == PZ_OK && n->results.n ? n->results.at[0] : NULL;
}

/* Ends a node whose result shall have dtype `out`. */
static pz_value *end_as(builder *b, pz_node *n, const char *name, pz_dtype out) {
    pz_value *v = end(b, n, name);
    if (v && v->type.dt != out) {
        b->st = pz_node_set_dtype(n, "out", out, b->err);
        infer(b, n, NULL, NULL);
    }
    return v;
}

/* ---- ops ---- */
static pz_value *norm(builder *b, pz_op op, const char *name, pz_value *x, pz_role r, double eps) {
    pz_weight *w = weight(b, r);
    pz_node *n = begin(b, op);
    give(b, n, "x", x);
    give_weight(b, n, "w", w);
    opt_float(b, n, "eps", eps);
    return end_as(b, n, name, b->act);
}

/* The fixed accumulator needs the norm of each row of x, which the op that makes x must give. slot: "" or the name of
 * the function's slot for this output. */
static pz_value *gemm(builder *b, const char *name, pz_value *x, pz_role r, const char *slot) {
    pz_weight *w = weight(b, r);
    pz_node *n = begin(b, PZ_OP_GEMM);
    give(b, n, "x", x);
    give_weight(b, n, "w", w);
    if (b->st != PZ_OK) return NULL;
    bool normed = x->def && x->index == 0 && pz_node_has(x->def, PZ_TRAIT_ROW_NORM);
    pz_accum accum = b->accum == PZ_ACCUM_FIXED && !normed ? PZ_ACCUM_F32 : b->accum;
    if (accum != PZ_ACCUM_F32) set_text(b, n, "accum", pz_accum_text(accum));
    if (*slot) set_text(b, n, "slot", slot);
    return end(b, n, name);
}

static pz_value *slice(builder *b, const char *name, pz_value *x, int64_t start, int64_t size) {
    pz_node *n = begin(b, PZ_OP_SLICE);
    give(b, n, "x", x);
    set_int(b, n, "start", start);
    set_int(b, n, "size", size);
    return end(b, n, name);
}

static pz_value *add(builder *b, const char *name, pz_value *x, pz_value *y) {
    pz_node *n = begin(b, PZ_OP_ADD);
    give(b, n, "a", x);
    give(b, n, "b", y);
    return end_as(b, n, name, b->act);
}

/* Sum over the ranks, where there are several. It stays f32 up to the residual add, so that fusing the two leaves the
 * bits as they are. */
static pz_value *reduce(builder *b, const char *name, pz_value *x) {
    if (b->shard.tp == 1) return x;
    pz_node *n = begin(b, PZ_OP_ALL_REDUCE);
    give(b, n, "x", x);
    return end_as(b, n, name, PZ_DT_F32);
}

static pz_value *feed_forward(builder *b, const char *const names[3], pz_value *x, pz_role gate_up, pz_role down) {
    pz_value *up = gemm(b, names[0], x, gate_up, "");
    pz_node *n = begin(b, PZ_OP_SILU_MUL);
    give(b, n, "x", up);
    pz_value *a = end_as(b, n, names[1], b->act);
    return gemm(b, names[2], a, down, "");
}

/* ---- attention ---- */
static void cache_write(builder *b, pz_value *kv, pz_weight *w) {
    pz_node *n = begin(b, PZ_OP_MLA_CACHE_WRITE);
    give(b, n, "kv", kv);
    give(b, n, "pos", b->pos);
    give(b, n, "seq", b->seq);
    give_weight(b, n, "w", w);
    give_weight(b, n, "inv_freq", b->inv_freq);
    set_int(b, n, "layer", b->layer);
    opt_float(b, n, "eps", latent_eps);
    opt_float(b, n, "rope_scale", pz_rope_cos_scale(b->c));
    end(b, n, NULL);
}

static pz_value *absorb_q(builder *b, pz_value *q, pz_weight *kv_b) {
    pz_node *n = begin(b, PZ_OP_MLA_ABSORB_Q);
    give(b, n, "q", q);
    give(b, n, "pos", b->pos);
    give_weight(b, n, "kv_b", kv_b);
    give_weight(b, n, "inv_freq", b->inv_freq);
    set_int(b, n, "heads", b->heads);
    set_int(b, n, "nope", b->c->nope);
    set_int(b, n, "rope", b->c->rope);
    set_int(b, n, "v", b->c->v);
    opt_float(b, n, "rope_scale", pz_rope_cos_scale(b->c));
    return end_as(b, n, "q_latent", PZ_DT_F32);
}

static pz_value *latent_attention(builder *b, pz_value *ql) {
    pz_node *n = begin(b, PZ_OP_MLA_ATTENTION);
    give(b, n, "ql", ql);
    give(b, n, "pos", b->pos);
    give(b, n, "seq", b->seq);
    set_int(b, n, "layer", b->layer);
    set_int(b, n, "heads", b->heads);
    set_int(b, n, "latent", b->c->kv_lora);
    set_int(b, n, "rope", b->c->rope);
    if (b->st == PZ_OK) b->st = pz_node_set_float(n, "scale", pz_softmax_scale(b->c), b->err);
    return end_as(b, n, "o_latent", PZ_DT_F32);
}

static pz_value *absorb_v(builder *b, pz_value *o, pz_weight *kv_b) {
    pz_node *n = begin(b, PZ_OP_MLA_ABSORB_V);
    give(b, n, "o", o);
    give_weight(b, n, "kv_b", kv_b);
    set_int(b, n, "heads", b->heads);
    set_int(b, n, "nope", b->c->nope);
    set_int(b, n, "v", b->c->v);
    return end_as(b, n, "o", b->act);
}

/* From the compressed projections to o_proj; *q is the result of q_b, NULL if the model has none. */
static pz_value *attention(builder *b, pz_value *qkv, bool slots, pz_value **q_b) {
    const pz_hf_config *c = b->c;
    int64_t q_width = c->q_lora ? c->q_lora : b->heads * (c->nope + c->rope);
    pz_value *q = slice(b, c->q_lora ? "q_a" : "q", qkv, 0, q_width);
    *q_b = NULL;
    if (c->q_lora) {
        pz_value *qn = norm(b, PZ_OP_LATENT_RMS_NORM, "q_n", q, PZ_ROLE_Q_A_NORM, latent_eps);
        *q_b = q = gemm(b, "q", qn, PZ_ROLE_Q_B, slots ? "q_b" : "");
    }
    pz_value *kv = slice(b, "kv", qkv, q_width, c->kv_lora + c->rope);
    cache_write(b, kv, weight(b, PZ_ROLE_KV_A_NORM));
    pz_weight *kv_b = weight(b, PZ_ROLE_KV_B);
    pz_value *o = absorb_v(b, latent_attention(b, absorb_q(b, q, kv_b)), kv_b);
    return gemm(b, "attn", o, PZ_ROLE_O_PROJ, slots ? "o_proj" : "");
}

static pz_value *param(builder *b, const char *name, pz_type t) {
    pz_value *v = NULL;
    if (b->st == PZ_OK) b->st = pz_func_add_param(b->f, name, t, &v, b->err);
    return v;
}

static void give_back(builder *b, pz_value *v) {
    if (b->st == PZ_OK) b->st = pz_push(&b->f->returns, v, b->err);
}

/* The same inside an opaque function, whose two GEMMs can be handed zeroed outputs through slots. */
static pz_value *opaque_attention(builder *b, pz_value *qkv) {
    builder outer = *b;
    char name[64];
    snprintf(name, sizeof name, "mla_attention.%" PRId64, b->layer);
    if (b->st == PZ_OK) b->st = pz_graph_add_func(b->g, name, true, &b->f, b->err);
    if (b->st != PZ_OK) return NULL;
    b->numbered = false;
    pz_value *inner_qkv = param(b, "qkv", qkv->type);
    b->pos = param(b, "pos", pz_type_make(PZ_DT_I32, 1, PZ_DIM_M, 0, 0));
    b->seq = param(b, "seq", pz_type_make(PZ_DT_I32, 1, PZ_DIM_M, 0, 0));
    pz_value *q_b, *out = attention(b, inner_qkv, true, &q_b);
    if (b->st == PZ_OK && q_b) b->st = pz_func_add_slot(b->f, "q_b", q_b->type, b->err);
    if (b->st == PZ_OK) b->st = pz_func_add_slot(b->f, "o_proj", out->type, b->err);
    give_back(b, out);
    outer.st = b->st;
    pz_func *callee = b->f;
    *b = outer;
    pz_node *call = begin(b, PZ_OP_CALL);
    if (b->st == PZ_OK) call->callee = callee;
    give(b, call, NULL, qkv);
    give(b, call, NULL, b->pos);
    give(b, call, NULL, b->seq);
    return end(b, call, "attn");
}

/* ---- experts ---- */
/* The gate comes first after the norm, so that it is the norm's first consumer. */
static pz_value *experts(builder *b, pz_value *x) {
    const pz_hf_config *c = b->c;
    pz_value *logits = gemm(b, "gate", x, PZ_ROLE_GATE, "");
    pz_weight *bias = c->correction_bias ? weight(b, PZ_ROLE_GATE_BIAS) : NULL;
    pz_node *router = begin(b, PZ_OP_ROUTER);
    give(b, router, "logits", logits);
    if (bias) give_weight(b, router, "bias", bias);
    set_int(b, router, "top_k", c->top_k);
    opt_int(b, router, "n_group", c->n_group);
    opt_int(b, router, "topk_group", c->topk_group);
    opt_int(b, router, "group_top", c->group_top);
    if (c->scoring == PZ_SCORING_SOFTMAX) set_text(b, router, "scoring", "softmax");
    opt_int(b, router, "norm", c->norm_topk);
    opt_float(b, router, "scale", c->routed_scale);
    infer(b, router, "experts", "expert_weights");
    if (b->st != PZ_OK) return NULL;
    pz_weight *gate_up = weight(b, PZ_ROLE_EXPERTS_GATE_UP), *down = weight(b, PZ_ROLE_EXPERTS_DOWN);
    pz_node *n = begin(b, PZ_OP_MOE_EXPERTS);
    give(b, n, "x", x);
    give(b, n, "ids", router->results.at[0]);
    give(b, n, "weights", router->results.at[1]);
    give_weight(b, n, "gate_up", gate_up);
    give_weight(b, n, "down", down);
    pz_role_shape first, here = pz_role_shape_of(c, PZ_ROLE_EXPERTS_GATE_UP, &b->shard, &first);
    opt_int(b, n, "first", first.count);
    opt_int(b, n, "total", here.count == c->experts ? 0 : c->experts);
    pz_value *moe = end_as(b, n, "moe", PZ_DT_F32);
    if (!c->shared_experts) return moe;
    static const char *const names[] = {"shared_up", "shared_act", "shared"};
    pz_value *shared = feed_forward(b, names, x, PZ_ROLE_SHARED_GATE_UP, PZ_ROLE_SHARED_DOWN);
    return add(b, "mlp", moe, shared);
}

/* ---- model ---- */
static pz_value *decoder_layer(builder *b, pz_value *res) {
    static const char *const dense[] = {"mlp_up", "mlp_act", "mlp"};
    pz_value *x = norm(b, PZ_OP_RMS_NORM, "x", res, PZ_ROLE_INPUT_NORM, b->c->eps);
    pz_value *qkv = gemm(b, "qkv", x, b->c->q_lora ? PZ_ROLE_QKV_A : PZ_ROLE_QKV, ""), *q_b;
    pz_value *attn = b->inlined ? attention(b, qkv, false, &q_b) : opaque_attention(b, qkv);
    res = add(b, "res_attn", reduce(b, "attn_sum", attn), res);
    x = norm(b, PZ_OP_RMS_NORM, "x_mlp", res, PZ_ROLE_POST_NORM, b->c->eps);
    pz_value *mlp = pz_layer_is_moe(b->c, b->layer) ? experts(b, x)
                                                    : feed_forward(b, dense, x, PZ_ROLE_MLP_GATE_UP, PZ_ROLE_MLP_DOWN);
    return add(b, "res", reduce(b, "mlp_sum", mlp), res);
}

static void build(builder *b) {
    b->st = pz_graph_add_func(b->g, "decode", false, &b->f, b->err);
    pz_type rows = pz_type_make(PZ_DT_I32, 1, PZ_DIM_M, 0, 0);
    pz_value *ids = param(b, "ids", rows);
    b->pos = param(b, "pos", rows);
    b->seq = param(b, "seq", rows);
    pz_weight *embed = weight(b, PZ_ROLE_EMBED);
    b->inv_freq = weight(b, PZ_ROLE_INV_FREQ);
    pz_node *n = begin(b, PZ_OP_EMBED);
    give(b, n, "ids", ids);
    give_weight(b, n, "w", embed);
    pz_value *res = end_as(b, n, "embed", b->act);
    b->numbered = true;
    for (b->layer = 0; b->layer < b->c->layers && b->st == PZ_OK; b->layer++) res = decoder_layer(b, res);
    b->numbered = false;
    pz_value *x = norm(b, PZ_OP_RMS_NORM, "x", res, PZ_ROLE_NORM, b->c->eps);
    give_back(b, gemm(b, "logits", x, b->c->tied ? PZ_ROLE_TIED_LM_HEAD : PZ_ROLE_LM_HEAD, ""));
}

pz_status pz_model_graph(const pz_hf_config *c, const pz_model_graph_options *opts, pz_graph **out, pz_error *err) {
    static const pz_model_graph_options defaults = {.size = sizeof defaults};
    *out = NULL;
    if (!opts) opts = &defaults;
    if (opts->size != sizeof *opts)
        return pz_fail(err, PZ_E_INVAL, "pz_model_graph_options.size is %zu, expected %zu", opts->size, sizeof *opts);
    if (opts->tp < 0) return pz_fail(err, PZ_E_INVAL, "tp is %d, expected 1 or more", opts->tp);
    if ((unsigned)opts->accum > PZ_ACCUM_BF16 || (unsigned)opts->act > PZ_ACT_F32)
        return pz_fail(err, PZ_E_INVAL, "accum %d or act %d is no value of its enum", (int)opts->accum, (int)opts->act);
    if ((unsigned)opts->experts > PZ_EXPERTS_BY_EXPERT)
        return pz_fail(err, PZ_E_INVAL, "experts %d is no value of its enum", (int)opts->experts);
    pz_shard shard = {.tp = opts->tp ? opts->tp : 1, .rank = opts->rank, .experts = opts->experts};
    PZ_TRY(pz_shard_check(c, &shard, err));
    builder b = {.c = c,
                 .shard = shard,
                 .heads = c->heads / shard.tp,
                 .accum = opts->accum,
                 .act = opts->act == PZ_ACT_F32 ? PZ_DT_F32 : PZ_DT_BF16,
                 .inlined = opts->inlined != 0,
                 .err = err};
    PZ_TRY(pz_graph_new(c->model_type, &b.g, err));
    build(&b);
    if (b.st == PZ_OK)
        *out = b.g;
    else
        pz_graph_free(b.g);
    return b.st;
}

pz_status pz_graph_from_config(const char *dir, const pz_model_graph_options *opts, pz_graph **out, pz_error *err) {
    PZ_NEED(dir && out, "a directory and a place for the graph", err);
    *out = NULL;
    pz_hf_config c;
    PZ_TRY(pz_hf_config_load(dir, &c, err));
    return pz_model_graph(&c, opts, out, err);
}
