/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of several ranks: the logits of transformers, the same bits however the steps are run, the same bits on all
 * ranks, and an end for all when one of them is gone. */
#include "support_logits.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/rng.h"

#define ON .prezero = 1
#define VARIANT PZ_SOURCE_DIR "/tests/data/variants/v3-no-shared"

/* ---- logits ---- */
static void check_f32_logits(const char *dir, const char *fp32_name, pz_engine_options o) {
    support_reference fp32;
    support_reference_open(fp32_name, &fp32);
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_F32; accum++) {
        o.act = PZ_ACT_F32;
        o.accum = (pz_accum)accum;
        o.prezero = accum == PZ_ACCUM_FIXED;
        support_distance d = support_engine_distance(dir, o, &fp32);
        print_message("%s f32 accum %s tp %d: max %.3g rms %.3g\n", fp32_name, pz_accum_text(o.accum), o.tp, d.max,
                      support_rms(d));
        assert_true(d.max <= 1e-3);
    }
    support_reference_close(&fp32);
}

static void check_logits(const char *dir, const char *fp32_name, const char *bf16_name, pz_engine_options o) {
    check_f32_logits(dir, fp32_name, o);
    support_check_bf16_logits(dir, fp32_name, bf16_name, o);
}

static void test_logits_mxfp4(void **state) {
    (void)state;
    for (int tp = 2; tp <= 4; tp *= 2)
        check_logits(SUPPORT_MXFP4, "ref_mxfp4_fp32", "ref_mxfp4_bf16", (pz_engine_options){.tp = tp});
}

static void test_logits_bf16(void **state) {
    (void)state;
    for (int tp = 2; tp <= 4; tp *= 2)
        check_logits(SUPPORT_BF16, "ref_fp32", "ref_bf16", (pz_engine_options){.tp = tp});
}

/* Rows of one sequence that are further than `limit` from the reference. */
static int rows_beyond(const float *logits, const float *want, int n, double limit) {
    int beyond = 0;
    for (int i = 0; i < n; i++) {
        support_distance d = {0};
        support_distance_add(&d, logits + i * SUPPORT_VOCAB, want + i * SUPPORT_VOCAB, SUPPORT_VOCAB);
        beyond += d.max > limit;
    }
    return beyond;
}

/* One row of the references has its second and third expert of a layer 0.0008 apart, which is the rounding of bf16:
 * either may be chosen. No other row may be further away than with slices of each expert. */
static void test_logits_whole_experts(void **state) {
    (void)state;
    support_reference fp32;
    support_reference_open("ref_mxfp4_fp32", &fp32);
    for (int tp = 2; tp <= 4; tp *= 2) {
        pz_engine_options o = {ON, .tp = tp, .experts = PZ_EXPERTS_BY_EXPERT};
        check_f32_logits(SUPPORT_MXFP4, "ref_mxfp4_fp32", o);
        int beyond = 0;
        pz_engine *e = support_engine(SUPPORT_MXFP4, o);
        for (int i = 0; i < SUPPORT_REFERENCES; i++) {
            float *logits = support_prefill(e, fp32.ids[i], fp32.n[i]);
            beyond += rows_beyond(logits, fp32.logits[i], fp32.n[i], 0.1);
            pz_free(logits);
        }
        assert_in_range(beyond, 0, 1);
        pz_engine_close(e);
    }
    support_reference_close(&fp32);
}

/* ---- bits ---- */
typedef struct variant {
    const char *name;
    pz_engine_options options;
    bool others, poison;
} variant;

static const variant variants[] = {
    {"off again", {.threads = 1}, false, false},
    {"off, 8 threads", {.threads = 8}, false, true},
    {"on, gate auto", {ON, .threads = 1, .gate = "auto"}, false, true},
    {"on, open, 2 threads", {ON, .threads = 2, .gate = "open"}, false, false},
    {"on, open, 5 threads", {ON, .threads = 5, .gate = "open"}, false, true},
    {"off, batch", {.threads = 6}, true, true},
    {"on, open, batch", {ON, .threads = 8, .gate = "open"}, true, true},
    {"reduce, on, open, batch", {ON, .threads = 2, .strategy = "reduce", .gate = "open"}, true, true},
    {"small chunks", {ON, .threads = 4, .gate = "open", .prefill_chunk = 5}, false, true},
    {"odd bucket", {ON, .threads = 2, .gate = "open", .max_batch = 16, .prefill_chunk = 7}, true, true},
};

