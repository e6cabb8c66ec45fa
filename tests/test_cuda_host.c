/* SPDX-License-Identifier: Apache-2.0 */
/* The host side of the CUDA backend, by a module whose device is host memory and whose kernels are the CPU's (see
 * fake_cuda/fake.h): an engine on it must give the CPU's bits, whatever the mode. */
#include "support.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake_cuda/fake.h"
#include "support_engine.h"

enum { SEQUENCES = 3, PROMPT = 340 /* the cache grows */, SHORT = 24, STEPS = 12 };

static fake_control *fake;

static int load(void **state) {
    (void)state;
    setenv("PREZERO_CUDA_MODULE", PZ_FAKE_CUDA, 1);
    void *handle = dlopen(PZ_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(handle);
    fake = dlsym(handle, "pz_fake_cuda");
    assert_non_null(fake);
    return 0;
}

static pz_status open_engine(const char *device, const char *dir, pz_engine_options o, pz_engine **e, pz_error *err) {
    o.size = sizeof o;
    o.threads = 1;
    o.max_batch = 4;
    o.gate = "open";
    o.device = device;
    *e = NULL;
    return pz_engine_open(dir, &o, e, err);
}

static pz_status some_steps(pz_engine *e, const int *seq, int round, float **at, pz_error *err) {
    for (int s = 0; s < STEPS; s++) { /* buckets 1, 2 and 4, the last with a padded row */
        pz_row rows[SEQUENCES];
        int n = s % SEQUENCES + 1;
        for (int i = 0; i < n; i++) rows[i] = (pz_row){seq[(i + s) % SEQUENCES], 3 * s + i + round};
        PZ_TRY(pz_engine_step(e, rows, n, *at, err));
        *at += n * SUPPORT_VOCAB;
    }
    return PZ_OK;
}

/* Prompts and steps in turn, so that arena and cache grow while graphs exist. */
static pz_status serve(pz_engine *e, int prompt, float *logits, pz_error *err) {
    int seq[SEQUENCES];
    int32_t ids[PROMPT];
    support_ids(5, SUPPORT_VOCAB, ids, PROMPT);
    for (int i = 0; i < SEQUENCES; i++) {
        PZ_TRY(pz_seq_open(e, &seq[i], err));
        PZ_TRY(pz_engine_prefill(e, seq[i], ids + i, 5, 0, NULL, err));
    }
    PZ_TRY(some_steps(e, seq, 0, &logits, err));
    for (int i = 0; i < SEQUENCES; i++) {
        PZ_TRY(pz_engine_prefill(e, seq[i], ids, (size_t)prompt, 0, logits, err));
        logits += SUPPORT_VOCAB;
    }
    return some_steps(e, seq, 1, &logits, err);
}

enum { LOGITS = (2 * STEPS * 2 + SEQUENCES) * SUPPORT_VOCAB };

static float *answers(const char *device, const char *dir, pz_engine_options o, int prompt, bool poison) {
    pz_error err;
    pz_engine *e;
    float *logits = pz_calloc(LOGITS, sizeof *logits);
    assert_non_null(logits);
    assert_ok(open_engine(device, dir, o, &e, &err), &err);
    e->poison = poison;
    assert_ok(serve(e, prompt, logits, &err), &err);
    pz_engine_close(e);
    return logits;
}

/* ---- the same bits in every mode ---- */
typedef struct mode {
    const char *name, *knob;
    bool graphs, poison;
    pz_engine_options o;
} mode;

static const mode modes[] = {
    {"graphs", NULL, true, false, {.prezero = 1}},
    {"graphs, poison", NULL, true, true, {.prezero = 1}},
    {"off", NULL, true, false, {.prezero = 0}},
    {"bf16 sums", NULL, true, false, {.prezero = 1, .accum = PZ_ACCUM_F32}},
    {"eager", "PREZERO_EAGER", false, true, {.prezero = 1}},
    {"ranges", "PREZERO_NVTX", false, false, {.prezero = 1}},
    {"debug", "PREZERO_CHECK", false, false, {.prezero = 1}},
    {"debug, off", "PREZERO_CHECK", false, false, {.prezero = 0}},
    {"timed", NULL, false, true, {.prezero = 1, .profile = 1}},
};

static void test_modes(void **state) {
    (void)state;
    const char *dirs[] = {SUPPORT_MXFP4, SUPPORT_BF16};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const mode *m = &modes[i];
        const char *dir = dirs[i % 2];
        int prompt = i < 2 ? PROMPT : SHORT;
        float *want = answers("cpu", dir, m->o, prompt, false);
        fake->captures = fake->replays = fake->launches = fake->wrong_dependent = 0;
        if (m->knob) setenv(m->knob, "1", 1);
        float *got = answers("cuda", dir, m->o, prompt, m->poison);
        if (m->knob) unsetenv(m->knob);
        if (memcmp(want, got, LOGITS * sizeof *want) != 0) fail_msg("%s: other bits than on the CPU", m->name);
        assert_int_equal(fake->wrong_dependent, 0);
        assert_int_equal(fake->live, 0);
        if (m->graphs) {
            /* each of 3 decode plans before and after the arena grew, and the plans of 5 and 128 prompt rows, ... */
            assert_in_range(fake->captures, 6, 12);
            assert_true(fake->replays > STEPS);
        } else {
            assert_int_equal(fake->captures, 0);
        }
        pz_free(want);
        pz_free(got);
    }
}

