/* SPDX-License-Identifier: Apache-2.0 */
/* A model over several ranks: which rows and columns each holds, that they sum to the whole, and what is refused. How
 * each weight is split is written out here, not taken from the library's table. */
#include "support_checkpoint.h"

#include <math.h>
#include <stdio.h>

#include "base/fixed.h"
#include "base/rng.h"

static const int ranks[] = {1, 2, 4, 8};

/* ---- models of many sizes: layer 0 dense, layer 1 with experts ---- */
typedef enum quant { PLAIN, EXPERTS_FP4, ALL_FP4 } quant;

typedef struct sizes {
    int64_t vocab, hidden, heads, dense, kv_lora, nope, rope, v, q_lora /* 0: none */, experts, shared, width;
    bool tied;
    quant quant;
} sizes;

static pz_hf_config config_of(const sizes *z) {
    char text[2048];
    snprintf(text, sizeof text,
             "{\"model_type\": \"deepseek_v3\", \"vocab_size\": %d, \"hidden_size\": %d, \"num_hidden_layers\": 2,"
             " \"num_attention_heads\": %d, \"intermediate_size\": %d, \"kv_lora_rank\": %d, \"qk_nope_head_dim\": %d,"
             " \"qk_rope_head_dim\": %d, \"v_head_dim\": %d, \"q_lora_rank\": %s%d, \"n_routed_experts\": %d,"
             " \"n_shared_experts\": %d, \"moe_intermediate_size\": %d, \"num_experts_per_tok\": 1,"
             " \"max_position_embeddings\": 64, \"first_k_dense_replace\": 1, \"tie_word_embeddings\": %s%s%s%s}",
             (int)z->vocab, (int)z->hidden, (int)z->heads, (int)z->dense, (int)z->kv_lora, (int)z->nope, (int)z->rope,
             (int)z->v, z->q_lora ? "" : "null, \"_\": ", (int)z->q_lora, (int)z->experts, (int)z->shared,
             (int)z->width, z->tied ? "true" : "false",
             z->quant ? ", \"quantization_config\": {\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\":"
                        " {\"dtype\": \"fp4\"}}, \"exclude\": ["
                      : "",
             z->quant == EXPERTS_FP4 ? "\"re:.*self_attn.*\", \"re:.*shared.*\", \"lm_head\", \"re:.*layers.0.mlp.*\""
                                     : "",
             z->quant ? "]}" : "");
    pz_hf_config c;
    pz_error err;
    assert_ok(pz_hf_config_parse(text, strlen(text), "config.json", &c, &err), &err);
    return c;
}

static void put_linear(support_maker *m, bool fp4, int64_t rows, int64_t cols, const char *module) {
    if (!fp4) {
        support_put(m, "BF16", rows, cols, "%s.weight", module);
        return;
    }
    support_put(m, "U8", rows, cols / 2, "%s.weight", module);
    support_put(m, "U8", rows, cols / 32, "%s.weight_scale", module);
}

static void put_mlp(support_maker *m, bool fp4, const sizes *z, int64_t width, const char *module) {
    char name[96];
    for (int i = 0; i < 3; i++) {
        static const char *const proj[] = {"gate", "up", "down"};
        snprintf(name, sizeof name, "model.layers.%s.%s_proj", module, proj[i]);
        put_linear(m, fp4, i == 2 ? z->hidden : width, i == 2 ? width : z->hidden, name);
    }
}

static void put_attention(support_maker *m, const sizes *z, int layer) {
    char name[5][64];
    static const char *const proj[] = {"q_a_proj", "q_b_proj", "q_proj", "kv_a_proj_with_mqa", "o_proj"};
    for (int i = 0; i < 5; i++) snprintf(name[i], sizeof name[i], "model.layers.%d.self_attn.%s", layer, proj[i]);
    bool fp4 = z->quant == ALL_FP4;
    int64_t q = z->heads * (z->nope + z->rope);
    if (z->q_lora) {
        put_linear(m, fp4, z->q_lora, z->hidden, name[0]);
        put_linear(m, fp4, q, z->q_lora, name[1]);
        support_put(m, "BF16", z->q_lora, 0, "model.layers.%d.self_attn.q_a_layernorm.weight", layer);
    } else {
        put_linear(m, fp4, q, z->hidden, name[2]);
    }
    put_linear(m, fp4, z->kv_lora + z->rope, z->hidden, name[3]);
    put_linear(m, fp4, z->hidden, z->heads * z->v, name[4]);
    support_put(m, "BF16", z->kv_lora, 0, "model.layers.%d.self_attn.kv_a_layernorm.weight", layer);
    support_put(m, "BF16", z->heads * (z->nope + z->v), z->kv_lora, "model.layers.%d.self_attn.kv_b_proj.weight",
                layer);
    support_put(m, "BF16", z->hidden, 0, "model.layers.%d.input_layernorm.weight", layer);
    support_put(m, "BF16", z->hidden, 0, "model.layers.%d.post_attention_layernorm.weight", layer);
}

