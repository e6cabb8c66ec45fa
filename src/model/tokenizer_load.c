/* SPDX-License-Identifier: Apache-2.0 */
/* Reading tokenizer.json: vocabulary, merges, added tokens; and tokenizer_config.json: the begin token. */
#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "model/tokenizer.h"

static size_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

int32_t pz_tok_find(const pz_tokenizer *t, const char *text, size_t size) {
    size_t mask = t->lookup_size - 1;
    for (size_t i = hash_bytes(text, size) & mask; t->lookup[i] >= 0; i = (i + 1) & mask) {
        const pz_tok_word *w = &t->words[t->lookup[i]];
        if (w->size == size && memcmp(w->text, text, size) == 0) return t->lookup[i];
    }
    return -1;
}

int32_t pz_tok_find_any(const pz_tokenizer *t, const char *text) {
    for (int i = 0; i < t->added.n; i++)
        if (strcmp(t->added.at[i].text, text) == 0) return t->added.at[i].id;
    return pz_tok_find(t, text, strlen(text));
}

/* A power of two with at least as many empty places as full ones. */
static size_t hash_places(size_t n) {
    size_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

/* ---- vocabulary ---- */
static pz_status set_word(pz_tokenizer *t, int64_t id, const char *text, size_t size, pz_tok_word **out,
                          pz_error *err) {
    pz_tok_word *w = &t->words[id];
    w->text = pz_arena_strndup(&t->arena, text, size);
    if (!w->text) return PZ_NOMEM(err);
    w->size = (uint32_t)size;
    *out = w;
    return PZ_OK;
}

static pz_status read_id(const json_t *v, const char *text, const char *where, int64_t *id, pz_error *err) {
    *id = json_is_integer(v) ? json_integer_value(v) : -1;
    if (*id >= 0 && *id < PZ_TOK_MAX_ID) return PZ_OK;
    return pz_fail(err, PZ_E_FORMAT, "%s: token \"%.80s\" has no valid id, expected an integer from 0 to %d", where,
                   text, PZ_TOK_MAX_ID - 1);
}

/* Ids may leave gaps, so the table is as long as the largest of them. */
static pz_status size_table(pz_tokenizer *t, const json_t *vocab, const json_t *added, const char *where,
                            pz_error *err) {
    int64_t max = -1, id;
    const char *text;
    json_t *v;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, v) {
        PZ_TRY(read_id(v, text, where, &id, err));
        if (id > max) max = id;
    }
    json_array_foreach(added, i, v) {
        const char *content = "";
        PZ_TRY(pz_json_get_str(v, "content", true, &content, where, err));
        PZ_TRY(read_id(json_object_get(v, "id"), content, where, &id, err));
        if (id > max) max = id;
    }
    t->n_ids = (int)(max + 1);
    t->words = pz_calloc((size_t)t->n_ids, sizeof *t->words);
    return t->words ? PZ_OK : PZ_NOMEM(err);
}

static pz_status load_vocab(pz_tokenizer *t, const json_t *vocab, const char *where, pz_error *err) {
    t->lookup_size = hash_places(json_object_size(vocab));
    t->lookup = pz_calloc(t->lookup_size, sizeof *t->lookup);
    if (!t->lookup) return PZ_NOMEM(err);
    memset(t->lookup, 0xff, t->lookup_size * sizeof *t->lookup);
    const char *text;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, v) {
        int64_t id = json_integer_value(v);
        pz_tok_word *w = NULL;
        if (t->words[id].text)
            return pz_fail(err, PZ_E_FORMAT, "%s: tokens \"%.80s\" and \"%.80s\" have the same id %d", where,
                           t->words[id].text, text, (int)id);
        PZ_TRY(set_word(t, id, text, strlen(text), &w, err));
        size_t i = hash_bytes(text, w->size) & (t->lookup_size - 1);
        while (t->lookup[i] >= 0) i = (i + 1) & (t->lookup_size - 1);
        t->lookup[i] = (int32_t)id;
    }
    return PZ_OK;
}