static void test_info(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e, *cpu;
    pz_engine_info info, other;
    assert_ok(open_engine("auto", SUPPORT_MXFP4, (pz_engine_options){0}, &e, &err), &err);
    assert_ok(open_engine("cpu", SUPPORT_MXFP4, (pz_engine_options){0}, &cpu, &err), &err);
    pz_engine_get_info(e, &info);
    pz_engine_get_info(cpu, &other);
    assert_string_equal(info.device, "cuda:0 (Fake 0)");
    assert_string_equal(info.isa, "sm_90");
    assert_int_equal(info.threads, 132);
    assert_true(info.device_total_bytes == (int64_t)64 << 30);
    assert_true(info.weight_bytes > other.weight_bytes / 2);
    int64_t known = info.weight_bytes + info.cache_bytes + info.arena_bytes;
    assert_in_range(info.device_used_bytes, known, known + 4096);
    pz_engine_close(cpu);
    pz_engine_close(e);
    assert_fails(open_engine("cuda:1", SUPPORT_MXFP4, (pz_engine_options){0}, &e, &err), PZ_E_UNSUPPORTED, &err,
                 "cuda:1", "sm_80", "90a");
    assert_fails(open_engine("cuda:2", SUPPORT_MXFP4, (pz_engine_options){0}, &e, &err), PZ_E_UNSUPPORTED, &err,
                 "no GPU 2", "there are 2");
    assert_int_equal(fake->live, 0);
}

/* Rank 0 has its GPU when rank 1 is refused: nothing of it is left where the CPU is taken instead. */
static void test_auto_of_several_ranks(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e;
    pz_engine_info info;
    assert_fails(open_engine("cuda", SUPPORT_MXFP4, (pz_engine_options){.tp = 2}, &e, &err), PZ_E_UNSUPPORTED, &err,
                 "cuda:0", "GPU 1", "sm_80");
    assert_int_equal(fake->live, 0);
    assert_ok(open_engine("auto", SUPPORT_MXFP4, (pz_engine_options){.tp = 2}, &e, &err), &err);
    assert_int_equal(fake->live, 0);
    pz_engine_get_info(e, &info);
    assert_string_equal(info.device, "cpu");
    assert_int_equal(info.tp, 2);
    pz_engine_close(e);
}

/* f32 activations would need f32 GEMMs, which no GPU kernel is. */
static void test_refused(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e;
    float logits[SUPPORT_VOCAB];
    assert_ok(open_engine("cuda", SUPPORT_BF16, (pz_engine_options){.act = PZ_ACT_F32}, &e, &err), &err);
    int seq = support_seq(e);
    assert_fails(pz_engine_step(e, &(pz_row){seq, 1}, 1, logits, &err), PZ_E_UNSUPPORTED, &err, "gemm",
                 "multiply bf16");
    assert_int_equal(pz_seq_length(e, seq), 0);
    pz_engine_close(e);
    assert_int_equal(fake->live, 0);
}

