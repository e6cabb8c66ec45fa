/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <math.h>

#include "base/rng.h"
#include "prezero/engine.h"

enum { VOCAB = 40 };

static int32_t sample(const float *logits, int n, pz_sampling how, uint64_t *rng) {
    pz_error err;
    int32_t token = -7;
    assert_ok(pz_sample(logits, n, &how, rng, &token, &err), &err);
    assert_in_range(token, 0, n - 1);
    return token;
}

static int32_t greedy(const float *logits, int n) {
    uint64_t rng = 5;
    int32_t token = sample(logits, n, (pz_sampling){0}, &rng);
    assert_true(rng == 5); /* nothing is drawn */
    return token;
}

static void test_greedy(void **state) {
    (void)state;
    assert_int_equal(greedy((float[]){1, 3, 2}, 3), 1);
    assert_int_equal(greedy((float[]){1, 3, 3, 3}, 4), 1);
    assert_int_equal(greedy((float[]){NAN, 1, NAN, 2, NAN}, 5), 3);
    assert_int_equal(greedy((float[]){NAN, -INFINITY, -5}, 3), 2);
    assert_int_equal(greedy((float[]){7, INFINITY, 8}, 3), 1);
    assert_int_equal(greedy((float[]){-0.0f, 0.0f}, 2), 0);
    assert_int_equal(greedy((float[]){4}, 1), 0);
}

static void test_errors(void **state) {
    (void)state;
    float good[] = {1, 2}, bad[] = {NAN, INFINITY, -INFINITY};
    uint64_t rng = 1;
    int32_t token;
    pz_error err;
    pz_sampling how = {0};
    assert_fails(pz_sample(bad, 3, &how, &rng, &token, &err), PZ_E_RANGE, &err, "3 logits");
    how.temperature = 1;
    assert_fails(pz_sample(bad, 3, &how, &rng, &token, &err), PZ_E_RANGE, &err, "finite");
    assert_fails(pz_sample(good, 0, &how, &rng, &token, &err), PZ_E_INVAL, &err, "pz_sample");
    assert_fails(pz_sample(NULL, 2, &how, &rng, &token, &err), PZ_E_INVAL, &err, "pz_sample");
    how.temperature = -1;
    assert_fails(pz_sample(good, 2, &how, &rng, &token, &err), PZ_E_RANGE, &err, "temperature -1");
    how.temperature = NAN;
    assert_fails(pz_sample(good, 2, &how, &rng, &token, &err), PZ_E_RANGE, &err, "temperature");
    how.temperature = INFINITY;
    assert_fails(pz_sample(good, 2, &how, &rng, &token, &err), PZ_E_RANGE, &err, "temperature");
    how = (pz_sampling){.temperature = 1, .top_p = 1.5f};
    assert_fails(pz_sample(good, 2, &how, &rng, &token, &err), PZ_E_RANGE, &err, "top_p 1.5");
    how = (pz_sampling){.temperature = 1, .top_k = -2};
    assert_fails(pz_sample(good, 2, &how, &rng, &token, &err), PZ_E_RANGE, &err, "top_k -2");
    how = (pz_sampling){.temperature = 1};
    pz_alloc_fail_after(0);
    pz_status st = pz_sample(good, 2, &how, &rng, &token, &err);
    pz_alloc_fail_after(-1);
    assert_status(st, PZ_E_NOMEM, &err);
}

/* The definition, as plainly as possible: p[i] is the probability of token i. */
static void reference(const float *logits, int n, pz_sampling how, double *p) {
    int order[VOCAB];
    double sum = 0, max = -INFINITY;
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) {
            float a = logits[order[i]], b = logits[order[j]];
            if (isnan(a) || b > a || (b == a && order[j] < order[i])) {
                int t = order[i];
                order[i] = order[j];
                order[j] = t;
            }
        }
    for (int i = 0; i < n; i++) max = fmax(max, (double)logits[i]);
    for (int i = 0; i < n; i++) p[i] = isnan(logits[i]) ? 0 : exp((logits[i] - max) / how.temperature);
    if (how.top_k)
        for (int i = how.top_k; i < n; i++) p[order[i]] = 0;
    for (int i = 0; i < n; i++) sum += p[i];
    if (how.top_p > 0 && how.top_p < 1) {
        double seen = 0;
        for (int i = 0; i < n; i++) {
            if (seen >= how.top_p * sum) p[order[i]] = 0;
            seen += p[order[i]];
        }
        sum = seen;
    }
    for (int i = 0; i < n; i++) p[i] /= sum;
}

