/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "base/file.h"
#include "base/json.h"

static json_t *parse(const char *text) {
    pz_error err;
    json_t *v;
    assert_ok(pz_json_parse(text, strlen(text), "f.json", &v, &err), &err);
    return v;
}

static void test_malformed(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t size;
        const char *position, *reason;
    } cases[] = {
        {"", 0, "f.json:1:", "expected"},
        {"{", 1, "f.json:1:1:", "expected"},
        {"{\"a\": 1,\n \"b\" 2}", 16, "f.json:2:6:", "':' expected"},
        {"{\"a\": 1, \"a\": 2}", 16, "f.json:1:", "duplicate"},
        {"{} x", 4, "f.json:1:4:", "end of file expected"},
        {"[1, 2,]", 7, "f.json:1:", "unexpected token"},
        {"[\"\xC0\xAF\"]", 6, "f.json:1:", "unable to decode byte"},
        {"[\"\\ud800\"]", 10, "f.json:1:", "invalid Unicode"},
        {"[\"a\\u0000b\"]", 12, "f.json:1:", "\\u0000"},
        {"[99999999999999999999]", 22, "f.json:1:", "too big integer"},
        {"[1e999]", 7, "f.json:1:", "real number overflow"},
        {"[\"a\nb\"]", 7, "f.json:1:", "unexpected newline"},
        {"7", 1, "f.json:1:", "expected"},
        {"{}\0", 3, "f.json:1:", "end of file expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pz_error err = {0};
        json_t *v = NULL;
        assert_fails(pz_json_parse(cases[i].text, cases[i].size, "f.json", &v, &err), PZ_E_FORMAT, &err,
                     cases[i].position, "not valid JSON", cases[i].reason);
        assert_null(v);
    }
    pz_error err;
    json_t *v;
    assert_status(pz_json_parse(NULL, 0, "f.json", &v, &err), PZ_E_FORMAT, &err);

    enum { DEPTH = 100000 }; /* no stack overflow */
    char *deep = malloc(DEPTH);
    assert_non_null(deep);
    memset(deep, '[', DEPTH);
    assert_fails(pz_json_parse(deep, DEPTH, "f.json", &v, &err), PZ_E_FORMAT, &err, "depth");
    free(deep);
}

static void test_load(void **state) {
    (void)state;
    pz_error err;
    json_t *v;
    assert_ok(pz_json_load(PZ_SOURCE_DIR "/models/kimi-tiny/config.json", &v, &err), &err);
    assert_true(json_is_object(v));
    json_decref(v);
    assert_fails(pz_json_load("/nonexistent/config.json", &v, &err), PZ_E_NOTFOUND, &err, "/nonexistent/config.json");
    assert_null(v);
    char *dir = support_tmp_dir(), *path = support_path(dir, "broken.json");
    assert_ok(pz_file_write(path, "{\n\"a\"", 5, &err), &err);
    assert_fails(pz_json_load(path, &v, &err), PZ_E_FORMAT, &err, path, ":2:");
    pz_free(path);
    support_tmp_remove(dir);
}

static void test_members(void **state) {
    (void)state;
    pz_error err;
    json_t *o =
        parse("{\"i\": -3, \"r\": 2.5, \"t\": true, \"f\": false, \"s\": \"x\", \"n\": null, \"o\": {\"k\": 1}, "
              "\"a\": [1]}");
    int64_t i = 0;
    double r = 0;
    bool b = false;
    const char *s = NULL;
    const json_t *node;
    assert_ok(pz_json_get_int(o, "i", true, -3, -3, &i, "f", &err), &err);
    assert_int_equal(i, -3);
    assert_ok(pz_json_get_double(o, "r", true, &r, "f", &err), &err);
    assert_true(r == 2.5);
    assert_ok(pz_json_get_double(o, "i", true, &r, "f", &err), &err);
    assert_true(r == -3.0);
    assert_ok(pz_json_get_bool(o, "t", true, &b, "f", &err), &err);
    assert_true(b);
    assert_ok(pz_json_get_bool(o, "f", true, &b, "f", &err), &err);
    assert_false(b);
    assert_ok(pz_json_get_str(o, "s", true, &s, "f", &err), &err);
    assert_string_equal(s, "x");
    assert_ok(pz_json_get_node(o, "o", JSON_OBJECT, &node, "f", &err), &err);
    assert_true(json_is_object(node));
    assert_ok(pz_json_get_node(o, "a", JSON_ARRAY, &node, "f", &err), &err);
    assert_true(json_is_array(node));
    json_decref(o);
}

/* Missing and null keys: the default stays if the key is optional, else the message says which of both it is. */
static void test_absent_members(void **state) {
    (void)state;
    pz_error err;
    json_t *o = parse("{\"null\": null}");
    static const char *const keys[][2] = {{"null", "is null"}, {"gone", "is missing"}};
    for (int k = 0; k < 2; k++) {
        const char *key = keys[k][0], *how = keys[k][1], *s = "default";
        int64_t i = 11;
        double r = 1.5;
        bool b = true;
        const json_t *node = o;
        assert_ok(pz_json_get_int(o, key, false, 0, 1, &i, "f", &err), &err);
        assert_ok(pz_json_get_double(o, key, false, &r, "f", &err), &err);
        assert_ok(pz_json_get_bool(o, key, false, &b, "f", &err), &err);
        assert_ok(pz_json_get_str(o, key, false, &s, "f", &err), &err);
        assert_ok(pz_json_get_node(o, key, JSON_OBJECT, &node, "f", &err), &err);
        assert_fails(pz_json_get_int(o, key, true, 0, 1, &i, "f", &err), PZ_E_FORMAT, &err, "f: ", key, how,
                     "an integer");
        assert_fails(pz_json_get_double(o, key, true, &r, "f", &err), PZ_E_FORMAT, &err, key, how, "a number");
        assert_fails(pz_json_get_bool(o, key, true, &b, "f", &err), PZ_E_FORMAT, &err, key, how, "true or false");
        assert_fails(pz_json_get_str(o, key, true, &s, "f", &err), PZ_E_FORMAT, &err, key, how, "a string");
        assert_int_equal(i, 11);
        assert_true(r == 1.5);
        assert_true(b);
        assert_string_equal(s, "default");
        assert_null(node);
    }
    json_decref(o);
}

