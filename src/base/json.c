/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <inttypes.h>

#include "base/file.h"

static const char *type_name(const json_t *v) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return v ? names[json_typeof(v)] : "nothing";
}

pz_status pz_json_parse(const char *text, size_t size, const char *where, json_t **out, pz_error *err) {
    json_error_t e = {.line = -1};
    *out = json_loadb(text ? text : "", size, JSON_REJECT_DUPLICATES, &e);
    if (*out) return PZ_OK;
    /* jansson leaves the text empty when it runs out of memory while building values. */
    if (json_error_code(&e) == json_error_out_of_memory || !e.text[0]) return PZ_NOMEM(err);
    return pz_fail(err, PZ_E_FORMAT, "%s:%d:%d: not valid JSON: %s", where, e.line, e.column, e.text);
}

pz_status pz_json_load(const char *path, json_t **out, pz_error *err) {
    *out = NULL;
    char *text;
    size_t size;
    PZ_TRY(pz_file_read(path, &text, &size, err));
    pz_status st = pz_json_parse(text, size, path, out, err);
    pz_free(text);
    return st;
}

/* The member, or NULL where it is missing or null and that is allowed. */
static pz_status member(const json_t *obj, const char *key, bool required, const char *expected, const json_t **out,
                        const char *where, pz_error *err) {
    *out = NULL;
    if (!json_is_object(obj))
        return pz_fail(err, PZ_E_FORMAT, "%s: found %s where an object with \"%s\" is expected", where, type_name(obj),
                       key);
    const json_t *v = json_object_get(obj, key);
    if (v && !json_is_null(v)) {
        *out = v;
        return PZ_OK;
    }
    if (!required) return PZ_OK;
    return pz_fail(err, PZ_E_FORMAT, "%s: \"%s\" is %s, expected %s", where, key, v ? "null" : "missing", expected);
}

static pz_status wrong_type(const json_t *v, const char *key, const char *expected, const char *where, pz_error *err) {
    return pz_fail(err, PZ_E_FORMAT, "%s: \"%s\" is %s, expected %s", where, key, type_name(v), expected);
}

pz_status pz_json_get_int(const json_t *obj, const char *key, bool required, int64_t lo, int64_t hi, int64_t *out,
                          const char *where, pz_error *err) {
    const json_t *v;
    PZ_TRY(member(obj, key, required, "an integer", &v, where, err));
    if (!v) return PZ_OK;
    if (!json_is_integer(v)) return wrong_type(v, key, "an integer", where, err);
    int64_t n = json_integer_value(v);
    if (n < lo || n > hi)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"%s\" is %" PRId64 ", expected an integer from %" PRId64 " to %" PRId64,
                       where, key, n, lo, hi);
    *out = n;
    return PZ_OK;
}

pz_status pz_json_get_double(const json_t *obj, const char *key, bool required, double *out, const char *where,
                             pz_error *err) {
    const json_t *v;
    PZ_TRY(member(obj, key, required, "a number", &v, where, err));
    if (!v) return PZ_OK;
    if (!json_is_number(v)) return wrong_type(v, key, "a number", where, err);
    *out = json_number_value(v);
    return PZ_OK;
}

pz_status pz_json_get_bool(const json_t *obj, const char *key, bool required, bool *out, const char *where,
                           pz_error *err) {
    const json_t *v;
    PZ_TRY(member(obj, key, required, "true or false", &v, where, err));
    if (!v) return PZ_OK;
    if (!json_is_boolean(v)) return wrong_type(v, key, "true or false", where, err);
    *out = json_is_true(v);
    return PZ_OK;
}

pz_status pz_json_get_str(const json_t *obj, const char *key, bool required, const char **out, const char *where,
                          pz_error *err) {
    const json_t *v;
    PZ_TRY(member(obj, key, required, "a string", &v, where, err));
    if (!v) return PZ_OK;
    if (!json_is_string(v)) return wrong_type(v, key, "a string", where, err);
    *out = json_string_value(v);
    return PZ_OK;
}

pz_status pz_json_get_node(const json_t *obj, const char *key, json_type type, const json_t **out, const char *where,
                           pz_error *err) {
    const char *expected = type == JSON_OBJECT ? "an object" : "an array";
    PZ_TRY(member(obj, key, false, expected, out, where, err));
    if (!*out || json_typeof(*out) == type) return PZ_OK;
    pz_status st = wrong_type(*out, key, expected, where, err);
    *out = NULL;
    return st;
}

static int add_dumped(const char *part, size_t n, void *b) {
    pz_str_addn(b, part, n);
    return ((pz_str *)b)->failed ? -1 : 0;
}

pz_status pz_json_dump(const json_t *value, char **out, pz_error *err) {
    pz_str b = {0};
    /* Of a valid value only memory can fail here; a value that was never made for want of memory is NULL. */
    if (json_dump_callback(value, add_dumped, &b, JSON_INDENT(2) | JSON_ENCODE_ANY) != 0) b.failed = true;
    return pz_str_take(&b, out, err);
}
