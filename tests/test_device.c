/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the device, what is said where a GPU cannot be had, and what the engine promises a backend. */
#include "support.h"

#include <stdlib.h>

#include "backend/cuda_module.h"
#include "support_engine.h"

#define NOWHERE "/nonexistent/libprezero_cuda.so"
#define NOT_A_MODULE PZ_SOURCE_DIR "/models/kimi-tiny/config.json"

static pz_status open_on(const char *device, pz_engine **e, pz_error *err) {
    pz_engine_options o = {.size = sizeof o, .threads = 1, .max_batch = 2, .device = device};
    *e = NULL;
    return pz_engine_open(SUPPORT_MXFP4, &o, e, err);
}

static void test_words(void **state) {
    (void)state;
    static const char *const bad[] = {"",      "gpu",     "CUDA",  "cuda:",   "cuda:x",
                                      "cuda0", "cuda:-1", "cpu:0", "cuda:0x", "cuda:12345"};
    pz_error err;
    pz_engine *e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(open_on(bad[i], &e, &err), PZ_E_INVAL, &err, "cuda:N");
    setenv("PREZERO_DEVICE", "vpu", 1);
    assert_fails(open_on(NULL, &e, &err), PZ_E_INVAL, &err, "PREZERO_DEVICE", "\"vpu\"");
    assert_ok(open_on("cpu", &e, &err), &err); /* the option is stronger */
    pz_engine_close(e);
    unsetenv("PREZERO_DEVICE");
    assert_ok(open_on(NULL, &e, &err), &err); /* and the default is the CPU */
    pz_engine_info info;
    pz_engine_get_info(e, &info);
    assert_string_equal(info.device, "cpu");
    assert_int_equal(info.device_total_bytes, 0);
    pz_engine_close(e);
}

/* Without a module: every door says so, auto takes the CPU, and nothing is remembered. */
static void test_no_module(void **state) {
    (void)state;
    pz_error err;
    pz_engine *e;
    for (int i = 0; i < 2; i++) {
        const char *path = i ? NOT_A_MODULE : NOWHERE;
        setenv("PREZERO_CUDA_MODULE", path, 1);
        assert_fails(open_on("cuda", &e, &err), PZ_E_UNSUPPORTED, &err, "device cuda:0", "no GPU support", path);
        assert_fails(open_on("cuda:3", &e, &err), PZ_E_UNSUPPORTED, &err, "device cuda:3", path);
        assert_null(e);
        assert_ok(open_on("auto", &e, &err), &err);
        pz_engine_info info;
        pz_engine_get_info(e, &info);
        assert_string_equal(info.device, "cpu");
        pz_engine_close(e);
    }
    unsetenv("PREZERO_CUDA_MODULE");
}

/* The public kernels check what they are given first, and then want a GPU. */
static void test_public_kernels(void **state) {
    (void)state;
    setenv("PREZERO_CUDA_MODULE", NOWHERE, 1);
    pz_error err;
    size_t bytes;
    float f[4];
    pz_gemm_args g = {.size = sizeof g, .x = f, .w = f, .y = f};
    pz_norm_args n = {.size = sizeof n, .x = {.data = f}, .y = {.data = f}, .w = f};
    assert_fails(pz_gemm(&g, &err), PZ_E_UNSUPPORTED, &err, "no GPU support");
    assert_fails(pz_gemm_workspace(&g, &bytes, &err), PZ_E_UNSUPPORTED, &err, "no GPU support");
    assert_fails(pz_rms_norm(&n, &err), PZ_E_UNSUPPORTED, &err, "no GPU support");
    assert_fails(pz_weight_norms(f, 4, 1, 4, f, NULL, &err), PZ_E_UNSUPPORTED, &err, "no GPU support");
    assert_fails(pz_gemm(NULL, &err), PZ_E_INVAL, &err, "pz_gemm");
    assert_fails(pz_rms_norm(NULL, &err), PZ_E_INVAL, &err, "pz_rms_norm");
    assert_fails(pz_gemm_workspace(&g, NULL, &err), PZ_E_INVAL, &err, "number of bytes");
    assert_fails(pz_weight_norms(f, 4, 1, 4, NULL, NULL, &err), PZ_E_INVAL, &err, "w_norm");
    g.y = NULL;
    assert_fails(pz_gemm(&g, &err), PZ_E_INVAL, &err, "x, w and y");
    n.w = NULL;
    assert_fails(pz_rms_norm(&n, &err), PZ_E_INVAL, &err, "x, w and y");
    const size_t sizes[] = {0, 7, sizeof g + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        g.size = sizes[i];
        assert_fails(pz_gemm(&g, &err), PZ_E_INVAL, &err, "pz_gemm", "size");
        assert_fails(pz_gemm_workspace(&g, &bytes, &err), PZ_E_INVAL, &err, "size");
    }
    n.size = sizeof n + 8;
    assert_fails(pz_rms_norm(&n, &err), PZ_E_INVAL, &err, "size");
    unsetenv("PREZERO_CUDA_MODULE");
}

