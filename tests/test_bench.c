/* SPDX-License-Identifier: Apache-2.0 */
/* `prezero bench`: shapes by name, and the results as text, JSON and pages, from numbers that are made up. */
#include "support.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench.h"

/* ---- lists ---- */
static void expect_shapes(const char *text, int count, const bench_shape *expected) {
    bench_shape got[BENCH_MAX_SHAPES];
    int n;
    assert_int_equal(bench_read_shapes(text, got, &n), CLI_OK);
    assert_int_equal(n, count);
    for (int i = 0; i < n; i++) {
        assert_string_equal(got[i].name, expected[i].name);
        if (got[i].n != expected[i].n || got[i].k != expected[i].k)
            fail_msg("%s: %s is %d x %d", text, got[i].name, got[i].n, got[i].k);
    }
}
#define SHAPES(text, ...) \
    expect_shapes(text, (int)(sizeof((bench_shape[]){__VA_ARGS__}) / sizeof(bench_shape)), (bench_shape[]){__VA_ARGS__})

static void test_shapes(void **state) {
    (void)state;
    SHAPES("kimi-tp4", {"qkv_a", 2112, 7168}, {"gate", 384, 7168}, {"q_b", 3072, 1536}, {"o_proj", 7168, 2048});
    SHAPES("kimi-tp1", {"qkv_a", 2112, 7168}, {"gate", 384, 7168}, {"q_b", 12288, 1536}, {"o_proj", 7168, 8192});
    SHAPES("kimi-tp8", {"qkv_a", 2112, 7168}, {"gate", 384, 7168}, {"q_b", 1536, 1536}, {"o_proj", 7168, 1024});
    SHAPES("deepseek-tp8", {"qkv_a", 2112, 7168}, {"gate", 256, 7168}, {"q_b", 3072, 1536}, {"o_proj", 7168, 2048});
    SHAPES("llama70b-tp4", {"qkv", 2560, 8192}, {"o_proj", 8192, 2048}, {"gate_up", 14336, 8192}, {"down", 8192, 7168});
    SHAPES("2112,7168", {"2112x7168", 2112, 7168});
    SHAPES("8,16;163840,7168;", {"8x16", 8, 16}, {"163840x7168", 163840, 7168});
}

static void test_bad_shapes(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",        "kimi",       "kimi-tp", "kimi-tp0",  "kimi-tp4x",   "kim-tp4",     "kimi-tp999",  "kimi-tp7",
        "gpt-tp2", "2112",       "2112,",   "2112x7168", "2112,7168,",  "2112,7168 ;", "0,7168",      "2112,8",
        "2112,24", "2112,16400", "-5,64",   "4,64;x",    "99999999,64", "-tp4",        "llama70b-tp1"};
    bench_shape got[BENCH_MAX_SHAPES];
    int n;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (bench_read_shapes(bad[i], got, &n) != CLI_USAGE) fail_msg("\"%s\" was taken", bad[i]);
    char many[BENCH_MAX_SHAPES * 8 + 16] = "";
    for (int i = 0; i <= BENCH_MAX_SHAPES; i++) strcat(many, "64,64;");
    assert_int_equal(bench_read_shapes(many, got, &n), CLI_USAGE);
    many[BENCH_MAX_SHAPES * 6] = 0;
    assert_int_equal(bench_read_shapes(many, got, &n), CLI_OK);
    assert_int_equal(n, BENCH_MAX_SHAPES);
}

