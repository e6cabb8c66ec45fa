/* SPDX-License-Identifier: Apache-2.0 */
/* Hugging Face config.json of the DeepSeek-V2/V3 family. Every number is held to a range here, so that no product of
 * sizes can overflow later and no weight has more than 2^48 elements. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "base/file.h"
#include "model/weights.h"

typedef enum family { FAMILY_V2, FAMILY_V3 } family;

/* nested: the language model's configuration is the member text_config. */
static const struct {
    const char *architecture, *model_type;
    family family;
    bool nested;
} architectures[] = {
    {"DeepseekV2ForCausalLM", "deepseek_v2", FAMILY_V2, false},
    {"DeepseekV3ForCausalLM", "deepseek_v3", FAMILY_V3, false},
    {"DeepseekV3ForCausalLM", "kimi_k2", FAMILY_V3, false},
    {"KimiK25ForConditionalGeneration", "kimi_k25", FAMILY_V3, true},
};
enum { N_ARCHITECTURES = sizeof architectures / sizeof *architectures };

static pz_status unsupported_architecture(const char *name, const char *where, pz_error *err) {
    pz_str list = {0};
    for (int i = 0; i < N_ARCHITECTURES; i++)
        pz_str_addf(&list, "%s%s (%s)", i ? ", " : "", architectures[i].architecture, architectures[i].model_type);
    char *text;
    PZ_TRY(pz_str_take(&list, &text, err));
    pz_status st =
        pz_fail(err, PZ_E_UNSUPPORTED, "%s: architecture \"%.60s\" is not supported; supported: %s", where, name, text);
    pz_free(text);
    return st;
}

/* By `architectures`, else by `model_type`. */
static pz_status find_architecture(const json_t *root, int *index, const char *where, pz_error *err) {
    const json_t *list;
    const char *type = NULL;
    PZ_TRY(pz_json_get_node(root, "architectures", JSON_ARRAY, &list, where, err));
    PZ_TRY(pz_json_get_str(root, "model_type", false, &type, where, err));
    const char *name = json_string_value(json_array_get(list, 0));
    if (list && json_array_size(list) && !name)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"architectures\" must hold strings", where);
    if (!name && !type) return pz_fail(err, PZ_E_FORMAT, "%s: neither \"architectures\" nor \"model_type\"", where);
    for (int i = 0; i < N_ARCHITECTURES; i++) {
        if (strcmp(name ? architectures[i].architecture : architectures[i].model_type, name ? name : type) == 0) {
            *index = i;
            return PZ_OK;
        }
    }
    return unsupported_architecture(name ? name : type, where, err);
}

/* ---- numbers ---- */
typedef struct int_field {
    const char *key;
    size_t offset;
    bool required;
    int64_t lo, hi;
} int_field;
#define INT(key, member, required, lo, hi) \
    { key, offsetof(pz_hf_config, member), required, lo, hi }

static const int_field sizes[] = {
    INT("vocab_size", vocab, true, 1, 1 << 24),
    INT("hidden_size", hidden, true, 1, 1 << 17),
    INT("num_hidden_layers", layers, true, 1, PZ_MAX_LAYERS),
    INT("num_attention_heads", heads, true, 1, 1 << 12),
    INT("intermediate_size", intermediate, true, 1, 1 << 20),
    INT("q_lora_rank", q_lora, false, 1, 1 << 16),
    INT("kv_lora_rank", kv_lora, true, 1, 1 << 16),
    INT("qk_nope_head_dim", nope, true, 1, 1 << 12),
    INT("qk_rope_head_dim", rope, true, 2, 1 << 12),
    INT("v_head_dim", v, true, 1, 1 << 12),
    INT("max_position_embeddings", max_positions, true, 1, 1 << 30),
    INT("n_routed_experts", experts, false, 0, 1 << 12),
    INT("bos_token_id", bos, false, 0, 1 << 24),
};

static const int_field moe_sizes[] = {
    INT("moe_intermediate_size", moe_intermediate, true, 1, 1 << 18),
    INT("n_shared_experts", shared_experts, false, 0, 1 << 6),
    INT("num_experts_per_tok", top_k, true, 1, 1 << 14),
    INT("n_group", n_group, false, 1, 1 << 14),
    INT("topk_group", topk_group, false, 1, 1 << 14),
    INT("first_k_dense_replace", first_dense, false, 0, 1 << 14),
    INT("moe_layer_freq", moe_freq, false, 1, 1 << 14),
};

static pz_status read_ints(const json_t *obj, const int_field *fields, size_t n, pz_hf_config *c, const char *where,
                           pz_error *err) {
    for (size_t i = 0; i < n; i++)
        PZ_TRY(pz_json_get_int(obj, fields[i].key, fields[i].required, fields[i].lo, fields[i].hi,
                               (int64_t *)((char *)c + fields[i].offset), where, err));
    return PZ_OK;
}

