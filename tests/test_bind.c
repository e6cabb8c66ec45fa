/* SPDX-License-Identifier: Apache-2.0 */
#include "support_checkpoint.h"

#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "base/fixed.h"
#include "model/model.h"

/* ---- a small checkpoint in memory; the names are written out here, not taken from the library's table ---- */
static const char *prefix_of_maker = "";

enum { HIDDEN = 64, EXPERTS = 3, WIDTH = 32, VOCAB = 10 };

static void put_expert(support_maker *m, bool packed, int e, const char *proj, int64_t rows, int64_t cols) {
    support_put(m, "U8", rows, cols / 2, "model.layers.1.mlp.experts.%d.%s_proj.%s", e, proj,
                packed ? "weight_packed" : "weight");
    support_put(m, "U8", rows, cols / 32, "model.layers.1.mlp.experts.%d.%s_proj.weight_scale", e, proj);
}

/* hidden 64, 2 heads of 16 + 8, v 24, q_lora 20, kv_lora 12; layer 0 dense (96), layer 1 with 3 experts (32). */
static void make_items(support_maker *m, bool packed, bool q_lora) {
    m->n = 0;
    m->prefix = prefix_of_maker;
    support_put(m, "BF16", VOCAB, HIDDEN, "model.embed_tokens.weight");
    support_put(m, "BF16", VOCAB, HIDDEN, "lm_head.weight");
    support_put(m, "BF16", HIDDEN, 0, "model.norm.weight");
    for (int l = 0; l < 2; l++) {
        support_put(m, "BF16", HIDDEN, 0, "model.layers.%d.input_layernorm.weight", l);
        support_put(m, "BF16", HIDDEN, 0, "model.layers.%d.post_attention_layernorm.weight", l);
        if (q_lora) {
            support_put(m, "BF16", 20, HIDDEN, "model.layers.%d.self_attn.q_a_proj.weight", l);
            support_put(m, "BF16", 20, 0, "model.layers.%d.self_attn.q_a_layernorm.weight", l);
            support_put(m, "BF16", 48, 20, "model.layers.%d.self_attn.q_b_proj.weight", l);
        } else {
            support_put(m, "BF16", 48, HIDDEN, "model.layers.%d.self_attn.q_proj.weight", l);
        }
        support_put(m, "BF16", 20, HIDDEN, "model.layers.%d.self_attn.kv_a_proj_with_mqa.weight", l);
        support_put(m, "BF16", 12, 0, "model.layers.%d.self_attn.kv_a_layernorm.weight", l);
        support_put(m, "BF16", 80, 12, "model.layers.%d.self_attn.kv_b_proj.weight", l);
        support_put(m, "BF16", HIDDEN, 48, "model.layers.%d.self_attn.o_proj.weight", l);
    }
    support_put(m, "BF16", 96, HIDDEN, "model.layers.0.mlp.gate_proj.weight");
    support_put(m, "BF16", 96, HIDDEN, "model.layers.0.mlp.up_proj.weight");
    support_put(m, "BF16", HIDDEN, 96, "model.layers.0.mlp.down_proj.weight");
    support_put(m, "BF16", EXPERTS, HIDDEN, "model.layers.1.mlp.gate.weight");
    support_put(m, "F32", EXPERTS, 0, "model.layers.1.mlp.gate.e_score_correction_bias");
    support_put(m, "BF16", WIDTH, HIDDEN, "model.layers.1.mlp.shared_experts.gate_proj.weight");
    support_put(m, "BF16", WIDTH, HIDDEN, "model.layers.1.mlp.shared_experts.up_proj.weight");
    support_put(m, "BF16", HIDDEN, WIDTH, "model.layers.1.mlp.shared_experts.down_proj.weight");
    for (int e = 0; e < EXPERTS; e++) {
        put_expert(m, packed, e, "gate", WIDTH, HIDDEN);
        put_expert(m, packed, e, "up", WIDTH, HIDDEN);
        put_expert(m, packed, e, "down", HIDDEN, WIDTH);
    }
}

