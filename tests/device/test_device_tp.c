/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in model over tensor-parallel ranks on GPUs, through captured graphs: its logits against those of
 * transformers, its answers against the CPU's, the same bits with prezero off and on, and on all ranks. Ranks have a
 * GPU each where there are enough, else they share. */
#include "lab.h"
#include "support_logits.h"

#include "base/par.h"

/* ---- logits: the limits are those of the CPU ---- */
static void test_logits_mxfp4(void **state) {
    (void)state;
    for (int tp = 2; tp <= 4; tp *= 2)
        support_check_bf16_logits(SUPPORT_MXFP4, "ref_mxfp4_fp32", "ref_mxfp4_bf16",
                                  (pz_engine_options){.device = "cuda", .tp = tp});
}

static void test_logits_bf16(void **state) {
    (void)state;
    support_check_bf16_logits(SUPPORT_BF16, "ref_fp32", "ref_bf16", (pz_engine_options){.device = "cuda", .tp = 2});
}

static void test_logits_whole_experts(void **state) {
    (void)state;
    support_check_bf16_logits(SUPPORT_MXFP4, "ref_mxfp4_fp32", "ref_mxfp4_bf16",
                              (pz_engine_options){.device = "cuda", .tp = 2, .experts = PZ_EXPERTS_BY_EXPERT});
}

/* ---- answers ---- */
enum { QUESTIONS = 100, BATCH = 64, NEW_TOKENS = 48 };

static void evaluate(const pz_tokenizer *tok, pz_engine_options o, pz_eval_result *result) {
    pz_error err;
    pz_engine *e = support_engine(SUPPORT_MXFP4, o);
    assert_ok(pz_eval(e, tok, SUPPORT_MXFP4 "/eval.jsonl", BATCH, NEW_TOKENS, QUESTIONS, NULL, NULL, result, &err),
              &err);
    pz_engine_close(e);
}

static void test_answers(void **state) {
    (void)state;
    pz_error err;
    pz_tokenizer *tok;
    pz_eval_result cpu, off, on;
    assert_ok(pz_tokenizer_open(SUPPORT_MXFP4, &tok, &err), &err);
    evaluate(tok, (pz_engine_options){.device = "cpu", .tp = 2, .threads = pz_par_cpus()}, &cpu);
    evaluate(tok, (pz_engine_options){.device = "cuda", .tp = 2}, &off);
    evaluate(tok, (pz_engine_options){.device = "cuda", .tp = 2, .prezero = 1}, &on);
    print_message("right answers of %d: %d on the CPU, %d on GPUs\n", QUESTIONS, cpu.correct, off.correct);
    for (int i = 0; i < QUESTIONS; i++) {
        assert_string_equal(on.items[i].output, off.items[i].output);
        assert_string_equal(off.items[i].answer, cpu.items[i].answer);
    }
    pz_eval_result_free(&cpu);
    pz_eval_result_free(&off);
    pz_eval_result_free(&on);
    pz_tokenizer_close(tok);
}

/* ---- bits ---- */
typedef struct variant {
    const char *name;
    pz_engine_options options;
    bool others, poison, eager;
} variant;

#define ON .prezero = 1
static const variant variants[] = {
    {"off again", {0}, false, false, false},
    {"off, eager", {0}, false, false, true},
    {"off, batch, poison", {0}, true, true, false},
    {"on", {ON}, false, false, false},
    {"on, gate open, poison", {ON, .gate = "open"}, false, true, false},
    {"on, gate open, eager", {ON, .gate = "open"}, false, true, true},
    {"on, gate open, batch", {ON, .gate = "open"}, true, true, false},
    {"reduce, poison", {.strategy = "reduce"}, false, true, false},
    {"small chunks", {ON, .gate = "open", .prefill_chunk = 5}, false, true, false},
};

static float *serve_variant(variant v, pz_engine_options how) {
    v.options.device = "cuda";
    v.options.tp = how.tp;
    v.options.experts = how.experts;
    v.options.rank_timeout_ms = lab_timeout_ms(PZ_COMM_TIMEOUT_MS);
    setenv("PREZERO_EAGER", v.eager ? "1" : "0", 1);
    pz_engine *e = support_engine(SUPPORT_MXFP4, v.options);
    unsetenv("PREZERO_EAGER");
    e->poison = v.poison;
    pz_free(support_serve(e, v.others)); /* graphs are captured */
    float *logits = support_serve(e, v.others);
    pz_engine_close(e);
    return logits;
}

static void check_bits(pz_engine_options how) {
    float *want = serve_variant((variant){.name = "off"}, how);
    for (int i = 0; i < SERVE_ROWS * SUPPORT_VOCAB; i++) assert_true(isfinite(want[i]));
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        float *got = serve_variant(variants[i], how);
        if (memcmp(got, want, SERVE_BYTES) != 0) fail_msg("tp %d, %s: other bits than off", how.tp, variants[i].name);
        pz_free(got);
    }
    pz_free(want);
}

static void test_bits(void **state) {
    (void)state;
    check_bits((pz_engine_options){.tp = 2});
}

static void test_bits_whole_experts(void **state) {
    (void)state;
    check_bits((pz_engine_options){.tp = 4, .experts = PZ_EXPERTS_BY_EXPERT});
}

