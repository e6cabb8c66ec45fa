/* SPDX-License-Identifier: Apache-2.0 */
/* The tuned table: its file, its keys, and that a plan does what it says. */
#include "support_plan.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/file.h"
#include "plan/tuned.h"

static pz_device h200(void) {
    pz_device d;
    pz_error err;
    assert_ok(pz_device_find("h200", 0, &d, &err), &err);
    return d;
}

static pz_gemm_shape shape(int64_t n, int64_t k, pz_accum accum, int m) {
    return (pz_gemm_shape){n, k, PZ_DT_BF16, accum, m};
}

static pz_gemm_choice choice(pz_strategy strategy, int tile_n, int split, double us) {
    return (pz_gemm_choice){
        strategy, {.tile_n = tile_n, .split = split, .family = PZ_GEMM_SKINNY, .warps = 2, .stages = 1}, us, 0.01};
}

/* A row that is split both ways. */
static pz_tuned_row row(int64_t n, int64_t k, pz_accum accum, int m) {
    return (pz_tuned_row){.shape = shape(n, k, accum, m),
                          .on = choice(PZ_ZERO_PREZERO, 64, 4, 2.5),
                          .off = choice(PZ_ZERO_REDUCE, 32, 2, 3.25),
                          .cublaslt_us = 6.5};
}

static pz_tuned *new_table(void) {
    pz_device d = h200();
    pz_tuned *t;
    pz_error err;
    assert_ok(pz_tuned_new(&d, "prezero tune", &t, &err), &err);
    return t;
}

static void put(pz_tuned *t, pz_tuned_row r) {
    pz_error err;
    assert_ok(pz_tuned_put(t, &r, &err), &err);
}

static char *text_of(const pz_tuned *t) {
    char *text;
    pz_error err;
    assert_ok(pz_tuned_text(t, &text, &err), &err);
    return text;
}

static pz_tuned *parse(const char *text) {
    pz_device d = h200();
    pz_tuned *t;
    pz_error err;
    assert_ok(pz_tuned_parse(text, strlen(text), "t.json", &d, &t, &err), &err);
    return t;
}

/* ---- keys ---- */
static void test_find(void **state) {
    (void)state;
    pz_tuned *t = new_table();
    static const int ms[] = {32, 1, 128, 8};
    for (int i = 0; i < 4; i++) {
        put(t, row(384, 7168, PZ_ACCUM_FIXED, ms[i]));
        put(t, row(384, 7168, PZ_ACCUM_F32, 2 * ms[i]));
        put(t, row(2112, 7168, PZ_ACCUM_FIXED, ms[i]));
    }
    put(t, row(384, 1024, PZ_ACCUM_FIXED, 4));
    assert_int_equal(t->rows.n, 13);
    for (int i = 1; i < t->rows.n; i++) {
        const pz_gemm_shape *a = &t->rows.at[i - 1].shape, *b = &t->rows.at[i].shape;
        assert_true(a->n < b->n || (a->n == b->n && a->k <= b->k));
    }
    static const struct {
        int m, row;
    } serves[] = {{1, 1}, {2, 8}, {8, 8}, {9, 32}, {32, 32}, {33, 128}, {128, 128}, {129, 0}, {100000, 0}};
    for (size_t i = 0; i < sizeof serves / sizeof *serves; i++) {
        pz_gemm_shape s = shape(384, 7168, PZ_ACCUM_FIXED, serves[i].m);
        const pz_tuned_row *r = pz_tuned_find(t, &s);
        assert_int_equal(r ? r->shape.m : 0, serves[i].row);
        assert_int_equal(r ? r->shape.accum : PZ_ACCUM_FIXED, PZ_ACCUM_FIXED);
        const pz_tuned_row *exact = pz_tuned_exact(t, &s);
        assert_true(exact == (serves[i].m == serves[i].row ? r : NULL));
    }
    pz_gemm_shape f32 = shape(384, 7168, PZ_ACCUM_F32, 1), other = shape(384, 7168, PZ_ACCUM_BF16, 1);
    assert_int_equal(pz_tuned_find(t, &f32)->shape.m, 2);
    assert_null(pz_tuned_find(t, &other));
    other = shape(385, 7168, PZ_ACCUM_FIXED, 1);
    assert_null(pz_tuned_find(t, &other));
    other = shape(384, 1024, PZ_ACCUM_FIXED, 5);
    assert_null(pz_tuned_find(t, &other));
    other = shape(384, 7168, PZ_ACCUM_FIXED, 1);
    other.weight = PZ_DT_F32;
    assert_null(pz_tuned_find(t, &other));
    /* a row of the same key is replaced */
    pz_tuned_row again = row(384, 7168, PZ_ACCUM_FIXED, 8);
    again.on.us = 1.5;
    put(t, again);
    assert_int_equal(t->rows.n, 13);
    assert_true(pz_tuned_find(t, &again.shape)->on.us == 1.5);
    pz_tuned_free(t);
}

