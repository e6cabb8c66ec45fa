/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <stdlib.h>

#include "base/json.h"
#include "base/knobs.h"
#include "prezero/graph.h"

static int clean(void **state) {
    (void)state;
    for (int i = 0; i < PZ_KNOB_COUNT; i++) unsetenv(pz_knob_info((pz_knob_id)i)->env);
    return 0;
}

/* The table itself: every default is a value that its own row allows. */
static void test_defaults(void **state) {
    (void)state;
    pz_error err;
    assert_in_range(PZ_KNOB_COUNT, 1, 40);
    for (int i = 0; i < PZ_KNOB_COUNT; i++) {
        pz_knob_id id = (pz_knob_id)i;
        const pz_knob *k = pz_knob_info(id);
        assert_int_equal(strncmp(k->env, "PREZERO", 7), 0);
        assert_true(strlen(k->doc) > 10);
        bool b = true;
        int64_t n;
        const char *text;
        for (int set = 0; set < 2; set++) { /* unset, then set but empty */
            if (set) setenv(k->env, "", 1);
            if (k->type == PZ_KNOB_BOOL) {
                assert_ok(pz_knob_bool(id, &b, &err), &err);
                assert_int_equal(b, pz_streq(k->def, "1"));
            } else if (k->type == PZ_KNOB_INT) {
                assert_ok(pz_knob_int(id, &n, &err), &err);
                assert_int_equal(n, atoll(k->def));
            } else {
                assert_ok(pz_knob_text(id, &text, &err), &err);
                assert_string_equal(text, k->def);
            }
        }
    }
}

static void test_bool(void **state) {
    (void)state;
    pz_error err;
    bool b = true;
    assert_ok(pz_knob_bool(PZ_KNOB_PREZERO, &b, &err), &err);
    assert_false(b); /* off by default */
    static const struct {
        const char *text;
        bool value;
    } good[] = {{"0", false}, {"off", false}, {"false", false}, {"", false}, {"1", true}, {"on", true}, {"true", true}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        setenv("PREZERO", good[i].text, 1);
        b = !good[i].value;
        assert_ok(pz_knob_bool(PZ_KNOB_PREZERO, &b, &err), &err);
        assert_int_equal(b, good[i].value);
    }
    static const char *const bad[] = {"2",   "yes", "no",   "ON",    "True", "-1",   "01",   "1 ", " 1",
                                      "onn", "o",   "off|", "0|off", "|",    "1|on", "\xFF", "1\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("PREZERO", bad[i], 1);
        assert_fails(pz_knob_bool(PZ_KNOB_PREZERO, &b, &err), PZ_E_INVAL, &err, "PREZERO", "0|off|false|1|on|true");
        if (!strpbrk(bad[i], "\n")) assert_contains(err.msg, bad[i]);
    }
}

static void test_int(void **state) {
    (void)state;
    pz_error err;
    int64_t n;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0}, {"1", 1}, {"1024", 1024}, {"007", 7}, {"-0", 0}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        setenv("PREZERO_THREADS", good[i].text, 1);
        assert_ok(pz_knob_int(PZ_KNOB_THREADS, &n, &err), &err);
        assert_int_equal(n, good[i].value);
    }
    static const char *const bad[] = {"1025",
                                      "-1",
                                      "x",
                                      "1x",
                                      " 1",
                                      "1 ",
                                      "+1",
                                      "1.0",
                                      "1e3",
                                      "0x10",
                                      "-",
                                      "--1",
                                      "99999999999999999999",
                                      "-99999999999999999999",
                                      "auto"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("PREZERO_THREADS", bad[i], 1);
        n = 77;
        assert_fails(pz_knob_int(PZ_KNOB_THREADS, &n, &err), PZ_E_INVAL, &err, "PREZERO_THREADS", bad[i], "0..1024");
        assert_int_equal(n, 77);
    }
}