/* Every getter against every other type: the message names both. */
static void test_wrong_types(void **state) {
    (void)state;
    pz_error err;
    static const struct {
        const char *text, *name;
        bool is_int, is_num, is_bool, is_str, is_obj, is_arr;
    } values[] = {
        {"{\"k\": 1}", "an integer", true, true, false, false, false, false},
        {"{\"k\": 1.5}", "a number", false, true, false, false, false, false},
        {"{\"k\": true}", "true", false, false, true, false, false, false},
        {"{\"k\": false}", "false", false, false, true, false, false, false},
        {"{\"k\": \"1\"}", "a string", false, false, false, true, false, false},
        {"{\"k\": {}}", "an object", false, false, false, false, true, false},
        {"{\"k\": []}", "an array", false, false, false, false, false, true},
    };
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
        json_t *o = parse(values[v].text);
        int64_t i = 5;
        double r = 5;
        bool b = false;
        const char *s = NULL;
        const json_t *node = o;
#define CHECK(is, call, expected)                                                            \
    do {                                                                                     \
        if (is)                                                                              \
            assert_ok(call, &err);                                                           \
        else                                                                                 \
            assert_fails(call, PZ_E_FORMAT, &err, "f: \"k\" is ", values[v].name, expected); \
    } while (0)
        CHECK(values[v].is_int, pz_json_get_int(o, "k", false, 0, 9, &i, "f", &err), "expected an integer");
        CHECK(values[v].is_num, pz_json_get_double(o, "k", false, &r, "f", &err), "expected a number");
        CHECK(values[v].is_bool, pz_json_get_bool(o, "k", false, &b, "f", &err), "expected true or false");
        CHECK(values[v].is_str, pz_json_get_str(o, "k", false, &s, "f", &err), "expected a string");
        CHECK(values[v].is_obj, pz_json_get_node(o, "k", JSON_OBJECT, &node, "f", &err), "expected an object");
        CHECK(values[v].is_arr, pz_json_get_node(o, "k", JSON_ARRAY, &node, "f", &err), "expected an array");
        if (!values[v].is_arr) assert_null(node);
        json_decref(o);
    }
    json_t *list = parse("[1]");
    int64_t i = 5;
    assert_fails(pz_json_get_int(list, "k", false, 0, 9, &i, "f", &err), PZ_E_FORMAT, &err, "an array", "\"k\"");
    json_decref(list);
    assert_fails(pz_json_get_int(NULL, "k", false, 0, 9, &i, "f", &err), PZ_E_FORMAT, &err, "nothing");
}

static void test_int_range(void **state) {
    (void)state;
    pz_error err;
    json_t *o = parse("{\"k\": 10, \"min\": -9223372036854775808, \"max\": 9223372036854775807}");
    int64_t i = 5;
    assert_ok(pz_json_get_int(o, "k", true, 10, 10, &i, "f", &err), &err);
    i = 5;
    assert_fails(pz_json_get_int(o, "k", true, 11, 20, &i, "f", &err), PZ_E_FORMAT, &err, "is 10", "from 11 to 20");
    assert_fails(pz_json_get_int(o, "k", false, 0, 9, &i, "f", &err), PZ_E_FORMAT, &err, "is 10", "from 0 to 9");
    assert_int_equal(i, 5);
    assert_ok(pz_json_get_int(o, "min", true, INT64_MIN, INT64_MAX, &i, "f", &err), &err);
    assert_true(i == INT64_MIN);
    assert_ok(pz_json_get_int(o, "max", true, INT64_MIN, INT64_MAX, &i, "f", &err), &err);
    assert_true(i == INT64_MAX);
    json_decref(o);
}

static const char sample[] = "{\n  \"b\": [\n    1,\n    2.5\n  ],\n  \"a\": \"é\"\n}";

static void test_dump(void **state) {
    (void)state;
    pz_error err;
    json_t *o = parse(sample);
    char *out;
    assert_ok(pz_json_dump(o, &out, &err), &err);
    assert_string_equal(out, sample); /* order of keys kept */
    pz_free(out);
    json_decref(o);
    assert_status(pz_json_dump(NULL, &out, &err), PZ_E_NOMEM, &err);
    assert_null(out);
}

static pz_status load_and_dump(void *ctx) {
    (void)ctx;
    pz_error err;
    json_t *o;
    PZ_TRY(pz_json_load(PZ_SOURCE_DIR "/models/kimi-tiny/config.json", &o, &err));
    char *out = NULL;
    pz_status st = pz_json_dump(o, &out, &err);
    json_decref(o);
    pz_free(out);
    return st;
}

static void test_no_memory(void **state) {
    (void)state;
    assert_true(support_alloc_sweep(load_and_dump, NULL) >= 3);
    assert_true(support_alloc_sweep_json(load_and_dump, NULL) >= 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed),      cmocka_unit_test(test_load),        cmocka_unit_test(test_members),
        cmocka_unit_test(test_absent_members), cmocka_unit_test(test_wrong_types), cmocka_unit_test(test_int_range),
        cmocka_unit_test(test_dump),           cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