/* Random finite numbers in every tensor. */
static void fill(const pz_checkpoint *ck, uint64_t seed) {
    for (int i = 0; i < pz_checkpoint_count(ck); i++) {
        const pz_tensor *t = pz_checkpoint_at(ck, i);
        unsigned char *p = (unsigned char *)(uintptr_t)t->data;
        bool scale = strstr(t->name, "weight_scale") != NULL;
        for (size_t at = 0; at < t->bytes;) {
            float f = (float)(2 * pz_rng_unit(&seed) - 1);
            uint16_t h = pz_f32_to_bf16(f);
            if (strcmp(t->dtype, "U8") == 0)
                p[at++] = (unsigned char)(scale ? 120 + pz_rng_next(&seed) % 8 : pz_rng_next(&seed) & 0xff);
            else if (strcmp(t->dtype, "BF16") == 0)
                memcpy(p + at, &h, 2), at += 2;
            else
                memcpy(p + at, &f, 4), at += 4;
        }
    }
}

/* F32 before BF16 before U8, which may lie anywhere. */
static int by_alignment(const void *a, const void *b) {
    const char *x = ((const support_item *)a)->dtype, *y = ((const support_item *)b)->dtype;
    return *x == *y ? 0 : *x == 'F' || *y == 'U' ? -1 : 1;
}

static pz_checkpoint *checkpoint_of(const sizes *z, uint64_t seed, unsigned char **data) {
    support_maker *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->prefix = "";
    char name[48];
    support_put(m, "F32", z->experts, 0, "model.layers.1.mlp.gate.e_score_correction_bias");
    support_put(m, "BF16", z->vocab, z->hidden, "model.embed_tokens.weight");
    if (!z->tied) put_linear(m, z->quant == ALL_FP4, z->vocab, z->hidden, "lm_head");
    support_put(m, "BF16", z->hidden, 0, "model.norm.weight");
    for (int i = 0; i < 2; i++) put_attention(m, z, i);
    put_mlp(m, z->quant == ALL_FP4, z, z->dense, "0.mlp");
    support_put(m, "BF16", z->experts, z->hidden, "model.layers.1.mlp.gate.weight");
    if (z->shared) put_mlp(m, z->quant == ALL_FP4, z, z->width * z->shared, "1.mlp.shared_experts");
    for (int e = 0; e < z->experts; e++) {
        snprintf(name, sizeof name, "1.mlp.experts.%d", e);
        put_mlp(m, z->quant != PLAIN, z, z->width, name);
    }
    qsort(m->items, (size_t)m->n, sizeof *m->items, by_alignment);
    pz_checkpoint *ck = support_checkpoint(m, false, data);
    fill(ck, seed);
    free(m);
    return ck;
}

static int64_t pick(uint64_t *s, int64_t lo, int64_t hi) {
    return lo + (int64_t)(pz_rng_next(s) % (uint64_t)(hi - lo + 1));
}

/* Sizes that 8 ranks can share, both ways. */
static sizes splittable(uint64_t *s, quant q) {
    int64_t group = q == PLAIN ? 1 : 32, all = q == ALL_FP4 ? 32 : 1;
    return (sizes){.vocab = 8 * pick(s, 1, 3),
                   .hidden = group * pick(s, 1, 2) + (q == PLAIN ? 3 : 0),
                   .heads = 8 * pick(s, 1, 2),
                   .dense = 8 * all * pick(s, 1, 2),
                   .kv_lora = pick(s, 1, 9),
                   .nope = pick(s, 1, 5),
                   .rope = 2 * pick(s, 1, 3),
                   .v = q == ALL_FP4 ? 32 : pick(s, 1, 5),
                   .q_lora = pick(s, 0, 2) ? all * pick(s, 1, 2) : 0,
                   .experts = 8,
                   .shared = pick(s, 0, 2),
                   .width = 8 * group * pick(s, 1, 2),
                   .tied = pick(s, 0, 1) != 0,
                   .quant = q};
}

static pz_graph *graph_of(const pz_hf_config *c, pz_shard s) {
    pz_graph *g;
    pz_error err;
    pz_model_graph_options o = {.size = sizeof o, .tp = (int)s.tp, .rank = (int)s.rank, .experts = s.experts};
    assert_ok(pz_model_graph(c, &o, &g, &err), &err);
    assert_ok(pz_graph_verify(g, &err), &err);
    return g;
}

/* ---- every byte of every weight is on the rank where it belongs ---- */
typedef enum how { ALL, ROWS, HALVES /* gate rows over up rows */, FIRST /* q rows over shared ones */, COLS } how;

