/* SPDX-License-Identifier: Apache-2.0 */
/* Reading tokenizer.json: pre-tokenizer, normalizer, post-processor, decoder. What is not supported is named. */
#include "base/json.h"
#include "model/tokenizer.h"

/* Nested sequences in a hostile file must not exhaust the stack. */
enum { MAX_DEPTH = 8 };

static pz_status type_of(const json_t *node, const char *what, const char *where, const char **type, pz_error *err) {
    if (!json_is_object(node)) return pz_fail(err, PZ_E_FORMAT, "%s: a %s is not an object", where, what);
    return pz_json_get_str(node, "type", true, type, where, err);
}

static pz_status not_supported(const char *what, const char *type, const char *have, const char *where, pz_error *err) {
    return pz_fail(err, PZ_E_UNSUPPORTED, "%s: %s %.40s is not supported, only %s", where, what, type, have);
}

static pz_status add_step(pz_tokenizer *t, const char *pattern, size_t size, bool literal, pz_tok_behavior behavior,
                          bool invert, const char *where, pz_error *err) {
    if (t->steps.n == PZ_TOK_MAX_STEPS)
        return pz_fail(err, PZ_E_FORMAT, "%s: the pre-tokenizer has more than %d steps", where, PZ_TOK_MAX_STEPS);
    PZ_TRY(pz_push(&t->steps, ((pz_tok_step){.behavior = behavior, .invert = invert}), err));
    return pz_tok_compile(t, pattern, size, literal, where, &t->steps.at[t->steps.n - 1].code, err);
}

static pz_status load_behavior(const json_t *node, const char *where, pz_tok_behavior *out, pz_error *err) {
    static const char *const names[] = {
        [PZ_TOK_ISOLATED] = "Isolated",
        [PZ_TOK_REMOVED] = "Removed",
        [PZ_TOK_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [PZ_TOK_MERGED_WITH_NEXT] = "MergedWithNext",
        [PZ_TOK_CONTIGUOUS] = "Contiguous",
    };
    const char *text = NULL;
    PZ_TRY(pz_json_get_str(node, "behavior", true, &text, where, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], text) == 0) {
            *out = (pz_tok_behavior)i;
            return PZ_OK;
        }
    return pz_fail(err, PZ_E_FORMAT,
                   "%s: Split behavior \"%.40s\", expected Isolated, Removed, MergedWithPrevious, MergedWithNext or "
                   "Contiguous",
                   where, text);
}

static pz_status load_split(pz_tokenizer *t, const json_t *node, const char *where, pz_error *err) {
    const json_t *pattern = NULL;
    const char *text = NULL;
    bool invert = false;
    pz_tok_behavior behavior = PZ_TOK_ISOLATED;
    PZ_TRY(pz_json_get_node(node, "pattern", JSON_OBJECT, &pattern, where, err));
    PZ_TRY(pz_json_get_bool(node, "invert", false, &invert, where, err));
    PZ_TRY(load_behavior(node, where, &behavior, err));
    if (!pattern)
        return pz_fail(err, PZ_E_FORMAT, "%s: a Split has no pattern, expected {\"Regex\": ...} or {\"String\": ...}",
                       where);
    bool literal = json_object_get(pattern, "String") != NULL;
    PZ_TRY(pz_json_get_str(pattern, literal ? "String" : "Regex", true, &text, where, err));
    return add_step(t, text, strlen(text), literal, behavior, invert, where, err);
}

static pz_status load_byte_level(pz_tokenizer *t, const json_t *node, const char *where, pz_error *err) {
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    bool use_regex = true;
    t->byte_level = t->prefix_space = true;
    PZ_TRY(pz_json_get_bool(node, "add_prefix_space", false, &t->prefix_space, where, err));
    PZ_TRY(pz_json_get_bool(node, "use_regex", false, &use_regex, where, err));
    return use_regex ? pz_tok_compile(t, gpt2, strlen(gpt2), false, where, &t->byte_level_split, err) : PZ_OK;
}

static pz_status load_pre_tokenizer(pz_tokenizer *t, const json_t *node, int depth, const char *where, pz_error *err) {
    const char *type = NULL;
    PZ_TRY(type_of(node, "pre_tokenizer", where, &type, err));
    if (t->byte_level)
        return pz_fail(err, PZ_E_UNSUPPORTED, "%s: pre_tokenizer %.40s after ByteLevel is not supported", where, type);
    if (strcmp(type, "Split") == 0) return load_split(t, node, where, err);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(t, node, where, err);
    if (strcmp(type, "Digits") == 0) {
        bool each = false;
        PZ_TRY(pz_json_get_bool(node, "individual_digits", false, &each, where, err));
        return add_step(t, "\\p{N}", 5, false, each ? PZ_TOK_ISOLATED : PZ_TOK_CONTIGUOUS, false, where, err);
    }
    if (strcmp(type, "Sequence") != 0)
        return not_supported("pre_tokenizer", type, "Sequence, Split, ByteLevel and Digits are", where, err);
    const json_t *list;
    json_t *item;
    size_t i;
    PZ_TRY(pz_json_get_node(node, "pretokenizers", JSON_ARRAY, &list, where, err));
    if (!list) return pz_fail(err, PZ_E_FORMAT, "%s: a Sequence has no \"pretokenizers\"", where);
    if (depth == MAX_DEPTH) return pz_fail(err, PZ_E_FORMAT, "%s: Sequences nested more than %d deep", where, depth);
    json_array_foreach(list, i, item) PZ_TRY(load_pre_tokenizer(t, item, depth + 1, where, err));
    return PZ_OK;
}

