/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "base/file.h"
#include "base/json.h"
#include "model/model.h"
#include "model/weights.h"

/* As small as a configuration can be. */
static const char v3_text[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"deepseek_v3\", \"vocab_size\": 1000,"
    " \"hidden_size\": 256, \"num_hidden_layers\": 6, \"num_attention_heads\": 8, \"intermediate_size\": 512,"
    " \"q_lora_rank\": 128, \"kv_lora_rank\": 64, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 16,"
    " \"v_head_dim\": 32, \"max_position_embeddings\": 4096, \"n_routed_experts\": 16, \"n_shared_experts\": 1,"
    " \"moe_intermediate_size\": 128, \"num_experts_per_tok\": 4, \"n_group\": 4, \"topk_group\": 2,"
    " \"first_k_dense_replace\": 1}";
static const char v2_patch[] =
    "{\"architectures\": [\"DeepseekV2ForCausalLM\"], \"model_type\": \"deepseek_v2\", \"q_lora_rank\": null,"
    " \"topk_method\": \"greedy\", \"routed_scaling_factor\": 1.0, \"norm_topk_prob\": false}";

static json_t *json(const char *text) {
    json_error_t e;
    json_t *v = json_loads(text, 0, &e);
    if (!v) fail_msg("bad JSON in the test: %s in %s", e.text, text);
    return v;
}

/* The members of a patch replace those of the object; "-" deletes one. */
static void apply(json_t *obj, const char *patch) {
    json_t *p = json(patch);
    const char *key;
    json_t *value;
    json_object_foreach(p, key, value) {
        if (json_is_string(value) && strcmp(json_string_value(value), "-") == 0)
            json_object_del(obj, key);
        else
            json_object_set(obj, key, value);
    }
    json_decref(p);
}

static pz_status parse_object(const json_t *obj, pz_hf_config *c, pz_error *err) {
    char *text = json_dumps(obj, 0);
    pz_status st = pz_hf_config_parse(text, strlen(text), "config.json", c, err);
    free(text);
    return st;
}

/* v3_text with up to two patches. */
static pz_status parse(const char *first, const char *second, pz_hf_config *c, pz_error *err) {
    json_t *obj = json(v3_text);
    if (first) apply(obj, first);
    if (second) apply(obj, second);
    pz_status st = parse_object(obj, c, err);
    json_decref(obj);
    return st;
}

static pz_hf_config good(const char *first, const char *second) {
    pz_hf_config c;
    pz_error err;
    assert_ok(parse(first, second, &c, &err), &err);
    return c;
}

/* ---- the models named in the documentation ---- */
static pz_hf_config load(const char *dir) {
    pz_hf_config c;
    pz_error err;
    char *path = support_path(PZ_SOURCE_DIR, dir);
    assert_ok(pz_hf_config_load(path, &c, &err), &err);
    free(path);
    return c;
}

static void test_kimi_k2(void **state) {
    (void)state;
    pz_hf_config c = load("tests/data/configs/kimi-k2");
    assert_string_equal(c.model_type, "kimi_k2");
    assert_int_equal(c.vocab, 163840);
    assert_int_equal(c.hidden, 7168);
    assert_int_equal(c.layers, 61);
    assert_int_equal(c.heads, 64);
    assert_int_equal(c.intermediate, 18432);
    assert_int_equal(c.moe_intermediate, 2048);
    assert_int_equal(c.q_lora, 1536);
    assert_int_equal(c.kv_lora, 512);
    assert_int_equal(c.nope, 128);
    assert_int_equal(c.rope, 64);
    assert_int_equal(c.v, 128);
    assert_int_equal(c.experts, 384);
    assert_int_equal(c.shared_experts, 1);
    assert_int_equal(c.top_k, 8);
    assert_int_equal(c.n_group, 1);
    assert_int_equal(c.topk_group, 1);
    assert_int_equal(c.first_dense, 1);
    assert_int_equal(c.moe_freq, 1);
    assert_int_equal(c.scoring, PZ_SCORING_SIGMOID);
    assert_true(c.norm_topk && c.correction_bias && c.rope_interleave && !c.tied);
    assert_true(c.routed_scale == 2.827 && c.eps == 1e-6);
    assert_int_equal(c.max_positions, 131072);
    assert_true(c.yarn && c.yarn_factor == 32 && c.yarn_beta_fast == 1 && c.yarn_beta_slow == 1);
    assert_true(c.rope_theta == 50000 && c.yarn_mscale == 1 && c.yarn_mscale_all_dim == 1);
    assert_int_equal(c.yarn_original, 4096);
    assert_int_equal(c.bos, 163584);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 163585);
    assert_int_equal(c.expert_quant, PZ_QUANT_NONE);
    assert_int_equal(c.linear_quant, PZ_QUANT_NONE);
    assert_string_equal(c.prefix, "");
}