/* Draws many tokens: never one that the reference excludes, and the rest as often as it says (chi-square test; the
 * bound is mean + 5 standard deviations of the statistic). */
static void check_frequencies(const float *logits, int n, pz_sampling how) {
    enum { DRAWS = 40000 };
    double p[VOCAB], chi = 0;
    int count[VOCAB] = {0}, cells = 0;
    uint64_t rng = how.seed;
    reference(logits, n, how, p);
    for (int i = 0; i < DRAWS; i++) count[sample(logits, n, how, &rng)]++;
    for (int i = 0; i < n; i++) {
        double want = p[i] * DRAWS;
        if (p[i] == 0) assert_int_equal(count[i], 0);
        if (want < 5) continue;
        chi += (count[i] - want) * (count[i] - want) / want;
        cells++;
    }
    double df = cells > 1 ? cells - 1 : 1;
    if (chi > df + 5 * sqrt(2 * df)) fail_msg("chi-square %.1f with %d cells", chi, cells);
}

static void test_distribution(void **state) {
    (void)state;
    float logits[VOCAB];
    uint64_t rng = 3;
    for (int i = 0; i < VOCAB; i++) logits[i] = (float)(6 * pz_rng_unit(&rng) - 3);
    logits[4] = NAN;
    logits[9] = -INFINITY;
    static const pz_sampling cases[] = {
        {.temperature = 1, .seed = 11},
        {.temperature = 0.5f, .seed = 12},
        {.temperature = 3, .seed = 13},
        {.temperature = 1, .top_k = 5, .seed = 14},
        {.temperature = 1, .top_k = 1, .seed = 15},
        {.temperature = 1, .top_k = 100, .seed = 16},
        {.temperature = 1, .top_p = 0.8f, .seed = 17},
        {.temperature = 1, .top_p = 0.01f, .seed = 18},
        {.temperature = 1, .top_p = 1, .seed = 19},
        {.temperature = 1, .top_k = 7, .top_p = 0.6f, .seed = 20},
        {.temperature = 2, .top_k = 30, .top_p = 0.95f, .seed = 21},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_frequencies(logits, VOCAB, cases[i]);
}

static void test_ties_go_to_the_lower_id(void **state) {
    (void)state;
    float logits[] = {1, 2, 2, 2, 1};
    uint64_t rng = 9;
    pz_sampling how = {.temperature = 1, .top_k = 2};
    for (int i = 0; i < 200; i++) assert_in_range(sample(logits, 5, how, &rng), 1, 2);
    how = (pz_sampling){.temperature = 1, .top_p = 0.1f};
    for (int i = 0; i < 200; i++) assert_int_equal(sample(logits, 5, how, &rng), 1);
}

static void test_infinite_maximum(void **state) {
    (void)state;
    float logits[] = {1, INFINITY, 2, INFINITY};
    uint64_t rng = 2;
    int seen = 0;
    for (int i = 0; i < 100; i++) seen |= 1 << sample(logits, 4, (pz_sampling){.temperature = 1}, &rng);
    assert_int_equal(seen, 2 | 8);
}

static void test_tiny_temperature_is_greedy(void **state) {
    (void)state;
    float logits[] = {1, 1.5f, 1.25f};
    uint64_t rng = 2;
    for (int i = 0; i < 50; i++) assert_int_equal(sample(logits, 3, (pz_sampling){.temperature = 1e-38f}, &rng), 1);
}

static void test_reproducible(void **state) {
    (void)state;
    float logits[VOCAB];
    int32_t first[64];
    int same = 0;
    for (int i = 0; i < VOCAB; i++) logits[i] = (float)(i % 7);
    pz_sampling how = {.temperature = 1, .top_p = 0.9f};
    uint64_t a = 42, b = 42, c = 43;
    for (int i = 0; i < 64; i++) first[i] = sample(logits, VOCAB, how, &a);
    for (int i = 0; i < 64; i++) assert_int_equal(sample(logits, VOCAB, how, &b), first[i]);
    for (int i = 0; i < 64; i++) same += sample(logits, VOCAB, how, &c) == first[i];
    assert_true(same < 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),           cmocka_unit_test(test_errors),
        cmocka_unit_test(test_distribution),     cmocka_unit_test(test_ties_go_to_the_lower_id),
        cmocka_unit_test(test_infinite_maximum), cmocka_unit_test(test_tiny_temperature_is_greedy),
        cmocka_unit_test(test_reproducible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
