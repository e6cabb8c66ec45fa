/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model of GPUs and the launches that the tuner measures. */
#include "support.h"

#include <math.h>

#include "base/rng.h"
#include "plan/cost.h"

static pz_device gpu(int units) {
    pz_device d;
    pz_error err;
    assert_ok(pz_device_find("h200", units, &d, &err), &err);
    return d;
}

static pz_gemm_shape shape(int64_t n, int64_t k, int m) {
    return (pz_gemm_shape){n, k, PZ_DT_BF16, PZ_ACCUM_FIXED, m};
}

/* What the kernels refuse must never be proposed. */
static void check_geometry(const pz_gemm_shape *s, const pz_gemm_config *c) {
    int64_t chunks = (s->k + 127) / 128;
    assert_in_range(c->split, 1, chunks);
    assert_true(c->family == PZ_GEMM_SKINNY || c->family == PZ_GEMM_WIDE);
    if (c->family == PZ_GEMM_WIDE) {
        assert_true(c->tile_n == 64 || c->tile_n == 128);
        assert_in_range(c->warps, 1, 2);
        assert_int_equal(s->k % 64, 0);
        return;
    }
    assert_int_equal(c->tile_n % 16, 0);
    assert_in_range(c->tile_n, 16, 256);
    assert_in_range(c->warps, 1, 16);
    assert_in_range(c->tile_n / 16 * c->warps, 1, 16);
    assert_in_range(c->stages, 1, 2);
    assert_true(c->depth >= 0);
    /* one row of x at least, one slot of w a thread, and the sums fit into the shared memory of an H200's block */
    int64_t part = (chunks + c->split - 1) / c->split, x = part * 256 + 64,
            w = (int64_t)c->tile_n / 16 * c->warps * 32 * 128;
    assert_true(x + w + (int64_t)c->warps * 8 * (c->tile_n + 4) * 4 <= 227 * 1024);
}

static bool same(const pz_gemm_config *a, const pz_gemm_config *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 300};
static const int64_t sizes[][2] = {{2112, 7168}, {384, 7168}, {3072, 1536}, {7168, 2048}, {163840, 7168},
                                   {8, 256},     {704, 256},  {64, 16},     {1, 16},      {9000, 16384},
                                   {17, 144},    {256, 512},  {14336, 8192}};

static void test_candidates(void **state) {
    (void)state;
    for (int units = 1; units < 200; units += units == 1 ? 131 : 17)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                pz_device d = gpu(units);
                pz_gemm_shape s = shape(sizes[i][0], sizes[i][1], rows[r]);
                pz_gemm_candidate c[PZ_MAX_CANDIDATES];
                int n = pz_gemm_candidates(&d, &s, c, PZ_MAX_CANDIDATES), whole = 0;
                assert_in_range(n, 1, PZ_MAX_CANDIDATES);
                for (int a = 0; a < n; a++) {
                    check_geometry(&s, &c[a].config);
                    assert_true(isfinite(c[a].us) && c[a].us > 0);
                    assert_true(a == 0 || c[a - 1].us <= c[a].us);
                    whole += c[a].config.split == 1;
                    for (int b = 0; b < a; b++) assert_false(same(&c[a].config, &c[b].config));
                    double waves = (double)pz_gemm_blocks(&s, &c[a].config) / d.units;
                    assert_true(c[a].config.split == 1 || waves >= 0.75);
                    pz_gemm_config v[PZ_MAX_VARIANTS];
                    int variants = pz_gemm_variants(&s, &c[a].config, v);
                    assert_in_range(variants, 0, PZ_MAX_VARIANTS);
                    for (int k = 0; k < variants; k++) {
                        check_geometry(&s, &v[k]);
                        assert_false(same(&v[k], &c[a].config));
                        assert_int_equal(v[k].split, c[a].config.split);
                        for (int b = 0; b < k; b++) assert_false(same(&v[k], &v[b]));
                    }
                }
                assert_true(whole >= 1); /* not to split is always tried */
                pz_gemm_candidate few[7];
                assert_in_range(pz_gemm_candidates(&d, &s, few, 7), 1, 7);
                assert_int_equal(pz_gemm_candidates(&d, &s, few, 0), 0);
            }
}

/* Blocks as the kernels count them. */
static void test_blocks(void **state) {
    (void)state;
    pz_gemm_config skinny = {.tile_n = 64, .split = 4, .family = PZ_GEMM_SKINNY, .warps = 2, .stages = 1};
    pz_gemm_config wide = {.tile_n = 128, .split = 3, .family = PZ_GEMM_WIDE, .stages = 4};
    pz_gemm_shape s = shape(2112, 7168, 16);
    assert_int_equal(pz_gemm_blocks(&s, &skinny), 33 * 4);
    assert_int_equal(pz_gemm_blocks(&s, &wide), 17 * 3);
    s.m = 33; /* two tiles of 32 rows; one of 128 */
    assert_int_equal(pz_gemm_blocks(&s, &skinny), 33 * 4 * 2);
    assert_int_equal(pz_gemm_blocks(&s, &wide), 17 * 3);
    s.m = 129;
    assert_int_equal(pz_gemm_blocks(&s, &wide), 17 * 3 * 2);
}

/* The model against the prototypes that were measured on an H200 (us, with a zeroed output): it must not be far off, or
 * the candidates that it ranks first are the wrong ones. */