/* ---- merges ---- */
/* Both forms: "left right" and ["left", "right"]. */
static pz_status split_merge(const json_t *m, size_t index, const char **left, size_t *n_left, const char **right,
                             const char *where, pz_error *err) {
    if (json_is_array(m) && json_array_size(m) == 2 && json_is_string(json_array_get(m, 0)) &&
        json_is_string(json_array_get(m, 1))) {
        *left = json_string_value(json_array_get(m, 0));
        *n_left = strlen(*left);
        *right = json_string_value(json_array_get(m, 1));
        return PZ_OK;
    }
    const char *text = json_string_value(m), *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return pz_fail(err, PZ_E_FORMAT, "%s: merge %zu is not \"left right\" and not [\"left\", \"right\"]", where,
                       index);
    *left = text;
    *n_left = (size_t)(space - text);
    *right = space + 1;
    return PZ_OK;
}

static pz_status find_parts(pz_tokenizer *t, const json_t *m, size_t index, pz_str *joined, pz_tok_merge *out,
                            const char *where, pz_error *err) {
    const char *left = "", *right = "";
    size_t n = 0;
    PZ_TRY(split_merge(m, index, &left, &n, &right, where, err));
    joined->n = 0;
    pz_str_addn(joined, left, n);
    pz_str_add(joined, right);
    if (joined->failed) return PZ_NOMEM(err);
    *out = (pz_tok_merge){.left = pz_tok_find(t, left, n),
                          .right = pz_tok_find(t, right, strlen(right)),
                          .id = pz_tok_find(t, joined->s, joined->n),
                          .rank = (int32_t)index};
    if (out->left >= 0 && out->right >= 0 && out->id >= 0) return PZ_OK;
    return pz_fail(err, PZ_E_FORMAT, "%s: merge %zu: \"%.80s\" is not in the vocabulary", where, index,
                   out->left < 0    ? joined->s
                   : out->right < 0 ? right
                                    : joined->s);
}

static pz_status load_merges(pz_tokenizer *t, const json_t *merges, const char *where, pz_error *err) {
    size_t n = json_array_size(merges);
    if (n > INT32_MAX / 4) return pz_fail(err, PZ_E_FORMAT, "%s: %zu merges are too many", where, n);
    t->merges_size = hash_places(n);
    t->merges = pz_calloc(t->merges_size, sizeof *t->merges);
    if (!t->merges) return PZ_NOMEM(err);
    for (size_t i = 0; i < t->merges_size; i++) t->merges[i].rank = -1;
    pz_str joined = {0};
    pz_status st = PZ_OK;
    for (size_t i = 0; i < n && st == PZ_OK; i++) {
        pz_tok_merge m;
        st = find_parts(t, json_array_get(merges, i), i, &joined, &m, where, err);
        if (st == PZ_OK) *pz_tok_merge_place(t, m.left, m.right) = m; /* of equal pairs the last one counts */
    }
    pz_str_free(&joined);
    return st;
}

/* ---- added tokens ---- */
static int compare_added(const void *pa, const void *pb) {
    const pz_tok_added *a = pa, *b = pb;
    if (a->round != b->round) return a->round - b->round;
    int first = (unsigned char)a->text[0] - (unsigned char)b->text[0];
    if (first) return first;
    return a->size != b->size ? (a->size < b->size ? 1 : -1) : strcmp(a->text, b->text);
}