/* ---- the file ---- */
static void test_round_trip(void **state) {
    (void)state;
    pz_tuned *t = new_table();
    char *empty = text_of(t);
    pz_tuned *none = parse(empty);
    assert_int_equal(none->rows.n, 0);
    assert_true(isnan(none->gate.fill));
    pz_tuned_free(none);
    pz_free(empty);
    put(t, row(384, 7168, PZ_ACCUM_FIXED, 8));
    put(t, row(384, 7168, PZ_ACCUM_BF16, 8));
    pz_tuned_row blas = row(40960, 7168, PZ_ACCUM_F32, 64);
    blas.on = (pz_gemm_choice){PZ_ZERO_NONE, {.family = PZ_GEMM_CUBLASLT, .split = 1, .stages = 3}, 150.0 / 7, 0};
    blas.off = blas.on;
    put(t, blas);
    t->gate.fill = 17000.25;
    t->gate.rider = 0;
    static const pz_tuned_collective some[] = {
        {4, 7168, 32, 5.5, 0.0625, 0}, {2, 7168, 256, 3.5, 0.03125, 0.125}, {2, 1024, 128, 3, 0, 0}};
    for (int i = 0; i < 3; i++) assert_int_equal(pz_tuned_put_collective(t, &some[i], NULL), PZ_OK);
    pz_free(t->command);
    t->command = pz_strdup("prezero tune \"a\\b\" \xc3\xa9\n");
    char *text = text_of(t);
    /* one row a line, ascending */
    int lines = 0;
    for (const char *s = text; (s = strstr(s, "\n    {\"n\": ")); s++) lines++;
    assert_int_equal(lines, 3);
    assert_contains(text, "\"fill\": 17000.25");
    assert_null(strstr(text, "handshake"));
    pz_tuned *back = parse(text);
    assert_int_equal(back->rows.n, 3);
    assert_int_equal(back->stale, 0);
    assert_int_equal(back->stale_collectives, 0);
    assert_int_equal(back->collectives.n, 3); /* by ranks, then columns */
    assert_true(memcmp(&back->collectives.at[0], &some[2], sizeof *some) == 0);
    assert_true(memcmp(&back->collectives.at[1], &some[1], sizeof *some) == 0);
    assert_true(memcmp(&back->collectives.at[2], &some[0], sizeof *some) == 0);
    assert_contains(text, "\n    {\"kernels\": \"" PZ_REDUCE_KERNEL_VERSION
                          "\", \"ranks\": 4, \"hidden\": 7168, \"one_shot\": 32, \"ar_base\": 5.5, ");
    assert_string_equal(back->command, t->command);
    assert_string_equal(back->date, t->date);
    assert_true(back->gate.fill == 17000.25 && back->gate.rider == 0 && isnan(back->gate.ar_base));
    const pz_tuned_row *r = pz_tuned_exact(back, &blas.shape);
    assert_int_equal(r->on.config.stages, 3);
    assert_true(fabs(r->on.us - 150.0 / 7) < 1e-4 && r->cublaslt_us == 6.5);
    char *again = text_of(back);
    assert_string_equal(again, text);
    pz_free(again);
    pz_tuned_free(back);
    /* numbers do not follow the locale */
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "C"};
    for (size_t i = 0; i < 4 && !setlocale(LC_NUMERIC, locales[i]); i++) continue;
    again = text_of(t);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(again, text);
    pz_free(again);
    pz_free(text);
    pz_tuned_free(t);
}

#define HEAD "{\"device\": \"h200\", \"units\": 132, \"kernels\": \"" PZ_GEMM_KERNEL_VERSION "\", "
#define NAMES "\"date\": \"\", \"command\": \"\", "
#define SKINNY "\"family\": \"skinny\", \"tile_n\": 64, \"split\": 4, \"warps\": 2, \"stages\": 1, \"depth\": 0, "
#define TIMES "\"us\": 1.5, \"ci\": 0.1}"
#define ON "\"on\": {\"strategy\": \"prezero\", " SKINNY TIMES
#define OFF "\"off\": {\"strategy\": \"self\", " SKINNY TIMES
#define KEY "\"n\": 64, \"k\": 256, \"weight\": \"bf16\", \"accum\": \"fixed\", \"m\": 4, "
#define ROW "{" KEY ON ", " OFF "}"
#define VERSION "\"kernels\": \"" PZ_REDUCE_KERNEL_VERSION "\", "
#define COST "\"ar_base\": 3, \"ar_row\": 0.5, \"rider\": 0"
#define COLLECTIVE "{" VERSION "\"ranks\": 2, \"hidden\": 64, \"one_shot\": 8, " COST "}"
#define COLLECTIVES(list) HEAD NAMES "\"collectives\": [" list "], \"rows\": []}"
#define ROWS(rows) HEAD NAMES "\"rows\": [" rows "]}"