/* The switch point of the collectives changes no bit. */
static void test_bits_switch(void **state) {
    (void)state;
    variant v = {"on", {ON, .gate = "open"}, true, false, false};
    float *want = serve_variant(v, (pz_engine_options){.tp = 2});
    setenv("PREZERO_ONE_SHOT", "1", 1);
    float *got = serve_variant(v, (pz_engine_options){.tp = 2});
    unsetenv("PREZERO_ONE_SHOT");
    assert_memory_equal(got, want, SERVE_BYTES);
    pz_free(got);
    pz_free(want);
}

/* The negative control: donors that do not fill. */
static void test_without_fills_it_is_wrong(void **state) {
    (void)state;
    pz_error err;
    pz_prepared *p;
    int filled = 0;
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .device = "cuda", .tp = 2, .gate = "open"});
    e->poison = true;
    assert_ok(pz_engine_prepare(e, 1, true, &p, &err), &err);
    for (int i = 0; i < p->plan->fills.n; i++) filled += p->plan->fills.at[i].level;
    float *good = support_serve(e, false);
    pz_engine_break_fills(e);
    float *bad = support_serve(e, false);
    if (filled)
        assert_memory_not_equal(good, bad, SERVE_BYTES);
    else
        print_message("no GEMM of this model is split on this device: nothing to break\n");
    pz_free(good);
    pz_free(bad);
    pz_engine_close(e);
}

/* ---- ranks ---- */
static void check_ranks(pz_engine_options o) {
    pz_error err;
    int32_t ids[40];
    support_ids(4, SUPPORT_VOCAB, ids, 40);
    o.device = "cuda";
    o.gate = "open";
    pz_engine *e = support_engine(SUPPORT_MXFP4, o);
    e->poison = true;
    int seq[5];
    for (int i = 0; i < 5; i++) {
        seq[i] = support_seq(e);
        assert_ok(pz_engine_prefill(e, seq[i], ids, (size_t)(6 * i + 1), 0, NULL, &err), &err);
    }
    for (int s = 0; s < 8; s++) {
        pz_row rows[5];
        pz_prepared *p;
        bool agree = false;
        int n = s % 5 + 1;
        for (int i = 0; i < n; i++) rows[i] = (pz_row){seq[i], ids[(s * 5 + i) % 40]};
        assert_ok(pz_engine_step(e, rows, n, NULL, &err), &err);
        assert_ok(pz_engine_prepare(e, n, true, &p, &err), &err);
        assert_ok(pz_engine_ranks_agree(e, p, &agree, &err), &err);
        assert_true(agree);
    }
    pz_engine_close(e);
}

static void test_ranks_agree(void **state) {
    (void)state;
    for (int tp = 2; tp <= 4; tp *= 2)
        for (int on = 0; on < 2; on++) {
            check_ranks((pz_engine_options){.tp = tp, .prezero = on});
            check_ranks((pz_engine_options){.tp = tp, .prezero = on, .experts = PZ_EXPERTS_BY_EXPERT});
        }
}

static void test_compare(void **state) {
    (void)state;
    pz_error err;
    pz_compare_result r;
    pz_engine *off = support_engine(SUPPORT_MXFP4, (pz_engine_options){.device = "cuda", .tp = 2, .max_batch = 8});
    pz_engine *on = support_engine(SUPPORT_MXFP4,
                                   (pz_engine_options){ON, .device = "cuda", .tp = 2, .max_batch = 8, .gate = "open"});
    assert_ok(pz_compare(off, on, (int[]){1, 6}, 2, 6, NULL, NULL, &r, &err), &err);
    bool reduced = false;
    for (int i = 0; i < r.n_buckets; i++) assert_true(r.buckets[i].identical);
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

static pz_status absent_run(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    return b == victim ? PZ_OK : real->run(b, plan, args, err);
}

static void test_rank_gone(void **state) {
    (void)state;
    pz_error err;
    int32_t ids[20];
    float *logits = pz_calloc(SUPPORT_VOCAB, sizeof *logits);
    assert_non_null(logits);
    support_ids(2, SUPPORT_VOCAB, ids, 20);
    for (int tp = 2; tp <= 4; tp *= 2) {
        pz_engine *e =
            support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .device = "cuda", .tp = tp, .rank_timeout_ms = 500});
        int seq = support_seq(e);
        assert_ok(pz_engine_prefill(e, seq, ids, 20, 0, NULL, &err), &err);
        pz_row row = {seq, 3};
        assert_ok(pz_engine_step(e, &row, 1, logits, &err), &err);
        real = e->api;
        pz_backend_api absent = *real;
        absent.run = absent_run;
        victim = e->rank[tp - 1].backend;
        e->api = &absent;
        int64_t start = pz_now_ns();
        assert_fails(pz_engine_step(e, &row, 1, logits, &err), PZ_E_TIMEOUT, &err, "did not arrive within 500 ms");
        assert_true(pz_now_ns() - start < 10000000000);
        assert_int_equal(pz_seq_length(e, seq), 21);
        e->api = real;
        assert_int_not_equal(pz_engine_step(e, &row, 1, logits, &err), PZ_OK);
        assert_non_null(strstr(err.msg, "the ranks have stopped"));
        pz_engine_close(e);
    }
    pz_free(logits);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        lab_test(test_logits_mxfp4),
        lab_test(test_logits_bf16),
        lab_test(test_logits_whole_experts),
        lab_test(test_answers),
        lab_test(test_bits),
        lab_test(test_bits_whole_experts),
        lab_test(test_bits_switch),
        lab_test(test_without_fills_it_is_wrong),
        lab_test(test_ranks_agree),
        lab_test(test_compare),
        lab_test(test_rank_gone),
    };
    setenv("PREZERO_SHARE_DEVICE", "1", 1);
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