static pz_status load_added_one(pz_tokenizer *t, const json_t *v, const char *where, pz_error *err) {
    const char *text = NULL;
    int64_t id;
    bool special = false, single = false, lstrip = false, rstrip = false, normalized = false;
    PZ_TRY(pz_json_get_str(v, "content", true, &text, where, err));
    PZ_TRY(read_id(json_object_get(v, "id"), text, where, &id, err));
    PZ_TRY(pz_json_get_bool(v, "special", false, &special, where, err));
    PZ_TRY(pz_json_get_bool(v, "single_word", false, &single, where, err));
    PZ_TRY(pz_json_get_bool(v, "lstrip", false, &lstrip, where, err));
    PZ_TRY(pz_json_get_bool(v, "rstrip", false, &rstrip, where, err));
    PZ_TRY(pz_json_get_bool(v, "normalized", false, &normalized, where, err));
    if (!*text) return pz_fail(err, PZ_E_FORMAT, "%s: added token %d has no content", where, (int)id);
    if (single)
        return pz_fail(err, PZ_E_UNSUPPORTED, "%s: added token \"%.80s\" has single_word, which is not supported",
                       where, text);
    int32_t known = pz_tok_find(t, text, strlen(text));
    pz_tok_word *w = &t->words[id];
    if ((known >= 0 && known != id) || (w->text && strcmp(w->text, text) != 0))
        return pz_fail(err, PZ_E_FORMAT, "%s: added token \"%.80s\" has id %d, but the vocabulary says %s%.80s", where,
                       text, (int)id, w->text ? "that this is " : "another id", w->text ? w->text : "");
    if (!w->text) PZ_TRY(set_word(t, id, text, strlen(text), &w, err));
    w->special = special;
    pz_tok_added a = {.text = w->text,
                      .size = w->size,
                      .id = (int32_t)id,
                      .lstrip = lstrip,
                      .rstrip = rstrip,
                      .round = normalized ? 1 : 0};
    return pz_push(&t->added, a, err);
}

static pz_status load_added(pz_tokenizer *t, const json_t *added, const char *where, pz_error *err) {
    size_t i;
    json_t *v;
    json_array_foreach(added, i, v) PZ_TRY(load_added_one(t, v, where, err));
    if (t->added.n) qsort(t->added.at, (size_t)t->added.n, sizeof *t->added.at, compare_added);
    for (int j = 1; j < t->added.n; j++)
        if (strcmp(t->added.at[j - 1].text, t->added.at[j].text) == 0)
            return pz_fail(err, PZ_E_FORMAT, "%s: added token \"%.80s\" is there twice", where, t->added.at[j].text);
    return PZ_OK;
}

/* ---- the model ---- */
static pz_status unsupported(const char *where, const char *what, pz_error *err) {
    return pz_fail(err, PZ_E_UNSUPPORTED, "%s: %s is not supported", where, what);
}

static pz_status load_flags(pz_tokenizer *t, const json_t *model, const char *where, pz_error *err) {
    const char *type = "BPE", *unk = NULL, *prefix = "", *suffix = "";
    bool byte_fallback = false;
    double dropout = 0;
    PZ_TRY(pz_json_get_str(model, "type", false, &type, where, err));
    if (strcmp(type, "BPE") != 0)
        return pz_fail(err, PZ_E_UNSUPPORTED, "%s: model type %.40s is not supported, only BPE is", where, type);
    PZ_TRY(pz_json_get_bool(model, "byte_fallback", false, &byte_fallback, where, err));
    PZ_TRY(pz_json_get_double(model, "dropout", false, &dropout, where, err));
    PZ_TRY(pz_json_get_str(model, "continuing_subword_prefix", false, &prefix, where, err));
    PZ_TRY(pz_json_get_str(model, "end_of_word_suffix", false, &suffix, where, err));
    if (byte_fallback) return unsupported(where, "model.byte_fallback", err);
    if (dropout != 0) return unsupported(where, "model.dropout", err);
    if (*prefix) return unsupported(where, "model.continuing_subword_prefix", err);
    if (*suffix) return unsupported(where, "model.end_of_word_suffix", err);
    PZ_TRY(pz_json_get_bool(model, "fuse_unk", false, &t->fuse_unk, where, err));
    PZ_TRY(pz_json_get_bool(model, "ignore_merges", false, &t->ignore_merges, where, err));
    PZ_TRY(pz_json_get_str(model, "unk_token", false, &unk, where, err));
    if (unk) t->unk = pz_tok_find(t, unk, strlen(unk));
    if (unk && t->unk < 0)
        return pz_fail(err, PZ_E_FORMAT, "%s: unk_token \"%.80s\" is not in the vocabulary", where, unk);
    return PZ_OK;
}

