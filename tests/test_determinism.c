/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of a sequence's logits depend on its tokens alone: not on prezero, the gate, the threads, the neighbours in
 * the batch, the run, or what the memory held before. */
#include "support_logits.h"

#include <stdio.h>

/* One engine's way of serving the sequence. */
typedef struct variant {
    const char *name;
    pz_engine_options options;
    bool others; /* in a batch with 15 others */
    bool poison;
} variant;

static float *serve_variant(const char *dir, const variant *v) {
    pz_engine *e = support_engine(dir, v->options);
    e->poison = v->poison;
    float *logits = support_serve(e, v->others);
    pz_engine_close(e);
    return logits;
}

/* Riders of the plan that serves `rows` decode rows. */
static int riders(pz_engine *e, int rows) {
    pz_prepared *p;
    pz_error err;
    int n = 0;
    assert_ok(pz_engine_prepare(e, rows, true, &p, &err), &err);
    for (int i = 0; i < p->plan->fills.n; i++) n += p->plan->fills.at[i].level > 0;
    return n;
}

#define ON .prezero = 1
static const variant variants[] = {
    {"off again", {.threads = 1}, false, false},
    {"off, 2 threads", {.threads = 2}, false, false},
    {"off, 3 threads", {.threads = 3}, false, false},
    {"off, 8 threads", {.threads = 8}, false, false},
    {"on, gate auto", {ON, .threads = 1, .gate = "auto"}, false, false},
    {"on, gate strict", {ON, .threads = 1, .gate = "strict"}, false, false},
    {"on, gate open", {ON, .threads = 1, .gate = "open"}, false, false},
    {"on, gate closed", {ON, .threads = 1, .gate = "closed"}, false, false},
    {"on, open, 2 threads", {ON, .threads = 2, .gate = "open"}, false, false},
    {"on, open, 3 threads", {ON, .threads = 3, .gate = "open"}, false, false},
    {"on, open, 8 threads", {ON, .threads = 8, .gate = "open"}, false, false},
    {"off, batch", {.threads = 2}, true, false},
    {"on, open, batch", {ON, .threads = 2, .gate = "open"}, true, false},
    {"on, auto, batch, 3 threads", {ON, .threads = 3, .gate = "auto"}, true, false},
    {"reduce", {.threads = 2, .strategy = "reduce"}, false, false},
    {"reduce, on, open, batch", {ON, .threads = 2, .strategy = "reduce", .gate = "open"}, true, false},
    {"off, poison", {.threads = 2}, false, true},
    {"on, open, poison", {ON, .threads = 2, .gate = "open"}, false, true},
    {"on, open, batch, poison", {ON, .threads = 3, .gate = "open"}, true, true},
    {"on, closed, batch, poison", {ON, .threads = 2, .gate = "closed"}, true, true},
    {"reduce, poison", {.threads = 2, .strategy = "reduce"}, true, true},
    {"small chunks", {ON, .threads = 2, .gate = "open", .prefill_chunk = 5}, false, true},
    {"odd bucket", {ON, .threads = 2, .gate = "open", .max_batch = 16, .prefill_chunk = 7}, true, true},
};

static void check_fixed(const char *dir, pz_act act) {
    variant base = {"reference", {.threads = 1, .act = act}, false, false};
    float *want = serve_variant(dir, &base);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        variant v = variants[i];
        v.options.act = act;
        float *got = serve_variant(dir, &v);
        if (memcmp(got, want, SERVE_BYTES) != 0) fail_msg("%s: other bits than off with one thread", v.name);
        pz_free(got);
    }
    pz_free(want);
}

static void test_fixed_mxfp4_bf16(void **state) {
    (void)state;
    check_fixed(SUPPORT_MXFP4, PZ_ACT_BF16);
}

static void test_fixed_mxfp4_f32(void **state) {
    (void)state;
    check_fixed(SUPPORT_MXFP4, PZ_ACT_F32);
}

static void test_fixed_bf16_bf16(void **state) {
    (void)state;
    check_fixed(SUPPORT_BF16, PZ_ACT_BF16);
}

/* Five runs in one engine, with other work between them. */
static void test_five_runs(void **state) {
    (void)state;
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .threads = 3, .gate = "open"});
    float *want = support_serve(e, false);
    for (int run = 1; run < 5; run++) {
        float *got = support_serve(e, run % 2);
        assert_memory_equal(got, want, SERVE_BYTES);
        pz_free(got);
    }
    pz_free(want);
    pz_engine_close(e);
}

/* Not split at all is another sum, so other bits than split; but always the same ones. (With prezero on, the GEMMs that
 * it serves are split: on and off differ here.) */