static const struct {
    const char *name; /* after "layers.N." */
    how how;
    bool routed;
} rules[] = {
    {"embed", ALL, false},
    {"norm", ALL, false},
    {"input_layernorm", ALL, false},
    {"post_attention_layernorm", ALL, false},
    {"q_a_layernorm", ALL, false},
    {"kv_a_layernorm", ALL, false},
    {"rope.inv_freq", ALL, false},
    {"gate", ALL, false},
    {"gate_bias", ALL, false},
    {"qkv_a", FIRST, false},
    {"q_b", ROWS, false},
    {"kv_b", ROWS, false},
    {"o_proj", COLS, false},
    {"experts.gate_up", HALVES, true},
    {"experts.down", COLS, true},
    {"shared.gate_up", HALVES, false},
    {"shared.down", COLS, false},
    {"mlp.gate_up", HALVES, false},
    {"mlp.down", COLS, false},
    {"lm_head", ROWS, false},
};
enum { N_RULES = sizeof rules / sizeof *rules };
static int rule_used[N_RULES];

static int rule_of(const char *weight) {
    if (strncmp(weight, "layers.", 7) == 0) weight = strchr(weight + 7, '.') + 1;
    for (int i = 0; i < N_RULES; i++)
        if (strcmp(rules[i].name, weight) == 0) return i;
    fail_msg("no rule for weight %s", weight);
    return -1;
}

typedef struct row {
    const unsigned char *data, *scale;
} row;

static row row_of(const pz_host_weight *w, int64_t r) {
    const pz_host_part *p = w->parts.at;
    for (; r >= p->rows; p++) r -= p->rows;
    return (row){p->data + r * p->row_stride, p->scale ? p->scale + r * p->scale_stride : NULL};
}

static int64_t row_bytes(const pz_host_weight *w) {
    return w->dt == PZ_DT_MXFP4 ? w->cols / 2 : w->dt == PZ_DT_F32 ? w->cols * 4 : w->cols * 2;
}

/* Where row j of a rank's matrix of n rows stands in the whole matrix of `whole` rows. */
static int64_t place_of(how h, int64_t j, int64_t n, int64_t whole, int64_t kept, const pz_shard *s) {
    switch (h) {
    case ROWS: return s->rank * n + j;
    case HALVES: return j / (n / 2) * (whole / 2) + s->rank * (n / 2) + j % (n / 2);
    case FIRST: return j < n - kept ? s->rank * (n - kept) + j : whole - n + j;
    case ALL:
    case COLS: break;
    }
    return j;
}

/* Compares a rank's share with the whole and counts the bytes it covers. */
static void check_share(const pz_hf_config *c, const pz_weight *w, const pz_host_weight *whole,
                        const pz_host_weight *part, const pz_shard *s, unsigned char *covered) {
    int rule = rule_of(w->name);
    how h = rules[rule].how == FIRST && c->q_lora ? ALL : rules[rule].how;
    bool cut_cols = h == COLS, by_expert = rules[rule].routed && s->experts == PZ_EXPERTS_BY_EXPERT;
    int64_t n_matrices = w->type.rank == 3 ? w->type.dim[0] : 1, first = 0, all = rules[rule].routed ? c->experts : 1;
    if (by_expert) h = ALL, cut_cols = false, first = s->rank * n_matrices;
    assert_int_equal(n_matrices, by_expert ? all / s->tp : all);
    assert_int_equal(part->dt, whole->dt);
    assert_int_equal(part->cols, cut_cols ? whole->cols / s->tp : whole->cols);
    int64_t n = part->rows / n_matrices, of = whole->rows / all, bytes = row_bytes(part);
    int64_t col = cut_cols ? s->rank * bytes : 0, groups = part->cols / 32, group = cut_cols ? s->rank * groups : 0;
    for (int64_t i = 0; i < part->rows; i++) {
        int64_t at = (first + i / n) * of + place_of(h, i % n, n, of, c->kv_lora + c->rope, s);
        assert_in_range(at, 0, whole->rows - 1);
        row mine = row_of(part, i), theirs = row_of(whole, at);
        assert_memory_equal(mine.data, theirs.data + col, (size_t)bytes);
        if (mine.scale) assert_memory_equal(mine.scale, theirs.scale + group, (size_t)groups);
        if (!part->owned) { /* in place */
            assert_ptr_equal(mine.data, theirs.data + col);
            assert_true(!mine.scale || mine.scale == theirs.scale + group);
        }
        for (int64_t b = 0; b < bytes; b++) covered[at * row_bytes(whole) + col + b]++;
    }
    rule_used[rule]++;
}

