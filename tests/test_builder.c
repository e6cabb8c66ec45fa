/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs built from configurations alone, at full size. */
#include "support.h"

#include "model/model.h"
#include "model/weights.h"

static pz_graph *build_from(const char *dir, pz_model_graph_options o) {
    pz_graph *g;
    pz_error err;
    char *path = support_path(PZ_SOURCE_DIR, dir);
    o.size = sizeof o;
    assert_ok(pz_graph_from_config(path, &o, &g, &err), &err);
    assert_ok(pz_graph_verify(g, &err), &err);
    free(path);
    return g;
}

static void assert_weight(const pz_graph *g, const char *name, const char *type) {
    const pz_weight *w = pz_graph_find_weight(g, name);
    if (!w) fail_msg("no weight @%s", name);
    pz_str b = {0};
    pz_type_print(&w->type, &b);
    if (strcmp(b.s, type) != 0) fail_msg("@%s is %s, expected %s", name, b.s, type);
    pz_str_free(&b);
}

static int count_ops(const pz_func *f, pz_op op) {
    int n = 0;
    for (int i = 0; i < f->nodes.n; i++) n += f->nodes.at[i]->op == op;
    return n;
}

static const pz_node *gemm_of(const pz_func *f, const char *weight) {
    for (int i = 0; i < f->nodes.n; i++) {
        const pz_node *n = f->nodes.at[i];
        if (n->op == PZ_OP_GEMM && strcmp(pz_node_arg_weight(n, "w")->name, weight) == 0) return n;
    }
    fail_msg("no gemm with @%s in @%s", weight, f->name);
    return NULL;
}

static void assert_roundtrip(const pz_graph *g) {
    char *first, *second;
    pz_graph *again;
    pz_error err;
    assert_ok(pz_graph_print(g, &first, &err), &err);
    assert_ok(pz_graph_parse(first, strlen(first), "printed", &again, &err), &err);
    assert_ok(pz_graph_print(again, &second, &err), &err);
    assert_string_equal(first, second);
    pz_free(first);
    pz_free(second);
    pz_graph_free(again);
}

