/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in model, wholly on a GPU: its logits against those of transformers, its answers against the CPU's, and the
 * same bits whatever the engine is asked to do besides. */
#include "lab.h"
#include "support_logits.h"

#include "base/par.h"

/* ---- logits: the limits are those of the CPU ---- */
static void test_logits_bf16_checkpoint(void **state) {
    (void)state;
    support_check_bf16_logits(SUPPORT_BF16, "ref_fp32", "ref_bf16", (pz_engine_options){.device = "cuda"});
}

static void test_logits_mxfp4_checkpoint(void **state) {
    (void)state;
    support_check_bf16_logits(SUPPORT_MXFP4, "ref_mxfp4_fp32", "ref_mxfp4_bf16", (pz_engine_options){.device = "cuda"});
}

/* ---- answers ---- */
enum { QUESTIONS = 200, BATCH = 64, NEW_TOKENS = 48 };

static void evaluate(const pz_tokenizer *tok, pz_engine_options o, pz_eval_result *result) {
    pz_error err;
    pz_engine *e = support_engine(SUPPORT_MXFP4, o);
    assert_ok(pz_eval(e, tok, SUPPORT_MXFP4 "/eval.jsonl", BATCH, NEW_TOKENS, QUESTIONS, NULL, NULL, result, &err),
              &err);
    assert_int_equal(result->n, QUESTIONS);
    pz_engine_close(e);
}

static int count_other_answers(const pz_eval_result *a, const pz_eval_result *b) {
    int n = 0;
    for (int i = 0; i < QUESTIONS; i++) n += !pz_streq(a->items[i].answer, b->items[i].answer);
    return n;
}

static void test_answers(void **state) {
    (void)state;
    pz_error err;
    pz_tokenizer *tok;
    pz_eval_result cpu, off, on;
    assert_ok(pz_tokenizer_open(SUPPORT_MXFP4, &tok, &err), &err);
    evaluate(tok, (pz_engine_options){.device = "cpu", .threads = pz_par_cpus()}, &cpu);
    evaluate(tok, (pz_engine_options){.device = "cuda"}, &off);
    evaluate(tok, (pz_engine_options){.device = "cuda", .prezero = 1}, &on);
    print_message("right answers of %d: %d on the CPU, %d on the GPU\n", QUESTIONS, cpu.correct, off.correct);
    for (int i = 0; i < QUESTIONS; i++) assert_string_equal(on.items[i].output, off.items[i].output);
    assert_int_equal(count_other_answers(&cpu, &off), 0);
    assert_int_equal(cpu.correct, off.correct);
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
    {"off, poison", {0}, false, true, false},
    {"off, batch", {0}, true, false, false},
    {"off, batch, eager", {0}, true, false, true},
    {"on", {ON}, false, false, false},
    {"on, eager", {ON}, false, false, true},
    {"on, poison", {ON}, false, true, false},
    {"on, gate open", {ON, .gate = "open"}, false, true, false},
    {"on, gate open, eager", {ON, .gate = "open"}, false, true, true},
    {"on, gate open, batch", {ON, .gate = "open"}, true, true, false},
    {"on, gate closed", {ON, .gate = "closed"}, true, true, false},
    {"self, poison", {.strategy = "self"}, false, true, false},
    {"reduce, batch, poison", {.strategy = "reduce"}, true, true, false},
    {"ticket, poison", {.strategy = "ticket"}, false, true, false},
    {"memset, batch, poison", {.strategy = "memset"}, true, true, false},
    {"small chunks", {ON, .gate = "open", .prefill_chunk = 5}, false, true, false},
    {"odd bucket", {ON, .gate = "open", .max_batch = 16, .prefill_chunk = 7}, true, true, false},
};

static float *serve_variant(const char *dir, variant v) {
    v.options.device = "cuda";
    setenv("PREZERO_EAGER", v.eager ? "1" : "0", 1);
    pz_engine *e = support_engine(dir, v.options);
    unsetenv("PREZERO_EAGER");
    e->poison = v.poison;
    for (int i = 0; i < 2; i++) pz_free(support_serve(e, v.others)); /* graphs are captured */
    float *logits = support_serve(e, v.others);
    pz_engine_close(e);
    return logits;
}

static void check_bits(const char *dir) {
    float *want = serve_variant(dir, (variant){.name = "off"});
    for (int i = 0; i < SERVE_ROWS * SUPPORT_VOCAB; i++) assert_true(isfinite(want[i]));
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        float *got = serve_variant(dir, variants[i]);
        if (memcmp(got, want, SERVE_BYTES) != 0) fail_msg("%s: other bits than off", variants[i].name);
        pz_free(got);
    }
    pz_free(want);
}

static void test_bits_mxfp4(void **state) {
    (void)state;
    check_bits(SUPPORT_MXFP4);
}

static void test_bits_bf16(void **state) {
    (void)state;
    check_bits(SUPPORT_BF16);
}

static void test_five_runs(void **state) {
    (void)state;
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .device = "cuda", .gate = "open"});
    float *want = support_serve(e, false);
    for (int run = 1; run < 5; run++) {
        float *got = support_serve(e, run % 2);
        assert_memory_equal(got, want, SERVE_BYTES);
        pz_free(got);
    }
    pz_free(want);
    pz_engine_close(e);
}

/* The negative control: donors that do not fill, so that GEMMs add to what the memory held. */
static void test_without_fills_it_is_wrong(void **state) {
    (void)state;
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){ON, .device = "cuda", .gate = "open"});
    e->poison = true;
    pz_error err;
    pz_prepared *p;
    int filled = 0;
    assert_ok(pz_engine_prepare(e, 1, true, &p, &err), &err);
    for (int i = 0; i < p->plan->fills.n; i++) filled += p->plan->fills.at[i].level;
    float *good = support_serve(e, false);
    pz_engine_break_fills(e);
    float *bad = support_serve(e, false);
    assert_memory_equal(good, bad, SERVE_PROMPT * SUPPORT_VOCAB * sizeof(float));
    for (int s = SERVE_PROMPT; filled && s < SERVE_ROWS; s++)
        assert_memory_not_equal(good + s * SUPPORT_VOCAB, bad + s * SUPPORT_VOCAB, SUPPORT_VOCAB * sizeof(float));
    if (!filled) print_message("no GEMM of this model is split on this device: nothing to break\n");
    pz_free(good);
    pz_free(bad);
    pz_engine_close(e);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        lab_test(test_logits_bf16_checkpoint),
        lab_test(test_logits_mxfp4_checkpoint),
        lab_test(test_answers),
        lab_test(test_bits_mxfp4),
        lab_test(test_bits_bf16),
        lab_test(test_five_runs),
        lab_test(test_without_fills_it_is_wrong),
    };
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