static void test_enum_and_text(void **state) {
    (void)state;
    pz_error err;
    const char *text;
    static const char *const words[] = {"auto", "strict", "open", "closed"};
    for (int i = 0; i < 4; i++) {
        int index = -1;
        setenv("PREZERO_GATE", words[i], 1);
        assert_ok(pz_knob_text(PZ_KNOB_GATE, &text, &err), &err);
        assert_string_equal(text, words[i]);
        assert_ok(pz_knob_enum_index(PZ_KNOB_GATE, words[i], "--gate", &index, &err), &err);
        assert_int_equal(index, i);
    }
    static const char *const bad[] = {"Auto", "aut", "autoo", "auto|strict", "|", "1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int index = -1;
        setenv("PREZERO_GATE", bad[i], 1);
        assert_fails(pz_knob_text(PZ_KNOB_GATE, &text, &err), PZ_E_INVAL, &err, "PREZERO_GATE", bad[i],
                     "auto|strict|open|closed");
        assert_fails(pz_knob_enum_index(PZ_KNOB_GATE, bad[i], "--gate", &index, &err), PZ_E_INVAL, &err, "--gate",
                     bad[i]);
        assert_int_equal(index, -1);
    }
    int index;
    assert_fails(pz_knob_enum_index(PZ_KNOB_GATE, "", "--gate", &index, &err), PZ_E_INVAL, &err, "--gate is \"\"");
    setenv("PREZERO_DUMP_DIR", "/any where/\xC3\xA9", 1);
    assert_ok(pz_knob_text(PZ_KNOB_DUMP_DIR, &text, &err), &err);
    assert_string_equal(text, "/any where/\xC3\xA9");
}

/* A very long value still leaves room for what is allowed. */
static void test_long_value(void **state) {
    (void)state;
    char longer[2000];
    memset(longer, 'y', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    setenv("PREZERO", longer, 1);
    bool b;
    pz_error err;
    assert_fails(pz_knob_bool(PZ_KNOB_PREZERO, &b, &err), PZ_E_INVAL, &err, "PREZERO", "yyyy", "0|off|false|1|on|true");
}

static void test_describe(void **state) {
    (void)state;
    pz_error err;
    char *out;
    setenv("PREZERO_THREADS", "3", 1);
    setenv("PREZERO_DUMP", "\xFF", 1);
    assert_ok(pz_describe_knobs(0, &out, &err), &err);
    for (int i = 0; i < PZ_KNOB_COUNT; i++) {
        const pz_knob *k = pz_knob_info((pz_knob_id)i);
        assert_contains(out, k->env);
        assert_contains(out, k->doc);
        assert_contains(out, k->allowed);
    }
    assert_contains(out, "now: \"3\"");
    pz_free(out);

    assert_ok(pz_describe_knobs(1, &out, &err), &err);
    json_t *list;
    assert_ok(pz_json_parse(out, strlen(out), "knobs", &list, &err), &err);
    pz_free(out);
    assert_int_equal(json_array_size(list), PZ_KNOB_COUNT);
    for (int i = 0; i < PZ_KNOB_COUNT; i++) {
        const pz_knob *k = pz_knob_info((pz_knob_id)i);
        const json_t *row = json_array_get(list, (size_t)i);
        static const char *const types[] = {"bool", "int", "enum", "text"};
        assert_string_equal(json_string_value(json_object_get(row, "name")), k->env);
        assert_string_equal(json_string_value(json_object_get(row, "type")), types[k->type]);
        assert_string_equal(json_string_value(json_object_get(row, "default")), k->def);
        assert_string_equal(json_string_value(json_object_get(row, "doc")), k->doc);
        assert_true(json_is_string(json_object_get(row, "allowed")));
        const char *value = json_string_value(json_object_get(row, "value"));
        if (i == PZ_KNOB_THREADS)
            assert_string_equal(value, "3");
        else if (i == PZ_KNOB_DUMP)
            assert_string_equal(value, "\xEF\xBF\xBD");
        else
            assert_null(value);
    }
    json_decref(list);
}

static pz_status describe(void *json) {
    pz_error err;
    char *out;
    PZ_TRY(pz_describe_knobs(*(const int *)json, &out, &err));
    pz_free(out);
    return PZ_OK;
}

static void test_no_memory(void **state) {
    (void)state;
    int text = 0, json = 1;
    assert_true(support_alloc_sweep(describe, &text) >= 2);
    assert_true(support_alloc_sweep(describe, &json) >= 2);
    assert_true(support_alloc_sweep_json(describe, &json) >= 20);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, clean, clean)
    const struct CMUnitTest tests[] = {
        TEST(test_defaults),   TEST(test_bool),     TEST(test_int),       TEST(test_enum_and_text),
        TEST(test_long_value), TEST(test_describe), TEST(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