static void test_kimi_k25(void **state) {
    (void)state;
    pz_hf_config c = load("tests/data/configs/kimi-k2.5");
    assert_int_equal(c.layers, 61);
    assert_int_equal(c.max_positions, 262144);
    assert_true(c.yarn && c.yarn_factor == 64 && c.yarn_beta_fast == 32);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 163585);
    assert_int_equal(c.expert_quant, PZ_QUANT_MXFP4);
    assert_int_equal(c.linear_quant, PZ_QUANT_NONE);
    assert_false(c.packed_names);
    assert_string_equal(c.prefix, "language_model.");
}

static void test_deepseek_v3(void **state) {
    (void)state;
    pz_hf_config c = load("tests/data/configs/deepseek-v3");
    assert_int_equal(c.experts, 256);
    assert_int_equal(c.n_group, 8);
    assert_int_equal(c.topk_group, 4);
    assert_int_equal(c.group_top, 2);
    assert_int_equal(c.first_dense, 3);
    assert_int_equal(c.expert_quant, PZ_QUANT_FP8);
    assert_int_equal(c.linear_quant, PZ_QUANT_FP8);
    /* The head, the router's gate and kv_b are not quantized in the graph. */
    assert_int_equal(pz_role_type(&c, PZ_ROLE_LM_HEAD, 0, NULL).dt, PZ_DT_BF16);
    assert_int_equal(pz_role_type(&c, PZ_ROLE_GATE, 3, NULL).dt, PZ_DT_BF16);
    assert_int_equal(pz_role_type(&c, PZ_ROLE_KV_B, 3, NULL).dt, PZ_DT_BF16);
    assert_int_equal(pz_role_type(&c, PZ_ROLE_QKV_A, 0, NULL).dt, PZ_DT_FP8);
    assert_int_equal(pz_role_type(&c, PZ_ROLE_MLP_DOWN, 0, NULL).dt, PZ_DT_FP8);
    assert_int_equal(pz_role_type(&c, PZ_ROLE_EXPERTS_DOWN, 3, NULL).dt, PZ_DT_FP8);
}

static void test_kimi_tiny(void **state) {
    (void)state;
    pz_hf_config c = load("models/kimi-tiny");
    assert_true(c.yarn && c.yarn_factor == 4 && c.rope_theta == 50000);
    assert_int_equal(c.yarn_original, 256);
    assert_int_equal(c.expert_quant, PZ_QUANT_MXFP4);
    assert_int_equal(c.linear_quant, PZ_QUANT_NONE);
    c = load("tests/data/kimi-tiny-bf16");
    assert_int_equal(c.expert_quant, PZ_QUANT_NONE);
}

/* ---- families ---- */
static void test_v3_defaults(void **state) {
    (void)state;
    pz_hf_config c = good(NULL, NULL);
    assert_int_equal(c.scoring, PZ_SCORING_SIGMOID);
    assert_true(c.norm_topk && c.correction_bias && c.rope_interleave && !c.tied && !c.yarn);
    assert_true(c.routed_scale == 2.5 && c.eps == 1e-6 && c.rope_theta == 10000 && c.rope_linear == 1);
    assert_int_equal(c.group_top, 2);
    assert_int_equal(c.moe_freq, 1);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.n_eos, 0);
    assert_string_equal(c.prefix, "");
}

static void test_v2(void **state) {
    (void)state;
    pz_hf_config c = good(v2_patch, NULL);
    assert_string_equal(c.model_type, "deepseek_v2");
    assert_int_equal(c.q_lora, 0);
    assert_int_equal(c.scoring, PZ_SCORING_SOFTMAX);
    assert_false(c.norm_topk);
    assert_false(c.correction_bias);
    /* greedy looks at no groups, whatever is configured */
    assert_int_equal(c.n_group, 1);
    assert_int_equal(c.topk_group, 1);
    assert_true(c.routed_scale == 1);
    c = good(v2_patch, "{\"topk_method\": \"group_limited_greedy\", \"topk_group\": 3, \"routed_scaling_factor\": 16}");
    assert_int_equal(c.n_group, 4);
    assert_int_equal(c.topk_group, 3);
    assert_int_equal(c.group_top, 1);
    assert_true(c.routed_scale == 16);
    c = good(v2_patch, "{\"norm_topk_prob\": true, \"q_lora_rank\": 96, \"n_shared_experts\": 2}");
    assert_true(c.norm_topk);
    assert_int_equal(c.q_lora, 96);
    assert_int_equal(c.shared_experts, 2);
    c = good(v2_patch, "{\"topk_method\": \"-\", \"routed_scaling_factor\": \"-\", \"norm_topk_prob\": \"-\"}");
    assert_true(!c.norm_topk && c.routed_scale == 1 && !c.correction_bias);
}

