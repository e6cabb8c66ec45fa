/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "base/rng.h"
#include "engine/stats.h"

static void test_median(void **state) {
    (void)state;
    double odd[] = {5, -1, 3}, even[] = {4, 1, 3, 2}, one[] = {7};
    pz_stats_sort(odd, 3);
    pz_stats_sort(even, 4);
    assert_true(odd[0] == -1 && odd[1] == 3 && odd[2] == 5);
    assert_true(pz_stats_median(odd, 3) == 3);
    assert_true(pz_stats_median(even, 4) == 2.5);
    assert_true(pz_stats_median(one, 1) == 7);
}

/* Ranks of the 95 % interval of a median as printed in tables of the sign test (for example Conover, Practical
 * Nonparametric Statistics, table A3). */
static void test_interval_ranks(void **state) {
    (void)state;
    static const struct {
        int n, lo, hi;
    } table[] = {{6, 1, 6},   {7, 1, 7},   {8, 1, 8},   {9, 2, 8},    {10, 2, 9},   {12, 3, 10},
                 {15, 4, 12}, {20, 6, 15}, {25, 8, 18}, {30, 10, 21}, {50, 18, 33}, {100, 40, 61}};
    double v[100];
    for (int i = 0; i < 100; i++) v[i] = i + 1;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double lo, hi;
        pz_stats_median_ci(v, table[i].n, &lo, &hi);
        assert_int_equal((int)lo, table[i].lo);
        assert_int_equal((int)hi, table[i].hi);
    }
}

static void test_interval_of_few_is_the_range(void **state) {
    (void)state;
    double v[] = {1, 2, 3}, lo, hi;
    pz_stats_median_ci(v, 3, &lo, &hi);
    assert_true(lo == 1 && hi == 3);
    pz_stats_median_ci(v, 1, &lo, &hi);
    assert_true(lo == 1 && hi == 1);
}

/* 100000 samples: 2^-n underflows, the interval must still be about 1.96 * sqrt(n) / 2 ranks to each side. */
static void test_interval_of_many(void **state) {
    (void)state;
    int n = 100000;
    double *v = pz_calloc((size_t)n, sizeof *v), lo, hi;
    assert_non_null(v);
    for (int i = 0; i < n; i++) v[i] = i;
    pz_stats_median_ci(v, n, &lo, &hi);
    assert_true(lo > 50000 - 320 && lo < 50000 - 300);
    assert_true(hi > 50000 + 300 && hi < 50000 + 320);
    pz_free(v);
}

/* The interval really covers the true median in 95 % of the cases, for a skewed distribution too. */
static void test_coverage(void **state) {
    (void)state;
    uint64_t rng = 1;
    int covered = 0, trials = 4000;
    for (int t = 0; t < trials; t++) {
        double v[31], lo, hi;
        for (int i = 0; i < 31; i++) {
            double u = pz_rng_unit(&rng);
            v[i] = u * u * u * u; /* median 1/16 */
        }
        pz_stats_sort(v, 31);
        pz_stats_median_ci(v, 31, &lo, &hi);
        covered += lo <= 0.0625 && hi >= 0.0625;
    }
    assert_in_range(covered, trials * 94 / 100, trials * 985 / 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_median),           cmocka_unit_test(test_interval_ranks),
        cmocka_unit_test(test_interval_of_many), cmocka_unit_test(test_interval_of_few_is_the_range),
        cmocka_unit_test(test_coverage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