static void check_weight(const pz_hf_config *c, const pz_checkpoint *ck, const pz_weight *w, pz_shard s,
                         pz_graph *const *graphs) {
    pz_host_weight whole, part;
    pz_error err;
    assert_ok(pz_weight_bind_shard(c, ck, w, NULL, &whole, &err), &err);
    int64_t bytes = row_bytes(&whole) * whole.rows;
    unsigned char *covered = calloc((size_t)bytes, 1);
    assert_non_null(covered);
    for (s.rank = 0; s.rank < s.tp; s.rank++) {
        const pz_weight *mine = pz_graph_find_weight(graphs[s.rank], w->name);
        assert_non_null(mine);
        assert_ok(pz_weight_bind_shard(c, ck, mine, &s, &part, &err), &err);
        check_share(c, mine, &whole, &part, &s, covered);
        pz_host_weight_free(&part);
    }
    /* once, or on every rank */
    how h = rules[rule_of(w->name)].how;
    int64_t kept = h == ALL ? whole.rows : h == FIRST ? (c->q_lora ? whole.rows : c->kv_lora + c->rope) : 0;
    for (int64_t b = 0; b < bytes; b++)
        assert_int_equal(covered[b], b < (whole.rows - kept) * row_bytes(&whole) ? 1 : s.tp);
    free(covered);
    pz_host_weight_free(&whole);
}

static void check_model(const pz_hf_config *c, const pz_checkpoint *ck, int tp, pz_expert_split experts) {
    pz_graph *graphs[8], *whole = graph_of(c, (pz_shard){.tp = 1});
    for (int r = 0; r < tp; r++) graphs[r] = graph_of(c, (pz_shard){tp, r, experts});
    for (int i = 0; i < whole->weights.n; i++) {
        check_weight(c, ck, whole->weights.at[i], (pz_shard){.tp = tp, .experts = experts}, graphs);
    }
    for (int r = 0; r < tp; r++) assert_int_equal(graphs[r]->weights.n, whole->weights.n);
    for (int r = 0; r < tp; r++) pz_graph_free(graphs[r]);
    pz_graph_free(whole);
}

static void test_bytes(void **state) {
    (void)state;
    uint64_t s = 1;
    memset(rule_used, 0, sizeof rule_used);
    for (int i = 0; i < 18; i++) {
        sizes z = splittable(&s, (quant)(i % 3));
        pz_hf_config c = config_of(&z);
        unsigned char *data;
        pz_checkpoint *ck = checkpoint_of(&z, pz_rng_next(&s), &data);
        for (int k = 0; k < 8; k++) check_model(&c, ck, ranks[k % 4], (pz_expert_split)(k / 4));
        pz_checkpoint_close(ck);
        free(data);
    }
    for (int i = 0; i < N_RULES; i++)
        if (!rule_used[i]) fail_msg("no model had a weight %s", rules[i].name);
}

static const char *const real[] = {PZ_SOURCE_DIR "/tests/data/kimi-tiny-bf16", PZ_SOURCE_DIR "/models/kimi-tiny"};

static void test_bytes_of_kimi_tiny(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        pz_hf_config c;
        pz_checkpoint *ck;
        pz_error err;
        assert_ok(pz_hf_config_load(real[i], &c, &err), &err);
        assert_ok(pz_checkpoint_open(real[i], &ck, &err), &err);
        for (int k = 0; k < 3; k++)
            for (int e = 0; e < 2; e++) check_model(&c, ck, ranks[k], (pz_expert_split)e);
        for (int e = 0; e < 2; e++)
            assert_fails(pz_shard_check(&c, &(pz_shard){8, 0, (pz_expert_split)e}, &err), PZ_E_INVAL, &err,
                         "weight @layers.0.q_b: tp 8 does not divide num_attention_heads 4; tp 1, 2, 4 would do");
        pz_checkpoint_close(ck);
    }
}

/* ---- the ranks' partial results sum to the whole's, in float64 ---- */
static double *values_of(const pz_host_weight *w) {
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double *out = malloc((size_t)(w->rows * w->cols) * sizeof *out), *at = out;
    assert_non_null(out);
    for (int64_t r = 0; r < w->rows; r++) {
        row from = row_of(w, r);
        for (int64_t k = 0; k < w->cols; k++) {
            uint16_t h;
            float f;
            if (w->dt == PZ_DT_MXFP4) {
                unsigned code = from.data[k / 2] >> (k % 2 * 4) & 15;
                *at++ = (code & 8 ? -1 : 1) * ldexp(e2m1[code & 7], from.scale[k / 32] - 127);
            } else if (w->dt == PZ_DT_F32) {
                memcpy(&f, from.data + k * 4, 4);
                *at++ = (double)f;
            } else {
                memcpy(&h, from.data + k * 2, 2);
                *at++ = (double)pz_bf16_to_f32(h);
            }
        }
    }
    return out;
}

typedef struct model {
    const pz_hf_config *c;
    const pz_checkpoint *ck;
    pz_shard shard;
    pz_graph *g;
} model;

typedef struct matrix {
    double *v;
    int64_t rows, cols;
} matrix;

