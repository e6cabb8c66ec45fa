/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_config: which weights are quantized, and how. The lists in it name modules exactly, by a module above
 * them, by a shell pattern, or by a regular expression after "re:" that must match from the start of the name. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fnmatch.h>
#include <inttypes.h>
#include <pcre2.h>
#include <stdio.h>

#include "model/weights.h"

enum {
    MAX_PATTERNS = 256, /* regular expressions and shell patterns of one list */
    MATCH_LIMIT = 20000 /* steps of one match: names are short, so more means a hostile expression */
};

typedef struct name_list {
    PZ_VEC(const char *) exact; /* sorted by finish_list */
    PZ_VEC(const char *) globs;
    PZ_VEC(pcre2_code *) regexes;
    pcre2_general_context *memory;
    pcre2_match_context *limits;
    pcre2_match_data *match;
} name_list;

static void *regex_malloc(size_t n, void *user) {
    (void)user;
    return pz_calloc(n, 1);
}

static void regex_free(void *p, void *user) {
    (void)user;
    pz_free(p);
}

static void free_list(name_list *l) {
    for (int i = 0; i < l->regexes.n; i++) pcre2_code_free(l->regexes.at[i]);
    pz_vec_free(&l->regexes);
    pz_vec_free(&l->globs);
    pz_vec_free(&l->exact);
    pcre2_match_data_free(l->match);
    pcre2_match_context_free(l->limits);
    pcre2_general_context_free(l->memory);
}

static pz_status add_regex(name_list *l, const char *text, const char *where, pz_error *err) {
    if (!l->memory) {
        l->memory = pcre2_general_context_create(regex_malloc, regex_free, NULL);
        if (l->memory) l->limits = pcre2_match_context_create(l->memory);
        if (l->memory) l->match = pcre2_match_data_create(1, l->memory);
        if (!l->limits || !l->match) return PZ_NOMEM(err);
        pcre2_set_match_limit(l->limits, MATCH_LIMIT);
    }
    pcre2_compile_context *context = pcre2_compile_context_create(l->memory);
    if (!context) return PZ_NOMEM(err);
    int code;
    size_t at;
    pcre2_code *regex = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code, &at, context);
    pcre2_compile_context_free(context);
    if (regex) {
        pz_status st = pz_push(&l->regexes, regex, err);
        if (st != PZ_OK) pcre2_code_free(regex);
        return st;
    }
    if (code == PCRE2_ERROR_HEAP_FAILED) return PZ_NOMEM(err);
    char why[128] = "";
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return pz_fail(err, PZ_E_FORMAT, "%s: quantization_config: bad regular expression \"%.100s\" at byte %zu: %s",
                   where, text, at, why);
}