/* An absent member keeps *out. */
static pz_status read_real(const json_t *obj, const char *key, bool required, double lo, double hi, double *out,
                           const char *where, pz_error *err) {
    double v = NAN;
    PZ_TRY(pz_json_get_double(obj, key, required, &v, where, err));
    if (isnan(v)) return PZ_OK;
    if (v < lo || v > hi)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"%s\" is %g, expected a number from %g to %g", where, key, v, lo, hi);
    *out = v;
    return PZ_OK;
}

/* Features that change the computation and that the graph has no ops for. */
static pz_status check_features(const json_t *obj, pz_hf_config *c, const char *where, pz_error *err) {
    static const char *const biases[] = {"attention_bias", "mlp_bias"};
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) {
        bool bias = false;
        PZ_TRY(pz_json_get_bool(obj, biases[i], false, &bias, where, err));
        if (bias)
            return pz_fail(err, PZ_E_UNSUPPORTED, "%s: \"%s\" true is not supported; supported: false", where,
                           biases[i]);
    }
    const char *act = "silu";
    PZ_TRY(pz_json_get_str(obj, "hidden_act", false, &act, where, err));
    if (strcmp(act, "silu") != 0)
        return pz_fail(err, PZ_E_UNSUPPORTED, "%s: \"hidden_act\" \"%.60s\" is not supported; supported: silu", where,
                       act);
    PZ_TRY(pz_json_get_bool(obj, "rope_interleave", false, &c->rope_interleave, where, err));
    if (!c->rope_interleave)
        return pz_fail(err, PZ_E_UNSUPPORTED, "%s: \"rope_interleave\" false is not supported; supported: true", where);
    return pz_json_get_bool(obj, "tie_word_embeddings", false, &c->tied, where, err);
}

static pz_status check_token(const char *key, int64_t id, const pz_hf_config *c, const char *where, pz_error *err) {
    if (id == -1 || (id >= 0 && id < c->vocab)) return PZ_OK;
    return pz_fail(err, PZ_E_FORMAT, "%s: \"%s\" is %" PRId64 ", expected a token below vocab_size %" PRId64, where,
                   key, id, c->vocab);
}

static pz_status add_eos(const json_t *v, pz_hf_config *c, const char *where, pz_error *err) {
    if (!json_is_integer(v))
        return pz_fail(err, PZ_E_FORMAT, "%s: \"eos_token_id\" must be an integer or a list of integers", where);
    int64_t id = json_integer_value(v);
    PZ_TRY(check_token("eos_token_id", id, c, where, err));
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return PZ_OK;
    if (id == -1) return PZ_OK;
    if (c->n_eos == PZ_MAX_EOS)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"eos_token_id\" has more than %d tokens", where, PZ_MAX_EOS);
    c->eos[c->n_eos++] = id;
    return PZ_OK;
}

/* eos_token_id is a number or a list. */
static pz_status read_eos(const json_t *obj, pz_hf_config *c, const char *where, pz_error *err) {
    const json_t *v = json_object_get(obj, "eos_token_id");
    if (!v || json_is_null(v)) return PZ_OK;
    if (!json_is_array(v)) return add_eos(v, c, where, err);
    for (size_t i = 0; i < json_array_size(v); i++) PZ_TRY(add_eos(json_array_get(v, i), c, where, err));
    return PZ_OK;
}

/* ---- experts ---- */
static pz_status read_choice(const json_t *obj, const char *key, const char *const *words, int n, int *index,
                             const char *where, pz_error *err) {
    const char *have = words[*index];
    PZ_TRY(pz_json_get_str(obj, key, false, &have, where, err));
    pz_str list = {0};
    for (int i = 0; i < n; i++) {
        if (strcmp(have, words[i]) == 0) {
            *index = i;
            pz_str_free(&list);
            return PZ_OK;
        }
        pz_str_addf(&list, "%s%s", i ? ", " : "", words[i]);
    }
    char *text;
    PZ_TRY(pz_str_take(&list, &text, err));
    pz_status st =
        pz_fail(err, PZ_E_UNSUPPORTED, "%s: \"%s\" \"%.60s\" is not supported; supported: %s", where, key, have, text);
    pz_free(text);
    return st;
}