static support_item *find_item(support_maker *m, const char *part) {
    support_item *found = NULL;
    for (int i = 0; i < m->n; i++) {
        if (!strstr(m->items[i].name, part)) continue;
        assert_null(found); /* the part names one */
        found = &m->items[i];
    }
    assert_non_null(found);
    return found;
}

static pz_hf_config make_config(bool mxfp4, bool packed, bool q_lora, bool tied) {
    char text[2048];
    snprintf(text, sizeof text,
             "{\"model_type\": \"deepseek_v3\", \"vocab_size\": 10, \"hidden_size\": 64, \"num_hidden_layers\": 2,"
             " \"num_attention_heads\": 2, \"intermediate_size\": 96, \"kv_lora_rank\": 12, \"qk_nope_head_dim\": 16,"
             " \"qk_rope_head_dim\": 8, \"v_head_dim\": 24, \"max_position_embeddings\": 64, \"n_routed_experts\": 3,"
             " \"n_shared_experts\": 1, \"moe_intermediate_size\": 32, \"num_experts_per_tok\": 2,"
             " \"first_k_dense_replace\": 1, \"tie_word_embeddings\": %s%s%s}",
             tied ? "true" : "false", q_lora ? ", \"q_lora_rank\": 20" : "",
             !mxfp4   ? ""
             : packed ? ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\":"
                        " \"mxfp4-pack-quantized\", \"ignore\": [\"re:.*self_attn.*\", \"re:.*shared.*\", \"lm_head\","
                        " \"re:.*mlp\\\\.(gate|up|down)_proj\"]}"
                      : ", \"quantization_config\": {\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\":"
                        " {\"dtype\": \"fp4\"}}, \"exclude\": [\"re:.*self_attn.*\", \"re:.*shared.*\", \"lm_head\","
                        " \"re:.*layers.0.mlp.*\"]}");
    pz_hf_config c;
    pz_error err;
    assert_ok(pz_hf_config_parse(text, strlen(text), "config.json", &c, &err), &err);
    return c;
}

static pz_graph *graph_of(const pz_hf_config *c) {
    pz_graph *g;
    pz_error err;
    assert_ok(pz_model_graph(c, NULL, &g, &err), &err);
    return g;
}

static const pz_tensor *tensor(const pz_checkpoint *ck, const char *prefix, const char *name) {
    char full[160];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const pz_tensor *t = pz_checkpoint_find(ck, full);
    if (!t) fail_msg("no tensor %s", full);
    return t;
}

static pz_host_weight bind(const pz_hf_config *c, const pz_checkpoint *ck, const pz_graph *g, const char *name) {
    pz_host_weight w;
    pz_error err;
    const pz_weight *weight = pz_graph_find_weight(g, name);
    if (!weight) fail_msg("no weight @%s", name);
    assert_ok(pz_weight_bind_shard(c, ck, weight, NULL, &w, &err), &err);
    return w;
}

/* One weight is made of these tensors, one under the other. */
static void check_parts(const pz_hf_config *c, const pz_checkpoint *ck, const pz_graph *g, const char *name,
                        pz_dtype dt, const char *prefix, const char *const *tensors, int n) {
    pz_host_weight w = bind(c, ck, g, name);
    assert_int_equal(w.dt, dt);
    assert_int_equal(w.parts.n, n);
    assert_null(w.owned);
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        const pz_tensor *t = tensor(ck, prefix, tensors[i]);
        const pz_host_part *p = &w.parts.at[i];
        assert_ptr_equal(p->data, t->data);
        assert_int_equal(p->rows, t->rank == 1 ? 1 : t->shape[0]);
        assert_int_equal(p->row_stride * p->rows, t->bytes);
        assert_null(p->scale);
        rows += p->rows;
    }
    assert_int_equal(w.rows, rows);
    pz_host_weight_free(&w);
    assert_null(w.parts.at);
}
#define CHECK_PARTS(name, dt, ...)                                                  \
    do {                                                                            \
        static const char *const list[] = {__VA_ARGS__};                            \
        check_parts(&c, ck, g, name, dt, prefix, list, sizeof list / sizeof *list); \
    } while (0)

