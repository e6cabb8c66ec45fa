/* SPDX-License-Identifier: Apache-2.0 */
#include "base/knobs.h"

#include "base/json.h"
#include "prezero/graph.h"

static const pz_knob knobs[PZ_KNOB_COUNT] = {
#define KNOB(id, env, type, def, allowed, doc) [PZ_KNOB_##id] = {env, PZ_KNOB_##type, def, allowed, doc},
#include "base/knobs.def"
#undef KNOB
};

static const struct {
    const char *name, *allowed; /* allowed: for types that are the same in every row */
} knob_types[] = {
    [PZ_KNOB_BOOL] = {"bool", "0|off|false|1|on|true"},
    [PZ_KNOB_INT] = {"int", NULL},
    [PZ_KNOB_ENUM] = {"enum", NULL},
    [PZ_KNOB_TEXT] = {"text", "any text"},
};

static const char *allowed_values(const pz_knob *k) {
    return knob_types[k->type].allowed ? knob_types[k->type].allowed : k->allowed;
}

const pz_knob *pz_knob_info(pz_knob_id id) {
    return &knobs[id];
}

/* The variable, or NULL where it is unset or empty. */
static const char *environment(const pz_knob *k) {
    const char *value = getenv(k->env);
    return value && *value ? value : NULL;
}

static const char *current(const pz_knob *k) {
    const char *value = environment(k);
    return value ? value : k->def;
}

static pz_status bad_value(const pz_knob *k, const char *what, const char *value, pz_error *err) {
    return pz_fail(err, PZ_E_INVAL, "%s is \"%.80s\", expected %s", what, value, allowed_values(k));
}

/* Position of `value` among words separated by '|', else -1. */
static int word_index(const char *words, const char *value) {
    size_t want = strlen(value);
    int index = 0;
    for (const char *w = words;; index++) {
        size_t n = strcspn(w, "|");
        if (n == want && memcmp(w, value, n) == 0) return index;
        if (!w[n]) return -1;
        w += n + 1;
    }
}

pz_status pz_knob_bool(pz_knob_id id, bool *out, pz_error *err) {
    const pz_knob *k = &knobs[id];
    const char *value = current(k);
    int index = word_index(allowed_values(k), value);
    if (index < 0) return bad_value(k, k->env, value, err);
    *out = index >= 3; /* the words for off come first */
    return PZ_OK;
}

pz_status pz_knob_int(pz_knob_id id, int64_t *out, pz_error *err) {
    const pz_knob *k = &knobs[id];
    const char *value = current(k);
    char *end;
    int64_t lo = strtoll(k->allowed, &end, 10), hi = strtoll(end + strlen(".."), NULL, 10);
    bool digits = strspn(value + (*value == '-'), "0123456789") == strlen(value + (*value == '-'));
    int64_t n = strtoll(value, &end, 10); /* out of its range gives the largest or smallest, which no row allows */
    if (!digits || end == value || n < lo || n > hi) return bad_value(k, k->env, value, err);
    *out = n;
    return PZ_OK;
}

pz_status pz_knob_text(pz_knob_id id, const char **out, pz_error *err) {
    const pz_knob *k = &knobs[id];
    const char *value = current(k);
    int index;
    if (k->type == PZ_KNOB_ENUM) PZ_TRY(pz_knob_enum_index(id, value, k->env, &index, err));
    *out = value;
    return PZ_OK;
}

pz_status pz_knob_enum_index(pz_knob_id id, const char *value, const char *what, int *index, pz_error *err) {
    const pz_knob *k = &knobs[id];
    int found = word_index(k->allowed, value);
    if (found < 0) return bad_value(k, what, value, err);
    *index = found;
    return PZ_OK;
}

static pz_status describe_json(char **out, pz_error *err) {
    json_t *list = json_array();
    pz_status st = PZ_OK;
    for (int i = 0; i < PZ_KNOB_COUNT && st == PZ_OK; i++) {
        const pz_knob *k = &knobs[i];
        const char *value = environment(k);
        if (value && !pz_utf8_valid(value, strlen(value), NULL)) value = "\xEF\xBF\xBD";
        json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s?}", "name", k->env, "type", knob_types[k->type].name,
                                "default", k->def, "allowed", allowed_values(k), "doc", k->doc, "value", value);
        if (!row || json_array_append_new(list, row) != 0) st = PZ_NOMEM(err);
    }
    if (st == PZ_OK) st = pz_json_dump(list, out, err);
    json_decref(list);
    return st;
}

pz_status pz_describe_knobs(int json, char **out, pz_error *err) {
    PZ_NEED(out, "a place for the result", err);
    *out = NULL;
    if (json) return describe_json(out, err);
    pz_str b = {0};
    pz_str_addf(&b, "%-20s %-5s %-8s %s\n", "NAME", "TYPE", "DEFAULT", "ALLOWED");
    for (int i = 0; i < PZ_KNOB_COUNT; i++) {
        const pz_knob *k = &knobs[i];
        const char *value = environment(k);
        pz_str_addf(&b, "%-20s %-5s %-8s %s\n    %s\n", k->env, knob_types[k->type].name, *k->def ? k->def : "-",
                    allowed_values(k), k->doc);
        if (value) pz_str_addf(&b, "    now: \"%s\"\n", value);
    }
    return pz_str_take(&b, out, err);
}