static void test_names(void **state) {
    (void)state;
    int got[BENCH_STRATEGIES], n;
    assert_int_equal(bench_read_names("--x", "self,none,prezero", bench_strategies, BENCH_STRATEGIES, got, &n), CLI_OK);
    assert_int_equal(n, 3);
    assert_true(got[0] == PZ_ZERO_SELF && got[1] == PZ_ZERO_NONE && got[2] == PZ_ZERO_PREZERO);
    static const char *const bad[] = {"", "self,", ",self", "selfish", "self,self", "sel"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(bench_read_names("--x", bad[i], bench_strategies, BENCH_STRATEGIES, got, &n), CLI_USAGE);
    assert_int_equal(bench_read_names("--x", "bf16,fixed,f32", bench_accums, BENCH_ACCUMS, got, &n), CLI_OK);
    assert_true(got[0] == PZ_ACCUM_BF16 && got[1] == PZ_ACCUM_FIXED && got[2] == PZ_ACCUM_F32);
}

/* ---- results that are made up ---- */
enum { ROUNDS = 7, N_BATCHES = 2, N_SHAPES = 2 };

static pz_measure_times times(double us) {
    pz_measure_times t = {.n = ROUNDS, .us = us, .lo = us - 0.03, .hi = us + 0.02};
    for (int i = 0; i < ROUNDS; i++) t.samples[i] = us + 0.01 * (i - 3);
    return t;
}

static void measured(pz_measure_case *c, double us) {
    c->status = PZ_OK;
    c->gemm = times(us);
    c->pair = times(us + 3);
    c->used = (pz_gemm_config){.tile_n = 64, .split = 8, .family = PZ_GEMM_SKINNY, .warps = 2, .stages = 1};
    snprintf(c->name, sizeof c->name, "skinny tile_n 64, split 8");
    c->gbs = 30e3 / us;
    c->max_error = 1e-6;
}

/* prezero < reduce < self < memset < ticket < none by 1 us each, twice as long for each batch; cuBLASLt 12. */
static bench_gemm make(void) {
    static const double us[BENCH_STRATEGIES] = {13, 8, 10, 11, 9, 12};
    static int batches[N_BATCHES] = {1, 16};
    static pz_measure_case cases[N_SHAPES * N_BATCHES * (2 * BENCH_STRATEGIES + 1)];
    static pz_measure_times norms[N_SHAPES * N_BATCHES];
    bench_gemm b = {.command = "prezero bench gemm --shapes '2112,7168;384,7168'",
                    .device = {.product = "NVIDIA <H200> & co",
                               .units = 132,
                               .sm = 90,
                               .driver = 13010,
                               .runtime = 13000,
                               .cublaslt = 130000,
                               .copy_gbs = 4000},
                    .shapes = {{"qkv_a", 2112, 7168}, {"gate", 384, 7168}},
                    .n_shapes = N_SHAPES,
                    .measured = N_SHAPES,
                    .batches = {.at = batches, .n = N_BATCHES},
                    .accums = {PZ_ACCUM_FIXED, PZ_ACCUM_BF16},
                    .n_accums = 2,
                    .strategies = {0, 1, 2, 3, 4, 5},
                    .n_strategies = BENCH_STRATEGIES,
                    .cases = cases,
                    .norms = norms};
    memset(cases, 0, sizeof cases);
    for (int s = 0; s < N_SHAPES; s++)
        for (int m = 0; m < N_BATCHES; m++) {
            norms[s * N_BATCHES + m] = times(3);
            for (int a = 0; a < 2; a++)
                for (int i = 0; i < BENCH_STRATEGIES; i++) {
                    pz_measure_case *c = bench_case(&b, s, m, a, i);
                    c->accum = (pz_accum)b.accums[a];
                    c->strategy = (pz_strategy)i;
                    measured(c, us[i] * (m + 1) + 0.5 * a);
                }
            pz_measure_case *rival = bench_cublaslt(&b, s, m);
            rival->accum = PZ_ACCUM_BF16;
            rival->config.family = PZ_GEMM_CUBLASLT;
            measured(rival, 12.5 * (m + 1));
            rival->used = (pz_gemm_config){.split = 1, .family = PZ_GEMM_CUBLASLT, .stages = 3};
            rival->tried = 64;
        }
    return b;
}

static void fails(pz_measure_case *c, pz_status status, const char *message) {
    c->status = status;
    c->gemm.n = c->pair.n = 0;
    snprintf(c->message, sizeof c->message, "%s", message);
}

static char *text_of(const bench_gemm *b) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    bench_text_head(f, b);
    for (int s = 0; s < b->measured; s++) bench_text_shape(f, b, s);
    bench_text_sums(f, b);
    assert_int_equal(fclose(f), 0);
    return text;
}

static void test_best(void **state) {
    (void)state;
    bench_gemm b = make();
    const pz_measure_case *second, *best = bench_best(&b, 0, 1, 0, &second);
    assert_int_equal(best->strategy, PZ_ZERO_PREZERO);
    assert_int_equal(second->strategy, PZ_ZERO_REDUCE);
    fails(bench_case(&b, 0, 1, 0, PZ_ZERO_PREZERO), PZ_E_VERIFY, "wrong");
    best = bench_best(&b, 0, 1, 0, &second);
    assert_int_equal(best->strategy, PZ_ZERO_REDUCE);
    assert_int_equal(second->strategy, PZ_ZERO_SELF);
    assert_int_equal(bench_wrong(&b), 1);
    for (int i = 0; i < BENCH_STRATEGIES; i++) fails(bench_case(&b, 0, 1, 0, i), PZ_E_UNSUPPORTED, "no");
    assert_null(bench_best(&b, 0, 1, 0, &second));
    assert_null(second);
    bench_sum whole = bench_sum_of(&b, 0, 0), part = bench_sum_of(&b, 1, 0);
    assert_true(whole.measured && whole.rival && !part.measured);
    assert_true(whole.best_us == 16 && whole.rival_us == 25);
    assert_true(fabs(whole.floor_us - (2112 + 384) * 7168.0 * 2 / 4.3e6) < 1e-9);
}