static void test_bad_files(void **state) {
    (void)state;
    static const struct {
        const char *text, *first, *second;
    } bad[] = {
        {"", "t.json", "JSON"},
        {"[]", "t.json", "object"},
        {"{}", "\"device\"", "missing"},
        {"{\"device\": 3}", "\"device\"", "string"},
        {"{\"device\": \"\", \"units\": 1, \"kernels\": \"\", \"date\": \"\", \"command\": \"\", \"rows\": []}",
         "\"device\"", "1 to 31"},
        {"{\"device\": \"0123456789012345678901234567890123456789\", \"units\": 1, \"kernels\": \"\", " NAMES
         "\"rows\": []}",
         "\"device\"", "1 to 31"},
        {HEAD NAMES "\"rows\": 3}", "\"rows\"", "array"},
        {HEAD "\"command\": \"\", \"rows\": []}", "\"date\"", "missing"},
        {HEAD "\"date\": \"\", \"command\": \"\"}", "\"rows\"", "missing"},
        {HEAD NAMES "\"rows\": [], \"color\": 1}", "\"color\"", "not a key"},
        {HEAD NAMES "\"gate\": {\"fil\": 1}, \"rows\": []}", "\"fil\"", "gate"},
        {HEAD NAMES "\"gate\": {\"fill\": -1}, \"rows\": []}", "\"fill\"", "-1"},
        {HEAD NAMES "\"gate\": {\"fill\": 0}, \"rows\": []}", "\"fill\"", "rate"},
        {HEAD NAMES "\"gate\": {\"rider\": \"x\"}, \"rows\": []}", "\"rider\"", "number"},
        {HEAD NAMES "\"collectives\": 3, \"rows\": []}", "\"collectives\"", "array"},
        {COLLECTIVES("3"), "collective 1", "object"},
        {COLLECTIVES("{}"), "collective 1", "\"kernels\" is missing"},
        {COLLECTIVES(COLLECTIVE ", {\"kernels\": \"\"}"), "collective 2", "\"ranks\" is missing"},
        {COLLECTIVES(COLLECTIVE ", " COLLECTIVE), "collective 2", "another one of 2 ranks and hidden 64"},
        {COLLECTIVES("{" VERSION "\"ranks\": 1, \"hidden\": 64, \"one_shot\": 8, " COST "}"), "collective 1",
         "\"ranks\" is 1, expected 2 to"},
        {COLLECTIVES("{" VERSION "\"ranks\": 2, \"hidden\": 0, \"one_shot\": 8, " COST "}"), "collective 1",
         "\"hidden\" is 0"},
        {COLLECTIVES("{" VERSION "\"ranks\": 2, \"hidden\": 64, \"one_shot\": 0, " COST "}"), "collective 1",
         "\"one_shot\" is 0, expected 1 to 256"},
        {COLLECTIVES("{" VERSION "\"ranks\": 2, \"hidden\": 64, \"one_shot\": 257, " COST "}"), "collective 1",
         "\"one_shot\" is 257"},
        {COLLECTIVES("{" VERSION "\"ranks\": 2, \"hidden\": 64, \"one_shot\": 8.5, " COST "}"), "collective 1",
         "\"one_shot\""},
        {COLLECTIVES("{" VERSION "\"ranks\": 2, \"hidden\": 64, " COST "}"), "collective 1", "\"one_shot\" is missing"},
        {COLLECTIVES("{" VERSION "\"ranks\": 2, \"hidden\": 64, \"one_shot\": 8}"), "collective 1",
         "\"ar_base\" is missing"},
        {COLLECTIVES("{" VERSION "\"ranks\": 2, \"hidden\": 64, \"one_shot\": 8, \"ar_base\": -1, \"ar_row\": 0, "
                     "\"rider\": 0}"),
         "collective 1", "\"ar_base\" is -1"},
        {COLLECTIVES("{" VERSION "\"ranks\": 2, \"hidden\": 64, \"one_shot\": 8, \"ar_base\": 1, \"ar_row\": 0, "
                     "\"rider\": -0.5}"),
         "collective 1", "\"rider\" -0.5"},
        {COLLECTIVES("{" VERSION "\"ranks\": 2, \"hidden\": 64, \"one_shot\": 8, \"note\": 1, " COST "}"),
         "collective 1", "\"note\" is not a key"},
        {ROWS("3"), "row 1", "object"},
        {ROWS("{}"), "row 1", "\"n\""},
        {ROWS(ROW ", {" ON ", " OFF "}"), "row 2", "\"n\""},
        {ROWS(ROW ", " ROW), "row 2", "another one"},
        {ROWS("{\"n\": 0, \"k\": 256, \"weight\": \"bf16\", \"accum\": \"fixed\", \"m\": 4, " ON ", " OFF "}"), "row 1",
         "\"n\" is 0"},
        {ROWS("{\"n\": 64, \"k\": 256, \"weight\": \"fp8\", \"accum\": \"fixed\", \"m\": 4, " ON ", " OFF "}"), "row 1",
         "\"weight\" is \"fp8\""},
        {ROWS("{\"n\": 64, \"k\": 256, \"weight\": \"bf16\", \"accum\": \"f64\", \"m\": 4, " ON ", " OFF "}"), "row 1",
         "\"accum\" is \"f64\""},
        {ROWS("{\"n\": 64, \"k\": 256, \"weight\": \"bf16\", \"accum\": \"fixed\", \"m\": 65537, " ON ", " OFF "}"),
         "row 1", "\"m\" is 65537"},
        {ROWS("{" KEY OFF "}"), "(n 64, k 256, m 4)", "\"on\" is missing"},
        {ROWS("{" KEY ON ", \"off\": 1}"), "(n 64, k 256, m 4)", "\"off\""},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"prezero\", " SKINNY TIMES "}"), "off", "\"strategy\" is prezero"},
        {ROWS("{" KEY "\"on\": {\"strategy\": \"self\", " SKINNY TIMES ", " OFF "}"), "on", "\"strategy\" is self"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"wish\", " SKINNY TIMES "}"), "off", "\"wish\""},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"none\", " SKINNY TIMES "}"), "off", "\"split\" is 4"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"thin\", " TIMES "}"), "off", "\"thin\""},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"default\", \"tile_n\": 64, \"split\": 4, "
              "\"warps\": 2, \"stages\": 1, \"depth\": 0, " TIMES "}"),
         "off", "\"family\" is default"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"skinny\", \"tile_n\": 128, \"split\": 4, "
              "\"warps\": 3, \"stages\": 1, \"depth\": 0, " TIMES "}"),
         "off", "16 warps"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"wide\", \"tile_n\": 48, \"split\": 4, "
              "\"warps\": 0, \"stages\": 1, \"depth\": 0, " TIMES "}"),
         "off", "multiple of 64"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"wide\", \"tile_n\": 128, \"split\": 4, "
              "\"warps\": 2, \"stages\": 0, \"depth\": 0, " TIMES "}"),
         "off", "at most 3 warpgroups"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"group\", \"tile_n\": 48, \"split\": 4, "
              "\"warps\": 1, \"stages\": 0, \"depth\": 0, " TIMES "}"),
         "off", "multiple of 64"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"group\", \"tile_n\": 128, \"split\": 4, "
              "\"warps\": 3, \"stages\": 0, \"depth\": 0, " TIMES "}"),
         "off", "at most 16 warps"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"group\", \"tile_n\": 0, \"split\": 4, "
              "\"warps\": 1, \"stages\": 0, \"depth\": 0, " TIMES "}"),
         "off", "\"tile_n\" 0"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"skinny\", \"tile_n\": 64, \"split\": 4, "
              "\"warps\": 2, \"stages\": -1, \"depth\": 0, " TIMES "}"),
         "off", "\"stages\""},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", \"family\": \"cublaslt\", \"tile_n\": 0, \"split\": 4, "
              "\"warps\": 0, \"stages\": 1, \"depth\": 0, " TIMES "}"),
         "off", "cublaslt"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", " SKINNY "\"us\": 0, \"ci\": 0}}"), "off", "\"us\" is 0"},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", " SKINNY "\"us\": 1, \"ci\": -1}}"), "off", "\"ci\""},
        {ROWS("{" KEY ON ", \"off\": {\"strategy\": \"self\", " SKINNY "\"us\": 1}}"), "off", "\"ci\" is missing"},
        {ROWS("{" KEY "\"cublaslt_us\": -2, " ON ", " OFF "}"), "row 1", "\"cublaslt_us\" is -2"},
        {ROWS("{" KEY "\"note\": 1, " ON ", " OFF "}"), "row 1", "\"note\""},
    };
    pz_device d = h200();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pz_tuned *t = (pz_tuned *)&d;
        pz_error err;
        assert_fails(pz_tuned_parse(bad[i].text, strlen(bad[i].text), "t.json", &d, &t, &err), PZ_E_FORMAT, &err,
                     bad[i].first, bad[i].second);
        assert_null(t);
    }
    pz_tuned *good = parse(ROWS(ROW)); /* the same pieces are a table */
    assert_int_equal(good->rows.n, 1);
    pz_tuned_free(good);
}