static float *serve_variant(const variant *v) {
    pz_engine *e = support_engine(SUPPORT_MXFP4, v->options);
    e->poison = v->poison;
    float *logits = support_serve(e, v->others);
    pz_engine_close(e);
    return logits;
}

static void check_bits(pz_engine_options how) {
    variant base = {"reference", how, false, false};
    float *want = serve_variant(&base);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        variant v = variants[i];
        v.options.act = how.act;
        v.options.tp = how.tp;
        v.options.experts = how.experts;
        float *got = serve_variant(&v);
        if (memcmp(got, want, SERVE_BYTES) != 0) fail_msg("tp %d, %s: other bits", how.tp, v.name);
        pz_free(got);
    }
    pz_free(want);
}

static void test_bits(void **state) {
    (void)state;
    check_bits((pz_engine_options){.tp = 2});
    check_bits((pz_engine_options){.tp = 4});
    check_bits((pz_engine_options){.tp = 2, .act = PZ_ACT_F32});
    check_bits((pz_engine_options){.tp = 4, .experts = PZ_EXPERTS_BY_EXPERT});
}

/* tp 1 is what an engine is by default. */
static void test_one_rank(void **state) {
    (void)state;
    variant a = {"default", {.threads = 2}, true, false}, b = {"tp 1", {.threads = 2, .tp = 1}, true, true};
    float *x = serve_variant(&a), *y = serve_variant(&b);
    assert_memory_equal(x, y, SERVE_BYTES);
    pz_free(x);
    pz_free(y);
}

/* ---- ranks ---- */
static void step_and_compare(pz_engine *e, const pz_row *rows, int n) {
    pz_error err;
    pz_prepared *p;
    bool agree = false;
    assert_ok(pz_engine_step(e, rows, n, NULL, &err), &err);
    assert_ok(pz_engine_prepare(e, n, true, &p, &err), &err);
    assert_ok(pz_engine_ranks_agree(e, p, &agree, &err), &err);
    assert_true(agree);
}

/* After every step the ranks have the same hidden state and the same cache, bit by bit. */
static void check_ranks(pz_engine_options o) {
    pz_error err;
    int32_t ids[30];
    support_ids(4, SUPPORT_VOCAB, ids, 30);
    o.gate = "open";
    o.threads = 5;
    pz_engine *e = support_engine(SUPPORT_MXFP4, o);
    e->poison = true;
    int seq[5];
    for (int i = 0; i < 5; i++) {
        seq[i] = support_seq(e);
        assert_ok(pz_engine_prefill(e, seq[i], ids, (size_t)(6 * i + 1), 0, NULL, &err), &err);
    }
    for (int s = 0; s < 8; s++) {
        pz_row rows[5];
        for (int i = 0; i < 5; i++) rows[i] = (pz_row){seq[i], ids[(s * 5 + i) % 30]};
        step_and_compare(e, rows, s % 5 + 1);
    }
    /* the comparison can fail */
    bool agree = true;
    pz_prepared *p;
    assert_ok(pz_engine_prepare(e, 5, true, &p, &err), &err);
    e->kv.pool[o.tp - 1][5] ^= 1;
    assert_ok(pz_engine_ranks_agree(e, p, &agree, &err), &err);
    assert_false(agree);
    pz_engine_close(e);
}

static void test_ranks_agree(void **state) {
    (void)state;
    for (int tp = 2; tp <= 4; tp++)
        for (int i = 0; i < 4 && tp != 3; i++)
            check_ranks((pz_engine_options){.tp = tp,
                                            .prezero = i % 2,
                                            .act = i / 2 ? PZ_ACT_F32 : PZ_ACT_BF16,
                                            .accum = i == 3 ? PZ_ACCUM_F32 : PZ_ACCUM_FIXED,
                                            .experts = i == 2 ? PZ_EXPERTS_BY_EXPERT : PZ_EXPERTS_BY_WIDTH});
}

/* Ranks with equal graphs have one plan, others one each; every plan is proven, and has riders where they are asked
 * for. */