/* ---- every weight of every naming ---- */
static void check_model(bool packed, bool config_packed, bool q_lora, const char *prefix, const char *config_prefix) {
    support_maker m;
    unsigned char *data;
    prefix_of_maker = prefix;
    make_items(&m, packed, q_lora);
    prefix_of_maker = "";
    pz_checkpoint *ck = support_checkpoint(&m, false, &data);
    pz_hf_config c = make_config(true, config_packed, q_lora, false);
    snprintf(c.prefix, sizeof c.prefix, "%s", config_prefix);
    pz_graph *g = graph_of(&c);
    CHECK_PARTS("embed", PZ_DT_BF16, "model.embed_tokens.weight");
    CHECK_PARTS("lm_head", PZ_DT_BF16, "lm_head.weight");
    CHECK_PARTS("norm", PZ_DT_BF16, "model.norm.weight");
    CHECK_PARTS("layers.0.input_layernorm", PZ_DT_BF16, "model.layers.0.input_layernorm.weight");
    CHECK_PARTS("layers.1.post_attention_layernorm", PZ_DT_BF16, "model.layers.1.post_attention_layernorm.weight");
    if (q_lora) {
        CHECK_PARTS("layers.1.qkv_a", PZ_DT_BF16, "model.layers.1.self_attn.q_a_proj.weight",
                    "model.layers.1.self_attn.kv_a_proj_with_mqa.weight");
        CHECK_PARTS("layers.1.q_a_layernorm", PZ_DT_BF16, "model.layers.1.self_attn.q_a_layernorm.weight");
        CHECK_PARTS("layers.1.q_b", PZ_DT_BF16, "model.layers.1.self_attn.q_b_proj.weight");
    } else {
        CHECK_PARTS("layers.1.qkv_a", PZ_DT_BF16, "model.layers.1.self_attn.q_proj.weight",
                    "model.layers.1.self_attn.kv_a_proj_with_mqa.weight");
    }
    CHECK_PARTS("layers.0.kv_a_layernorm", PZ_DT_BF16, "model.layers.0.self_attn.kv_a_layernorm.weight");
    CHECK_PARTS("layers.0.kv_b", PZ_DT_BF16, "model.layers.0.self_attn.kv_b_proj.weight");
    CHECK_PARTS("layers.0.o_proj", PZ_DT_BF16, "model.layers.0.self_attn.o_proj.weight");
    CHECK_PARTS("layers.0.mlp.gate_up", PZ_DT_BF16, "model.layers.0.mlp.gate_proj.weight",
                "model.layers.0.mlp.up_proj.weight");
    CHECK_PARTS("layers.0.mlp.down", PZ_DT_BF16, "model.layers.0.mlp.down_proj.weight");
    CHECK_PARTS("layers.1.gate", PZ_DT_BF16, "model.layers.1.mlp.gate.weight");
    CHECK_PARTS("layers.1.gate_bias", PZ_DT_F32, "model.layers.1.mlp.gate.e_score_correction_bias");
    CHECK_PARTS("layers.1.shared.gate_up", PZ_DT_BF16, "model.layers.1.mlp.shared_experts.gate_proj.weight",
                "model.layers.1.mlp.shared_experts.up_proj.weight");
    CHECK_PARTS("layers.1.shared.down", PZ_DT_BF16, "model.layers.1.mlp.shared_experts.down_proj.weight");

    pz_host_weight w = bind(&c, ck, g, "layers.1.experts.gate_up");
    assert_int_equal(w.dt, PZ_DT_MXFP4);
    assert_int_equal(w.rows, EXPERTS * 2 * WIDTH);
    assert_int_equal(w.cols, HIDDEN);
    assert_int_equal(w.parts.n, EXPERTS * 2);
    for (int i = 0; i < w.parts.n; i++) {
        char name[96];
        const pz_host_part *p = &w.parts.at[i];
        int len =
            snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s_proj.weight", i / 2, i % 2 ? "up" : "gate");
        if (packed) snprintf(name + len, sizeof name - (size_t)len, "_packed");
        assert_ptr_equal(p->data, tensor(ck, prefix, name)->data);
        snprintf(name + len, sizeof name - (size_t)len, "_scale");
        assert_ptr_equal(p->scale, tensor(ck, prefix, name)->data);
        assert_int_equal(p->rows, WIDTH);
        assert_int_equal(p->row_stride, HIDDEN / 2);
        assert_int_equal(p->scale_stride, HIDDEN / 32);
    }
    pz_host_weight_free(&w);
    w = bind(&c, ck, g, "layers.1.experts.down");
    assert_int_equal(w.rows, EXPERTS * HIDDEN);
    assert_int_equal(w.cols, WIDTH);
    assert_int_equal(w.parts.n, EXPERTS);
    pz_host_weight_free(&w);
    pz_graph_free(g);
    pz_checkpoint_close(ck);
    free(data);
}

