/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, limits, sequences, steps and their failures. */
#include "support_engine.h"

#include <math.h>
#include <stdio.h>

#include "base/fixed.h"

enum { VOCAB = SUPPORT_VOCAB };

static pz_status try_open(const char *dir, pz_engine_options o, pz_error *err) {
    pz_engine *e = NULL;
    if (o.size == 0) o.size = sizeof o;
    pz_status st = pz_engine_open(dir, &o, &e, err);
    if (st == PZ_OK)
        pz_engine_close(e);
    else
        assert_null(e);
    return st;
}

static void test_bad_options(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e = NULL;
    const char *dir = SUPPORT_MXFP4;
#define OPEN(...) try_open(dir, (pz_engine_options){__VA_ARGS__}, &err)
    assert_fails(OPEN(.size = 4), PZ_E_INVAL, &err, "size is 4");
    assert_fails(OPEN(.size = 4096), PZ_E_INVAL, &err, "size is 4096");
    assert_fails(OPEN(.max_batch = -1), PZ_E_RANGE, &err, "max_batch -1", "between 1");
    assert_fails(OPEN(.prefill_chunk = 1 << 30), PZ_E_RANGE, &err, "prefill_chunk 1073741824");
    assert_fails(OPEN(.max_sequences = -3), PZ_E_RANGE, &err, "max_sequences -3");
    assert_fails(OPEN(.threads = 5000), PZ_E_RANGE, &err, "threads 5000");
    assert_fails(OPEN(.context = 1025), PZ_E_RANGE, &err, "context 1025", "1024");
    assert_fails(OPEN(.context = -1), PZ_E_RANGE, &err, "context -1");
    assert_fails(OPEN(.prezero = 2), PZ_E_RANGE, &err, "prezero 2");
    assert_fails(OPEN(.accum = (pz_accum)9), PZ_E_RANGE, &err, "accum 9");
    assert_fails(OPEN(.act = (pz_act)9), PZ_E_RANGE, &err, "act 9");
    assert_fails(OPEN(.strategy = "ticket"), PZ_E_INVAL, &err, "strategy", "ticket", "reduce");
    assert_fails(OPEN(.gate = "ajar"), PZ_E_INVAL, &err, "gate", "ajar", "closed");
#undef OPEN
    assert_fails(pz_engine_open(NULL, NULL, &e, &err), PZ_E_INVAL, &err, "directory");
    assert_fails(pz_engine_open(dir, NULL, NULL, &err), PZ_E_INVAL, &err, "place");
    assert_fails(pz_engine_open(PZ_SOURCE_DIR "/nowhere", NULL, &e, &err), PZ_E_NOTFOUND, &err, "nowhere");
    /* A configuration without weights. */
    assert_fails(pz_engine_open(PZ_SOURCE_DIR "/tests/data/configs/kimi-k2", NULL, &e, &err), PZ_E_NOTFOUND, &err,
                 "safetensors");
    pz_engine_close(NULL);
}

static void test_environment(void **state) {
    (void)state;
    pz_error err;
    pz_engine_info info;
    setenv("PREZERO", "maybe", 1);
    assert_fails(try_open(SUPPORT_MXFP4, (pz_engine_options){.prezero = -1}, &err), PZ_E_INVAL, &err, "PREZERO",
                 "maybe");
    assert_ok(try_open(SUPPORT_MXFP4, (pz_engine_options){.prezero = 0}, &err), &err); /* not asked */
    for (int on = 0; on < 2; on++) {
        setenv("PREZERO", on ? "1" : "off", 1);
        pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.prezero = -1});
        pz_engine_get_info(e, &info);
        assert_int_equal(info.prezero, on);
        pz_engine_close(e);
    }
    unsetenv("PREZERO");
    setenv("PREZERO_THREADS", "3", 1);
    setenv("PREZERO_GATE", "closed", 1);
    setenv("PREZERO_STRATEGY", "reduce", 1);
    pz_engine_options o = {.size = sizeof o};
    pz_engine *e;
    assert_ok(pz_engine_open(SUPPORT_MXFP4, &o, &e, &err), &err);
    pz_engine_get_info(e, &info);
    assert_int_equal(info.threads, 3);
    assert_int_equal(e->gate, PZ_GATE_SHUT);
    assert_int_equal(e->strategy, PZ_ZERO_REDUCE);
    pz_engine_close(e);
    setenv("PREZERO_THREADS", "many", 1);
    assert_fails(try_open(SUPPORT_MXFP4, (pz_engine_options){0}, &err), PZ_E_INVAL, &err, "PREZERO_THREADS", "many");
    unsetenv("PREZERO_THREADS");
    unsetenv("PREZERO_GATE");
    unsetenv("PREZERO_STRATEGY");
    setenv("PREZERO_ISA", "neon", 1);
    assert_fails(try_open(SUPPORT_MXFP4, (pz_engine_options){0}, &err), PZ_E_INVAL, &err, "PREZERO_ISA", "neon");
    unsetenv("PREZERO_ISA");
}