static pz_status add_names(name_list *l, const json_t *names, const char *where, pz_error *err) {
    size_t i;
    const json_t *item;
    json_array_foreach(names, i, item) {
        const char *s = json_string_value(item);
        if (!s)
            return pz_fail(err, PZ_E_FORMAT, "%s: quantization_config: entry %zu of a module list is not a string",
                           where, i);
        if (strncmp(s, "re:", 3) == 0)
            PZ_TRY(add_regex(l, s + 3, where, err));
        else if (strpbrk(s, "*?["))
            PZ_TRY(pz_push(&l->globs, s, err));
        else
            PZ_TRY(pz_push(&l->exact, s, err));
        if (l->regexes.n + l->globs.n > MAX_PATTERNS)
            return pz_fail(err, PZ_E_FORMAT, "%s: quantization_config: more than %d patterns in a module list", where,
                           MAX_PATTERNS);
    }
    return PZ_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void finish_list(name_list *l) {
    if (l->exact.n) qsort(l->exact.at, (size_t)l->exact.n, sizeof *l->exact.at, compare_names);
}

static bool has_exact(const name_list *l, const char *name) {
    return l->exact.n && bsearch(&name, l->exact.at, (size_t)l->exact.n, sizeof *l->exact.at, compare_names);
}

static pz_status matches(const name_list *l, const char *name, bool *yes, const char *where, pz_error *err) {
    char above[160];
    *yes = true;
    snprintf(above, sizeof above, "%s", name);
    for (char *dot; !has_exact(l, above);) {
        dot = strrchr(above, '.');
        if (!dot) goto patterns;
        *dot = 0;
    }
    return PZ_OK;
patterns:
    for (int i = 0; i < l->globs.n; i++)
        if (fnmatch(l->globs.at[i], name, 0) == 0) return PZ_OK;
    for (int i = 0; i < l->regexes.n; i++) {
        int rc = pcre2_match(l->regexes.at[i], (PCRE2_SPTR)name, strlen(name), 0, 0, l->match, l->limits);
        if (rc >= 0) return PZ_OK;
        if (rc == PCRE2_ERROR_NOMEMORY) return PZ_NOMEM(err);
        if (rc != PCRE2_ERROR_NOMATCH)
            return pz_fail(err, PZ_E_FORMAT, "%s: quantization_config: a regular expression is too expensive to match",
                           where);
    }
    *yes = false;
    return PZ_OK;
}

/* Checkpoints name modules with and without the prefix of the language model. */
static pz_status matches_either(const name_list *l, const char *name, bool *yes, const char *where, pz_error *err) {
    char longer[160];
    PZ_TRY(matches(l, name, yes, where, err));
    if (*yes) return PZ_OK;
    snprintf(longer, sizeof longer, "language_model.%s", name);
    return matches(l, longer, yes, where, err);
}

/* targets NULL: every linear layer. */
static pz_status part_quantized(const name_list *targets, const name_list *ignored, const char *module, bool *yes,
                                const char *where, pz_error *err) {
    bool no;
    *yes = true;
    if (targets) PZ_TRY(matches_either(targets, module, yes, where, err));
    if (!*yes) return PZ_OK;
    PZ_TRY(matches_either(ignored, module, &no, where, err));
    *yes = !no;
    return PZ_OK;
}

static pz_status role_quantized(pz_role r, int64_t layer, const name_list *targets, const name_list *ignored, bool *yes,
                                const char *where, pz_error *err) {
    char first[128], second[128];
    *yes = false;
    if (!pz_role_module(r, 0, layer, 0, first, sizeof first)) return PZ_OK;
    PZ_TRY(part_quantized(targets, ignored, first, yes, where, err));
    if (!pz_role_module(r, 1, layer, 0, second, sizeof second)) return PZ_OK;
    bool other;
    PZ_TRY(part_quantized(targets, ignored, second, &other, where, err));
    if (other != *yes)
        return pz_fail(
            err, PZ_E_UNSUPPORTED,
            "%s: quantization_config: of %s and %s only one is quantized; they are one weight here, so both or "
            "none must be",
            where, first, second);
    return PZ_OK;
}

static pz_status select_roles(pz_hf_config *c, const name_list *targets, const name_list *ignored, const char *where,
                              pz_error *err) {
    for (int64_t layer = 0; layer <= c->layers; layer++) {
        pz_role_scope scope = layer < c->layers ? PZ_SCOPE_LAYER : PZ_SCOPE_MODEL;
        for (int i = 0; i < PZ_ROLE_COUNT; i++) {
            pz_role r = (pz_role)i;
            if (pz_role_scope_of(r) != scope || pz_role_kind_of(r) != PZ_KIND_LINEAR || !pz_role_present(c, r, layer))
                continue;
            /* fp8 checkpoints keep the head as it is without listing it. */
            if (scope == PZ_SCOPE_MODEL && c->quant == PZ_QUANT_FP8) continue;
            bool yes;
            PZ_TRY(role_quantized(r, layer, targets, ignored, &yes, where, err));
            if (!yes) continue;
            c->quantized[layer] |= 1u << i;
            if (pz_role_shape_of(c, r, NULL, NULL).count)
                c->expert_quant = c->quant;
            else
                c->linear_quant = c->quant;
        }
    }
    return PZ_OK;
}

/* E_UNSUPPORTED unless a text member, where it is there, has the one supported value. */
static pz_status only_text(const json_t *obj, const char *key, const char *want, const char *what, const char *where,
                           pz_error *err) {
    const char *have = NULL;
    PZ_TRY(pz_json_get_str(obj, key, false, &have, where, err));
    if (!have || strcmp(have, want) == 0) return PZ_OK;
    return pz_fail(err, PZ_E_UNSUPPORTED, "%s: %s with %s \"%.60s\" is not supported; supported: \"%s\"", where, what,
                   key, have, want);
}

static pz_status only_int(const json_t *obj, const char *key, int64_t want, const char *what, const char *where,
                          pz_error *err) {
    int64_t have = want;
    PZ_TRY(pz_json_get_int(obj, key, false, INT64_MIN, INT64_MAX, &have, where, err));
    if (have == want) return PZ_OK;
    return pz_fail(err, PZ_E_UNSUPPORTED, "%s: %s with %s %" PRId64 " is not supported; supported: %" PRId64, where,
                   what, key, have, want);
}

static pz_status configure_quark(pz_hf_config *c, const json_t *q, const char *where, pz_error *err) {
    const json_t *global, *weight = NULL, *exclude, *layers;
    PZ_TRY(pz_json_get_node(q, "global_quant_config", JSON_OBJECT, &global, where, err));
    if (global) PZ_TRY(pz_json_get_node(global, "weight", JSON_OBJECT, &weight, where, err));
    if (!weight)
        return pz_fail(err, PZ_E_FORMAT, "%s: quantization_config: global_quant_config.weight is missing", where);
    const char *dtype;
    PZ_TRY(pz_json_get_str(weight, "dtype", true, &dtype, where, err));
    PZ_TRY(only_text(weight, "dtype", "fp4", "quark quantization", where, err));
    PZ_TRY(only_text(weight, "qscheme", "per_group", "quark quantization", where, err));
    PZ_TRY(only_text(weight, "scale_format", "e8m0", "quark quantization", where, err));
    PZ_TRY(only_int(weight, "group_size", 32, "quark quantization", where, err));
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "layer_type_quant_config" : "layer_quant_config";
        PZ_TRY(pz_json_get_node(q, key, JSON_OBJECT, &layers, where, err));
        if (layers && json_object_size(layers))
            return pz_fail(err, PZ_E_UNSUPPORTED,
                           "%s: quark quantization with a %s is not supported; supported: one global_quant_config and "
                           "an exclude list",
                           where, key);
    }
    PZ_TRY(pz_json_get_node(q, "exclude", JSON_ARRAY, &exclude, where, err));
    c->quant = PZ_QUANT_MXFP4;
    name_list ignored = {0};
    pz_status st = add_names(&ignored, exclude, where, err);
    finish_list(&ignored);
    if (st == PZ_OK) st = select_roles(c, NULL, &ignored, where, err);
    free_list(&ignored);
    return st;
}