static void test_variants(void **state) {
    (void)state;
    pz_hf_config c = good("{\"architectures\": \"-\"}", NULL);
    assert_string_equal(c.model_type, "deepseek_v3");
    c = good("{\"architectures\": [], \"model_type\": \"kimi_k2\"}", NULL);
    assert_string_equal(c.model_type, "kimi_k2");
    c = good("{\"q_lora_rank\": \"-\", \"n_shared_experts\": null}", NULL);
    assert_int_equal(c.q_lora, 0);
    assert_int_equal(c.shared_experts, 0);
    c = good("{\"n_group\": null, \"topk_group\": null}", NULL);
    assert_int_equal(c.n_group, 1);
    c = good("{\"scoring_func\": \"softmax\", \"topk_method\": \"greedy\"}", NULL);
    assert_int_equal(c.scoring, PZ_SCORING_SOFTMAX);
    assert_false(c.correction_bias);
    c = good("{\"tie_word_embeddings\": true, \"first_k_dense_replace\": 6, \"moe_layer_freq\": 2}", NULL);
    assert_true(c.tied);
    assert_int_equal(c.first_dense, 6);
    assert_int_equal(c.moe_freq, 2);
    c = good("{\"eos_token_id\": 7, \"bos_token_id\": 3}", NULL);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.bos, 3);
    c = good("{\"eos_token_id\": [9, 8, 9]}", NULL);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 9);
    assert_int_equal(c.eos[1], 8);
    assert_int_equal(good("{\"eos_token_id\": []}", NULL).n_eos, 0);
    assert_int_equal(good("{\"eos_token_id\": null}", NULL).n_eos, 0);
    /* A model without experts needs none of their numbers. */
    c = good("{\"n_routed_experts\": null, \"moe_intermediate_size\": \"-\", \"num_experts_per_tok\": \"-\"}", NULL);
    assert_int_equal(c.experts, 0);
    assert_false(pz_layer_is_moe(&c, 5));
}

static void test_moe_layers(void **state) {
    (void)state;
    pz_hf_config c = good("{\"first_k_dense_replace\": 2, \"moe_layer_freq\": 2}", NULL);
    static const bool want[] = {false, false, true, false, true, false};
    for (int i = 0; i < 6; i++) assert_int_equal(pz_layer_is_moe(&c, i), want[i]);
}

/* text_config holds the model; what is outside of it counts only where it has nothing. */
static void test_nested(void **state) {
    (void)state;
    json_t *root = json("{\"architectures\": [\"KimiK25ForConditionalGeneration\"], \"model_type\": \"kimi_k25\","
                        " \"vocab_size\": 5, \"eos_token_id\": 11}");
    pz_hf_config c;
    pz_error err;
    assert_fails(parse_object(root, &c, &err), PZ_E_FORMAT, &err, "text_config", "missing");
    json_object_set_new(root, "text_config", json_integer(3));
    assert_fails(parse_object(root, &c, &err), PZ_E_FORMAT, &err, "text_config", "an object");
    json_object_set_new(root, "text_config", json(v3_text));
    assert_ok(parse_object(root, &c, &err), &err);
    assert_int_equal(c.vocab, 1000);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 11);
    assert_string_equal(c.prefix, "language_model.");
    assert_int_equal(c.quant, PZ_QUANT_NONE);
    /* quantization_config inside, then also outside, which counts first */
    json_object_set_new(json_object_get(root, "text_config"), "quantization_config",
                        json("{\"quant_method\": \"fp8\"}"));
    assert_ok(parse_object(root, &c, &err), &err);
    assert_int_equal(c.quant, PZ_QUANT_FP8);
    json_object_set_new(root, "quantization_config",
                        json("{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp4-pack-quantized\"}"));
    assert_ok(parse_object(root, &c, &err), &err);
    assert_int_equal(c.quant, PZ_QUANT_MXFP4);
    json_decref(root);
}

