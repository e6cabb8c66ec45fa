/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend below the engine: captured graphs and launches one by one give the same bits, debug mode finds what
 * it is there for, memory is reported and goes back. */
#include "lab.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "support_engine.h"

enum { SEQUENCES = 6, STEPS = 24, ROWS = SEQUENCES * STEPS };

static int steps(void) {
    return lab_small() ? 6 : STEPS;
}

static pz_engine *open_on_gpu(int prezero) {
    return support_engine(
        SUPPORT_MXFP4,
        (pz_engine_options){
            .device = "cuda", .prezero = prezero, .gate = "open", .max_batch = 8, .prefill_chunk = 8, .context = 64});
}

/* With a knob of the backend set. */
static pz_engine *open_with(const char *knob) {
    setenv(knob, "1", 1);
    pz_engine *e = open_on_gpu(1);
    unsetenv(knob);
    return e;
}

/* Steps of 1 to SEQUENCES rows in turn, so that plans of several buckets are captured and replayed; every row's token
 * is new. Logits of step i in row i * SEQUENCES on. Ends early, with the step's status, if one fails. */
static pz_status serve(pz_engine *e, float *logits, pz_error *err) {
    int seq[SEQUENCES];
    pz_status st = PZ_OK;
    for (int s = 0; s < SEQUENCES; s++) seq[s] = support_seq(e);
    for (int i = 0; i < steps() && st == PZ_OK; i++) {
        pz_row rows[SEQUENCES];
        int n = 1 + i % SEQUENCES;
        for (int s = 0; s < n; s++) rows[s] = (pz_row){seq[s], (7 * i + 13 * s) % SUPPORT_VOCAB};
        st = pz_engine_step(e, rows, n, logits + (int64_t)i * SEQUENCES * SUPPORT_VOCAB, err);
    }
    for (int s = 0; s < SEQUENCES; s++) pz_seq_close(e, seq[s]);
    return st;
}

static float *logits_of(pz_engine *e) {
    pz_error err;
    float *logits = pz_calloc((size_t)ROWS * SUPPORT_VOCAB, sizeof *logits);
    assert_non_null(logits);
    assert_ok(serve(e, logits, &err), &err);
    return logits;
}

static void assert_served(pz_engine *e, const float *want) {
    float *got = logits_of(e);
    assert_memory_equal(got, want, (size_t)ROWS * SUPPORT_VOCAB * sizeof *got);
    pz_free(got);
}

static int filled_slices(const pz_engine *e) {
    int n = 0;
    for (int i = 0; i < e->decode.n; i++) {
        const pz_plan *p = e->decode.prepared[i].plan;
        for (int s = 0; p && s < p->slices.n; s++) n += p->slices.at[s].filled;
    }
    return n;
}

/* ---- same bits ---- */
static void test_same_bits(void **state) {
    (void)state;
    static const char *const knobs[] = {"PREZERO_EAGER", "PREZERO_CHECK", "PREZERO_NVTX"};
    pz_engine *e = open_on_gpu(1);
    assert_true(filled_slices(e) > 0);
    float *want = logits_of(e);
    for (int i = 0; i < SUPPORT_VOCAB; i++) assert_true(elem_finite((double)want[i]));
    assert_served(e, want); /* replays alone */
    e->poison = true;
    assert_served(e, want);
    pz_engine_close(e);
    for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) {
        e = open_with(knobs[i]);
        assert_served(e, want);
        assert_served(e, want);
        pz_engine_close(e);
    }
    e = open_on_gpu(0);
    assert_int_equal(filled_slices(e), 0);
    assert_served(e, want);
    e->timed = true;
    assert_served(e, want);
    pz_engine_close(e);
    pz_free(want);
}

static void test_two_engines(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e[2] = {open_on_gpu(1), open_on_gpu(0)};
    float *want = logits_of(e[0]);
    int seq[2] = {support_seq(e[0]), support_seq(e[1])};
    for (int i = 0; i < 10; i++) {
        float logits[2][SUPPORT_VOCAB];
        for (int k = 0; k < 2; k++) assert_ok(pz_engine_step(e[k], &(pz_row){seq[k], 5 + i}, 1, logits[k], &err), &err);
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    }
    assert_served(e[1], want);
    pz_free(want);
    pz_engine_close(e[0]);
    pz_engine_close(e[1]);
}

/* ---- the negative control, and what debug mode finds ---- */
static void test_without_fills_it_is_wrong(void **state) {
    (void)state;
    pz_engine *e = open_on_gpu(1);
    e->poison = true;
    float *good = logits_of(e);
    pz_engine_break_fills(e);
    float *bad = logits_of(e);
    for (int i = 0; i < steps(); i++)
        assert_memory_not_equal(good + (int64_t)i * SEQUENCES * SUPPORT_VOCAB,
                                bad + (int64_t)i * SEQUENCES * SUPPORT_VOCAB, SUPPORT_VOCAB * sizeof *good);
    pz_free(good);
    pz_free(bad);
    pz_engine_close(e);
}