static pz_status load_root(pz_tokenizer *t, const json_t *root, const char *where, pz_error *err) {
    const json_t *model, *vocab, *merges, *added;
    PZ_TRY(pz_json_get_node(root, "model", JSON_OBJECT, &model, where, err));
    if (!model) return pz_fail(err, PZ_E_FORMAT, "%s: \"model\" is missing, expected an object", where);
    PZ_TRY(pz_json_get_node(model, "vocab", JSON_OBJECT, &vocab, where, err));
    PZ_TRY(pz_json_get_node(model, "merges", JSON_ARRAY, &merges, where, err));
    PZ_TRY(pz_json_get_node(root, "added_tokens", JSON_ARRAY, &added, where, err));
    if (!vocab || json_object_size(vocab) == 0)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"model.vocab\" is missing or empty, expected an object of tokens",
                       where);
    if (!merges) return pz_fail(err, PZ_E_FORMAT, "%s: \"model.merges\" is missing, expected an array", where);
    PZ_TRY(size_table(t, vocab, added, where, err));
    PZ_TRY(load_vocab(t, vocab, where, err));
    PZ_TRY(load_flags(t, model, where, err));
    PZ_TRY(load_merges(t, merges, where, err));
    PZ_TRY(load_added(t, added, where, err));
    return pz_tok_load_steps(t, root, where, err);
}

/* tokenizer_config.json, where it speaks of it, decides on the begin token; else the template of tokenizer.json. */
static pz_status load_config(pz_tokenizer *t, const char *text, size_t size, pz_error *err) {
    const char *where = "tokenizer_config.json";
    json_t *root;
    PZ_TRY(pz_json_parse(text, size, where, &root, err));
    bool add = t->add_bos;
    pz_status st = pz_json_get_bool(root, "add_bos_token", false, &add, where, err);
    const json_t *bos = json_object_get(root, "bos_token");
    if (st == PZ_OK && json_is_object(bos)) {
        const char *content = NULL;
        st = pz_json_get_str(bos, "content", true, &content, where, err);
        if (st == PZ_OK) t->bos = pz_tok_find_any(t, content);
    } else if (st == PZ_OK && json_is_string(bos)) {
        t->bos = pz_tok_find_any(t, json_string_value(bos));
    } else if (st == PZ_OK && bos && !json_is_null(bos)) {
        st = pz_fail(err, PZ_E_FORMAT, "%s: \"bos_token\" is neither a string nor an object", where);
    }
    if (st == PZ_OK && add && t->bos < 0)
        st = pz_fail(err, PZ_E_FORMAT, "%s: add_bos_token is true, but bos_token is missing or no token", where);
    t->add_bos = add;
    json_decref(root);
    return st;
}

pz_status pz_tokenizer_parse(const char *text, size_t size, const char *config_text, size_t config_size,
                             const char *where, pz_tokenizer **out, pz_error *err) {
    *out = NULL;
    json_t *root = NULL;
    pz_tokenizer *t = pz_tok_new();
    if (!t) return PZ_NOMEM(err);
    pz_status st = pz_json_parse(text, size, where, &root, err);
    if (st == PZ_OK) st = load_root(t, root, where, err);
    if (st == PZ_OK && config_text) st = load_config(t, config_text, config_size, err);
    json_decref(root);
    if (st == PZ_OK)
        *out = t;
    else
        pz_tokenizer_close(t);
    return st;
}

/* The file's text, or NULL if it is not there. */
static pz_status read_optional(const char *path, char **text, size_t *size, pz_error *err) {
    *text = NULL;
    *size = 0;
    return pz_file_exists(path) ? pz_file_read(path, text, size, err) : PZ_OK;
}

pz_status pz_tokenizer_open(const char *dir, pz_tokenizer **out, pz_error *err) {
    PZ_NEED(dir && out, "a directory and a place for the tokenizer", err);
    *out = NULL;
    char *path = pz_path_join(dir, "tokenizer.json"), *config_path = pz_path_join(dir, "tokenizer_config.json");
    char *text = NULL, *config = NULL;
    size_t size = 0, config_size = 0;
    pz_status st = path && config_path ? PZ_OK : PZ_NOMEM(err);
    if (st == PZ_OK) st = pz_file_read(path, &text, &size, err);
    if (st == PZ_OK) st = read_optional(config_path, &config, &config_size, err);
    if (st == PZ_OK) st = pz_tokenizer_parse(text, size, config, config_size, path, out, err);
    pz_free(text);
    pz_free(config);
    pz_free(path);
    pz_free(config_path);
    return st;
}