static void test_namings(void **state) {
    (void)state;
    static const char *const prefixes[] = {"", "language_model."};
    for (int i = 0; i < 32; i++) check_model(i & 1, i & 16, i & 2, prefixes[i >> 2 & 1], prefixes[i >> 3 & 1]);
}

static void test_tied(void **state) {
    (void)state;
    support_maker m;
    unsigned char *data;
    const char *prefix = "";
    make_items(&m, false, true);
    pz_checkpoint *ck = support_checkpoint(&m, false, &data);
    pz_hf_config c = make_config(true, false, true, true);
    pz_graph *g = graph_of(&c);
    CHECK_PARTS("lm_head", PZ_DT_BF16, "model.embed_tokens.weight");
    pz_graph_free(g);
    pz_checkpoint_close(ck);
    free(data);
}

static void test_rope(void **state) {
    (void)state;
    support_maker m;
    unsigned char *data;
    make_items(&m, false, true);
    pz_checkpoint *ck = support_checkpoint(&m, false, &data);
    pz_hf_config c = make_config(true, false, true, false);
    pz_graph *g = graph_of(&c);
    pz_host_weight w = bind(&c, ck, g, "rope.inv_freq");
    assert_int_equal(w.dt, PZ_DT_F32);
    assert_int_equal(w.rows, 1);
    assert_int_equal(w.cols, 4);
    assert_non_null(w.owned);
    assert_ptr_equal(w.parts.at[0].data, w.owned);
    for (int i = 0; i < 4; i++) { /* 10000^(-2i/8) */
        float f;
        memcpy(&f, w.parts.at[0].data + 4 * i, 4);
        assert_true(fabs((double)f / pow(10, -i) - 1) < 1e-7);
    }
    pz_host_weight_free(&w);
    pz_graph_free(g);
    pz_checkpoint_close(ck);
    free(data);
}