static void test_plans(void **state) {
    (void)state;
    for (int by = PZ_EXPERTS_BY_WIDTH; by <= PZ_EXPERTS_BY_EXPERT; by++) {
        pz_engine_options o = {ON, .tp = 2, .gate = "open", .experts = (pz_expert_split)by};
        pz_engine *e = support_engine(SUPPORT_MXFP4, o);
        pz_engine_info info;
        pz_engine_get_info(e, &info);
        assert_int_equal(info.tp, 2);
        for (int i = 0; i < e->decode.n; i++) {
            const pz_prepared *p = &e->decode.prepared[i];
            assert_int_equal(p->of[0] == p->of[1], by == PZ_EXPERTS_BY_WIDTH);
            for (int r = 0; r < 2; r++) {
                int filled = 0;
                for (int f = 0; f < p->of[r]->fills.n; f++) filled += p->of[r]->fills.at[f].level > 0;
                assert_true(p->of[r]->proven > 0 && filled >= 4);
            }
        }
        pz_engine_close(e);
    }
}

/* Without the fills the step is wrong on several ranks too: the comparisons above would see it. */
static void test_broken_fills(void **state) {
    (void)state;
    variant v = {"on", {ON, .tp = 2, .gate = "open"}, false, true};
    float *want = serve_variant(&v);
    pz_engine *e = support_engine(SUPPORT_MXFP4, v.options);
    e->poison = true;
    pz_engine_break_fills(e);
    float *got = support_serve(e, false);
    assert_memory_not_equal(got, want, SERVE_BYTES);
    pz_engine_close(e);
    pz_free(got);
    pz_free(want);
}

/* ---- greedy choices ---- */
static void test_choice_among_shards(void **state) {
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY, 0, -0.f, 1, 1, 2, -3, NAN};
    enum { N = 24 };
    uint64_t s = 1;
    for (int t = 0; t < 20000; t++) {
        float x[N];
        int kinds = 1 + (int)(pz_rng_next(&s) % 10), first = (int)(pz_rng_next(&s) % 10);
        for (int i = 0; i < N; i++) x[i] = values[(first + (int)(pz_rng_next(&s) % (uint64_t)kinds)) % 10];
        for (int tp = 1; tp <= 8; tp *= 2) {
            pz_choice all = PZ_NO_CHOICE;
            for (int r = 0; r < tp; r++) {
                pz_choice c = PZ_NO_CHOICE;
                pz_choose(&c, x + r * (N / tp), N / tp, r * (N / tp));
                pz_choose_among(&all, &c);
            }
            assert_int_equal(pz_chosen(&all), pz_best(x, N));
        }
    }
}

/* The choices are those of the gathered logits. */
static void test_greedy(void **state) {
    (void)state;
    for (int tp = 1; tp <= 4; tp *= 2) {
        enum { ROWS = 40 };
        pz_error err;
        int32_t ids[ROWS], best[ROWS];
        int pick[ROWS];
        pz_row rows[ROWS];
        float *logits = pz_calloc(ROWS * SUPPORT_VOCAB, sizeof *logits);
        assert_non_null(logits);
        support_ids(7, SUPPORT_VOCAB, ids, ROWS);
        pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.tp = tp});
        for (int i = 0; i < ROWS; i++) pick[i] = i;
        for (int turn = 0; turn < 2; turn++) {
            int seq = support_seq(e);
            for (int i = 0; i < ROWS; i++) rows[i] = (pz_row){seq, ids[i]};
            assert_ok(pz_engine_run(e, rows, ROWS, pick, ROWS, logits, turn ? best : NULL, &err), &err);
        }
        for (int i = 0; i < ROWS; i++) assert_int_equal(best[i], pz_best(logits + i * SUPPORT_VOCAB, SUPPORT_VOCAB));
        pz_free(logits);
        pz_engine_close(e);
    }
}

/* ---- evaluation ---- */
static void run_eval(int tp, int prezero, pz_expert_split experts, int limit, pz_eval_result *r) {
    pz_error err;
    pz_tokenizer *tok;
    pz_engine_options o = {.tp = tp, .prezero = prezero, .gate = "open", .experts = experts};
    pz_engine *e = support_engine(SUPPORT_MXFP4, o);
    assert_ok(pz_tokenizer_open(SUPPORT_MXFP4, &tok, &err), &err);
    assert_ok(pz_eval(e, tok, SUPPORT_MXFP4 "/eval.jsonl", 16, 48, limit, NULL, NULL, r, &err), &err);
    pz_tokenizer_close(tok);
    pz_engine_close(e);
}

