/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <stdio.h>

#include "base/rng.h"

/* ---- status and errors ---- */
static void test_status_table(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int value;
    } abi[] = {{"OK", 0},           {"E_NOMEM", -1},  {"E_INVAL", -2},     {"E_IO", -3},       {"E_FORMAT", -4},
               {"E_PARSE", -5},     {"E_TYPE", -6},   {"E_VERIFY", -7},    {"E_PROOF", -8},    {"E_UNSUPPORTED", -9},
               {"E_NOTFOUND", -10}, {"E_RANGE", -11}, {"E_INTERNAL", -12}, {"E_TIMEOUT", -13}, {"E_PEER", -14}};
    for (size_t i = 0; i < sizeof abi / sizeof abi[0]; i++) {
        assert_string_equal(pz_status_name((pz_status)abi[i].value), abi[i].name);
        assert_string_not_equal(pz_status_text((pz_status)abi[i].value), "unknown status");
    }
    static const int outside[] = {1, -15, 1000, INT32_MIN};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        int v = outside[i];
        pz_status st;
        memcpy(&st, &v, sizeof st); /* as a caller of another language could pass it */
        assert_string_equal(pz_status_name(st), "E_UNKNOWN");
        assert_string_equal(pz_status_text(st), "unknown status");
    }
    int major, minor, patch;
    assert_int_equal(sscanf(pz_version(), "%d.%d.%d", &major, &minor, &patch), 3);
}

static void test_fail(void **state) {
    (void)state;
    pz_error err = {0};
    assert_int_equal(pz_fail(&err, PZ_E_RANGE, "%d is\nno %s\r", 7, "good"), PZ_E_RANGE);
    assert_int_equal(err.code, PZ_E_RANGE);
    assert_string_equal(err.msg, "7 is no good ");
    assert_int_equal(pz_fail(NULL, PZ_E_IO, "%s", "unheard"), PZ_E_IO);

    assert_int_equal(pz_fail_context(&err, PZ_E_INTERNAL, "row %d", 3), PZ_E_RANGE);
    assert_string_equal(err.msg, "row 3: 7 is no good ");
    assert_int_equal(pz_fail_context(NULL, PZ_E_INTERNAL, "row %d", 3), PZ_E_INTERNAL);

    char longer[2 * sizeof err.msg];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    pz_fail(&err, PZ_E_IO, "%s", longer);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    pz_fail_context(&err, PZ_E_IO, "%s", longer);
    assert_true(strlen(err.msg) < sizeof err.msg);
    assert_contains(err.msg, ": aaa");
}

/* ---- memory ---- */
static bool all_zero(const void *p, size_t n) {
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++)
        if (b[i]) return false;
    return true;
}

static void test_memory(void **state) {
    (void)state;
    volatile size_t huge = SIZE_MAX; /* hidden from the compiler's own check of allocation sizes */
    char *p = pz_calloc(3, 5);
    assert_true(all_zero(p, 15));
    assert_null(pz_calloc(huge / 2, 3));
    assert_null(pz_realloc(p, huge / 2, 3));
    p = pz_realloc(p, 40, 1); /* still valid after the failure */
    assert_non_null(p);
    assert_true(all_zero(p, 15));
    pz_free(p);
    pz_free(NULL);
    void *none = pz_calloc(0, 0);
    assert_non_null(none);
    pz_free(none);

    for (size_t n = 0; n < 300; n += 13) {
        void *a = pz_aligned_calloc(n);
        assert_non_null(a);
        assert_int_equal((uintptr_t)a % 64, 0);
        assert_true(all_zero(a, n));
        pz_free(a);
    }
    assert_null(pz_aligned_calloc(huge));
    assert_null(pz_aligned_calloc(huge - 64));

    char *s = pz_strndup("prezero", 3);
    assert_string_equal(s, "pre");
    pz_free(s);
    s = pz_strdup("");
    assert_string_equal(s, "");
    pz_free(s);
}

static void test_fail_after(void **state) {
    (void)state;
    pz_alloc_fail_after(2);
    void *a = pz_calloc(1, 1), *b = pz_aligned_calloc(1), *c = pz_calloc(1, 1), *d = pz_realloc(NULL, 1, 1);
    void *e = pz_aligned_calloc(1);
    char *f = pz_strdup("f");
    pz_alloc_fail_after(-1);
    void *g = pz_calloc(1, 1);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(c);
    assert_null(d);
    assert_null(e);
    assert_null(f);
    assert_non_null(g);
    pz_free(a);
    pz_free(b);
    pz_free(g);
}