static void test_debug_mode_finds_missing_fills(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e = open_with("PREZERO_CHECK");
    float *logits = logits_of(e);
    pz_engine_break_fills(e);
    assert_fails(serve(e, logits, &err), PZ_E_INTERNAL, &err, "not zero", "rider");
    pz_free(logits);
    pz_engine_close(e);
}

/* The arena moves while graphs hold its address: debug mode says so; otherwise the graphs are captured again. */
static void move_arena(pz_engine *e, unsigned char **old) {
    pz_error err;
    *old = e->rank[0].arena;
    assert_ok(e->api->alloc(e->rank[0].backend, e->arena_bytes, &e->rank[0].arena, &err), &err);
    assert_ptr_not_equal(e->rank[0].arena, *old);
}

static void test_moved_arena(void **state) {
    (void)state;
    pz_error err;
    unsigned char *old;
    pz_engine *e = open_with("PREZERO_CHECK");
    float *want = logits_of(e), *again = pz_calloc((size_t)ROWS * SUPPORT_VOCAB, sizeof *again);
    assert_non_null(again);
    move_arena(e, &old);
    assert_fails(serve(e, again, &err), PZ_E_INTERNAL, &err, "arena", "forget the plan");
    e->api->release(e->rank[0].backend, old);
    for (int i = 0; i < e->decode.n; i++)
        if (e->decode.prepared[i].plan) e->api->forget(e->rank[0].backend, e->decode.prepared[i].plan);
    assert_served(e, want);
    pz_engine_close(e);

    e = open_on_gpu(1);
    assert_served(e, want);
    move_arena(e, &old);
    assert_int_equal(cudaMemset(old, 0xff, (size_t)e->arena_bytes), cudaSuccess);
    assert_served(e, want);
    e->api->release(e->rank[0].backend, old);
    assert_served(e, want);
    pz_engine_close(e);
    pz_free(want);
    pz_free(again);
}

/* ---- memory ---- */
static int64_t free_bytes(void) {
    size_t available, total;
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&available, &total), cudaSuccess);
    return (int64_t)available;
}

static void test_memory(void **state) {
    (void)state;
    enum { ROUNDS = 5, SLACK = 4 << 20 /* what the driver rounds up and keeps */ };
    int64_t before[ROUNDS + 1];
    for (int i = 0; i < ROUNDS; i++) {
        before[i] = free_bytes();
        pz_engine *e = open_on_gpu(1);
        pz_free(logits_of(e));
        pz_engine_info info;
        pz_engine_get_info(e, &info);
        assert_true(info.device_used_bytes >= info.weight_bytes + info.cache_bytes + info.arena_bytes);
        assert_true(info.device_total_bytes > info.device_used_bytes);
        if (i > 0) /* the first also loads the kernels */
            assert_true(before[i] - free_bytes() + SLACK >= info.device_used_bytes);
        assert_non_null(strstr(info.device, "cuda:0"));
        pz_engine_close(e);
    }
    before[ROUNDS] = free_bytes();
    assert_true(before[ROUNDS] + SLACK >= before[1]);
    assert_true(before[ROUNDS] >= before[2]); /* no growth at all once it has settled */
}

static void test_refusals(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e = NULL;
    pz_engine_options o = {.size = sizeof o, .device = "cuda:999"};
    assert_fails(pz_engine_open(SUPPORT_MXFP4, &o, &e, &err), PZ_E_UNSUPPORTED, &err, "no GPU 999");
    assert_null(e);
    const pz_backend_api *api;
    pz_backend *b;
    unsigned char *p;
    assert_ok(pz_backend_cuda(&api, &err), &err);
    assert_ok(api->open(NULL, &b, &err), &err);
    int64_t used, total;
    api->memory(b, &used, &total);
    assert_fails(api->alloc(b, total * 2, &p, &err), PZ_E_NOMEM, &err, "out of GPU memory");
    assert_ok(api->alloc(b, 1 << 20, &p, &err), &err); /* and nothing is broken by it */
    unsigned char bytes[64];
    assert_ok(api->copy(b, bytes, p, sizeof bytes, PZ_COPY_FROM, &err), &err);
    for (size_t i = 0; i < sizeof bytes; i++) assert_int_equal(bytes[i], 0);
    api->release(b, p);
    api->close(b);
}

/* A module of another architecture, if the environment names one: refused with a message, and not remembered. */
static int other_architecture(void) {
    const char *path = getenv("PREZERO_TEST_OTHER_MODULE");
    const pz_backend_api *api;
    pz_error err = {0};
    if (!path) return 0;
    setenv("PREZERO_CUDA_MODULE", path, 1);
    pz_status st = pz_backend_cuda(&api, &err);
    unsetenv("PREZERO_CUDA_MODULE");
    if (st == PZ_E_UNSUPPORTED && strstr(err.msg, "architecture sm_")) return 0;
    print_error("a module of another architecture: %s '%s'\n", pz_status_name(st), err.msg);
    return 1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        lab_test(test_refusals),
        lab_test(test_same_bits),
        lab_test(test_two_engines),
        lab_test(test_without_fills_it_is_wrong),
        lab_test(test_debug_mode_finds_missing_fills),
        lab_test(test_moved_arena),
        lab_test(test_memory),
    };
    if (other_architecture()) return 1;
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