static matrix load(const model *m, const char *name) {
    pz_host_weight w;
    pz_error err;
    const pz_weight *weight = pz_graph_find_weight(m->g, name);
    if (!weight) return (matrix){0};
    assert_ok(pz_weight_bind_shard(m->c, m->ck, weight, &m->shard, &w, &err), &err);
    matrix out = {values_of(&w), w.rows, w.cols};
    pz_host_weight_free(&w);
    return out;
}

/* y += by * w[first row ..] x */
static void multiply_add(double *y, int64_t n, const matrix *w, int64_t first, const double *x, double by) {
    assert_true(first >= 0 && first + n <= w->rows);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < w->cols; k++) y[i] += by * w->v[(first + i) * w->cols + k] * x[k];
}

static double *zeros(int64_t n) {
    double *p = calloc((size_t)n, sizeof *p);
    assert_non_null(p);
    return p;
}

/* y += by * down(silu(gate x) * up x) of matrix e of the two weights. */
static void feed_forward(double *y, const matrix *gate_up, const matrix *down, int64_t e, const double *x, double by) {
    int64_t inner = down->cols, hidden = gate_up->cols;
    double *mid = zeros(2 * inner);
    multiply_add(mid, 2 * inner, gate_up, e * 2 * inner, x, 1);
    for (int64_t i = 0; i < inner; i++) mid[i] = mid[i] / (1 + exp(-mid[i])) * mid[inner + i];
    multiply_add(y, hidden, down, e * hidden, mid, by);
    free(mid);
}

static void add_mlp(double *y, const model *m, const char *what, const double *x) {
    char name[2][48];
    snprintf(name[0], sizeof name[0], "layers.%s.gate_up", what);
    snprintf(name[1], sizeof name[1], "layers.%s.down", what);
    matrix gate_up = load(m, name[0]), down = load(m, name[1]);
    bool routed = strstr(what, "experts") != NULL;
    for (int64_t e = 0; e < (routed ? m->c->experts : 1) && gate_up.v; e++) {
        /* by expert: those that are not here come from another rank */
        int64_t here = gate_up.rows / 2 / down.cols;
        int64_t local = routed && m->shard.experts == PZ_EXPERTS_BY_EXPERT ? e - m->shard.rank * here : e;
        if (local >= 0 && local < here)
            feed_forward(y, &gate_up, &down, local, x, (double)(e % 3) / 2 + (routed ? 0.25 : 1));
    }
    free(gate_up.v);
    free(down.v);
}

/* Attention without a softmax: every head's query times its key, times its value, through o_proj. A head whose q, k, v
 * and o did not belong together would show. */
static void add_attention(double *y, const model *m, const double *x) {
    const pz_hf_config *c = m->c;
    matrix q_w = load(m, c->q_lora ? "layers.1.q_b" : "layers.1.qkv_a"), kv_b = load(m, "layers.1.kv_b"),
           o = load(m, "layers.1.o_proj");
    int64_t heads = c->heads / m->shard.tp, q_size = c->nope + c->rope, kv_size = c->nope + c->v;
    double *q = zeros(heads * q_size), *kv = zeros(heads * kv_size), *z = zeros(heads * c->v);
    multiply_add(q, heads * q_size, &q_w, 0, x, 1);
    multiply_add(kv, heads * kv_size, &kv_b, 0, x, 1);
    assert_int_equal(o.cols, heads * c->v);
    for (int64_t h = 0; h < heads; h++) {
        double score = 0;
        for (int64_t i = 0; i < c->nope; i++) score += q[h * q_size + i] * kv[h * kv_size + i];
        for (int64_t i = 0; i < c->rope; i++) score += q[h * q_size + c->nope + i];
        for (int64_t i = 0; i < c->v; i++) z[h * c->v + i] = score * kv[h * kv_size + c->nope + i];
    }
    multiply_add(y, c->hidden, &o, 0, z, 1);
    free(q), free(kv), free(z);
    free(q_w.v), free(kv_b.v), free(o.v);
}

enum { PARTS = 4 };
static void add_part(double *y, const model *m, int part, const double *x) {
    static const char *const what[PARTS] = {"0.mlp", "1.shared", "1.experts", NULL};
    if (what[part])
        add_mlp(y, m, what[part], x);
    else
        add_attention(y, m, x);
}