static void test_info(void **state) {
    (void)state;
    pz_error err;
    pz_engine_info info;
    char *text = NULL;
    int n;
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_batch = 5, .threads = 2, .prezero = 1});
    pz_engine_get_info(e, &info);
    assert_int_equal(info.vocab, 1024);
    assert_int_equal(info.layers, 4);
    assert_int_equal(info.hidden, 256);
    assert_int_equal(info.context, 1024);
    assert_int_equal(info.threads, 2);
    assert_int_equal(info.prezero, 1);
    assert_int_equal(info.bos, 0);
    assert_int_equal(info.eos, 1);
    assert_true(info.weight_bytes > 5 << 20);
    assert_true(info.arena_bytes > 0);
    assert_true(info.load_seconds > 0);
    assert_true(info.isa[0] != 0);
    const int *buckets = pz_engine_buckets(e, &n);
    assert_int_equal(n, 4);
    assert_memory_equal(buckets, ((int[]){1, 2, 4, 5}), 4 * sizeof(int));
    assert_ok(pz_engine_plan_text(e, 3, &text, &err), &err);
    assert_contains(text, "gemm");
    pz_free(text);
    assert_fails(pz_engine_plan_text(e, 6, &text, &err), PZ_E_RANGE, &err, "rows 6", "5");
    assert_fails(pz_engine_plan_text(e, 0, &text, &err), PZ_E_RANGE, &err, "rows 0");
    pz_engine_close(e);
}

/* What a failed call must leave as it was. */
typedef struct snapshot {
    int length[8], n_free, n_pages;
} snapshot;

static snapshot snap(const pz_engine *e) {
    snapshot s = {.n_free = e->kv.n_free, .n_pages = e->kv.view.n_pages};
    for (int i = 0; i < e->kv.max_sequences && i < 8; i++) s.length[i] = e->kv.length[i];
    return s;
}

static void assert_unmoved(const pz_engine *e, snapshot before) {
    snapshot now = snap(e);
    assert_memory_equal(now.length, before.length, sizeof now.length);
    assert_int_equal(now.n_free - now.n_pages, before.n_free - before.n_pages); /* pages held */
    for (int i = 0; i < e->kv.max_sequences; i++) assert_int_equal(e->pending[i], 0);
}

static void test_sequences(void **state) {
    (void)state;
    pz_error err;
    int seq;
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_sequences = 3});
    for (int i = 0; i < 3; i++) assert_int_equal(support_seq(e), i);
    assert_fails(pz_seq_open(e, &seq, &err), PZ_E_RANGE, &err, "3 sequences");
    assert_int_equal(pz_seq_length(e, 1), 0);
    pz_seq_close(e, 1);
    pz_seq_close(e, 1);
    pz_seq_close(e, -1);
    pz_seq_close(e, 77);
    assert_int_equal(pz_seq_length(e, 1), -1);
    assert_int_equal(pz_seq_length(e, 77), -1);
    assert_int_equal(support_seq(e), 1);
    assert_fails(pz_seq_open(NULL, &seq, &err), PZ_E_INVAL, &err, "engine");
    pz_engine_close(e);
}