static void test_text(void **state) {
    (void)state;
    bench_gemm b = make();
    char *text = text_of(&b);
    static const char *const parts[] = {
        "NVIDIA <H200> & co, 132 SMs, sm_90, CUDA 13.0 (driver 13.1), cuBLASLt 130000; copies 4000 GB/s",
        "qkv_a 2112 x 7168, fixed; floor 7.04 us",
        "gate 384 x 7168, bf16; floor 1.28 us",
        "    1  13.00 +-0.03   8.00 +-0.03  10.00 +-0.03  11.00 +-0.03   9.00 +-0.03  12.00 +-0.03 |   8.00 prezero  ",
        " |   8.00 prezero   12.50 +-0.03   0.64   3750     0.94\n",
        "    1: prezero (skinny tile_n 64, split 8), before reduce by 1.00 us [1.00, 1.00]; self - prezero 2.00 us",
        "   16    32.00     50.00   0.64     8.32      3.85\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) assert_contains(text, parts[i]);
    assert_null(strstr(text, "WRONG"));
    assert_null(strstr(text, "after its stores"));
    free(text);
    b.late = true;
    text = text_of(&b);
    assert_contains(text, "programmatic dependent launch, with a rider after its stores, geometries");
    free(text);

    fails(bench_case(&b, 0, 0, 1, PZ_ZERO_SELF), PZ_E_VERIFY, "wrong result: element [0, 1]");
    fails(bench_cublaslt(&b, 1, 1), PZ_E_UNSUPPORTED, "this build has no cuBLASLt");
    text = text_of(&b);
    assert_contains(text, "         WRONG");
    assert_contains(text, "    1: bf16 self: wrong result: element [0, 1]");
    assert_contains(text, "   16: cuBLASLt: this build has no cuBLASLt");
    assert_contains(text, "1 cases gave WRONG results");
    free(text);
}

static double number(const json_t *v, const char *key) {
    const json_t *n = json_object_get(v, key);
    assert_true(json_is_number(n));
    return json_number_value(n);
}

static void test_json(void **state) {
    (void)state;
    bench_gemm b = make();
    fails(bench_case(&b, 0, 0, 0, PZ_ZERO_SELF), PZ_E_VERIFY, "wrong result");
    json_t *v = bench_json(&b);
    assert_non_null(v);
    assert_true(number(v, "wrong") == 1);
    assert_true(json_is_false(json_object_get(v, "late")));
    assert_true(number(json_object_get(v, "device"), "copy_gbs") == 4000);
    const json_t *shapes = json_object_get(v, "shapes"), *shape = json_array_get(shapes, 0);
    assert_int_equal(json_array_size(shapes), N_SHAPES);
    const json_t *cases = json_object_get(shape, "cases");
    assert_int_equal(json_array_size(cases), N_BATCHES * (2 * BENCH_STRATEGIES + 1));
    size_t i, samples = 0, failed = 0, rivals = 0;
    const json_t *c;
    json_array_foreach(cases, i, c) {
        const json_t *gemm = json_object_get(c, "gemm");
        rivals += strcmp(json_string_value(json_object_get(c, "strategy")), "cublaslt") == 0;
        if (gemm)
            samples += json_array_size(json_object_get(gemm, "samples_us"));
        else
            failed += strcmp(json_string_value(json_object_get(c, "status")), "E_VERIFY") == 0;
    }
    assert_int_equal(samples, ROUNDS * (N_BATCHES * (2 * BENCH_STRATEGIES + 1) - 1));
    assert_int_equal(failed, 1);
    assert_int_equal(rivals, N_BATCHES);
    const json_t *best = json_array_get(json_object_get(shape, "best"), 0);
    assert_string_equal(json_string_value(json_object_get(best, "strategy")), "prezero");
    assert_string_equal(json_string_value(json_object_get(best, "before")), "reduce");
    assert_true(fabs(number(best, "to_cublaslt") - 0.64) < 1e-12);
    assert_int_equal(json_array_size(json_object_get(v, "sums")), 2 * N_BATCHES);
    json_decref(v);
}

/* A page is whole: what is opened is closed, nothing comes from elsewhere, text is escaped. */
static int count(const char *text, const char *part) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p++) n++;
    return n;
}