static pz_status check_groups(const pz_hf_config *c, const char *where, pz_error *err) {
    if (c->top_k > c->experts)
        return pz_fail(err, PZ_E_FORMAT,
                       "%s: \"num_experts_per_tok\" is %" PRId64 ", expected at most n_routed_experts %" PRId64, where,
                       c->top_k, c->experts);
    if (c->experts % c->n_group)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"n_group\" %" PRId64 " does not divide n_routed_experts %" PRId64, where,
                       c->n_group, c->experts);
    if (c->topk_group > c->n_group)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"topk_group\" is %" PRId64 ", expected at most n_group %" PRId64, where,
                       c->topk_group, c->n_group);
    int64_t size = c->experts / c->n_group;
    if (c->n_group > 1 && size < c->group_top)
        return pz_fail(err, PZ_E_FORMAT,
                       "%s: groups of %" PRId64 " experts, expected at least the %d whose scores make a group's", where,
                       size, c->group_top);
    if (c->top_k > c->topk_group * size)
        return pz_fail(err, PZ_E_FORMAT,
                       "%s: \"num_experts_per_tok\" is %" PRId64 ", but topk_group %" PRId64 " groups hold %" PRId64
                       " experts",
                       where, c->top_k, c->topk_group, c->topk_group * size);
    return PZ_OK;
}

static pz_status read_moe(const json_t *obj, family fam, pz_hf_config *c, const char *where, pz_error *err) {
    static const char *const scorings[] = {"sigmoid", "softmax"};
    static const char *const methods[] = {"greedy", "group_limited_greedy", "noaux_tc"};
    enum { GREEDY, GROUP_LIMITED, NOAUX };
    int scoring = fam == FAMILY_V2, method = fam == FAMILY_V2 ? GREEDY : NOAUX;
    PZ_TRY(read_ints(obj, moe_sizes, sizeof moe_sizes / sizeof *moe_sizes, c, where, err));
    PZ_TRY(read_choice(obj, "scoring_func", scorings, 2, &scoring, where, err));
    PZ_TRY(read_choice(obj, "topk_method", methods, 3, &method, where, err));
    c->scoring = scoring ? PZ_SCORING_SOFTMAX : PZ_SCORING_SIGMOID;
    c->correction_bias = method == NOAUX;
    c->group_top = method == GROUP_LIMITED ? 1 : 2;
    if (method == GREEDY) c->n_group = c->topk_group = 1;
    c->norm_topk = fam == FAMILY_V3;
    PZ_TRY(pz_json_get_bool(obj, "norm_topk_prob", false, &c->norm_topk, where, err));
    c->routed_scale = fam == FAMILY_V3 ? 2.5 : 1.0;
    PZ_TRY(read_real(obj, "routed_scaling_factor", false, 1e-6, 1e6, &c->routed_scale, where, err));
    return check_groups(c, where, err);
}

/* ---- rope ---- */
static pz_status read_yarn(const json_t *obj, pz_hf_config *c, const char *where, pz_error *err) {
    c->yarn = true;
    c->yarn_original = c->max_positions;
    PZ_TRY(pz_json_get_int(obj, "original_max_position_embeddings", false, 1, 1 << 30, &c->yarn_original, where, err));
    c->yarn_factor = fmax(1.0, (double)c->max_positions / (double)c->yarn_original);
    PZ_TRY(read_real(obj, "factor", false, 1, 1e6, &c->yarn_factor, where, err));
    PZ_TRY(read_real(obj, "beta_fast", false, 1e-3, 1e6, &c->yarn_beta_fast, where, err));
    PZ_TRY(read_real(obj, "beta_slow", false, 1e-3, 1e6, &c->yarn_beta_slow, where, err));
    PZ_TRY(read_real(obj, "mscale", false, 0, 100, &c->yarn_mscale, where, err));
    PZ_TRY(read_real(obj, "attention_factor", false, 1e-3, 1e3, &c->yarn_attention_factor, where, err));
    PZ_TRY(pz_json_get_bool(obj, "truncate", false, &c->yarn_truncate, where, err));
    if (c->yarn_beta_fast < c->yarn_beta_slow)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"beta_fast\" is %g, expected at least beta_slow %g", where,
                       c->yarn_beta_fast, c->yarn_beta_slow);
    return PZ_OK;
}

/* Today's rope_parameters holds rope_theta too; before, rope_theta stood beside rope_scaling. */
static pz_status read_rope(const json_t *obj, pz_hf_config *c, const char *where, pz_error *err) {
    const json_t *rope;
    const char *type = NULL;
    PZ_TRY(read_real(obj, "rope_theta", false, 1.001, 1e12, &c->rope_theta, where, err));
    PZ_TRY(pz_json_get_node(obj, "rope_parameters", JSON_OBJECT, &rope, where, err));
    if (!rope) PZ_TRY(pz_json_get_node(obj, "rope_scaling", JSON_OBJECT, &rope, where, err));
    if (!rope) return PZ_OK;
    PZ_TRY(read_real(rope, "rope_theta", false, 1.001, 1e12, &c->rope_theta, where, err));
    PZ_TRY(pz_json_get_str(rope, "type", false, &type, where, err));
    PZ_TRY(pz_json_get_str(rope, "rope_type", false, &type, where, err));
    if (!type || strcmp(type, "default") == 0) return PZ_OK;
    PZ_TRY(read_real(rope, "mscale_all_dim", false, 0, 100, &c->yarn_mscale_all_dim, where, err));
    if (strcmp(type, "yarn") == 0) return read_yarn(rope, c, where, err);
    if (strcmp(type, "linear") != 0)
        return pz_fail(err, PZ_E_UNSUPPORTED,
                       "%s: rope type \"%.60s\" is not supported; supported: default, linear, yarn", where, type);
    return read_real(rope, "factor", true, 1, 1e6, &c->rope_linear, where, err);
}