static void test_bad_steps(void **state) {
    (void)state;
    pz_error err;
    float logits[VOCAB];
    int32_t ids[40] = {0};
    pz_engine *e = support_engine(
        SUPPORT_MXFP4, (pz_engine_options){.max_batch = 4, .prefill_chunk = 8, .max_sequences = 3, .context = 32});
    int a = support_seq(e), b = support_seq(e);
    assert_ok(pz_engine_prefill(e, a, ids, 30, 0, logits, &err), &err);
    snapshot before = snap(e);
    pz_row rows[9] = {{a, 1}, {b, 1}, {b, 1}, {b, 1}, {b, 1}, {b, 1}, {b, 1}, {b, 1}, {b, 1}};
    assert_fails(pz_engine_step(e, rows, 0, NULL, &err), PZ_E_RANGE, &err, "0 rows", "1 to 8");
    assert_fails(pz_engine_step(e, rows, 9, NULL, &err), PZ_E_RANGE, &err, "9 rows");
    assert_fails(pz_engine_step(e, NULL, 1, NULL, &err), PZ_E_INVAL, &err, "rows");
    assert_fails(pz_engine_step(NULL, rows, 1, NULL, &err), PZ_E_INVAL, &err, "engine");
    static const pz_row bad[] = {{2, 1}, {-1, 1}, {3, 1}, {1000000, 1}, {0, -1}, {0, 1024}, {0, INT32_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rows[1] = bad[i];
        assert_fails(pz_engine_step(e, rows, 2, NULL, &err), PZ_E_RANGE, &err, "row 1",
                     i < 4 ? "sequence" : "vocabulary (0 to 1023)");
        assert_unmoved(e, before);
    }
    pz_row over[4] = {{b, 1}, {a, 1}, {a, 1}, {a, 1}};
    assert_fails(pz_engine_step(e, over, 4, NULL, &err), PZ_E_RANGE, &err, "sequence 0", "30 tokens and 3 more", "32");
    assert_unmoved(e, before);
    assert_fails(pz_engine_prefill(e, a, ids, 3, 0, NULL, &err), PZ_E_RANGE, &err, "context of 32");
    assert_fails(pz_engine_prefill(e, b, ids, 33, 0, NULL, &err), PZ_E_RANGE, &err, "context of 32");
    assert_fails(pz_engine_prefill(e, 2, ids, 3, 0, NULL, &err), PZ_E_RANGE, &err, "sequence 2");
    assert_fails(pz_engine_prefill(e, b, NULL, 3, 0, NULL, &err), PZ_E_INVAL, &err, "ids");
    assert_fails(pz_engine_prefill(e, b, ids, 0, 0, logits, &err), PZ_E_INVAL, &err, "no tokens");
    ids[20] = 5000; /* in the third chunk: the first two are taken back */
    assert_fails(pz_engine_prefill(e, b, ids, 30, 0, NULL, &err), PZ_E_RANGE, &err, "5000");
    assert_unmoved(e, before);
    assert_ok(pz_engine_step(e, over, 3, NULL, &err), &err);
    assert_int_equal(pz_seq_length(e, a), 32);
    assert_int_equal(pz_seq_length(e, b), 1);
    pz_engine_close(e);
}

/* Logits of `n` decode rows after the sequences got their prompts: f32 [n, VOCAB]. */
static float *batch_logits(pz_engine *e, int n) {
    pz_error err;
    pz_row rows[16];
    int32_t ids[16];
    float *logits = pz_calloc((size_t)n * VOCAB, sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < n; i++) {
        rows[i] = (pz_row){support_seq(e), 10 + i};
        support_ids((uint64_t)i, VOCAB, ids, 3 + i);
        assert_ok(pz_engine_prefill(e, rows[i].seq, ids, 3 + (size_t)i, 0, NULL, &err), &err);
    }
    assert_ok(pz_engine_step(e, rows, n, logits, &err), &err);
    for (int i = 0; i < n; i++) pz_seq_close(e, rows[i].seq);
    return logits;
}

/* Padding rows up to the bucket changes nothing, whatever the memory held. */
static void test_padding(void **state) {
    (void)state;
    for (int n = 1; n <= 7; n++) {
        pz_engine *exact = support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_batch = n, .prezero = 1});
        pz_engine *padded = support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_batch = 8, .prezero = 1});
        padded->decode.rows[0] = padded->decode.rows[1] = padded->decode.rows[2] = 0; /* leave bucket 8 alone */
        padded->poison = true;
        float *a = batch_logits(exact, n), *b = batch_logits(padded, n);
        assert_memory_equal(a, b, (size_t)n * VOCAB * sizeof(float));
        pz_free(a);
        pz_free(b);
        pz_engine_close(exact);
        pz_engine_close(padded);
    }
}