static void check_sums(const pz_hf_config *c, const pz_checkpoint *ck, int tp, pz_expert_split experts, uint64_t seed) {
    double *x = zeros(4096);
    for (int i = 0; i < 4096; i++) x[i] = 2 * pz_rng_unit(&seed) - 1;
    assert_true(c->hidden <= 4096 && c->q_lora <= 4096 && c->kv_lora <= 4096);
    for (int part = 0; part < PARTS; part++) {
        double *want = zeros(c->hidden), *got = zeros(c->hidden), largest = 0;
        model m = {c, ck, {.tp = 1}, graph_of(c, (pz_shard){.tp = 1})};
        add_part(want, &m, part, x);
        pz_graph_free(m.g);
        m.shard = (pz_shard){.tp = tp, .experts = experts};
        for (m.shard.rank = 0; m.shard.rank < tp; m.shard.rank++) {
            m.g = graph_of(c, m.shard);
            add_part(got, &m, part, x);
            pz_graph_free(m.g);
        }
        for (int64_t i = 0; i < c->hidden; i++) largest = fmax(largest, fabs(want[i]));
        assert_true(largest > 0 || (part == 1 && !c->shared_experts));
        for (int64_t i = 0; i < c->hidden; i++)
            if (!(fabs(got[i] - want[i]) <= 1e-11 * largest))
                fail_msg("tp %d part %d [%d]: %.17g, whole %.17g", tp, part, (int)i, got[i], want[i]);
        free(want);
        free(got);
    }
    free(x);
}

static void test_sums(void **state) {
    (void)state;
    uint64_t s = 2;
    for (int i = 0; i < 9; i++) {
        sizes z = splittable(&s, (quant)(i % 3));
        pz_hf_config c = config_of(&z);
        unsigned char *data;
        pz_checkpoint *ck = checkpoint_of(&z, pz_rng_next(&s), &data);
        for (int k = 1; k < 4; k++)
            for (int e = 0; e < 2; e++) check_sums(&c, ck, ranks[k], (pz_expert_split)e, pz_rng_next(&s));
        pz_checkpoint_close(ck);
        free(data);
    }
    for (int i = 0; i < 2; i++) {
        pz_hf_config c;
        pz_checkpoint *ck;
        pz_error err;
        assert_ok(pz_hf_config_load(real[i], &c, &err), &err);
        assert_ok(pz_checkpoint_open(real[i], &ck, &err), &err);
        check_sums(&c, ck, 2, PZ_EXPERTS_BY_EXPERT, 5);
        check_sums(&c, ck, 4, PZ_EXPERTS_BY_WIDTH, 6);
        pz_checkpoint_close(ck);
    }
}

/* ---- graphs ---- */
static const pz_node *experts_node(const pz_graph *g) {
    const pz_func *f = g->funcs.at[0];
    for (int i = 0; i < f->nodes.n; i++)
        if (f->nodes.at[i]->op == PZ_OP_MOE_EXPERTS) return f->nodes.at[i];
    fail_msg("no moe_experts");
    return NULL;
}

/* By width the ranks' graphs are one; by expert they differ in the experts that are there. */
static void test_graphs(void **state) {
    (void)state;
    uint64_t s = 3;
    sizes z = splittable(&s, EXPERTS_FP4);
    pz_hf_config c = config_of(&z);
    pz_error err;
    char *text[2][4];
    for (int e = 0; e < 2; e++) {
        for (int r = 0; r < 4; r++) {
            pz_graph *g = graph_of(&c, (pz_shard){4, r, (pz_expert_split)e});
            const pz_node *n = experts_node(g);
            assert_int_equal(pz_node_int(n, "first"), e ? 2 * r : 0);
            assert_int_equal(pz_node_int(n, "total"), e ? 8 : 0);
            assert_ok(pz_graph_print(g, &text[e][r], &err), &err);
            pz_graph_free(g);
        }
        for (int r = 1; r < 4; r++) assert_int_equal(strcmp(text[e][0], text[e][r]) != 0, e);
    }
    for (int i = 0; i < 8; i++) pz_free(text[i / 4][i % 4]);
    /* one rank has all, however they are split */
    pz_graph *g[2] = {graph_of(&c, (pz_shard){.tp = 1}), graph_of(&c, (pz_shard){1, 0, PZ_EXPERTS_BY_EXPERT})};
    for (int i = 0; i < 2; i++) assert_ok(pz_graph_print(g[i], &text[0][i], &err), &err);
    assert_string_equal(text[0][0], text[0][1]);
    for (int i = 0; i < 2; i++) pz_free(text[0][i]), pz_graph_free(g[i]);
}

/* ---- what is refused ---- */
static bool may_split(const sizes *z, int64_t tp, pz_expert_split experts) {
    bool by_expert = experts == PZ_EXPERTS_BY_EXPERT;
    if (z->heads % tp || z->vocab % tp || z->dense % tp) return false;
    if ((by_expert ? z->experts : z->width) % tp || z->width * z->shared % tp) return false;
    if (z->quant == PLAIN) return true;
    if (z->hidden % 32 || (by_expert ? z->width : z->width / tp) % 32) return false;
    if (z->quant == EXPERTS_FP4) return true;
    return z->q_lora % 32 == 0 && z->heads * z->v / tp % 32 == 0 && z->dense / tp % 32 == 0 &&
           z->width * z->shared / tp % 32 == 0;
}