/* ---- debug mode finds what it is for ---- */
static pz_status one_step(pz_engine *e, pz_error *err) {
    float logits[SUPPORT_VOCAB];
    int seq = support_seq(e);
    pz_status st = pz_engine_step(e, &(pz_row){seq, 7}, 1, logits, err);
    pz_seq_close(e, seq);
    return st;
}

static void test_debug_mode(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e;
    setenv("PREZERO_CHECK", "1", 1);
    assert_ok(open_engine("cuda", SUPPORT_MXFP4, (pz_engine_options){.prezero = 1}, &e, &err), &err);
    assert_ok(one_step(e, &err), &err);
    const pz_plan *plan = e->decode.prepared[0].plan;
    for (int i = 0; i < plan->launches.n; i++) { /* whatever launch writes where it should not */
        if (plan->launches.at[i].out[0] < 0) continue;
        char launch[32];
        snprintf(launch, sizeof launch, "launch %d, ", i);
        fake->stray = i;
        assert_fails(one_step(e, &err), PZ_E_INTERNAL, &err, launch, "does not give it");
    }
    fake->stray = -1;
    assert_ok(one_step(e, &err), &err);
    pz_engine_break_fills(e);
    assert_fails(one_step(e, &err), PZ_E_INTERNAL, &err, "not zero", "rider of launch");
    pz_engine_close(e);
    unsetenv("PREZERO_CHECK");
    assert_int_equal(fake->live, 0);
}

/* A plan that is run on another arena without being forgotten: captured anew, an error in debug mode. */
static void test_moved_arena(void **state) {
    (void)state;
    for (int check = 0; check < 2; check++) {
        pz_error err;
        pz_engine *e;
        setenv("PREZERO_CHECK", check ? "1" : "0", 1);
        assert_ok(open_engine("cuda", SUPPORT_MXFP4, (pz_engine_options){.prezero = 1}, &e, &err), &err);
        for (int i = 0; i < 3; i++) assert_ok(one_step(e, &err), &err);
        unsigned char *old = e->rank[0].arena;
        assert_ok(e->api->alloc(e->rank[0].backend, e->arena_bytes, &e->rank[0].arena, &err), &err);
        memset(old, 0xFF, (size_t)e->arena_bytes);
        fake->captures = 0;
        if (check)
            assert_fails(one_step(e, &err), PZ_E_INTERNAL, &err, "forget the plan first");
        else
            for (int i = 0; i < 3; i++) assert_ok(one_step(e, &err), &err);
        assert_int_equal(fake->captures, !check);
        for (int64_t i = 0; i < e->arena_bytes; i++) assert_int_equal(old[i], 0xFF);
        e->api->release(e->rank[0].backend, old);
        pz_engine_close(e);
        assert_int_equal(fake->live, 0);
    }
    unsetenv("PREZERO_CHECK");
}

/* ---- every call of the runtime, and every allocation, failing ---- */
static void test_failures(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e;
    float *want = answers("cpu", SUPPORT_MXFP4, (pz_engine_options){.prezero = 1}, SHORT, false);
    float *got = pz_calloc(LOGITS, sizeof *got);
    assert_non_null(got);
    int failed = 0;
    for (long n = 0;; n += 1 + n / 9) {
        fake->fail_after = n;
        pz_status st = open_engine("cuda", SUPPORT_MXFP4, (pz_engine_options){.prezero = 1}, &e, &err);
        if (st == PZ_OK) st = serve(e, SHORT, got, &err);
        bool all = fake->fail_after > 0;
        fake->fail_after = -1;
        if (st != PZ_OK) {
            assert_true(err.code == st && *err.msg);
            failed++;
        }
        if (e && st != PZ_OK) { /* the engine can go on */
            for (int s = 0; s < SEQUENCES; s++) pz_seq_close(e, s);
            assert_ok(serve(e, SHORT, got, &err), &err);
        }
        if (e) assert_memory_equal(want, got, LOGITS * sizeof *want);
        pz_engine_close(e);
        assert_int_equal(fake->live, 0);
        if (all) break;
    }
    assert_true(failed > 30);
    pz_free(want);
    pz_free(got);
}