/* ---- what is wrong with one tensor ---- */
static const struct {
    const char *item;  /* part of the tensor's name */
    const char *dtype; /* NULL: the tensor is taken away */
    int64_t shape[2];
    const char *weight;
    pz_status status;
    const char *texts[3];
} bad_tensors[] = {
    {"model.norm.weight",
     NULL,
     {0},
     "norm",
     PZ_E_NOTFOUND,
     {"model.norm.weight", "language_model.model.norm.weight", ""}},
    {"layers.1.self_attn.kv_a_proj",
     NULL,
     {0},
     "layers.1.qkv_a",
     PZ_E_NOTFOUND,
     {"layers.1.self_attn.kv_a_proj_with_mqa.weight", "no tensor", ""}},
    {"e_score_correction_bias",
     NULL,
     {0},
     "layers.1.gate_bias",
     PZ_E_NOTFOUND,
     {"model.layers.1.mlp.gate.e_score_correction_bias", "", ""}},
    {"experts.2.up_proj.weight_scale",
     NULL,
     {0},
     "layers.1.experts.gate_up",
     PZ_E_NOTFOUND,
     {"experts.2.up_proj.weight_scale", "", ""}},
    {"model.norm.weight", "BF16", {63, 0}, "norm", PZ_E_TYPE, {"model.norm.weight", "BF16 [63]", "BF16 or F32 [64]"}},
    {"model.norm.weight", "BF16", {64, 1}, "norm", PZ_E_TYPE, {"BF16 [64, 1]", "[64]", ""}},
    {"model.norm.weight", "F16", {64, 0}, "norm", PZ_E_TYPE, {"F16 [64]", "BF16 or F32 [64]", ""}},
    {"lm_head.weight", "BF16", {64, 10}, "lm_head", PZ_E_TYPE, {"lm_head.weight", "BF16 [64, 10]", "[10, 64]"}},
    {"lm_head.weight", "BF16", {640, 0}, "lm_head", PZ_E_TYPE, {"BF16 [640]", "[10, 64]", ""}},
    {"layers.0.self_attn.q_a_proj",
     "BF16",
     {21, 64},
     "layers.0.qkv_a",
     PZ_E_TYPE,
     {"q_a_proj.weight", "[21, 64]", "[20, 64]"}},
    {"layers.0.self_attn.q_a_proj",
     "F32",
     {20, 64},
     "layers.0.qkv_a",
     PZ_E_TYPE,
     {"kv_a_proj_with_mqa", "is bf16", "are f32"}},
    {"layers.0.self_attn.o_proj",
     "U8",
     {64, 24},
     "layers.0.o_proj",
     PZ_E_TYPE,
     {"U8 [64, 24]", "BF16 or F32 [64, 48]", "is quantized"}},
    {"experts.1.down_proj.weight\n",
     "BF16",
     {64, 32},
     "layers.1.experts.down",
     PZ_E_TYPE,
     {"experts.1.down_proj.weight", "BF16 [64, 32]", "U8 [64, 16] (mxfp4"}},
    {"experts.1.down_proj.weight\n",
     "U8",
     {64, 32},
     "layers.1.experts.down",
     PZ_E_TYPE,
     {"U8 [64, 32]", "U8 [64, 16]", ""}},
    {"experts.1.down_proj.weight_scale",
     "U8",
     {64, 2},
     "layers.1.experts.down",
     PZ_E_TYPE,
     {"U8 [64, 2]", "U8 [64, 1]", "e8m0"}},
    {"experts.1.down_proj.weight_scale",
     "F32",
     {64, 1},
     "layers.1.experts.down",
     PZ_E_TYPE,
     {"F32 [64, 1]", "U8 [64, 1]", ""}},
};

static void test_bad_tensors(void **state) {
    (void)state;
    pz_hf_config c = make_config(true, false, true, false);
    pz_graph *g = graph_of(&c);
    for (size_t i = 0; i < sizeof bad_tensors / sizeof *bad_tensors; i++) {
        support_maker m;
        unsigned char *data;
        make_items(&m, false, true);
        support_item *it = NULL;
        char part[96];
        snprintf(part, sizeof part, "%s", bad_tensors[i].item);
        size_t len = strlen(part);
        if (part[len - 1] == '\n') { /* the whole rest of the name */
            part[len - 1] = 0;
            for (int k = 0; k < m.n; k++) {
                const char *at = strstr(m.items[k].name, part);
                if (at && strlen(at) == len - 1) it = &m.items[k];
            }
        } else {
            it = find_item(&m, part);
        }
        assert_non_null(it);
        if (bad_tensors[i].dtype) {
            it->dtype = bad_tensors[i].dtype;
            memcpy(it->shape, bad_tensors[i].shape, sizeof it->shape);
        } else {
            *it = m.items[--m.n];
        }
        pz_checkpoint *ck = support_checkpoint(&m, false, &data);
        pz_host_weight w;
        pz_error err = {0};
        pz_status st = pz_weight_bind_shard(&c, ck, pz_graph_find_weight(g, bad_tensors[i].weight), NULL, &w, &err);
        if (st != bad_tensors[i].status) fail_msg("case %zu: %s (%s)", i, pz_status_name(st), err.msg);
        assert_fails(st, bad_tensors[i].status, &err, bad_tensors[i].texts[0], bad_tensors[i].texts[1],
                     bad_tensors[i].texts[2]);
        assert_null(w.parts.at);
        assert_null(w.owned);
        pz_checkpoint_close(ck);
        free(data);
    }
    pz_graph_free(g);
}