/* The shapes of one of four ranks, from the model's description. */
static void test_kimi_k2_tp4(void **state) {
    (void)state;
    pz_graph *g = build_from("tests/data/configs/kimi-k2", (pz_model_graph_options){.tp = 4});
    static const char *const want[][2] = {
        {"embed", "bf16[163840,7168]"},
        {"rope.inv_freq", "f32[32]"},
        {"layers.0.input_layernorm", "bf16[7168]"},
        {"layers.0.qkv_a", "bf16[2112,7168]"},
        {"layers.0.q_a_layernorm", "bf16[1536]"},
        {"layers.0.kv_a_layernorm", "bf16[512]"},
        {"layers.0.q_b", "bf16[3072,1536]"},
        {"layers.0.kv_b", "bf16[4096,512]"},
        {"layers.0.o_proj", "bf16[7168,2048]"},
        {"layers.0.post_attention_layernorm", "bf16[7168]"},
        {"layers.0.mlp.gate_up", "bf16[9216,7168]"},
        {"layers.0.mlp.down", "bf16[7168,4608]"},
        {"layers.60.gate", "bf16[384,7168]"},
        {"layers.60.gate_bias", "f32[384]"},
        {"layers.60.experts.gate_up", "bf16[384,1024,7168]"},
        {"layers.60.experts.down", "bf16[384,7168,512]"},
        {"layers.60.shared.gate_up", "bf16[1024,7168]"},
        {"layers.60.shared.down", "bf16[7168,512]"},
        {"norm", "bf16[7168]"},
        {"lm_head", "bf16[40960,7168]"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) assert_weight(g, want[i][0], want[i][1]);
    assert_null(pz_graph_find_weight(g, "layers.0.gate"));
    assert_null(pz_graph_find_weight(g, "layers.1.mlp.down"));
    assert_int_equal(g->weights.n, 4 + 61 * 8 + 2 + 60 * 6);

    const pz_func *f = g->funcs.at[0];
    assert_string_equal(f->name, "decode");
    assert_int_equal(g->funcs.n, 62);
    assert_int_equal(f->params.n, 3);
    assert_int_equal(count_ops(f, PZ_OP_RMS_NORM), 2 * 61 + 1);
    assert_int_equal(count_ops(f, PZ_OP_ALL_REDUCE), 2 * 61);
    assert_int_equal(count_ops(f, PZ_OP_CALL), 61);
    assert_int_equal(count_ops(f, PZ_OP_ROUTER), 60);
    assert_int_equal(count_ops(f, PZ_OP_MOE_EXPERTS), 60);
    assert_int_equal(count_ops(f, PZ_OP_ADD), 2 * 61 + 60);
    assert_int_equal(count_ops(f, PZ_OP_GEMM), 61 + 60 + 2 + 2 * 60 + 1);
    assert_int_equal(f->returns.n, 1);
    pz_type logits = pz_type_rows(PZ_DT_FIXED, 40960);
    assert_true(pz_type_equal(&f->returns.at[0]->type, &logits));

    const pz_func *a = pz_graph_find_func(g, "mla_attention.60");
    assert_non_null(a);
    assert_true(a->opaque && !a->external);
    assert_int_equal(a->slots.n, 2);
    pz_type q_b = pz_type_rows(PZ_DT_FIXED, 3072), o_proj = pz_type_rows(PZ_DT_FIXED, 7168);
    assert_true(pz_type_equal(&pz_func_find_slot(a, "q_b")->type, &q_b));
    assert_true(pz_type_equal(&pz_func_find_slot(a, "o_proj")->type, &o_proj));
    assert_string_equal(pz_node_str(gemm_of(a, "layers.60.q_b"), "slot"), "q_b");
    assert_string_equal(pz_node_str(gemm_of(a, "layers.60.o_proj"), "slot"), "o_proj");
    assert_roundtrip(g);
    pz_graph_free(g);
}

/* After each post-attention norm of an expert layer the gate's GEMM is the next node. */
static void test_gate_first(void **state) {
    (void)state;
    pz_graph *g = build_from("tests/data/configs/kimi-k2", (pz_model_graph_options){.tp = 4});
    const pz_func *f = g->funcs.at[0];
    int found = 0;
    for (int i = 0; i + 1 < f->nodes.n; i++) {
        if (f->nodes.at[i]->op != PZ_OP_RMS_NORM) continue;
        const char *norm = pz_node_arg_weight(f->nodes.at[i], "w")->name;
        if (!strstr(norm, "post_attention")) continue;
        const pz_node *next = f->nodes.at[i + 1];
        assert_int_equal(next->op, PZ_OP_GEMM);
        const char *w = pz_node_arg_weight(next, "w")->name;
        found += strlen(w) > 5 && strcmp(w + strlen(w) - 5, ".gate") == 0;
    }
    assert_int_equal(found, 60);
    pz_graph_free(g);
}

/* Every form of every model is well formed, and prints and parses to itself. */
static void test_all_forms(void **state) {
    (void)state;
    static const char *const dirs[] = {"tests/data/configs/kimi-k2", "tests/data/configs/kimi-k2.5",
                                       "tests/data/configs/deepseek-v3", "models/kimi-tiny"};
    static const int tps[] = {1, 2, 4, 8};
    for (int i = 0; i < 4 * 4 * 2; i++) {
        if (i / 8 == 3 && tps[i / 2 % 4] == 8) continue; /* 4 heads */
        pz_model_graph_options o = {.tp = tps[i / 2 % 4], .inlined = i % 2};
        pz_graph *g = build_from(dirs[i / 8], o);
        assert_int_equal(g->funcs.n, i % 2 ? 1 : i / 8 == 3 ? 5 : 62);
        if (o.tp == 1) {
            assert_int_equal(count_ops(g->funcs.at[0], PZ_OP_ALL_REDUCE), 0);
            assert_roundtrip(g);
        }
        pz_graph_free(g);
    }
}

static void test_inlined(void **state) {
    (void)state;
    pz_graph *g = build_from("models/kimi-tiny", (pz_model_graph_options){.inlined = 1});
    const pz_func *f = g->funcs.at[0];
    assert_int_equal(count_ops(f, PZ_OP_CALL), 0);
    assert_int_equal(count_ops(f, PZ_OP_MLA_ATTENTION), 4);
    assert_int_equal(count_ops(f, PZ_OP_MLA_CACHE_WRITE), 4);
    for (int i = 0; i < f->nodes.n; i++)
        if (f->nodes.at[i]->op == PZ_OP_GEMM) assert_string_equal(pz_node_str(f->nodes.at[i], "slot"), "");
    pz_graph_free(g);
}

static void test_quantized(void **state) {
    (void)state;
    pz_graph *g = build_from("tests/data/configs/kimi-k2.5", (pz_model_graph_options){.tp = 4});
    assert_weight(g, "layers.60.experts.gate_up", "mxfp4[384,1024,7168]");
    assert_weight(g, "layers.60.experts.down", "mxfp4[384,7168,512]");
    assert_weight(g, "layers.60.shared.down", "bf16[7168,512]");
    assert_weight(g, "layers.60.qkv_a", "bf16[2112,7168]");
    assert_weight(g, "layers.0.mlp.down", "bf16[7168,4608]");
    pz_graph_free(g);
    g = build_from("tests/data/configs/deepseek-v3", (pz_model_graph_options){.tp = 8});
    assert_weight(g, "layers.0.qkv_a", "fp8[2112,7168]");
    assert_weight(g, "layers.0.q_b", "fp8[3072,1536]");
    assert_weight(g, "layers.0.kv_b", "bf16[4096,512]");
    assert_weight(g, "layers.0.o_proj", "fp8[7168,2048]");
    assert_weight(g, "layers.2.mlp.gate_up", "fp8[4608,7168]");
    assert_weight(g, "layers.3.gate", "bf16[256,7168]");
    assert_weight(g, "layers.3.gate_bias", "f32[256]");
    assert_weight(g, "layers.60.experts.gate_up", "fp8[256,512,7168]");
    assert_weight(g, "lm_head", "bf16[16160,7168]");
    pz_graph_free(g);
}

/* Accumulators: fixed only where the producer gives the norms of the rows. Activations: every result between kernels
 * has the dtype asked for. */
static void test_accumulators_and_dtypes(void **state) {
    (void)state;
    for (int i = 0; i < 3 * 2 * 2; i++) {
        pz_model_graph_options o = {.tp = 2, .accum = (pz_accum)(i % 3), .act = (pz_act)(i / 3 % 2), .inlined = i / 6};
        pz_dtype act = o.act == PZ_ACT_F32 ? PZ_DT_F32 : PZ_DT_BF16;
        pz_graph *g = build_from("models/kimi-tiny", o);
        for (int k = 0; k < g->funcs.n; k++) {
            const pz_func *f = g->funcs.at[k];
            for (int j = 0; j < f->nodes.n; j++) {
                const pz_node *n = f->nodes.at[j];
                pz_dtype dt = n->results.n ? n->results.at[0]->type.dt : PZ_DT_NONE;
                switch (n->op) {
                case PZ_OP_GEMM: {
                    const pz_value *x = pz_node_arg_value(n, "x");
                    bool normed = x->def && pz_node_has(x->def, PZ_TRAIT_ROW_NORM);
                    pz_accum want = o.accum == PZ_ACCUM_FIXED && !normed ? PZ_ACCUM_F32 : o.accum;
                    assert_string_equal(pz_node_str(n, "accum"), pz_accum_text(want));
                    assert_int_equal(dt, pz_accum_dtype(want));
                    assert_true(normed); /* so in this model every GEMM can be exact */
                    break;
                }
                case PZ_OP_EMBED:
                case PZ_OP_RMS_NORM:
                case PZ_OP_LATENT_RMS_NORM:
                case PZ_OP_ADD:
                case PZ_OP_SILU_MUL:
                case PZ_OP_MLA_ABSORB_V: assert_int_equal(dt, act); break;
                case PZ_OP_ALL_REDUCE: /* the fused form rounds once, after the residual */
                case PZ_OP_MLA_ABSORB_Q:
                case PZ_OP_MLA_ATTENTION:
                case PZ_OP_MOE_EXPERTS: assert_int_equal(dt, PZ_DT_F32); break;
                default: break;
                }
            }
        }
        pz_graph_free(g);
    }
}

/* The numbers that the ops carry. */
static void test_attributes(void **state) {
    (void)state;
    pz_graph *g = build_from("tests/data/configs/deepseek-v3", (pz_model_graph_options){.tp = 8, .inlined = 1});
    const pz_func *f = g->funcs.at[0];
    int layer = 0;
    for (int i = 0; i < f->nodes.n; i++) {
        const pz_node *n = f->nodes.at[i];
        if (n->op == PZ_OP_ROUTER) {
            assert_int_equal(pz_node_int(n, "top_k"), 8);
            assert_int_equal(pz_node_int(n, "n_group"), 8);
            assert_int_equal(pz_node_int(n, "topk_group"), 4);
            assert_int_equal(pz_node_int(n, "group_top"), 2);
            assert_int_equal(pz_node_int(n, "norm"), 1);
            assert_string_equal(pz_node_str(n, "scoring"), "sigmoid");
            assert_true(pz_node_float(n, "scale") == 2.5);
            assert_non_null(pz_node_arg(n, "bias"));
        } else if (n->op == PZ_OP_MLA_ATTENTION) {
            assert_int_equal(pz_node_int(n, "layer"), layer++);
            assert_int_equal(pz_node_int(n, "heads"), 16);
            assert_int_equal(pz_node_int(n, "latent"), 512);
            assert_int_equal(pz_node_int(n, "rope"), 64);
            /* 192^-0.5 * (0.1 ln 40 + 1)^2 */
            assert_true(pz_node_float(n, "scale") > 0.135233778 && pz_node_float(n, "scale") < 0.135233779);
        } else if (n->op == PZ_OP_MLA_ABSORB_Q) {
            assert_int_equal(pz_node_int(n, "nope"), 128);
            assert_int_equal(pz_node_int(n, "v"), 128);
            assert_true(pz_node_float(n, "rope_scale") == 1);
        }
    }
    assert_int_equal(layer, 61);
    pz_graph_free(g);
}

/* ---- variants that have no files ---- */
static pz_hf_config parse_text(const char *text) {
    pz_hf_config c;
    pz_error err;
    assert_ok(pz_hf_config_parse(text, strlen(text), "config.json", &c, &err), &err);
    return c;
}

static pz_hf_config parse(const char *extra) {
    static const char head[] = "{\"vocab_size\": 96, \"hidden_size\": 64, \"num_hidden_layers\": 2,"
                               " \"num_attention_heads\": 4, \"intermediate_size\": 96, \"kv_lora_rank\": 32,"
                               " \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"v_head_dim\": 24,"
                               " \"max_position_embeddings\": 64, ";
    char text[2048];
    snprintf(text, sizeof text, "%s%s}", head, extra);
    return parse_text(text);
}

static pz_graph *build(const pz_hf_config *c, int tp, bool inlined) {
    pz_graph *g;
    pz_error err;
    pz_model_graph_options o = {.size = sizeof o, .tp = tp, .inlined = inlined};
    assert_ok(pz_model_graph(c, &o, &g, &err), &err);
    assert_ok(pz_graph_verify(g, &err), &err);
    assert_roundtrip(g);
    return g;
}

static const char v2_moe[] = "\"model_type\": \"deepseek_v2\", \"n_routed_experts\": 8, \"moe_intermediate_size\": 32,"
                             " \"num_experts_per_tok\": 3, \"n_shared_experts\": 2, \"n_group\": 4, \"topk_group\": 2,"
                             " \"topk_method\": \"group_limited_greedy\", \"routed_scaling_factor\": 16,"
                             " \"rms_norm_eps\": 1e-5";

static void test_v2_without_q_lora(void **state) {
    (void)state;
    pz_hf_config c = parse(v2_moe);
    for (int inlined = 0; inlined < 2; inlined++) {
        pz_graph *g = build(&c, 2, inlined);
        assert_weight(g, "layers.0.qkv_a", "bf16[88,64]"); /* 2 heads * 24 | 32 + 8 */
        assert_weight(g, "layers.0.shared.gate_up", "bf16[64,64]");
        assert_null(pz_graph_find_weight(g, "layers.0.q_b"));
        assert_null(pz_graph_find_weight(g, "layers.0.q_a_layernorm"));
        assert_null(pz_graph_find_weight(g, "layers.0.gate_bias"));
        const pz_func *f = g->funcs.at[0];
        const pz_func *attention = inlined ? f : pz_graph_find_func(g, "mla_attention.1");
        if (!inlined) {
            assert_int_equal(attention->slots.n, 1);
            assert_string_equal(attention->slots.at[0].name, "o_proj");
        }
        for (int i = 0; i < f->nodes.n; i++) {
            const pz_node *n = f->nodes.at[i];
            if (n->op == PZ_OP_RMS_NORM) assert_true(pz_node_float(n, "eps") == 1e-5);
            if (n->op != PZ_OP_ROUTER) continue;
            assert_string_equal(pz_node_str(n, "scoring"), "softmax");
            assert_int_equal(pz_node_int(n, "norm"), 0);
            assert_int_equal(pz_node_int(n, "group_top"), 1);
            assert_int_equal(pz_node_int(n, "n_group"), 4);
            assert_int_equal(pz_node_int(n, "topk_group"), 2);
            assert_true(pz_node_float(n, "scale") == 16);
            assert_null(pz_node_arg(n, "bias"));
        }
        /* The norms of the latents have an epsilon of their own, as in transformers. */
        for (int i = 0; i < attention->nodes.n; i++)
            if (attention->nodes.at[i]->op == PZ_OP_MLA_CACHE_WRITE)
                assert_true(pz_node_float(attention->nodes.at[i], "eps") == 1e-6);
        pz_graph_free(g);
    }
}

static void test_dense_and_tied(void **state) {
    (void)state;
    pz_hf_config c = parse("\"model_type\": \"deepseek_v3\", \"q_lora_rank\": 48, \"tie_word_embeddings\": true");
    pz_graph *g = build(&c, 4, false);
    assert_weight(g, "lm_head", "bf16[24,64]");
    assert_weight(g, "embed", "bf16[96,64]");
    assert_weight(g, "layers.1.mlp.gate_up", "bf16[48,64]");
    assert_int_equal(count_ops(g->funcs.at[0], PZ_OP_ROUTER), 0);
    pz_graph_free(g);
}

static void test_no_shared_experts(void **state) {
    (void)state;
    pz_hf_config c = parse("\"model_type\": \"deepseek_v3\", \"q_lora_rank\": 48, \"n_routed_experts\": 8,"
                           " \"moe_intermediate_size\": 32, \"num_experts_per_tok\": 2, \"moe_layer_freq\": 2");
    pz_graph *g = build(&c, 1, false);
    assert_int_equal(count_ops(g->funcs.at[0], PZ_OP_ROUTER), 1); /* layer 0; 1 is no multiple of 2 */
    assert_null(pz_graph_find_weight(g, "layers.0.shared.down"));
    assert_non_null(pz_graph_find_weight(g, "layers.1.mlp.down"));
    pz_graph_free(g);
}

/* ---- what is refused ---- */
static void test_bad_options(void **state) {
    (void)state;
    pz_hf_config c = parse(v2_moe);
    pz_graph *g = NULL;
    pz_error err;
    static const struct {
        pz_model_graph_options o;
        const char *text;
    } cases[] = {
        {{.size = 3}, "size is 3"},
        {{.size = sizeof cases[0].o, .tp = -1}, "tp is -1"},
        {{.size = sizeof cases[0].o, .accum = (pz_accum)7}, "accum 7"},
        {{.size = sizeof cases[0].o, .act = (pz_act)7}, "act 7"},
        {{.size = sizeof cases[0].o, .tp = 3}, "tp 3 does not divide num_attention_heads 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_fails(pz_model_graph(&c, &cases[i].o, &g, &err), PZ_E_INVAL, &err, cases[i].text);
        assert_null(g);
    }
    pz_model_graph_options o = {.size = sizeof o, .tp = 4};
    c.vocab = 98;
    assert_fails(pz_model_graph(&c, &o, &g, &err), PZ_E_INVAL, &err, "vocab_size 98");
    c.vocab = 96;
    c.moe_intermediate = 30;
    assert_fails(pz_model_graph(&c, &o, &g, &err), PZ_E_INVAL, &err, "moe_intermediate_size 30");
    c.first_dense = 2;
    c.intermediate = 98;
    assert_fails(pz_model_graph(&c, &o, &g, &err), PZ_E_INVAL, &err, "intermediate_size 98");
    o.tp = 1;
    assert_ok(pz_model_graph(&c, &o, &g, &err), &err);
    pz_graph_free(g);
    assert_ok(pz_model_graph(&c, NULL, &g, &err), &err);
    pz_graph_free(g);
    assert_fails(pz_graph_from_config("/nonexistent", &o, &g, &err), PZ_E_NOTFOUND, &err, "/nonexistent/config.json");
    assert_null(g);
}

/* A rank's share of an mxfp4 weight must hold whole groups of 32 columns. */
static void test_mxfp4_columns(void **state) {
    (void)state;
    pz_error err;
    pz_graph *g;
    pz_model_graph_options o = {.size = sizeof o, .tp = 8};
    char *path = support_path(PZ_SOURCE_DIR, "models/kimi-tiny");
    pz_hf_config c;
    assert_ok(pz_hf_config_load(path, &c, &err), &err);
    c.heads = 8;
    assert_fails(pz_model_graph(&c, &o, &g, &err), PZ_E_INVAL, &err, "layers.1.experts.down", "16 columns",
                 "multiple of 32");
    free(path);
}

/* All sizes at the limits of the configuration still give a graph: no product overflows. */
static void test_extreme_sizes(void **state) {
    (void)state;
    pz_hf_config c =
        parse_text("{\"model_type\": \"deepseek_v3\", \"vocab_size\": 16777216, \"hidden_size\": 131072,"
                   " \"num_hidden_layers\": 512, \"num_attention_heads\": 4096,"
                   " \"intermediate_size\": 1048576, \"kv_lora_rank\": 65536, \"qk_nope_head_dim\": 4096,"
                   " \"qk_rope_head_dim\": 4096, \"v_head_dim\": 4096, \"n_routed_experts\": 4096,"
                   " \"moe_intermediate_size\": 262144, \"num_experts_per_tok\": 4096,"
                   " \"q_lora_rank\": 65536, \"n_shared_experts\": 64, \"max_position_embeddings\": 1073741824}");
    pz_graph *g;
    pz_error err;
    assert_ok(pz_model_graph(&c, NULL, &g, &err), &err);
    assert_ok(pz_graph_verify(g, &err), &err);
    assert_weight(g, "layers.511.experts.gate_up", "bf16[4096,524288,131072]");
    pz_graph_free(g);
}

static pz_status build_small(void *ctx) {
    pz_graph *g;
    pz_error err;
    pz_status st = pz_model_graph(ctx, NULL, &g, &err);
    pz_graph_free(g);
    return st;
}

static void test_no_memory(void **state) {
    (void)state;
    pz_hf_config c = parse(v2_moe);
    assert_true(support_alloc_sweep(build_small, &c) >= 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kimi_k2_tp4),    cmocka_unit_test(test_gate_first),
        cmocka_unit_test(test_all_forms),      cmocka_unit_test(test_inlined),
        cmocka_unit_test(test_quantized),      cmocka_unit_test(test_accumulators_and_dtypes),
        cmocka_unit_test(test_attributes),     cmocka_unit_test(test_v2_without_q_lora),
        cmocka_unit_test(test_dense_and_tied), cmocka_unit_test(test_no_shared_experts),
        cmocka_unit_test(test_bad_options),    cmocka_unit_test(test_mxfp4_columns),
        cmocka_unit_test(test_extreme_sizes),  cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