static void test_out_of_memory(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e;
    int failed = 0;
    for (long n = 0;; n++) {
        fake->alloc_fail_after(n);
        pz_status st = open_engine("cuda", SUPPORT_MXFP4, (pz_engine_options){.prezero = 1}, &e, &err);
        if (st == PZ_OK) st = one_step(e, &err);
        fake->alloc_fail_after(-1);
        pz_engine_close(e);
        assert_int_equal(fake->live, 0);
        if (st == PZ_OK) break;
        assert_status(st, PZ_E_NOMEM, &err);
        failed++;
        if (n > 40) n += n / 10;
    }
    assert_true(failed > 20);
}

/* ---- generation: greedy choices are made by the backend, others from its logits ---- */
enum { REQUESTS = 5, NEW_TOKENS = 6 };

static int keep_token(void *user, int index, int32_t token, int last) {
    int32_t *tokens = (int32_t *)user + index * (NEW_TOKENS + 1);
    (void)last;
    tokens[1 + tokens[0]++] = token;
    return 0;
}

static void generate(const char *device, bool sampled, int32_t tokens[REQUESTS][NEW_TOKENS + 1]) {
    pz_error err;
    pz_engine *e;
    int32_t ids[8];
    pz_request requests[REQUESTS] = {0};
    support_ids(6, SUPPORT_VOCAB, ids, 8);
    for (int i = 0; i < REQUESTS; i++) {
        requests[i] =
            (pz_request){.prompt = ids, .prompt_len = (size_t)(i + 2), .max_tokens = NEW_TOKENS, .ignore_eos = 1};
        if (sampled && i % 2) requests[i].sampling = (pz_sampling){.temperature = 1, .top_k = 9, .seed = 7};
    }
    memset(tokens, 0, REQUESTS * sizeof *tokens);
    assert_ok(open_engine(device, SUPPORT_MXFP4, (pz_engine_options){.prezero = 1}, &e, &err), &err);
    assert_ok(pz_generate(e, requests, REQUESTS, 4, keep_token, tokens, &err), &err);
    pz_engine_close(e);
}

static void test_generation(void **state) {
    (void)state;
    int32_t cpu[REQUESTS][NEW_TOKENS + 1], cuda[REQUESTS][NEW_TOKENS + 1];
    for (int sampled = 0; sampled < 2; sampled++) {
        generate("cpu", sampled, cpu);
        generate("cuda", sampled, cuda);
        for (int i = 0; i < REQUESTS; i++) assert_int_equal(cpu[i][0], NEW_TOKENS);
        assert_memory_equal(cpu, cuda, sizeof cpu);
        assert_int_equal(fake->live, 0);
    }
}

/* Asked of the runtime once a device, again after a failure, and 0 is a value like any other. The last device is beyond
 * those that are kept. */
static void test_attributes(void **state) {
    (void)state;
    pz_error err;
    int value;
    for (int device = 0; device < 200; device += 100) {
        fake->fail_after = 1; /* the number of the device is known, its attribute is not */
        assert_fails(fake->attribute(device, false, &value, &err), PZ_E_INTERNAL, &err, "cudaDeviceGetAttribute");
        fake->fail_after = -1;
        for (int i = 0; i < 3; i++)
            for (int minor = 0; minor < 2; minor++) {
                long calls = fake->calls;
                value = -7;
                assert_ok(fake->attribute(device, minor, &value, &err), &err);
                assert_int_equal(value, minor ? 0 : 132 - device);
                assert_int_equal(fake->calls - calls, i && device == 0 ? 1 : 2);
            }
    }
    fake->fail_after = 0;
    assert_fails(fake->attribute(0, false, &value, &err), PZ_E_INTERNAL, &err, "cudaGetDevice");
    fake->fail_after = -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes),       cmocka_unit_test(test_info),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_debug_mode),
        cmocka_unit_test(test_moved_arena), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_attributes),  cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_generation),  cmocka_unit_test(test_auto_of_several_ranks),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