static void test_f32_accepted(void **state) {
    (void)state;
    support_maker m;
    unsigned char *data;
    const char *prefix = "";
    make_items(&m, false, true);
    for (int i = 0; i < m.n; i++)
        m.items[i].dtype = strcmp(m.items[i].dtype, "BF16") == 0  ? "F32"
                           : strcmp(m.items[i].dtype, "F32") == 0 ? "BF16"
                                                                  : m.items[i].dtype;
    pz_checkpoint *ck = support_checkpoint(&m, false, &data);
    pz_hf_config c = make_config(true, false, true, false);
    pz_graph *g = graph_of(&c);
    CHECK_PARTS("norm", PZ_DT_F32, "model.norm.weight");
    CHECK_PARTS("layers.1.qkv_a", PZ_DT_F32, "model.layers.1.self_attn.q_a_proj.weight",
                "model.layers.1.self_attn.kv_a_proj_with_mqa.weight");
    CHECK_PARTS("layers.1.gate_bias", PZ_DT_BF16, "model.layers.1.mlp.gate.e_score_correction_bias");
    pz_graph_free(g);
    pz_checkpoint_close(ck);
    free(data);
}

/* The configuration and the checkpoint must agree on what is quantized. */
static void test_config_disagrees(void **state) {
    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        support_maker m;
        unsigned char *data;
        make_items(&m, packed, true);
        pz_checkpoint *ck = support_checkpoint(&m, false, &data);
        pz_hf_config c = make_config(false, false, true, false);
        pz_graph *g = graph_of(&c);
        pz_host_weight w;
        pz_error err;
        assert_fails(pz_weight_bind_shard(&c, ck, pz_graph_find_weight(g, "layers.1.experts.down"), NULL, &w, &err),
                     PZ_E_TYPE, &err, packed ? "experts.0.down_proj.weight_packed" : "experts.0.down_proj.weight",
                     "U8 [64, 16]", "BF16 or F32 [64, 32]", "is quantized");
        pz_graph_free(g);
        pz_checkpoint_close(ck);
        free(data);
    }
}

/* A tensor at an odd address could not be read as 16-bit numbers. */
/* A parameter that the configuration leaves out is an error, what may stand beside a model is none. */
static void test_unused(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool wrong;
    } cases[] = {
        {"model.layers.0.self_attn.q_a_proj.bias", true},
        {"language_model.model.layers.1.mlp.shared_experts.norm.weight", true},
        {"model.layers.1.mlp.experts.3.up_proj.weight", true},
        {"model.layers.1.mlp.experts.3.up_proj.weight_packed", true},
        {"model.layers.0.mlp.gate.weight", true},
        {"model.layers.0.mlp.gate.e_score_correction_bias", true},
        {"model.layers.2.self_attn.q_a_proj.weight", false}, /* behind the last layer */
        {"model.layers.18446744073709551617.mlp.up_proj.weight", false},
        {"model.layers.1.self_attn.rotary_emb.inv_freq", false},
        {"model.layers.1.self_attn.k_scale", false},
        {"model.layers.1.mlp.experts.0.up_proj.weight_shape", false},
        {"vision_tower.model.layers.0.weight", false},
        {"lm_head.bias", false},
        {"model.layers.", false},
    };
    pz_hf_config c = make_config(true, false, true, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        support_maker m;
        unsigned char *data;
        pz_error err;
        m.n = 0;
        make_items(&m, false, true);
        support_put(&m, "BF16", 4, 0, "%s", cases[i].name);
        pz_checkpoint *ck = support_checkpoint(&m, false, &data);
        if (cases[i].wrong)
            assert_fails(pz_weights_check_unused(&c, ck, &err), PZ_E_FORMAT, &err, cases[i].name, "config.json");
        else
            assert_ok(pz_weights_check_unused(&c, ck, &err), &err);
        pz_checkpoint_close(ck);
        free(data);
    }
    /* What the configuration leaves out. */
    support_maker m;
    unsigned char *data;
    pz_error err;
    m.n = 0;
    make_items(&m, false, true);
    pz_checkpoint *ck = support_checkpoint(&m, false, &data);
    assert_ok(pz_weights_check_unused(&c, ck, &err), &err);
    c.shared_experts = 0;
    assert_fails(pz_weights_check_unused(&c, ck, &err), PZ_E_FORMAT, &err, "shared_experts");
    pz_checkpoint_close(ck);
    free(data);
}