/* The numbers of ranks that a message recommends are those that work, all of them. */
static void check_advice(const sizes *z, pz_expert_split experts, const char *message) {
    char want[256] = "";
    size_t n = 0;
    for (int64_t tp = 1; tp <= z->heads; tp++)
        if (may_split(z, tp, experts))
            n += (size_t)snprintf(want + n, sizeof want - n, "%s%d", n ? ", " : "; tp ", (int)tp);
    snprintf(want + n, sizeof want - n, n ? " would do" : "; no number of ranks would do");
    assert_contains(message, want);
    assert_contains(message, "weight @");
}

static void test_random_sizes(void **state) {
    (void)state;
    uint64_t s = 4;
    int allowed = 0, refused = 0;
    for (int i = 0; i < 3000; i++) {
        int64_t of = pick(&s, 0, 1) ? 1 : 32;
        sizes z = {.vocab = 4 * pick(&s, 1, 6), .hidden = 32, .heads = pick(&s, 1, 12), .kv_lora = 4, .nope = 2};
        z.rope = 2;
        z.quant = (quant)(i % 3);
        z.dense = of * pick(&s, 1, 24);
        z.v = of * pick(&s, 1, 2);
        z.q_lora = pick(&s, 0, 1) * pick(&s, 1, 2) * 16;
        z.experts = pick(&s, 1, 12);
        z.shared = pick(&s, 0, 2);
        z.width = of * pick(&s, 1, 12);
        pz_hf_config c = config_of(&z);
        pz_shard shard = {.tp = pick(&s, 1, 8), .experts = (pz_expert_split)pick(&s, 0, 1)};
        shard.rank = pick(&s, 0, shard.tp - 1);
        pz_error err;
        pz_graph *g;
        pz_model_graph_options o = {.size = sizeof o, .tp = (int)shard.tp, .rank = (int)shard.rank};
        o.experts = shard.experts;
        bool may = may_split(&z, shard.tp, shard.experts);
        assert_status(pz_shard_check(&c, &shard, &err), may ? PZ_OK : PZ_E_INVAL, &err);
        assert_status(pz_model_graph(&c, &o, &g, &err), may ? PZ_OK : PZ_E_INVAL, &err);
        if (!may) check_advice(&z, shard.experts, err.msg);
        pz_graph_free(g);
        *(may ? &allowed : &refused) += 1;
    }
    assert_true(allowed > 300 && refused > 300);
}