static void test_arena(void **state) {
    (void)state;
    pz_arena a = {0};
    /* Sizes on both sides of a chunk's size; every object keeps its bytes and is aligned. */
    static const size_t sizes[] = {0, 1, 15, 16, 17, 1000, 8191, 8192, 8193, 16384, 16385, 100000, 3};
    enum { N = sizeof sizes / sizeof sizes[0], ROUNDS = 40 };
    unsigned char *at[ROUNDS][N];
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < N; i++) {
            unsigned char *p = pz_arena_alloc(&a, sizes[i]);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 16, 0);
            assert_true(all_zero(p, sizes[i]));
            memset(p, r * N + i + 1, sizes[i]);
            at[r][i] = p;
        }
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < N; i++)
            for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(at[r][i][k], (unsigned char)(r * N + i + 1));
    assert_string_equal(pz_arena_strdup(&a, "whole"), "whole");
    assert_string_equal(pz_arena_strndup(&a, "part of", 4), "part");
    assert_string_equal(pz_arena_printf(&a, "%s %d", "layer", 61), "layer 61");
    assert_null(pz_arena_alloc(&a, SIZE_MAX));
    pz_arena_free(&a);
    assert_null(a.head);
    pz_arena_free(&a);
}

/* An arena whose head has room keeps that room when a large object comes between. */
static void test_arena_large_keeps_head(void **state) {
    (void)state;
    pz_arena a = {0};
    char *first = pz_arena_alloc(&a, 16);
    assert_non_null(pz_arena_alloc(&a, 50000));
    assert_ptr_equal(pz_arena_alloc(&a, 16), first + 16);
    pz_arena_free(&a);
}

static pz_status fill_arena(void *ctx) {
    (void)ctx;
    pz_arena a = {0};
    pz_error err;
    pz_status st = PZ_OK;
    for (int i = 0; i < 20 && st == PZ_OK; i++)
        if (!pz_arena_printf(&a, "%01000d", i) || !pz_arena_alloc(&a, 9000) || !pz_arena_strdup(&a, "x"))
            st = PZ_NOMEM(&err);
    pz_arena_free(&a);
    return st;
}

/* ---- vector, string ---- */
static void test_vector(void **state) {
    (void)state;
    pz_error err;
    PZ_VEC(int64_t) v = {0};
    for (int i = 0; i < 1000; i++) assert_ok(pz_push(&v, (int64_t)i * i, &err), &err);
    assert_int_equal(v.n, 1000);
    for (int i = 0; i < v.n; i++) assert_int_equal(v.at[i], (int64_t)i * i);
    pz_alloc_fail_after(0);
    int cap = v.cap;
    v.n = cap;
    pz_status st = pz_push(&v, 1, &err);
    pz_alloc_fail_after(-1);
    assert_int_equal(st, PZ_E_NOMEM);
    assert_int_equal(err.code, PZ_E_NOMEM);
    assert_int_equal(v.n, cap); /* unchanged by the failure */
    assert_int_equal(v.at[999], 999 * 999);
    pz_vec_free(&v);
    assert_null(v.at);

    void *none = NULL;
    int full = INT32_MAX / 2 + 1;
    assert_false(pz_vec_grow(&none, &full, full, 1));
}

static void test_string(void **state) {
    (void)state;
    pz_error err;
    pz_str b = {0};
    char *out;
    assert_ok(pz_str_take(&b, &out, &err), &err);
    assert_string_equal(out, "");
    pz_free(out);

    for (int i = 0; i < 500; i++) {
        pz_str_add(&b, "ab");
        pz_str_addn(&b, "cdX", 2);
        pz_str_addf(&b, "%03d", i);
    }
    assert_int_equal(b.n, 500 * 7);
    assert_ok(pz_str_take(&b, &out, &err), &err);
    assert_int_equal(strlen(out), 500 * 7);
    for (int i = 0; i < 500; i++) {
        char want[8];
        snprintf(want, sizeof want, "abcd%03d", i);
        assert_memory_equal(out + i * 7, want, 7);
    }
    pz_free(out);
    assert_null(b.s); /* empty again */

    pz_str_addn(&b, "a\0b", 3); /* bytes, not only text */
    assert_int_equal(b.n, 3);
    assert_memory_equal(b.s, "a\0b", 4);
    pz_str_free(&b);

    /* A failed add is remembered, and what comes after it is dropped. */
    pz_alloc_fail_after(0);
    pz_str_add(&b, "lost");
    pz_alloc_fail_after(-1);
    pz_str_add(&b, "late");
    assert_status(pz_str_take(&b, &out, &err), PZ_E_NOMEM, &err);
    assert_null(out);
    volatile size_t huge = SIZE_MAX;
    pz_str_add(&b, "x");
    pz_str_addn(&b, "x", huge);
    assert_true(b.failed);
    pz_str_free(&b);
}

static pz_status build_string(void *ctx) {
    (void)ctx;
    pz_error err;
    pz_str b = {0};
    for (int i = 0; i < 3000; i++) pz_str_addf(&b, "%d,", i);
    char *out;
    PZ_TRY(pz_str_take(&b, &out, &err));
    pz_free(out);
    return PZ_OK;
}

static void test_no_memory(void **state) {
    (void)state;
    assert_in_range(support_alloc_sweep(fill_arena, NULL), 20, 100);
    assert_in_range(support_alloc_sweep(build_string, NULL), 6, 20);
}