/* A closed sequence's pages serve the next one, and nothing of it is left: not even where they hold NaN. */
static void test_page_reuse(void **state) {
    (void)state;
    pz_error err;
    int32_t ids[200];
    support_ids(77, VOCAB, ids, 200);
    pz_engine *fresh = support_engine(SUPPORT_MXFP4, (pz_engine_options){0});
    pz_engine *used = support_engine(SUPPORT_MXFP4, (pz_engine_options){0});
    int seq = support_seq(used);
    assert_ok(pz_engine_prefill(used, seq, ids, 200, 0, NULL, &err), &err);
    pz_seq_close(used, seq);
    assert_int_equal(used->kv.n_free, used->kv.view.n_pages);
    memset(used->kv.pool[0], 0xFF, (size_t)pz_kv_bytes(&used->kv));
    float *a = batch_logits(fresh, 5), *b = batch_logits(used, 5);
    for (int i = 0; i < 5 * VOCAB; i++) assert_true(isfinite(b[i]));
    assert_memory_equal(a, b, 5 * VOCAB * sizeof(float));
    pz_free(a);
    pz_free(b);
    pz_engine_close(fresh);
    pz_engine_close(used);
}

/* NaN in the cache of one sequence stays in that sequence. */
static void test_nan_stays(void **state) {
    (void)state;
    pz_error err;
    int32_t ids[24];
    float clean[VOCAB], both[2 * VOCAB];
    support_ids(5, VOCAB, ids, 24);
    for (int prezero = 0; prezero < 2; prezero++) {
        pz_engine_options o = {.prezero = prezero, .gate = "open", .max_batch = 2};
        pz_engine *e = support_engine(SUPPORT_MXFP4, o);
        int good = support_seq(e);
        assert_ok(pz_engine_prefill(e, good, ids, 24, 0, NULL, &err), &err);
        assert_ok(pz_engine_step(e, &(pz_row){good, 9}, 1, clean, &err), &err);
        pz_kv_trim(&e->kv, good, 24);
        int sick = support_seq(e);
        assert_ok(pz_engine_prefill(e, sick, ids, 24, 0, NULL, &err), &err);
        int64_t page = e->kv.view.block_table[sick * e->kv.view.table_stride];
        memset(e->kv.pool[0] + page * PZ_PAGE_TOKENS * e->kv.view.entry * 2, 0xFF, 64);
        assert_ok(pz_engine_step(e, (pz_row[]){{sick, 9}, {good, 9}}, 2, both, &err), &err);
        assert_memory_equal(both + VOCAB, clean, sizeof clean);
        for (int i = 0; i < VOCAB; i++) assert_true(isnan(both[i])); /* never a finite number */
        pz_engine_close(e);
    }
}

static pz_status failing_run(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    (void)b, (void)plan, (void)args;
    return pz_fail(err, PZ_E_INTERNAL, "a kernel failed");
}

static pz_status failing_read(pz_backend *b, const pz_plan *plan, const pz_run_args *args, int place, const int *rows,
                              int n, float *dst, pz_error *err) {
    (void)b, (void)plan, (void)args, (void)place, (void)rows, (void)n, (void)dst;
    return pz_fail(err, PZ_E_INTERNAL, "no logits");
}

/* A step that fails in the backend leaves every sequence where it was, and the next step is right. */
static void test_failed_step(void **state) {
    (void)state;
    pz_error err;
    int32_t ids[20];
    float want[2 * VOCAB], got[2 * VOCAB];
    support_ids(6, VOCAB, ids, 20);
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.prezero = 1, .max_sequences = 4});
    int a = support_seq(e), b = support_seq(e);
    pz_row rows[2] = {{a, 3}, {b, 4}};
    assert_ok(pz_engine_prefill(e, a, ids, 16, 0, NULL, &err), &err);
    assert_ok(pz_engine_prefill(e, b, ids, 20, 0, NULL, &err), &err);
    assert_ok(pz_engine_step(e, rows, 2, want, &err), &err);
    pz_kv_trim(&e->kv, a, 16);
    pz_kv_trim(&e->kv, b, 20);
    snapshot before = snap(e);
    const pz_backend_api *api = e->api;
    pz_backend_api bad = *api;
    e->api = &bad;
    bad.run = failing_run;
    assert_fails(pz_engine_step(e, rows, 2, got, &err), PZ_E_INTERNAL, &err, "a kernel failed");
    assert_unmoved(e, before);
    assert_fails(pz_engine_prefill(e, a, ids, 20, 0, NULL, &err), PZ_E_INTERNAL, &err, "a kernel failed");
    assert_unmoved(e, before);
    bad.run = api->run;
    bad.read = failing_read;
    assert_fails(pz_engine_step(e, rows, 2, got, &err), PZ_E_INTERNAL, &err, "no logits");
    assert_unmoved(e, before);
    e->api = api;
    assert_ok(pz_engine_step(e, rows, 2, got, &err), &err);
    assert_memory_equal(got, want, sizeof want);
    pz_engine_close(e);
}