/* ---- the whole ---- */
static pz_status read_config(const json_t *root, pz_hf_config *c, const char *where, pz_error *err) {
    const json_t *obj = root, *quantization;
    int index = 0;
    if (!json_is_object(root)) return pz_fail(err, PZ_E_FORMAT, "%s: expected a JSON object", where);
    PZ_TRY(find_architecture(root, &index, where, err));
    family fam = architectures[index].family;
    if (architectures[index].nested) {
        PZ_TRY(pz_json_get_node(root, "text_config", JSON_OBJECT, &obj, where, err));
        if (!obj) return pz_fail(err, PZ_E_FORMAT, "%s: \"text_config\" is missing, expected an object", where);
        snprintf(c->prefix, sizeof c->prefix, "language_model.");
    }
    const char *type = architectures[index].model_type;
    PZ_TRY(pz_json_get_str(obj, "model_type", false, &type, where, err));
    snprintf(c->model_type, sizeof c->model_type, "%.31s", type);
    PZ_TRY(read_ints(obj, sizes, sizeof sizes / sizeof *sizes, c, where, err));
    if (c->rope % 2)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"qk_rope_head_dim\" is %" PRId64 ", expected an even number", where,
                       c->rope);
    PZ_TRY(read_real(obj, "rms_norm_eps", false, 1e-30, 1, &c->eps, where, err));
    PZ_TRY(check_features(obj, c, where, err));
    PZ_TRY(read_eos(obj, c, where, err));
    if (!c->n_eos) PZ_TRY(read_eos(root, c, where, err));
    PZ_TRY(check_token("bos_token_id", c->bos, c, where, err));
    PZ_TRY(read_rope(obj, c, where, err));
    if (c->experts) PZ_TRY(read_moe(obj, fam, c, where, err));
    PZ_TRY(pz_json_get_node(root, "quantization_config", JSON_OBJECT, &quantization, where, err));
    if (!quantization) PZ_TRY(pz_json_get_node(obj, "quantization_config", JSON_OBJECT, &quantization, where, err));
    return quantization ? pz_quant_configure(c, quantization, where, err) : PZ_OK;
}

pz_status pz_hf_config_parse(const char *text, size_t size, const char *where, pz_hf_config *out, pz_error *err) {
    *out = (pz_hf_config){
        .n_group = 1,
        .topk_group = 1,
        .moe_freq = 1,
        .group_top = 2,
        .rope_interleave = true,
        .routed_scale = 1,
        .eps = 1e-6,
        .rope_theta = 10000,
        .yarn_factor = 1,
        .yarn_beta_fast = 32,
        .yarn_beta_slow = 1,
        .yarn_truncate = true,
        .rope_linear = 1,
        .bos = -1,
    };
    json_t *root;
    PZ_TRY(pz_json_parse(text, size, where, &root, err));
    pz_status st = read_config(root, out, where, err);
    json_decref(root);
    return st;
}

/* Models whose generation ends on more tokens than config.json names say so in a file of its own. */
static pz_status load_generation(const char *dir, pz_hf_config *c, pz_error *err) {
    char *path = pz_path_join(dir, "generation_config.json");
    if (!path) return PZ_NOMEM(err);
    json_t *root = NULL;
    pz_status st = PZ_OK;
    if (pz_file_exists(path)) st = pz_json_load(path, &root, err);
    if (root) st = read_eos(root, c, path, err);
    json_decref(root);
    pz_free(path);
    return st;
}

pz_status pz_hf_config_load(const char *dir, pz_hf_config *out, pz_error *err) {
    char *path = pz_path_join(dir, "config.json"), *text = NULL;
    if (!path) return PZ_NOMEM(err);
    size_t size;
    pz_status st = pz_file_read(path, &text, &size, err);
    if (st == PZ_OK) st = pz_hf_config_parse(text, size, path, out, err);
    if (st == PZ_OK) st = load_generation(dir, out, err);
    pz_free(text);
    pz_free(path);
    return st;
}