/* ---- rope ---- */
static void test_rope_forms(void **state) {
    (void)state;
    static const char *const yarns[] = {
        /* before: theta beside, "type" */
        "{\"rope_theta\": 50000.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 32, \"beta_fast\": 2,"
        " \"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 0.5, \"original_max_position_embeddings\": 128}}",
        /* "rope_type" goes before "type" */
        "{\"rope_theta\": 50000, \"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"yarn\", \"factor\": 32.0,"
        " \"beta_fast\": 2.0, \"mscale\": 1, \"mscale_all_dim\": 0.5, \"original_max_position_embeddings\": 128}}",
        /* today's form goes before the old one */
        "{\"rope_theta\": 3, \"rope_scaling\": {\"type\": \"dynamic\"}, \"rope_parameters\": {\"rope_type\": \"yarn\","
        " \"rope_theta\": 50000.0, \"factor\": 32, \"beta_fast\": 2, \"mscale\": 1, \"mscale_all_dim\": 0.5,"
        " \"original_max_position_embeddings\": 128}}",
        /* the factor from the two context lengths */
        "{\"rope_theta\": 50000.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": null, \"beta_fast\": 2,"
        " \"mscale\": 1.0, \"mscale_all_dim\": 0.5, \"original_max_position_embeddings\": 128}}",
    };
    for (size_t i = 0; i < sizeof yarns / sizeof *yarns; i++) {
        pz_hf_config c = good(yarns[i], NULL);
        assert_true(c.yarn && c.yarn_factor == 32 && c.yarn_beta_fast == 2 && c.yarn_beta_slow == 1);
        assert_true(c.rope_theta == 50000 && c.yarn_mscale == 1 && c.yarn_mscale_all_dim == 0.5);
        assert_true(c.yarn_original == 128 && c.rope_linear == 1 && c.yarn_truncate && c.yarn_attention_factor == 0);
    }
    pz_hf_config c = good("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"attention_factor\": 1.5,"
                          " \"truncate\": false}}",
                          NULL);
    assert_true(c.yarn_attention_factor == 1.5 && !c.yarn_truncate);
    assert_int_equal(c.yarn_original, 4096);
    assert_true(c.yarn_beta_fast == 32 && c.yarn_beta_slow == 1 && c.yarn_mscale == 0 && c.yarn_mscale_all_dim == 0);
    c = good("{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}}", NULL);
    assert_true(!c.yarn && c.rope_linear == 4);
    static const char *const plain[] = {
        "{\"rope_theta\": 7.0, \"rope_scaling\": null}",
        "{\"rope_parameters\": {\"rope_theta\": 7, \"rope_type\": \"default\"}}",
        "{\"rope_parameters\": {\"rope_theta\": 7}}",
        /* mscale_all_dim means nothing without scaling */
        "{\"rope_parameters\": {\"rope_theta\": 7, \"rope_type\": \"default\", \"mscale_all_dim\": 1}}",
    };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        c = good(plain[i], NULL);
        assert_true(!c.yarn && c.rope_theta == 7 && c.rope_linear == 1 && c.yarn_mscale_all_dim == 0);
    }
}

/* ---- what is wrong ---- */
typedef struct bad_case {
    const char *patch;
    pz_status status;
    const char *texts[2];
} bad_case;

static void check_bad(const bad_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        pz_hf_config c;
        pz_error err = {0};
        pz_status st = parse(cases[i].patch, NULL, &c, &err);
        if (st != cases[i].status) fail_msg("%s: got %s (%s)", cases[i].patch, pz_status_name(st), err.msg);
        assert_fails(st, cases[i].status, &err, "config.json", cases[i].texts[0], cases[i].texts[1]);
    }
}