static void test_unsplit(void **state) {
    (void)state;
    variant a = {"none", {.threads = 1, .strategy = "none"}, false, true};
    variant b = {"none", {.threads = 3, .strategy = "none", .prefill_chunk = 5}, true, true};
    float *x = serve_variant(SUPPORT_MXFP4, &a), *y = serve_variant(SUPPORT_MXFP4, &b);
    assert_memory_equal(x, y, SERVE_BYTES);
    pz_free(x);
    pz_free(y);
}

/* f32 and bf16 accumulators round at every add. On one thread the order of the adds is fixed: the same bits from run to
 * run, and with prezero on and off. On several threads nothing is promised. */
static void check_rounding_accumulator(pz_accum accum) {
    variant off = {"off", {.threads = 1, .accum = accum}, false, true};
    variant on = {"on", {ON, .threads = 1, .gate = "open", .accum = accum}, false, true};
    float *a = serve_variant(SUPPORT_MXFP4, &off), *b = serve_variant(SUPPORT_MXFP4, &off);
    float *c = serve_variant(SUPPORT_MXFP4, &on);
    assert_memory_equal(a, b, SERVE_BYTES);
    assert_memory_equal(a, c, SERVE_BYTES);
    pz_free(a);
    pz_free(b);
    pz_free(c);
}

static void test_f32_accumulator(void **state) {
    (void)state;
    check_rounding_accumulator(PZ_ACCUM_F32);
}

static void test_bf16_accumulator(void **state) {
    (void)state;
    check_rounding_accumulator(PZ_ACCUM_BF16);
}

/* The comparisons above mean something: with the gate open there are riders, with it closed none, and prompt
 * processing never has any. */
static void test_riders_exist(void **state) {
    (void)state;
    pz_error err;
    pz_prepared *p;
    pz_engine *open = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .threads = 2, .gate = "open"});
    pz_engine *closed = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .threads = 2, .gate = "closed"});
    pz_engine *off = support_engine(SUPPORT_MXFP4, (pz_engine_options){.threads = 2, .gate = "open"});
    for (int rows = 1; rows <= 128; rows *= 2) {
        assert_true(riders(open, rows) >= 4);
        assert_int_equal(riders(closed, rows), 0);
        assert_int_equal(riders(off, rows), 0);
    }
    assert_ok(pz_engine_prepare(open, 64, false, &p, &err), &err);
    assert_true(p->plan->prefill);
    assert_int_equal(p->plan->fill_bytes, 0);
    pz_engine_close(open);
    pz_engine_close(closed);
    pz_engine_close(off);
}

/* The negative control: when donors do not fill, the GEMMs that skip their zeroing add to what the memory held. */
static void test_without_fills_it_is_wrong(void **state) {
    (void)state;
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .threads = 2, .gate = "open"});
    e->poison = true;
    float *good = support_serve(e, false);
    pz_engine_break_fills(e);
    float *bad = support_serve(e, false);
    assert_memory_equal(good, bad, SERVE_PROMPT * SUPPORT_VOCAB * sizeof(float)); /* the prompt has no riders */
    for (int s = SERVE_PROMPT; s < SERVE_ROWS; s++)
        assert_memory_not_equal(good + s * SUPPORT_VOCAB, bad + s * SUPPORT_VOCAB, SUPPORT_VOCAB * sizeof(float));
    pz_free(good);
    pz_free(bad);
    pz_engine_close(e);
}

/* A small plan leaves the rest of the arena alone. */
static void test_nothing_beyond_the_plan(void **state) {
    (void)state;
    pz_error err;
    pz_prepared *p;
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .threads = 2, .gate = "open"});
    e->poison = true;
    for (int rows = 1; rows <= 16; rows *= 2) {
        pz_row row[16];
        assert_ok(pz_engine_prepare(e, rows, true, &p, &err), &err);
        for (int i = 0; i < rows; i++) row[i] = (pz_row){support_seq(e), i};
        memset(e->rank[0].arena, 0xFF, (size_t)e->arena_bytes);
        assert_ok(pz_engine_step(e, row, rows, NULL, &err), &err);
        assert_true(p->plan->arena_bytes < e->arena_bytes);
        for (int64_t i = p->plan->arena_bytes; i < e->arena_bytes; i++) assert_int_equal(e->rank[0].arena[i], 0xFF);
    }
    pz_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_riders_exist),
        cmocka_unit_test(test_fixed_mxfp4_bf16),
        cmocka_unit_test(test_fixed_mxfp4_f32),
        cmocka_unit_test(test_fixed_bf16_bf16),
        cmocka_unit_test(test_five_runs),
        cmocka_unit_test(test_unsplit),
        cmocka_unit_test(test_f32_accumulator),
        cmocka_unit_test(test_bf16_accumulator),
        cmocka_unit_test(test_without_fills_it_is_wrong),
        cmocka_unit_test(test_nothing_beyond_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