/* One size at a time does not divide. */
static void test_refusals(void **state) {
    (void)state;
    static const struct {
        int64_t vocab, heads, v, dense, experts, shared, width;
        quant quant;
        pz_expert_split by;
        const char *text;
    } cases[] = {
        {16, 6, 2, 16, 8, 1, 16, PLAIN, 0, "weight @layers.0.q_b: tp 4 does not divide num_attention_heads 6; tp 1, 2"},
        {18, 8, 2, 16, 8, 1, 16, PLAIN, 0, "weight @lm_head: tp 4 does not divide vocab_size 18; tp 1, 2 would do"},
        {16, 8, 2, 18, 8, 1, 16, PLAIN, 0, "weight @layers.0.mlp.gate_up: tp 4 does not divide intermediate_size 18;"},
        {16, 8, 2, 16, 8, 1, 18, PLAIN, 0, "@layers.1.experts.gate_up: tp 4 does not divide moe_intermediate_size 18;"},
        {16, 8, 2, 16, 6, 1, 16, PLAIN, 1, "@layers.1.experts.gate_up: tp 4 does not divide n_routed_experts 6; tp 1"},
        {16, 8, 2, 16, 8, 1, 18, PLAIN, 1,
         "@layers.1.shared.gate_up: tp 4 does not divide moe_intermediate_size times n_shared_experts, 18; tp 1, 2"},
        {16, 8, 2, 16, 8, 1, 64, EXPERTS_FP4, 0,
         "@layers.1.experts.down of 64 columns has 16 columns on each of 4 ranks; mxfp4 needs a multiple of 32, the "
         "columns of one scale; tp 1, 2 would do"},
        {16, 8, 2, 16, 8, 1, 48, EXPERTS_FP4, 1, "48 columns has 48 columns on each of 4 ranks; mxfp4 needs a"},
        {16, 8, 2, 16, 8, 1, 48, EXPERTS_FP4, 1, "; no number of ranks would do"},
        {16, 8, 8, 128, 8, 1, 128, ALL_FP4, 0, "weight @layers.0.o_proj of 64 columns has 16 columns on each of 4"},
        {16, 8, 16, 96, 8, 1, 128, ALL_FP4, 0, "weight @layers.0.mlp.down of 96 columns has 24 columns on each of 4"},
        {16, 8, 16, 128, 8, 1, 64, ALL_FP4, 1, "weight @layers.1.shared.down of 64 columns has 16 columns on each"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sizes z = {cases[i].vocab,
                   64,
                   cases[i].heads,
                   cases[i].dense,
                   4,
                   4,
                   4,
                   cases[i].v,
                   32,
                   cases[i].experts,
                   cases[i].shared,
                   cases[i].width,
                   false,
                   cases[i].quant};
        pz_hf_config c = config_of(&z);
        pz_error err;
        assert_fails(pz_shard_check(&c, &(pz_shard){4, 3, cases[i].by}, &err), PZ_E_INVAL, &err, cases[i].text);
        check_advice(&z, cases[i].by, err.msg);
    }
}

/* Ranks that are none, and weights of another rank's graph. */
static void test_bad_shards(void **state) {
    (void)state;
    uint64_t s = 5;
    sizes z = splittable(&s, EXPERTS_FP4);
    z.tied = false;
    pz_hf_config c = config_of(&z);
    unsigned char *data;
    pz_checkpoint *ck = checkpoint_of(&z, 1, &data);
    pz_graph *two = graph_of(&c, (pz_shard){.tp = 2}), *g;
    const pz_weight *w = pz_graph_find_weight(two, "layers.1.q_b");
    if (!w) w = pz_graph_find_weight(two, "layers.1.qkv_a");
    static const pz_shard bad[] = {{.tp = 0}, {.tp = -1}, {.tp = 2, .rank = 2}, {.tp = 2, .rank = -1}};
    pz_host_weight out;
    pz_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[64];
        snprintf(text, sizeof text, "rank %d of tp %d: expected", (int)bad[i].rank, (int)bad[i].tp);
        assert_fails(pz_shard_check(&c, &bad[i], &err), PZ_E_INVAL, &err, text);
        memset(&out, 0xff, sizeof out);
        assert_fails(pz_weight_bind_shard(&c, ck, w, &bad[i], &out, &err), PZ_E_INVAL, &err, text);
        assert_null(out.parts.at);
    }
    pz_model_graph_options o = {.size = sizeof o, .tp = 2, .rank = 2};
    assert_fails(pz_model_graph(&c, &o, &g, &err), PZ_E_INVAL, &err, "rank 2 of tp 2");
    o = (pz_model_graph_options){.size = sizeof o, .experts = (pz_expert_split)2};
    assert_fails(pz_model_graph(&c, &o, &g, &err), PZ_E_INVAL, &err, "experts 2");
    const pz_weight *head = pz_graph_find_weight(two, "lm_head");
    assert_fails(pz_weight_bind_shard(&c, ck, head, &(pz_shard){.tp = 4, .rank = 3}, &out, &err), PZ_E_TYPE, &err,
                 "weight @lm_head is bf16[", "on rank 3 of 4");
    assert_fails(pz_weight_bind_shard(&c, ck, w, &(pz_shard){.tp = 3}, &out, &err), PZ_E_INVAL, &err,
                 "tp 3 does not divide num_attention_heads", "; tp 1, 2, 4, 8");
    pz_graph_free(two);
    pz_checkpoint_close(ck);
    free(data);
}

/* The checks of a whole tensor hold for each rank: a tensor that is a rank's share already is not the model's. */
static void test_presplit(void **state) {
    (void)state;
    uint64_t s = 6;
    sizes z = splittable(&s, PLAIN), half = z;
    half.heads /= 2;
    pz_hf_config c = config_of(&z);
    unsigned char *data;
    pz_checkpoint *ck = checkpoint_of(&half, 1, &data);
    pz_graph *g = graph_of(&c, (pz_shard){.tp = 2});
    pz_host_weight out;
    pz_error err;
    assert_fails(
        pz_weight_bind_shard(&c, ck, pz_graph_find_weight(g, "layers.0.o_proj"), &(pz_shard){.tp = 2}, &out, &err),
        PZ_E_TYPE, &err, "o_proj.weight", "expected BF16 or F32 [");
    assert_null(out.parts.at);
    pz_graph_free(g);
    pz_checkpoint_close(ck);
    free(data);
}

static void test_no_memory(void **state) {
    (void)state;
    uint64_t s = 7;
    sizes z = splittable(&s, EXPERTS_FP4);
    unsigned char *data;
    pz_hf_config c = config_of(&z);
    pz_checkpoint *ck = checkpoint_of(&z, 1, &data);
    const pz_shard shard = {4, 3, PZ_EXPERTS_BY_EXPERT};
    pz_graph *g = graph_of(&c, shard);
    assert_true(support_bind_sweep(&c, ck, pz_graph_find_weight(g, "layers.1.experts.gate_up"), &shard) >= 1);
    pz_graph_free(g);
    pz_checkpoint_close(ck);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),      cmocka_unit_test(test_bytes_of_kimi_tiny), cmocka_unit_test(test_sums),
        cmocka_unit_test(test_graphs),     cmocka_unit_test(test_random_sizes),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_shards), cmocka_unit_test(test_presplit),           cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