static void test_bad_values(void **state) {
    (void)state;
    static const bad_case cases[] = {
        {"{\"architectures\": [\"LlamaForCausalLM\"]}",
         PZ_E_UNSUPPORTED,
         {"LlamaForCausalLM", "KimiK25ForConditional"}},
        {"{\"architectures\": \"-\", \"model_type\": \"llama\"}", PZ_E_UNSUPPORTED, {"llama", "deepseek_v3"}},
        {"{\"architectures\": \"-\", \"model_type\": \"-\"}", PZ_E_FORMAT, {"architectures", "model_type"}},
        {"{\"architectures\": [3]}", PZ_E_FORMAT, {"architectures", "strings"}},
        {"{\"architectures\": {}}", PZ_E_FORMAT, {"architectures", "an array"}},
        {"{\"model_type\": 3}", PZ_E_FORMAT, {"model_type", "a string"}},
        {"{\"qk_rope_head_dim\": 15}", PZ_E_FORMAT, {"qk_rope_head_dim", "even"}},
        {"{\"rms_norm_eps\": 0}", PZ_E_FORMAT, {"rms_norm_eps", "from"}},
        {"{\"rms_norm_eps\": -1e-6}", PZ_E_FORMAT, {"rms_norm_eps", "from"}},
        {"{\"rms_norm_eps\": \"x\"}", PZ_E_FORMAT, {"rms_norm_eps", "a number"}},
        {"{\"attention_bias\": true}", PZ_E_UNSUPPORTED, {"attention_bias", "false"}},
        {"{\"mlp_bias\": true}", PZ_E_UNSUPPORTED, {"mlp_bias", "false"}},
        {"{\"attention_bias\": 1}", PZ_E_FORMAT, {"attention_bias", "true or false"}},
        {"{\"hidden_act\": \"gelu\"}", PZ_E_UNSUPPORTED, {"gelu", "silu"}},
        {"{\"rope_interleave\": false}", PZ_E_UNSUPPORTED, {"rope_interleave", "true"}},
        {"{\"tie_word_embeddings\": \"yes\"}", PZ_E_FORMAT, {"tie_word_embeddings", "true or false"}},
        {"{\"eos_token_id\": 1000}", PZ_E_FORMAT, {"eos_token_id", "1000"}},
        {"{\"eos_token_id\": -2}", PZ_E_FORMAT, {"eos_token_id", "-2"}},
        {"{\"eos_token_id\": \"x\"}", PZ_E_FORMAT, {"eos_token_id", "integer"}},
        {"{\"eos_token_id\": [\"x\"]}", PZ_E_FORMAT, {"eos_token_id", "integers"}},
        {"{\"eos_token_id\": [1, \"x\"]}", PZ_E_FORMAT, {"eos_token_id", "integers"}},
        {"{\"eos_token_id\": [1, 1000]}", PZ_E_FORMAT, {"eos_token_id", "1000"}},
        {"{\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", PZ_E_FORMAT, {"eos_token_id", "16"}},
        {"{\"eos_token_id\": [99999999]}", PZ_E_FORMAT, {"eos_token_id", "99999999"}},
        {"{\"bos_token_id\": 1000}", PZ_E_FORMAT, {"bos_token_id", "1000"}},
        {"{\"num_experts_per_tok\": 17}", PZ_E_FORMAT, {"num_experts_per_tok", "at most n_routed_experts 16"}},
        {"{\"n_group\": 3}", PZ_E_FORMAT, {"n_group", "does not divide"}},
        {"{\"n_group\": 16}", PZ_E_FORMAT, {"groups of 1 experts", "at least the 2"}},
        {"{\"topk_group\": 5}", PZ_E_FORMAT, {"topk_group", "at most n_group 4"}},
        {"{\"topk_group\": 1, \"num_experts_per_tok\": 5}", PZ_E_FORMAT, {"num_experts_per_tok", "hold 4"}},
        {"{\"scoring_func\": \"tanh\"}", PZ_E_UNSUPPORTED, {"tanh", "sigmoid, softmax"}},
        {"{\"topk_method\": \"best\"}", PZ_E_UNSUPPORTED, {"best", "greedy, group_limited_greedy, noaux_tc"}},
        {"{\"norm_topk_prob\": 1}", PZ_E_FORMAT, {"norm_topk_prob", "true or false"}},
        {"{\"routed_scaling_factor\": 0}", PZ_E_FORMAT, {"routed_scaling_factor", "from"}},
        {"{\"rope_theta\": 1}", PZ_E_FORMAT, {"rope_theta", "from"}},
        {"{\"rope_theta\": 1e300}", PZ_E_FORMAT, {"rope_theta", "from"}},
        {"{\"rope_scaling\": []}", PZ_E_FORMAT, {"rope_scaling", "an object"}},
        {"{\"rope_scaling\": {\"type\": \"dynamic\"}}", PZ_E_UNSUPPORTED, {"dynamic", "default, linear, yarn"}},
        {"{\"rope_scaling\": {\"type\": 3}}", PZ_E_FORMAT, {"type", "a string"}},
        {"{\"rope_scaling\": {\"type\": \"linear\"}}", PZ_E_FORMAT, {"factor", "missing"}},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}}", PZ_E_FORMAT, {"factor", "from"}},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 0.5}}", PZ_E_FORMAT, {"factor", "from"}},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 0}}",
         PZ_E_FORMAT,
         {"beta_fast", "from"}},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_slow\": 64}}",
         PZ_E_FORMAT,
         {"beta_fast", "at least beta_slow"}},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mscale\": -1}}", PZ_E_FORMAT, {"mscale", "from"}},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mscale_all_dim\": 1e9}}",
         PZ_E_FORMAT,
         {"mscale_all_dim", "from"}},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"original_max_position_embeddings\": 0}}",
         PZ_E_FORMAT,
         {"original_max_position_embeddings", "from 1"}},
        {"{\"quantization_config\": 3}", PZ_E_FORMAT, {"quantization_config", "an object"}},
    };
    check_bad(cases, sizeof cases / sizeof *cases);
}

/* Every size: missing (where it is needed), null, zero, negative, huge, of another type. */
static void test_bad_sizes(void **state) {
    (void)state;
    static const struct {
        const char *key;
        bool required, zero;
    } keys[] = {
        {"vocab_size", true, false},
        {"hidden_size", true, false},
        {"num_hidden_layers", true, false},
        {"num_attention_heads", true, false},
        {"intermediate_size", true, false},
        {"q_lora_rank", false, false},
        {"kv_lora_rank", true, false},
        {"qk_nope_head_dim", true, false},
        {"qk_rope_head_dim", true, false},
        {"v_head_dim", true, false},
        {"max_position_embeddings", true, false},
        {"n_routed_experts", false, true},
        {"moe_intermediate_size", true, false},
        {"n_shared_experts", false, true},
        {"num_experts_per_tok", true, false},
        {"n_group", false, false},
        {"topk_group", false, false},
        {"first_k_dense_replace", false, true},
        {"moe_layer_freq", false, false},
    };
    static const char *const values[] = {"-1", "9223372036854775807", "1.5", "\"8\"", "[]", "true"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char patch[128];
        pz_hf_config c;
        pz_error err;
        for (size_t j = 0; j < sizeof values / sizeof *values; j++) {
            snprintf(patch, sizeof patch, "{\"%s\": %s}", keys[i].key, values[j]);
            assert_fails(parse(patch, NULL, &c, &err), PZ_E_FORMAT, &err, keys[i].key, "integer");
        }
        snprintf(patch, sizeof patch, "{\"%s\": 0}", keys[i].key);
        if (keys[i].zero)
            assert_ok(parse(patch, NULL, &c, &err), &err);
        else
            assert_fails(parse(patch, NULL, &c, &err), PZ_E_FORMAT, &err, keys[i].key, "from");
        for (int j = 0; j < 2 && keys[i].required; j++) {
            snprintf(patch, sizeof patch, j ? "{\"%s\": null}" : "{\"%s\": \"-\"}", keys[i].key);
            assert_fails(parse(patch, NULL, &c, &err), PZ_E_FORMAT, &err, keys[i].key, j ? "null" : "missing");
        }
    }
}