/* A row for another device, number of SMs or version of the kernels is counted and never used. */
static void test_stale(void **state) {
    (void)state;
    static const char *const heads[] = {
        "{\"device\": \"h100\", \"units\": 132, \"kernels\": \"" PZ_GEMM_KERNEL_VERSION "\", ",
        "{\"device\": \"h200\", \"units\": 78, \"kernels\": \"" PZ_GEMM_KERNEL_VERSION "\", ",
        "{\"device\": \"h200\", \"units\": 132, \"kernels\": \"" PZ_GEMM_KERNEL_VERSION "-old\", ",
    };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        char text[4096];
        snprintf(text, sizeof text, "%s%s", heads[i],
                 NAMES "\"gate\": {\"fill\": 1}, \"collectives\": [" COLLECTIVE "], \"rows\": [" ROW "]}");
        pz_tuned *t = parse(text);
        assert_int_equal(t->collectives.n, 0);
        assert_int_equal(t->stale_collectives, 1);
        assert_int_equal(t->rows.n, 0);
        assert_int_equal(t->stale, 1);
        pz_device d = h200(), same = d;
        pz_device_tune(&d, t);
        assert_true(d.gate.fill == same.gate.fill);
        pz_gemm_shape s = shape(64, 256, PZ_ACCUM_FIXED, 4);
        assert_false(pz_gemm_choose(&d, &s).tuned);
        pz_tuned_free(t);
    }
}

