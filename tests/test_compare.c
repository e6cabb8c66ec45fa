/* SPDX-License-Identifier: Apache-2.0 */
#include "support_engine.h"

#include <stdio.h>

typedef struct progress {
    int done, total;
} progress;

static void on_progress(void *user, int done, int total) {
    progress *p = user;
    assert_int_equal(done, p->done + 1);
    p->done = done;
    p->total = total;
}

static void assert_interval(double diff, double lo, double hi) {
    assert_true(lo <= diff && diff <= hi);
}

static void test_on_against_off(void **state) {
    (void)state;
    pz_error err;
    pz_compare_result r;
    progress p = {0};
    pz_engine *off = support_engine(SUPPORT_MXFP4, (pz_engine_options){.threads = 2});
    pz_engine *on = support_engine(SUPPORT_MXFP4, (pz_engine_options){.threads = 2, .prezero = 1, .gate = "open"});
    int batches[] = {3, 16};
    assert_ok(pz_compare(off, on, batches, 2, 20, on_progress, &p, &r, &err), &err);
    assert_int_equal(p.done, 2 * 2 * 20);
    assert_int_equal(p.total, p.done);
    assert_int_equal(r.n_buckets, 2);
    for (int i = 0; i < 2; i++) {
        const pz_compare_bucket *b = &r.buckets[i];
        assert_int_equal(b->batch, batches[i]);
        assert_int_equal(b->steps, 20);
        assert_true(b->a_us > 0 && b->b_us > 0);
        assert_interval(b->diff_us, b->ci_lo_us, b->ci_hi_us);
        assert_true(b->a_tokens_per_s > b->batch * 1e6 / b->a_us * 0.999 &&
                    b->a_tokens_per_s < b->batch * 1e6 / b->a_us * 1.001);
        assert_int_equal(b->identical, 1);
        assert_true(b->riders >= 4 && b->slices >= b->riders && b->active_slices >= b->slices);
    }
    int gemms = 0;
    for (int i = 0; i < r.n_ops; i++) {
        assert_true(r.ops[i].batch == 3 || r.ops[i].batch == 16);
        assert_true(r.ops[i].a_us > 0 && r.ops[i].b_us > 0);
        assert_interval(r.ops[i].diff_us, r.ops[i].ci_lo_us, r.ops[i].ci_hi_us);
        gemms += strncmp(r.ops[i].op, "gemm ", 5) == 0;
        for (int j = 0; j < i; j++)
            assert_false(r.ops[i].batch == r.ops[j].batch && strcmp(r.ops[i].op, r.ops[j].op) == 0);
    }
    assert_true(gemms >= 2 * 4);
    for (int i = 0; i < off->kv.max_sequences; i++) {
        assert_int_equal(pz_seq_length(off, i), -1);
        assert_int_equal(pz_seq_length(on, i), -1);
    }
    assert_false(off->timed || on->timed);
    pz_compare_result_free(&r);
    pz_compare_result_free(&r);
    pz_compare_result_free(NULL);
    pz_engine_close(off);
    pz_engine_close(on);
}

/* More steps than the context has room for, and a context shorter than the usual prompt. */
static void test_short_context(void **state) {
    (void)state;
    pz_error err;
    pz_compare_result r;
    pz_engine *a = support_engine(SUPPORT_MXFP4, (pz_engine_options){.context = 20});
    pz_engine *b = support_engine(SUPPORT_MXFP4, (pz_engine_options){.context = 20, .strategy = "reduce"});
    int batch = 1;
    assert_ok(pz_compare(a, b, &batch, 1, 50, NULL, NULL, &r, &err), &err);
    assert_int_equal(r.buckets[0].identical, 1);
    assert_int_equal(r.buckets[0].riders, 0);
    pz_compare_result_free(&r);
    pz_engine_close(a);
    pz_engine_close(b);
}

/* "identical" can be false. */
static void test_difference_is_seen(void **state) {
    (void)state;
    pz_error err;
    pz_compare_result r;
    pz_engine *a = support_engine(SUPPORT_MXFP4, (pz_engine_options){0});
    pz_engine *b = support_engine(SUPPORT_BF16, (pz_engine_options){0});
    int batch = 2;
    assert_ok(pz_compare(a, b, &batch, 1, 6, NULL, NULL, &r, &err), &err);
    assert_int_equal(r.buckets[0].identical, 0);
    pz_compare_result_free(&r);
    pz_engine_close(a);
    pz_engine_close(b);
}

static void test_errors(void **state) {
    (void)state;
    pz_error err;
    pz_compare_result r;
    int batches[] = {1, 9};
    pz_engine *a = support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_batch = 16, .max_sequences = 4});
    pz_engine *b = support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_batch = 8});
#define COMPARE(x, y, n, steps) pz_compare(x, y, batches, n, steps, NULL, NULL, &r, &err)
    assert_fails(COMPARE(a, a, 1, 10), PZ_E_INVAL, &err, "two engines");
    assert_fails(COMPARE(a, NULL, 1, 10), PZ_E_INVAL, &err, "two engines");
    assert_fails(COMPARE(a, b, 0, 10), PZ_E_INVAL, &err, "batch sizes");
    assert_fails(COMPARE(a, b, 2, 10), PZ_E_RANGE, &err, "batch 9", "1 to 8");
    assert_fails(COMPARE(a, b, 1, 5), PZ_E_RANGE, &err, "steps 5", "between 6");
    assert_fails(pz_compare(a, b, batches, 1, 10, NULL, NULL, NULL, &err), PZ_E_INVAL, &err, "result");
    batches[1] = 6; /* more than a's sequences */
    assert_fails(COMPARE(a, b, 2, 10), PZ_E_RANGE, &err, "4 sequences");
    for (int i = 0; i < 4; i++) assert_int_equal(pz_seq_length(a, i), -1);
#undef COMPARE
    pz_engine_close(a);
    pz_engine_close(b);
}

typedef struct pair {
    pz_engine *a, *b;
} pair;

static pz_status compare_once(void *ctx) {
    pair *p = ctx;
    pz_compare_result r;
    int batch = 1;
    PZ_TRY(pz_compare(p->a, p->b, &batch, 1, 6, NULL, NULL, &r, NULL));
    pz_compare_result_free(&r);
    return PZ_OK;
}

static void test_out_of_memory(void **state) {
    (void)state;
    pz_engine_options o = {.max_batch = 1};
    pair p = {support_engine(SUPPORT_MXFP4, o), support_engine(SUPPORT_MXFP4, o)};
    assert_true(support_alloc_sweep(compare_once, &p) > 5);
    pz_engine_close(p.a);
    pz_engine_close(p.b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_against_off),     cmocka_unit_test(test_short_context),
        cmocka_unit_test(test_difference_is_seen), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