static void test_eval(void **state) {
    (void)state;
    enum { LIMIT = 48 };
    pz_eval_result one, r[2];
    run_eval(1, 0, PZ_EXPERTS_BY_WIDTH, LIMIT, &one);
    for (int i = 0; i < 3; i++) {
        pz_expert_split split = i == 2 ? PZ_EXPERTS_BY_EXPERT : PZ_EXPERTS_BY_WIDTH;
        for (int on = 0; on < 2; on++) run_eval(i == 0 ? 2 : 4, on, split, LIMIT, &r[on]);
        assert_in_range(r[0].correct, LIMIT - 1, LIMIT);
        for (int k = 0; k < LIMIT; k++) {
            assert_string_equal(r[0].items[k].output, r[1].items[k].output);
            assert_string_equal(r[0].items[k].answer, one.items[k].answer);
        }
        pz_eval_result_free(&r[0]);
        pz_eval_result_free(&r[1]);
    }
    pz_eval_result_free(&one);
}

static void test_compare(void **state) {
    (void)state;
    pz_error err;
    pz_compare_result r;
    pz_engine *off = support_engine(SUPPORT_MXFP4, (pz_engine_options){.tp = 2, .max_batch = 8, .threads = 2});
    pz_engine *on = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .tp = 2, .max_batch = 8, .gate = "open"});
    assert_ok(pz_compare(off, on, (int[]){1, 6}, 2, 6, NULL, NULL, &r, &err), &err);
    bool reduced = false;
    for (int i = 0; i < r.n_buckets; i++) assert_true(r.buckets[i].identical && r.buckets[i].slices > 0);
    for (int i = 0; i < r.n_ops; i++)
        reduced |= strcmp(r.ops[i].op, "fused_allreduce_rmsnorm") == 0 && r.ops[i].a_us > 0 && r.ops[i].b_us > 0;
    assert_true(reduced);
    pz_compare_result_free(&r);
    pz_engine_close(off);
    pz_engine_close(on);
}

/* ---- a rank that is gone ---- */
static const pz_backend_api *real;
static const pz_backend *victim;
static int sleep_ms;

static pz_status failing_run(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    if (b == victim) return pz_fail(err, PZ_E_INTERNAL, "a kernel failed");
    return real->run(b, plan, args, err);
}

/* Never takes part, and does not say so. */
static pz_status absent_run(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    return b == victim ? PZ_OK : real->run(b, plan, args, err);
}

static pz_status late_run(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    if (b == victim) usleep((useconds_t)sleep_ms * 1000);
    return real->run(b, plan, args, err);
}

static pz_status failing_read(pz_backend *b, const pz_plan *plan, const pz_run_args *args, int place, const int *rows,
                              int n, float *dst, pz_error *err) {
    if (b == victim) return pz_fail(err, PZ_E_IO, "no logits");
    return real->read(b, plan, args, place, rows, n, dst, err);
}

/* A step with a rank that goes wrong fails with `st` and `text`; no sequence moves; later steps are refused at once. */
static void check_gone(int tp, int rank, const pz_backend_api *bad, int timeout_ms, pz_status st, const char *text,
                       pz_status later) {
    pz_error err;
    int32_t ids[20];
    float logits[2 * SUPPORT_VOCAB];
    support_ids(2, SUPPORT_VOCAB, ids, 20);
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .tp = tp, .rank_timeout_ms = timeout_ms});
    int a = support_seq(e), b = support_seq(e);
    assert_ok(pz_engine_prefill(e, a, ids, 20, 0, NULL, &err), &err);
    assert_ok(pz_engine_prefill(e, b, ids, 7, 0, NULL, &err), &err);
    pz_row rows[2] = {{a, 3}, {b, 4}};
    assert_ok(pz_engine_step(e, rows, 2, logits, &err), &err);
    const pz_backend_api *api = e->api;
    victim = e->rank[rank].backend;
    e->api = bad;
    int64_t start = pz_now_ns();
    assert_fails(pz_engine_step(e, rows, 2, logits, &err), st, &err, text);
    assert_true(pz_now_ns() - start < 20000000000);
    assert_int_equal(pz_seq_length(e, a), 21);
    assert_int_equal(pz_seq_length(e, b), 8);
    e->api = api;
    assert_fails(pz_engine_step(e, rows, 2, logits, &err), later, &err, "the ranks have stopped");
    assert_fails(pz_engine_prefill(e, a, ids, 5, 1, logits, &err), later, &err, "the ranks have stopped");
    assert_int_equal(pz_seq_length(e, a), 21);
    pz_engine_close(e);
}