/* A collective of another version of its kernel is checked, counted and not used; GEMMs are not stale for that. */
static void test_stale_collectives(void **state) {
    (void)state;
    static const char old[] = "{\"kernels\": \"0\", \"ranks\": 2, \"hidden\": 64, \"one_shot\": 8, ";
    char text[4096];
    snprintf(text, sizeof text, "%s%s%s%s%s", HEAD NAMES "\"collectives\": [", old, COST "}, " COLLECTIVE ", ", old,
             COST "}], \"rows\": [" ROW "]}");
    pz_tuned *t = parse(text), *none;
    assert_int_equal(t->collectives.n, 1);
    assert_int_equal(t->stale_collectives, 2);
    assert_int_equal(t->rows.n, 1);
    assert_int_equal(t->stale, 0);
    pz_tuned_free(t);
    snprintf(text, sizeof text, "%s%s%s", HEAD NAMES "\"collectives\": [", old, "\"ar_base\": 3}], \"rows\": []}");
    pz_device d = h200();
    pz_error err;
    assert_fails(pz_tuned_parse(text, strlen(text), "t.json", &d, &none, &err), PZ_E_FORMAT, &err, "collective 1",
                 "\"ar_row\"");
}

static void test_save(void **state) {
    (void)state;
    char *dir = support_tmp_dir(), *path = support_path(dir, "h200.json");
    pz_device d = h200();
    pz_tuned *t = new_table(), *back;
    pz_error err;
    put(t, row(384, 7168, PZ_ACCUM_FIXED, 8));
    assert_ok(pz_tuned_save(t, path, &err), &err);
    put(t, row(384, 7168, PZ_ACCUM_FIXED, 16));
    assert_ok(pz_tuned_save(t, path, &err), &err);
    assert_int_equal(support_count_entries(dir), 1); /* nothing half written beside it */
    assert_ok(pz_tuned_load(path, &d, &back, &err), &err);
    assert_int_equal(back->rows.n, 2);
    pz_tuned_free(back);
    char *nowhere = support_path(dir, "no/where.json");
    assert_fails(pz_tuned_save(t, nowhere, &err), PZ_E_NOTFOUND, &err, "where.json");
    assert_fails(pz_tuned_load(nowhere, &d, &back, &err), PZ_E_NOTFOUND, &err, "where.json");

    /* by the knob */
    assert_int_equal(setenv("PREZERO_TUNED", path, 1), 0);
    assert_ok(pz_tuned_open(&d, &back, &err), &err);
    assert_int_equal(back->rows.n, 2);
    assert_string_equal(back->source, path);
    pz_tuned_free(back);
    assert_int_equal(setenv("PREZERO_TUNED", "none", 1), 0);
    assert_ok(pz_tuned_open(&d, &back, &err), &err);
    assert_null(back);
    assert_int_equal(setenv("PREZERO_TUNED", nowhere, 1), 0);
    assert_fails(pz_tuned_open(&d, &back, &err), PZ_E_NOTFOUND, &err, "where.json");
    assert_int_equal(unsetenv("PREZERO_TUNED"), 0);
    pz_tuned_free(t);
    pz_free(nowhere);
    pz_free(path);
    support_tmp_remove(dir);
}

/* Every table that is built in is one: for its device, in the form that save writes, with rows of these kernels or
 * none.
 */
static void test_built_in(void **state) {
    (void)state;
    for (const pz_builtin_table *b = pz_builtin_tables; b->name; b++) {
        pz_device d;
        pz_error err;
        pz_tuned *t;
        pz_device_gpu(b->name, 90, 132, &d);
        assert_string_equal(d.name, b->name);
        assert_ok(pz_tuned_parse((const char *)b->text, b->size, b->name, &d, &t, &err), &err);
        assert_string_equal(t->device, b->name);
        d.units = t->units;
        pz_tuned_free(t);
        assert_ok(pz_tuned_parse((const char *)b->text, b->size, b->name, &d, &t, &err), &err);
        char *text = text_of(t);
        if (!t->stale) assert_true(strlen(text) == b->size && memcmp(text, b->text, b->size) == 0);
        pz_free(text);
        pz_tuned_free(t);
        assert_ok(pz_tuned_open(&d, &t, &err), &err);
        assert_non_null(t);
        pz_tuned_free(t);
    }
    pz_device cpu;
    pz_error err;
    pz_tuned *t;
    assert_ok(pz_device_find("cpu", 2, &cpu, &err), &err);
    assert_ok(pz_tuned_open(&cpu, &t, &err), &err);
    assert_null(t);
}