static void test_not_a_config(void **state) {
    (void)state;
    pz_hf_config c;
    pz_error err;
    assert_fails(pz_hf_config_parse("[]", 2, "config.json", &c, &err), PZ_E_FORMAT, &err, "config.json", "object");
    assert_fails(pz_hf_config_parse("{", 1, "config.json", &c, &err), PZ_E_FORMAT, &err, "config.json:1", "JSON");
    assert_fails(pz_hf_config_parse("", 0, "config.json", &c, &err), PZ_E_FORMAT, &err, "config.json");
    assert_fails(pz_hf_config_load("/nonexistent", &c, &err), PZ_E_NOTFOUND, &err, "/nonexistent/config.json");
    for (size_t n = 0; n < sizeof v3_text - 1; n++)
        assert_status(pz_hf_config_parse(v3_text, n, "config.json", &c, &err), PZ_E_FORMAT, &err);
}

/* ---- quantization ---- */
#define QUARK_WEIGHT                                                                                             \
    "\"global_quant_config\": {\"weight\": {\"dtype\": \"fp4\", \"qscheme\": \"per_group\", \"group_size\": 32," \
    " \"scale_format\": \"e8m0\"}}"

static bool is_quantized(const pz_hf_config *c, pz_role r, int64_t layer) {
    return pz_role_type(c, r, layer, NULL).dt == PZ_DT_MXFP4;
}

static void test_quark_exclude(void **state) {
    (void)state;
    pz_hf_config c = good("{\"quantization_config\": {\"quant_method\": \"quark\", " QUARK_WEIGHT "}}", NULL);
    assert_int_equal(c.expert_quant, PZ_QUANT_MXFP4);
    assert_int_equal(c.linear_quant, PZ_QUANT_MXFP4);
    assert_true(is_quantized(&c, PZ_ROLE_QKV_A, 5) && is_quantized(&c, PZ_ROLE_LM_HEAD, 0));
    assert_true(is_quantized(&c, PZ_ROLE_MLP_DOWN, 0) && is_quantized(&c, PZ_ROLE_SHARED_DOWN, 1));
    assert_false(is_quantized(&c, PZ_ROLE_GATE, 1) || is_quantized(&c, PZ_ROLE_EMBED, 0) ||
                 is_quantized(&c, PZ_ROLE_KV_B, 1));
    /* Every form of a name: exact, a module above, shell pattern, expression, with the other prefix. */
    c = good("{\"quantization_config\": {\"quant_method\": \"quark\", " QUARK_WEIGHT
             ", \"exclude\": [\"lm_head\", \"model.layers.1.self_attn.o_proj\", \"model.layers.2.self_attn\","
             " \"*layers.3.self_attn.q_b_proj\", \"re:.*layers.4.mlp.shared.*\", \"re:self_attn\","
             " \"language_model.model.layers.5.mlp.experts\"]}}",
             NULL);
    assert_false(is_quantized(&c, PZ_ROLE_LM_HEAD, 0));
    assert_false(is_quantized(&c, PZ_ROLE_O_PROJ, 1));
    assert_true(is_quantized(&c, PZ_ROLE_Q_B, 1));
    assert_false(is_quantized(&c, PZ_ROLE_QKV_A, 2) || is_quantized(&c, PZ_ROLE_O_PROJ, 2));
    assert_false(is_quantized(&c, PZ_ROLE_Q_B, 3));
    assert_true(is_quantized(&c, PZ_ROLE_QKV_A, 3));
    assert_false(is_quantized(&c, PZ_ROLE_SHARED_DOWN, 4));
    assert_true(is_quantized(&c, PZ_ROLE_EXPERTS_DOWN, 4));
    assert_false(is_quantized(&c, PZ_ROLE_EXPERTS_DOWN, 5) || is_quantized(&c, PZ_ROLE_EXPERTS_GATE_UP, 5));
    assert_true(is_quantized(&c, PZ_ROLE_SHARED_GATE_UP, 5));
    /* layers.1 is not layers.10 */
    c = good("{\"num_hidden_layers\": 12, \"quantization_config\": {\"quant_method\": \"quark\", " QUARK_WEIGHT
             ", \"exclude\": [\"model.layers.1\", \"re:.*layers.2.mlp.*\"]}}",
             NULL);
    assert_false(is_quantized(&c, PZ_ROLE_O_PROJ, 1));
    assert_true(is_quantized(&c, PZ_ROLE_O_PROJ, 10) && is_quantized(&c, PZ_ROLE_O_PROJ, 11));
    /* many exact names, as quark writes them */
    json_t *obj = json(v3_text), *q = json("{\"quant_method\": \"quark\", " QUARK_WEIGHT ", \"exclude\": []}");
    char name[64];
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "model.layers.%d.self_attn.o_proj", i);
        json_array_append_new(json_object_get(q, "exclude"), json_string(name));
    }
    json_object_set_new(obj, "quantization_config", q);
    pz_error err;
    assert_ok(parse_object(obj, &c, &err), &err);
    assert_false(is_quantized(&c, PZ_ROLE_O_PROJ, 3));
    assert_true(is_quantized(&c, PZ_ROLE_Q_B, 3));
    json_decref(obj);
}