static void check_page(const char *page) {
    static const char *const tags[] = {"table", "thead", "tbody", "tr", "td", "th", "svg", "details", "div", "p", "h2"};
    assert_true(strncmp(page, "<!DOCTYPE html>", 15) == 0);
    assert_contains(page, "</body></html>");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        char plain[16], with[16], closed[16];
        snprintf(plain, sizeof plain, "<%s>", tags[i]);
        snprintf(with, sizeof with, "<%s ", tags[i]);
        snprintf(closed, sizeof closed, "</%s>", tags[i]);
        if (count(page, plain) + count(page, with) != count(page, closed)) fail_msg("<%s> is not closed", tags[i]);
    }
    assert_null(strstr(page, "http"));
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "<H200>"));
    assert_contains(page, "NVIDIA &lt;H200&gt; &amp; co");
}

static void test_html(void **state) {
    (void)state;
    bench_gemm b = make();
    char *page = bench_html(&b);
    assert_non_null(page);
    check_page(page);
    assert_int_equal(count(page, "<svg"), 2 * N_SHAPES);
    assert_int_equal(count(page, "<circle"), N_SHAPES * N_BATCHES * 2 * (BENCH_STRATEGIES + 1));
    assert_contains(page, "<td>1.00 [1.00, 1.00] to reduce</td>");
    assert_contains(page, "8 of 8</b><span>faster than the best of cuBLASLt");
    free(page);
    fails(bench_case(&b, 0, 0, 0, PZ_ZERO_SELF), PZ_E_VERIFY, "wrong result");
    for (int i = 0; i < BENCH_STRATEGIES; i++) fails(bench_case(&b, 1, 0, 0, i), PZ_E_UNSUPPORTED, "no");
    page = bench_html(&b);
    assert_non_null(page);
    check_page(page);
    assert_contains(page, "<td class=\"bad\">wrong</td>");
    free(page);
}

/* ---- norms ---- */
static void test_norms(void **state) {
    (void)state;
    int batches[] = {3, 16};
    pz_measure_norm_case cases[2 * BENCH_NORMS];
    bench_norm b = {.command = "prezero bench norm",
                    .device = {.product = "NVIDIA <H200> & co",
                               .units = 132,
                               .sm = 90,
                               .driver = 13010,
                               .runtime = 13000,
                               .copy_gbs = 4000},
                    .hidden = 7168,
                    .gemm_n = 384,
                    .rider = 1001,
                    .batches = {.at = batches, .n = 2},
                    .cases = cases};
    for (int m = 0; m < 2; m++) {
        bench_norm_cases(&b, m, cases + m * BENCH_NORMS);
        int riders = 0, late = 0, serial = 0, gemms = 0, both = 0;
        for (int i = 0; i < BENCH_NORMS; i++) {
            pz_measure_norm_case *c = &cases[m * BENCH_NORMS + i];
            assert_true(c->zero_bytes == 0 || c->zero_bytes == (size_t)(m ? 16016 : 3008));
            riders += c->zero_bytes > 0;
            late += c->late;
            serial += c->serial;
            gemms += c->gemm;
            both += c->gemm && c->zero_bytes && !c->late && !c->serial; /* as plans launch it */
            c->norm = times(c->gemm ? 12 : 3);
            c->added = times(c->gemm ? 0.5 : 0.25);
        }
        assert_true(riders == 6 && late == 1 && serial == 2 && gemms == 4 && both == 2);
    }
    cases[2].status = PZ_E_VERIFY;
    snprintf(cases[2].message, sizeof cases[2].message, "a rider left something");
    assert_int_equal(bench_norm_wrong(&b), 1);
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    bench_norm_text(f, &b);
    assert_int_equal(fclose(f), 0);
    assert_contains(text, "m 3, rider of 3008 bytes");
    assert_contains(text, "alone                           3.00 [2.97, 3.02]    +0.25 [+0.22, +0.27]");
    assert_contains(text, "a rider left something");
    assert_contains(text, "GEMM (384 x 7168)");
    assert_contains(text, "norm + GEMM                    12.00 [");
    assert_contains(text, "norm + GEMM, rider             12.00 [11.97, 12.02]    +0.50 [+0.47, +0.52]");
    free(text);
    json_t *v = bench_norm_json(&b);
    assert_non_null(v);
    assert_int_equal(json_integer_value(json_object_get(v, "gemm_n")), 384);
    const json_t *list = json_object_get(v, "cases"), *pair = json_array_get(list, 2 * BENCH_NORMS - 1);
    assert_int_equal(json_array_size(list), 2 * BENCH_NORMS);
    assert_true(json_is_false(json_object_get(json_array_get(list, 0), "gemm")));
    assert_true(json_is_true(json_object_get(pair, "gemm")));
    assert_true(json_is_true(json_object_get(pair, "shared")));
    assert_string_equal(json_string_value(json_object_get(pair, "name")), "norm + GEMM, rider, the same");
    assert_int_equal(json_integer_value(json_object_get(pair, "zero_bytes")), 16016);
    assert_true(json_real_value(json_object_get(json_object_get(pair, "added"), "us")) == 0.5);
    json_decref(v);
    char *page = bench_norm_html(&b);
    assert_non_null(page);
    check_page(page);
    assert_contains(page, "GEMM (384 x 7168)");
    assert_contains(page, "<td>norm + GEMM, rider</td><td>12.00</td>");
    free(page);
}