/* Every family of our own may serve every accumulator. */
static void test_families(void **state) {
    (void)state;
    static const pz_gemm_config good[] = {{240, 12, PZ_GEMM_SKINNY, 1, 0, 1}, {16, 2, PZ_GEMM_SKINNY, 16, 3, 0},
                                          {64, 18, PZ_GEMM_GROUP, 4, 0, 0},   {256, 2, PZ_GEMM_GROUP, 1, 2, 1},
                                          {64, 4, PZ_GEMM_WIDE, 3, 6, 4},     {192, 12, PZ_GEMM_WIDE, 1, 0, 1}};
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_BF16; accum++)
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
            pz_tuned *t = new_table(), *back;
            pz_tuned_row r = row(2112, 7168, (pz_accum)accum, 8);
            r.on.config = r.off.config = good[i];
            put(t, r);
            char *text = text_of(t);
            back = parse(text);
            const pz_tuned_row *got = pz_tuned_exact(back, &r.shape);
            assert_non_null(got);
            assert_int_equal(memcmp(&got->on.config, &good[i], sizeof good[i]), 0);
            pz_free(text);
            pz_tuned_free(back);
            pz_tuned_free(t);
        }
}

static void test_bad_rows(void **state) {
    (void)state;
    pz_tuned *t = new_table();
    pz_error err;
    pz_tuned_row r = row(384, 7168, PZ_ACCUM_FIXED, 8);
    r.shape.m = 0;
    assert_fails(pz_tuned_put(t, &r, &err), PZ_E_INVAL, &err, "m 0");
    r = row(384, 7168, PZ_ACCUM_FIXED, 8);
    r.on.strategy = PZ_ZERO_TICKET;
    assert_fails(pz_tuned_put(t, &r, &err), PZ_E_INVAL, &err, "on", "ticket");
    r = row(384, 7168, PZ_ACCUM_FIXED, 8);
    r.off.us = NAN;
    assert_fails(pz_tuned_put(t, &r, &err), PZ_E_INVAL, &err, "off", "\"us\"");
    assert_int_equal(t->rows.n, 0);
    pz_tuned_collective c = {2, 64, 0, 1, 1, 0};
    assert_fails(pz_tuned_put_collective(t, &c, &err), PZ_E_INVAL, &err, "\"one_shot\" is 0");
    c = (pz_tuned_collective){2, 64, 8, NAN, 1, 0};
    assert_fails(pz_tuned_put_collective(t, &c, &err), PZ_E_INVAL, &err, "\"ar_base\"");
    c = (pz_tuned_collective){2, 64, 8, 1, INFINITY, 0};
    assert_fails(pz_tuned_put_collective(t, &c, &err), PZ_E_INVAL, &err, "\"ar_row\" inf");
    assert_int_equal(t->collectives.n, 0);
    c = (pz_tuned_collective){2, 64, 8, 1, 2, 3};
    assert_ok(pz_tuned_put_collective(t, &c, &err), &err);
    c.one_shot = 9; /* of the same key: replaced */
    assert_ok(pz_tuned_put_collective(t, &c, &err), &err);
    assert_int_equal(t->collectives.n, 1);
    assert_int_equal(t->collectives.at[0].one_shot, 9);
    assert_null(pz_tuned_collective_exact(t, 2, 63));
    assert_null(pz_tuned_collective_find(t, 3, 64));
    pz_tuned_free(t);
}

/* ---- plans by the table ---- */
/* Rows of the layer's GEMMs: qkv_a prezeroes or reduces, q_b is best not split, o_proj prezeroes or takes tickets, the
 * router gate prezeroes for no gain, lm_head zeroes by a memset. */
static pz_tuned *layer_table(int m) {
    pz_tuned *t = new_table();
    pz_tuned_row r = row(704, 256, PZ_ACCUM_FIXED, m);
    r.off.us = 12.5;
    put(t, r);
    r = row(768, 128, PZ_ACCUM_FIXED, m);
    r.on = r.off = choice(PZ_ZERO_NONE, 16, 1, 2);
    put(t, r);
    r = row(256, 512, PZ_ACCUM_FIXED, m);
    r.off = choice(PZ_ZERO_TICKET, 16, 2, 4.5);
    put(t, r);
    r = row(8, 256, PZ_ACCUM_FIXED, m);
    r.off = choice(PZ_ZERO_SELF, 16, 2, 2.5);
    put(t, r);
    r = row(64, 256, PZ_ACCUM_FIXED, m);
    r.off = choice(PZ_ZERO_MEMSET, 48, 2, 5);
    put(t, r);
    return t;
}

static const pz_launch *gemm_of(const pz_plan *p, const char *role) {
    return &p->launches.at[support_launch(p, role, 0)];
}