/* ---- post-processor: only the begin token is of interest here ---- */
static pz_status template_token(pz_tokenizer *t, const json_t *node, const json_t *item, const char *where,
                                pz_error *err) {
    const json_t *tokens, *token, *ids;
    const char *id = NULL;
    PZ_TRY(pz_json_get_str(item, "id", true, &id, where, err));
    PZ_TRY(pz_json_get_node(node, "special_tokens", JSON_OBJECT, &tokens, where, err));
    token = json_object_get(tokens, id);
    ids = json_object_get(token, "ids");
    const json_t *first = json_array_get(ids, 0);
    if (json_array_size(ids) != 1 || !json_is_integer(first) || json_integer_value(first) < 0 ||
        json_integer_value(first) >= t->n_ids)
        return pz_fail(err, PZ_E_FORMAT, "%s: special token \"%.80s\" of TemplateProcessing has not one known id",
                       where, id);
    t->bos = (int32_t)json_integer_value(first);
    t->add_bos = true;
    return PZ_OK;
}

static pz_status load_template(pz_tokenizer *t, const json_t *node, const char *where, pz_error *err) {
    const json_t *single;
    PZ_TRY(pz_json_get_node(node, "single", JSON_ARRAY, &single, where, err));
    json_t *item;
    size_t i;
    bool text = false;
    json_array_foreach(single, i, item) {
        const json_t *special = json_object_get(item, "SpecialToken");
        if (special && (text || t->add_bos))
            return pz_fail(err, PZ_E_UNSUPPORTED,
                           "%s: TemplateProcessing adds more than one token before the text, which is not supported",
                           where);
        if (special) PZ_TRY(template_token(t, node, special, where, err));
        text = text || json_object_get(item, "Sequence");
    }
    return PZ_OK;
}

static pz_status load_post_processor(pz_tokenizer *t, const json_t *node, int depth, const char *where, pz_error *err) {
    const char *type = NULL;
    PZ_TRY(type_of(node, "post_processor", where, &type, err));
    if (strcmp(type, "ByteLevel") == 0) return PZ_OK; /* trims offsets, which nobody asks for here */
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, node, where, err);
    if (strcmp(type, "Sequence") != 0)
        return not_supported("post_processor", type, "Sequence, TemplateProcessing and ByteLevel are", where, err);
    const json_t *list;
    json_t *item;
    size_t i;
    PZ_TRY(pz_json_get_node(node, "processors", JSON_ARRAY, &list, where, err));
    if (depth == MAX_DEPTH) return pz_fail(err, PZ_E_FORMAT, "%s: Sequences nested more than %d deep", where, depth);
    json_array_foreach(list, i, item) PZ_TRY(load_post_processor(t, item, depth + 1, where, err));
    return PZ_OK;
}

/* ---- the rest ---- */
static pz_status check_normalizer(const json_t *node, const char *where, pz_error *err) {
    if (!node || json_is_null(node)) return PZ_OK;
    const char *type = NULL;
    PZ_TRY(type_of(node, "normalizer", where, &type, err));
    const json_t *list = json_object_get(node, "normalizers");
    if (strcmp(type, "Sequence") == 0 && json_is_array(list)) {
        if (json_array_size(list) == 0) return PZ_OK;
        PZ_TRY(type_of(json_array_get(list, 0), "normalizer", where, &type, err));
    }
    return not_supported("normalizer", type, "null is", where, err);
}

static pz_status check_decoder(const json_t *node, const char *where, pz_error *err) {
    const char *type = "null";
    if (node && !json_is_null(node)) PZ_TRY(type_of(node, "decoder", where, &type, err));
    return strcmp(type, "ByteLevel") == 0 ? PZ_OK : not_supported("decoder", type, "ByteLevel is", where, err);
}

pz_status pz_tok_load_steps(pz_tokenizer *t, const json_t *root, const char *where, pz_error *err) {
    const json_t *pre = json_object_get(root, "pre_tokenizer"), *post = json_object_get(root, "post_processor");
    PZ_TRY(check_normalizer(json_object_get(root, "normalizer"), where, err));
    if (pre && !json_is_null(pre)) PZ_TRY(load_pre_tokenizer(t, pre, 0, where, err));
    PZ_TRY(check_decoder(json_object_get(root, "decoder"), where, err));
    return post && !json_is_null(post) ? load_post_processor(t, post, 0, where, err) : PZ_OK;
}