static void test_rank_gone(void **state) {
    (void)state;
    real = pz_backend_cpu();
    pz_backend_api failing = *real, absent = *real, late = *real, unread = *real;
    failing.run = failing_run;
    absent.run = absent_run;
    late.run = late_run;
    unread.read = failing_read;
    sleep_ms = 600;
    for (int tp = 2; tp <= 4; tp += 2)
        for (int rank = 0; rank < tp; rank++) {
            char own[80], other[80], silent[80];
            snprintf(own, sizeof own, "rank %d: a kernel failed", rank);
            snprintf(other, sizeof other, "rank %d: no logits", rank);
            snprintf(silent, sizeof silent, "rank %d of %d did not arrive within 200 ms", rank, tp);
            check_gone(tp, rank, &failing, 0, PZ_E_INTERNAL, own, PZ_E_PEER);
            check_gone(tp, rank, &unread, 0, PZ_E_IO, other, PZ_E_PEER);
            check_gone(tp, rank, &absent, 200, PZ_E_TIMEOUT, silent, PZ_E_TIMEOUT);
            check_gone(tp, rank, &late, 200, PZ_E_TIMEOUT, silent, PZ_E_TIMEOUT);
        }
}

/* ---- opening ---- */
static void refuse(pz_engine_options o, pz_status st, const char *text) {
    pz_error err;
    pz_engine *e = NULL;
    o.size = sizeof o;
    assert_fails(pz_engine_open(SUPPORT_MXFP4, &o, &e, &err), st, &err, text);
    assert_null(e);
}

static void test_refusals(void **state) {
    (void)state;
    refuse((pz_engine_options){.tp = -1}, PZ_E_RANGE, "tp -1: must be between 1 and 8");
    refuse((pz_engine_options){.tp = 9}, PZ_E_RANGE, "tp 9: must be between 1 and 8");
    refuse((pz_engine_options){.tp = 3}, PZ_E_INVAL, "tp 3 does not divide num_attention_heads 4");
    refuse((pz_engine_options){.tp = 8}, PZ_E_INVAL, "tp 8 does not divide num_attention_heads 4");
    refuse((pz_engine_options){.tp = 2, .experts = (pz_expert_split)2}, PZ_E_RANGE, "experts 2");
    refuse((pz_engine_options){.tp = 2, .rank_timeout_ms = -1}, PZ_E_RANGE, "rank_timeout_ms -1");
}

/* Whatever allocation fails, on whichever rank: an error, nothing left behind, no rank left waiting. */
static pz_status open_and_step(void *ctx) {
    pz_engine_options o = {.size = sizeof o, .prezero = 1, .tp = 2, .threads = 2, .max_batch = 2, .gate = "open"};
    pz_engine *e = NULL;
    int seq;
    float *logits = ctx;
    PZ_TRY(pz_engine_open(VARIANT, &o, &e, NULL));
    pz_status st = pz_seq_open(e, &seq, NULL);
    if (st == PZ_OK) st = pz_engine_step(e, &(pz_row){seq, 3}, 1, logits, NULL);
    pz_engine_close(e);
    return st;
}

static void test_out_of_memory(void **state) {
    (void)state;
    float *logits = pz_calloc(4096, sizeof *logits);
    assert_non_null(logits);
    assert_true(support_alloc_sweep(open_and_step, logits) > 100);
    pz_free(logits);
}

/* test_tp [FILTER]: those whose names match. */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_mxfp4),
        cmocka_unit_test(test_logits_bf16),
        cmocka_unit_test(test_logits_whole_experts),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_ranks_agree),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_broken_fills),
        cmocka_unit_test(test_choice_among_shards),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_eval),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_rank_gone),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