static void test_compressed_tensors(void **state) {
    (void)state;
    /* as llm-compressor and Moonshot write it */
    pz_hf_config c = good("{\"quantization_config\": {\"quant_method\": \"compressed-tensors\","
                          " \"format\": \"mxfp4-pack-quantized\", \"config_groups\": {\"group_0\": {\"format\":"
                          " \"mxfp4-pack-quantized\", \"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4,"
                          " \"type\": \"float\", \"group_size\": 32, \"strategy\": \"group\"}}},"
                          " \"ignore\": [\"lm_head\", \"re:.*self_attn.*\", \"re:.*shared_experts.*\","
                          " \"re:.*mlp\\\\.(gate|up|gate_up|down)_proj.*\"]}}",
                          NULL);
    assert_true(c.packed_names);
    assert_int_equal(c.expert_quant, PZ_QUANT_MXFP4);
    assert_int_equal(c.linear_quant, PZ_QUANT_NONE);
    /* targets by name */
    c = good("{\"quantization_config\": {\"quant_method\": \"compressed-tensors\","
             " \"format\": \"mxfp4-pack-quantized\", \"config_groups\": {\"a\": {\"targets\": [\"re:.*experts\\\\.\"]},"
             " \"b\": {\"targets\": [\"lm_head\"]}}, \"ignore\": [\"re:.*shared_experts.*\"]}}",
             NULL);
    assert_true(is_quantized(&c, PZ_ROLE_EXPERTS_DOWN, 1) && is_quantized(&c, PZ_ROLE_LM_HEAD, 0));
    assert_false(is_quantized(&c, PZ_ROLE_SHARED_DOWN, 1) || is_quantized(&c, PZ_ROLE_O_PROJ, 1));
}

static void test_fp8_exceptions(void **state) {
    (void)state;
    pz_hf_config c =
        good("{\"quantization_config\": {\"quant_method\": \"fp8\","
             " \"modules_to_not_convert\": [\"re:.*self_attn.*\", \"re:.*shared.*\", \"re:.*[0-9].mlp.[gud].*\"]}}",
             NULL);
    assert_int_equal(c.expert_quant, PZ_QUANT_FP8);
    assert_int_equal(c.linear_quant, PZ_QUANT_NONE);
}