/* The module of this build, if there is one: it loads, and either finds a GPU or says what is missing. */
static void test_built_module(void **state) {
    (void)state;
    pz_error err;
    const pz_backend_api *api = NULL;
    pz_status st = pz_backend_cuda(&api, &err);
    if (st == PZ_OK) {
        assert_string_equal(api->name, "cuda");
        pz_backend *b = NULL;
        assert_fails(api->open(&(pz_backend_options){.device = 4096}, &b, &err), PZ_E_UNSUPPORTED, &err, "no GPU 4096");
        assert_null(b);
        return;
    }
#ifdef PZ_HAVE_CUDA
    assert_fails(st, PZ_E_UNSUPPORTED, &err, "GPU");
    assert_null(strstr(err.msg, "no GPU support")); /* which would mean that it was not found, or another build's */
#else
    assert_fails(st, PZ_E_UNSUPPORTED, &err, "no GPU support");
#endif
}

/* ---- what the engine promises a backend ---- */
static const pz_backend_api *real;
static int forgotten, blocks;
static bool run_on_old_arena;
static const pz_plan *seen[64];
static unsigned char *seen_arena[64];
static int n_seen;

static pz_status watched_alloc(pz_backend *b, int64_t bytes, unsigned char **out, pz_error *err) {
    pz_status st = real->alloc(b, bytes, out, err);
    blocks += st == PZ_OK;
    return st;
}

static void watched_release(pz_backend *b, unsigned char *p) {
    blocks--;
    for (int i = 0; i < n_seen; i++) assert_ptr_not_equal(seen_arena[i], p); /* plans that still hold it */
    real->release(b, p);
}

static pz_status watched_run(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    int i = 0;
    while (i < n_seen && seen[i] != plan) i++;
    if (i == n_seen) {
        assert_in_range(n_seen, 0, 63);
        seen[n_seen] = plan;
        seen_arena[n_seen++] = args->arena;
    }
    if (seen_arena[i] != args->arena) run_on_old_arena = true;
    assert_non_null(args->inputs);
    return real->run(b, plan, args, err);
}

static void watched_forget(pz_backend *b, const pz_plan *plan) {
    forgotten++;
    for (int i = 0; i < n_seen; i++) {
        if (seen[i] != plan) continue;
        n_seen--;
        seen[i] = seen[n_seen];
        seen_arena[i] = seen_arena[n_seen];
        break;
    }
    real->forget(b, plan);
}

/* A backend that keeps graphs for plans: it hears of every plan before that is changed or freed, and before the arena
 * moves; all memory goes back. */
static void test_promises(void **state) {
    (void)state;
    pz_error err;
    int32_t ids[100];
    support_ids(1, SUPPORT_VOCAB, ids, 100);
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_batch = 2, .prefill_chunk = 64});
    real = e->api;
    pz_backend_api watched = *real;
    watched.alloc = watched_alloc;
    watched.release = watched_release;
    watched.run = watched_run;
    watched.forget = watched_forget;
    e->api = e->kv.api = &watched;
    blocks = 1; /* the arena, as the cache has no page yet */
    forgotten = n_seen = 0;
    int seq = support_seq(e);
    const unsigned char *arena = e->rank[0].arena;
    assert_ok(pz_engine_step(e, &(pz_row){seq, 5}, 1, NULL, &err), &err);
    assert_int_equal(n_seen, 1);
    assert_ok(pz_engine_prefill(e, seq, ids, 60, 0, NULL, &err), &err); /* a larger plan */
    assert_ptr_not_equal(e->rank[0].arena, arena);
    assert_ok(pz_engine_step(e, &(pz_row){seq, 5}, 1, NULL, &err), &err);
    assert_int_equal(n_seen, 2);
    pz_engine_break_fills(e);
    assert_int_equal(n_seen, 1); /* the decode plans were changed */
    assert_false(run_on_old_arena);
    assert_int_equal(blocks, 2);
    pz_engine_close(e);
    assert_int_equal(n_seen, 0);
    assert_int_equal(blocks, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),        cmocka_unit_test(test_no_module), cmocka_unit_test(test_public_kernels),
        cmocka_unit_test(test_built_module), cmocka_unit_test(test_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