/* Adds one group's targets; *all becomes true where it names every linear layer. */
static pz_status add_group(const json_t *group, name_list *targets, bool *all, const char *where, pz_error *err) {
    static const char what[] = "compressed-tensors quantization";
    const json_t *weights, *names;
    PZ_TRY(only_text(group, "format", "mxfp4-pack-quantized", what, where, err));
    PZ_TRY(pz_json_get_node(group, "weights", JSON_OBJECT, &weights, where, err));
    if (weights) {
        PZ_TRY(only_text(weights, "type", "float", what, where, err));
        PZ_TRY(only_int(weights, "num_bits", 4, what, where, err));
        PZ_TRY(only_int(weights, "group_size", 32, what, where, err));
    }
    PZ_TRY(pz_json_get_node(group, "targets", JSON_ARRAY, &names, where, err));
    PZ_TRY(add_names(targets, names, where, err));
    for (int i = 0; i < targets->exact.n; i++) *all = *all || strcmp(targets->exact.at[i], "Linear") == 0;
    return PZ_OK;
}

static pz_status configure_compressed(pz_hf_config *c, const json_t *q, const char *where, pz_error *err) {
    const char *format;
    const json_t *groups, *ignore, *group;
    const char *key;
    PZ_TRY(pz_json_get_str(q, "format", true, &format, where, err));
    PZ_TRY(only_text(q, "format", "mxfp4-pack-quantized", "compressed-tensors quantization", where, err));
    PZ_TRY(pz_json_get_node(q, "config_groups", JSON_OBJECT, &groups, where, err));
    PZ_TRY(pz_json_get_node(q, "ignore", JSON_ARRAY, &ignore, where, err));
    c->quant = PZ_QUANT_MXFP4;
    c->packed_names = true;
    name_list targets = {0}, ignored = {0};
    bool all = !groups;
    pz_status st = PZ_OK;
    /* The iteration macros want an object that is not const; nothing is changed. */
    json_object_foreach((json_t *)(uintptr_t)groups, key, group) {
        PZ_TRY_GOTO(st, add_group(group, &targets, &all, where, err), done);
    }
    PZ_TRY_GOTO(st, add_names(&ignored, ignore, where, err), done);
    finish_list(&targets);
    finish_list(&ignored);
    st = select_roles(c, all ? NULL : &targets, &ignored, where, err);
done:
    free_list(&targets);
    free_list(&ignored);
    return st;
}

static pz_status configure_fp8(pz_hf_config *c, const json_t *q, const char *where, pz_error *err) {
    const json_t *keep;
    PZ_TRY(pz_json_get_node(q, "modules_to_not_convert", JSON_ARRAY, &keep, where, err));
    c->quant = PZ_QUANT_FP8;
    name_list ignored = {0};
    pz_status st = add_names(&ignored, keep, where, err);
    finish_list(&ignored);
    if (st == PZ_OK) st = select_roles(c, NULL, &ignored, where, err);
    free_list(&ignored);
    return st;
}

pz_status pz_quant_configure(pz_hf_config *c, const json_t *quantization, const char *where, pz_error *err) {
    static const struct {
        const char *method;
        pz_status (*configure)(pz_hf_config *c, const json_t *q, const char *where, pz_error *err);
    } methods[] = {{"quark", configure_quark}, {"compressed-tensors", configure_compressed}, {"fp8", configure_fp8}};
    const char *method;
    PZ_TRY(pz_json_get_str(quantization, "quant_method", true, &method, where, err));
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i].method, method) == 0) return methods[i].configure(c, quantization, where, err);
    return pz_fail(err, PZ_E_UNSUPPORTED,
                   "%s: quantization method \"%.60s\" is not supported; supported: quark (fp4, groups of 32, e8m0 "
                   "scales), compressed-tensors (mxfp4-pack-quantized), fp8",
                   where, method);
}