static void test_bad_quantization(void **state) {
    (void)state;
    static const struct {
        const char *quantization;
        pz_status status;
        const char *texts[2];
    } cases[] = {
        {"{}", PZ_E_FORMAT, {"quant_method", "missing"}},
        {"{\"quant_method\": \"gptq\"}", PZ_E_UNSUPPORTED, {"gptq", "quark (fp4"}},
        {"{\"quant_method\": \"quark\"}", PZ_E_FORMAT, {"global_quant_config.weight", "missing"}},
        {"{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {}}}", PZ_E_FORMAT, {"dtype", "missing"}},
        {"{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {\"dtype\": \"int4\"}}}",
         PZ_E_UNSUPPORTED,
         {"int4", "fp4"}},
        {"{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {\"dtype\": \"fp4\", \"group_size\": "
         "16}}}",
         PZ_E_UNSUPPORTED,
         {"group_size 16", "32"}},
        {"{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {\"dtype\": \"fp4\","
         " \"qscheme\": \"per_channel\"}}}",
         PZ_E_UNSUPPORTED,
         {"per_channel", "per_group"}},
        {"{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {\"dtype\": \"fp4\","
         " \"scale_format\": \"e4m3\"}}}",
         PZ_E_UNSUPPORTED,
         {"e4m3", "e8m0"}},
        {"{\"quant_method\": \"quark\", " QUARK_WEIGHT ", \"layer_quant_config\": {\"a\": {}}}",
         PZ_E_UNSUPPORTED,
         {"layer_quant_config", "exclude"}},
        {"{\"quant_method\": \"quark\", " QUARK_WEIGHT ", \"exclude\": {}}", PZ_E_FORMAT, {"exclude", "an array"}},
        {"{\"quant_method\": \"quark\", " QUARK_WEIGHT ", \"exclude\": [3]}", PZ_E_FORMAT, {"entry 0", "string"}},
        {"{\"quant_method\": \"quark\", " QUARK_WEIGHT ", \"exclude\": [\"re:(\"]}", PZ_E_FORMAT, {"bad regular", "("}},
        {"{\"quant_method\": \"quark\", " QUARK_WEIGHT ", \"exclude\": [\"re:(.*.*.*.*.*)*(.*.*.*)*x$\"]}",
         PZ_E_FORMAT,
         {"expensive", "regular expression"}},
        {"{\"quant_method\": \"quark\", " QUARK_WEIGHT ", \"exclude\": [\"re:.*q_a_proj\"]}",
         PZ_E_UNSUPPORTED,
         {"q_a_proj", "kv_a_proj_with_mqa"}},
        {"{\"quant_method\": \"compressed-tensors\"}", PZ_E_FORMAT, {"format", "missing"}},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}",
         PZ_E_UNSUPPORTED,
         {"pack-quantized", "mxfp4-pack-quantized"}},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp4-pack-quantized\", \"config_groups\": {\"g\":"
         " {\"format\": \"nvfp4\"}}}",
         PZ_E_UNSUPPORTED,
         {"nvfp4", "mxfp4-pack-quantized"}},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp4-pack-quantized\", \"config_groups\": {\"g\":"
         " {\"weights\": {\"num_bits\": 8}}}}",
         PZ_E_UNSUPPORTED,
         {"num_bits 8", "4"}},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp4-pack-quantized\", \"config_groups\": {\"g\": "
         "3}}",
         PZ_E_FORMAT,
         {"object", "format"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char patch[1024];
        snprintf(patch, sizeof patch, "{\"quantization_config\": %s}", cases[i].quantization);
        bad_case one = {patch, cases[i].status, {cases[i].texts[0], cases[i].texts[1]}};
        check_bad(&one, 1);
    }
    json_t *obj = json(v3_text), *q = json("{\"quant_method\": \"quark\", " QUARK_WEIGHT ", \"exclude\": []}");
    for (int i = 0; i < 300; i++) json_array_append_new(json_object_get(q, "exclude"), json_string("re:x"));
    json_object_set_new(obj, "quantization_config", q);
    pz_hf_config c;
    pz_error err;
    assert_fails(parse_object(obj, &c, &err), PZ_E_FORMAT, &err, "more than 256 patterns");
    json_decref(obj);
}

/* ---- memory ---- */
static pz_status parse_built_in(void *ctx) {
    (void)ctx;
    pz_hf_config c;
    pz_error err;
    return pz_hf_config_load(PZ_SOURCE_DIR "/models/kimi-tiny", &c, &err);
}

static void test_no_memory(void **state) {
    (void)state;
    assert_true(support_alloc_sweep(parse_built_in, NULL) >= 8);
    support_alloc_sweep_json(parse_built_in, NULL);
}

/* End tokens that only generation_config.json names count too. */
static void test_generation_config(void **state) {
    (void)state;
    pz_error err;
    pz_hf_config c;
    char *dir = support_tmp_dir(), *text;
    size_t size;
    assert_ok(pz_file_read(PZ_SOURCE_DIR "/models/kimi-tiny/config.json", &text, &size, &err), &err);
    char *config = support_path(dir, "config.json"), *generation = support_path(dir, "generation_config.json");
    assert_ok(pz_file_write(config, text, size, &err), &err);
    const struct {
        const char *text;
        int n;
        int64_t second;
    } cases[] = {{"{}", 1, 0}, {"{\"eos_token_id\": 1}", 1, 0}, {"{\"eos_token_id\": [1, 2]}", 2, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(pz_file_write(generation, cases[i].text, strlen(cases[i].text), &err), &err);
        assert_ok(pz_hf_config_load(dir, &c, &err), &err);
        assert_int_equal(c.n_eos, cases[i].n);
        assert_int_equal(c.eos[0], 1);
        if (c.n_eos > 1) assert_int_equal(c.eos[1], cases[i].second);
    }
    assert_ok(pz_file_write(generation, "{\"eos_token_id\": 5000}", 22, &err), &err);
    assert_fails(pz_hf_config_load(dir, &c, &err), PZ_E_FORMAT, &err, "generation_config.json", "5000");
    assert_ok(pz_file_write(generation, "{", 1, &err), &err);
    assert_fails(pz_hf_config_load(dir, &c, &err), PZ_E_FORMAT, &err, "generation_config.json");
    pz_free(text);
    pz_free(config);
    pz_free(generation);
    support_tmp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kimi_k2),
        cmocka_unit_test(test_kimi_k25),
        cmocka_unit_test(test_deepseek_v3),
        cmocka_unit_test(test_kimi_tiny),
        cmocka_unit_test(test_v3_defaults),
        cmocka_unit_test(test_v2),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_moe_layers),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_rope_forms),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_not_a_config),
        cmocka_unit_test(test_quark_exclude),
        cmocka_unit_test(test_compressed_tensors),
        cmocka_unit_test(test_fp8_exceptions),
        cmocka_unit_test(test_bad_quantization),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_generation_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