static void check_launch(const pz_plan *p, const char *role, pz_strategy strategy, int tile_n, int split) {
    const pz_launch *la = gemm_of(p, role);
    assert_string_equal(pz_strategy_text(la->strategy), pz_strategy_text(strategy));
    assert_int_equal(la->gemm.tile_n, tile_n);
    assert_int_equal(la->gemm.split, split);
    assert_int_equal(la->gemm.family, PZ_GEMM_SKINNY);
    assert_int_equal(la->workspace, -1); /* the backend has it */
    assert_true(p->proven > 20);
}

static pz_plan *plan_of(const pz_graph *g, const pz_tuned *t, int m, pz_gate_mode gate, int strategy, bool prefill) {
    pz_plan_options o = support_plan_options("h200", 0, m);
    o.gate = gate;
    o.strategy = strategy;
    o.prefill = prefill;
    pz_device_tune(&o.device, t);
    return support_plan(g, &o);
}

static void test_plan_choices(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    pz_tuned *t = layer_table(8);
    for (int m = 3; m <= 8; m += 5) { /* 3 rows are served by the row of 8 */
        pz_plan *p = plan_of(g, t, m, PZ_GATE_AUTO, PZ_STRATEGY_AUTO, false);
        check_launch(p, "gemm qkv_a", PZ_ZERO_PREZERO, 64, 4);
        check_launch(p, "gemm q_b", PZ_ZERO_NONE, 16, 1);
        check_launch(p, "gemm o_proj", PZ_ZERO_PREZERO, 64, 4);
        check_launch(p, "gemm gate", PZ_ZERO_PREZERO, 64, 4);   /* no gain, but free */
        check_launch(p, "gemm lm_head", PZ_ZERO_MEMSET, 48, 2); /* no donor */
        const pz_fill *f = &p->fills.at[0];
        assert_int_equal(f->n_active, 2);
        assert_int_equal(f->bytes, pz_align_up((size_t)(704 * 4 * m), 64) + pz_align_up((size_t)(256 * 4 * m), 64));
        assert_true(fabs(f->gates.at[0].replaced_us - 10) < 1e-9); /* as measured */
        assert_true(fabs(f->gates.at[1].replaced_us - 12) < 1e-9);
        for (int s = f->first_slice; s < f->first_slice + f->n_slices; s++)
            if (pz_streq(p->slices.at[s].name, "q_b"))
                assert_string_equal(pz_slice_inactive_reason(p, &p->slices.at[s]), "not split, so nothing to zero");
        char *text;
        pz_error err;
        assert_ok(pz_plan_text(p, &text, &err), &err);
        assert_contains(text, "{fixed, skinny tile_n 48, split 2, warps 2, stages 1, depth 0, memset}");
        pz_free(text);
        pz_plan_free(p);
    }
    /* A measured difference has a rider in it: the donor's own is not counted again. */
    t->gate.rider = 3;
    pz_plan *ridden = plan_of(g, t, 8, PZ_GATE_AUTO, PZ_STRATEGY_AUTO, false);
    for (int i = 0; i < 2; i++) {
        const pz_gate_result *r = &ridden->fills.at[0].gates.at[i];
        assert_true(fabs(r->added_us - 3) < 1e-9 && r->verdict == PZ_GATE_PAYS);
        assert_true(fabs(r->replaced_us - (i ? 12 + 2 * 3 : 10 + 3)) < 1e-9);
    }
    pz_plan_free(ridden);
    t->gate.rider = NAN;
    pz_plan *shut = plan_of(g, t, 8, PZ_GATE_SHUT, PZ_STRATEGY_AUTO, false);
    pz_plan *prefill = plan_of(g, t, 8, PZ_GATE_OPEN, PZ_STRATEGY_AUTO, true);
    const pz_plan *both[] = {shut, prefill};
    for (int i = 0; i < 2; i++) {
        check_launch(both[i], "gemm qkv_a", PZ_ZERO_REDUCE, 32, 2);
        check_launch(both[i], "gemm q_b", PZ_ZERO_NONE, 16, 1);
        check_launch(both[i], "gemm o_proj", PZ_ZERO_TICKET, 16, 2);
        check_launch(both[i], "gemm gate", PZ_ZERO_SELF, 16, 2);
        check_launch(both[i], "gemm lm_head", PZ_ZERO_MEMSET, 48, 2);
        assert_int_equal(both[i]->fill_bytes, 0);
    }
    pz_plan_free(prefill);
    pz_plan_free(shut);
    /* beyond the largest bucket of the table: the model */
    pz_plan *above = plan_of(g, t, 9, PZ_GATE_AUTO, PZ_STRATEGY_AUTO, false);
    assert_false(gemm_of(above, "gemm qkv_a")->choices.tuned);
    pz_plan_free(above);
    pz_tuned_free(t);
    pz_graph_free(g);
}