static void test_misaligned(void **state) {
    (void)state;
    support_maker m;
    unsigned char *data;
    make_items(&m, false, true);
    pz_checkpoint *ck = support_checkpoint(&m, true, &data);
    pz_hf_config c = make_config(true, false, true, false);
    pz_graph *g = graph_of(&c);
    pz_host_weight w;
    pz_error err;
    assert_fails(pz_weight_bind_shard(&c, ck, pz_graph_find_weight(g, "norm"), NULL, &w, &err), PZ_E_FORMAT, &err,
                 "model.norm.weight", "multiple of 2 bytes");
    w = bind(&c, ck, g, "layers.1.experts.down"); /* bytes may lie anywhere */
    pz_host_weight_free(&w);
    pz_graph_free(g);
    pz_checkpoint_close(ck);
    free(data);
}

/* Weights that are not this model's. */
static void test_foreign_weights(void **state) {
    (void)state;
    static const char *const names[] = {
        "",
        "nonsense",
        "layers",
        "layers.",
        "layers.x.q_b",
        "layers.2.q_b",
        "layers.1q_b",
        "layers.1.",
        "layers.99999999999999999999.q_b",
        "layers.0.gate",
        "layers.1.mlp.down",
        "layers.0.norm",
        "q_b",
        "layers.-1.q_b",
    };
    support_maker m;
    unsigned char *data;
    make_items(&m, false, true);
    pz_checkpoint *ck = support_checkpoint(&m, false, &data);
    pz_hf_config c = make_config(true, false, true, false);
    pz_host_weight w;
    pz_error err;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        pz_weight foreign = {.name = names[i], .type = pz_type_make(PZ_DT_BF16, 2, 48, 20, 0)};
        assert_fails(pz_weight_bind_shard(&c, ck, &foreign, NULL, &w, &err), PZ_E_NOTFOUND, &err, names[i],
                     "no weight");
    }
    c.correction_bias = false;
    pz_weight bias = {.name = "layers.1.gate_bias", .type = pz_type_make(PZ_DT_F32, 1, 3, 0, 0)};
    assert_fails(pz_weight_bind_shard(&c, ck, &bias, NULL, &w, &err), PZ_E_NOTFOUND, &err, "gate_bias", "no weight");
    pz_weight wrong = {.name = "layers.1.q_b", .type = pz_type_make(PZ_DT_BF16, 2, 24, 20, 0)};
    assert_fails(pz_weight_bind_shard(&c, ck, &wrong, NULL, &w, &err), PZ_E_TYPE, &err, "layers.1.q_b", "bf16[24,20]",
                 "bf16[48,20]");
    wrong.type = pz_type_make(PZ_DT_MXFP4, 2, 48, 20, 0);
    assert_fails(pz_weight_bind_shard(&c, ck, &wrong, NULL, &w, &err), PZ_E_TYPE, &err, "mxfp4[48,20]", "bf16[48,20]");
    pz_checkpoint_close(ck);
    free(data);
}

static void test_fp8(void **state) {
    (void)state;
    pz_hf_config c;
    pz_checkpoint *ck;
    pz_error err;
    support_maker m;
    unsigned char *data;
    make_items(&m, false, true);
    ck = support_checkpoint(&m, false, &data);
    assert_ok(pz_hf_config_load(PZ_SOURCE_DIR "/tests/data/configs/deepseek-v3", &c, &err), &err);
    pz_graph *g = graph_of(&c);
    pz_host_weight w;
    assert_fails(pz_weight_bind_shard(&c, ck, pz_graph_find_weight(g, "layers.3.o_proj"), NULL, &w, &err),
                 PZ_E_UNSUPPORTED, &err, "layers.3.o_proj", "fp8", "bf16, f32, mxfp4");
    pz_graph_free(g);
    pz_checkpoint_close(ck);
    free(data);
}

/* ---- the two real checkpoints ---- */
static float e2m1(unsigned nibble) {
    static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return (nibble & 8 ? -1.0f : 1.0f) * values[nibble & 7];
}

static float bf16_at(const pz_host_part *p, int64_t row, int64_t col) {
    uint16_t h;
    memcpy(&h, p->data + row * p->row_stride + col * 2, 2);
    return pz_bf16_to_f32(h);
}