/* ---- all-reduces ---- */
static void test_reduces(void **state) {
    (void)state;
    int batches[] = {3, 16};
    pz_measure_reduce_case cases[2 * BENCH_REDUCES];
    bench_reduce b = {.command = "prezero bench allreduce",
                      .device = {.product = "NVIDIA H200", .units = 132},
                      .ranks = 2,
                      .hidden = 7168,
                      .gemm_n = 2112,
                      .rider = 1001,
                      .batches = {.at = batches, .n = 2},
                      .cases = cases};
    for (int m = 0; m < 2; m++) {
        bench_reduce_cases(&b, m, cases + m * BENCH_REDUCES);
        int riders = 0;
        for (int i = 0; i < BENCH_REDUCES; i++) {
            pz_measure_reduce_case *c = &cases[m * BENCH_REDUCES + i];
            assert_true(c->zero_bytes == 0 || c->zero_bytes == (size_t)(m ? 16016 : 3008));
            riders += c->zero_bytes > 0;
            c->times = times(i ? 9 : 3);
            if (c->kind == PZ_REDUCE_FUSED_GEMM && c->serial) c->times = times(10.25);
        }
        assert_int_equal(riders, 2);
    }
    cases[5].status = PZ_E_UNSUPPORTED;
    snprintf(cases[5].message, sizeof cases[5].message, "no NCCL here");
    cases[6].status = PZ_E_VERIFY;
    assert_int_equal(bench_reduce_wrong(&b), 1);
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    bench_reduce_text(f, &b);
    assert_int_equal(fclose(f), 0);
    assert_contains(text, "m 3, rider of 3008 bytes");
    assert_contains(text, "NCCL + norm                 9.00 [8.97, 9.02]    3.00 x     +6.00");
    assert_contains(text, "NCCL all-reduce alone    no NCCL here");
    assert_contains(text, "  launching the GEMM (2112 x 7168) early hides 1.25 us [1.25, 1.25]\n");
    free(text);
    cases[BENCH_REDUCES + 8].status = PZ_E_VERIFY; /* then nothing is known of it */
    json_t *v = bench_reduce_json(&b);
    assert_non_null(v);
    const json_t *early = json_object_get(v, "gemm_launched_early");
    assert_int_equal(json_array_size(early), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(early, 0), "m")), 3);
    const json_t *us = json_object_get(json_object_get(json_array_get(early, 0), "hidden"), "us");
    assert_true(json_real_value(us) > 1.24 && json_real_value(us) < 1.26);
    const json_t *list = json_object_get(v, "cases"), *first = json_array_get(list, 0);
    assert_int_equal(json_array_size(list), 2 * BENCH_REDUCES);
    assert_string_equal(json_string_value(json_object_get(first, "kind")), "fused");
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 5), "message")), "no NCCL here");
    json_decref(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_bad_shapes), cmocka_unit_test(test_names),
        cmocka_unit_test(test_best),   cmocka_unit_test(test_text),       cmocka_unit_test(test_json),
        cmocka_unit_test(test_html),   cmocka_unit_test(test_norms),      cmocka_unit_test(test_reduces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