/* A strategy that is asked for replaces the choice without a zeroed output, and nothing else. */
static void test_plan_override(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    pz_tuned *t = layer_table(8);
    static const pz_strategy split[] = {PZ_ZERO_SELF, PZ_ZERO_REDUCE, PZ_ZERO_TICKET, PZ_ZERO_MEMSET};
    for (size_t i = 0; i < sizeof split / sizeof *split; i++) {
        pz_plan *p = plan_of(g, t, 8, PZ_GATE_AUTO, (int)split[i], false);
        check_launch(p, "gemm qkv_a", PZ_ZERO_PREZERO, 64, 4);
        check_launch(p, "gemm q_b", PZ_ZERO_NONE, 16, 1); /* best not split, so there is nothing to zero */
        pz_plan_free(p);
        p = plan_of(g, t, 8, PZ_GATE_SHUT, (int)split[i], false);
        bool own = split[i] == PZ_ZERO_REDUCE;
        check_launch(p, "gemm qkv_a", split[i], own ? 32 : 64, own ? 2 : 4);
        check_launch(p, "gemm q_b", PZ_ZERO_NONE, 16, 1);
        pz_plan_free(p);
    }
    pz_plan *p = plan_of(g, t, 8, PZ_GATE_SHUT, PZ_ZERO_NONE, false);
    for (int i = 0; i < p->launches.n; i++) {
        const pz_launch *la = &p->launches.at[i];
        if (la->op == PZ_OP_GEMM) assert_true(la->strategy == PZ_ZERO_NONE && la->gemm.split == 1);
    }
    pz_plan_free(p);
    pz_tuned_free(t);
    pz_graph_free(g);
}

/* The gate weighs what was measured: without a gain, a rider that costs anything is not worth it. */
static void test_plan_gate(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    pz_tuned *t = layer_table(8);
    t->gate.rider = 0.5;
    pz_plan *p = plan_of(g, t, 8, PZ_GATE_AUTO, PZ_STRATEGY_AUTO, false);
    check_launch(p, "gemm qkv_a", PZ_ZERO_PREZERO, 64, 4);
    check_launch(p, "gemm gate", PZ_ZERO_SELF, 16, 2); /* saves 0, costs 0.5 */
    assert_int_equal(p->fills.at[1].level, 0);
    assert_int_equal(p->fills.at[1].gates.at[0].verdict, PZ_GATE_CLOSED);
    pz_plan_free(p);
    pz_tuned_free(t);
    pz_graph_free(g);
}

/* The CPU knows no table, and no strategy of a GPU. */
static void test_cpu(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    pz_plan_options o = support_plan_options("cpu", 2, 3);
    pz_tuned *t = layer_table(8);
    pz_plan *p = support_plan(g, &o), *tuned, *with_auto;
    pz_error err;
    pz_device_tune(&o.device, t);
    tuned = support_plan(g, &o);
    o.strategy = PZ_STRATEGY_AUTO;
    with_auto = support_plan(g, &o);
    char *a, *b, *c;
    assert_ok(pz_plan_text(p, &a, &err), &err);
    assert_ok(pz_plan_text(tuned, &b, &err), &err);
    assert_ok(pz_plan_text(with_auto, &c, &err), &err);
    assert_string_equal(a, b);
    assert_string_equal(a, c);
    pz_free(a);
    pz_free(b);
    pz_free(c);
    pz_plan_free(p);
    pz_plan_free(tuned);
    pz_plan_free(with_auto);
    o.strategy = PZ_ZERO_TICKET;
    assert_fails(pz_plan_create(g, &o, &p, &err), PZ_E_INVAL, &err, "ticket", "cpu", "reduce or none");
    o.strategy = PZ_ZERO_MEMSET;
    assert_fails(pz_plan_create(g, &o, &p, &err), PZ_E_INVAL, &err, "memset");
    pz_plan_options gpu = support_plan_options("h200", 0, 3);
    gpu.strategy = PZ_ZERO_PREZERO;
    assert_fails(pz_plan_create(g, &gpu, &p, &err), PZ_E_INVAL, &err, "prezero", "ticket, memset");
    pz_tuned_free(t);
    pz_graph_free(g);
}

static pz_status parse_once(void *ctx) {
    pz_device d = h200();
    pz_tuned *t;
    char *text = NULL;
    pz_error err;
    pz_status st = pz_tuned_parse(ctx, strlen(ctx), "t.json", &d, &t, &err);
    if (st == PZ_OK) st = pz_tuned_text(t, &text, &err);
    pz_free(text);
    pz_tuned_free(t);
    return st;
}

static void test_memory(void **state) {
    (void)state;
    char text[] = HEAD NAMES "\"collectives\": [" COLLECTIVE "], \"rows\": [" ROW "]}";
    assert_true(support_alloc_sweep(parse_once, text) > 6);
    assert_true(support_alloc_sweep_json(parse_once, text) > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_stale),
        cmocka_unit_test(test_stale_collectives),
        cmocka_unit_test(test_save),
        cmocka_unit_test(test_built_in),
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_plan_choices),
        cmocka_unit_test(test_plan_override),
        cmocka_unit_test(test_plan_gate),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