static void test_estimates(void **state) {
    (void)state;
    static const struct {
        int64_t n, k;
        int m;
        double us;
    } measured[] = {{2112, 7168, 1, 8.7}, {2112, 7168, 16, 8.5}, {384, 7168, 1, 2.5},  {384, 7168, 16, 2.7},
                    {3072, 1536, 4, 3.2}, {3072, 1536, 16, 3.6}, {7168, 2048, 4, 8.8}, {7168, 2048, 16, 8.9}};
    pz_device d = gpu(0);
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        pz_gemm_shape s = shape(measured[i].n, measured[i].k, measured[i].m);
        pz_gemm_choices c = pz_gemm_model(&d, &s);
        double us = pz_gemm_estimate(&d, &s, &c.on.config, c.on.strategy);
        assert_true(us > 0.8 * measured[i].us && us < 1.4 * measured[i].us);
    }
}

static void test_infeasible(void **state) {
    (void)state;
    pz_device d = gpu(0);
    pz_gemm_shape s = shape(2112, 7168, 4);
    pz_gemm_config good = {.tile_n = 64, .split = 4, .family = PZ_GEMM_SKINNY, .warps = 2, .stages = 1};
    assert_true(isfinite(pz_gemm_estimate(&d, &s, &good, PZ_ZERO_PREZERO)));
    assert_true(isinf(pz_gemm_estimate(&d, &s, &good, PZ_ZERO_NONE))); /* split and stored */
    pz_gemm_config bad[6] = {good, good, good, good, good, good};
    bad[0].split = 57; /* 56 chunks */
    bad[1].tile_n = 72;
    bad[2].warps = 5; /* 20 in all */
    bad[3].family = PZ_GEMM_DEFAULT;
    bad[4].warps = 0;
    bad[5].split = 0;
    for (int i = 0; i < 6; i++) assert_true(isinf(pz_gemm_estimate(&d, &s, &bad[i], PZ_ZERO_PREZERO)));
    pz_gemm_config whole = {.tile_n = 16, .split = 1, .family = PZ_GEMM_SKINNY, .warps = 4, .stages = 1};
    pz_gemm_shape many = shape(2112, 128000, 1); /* not even one row fits into shared memory */
    assert_true(isinf(pz_gemm_estimate(&d, &many, &whole, PZ_ZERO_NONE)));
}

static void test_model(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int round = 0; round < 400; round++) {
        pz_device d = gpu(1 + (int)(pz_rng_next(&seed) % 170));
        pz_gemm_shape s = shape(1 + (int64_t)(pz_rng_next(&seed) % 20000),
                                16 * (1 + (int64_t)(pz_rng_next(&seed) % 600)), 1 + (int)(pz_rng_next(&seed) % 200));
        pz_gemm_choices c = pz_gemm_choose(&d, &s);
        assert_false(c.tuned);
        check_geometry(&s, &c.on.config);
        check_geometry(&s, &c.off.config);
        assert_int_equal(c.on.strategy, c.on.config.split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE);
        assert_true(c.off.strategy != PZ_ZERO_PREZERO);
        assert_int_equal(c.off.config.split > 1, c.off.strategy != PZ_ZERO_NONE);
        /* a zeroed output never makes it slower */
        assert_true(pz_gemm_estimate(&d, &s, &c.on.config, c.on.strategy) <=
                    pz_gemm_estimate(&d, &s, &c.off.config, c.off.strategy) + 1e-9);
        for (int i = PZ_ZERO_NONE; i <= PZ_ZERO_TICKET; i++) {
            pz_gemm_config one = pz_gemm_model_for(&d, &s, (pz_strategy)i);
            check_geometry(&s, &one);
            if (i == PZ_ZERO_NONE) assert_int_equal(one.split, 1);
        }
        s.weight = PZ_DT_MXFP4; /* is converted, so it is launched like any other */
        pz_gemm_choices converted = pz_gemm_choose(&d, &s);
        assert_true(same(&converted.on.config, &c.on.config));
    }
}

static void test_text(void **state) {
    (void)state;
    pz_device d = gpu(0);
    pz_gemm_shape s = shape(2112, 7168, 4);
    char *text;
    pz_error err;
    assert_ok(pz_gemm_candidates_text(&d, &s, &text, &err), &err);
    assert_contains(text, " candidates for n 2112, k 7168, m 4 on h200 (132 units)\n");
    assert_contains(text, " waves  skinny tile_n ");
    assert_null(strstr(text, "wide")); /* its fixed sums have other bits */
    pz_free(text);
    s.accum = PZ_ACCUM_F32;
    s.m = 128;
    assert_ok(pz_gemm_candidates_text(&d, &s, &text, &err), &err);
    assert_contains(text, " waves  wide tile_n 64, split ");
    pz_free(text);
    pz_str b = {0};
    pz_gemm_config_text(&(pz_gemm_config){.family = PZ_GEMM_CUBLASLT, .split = 1, .stages = 5}, &b);
    assert_string_equal(b.s, "cublaslt heuristic 5");
    pz_str_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates), cmocka_unit_test(test_blocks), cmocka_unit_test(test_estimates),
        cmocka_unit_test(test_infeasible), cmocka_unit_test(test_model),  cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