static void test_arithmetic(void **state) {
    (void)state;
    size_t out;
    assert_true(pz_mul_ok(SIZE_MAX / 3, 3, &out) && out == SIZE_MAX / 3 * 3);
    assert_false(pz_mul_ok(SIZE_MAX / 2 + 1, 2, &out));
    assert_true(pz_add_ok(SIZE_MAX - 1, 1, &out) && out == SIZE_MAX);
    assert_false(pz_add_ok(SIZE_MAX, 1, &out));
    assert_int_equal(pz_ceil_div(0, 4), 0);
    assert_int_equal(pz_ceil_div(1, 4), 1);
    assert_int_equal(pz_ceil_div(4, 4), 1);
    assert_int_equal(pz_ceil_div(5, 4), 2);
    assert_int_equal(pz_align_up(0, 64), 0);
    assert_int_equal(pz_align_up(65, 64), 128);
    assert_true(pz_streq("a", "a") && pz_streq(NULL, NULL));
    assert_false(pz_streq("a", "b") || pz_streq(NULL, "a") || pz_streq("a", NULL));
    int64_t t = pz_now_ns();
    assert_true(t > 0 && pz_now_ns() >= t);
}

/* ---- UTF-8 ---- */
/* Encodes as RFC 3629 has it, without its limits: also what is not allowed. */
static size_t encode(uint32_t c, size_t len, char *out) {
    static const unsigned char lead[] = {0, 0x00, 0xC0, 0xE0, 0xF0};
    for (size_t i = len; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[len] | c);
    return len;
}

static void test_utf8_code_points(void **state) {
    (void)state;
    char b[4];
    /* Every code point in its shortest form is valid unless a surrogate; every longer form is not. */
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        size_t shortest = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        bool surrogate = c >= 0xD800 && c <= 0xDFFF;
        for (size_t len = shortest; len <= 4; len++) {
            size_t bad = 99, n = encode(c, len, b);
            bool want = len == shortest && !surrogate;
            if (pz_utf8_valid(b, n, &bad) != want) fail_msg("U+%04X in %zu bytes", c, len);
            if (!want) assert_int_equal(bad, 0);
        }
    }
    for (uint32_t c = 0x110000; c <= 0x1FFFFF; c += 0xFFF) assert_false(pz_utf8_valid(b, encode(c, 4, b), NULL));
}

static void test_utf8_sequences(void **state) {
    (void)state;
    static const struct {
        const char *s;
        size_t n, bad; /* bad == n: valid */
    } cases[] = {
        {"", 0, 0},
        {"a\0b", 3, 3},
        {"\xC3\xA9t\xC3\xA9", 5, 5},
        {"\xE2\x82", 2, 0},   /* cut short */
        {"ab\xE2\x82", 4, 2}, /* cut short later */
        {"ab\xE2\x82\xAC\xF0\x9F", 7, 5},
        {"\x80", 1, 0}, /* continuation alone */
        {"a\xBFz", 3, 1},
        {"\xC3z", 2, 0}, /* continuation missing */
        {"\xF0\x9F\x98z", 4, 0},
        {"a\xC0\xAF", 3, 1}, /* overlong "/" */
        {"a\xC1\xBF", 3, 1},
        {"\xED\xA0\x80\xED\xB0\x80", 6, 0}, /* surrogate pair */
        {"x\xF4\x90\x80\x80", 5, 1},        /* above U+10FFFF */
        {"x\xF5\x80\x80\x80", 5, 1},
        {"x\xF8\x88\x80\x80\x80", 6, 1}, /* five bytes */
        {"x\xFE", 2, 1},
        {"x\xFF", 2, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bad = cases[i].n;
        char *exact = malloc(cases[i].n + 1); /* no byte behind the text that could be read unseen */
        assert_non_null(exact);
        char *at = exact + 1;
        memcpy(at, cases[i].s, cases[i].n);
        bool ok = pz_utf8_valid(at, cases[i].n, &bad);
        free(exact);
        if (ok != (cases[i].bad == cases[i].n) || bad != cases[i].bad) fail_msg("case %zu: bad byte at %zu", i, bad);
    }
}

/* Published first outputs for the seed 1234567. */
static void test_rng(void **state) {
    (void)state;
    static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                    4593380528125082431u, 16408922859458223821u};
    uint64_t s = 1234567;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) assert_true(pz_rng_next(&s) == want[i]);
    double sum = 0;
    for (int i = 0; i < 100000; i++) {
        double u = pz_rng_unit(&s);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(sum > 49500 && sum < 50500); /* 5.4 standard deviations */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_table),
        cmocka_unit_test(test_fail),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_fail_after),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_large_keeps_head),
        cmocka_unit_test(test_vector),
        cmocka_unit_test(test_string),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_utf8_code_points),
        cmocka_unit_test(test_utf8_sequences),
        cmocka_unit_test(test_rng),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