/* Every weight binds; the mxfp4 experts are the bf16 checkpoint's, rounded: each element lies within the spacing of the
 * e2m1 numbers around it, in units of its group's scale. */
static void test_real_checkpoints(void **state) {
    (void)state;
    static const char *const dirs[] = {PZ_SOURCE_DIR "/tests/data/kimi-tiny-bf16", PZ_SOURCE_DIR "/models/kimi-tiny"};
    pz_hf_config c[2];
    pz_checkpoint *ck[2];
    pz_graph *g[2];
    pz_error err;
    for (int k = 0; k < 2; k++) {
        assert_ok(pz_hf_config_load(dirs[k], &c[k], &err), &err);
        assert_ok(pz_checkpoint_open(dirs[k], &ck[k], &err), &err);
        g[k] = graph_of(&c[k]);
        for (int i = 0; i < g[k]->weights.n; i++) {
            const pz_weight *weight = g[k]->weights.at[i];
            pz_host_weight w;
            assert_ok(pz_weight_bind_shard(&c[k], ck[k], weight, NULL, &w, &err), &err);
            const pz_type *t = &weight->type;
            int64_t rows = t->rank == 3 ? t->dim[0] * t->dim[1] : t->rank == 2 ? t->dim[0] : 1;
            assert_int_equal(w.rows, rows);
            assert_int_equal(w.cols, t->dim[t->rank - 1]);
            for (int p = 0; p < w.parts.n; p++) rows -= w.parts.at[p].rows;
            assert_int_equal(rows, 0);
            pz_host_weight_free(&w);
        }
    }
    static const char *const names[] = {"layers.1.experts.gate_up", "layers.3.experts.down"};
    for (int i = 0; i < 2; i++) {
        pz_host_weight bf16 = bind(&c[0], ck[0], g[0], names[i]), fp4 = bind(&c[1], ck[1], g[1], names[i]);
        assert_int_equal(fp4.dt, PZ_DT_MXFP4);
        assert_int_equal(fp4.parts.n, bf16.parts.n);
        for (int p = 0; p < fp4.parts.n; p++) {
            const pz_host_part *q = &fp4.parts.at[p], *ref = &bf16.parts.at[p];
            for (int64_t r = 0; r < q->rows; r += 7) {
                for (int64_t col = 0; col < fp4.cols; col++) {
                    unsigned byte = q->data[r * q->row_stride + col / 2];
                    float scale = ldexpf(1, q->scale[r * q->scale_stride + col / 32] - 127);
                    float got = e2m1(col % 2 ? byte >> 4 : byte & 15) * scale, want = bf16_at(ref, r, col);
                    if (!(fabsf(got - want) <= 2 * scale))
                        fail_msg("@%s part %d [%d, %d]: %g, bf16 %g", names[i], p, (int)r, (int)col, (double)got,
                                 (double)want);
                }
            }
        }
        pz_host_weight_free(&bf16);
        pz_host_weight_free(&fp4);
    }
    for (int k = 0; k < 2; k++) {
        pz_graph_free(g[k]);
        pz_checkpoint_close(ck[k]);
    }
}

/* ---- memory ---- */
static void test_no_memory(void **state) {
    (void)state;
    support_maker m;
    unsigned char *data;
    make_items(&m, false, true);
    pz_hf_config c = make_config(true, false, true, false);
    pz_checkpoint *ck = support_checkpoint(&m, false, &data);
    pz_graph *g = graph_of(&c);
    assert_true(support_bind_sweep(&c, ck, pz_graph_find_weight(g, "layers.1.experts.gate_up"), NULL) >= 1);
    assert_true(support_bind_sweep(&c, ck, pz_graph_find_weight(g, "rope.inv_freq"), NULL) >= 2);
    pz_graph_free(g);
    pz_checkpoint_close(ck);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_namings),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_f32_accepted),
        cmocka_unit_test(test_config_disagrees),
        cmocka_unit_test(test_unused),
        cmocka_unit_test(test_misaligned),
        cmocka_unit_test(test_foreign_weights),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_real_checkpoints),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