/* Steps whose allocations fail (a new plan, a larger arena, new pages) move nothing either. */
static void test_step_out_of_memory(void **state) {
    (void)state;
    pz_error err;
    int32_t ids[40];
    support_ids(8, VOCAB, ids, 40);
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_batch = 2, .max_sequences = 4});
    int seq = support_seq(e), failed = 0;
    snapshot before = snap(e);
    for (long n = 0;; n += 1 + n / 8) {
        pz_alloc_fail_after(n);
        pz_status st = pz_engine_prefill(e, seq, ids, 40, 0, NULL, &err);
        pz_alloc_fail_after(-1);
        if (st == PZ_OK) break;
        assert_status(st, PZ_E_NOMEM, &err);
        assert_unmoved(e, before);
        failed++;
    }
    assert_true(failed > 5);
    assert_int_equal(pz_seq_length(e, seq), 40);
    pz_engine_close(e);
}

/* Opening with any allocation failing: E_NOMEM, nothing leaked. */
static void test_open_out_of_memory(void **state) {
    (void)state;
    pz_error err;
    int failed = 0;
    for (long n = 0;; n += 1 + n / 10) {
        pz_engine *e = NULL;
        pz_engine_options o = {.size = sizeof o, .max_batch = 2, .prezero = 1, .threads = 1};
        pz_alloc_fail_after(n);
        pz_status st = pz_engine_open(SUPPORT_MXFP4, &o, &e, &err);
        pz_alloc_fail_after(-1);
        if (st == PZ_OK) {
            pz_engine_close(e);
            break;
        }
        assert_status(st, PZ_E_NOMEM, &err);
        assert_null(e);
        failed++;
    }
    assert_true(failed > 30);
}

static void test_profile(void **state) {
    (void)state;
    pz_error err;
    pz_profile_row *rows;
    int n, gemms = 0, layered = 0;
    int32_t ids[10] = {0};
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.profile = 1, .prezero = 1});
    assert_ok(pz_engine_profile(e, 0, &rows, &n, &err), &err);
    assert_int_equal(n, 0);
    pz_free(rows);
    int seq = support_seq(e);
    assert_ok(pz_engine_prefill(e, seq, ids, 10, 0, NULL, &err), &err);
    for (int i = 0; i < 3; i++) assert_ok(pz_engine_step(e, &(pz_row){seq, 1}, 1, NULL, &err), &err);
    assert_ok(pz_engine_profile(e, 1, &rows, &n, &err), &err);
    for (int i = 0; i < n; i++) {
        assert_true(rows[i].calls >= 4);
        assert_int_equal(rows[i].calls % 4, 0);
        assert_true(rows[i].seconds >= 0);
        gemms += strncmp(rows[i].op, "gemm ", 5) == 0;
        layered += rows[i].layer >= 0;
        for (int j = 0; j < i; j++) assert_false(rows[i].layer == rows[j].layer && strcmp(rows[i].op, rows[j].op) == 0);
    }
    assert_true(gemms >= 4 * 3);
    assert_true(layered >= 4 * 8);
    pz_free(rows);
    assert_ok(pz_engine_profile(e, 0, &rows, &n, &err), &err);
    assert_int_equal(n, 0);
    pz_free(rows);
    pz_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_bad_steps),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_page_reuse),
        cmocka_unit_test(test_nan_stays),
        cmocka_unit_test(test_failed_step),
        cmocka_unit_test(test_step_out_of_memory),
        cmocka_unit_test(test_open_out_of_memory),
        cmocka_unit_test(test_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
