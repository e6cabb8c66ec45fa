/* SPDX-License-Identifier: Apache-2.0 */
/* pz_measure_*: arguments and statistics everywhere; where the module is built, its own code over a device that is host
 * memory, with a clock that the kernels move and kernels that go wrong in all the ways a measurement has to notice. */
#include "support.h"

#include <math.h>
#include <stdio.h>

#include "prezero/kernels.h"

static pz_error err;

/* ---- arguments ---- */
static void test_gemm_arguments(void **state) {
    (void)state;
    const pz_measure_spec good = {.size = sizeof good, .m = 4, .n = 64, .k = 128};
    pz_measure_case c = {.accum = PZ_ACCUM_F32};
    pz_measure_spec s = good;
    assert_fails(pz_measure_gemm(NULL, &c, 1, NULL, NULL, NULL, &err), PZ_E_INVAL, &err, "specification");
    assert_fails(pz_measure_gemm(&s, NULL, 1, NULL, NULL, NULL, &err), PZ_E_INVAL, &err, "cases");
#define REFUSED(change, ...)                                                                             \
    do {                                                                                                 \
        s = good;                                                                                        \
        c = (pz_measure_case){.accum = PZ_ACCUM_F32};                                                    \
        change;                                                                                          \
        assert_fails(pz_measure_gemm(&s, &c, 1, NULL, NULL, NULL, &err), PZ_E_INVAL, &err, __VA_ARGS__); \
    } while (0)
    REFUSED(s.size = 8, "size is 8");
    REFUSED(s.device = -1, "device is -1");
    REFUSED(s.m = 0, "m is 0", "1 to");
    REFUSED(s.n = -5, "n is -5");
    REFUSED(s.k = 8, "k is 8");
    REFUSED(s.k = 136, "k is 136", "multiple of 16");
    REFUSED(s.k = 16400, "k is 16400", "16384");
    REFUSED(s.copies = -1, "copies is -1");
    REFUSED(s.rounds = PZ_MEASURE_MAX_ROUNDS + 1, "rounds is 65", "64");
    REFUSED(s.sample_us = -1, "sample_us is -1");
    REFUSED(s.sample_us = NAN, "sample_us is");
    REFUSED(c.accum = (pz_accum)3, "accum of a case is 3");
    REFUSED(c.strategy = (pz_strategy)6, "strategy of a case is 6");
    REFUSED(c.config.family = 5, "family of a case is 5");
#undef REFUSED
    s = good;
    assert_fails(pz_measure_gemm(&s, &c, 0, NULL, NULL, NULL, &err), PZ_E_INVAL, &err, "number of cases is 0");
}

static void test_norm_arguments(void **state) {
    (void)state;
    const pz_measure_norm_spec good = {.size = sizeof good, .m = 4, .hidden = 64};
    pz_measure_norm_case c = {0};
    pz_measure_norm_spec s = good;
    assert_fails(pz_measure_norm(NULL, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "specification");
    s.hidden = 60;
    assert_fails(pz_measure_norm(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "hidden is 60", "multiple of 8");
    s = good;
    s.rounds = -1;
    assert_fails(pz_measure_norm(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "rounds is -1");
    s = good;
    s.gemm_n = -1;
    assert_fails(pz_measure_norm(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "gemm_n is -1");
    s = good;
    c.zero_bytes = 24;
    assert_fails(pz_measure_norm(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "24 bytes", "multiple of 16");
    assert_fails(pz_measure_get_device(0, NULL, &err), PZ_E_INVAL, &err, "needs");
    pz_measure_device d;
    assert_fails(pz_measure_get_device(-1, &d, &err), PZ_E_INVAL, &err, "device is -1");
}

static void test_reduce_arguments(void **state) {
    (void)state;
    const pz_measure_reduce_spec good = {.size = sizeof good, .ranks = 2, .m = 4, .hidden = 64};
    pz_measure_reduce_case c = {0};
    pz_measure_reduce_spec s = good;
    assert_fails(pz_measure_reduce(NULL, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "specification");
    s.ranks = 1;
    assert_fails(pz_measure_reduce(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "ranks is 1", "2 to 8");
    s = good;
    s.hidden = 60;
    assert_fails(pz_measure_reduce(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "hidden is 60", "multiple of 8");
    s = good;
    c.kind = (pz_reduce_kind)5;
    assert_fails(pz_measure_reduce(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "kind of a case is 5");
    c.kind = PZ_REDUCE_FUSED_GEMM;
    s.gemm_n = -1;
    assert_fails(pz_measure_reduce(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "gemm_n is -1");
    s = good;
    s.one_shot = 257;
    assert_fails(pz_measure_reduce(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "one_shot is 257", "0 to 256");
    s = good;
    c.steps = 3;
    assert_fails(pz_measure_reduce(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "steps of a case is 3");
    c.steps = 0;
    c.kind = PZ_REDUCE_FUSED;
    c.zero_bytes = 24;
    assert_fails(pz_measure_reduce(&s, &c, 1, NULL, NULL, &err), PZ_E_INVAL, &err, "24 bytes", "multiple of 16");
}

/* ---- statistics ---- */
static void test_difference(void **state) {
    (void)state;
    pz_measure_times a = {.n = 7, .samples = {1, 2, 3, 4, 5, 6, 7}};
    pz_measure_times b = {.n = 7, .samples = {3, 3, 4, 6, 10, 6, 6}}, d;
    assert_ok(pz_measure_difference(&a, &b, &d, &err), &err); /* 2 1 1 2 5 0 -1 */
    assert_int_equal(d.n, 7);
    assert_true(d.us == 1 && d.lo == -1 && d.hi == 5); /* 7 samples: smallest to largest, 98.4 % */
    for (int i = 0; i < 7; i++) assert_true(d.samples[i] == b.samples[i] - a.samples[i]);
    assert_ok(pz_measure_difference(&a, &b, &a, &err), &err); /* in place */
    assert_true(a.us == 1);
    b.n = 6;
    assert_fails(pz_measure_difference(&a, &b, &d, &err), PZ_E_INVAL, &err, "7 and 6 samples");
    a.n = b.n = 0;
    assert_fails(pz_measure_difference(&a, &b, &d, &err), PZ_E_INVAL, &err, "0 and 0 samples");
    assert_fails(pz_measure_difference(NULL, &b, &d, &err), PZ_E_INVAL, &err, "needs");
    a.n = b.n = 3;
    assert_ok(pz_measure_difference(&a, &b, &d, &err), &err);
    assert_true(d.lo <= d.us && d.us <= d.hi);
}

#if PZ_FAKE_MEASURE
#include "backend/cuda/measure/follower.h"
#include "backend/cuda/measure/measure.h"
#include "base/fixed.h"
#include "fake_measure/fake.h"
#include "plan/cost.h"

/* ---- measuring on the fake device ---- */
enum { ROUNDS = 5, LINKS = 6 };

static double cost(const pz_gemm_args *a) {
    static const double us[] = {9, 5, 7, 8, 6, 6.5}; /* by strategy */
    return us[a->strategy] + (a->accum == PZ_ACCUM_FIXED ? 0.25 : 0);
}

static double rival_cost(int heuristic) {
    return heuristic == 4 ? -1 : heuristic == 7 ? 8 : 10 + heuristic;
}

static int set_up(void **state) {
    (void)state;
    fake_reset();
    fake.norm_us = 3;
    fake.dependent_us = 0.5;
    fake.rider_us = 0.125;
    fake.gemm_us = cost;
    fake.rival_us = rival_cost;
    fake.rivals = 10;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    assert_int_equal(fake.live, 0);
    return 0;
}

static pz_measure_spec spec_of(void) {
    return (pz_measure_spec){.size = sizeof(pz_measure_spec),
                             .m = 3,
                             .n = 48,
                             .k = 256,
                             .copies = LINKS,
                             .rounds = ROUNDS,
                             .sample_us = 100,
                             .seed = 7};
}

static const pz_gemm_config plain = {.tile_n = 16, .split = 2, .family = PZ_GEMM_SKINNY, .warps = 1, .stages = 1};

static pz_measure_case case_of(pz_accum accum, pz_strategy strategy) {
    pz_measure_case c = {.accum = accum, .strategy = strategy, .config = plain};
    if (strategy == PZ_ZERO_NONE) c.config.split = 1;
    return c;
}

static pz_measure_case cublaslt(int stages) {
    return (pz_measure_case){.accum = PZ_ACCUM_BF16, .config = {.family = PZ_GEMM_CUBLASLT, .stages = stages}};
}

static void measure(pz_measure_case *cases, int n, pz_measure_times *norm) {
    pz_measure_spec s = spec_of();
    pz_measure_times unused = {0};
    assert_ok(pz_cuda_measure_gemm(&s, cases, n, norm ? norm : &unused, NULL, NULL, &err), &err);
}

/* Every sample of the pair is what the clock says that the pair takes. */
static void expect_pair(const pz_measure_case *c, double us) {
    if (c->status != PZ_OK) fail_msg("%s", c->message);
    assert_int_equal(c->pair.n, ROUNDS);
    for (int i = 0; i < ROUNDS; i++)
        if (fabs(c->pair.samples[i] - us) > 1e-3)
            fail_msg("sample %d is %g us, expected %g", i, c->pair.samples[i], us);
}

static void test_times(void **state) {
    (void)state;
    enum { FIXED_PREZERO, F32_PREZERO, SELF, SERIAL, REDUCE, RIVAL, N };
    pz_measure_case c[N] = {[FIXED_PREZERO] = case_of(PZ_ACCUM_FIXED, PZ_ZERO_PREZERO),
                            [F32_PREZERO] = case_of(PZ_ACCUM_F32, PZ_ZERO_PREZERO),
                            [SELF] = case_of(PZ_ACCUM_BF16, PZ_ZERO_SELF),
                            [SERIAL] = case_of(PZ_ACCUM_F32, PZ_ZERO_SELF),
                            [REDUCE] = case_of(PZ_ACCUM_F32, PZ_ZERO_REDUCE),
                            [RIVAL] = cublaslt(2)};
    pz_measure_times norm = {0};
    c[SERIAL].serial = 1;
    measure(c, N, &norm);
    assert_int_equal(norm.n, ROUNDS);
    for (int i = 0; i < ROUNDS; i++) assert_true(fabs(norm.samples[i] - 3) < 1e-3);
    const double first = 0.5 / LINKS; /* the first norm of a chain has nothing to be dependent on */
    expect_pair(&c[FIXED_PREZERO], 5.25 + 2.5 + 0.125 + first);
    expect_pair(&c[F32_PREZERO], 5 + 2.5 + 0.125 + first);
    expect_pair(&c[SELF], 7 + 2.5 + first);
    expect_pair(&c[SERIAL], 7 + 3);
    expect_pair(&c[REDUCE], 6 + 2.5 + first);
    expect_pair(&c[RIVAL], 12 + 3);
    assert_string_equal(c[RIVAL].name, "heuristic 2");
    assert_contains(c[SELF].name, "skinny");
    assert_true(c[F32_PREZERO].bytes == 2 * 48 * 256 + 2 * 3 * 256 + 4 * 3 * 48);
    assert_true(c[SELF].bytes == 2 * 48 * 256 + 2 * 3 * 256 + 2 * 3 * 48);
    for (int i = 0; i < N; i++) assert_true(c[i].max_error > 0 && c[i].max_error < 0.05);
    assert_true(c[F32_PREZERO].max_error < 1e-5 && c[FIXED_PREZERO].max_error < 1e-5);
}

/* After preparation every round has every case once, in orders that differ. */
static void test_turns(void **state) {
    (void)state;
    pz_measure_case c[3] = {case_of(PZ_ACCUM_F32, PZ_ZERO_PREZERO), case_of(PZ_ACCUM_F32, PZ_ZERO_SELF),
                            case_of(PZ_ACCUM_F32, PZ_ZERO_TICKET)};
    pz_measure_spec s = spec_of();
    pz_measure_times norm = {0};
    s.sample_us = 1; /* one replay a sample, and one that is not counted */
    assert_ok(pz_cuda_measure_gemm(&s, c, 3, &norm, NULL, NULL, &err), &err);
    size_t length = strlen(fake.order);
    assert_true(length > 8 * ROUNDS);
    const char *rounds = fake.order + length - 8 * ROUNDS;
    int differ = 0;
    for (int r = 0; r < ROUNDS; r++) {
        char seen[128] = {0};
        for (int i = 0; i < 4; i++) {
            const char *at = rounds + 8 * r + 2 * i;
            assert_int_equal(at[0], at[1]);
            assert_int_equal(seen[(int)at[0]]++, 0);
        }
        assert_true(seen['-'] && seen['p'] && seen['s'] && seen['t']);
        differ += memcmp(rounds, rounds + 8 * r, 8) != 0;
    }
    assert_true(differ > 0);
}

/* ---- what goes wrong ---- */
static bool wrong_ticket(const pz_gemm_args *a) {
    return a->strategy == PZ_ZERO_TICKET;
}

static void expect_wrong(const pz_measure_case *c) {
    assert_int_equal(c->status, PZ_E_VERIFY);
    assert_contains(c->message, "wrong result: element [");
    assert_int_equal(c->pair.n, 0);
}

static void test_wrong_result(void **state) {
    (void)state;
    pz_measure_case c[3] = {case_of(PZ_ACCUM_F32, PZ_ZERO_TICKET), case_of(PZ_ACCUM_F32, PZ_ZERO_SELF),
                            case_of(PZ_ACCUM_BF16, PZ_ZERO_TICKET)};
    fake.wrong = wrong_ticket;
    measure(c, 3, NULL);
    expect_wrong(&c[0]);
    expect_pair(&c[1], 7 + 2.5 + 0.5 / LINKS);
    expect_wrong(&c[2]);
    fake.wrong = NULL;
    measure(c, 3, NULL); /* nothing of before is left */
    expect_pair(&c[0], 6.5 + 2.5 + 0.5 / LINKS);
}

/* A kernel that is right at first and wrong after many launches is found at the end. */
static void test_wrong_later(void **state) {
    (void)state;
    pz_measure_case c = case_of(PZ_ACCUM_F32, PZ_ZERO_SELF);
    measure(&c, 1, NULL);
    long all = fake.gemms;
    fake.gemms = 0;
    fake.wrong_after = all - LINKS - 1;
    measure(&c, 1, NULL);
    expect_wrong(&c);
}

static void test_rider_missing(void **state) {
    (void)state;
    pz_measure_case c[2] = {case_of(PZ_ACCUM_FIXED, PZ_ZERO_PREZERO), case_of(PZ_ACCUM_FIXED, PZ_ZERO_SELF)};
    fake.no_rider = true;
    measure(c, 2, NULL);
    expect_wrong(&c[0]);
    assert_int_equal(c[1].status, PZ_OK);
    fake.no_rider = false;
    fake.short_rider = true;
    measure(c, 2, NULL);
    expect_wrong(&c[0]);
}

/* A GEMM that does not wait for the norm multiplies what the norm before has left. */
static void test_missing_wait(void **state) {
    (void)state;
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_BF16; accum++) {
        pz_measure_case c = case_of((pz_accum)accum, PZ_ZERO_SELF);
        fake.stale_x = true;
        measure(&c, 1, NULL);
        expect_wrong(&c);
        pz_measure_spec s = spec_of();
        pz_measure_times norm = {0};
        s.unchecked = 1;
        assert_ok(pz_cuda_measure_gemm(&s, &c, 1, &norm, NULL, NULL, &err), &err);
        assert_int_equal(c.status, PZ_OK);
        assert_true(c.max_error == 0);
    }
}

static bool only_small_tiles(const pz_gemm_args *a) {
    return a->config.tile_n > 16;
}

static void test_does_not_fit(void **state) {
    (void)state;
    pz_measure_case c[3] = {case_of(PZ_ACCUM_F32, PZ_ZERO_SELF), case_of(PZ_ACCUM_F32, PZ_ZERO_SELF), cublaslt(10)};
    c[0].config.tile_n = 32;
    fake.unsupported = only_small_tiles;
    measure(c, 3, NULL);
    assert_int_equal(c[0].status, PZ_E_UNSUPPORTED);
    assert_contains(c[0].message, "does not fit");
    assert_int_equal(c[1].status, PZ_OK);
    assert_int_equal(c[2].status, PZ_E_INVAL);
    assert_contains(c[2].message, "10 heuristics");
    fake.rivals = 0;
    c[2] = cublaslt(PZ_MEASURE_BEST);
    measure(c, 3, NULL);
    assert_int_equal(c[2].status, PZ_E_UNSUPPORTED);
    fake.rivals = 3;
    c[2].accum = PZ_ACCUM_FIXED;
    measure(c, 3, NULL);
    assert_contains(c[2].message, "fixed");
}

/* ---- choosing ---- */
/* Two warps are fastest, but for one warp, which is wrong. */
static double by_warps(const pz_gemm_args *a) {
    return a->config.warps == 1 ? 1 : 4 + fabs(a->config.warps - 2.0) * 0.25 + a->config.tile_n / 64.0;
}
static bool one_warp(const pz_gemm_args *a) {
    return a->config.warps == 1;
}

static void test_best(void **state) {
    (void)state;
    pz_measure_case c[3] = {{.accum = PZ_ACCUM_F32, .strategy = PZ_ZERO_PREZERO, .config = {.stages = PZ_MEASURE_BEST}},
                            {.accum = PZ_ACCUM_F32, .strategy = PZ_ZERO_NONE, .config = {.stages = PZ_MEASURE_BEST}},
                            cublaslt(PZ_MEASURE_BEST)};
    pz_measure_spec s = spec_of();
    pz_measure_times norm = {0};
    s.m = 1;
    s.n = 528;
    s.k = 512;
    s.copies = 2;
    fake.gemm_us = by_warps;
    fake.wrong = one_warp;
    assert_ok(pz_cuda_measure_gemm(&s, c, 3, &norm, NULL, NULL, &err), &err);
    for (int i = 0; i < 3; i++) {
        if (c[i].status != PZ_OK) fail_msg("case %d: %s", i, c[i].message);
        assert_true(c[i].tried > 2);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c[i].used.warps, 2);
        assert_int_equal(c[i].used.tile_n, 16);
        assert_int_equal(c[i].used.split > 1, i == 0);
    }
    assert_int_equal(c[2].used.stages, 7); /* not 4, which does not run */
    assert_int_equal(c[2].tried, 10);
    expect_pair(&c[2], 8 + 3);
}

/* A geometry that the model does not list, two steps from what it lists. */
static const pz_gemm_config hidden = {.tile_n = 48, .split = 17, .family = PZ_GEMM_SKINNY, .warps = 3};
static double by_distance(const pz_gemm_args *a) {
    const pz_gemm_config *c = &a->config;
    return 4 + 2 * (c->family != hidden.family) + abs(c->tile_n - hidden.tile_n) / 64.0 +
           0.1 * abs(c->split - hidden.split) + 0.25 * abs(c->warps - hidden.warps) + 0.1 * (c->depth != hidden.depth);
}

static void test_search(void **state) {
    (void)state;
    pz_measure_case c = {.accum = PZ_ACCUM_F32, .strategy = PZ_ZERO_PREZERO, .config = {.stages = PZ_MEASURE_BEST}};
    pz_measure_spec s = spec_of();
    pz_measure_times norm = {0};
    s.m = 1;
    s.n = 96;
    s.k = 4096;
    s.copies = 1;
    fake.gemm_us = by_distance;
    assert_ok(pz_cuda_measure_gemm(&s, &c, 1, &norm, NULL, NULL, &err), &err);
    assert_int_equal(c.status, PZ_OK);
    assert_memory_equal(&c.used, &hidden, sizeof hidden);
    assert_in_range(c.tried, 40, 256);
}

/* DEFAULT is what the library chooses; where it chooses another strategy, that one's geometry. */
static void test_default(void **state) {
    (void)state;
    pz_measure_case c[3] = {{.accum = PZ_ACCUM_FIXED, .strategy = PZ_ZERO_PREZERO},
                            {.accum = PZ_ACCUM_FIXED, .strategy = PZ_ZERO_MEMSET},
                            {.accum = PZ_ACCUM_FIXED, .strategy = PZ_ZERO_NONE}};
    pz_device dev;
    pz_device_gpu("NVIDIA H200", 90, 132, &dev);
    pz_gemm_shape shape = {.n = 48, .k = 256, .weight = PZ_DT_BF16, .accum = PZ_ACCUM_FIXED, .m = 3};
    pz_gemm_choices choices = pz_gemm_model(&dev, &shape);
    pz_gemm_config none = pz_gemm_model_for(&dev, &shape, PZ_ZERO_NONE);
    setenv("PREZERO_TUNED", "none", 1);
    measure(c, 3, NULL);
    unsetenv("PREZERO_TUNED");
    if (choices.on.strategy == PZ_ZERO_PREZERO) {
        assert_memory_equal(&c[0].used, &choices.on.config, sizeof c[0].used);
        if (choices.off.strategy != PZ_ZERO_MEMSET) assert_memory_equal(&c[1].used, &c[0].used, sizeof c[0].used);
    }
    assert_true(c[0].used.split > 1 && c[1].used.split > 1);
    assert_memory_equal(&c[2].used, &none, sizeof none);
}

/* ---- the chain ---- */
static void test_copies(void **state) {
    (void)state;
    pz_measure_case c = case_of(PZ_ACCUM_F32, PZ_ZERO_SELF);
    pz_measure_spec s = spec_of();
    pz_measure_times norm = {0};
    const int64_t weight = 48 * 256 * 2;
    const struct {
        int64_t l2;
        int links;
    } cases[] = {{weight, 24}, {10 * weight, 41}};
    s.copies = 0;
    s.rounds = 1;
    s.sample_us = 1;
    for (int i = 0; i < 2; i++) {
        fake.l2_bytes = cases[i].l2;
        fake.order[0] = 0;
        memset(fake.order, 0, sizeof fake.order);
        fake.gemms = 0;
        assert_ok(pz_cuda_measure_gemm(&s, &c, 1, &norm, NULL, NULL, &err), &err);
        norm.n = 0;
        long replays = 0;
        for (const char *p = fake.order; *p; p++) replays += *p == 's';
        assert_int_equal(fake.gemms, replays * cases[i].links + 1); /* and one before it was captured */
    }
}

static void count_progress(void *user, int done, int total) {
    int *seen = user;
    assert_int_equal(done, ++*seen);
    assert_int_equal(total, 2 + ROUNDS);
}

static void test_progress(void **state) {
    (void)state;
    pz_measure_case c[2] = {case_of(PZ_ACCUM_F32, PZ_ZERO_SELF), case_of(PZ_ACCUM_F32, PZ_ZERO_TICKET)};
    pz_measure_spec s = spec_of();
    pz_measure_times norm = {0};
    int seen = 0;
    assert_ok(pz_cuda_measure_gemm(&s, c, 2, &norm, count_progress, &seen, &err), &err);
    assert_int_equal(seen, 2 + ROUNDS);
}

/* Out of memory, on the device and on the host, at any point: an error, or one in a case, and nothing is left. */
static void test_memory(void **state) {
    (void)state;
    pz_measure_spec s = spec_of();
    long refused = 0;
    s.rounds = 1;
    s.sample_us = 1;
    for (long n = 0;; n++) {
        pz_measure_case c[2] = {case_of(PZ_ACCUM_F32, PZ_ZERO_REDUCE), cublaslt(PZ_MEASURE_BEST)};
        pz_measure_times norm = {0};
        fake.malloc_fail_after = n;
        pz_status st = pz_cuda_measure_gemm(&s, c, 2, &norm, NULL, NULL, &err);
        assert_int_equal(fake.live, 0);
        if (st != PZ_OK) {
            assert_int_equal(st, PZ_E_NOMEM);
            assert_contains(err.msg, "bytes for ");
            refused++;
        } else if (c[0].status == PZ_E_NOMEM) {
            refused++;
        } else {
            assert_int_equal(c[0].status, PZ_OK);
            break;
        }
    }
    assert_true(refused > 10);
    fake.malloc_fail_after = -1;
    for (long n = 0; n < 12; n++) {
        pz_measure_case c[2] = {case_of(PZ_ACCUM_F32, PZ_ZERO_SELF), cublaslt(PZ_MEASURE_BEST)};
        pz_measure_times norm = {0};
        pz_alloc_fail_after(n);
        pz_status st = pz_cuda_measure_gemm(&s, c, 2, &norm, NULL, NULL, &err);
        pz_alloc_fail_after(-1);
        assert_int_equal(fake.live, 0);
        assert_true(st == PZ_OK || st == PZ_E_NOMEM);
    }
}

/* ---- norms ---- */
static void test_norms(void **state) {
    (void)state;
    enum { ALONE, SERIAL, RIDER, SHARED, N };
    pz_measure_norm_case c[N] = {[SERIAL] = {.serial = 1},
                                 [RIDER] = {.zero_bytes = 4096, .late = 1},
                                 [SHARED] = {.zero_bytes = 4096, .shared = 1}};
    pz_measure_norm_spec s = {.size = sizeof s, .m = 2, .hidden = 64, .copies = LINKS, .rounds = ROUNDS};
    s.sample_us = 50;
    const double alone = 2.5 + 0.5 / LINKS, expected[N] = {alone, 3, alone + 0.125, alone + 0.125},
                 added[N] = {0, 0, 0.125, 0.125};
    assert_ok(pz_cuda_measure_norm(&s, c, N, NULL, NULL, &err), &err);
    for (int i = 0; i < N; i++) {
        if (c[i].status != PZ_OK) fail_msg("%s", c[i].message);
        assert_int_equal(c[i].norm.n, ROUNDS);
        assert_int_equal(c[i].added.n, ROUNDS);
        for (int r = 0; r < ROUNDS; r++) {
            assert_true(fabs(c[i].norm.samples[r] - expected[i]) < 1e-3);
            assert_true(fabs(c[i].added.samples[r] - added[i]) < 1e-3);
        }
    }
    const struct { bool *fault; } faults[] = {{&fake.no_rider}, {&fake.short_rider}, {&fake.long_rider}};
    for (int i = 0; i < 3; i++) {
        *faults[i].fault = true;
        assert_ok(pz_cuda_measure_norm(&s, c, N, NULL, NULL, &err), &err);
        assert_int_equal(c[RIDER].status, PZ_E_VERIFY);
        assert_int_equal(c[SHARED].status, PZ_E_VERIFY);
        assert_contains(c[RIDER].message, "rider of 4096 bytes");
        assert_int_equal(c[RIDER].norm.n, 0);
        assert_int_equal(c[ALONE].status, PZ_OK);
        *faults[i].fault = false;
    }
}

/* ---- norms with a GEMM behind them ---- */
enum { PAIR_M = 3, PAIR_N = 64, PAIR_K = 1024, PAIR_OUTPUT = PAIR_M * PAIR_N * 4, PAIR_RIDER = 4096 };
enum { PAIR, PAIR_EXACT, PAIR_LARGE, PAIR_SERIAL, PAIR_SHARED, PAIR_RIDER_SHARED, PAIR_NORM, PAIRS };

static pz_status measure_pairs(pz_measure_norm_case *c, int k) {
    static const pz_measure_norm_case cases[PAIRS] = {
        [PAIR] = {.gemm = 1},
        [PAIR_EXACT] = {.gemm = 1, .zero_bytes = PAIR_OUTPUT},
        [PAIR_LARGE] = {.gemm = 1, .zero_bytes = PAIR_RIDER},
        [PAIR_SERIAL] = {.gemm = 1, .zero_bytes = PAIR_RIDER, .serial = 1},
        [PAIR_SHARED] = {.gemm = 1, .shared = 1},
        [PAIR_RIDER_SHARED] = {.gemm = 1, .zero_bytes = PAIR_RIDER, .shared = 1},
        [PAIR_NORM] = {.zero_bytes = PAIR_RIDER}};
    pz_measure_norm_spec s = {
        .size = sizeof s, .m = PAIR_M, .hidden = k, .gemm_n = PAIR_N, .copies = LINKS, .rounds = ROUNDS};
    s.sample_us = 1;
    memcpy(c, cases, sizeof cases);
    setenv("PREZERO_TUNED", "none", 1);
    pz_status st = pz_cuda_measure_norm(&s, c, PAIRS, NULL, NULL, &err);
    unsetenv("PREZERO_TUNED");
    return st;
}

/* What a rider adds is the difference to the same pair without it, launched the same way. */
static void test_norm_pairs(void **state) {
    (void)state;
    pz_measure_norm_case c[PAIRS];
    const double norm = 2.5 + 0.5 / LINKS, pair = norm + 5.25, rider = 0.125;
    const double expected[PAIRS] = {pair, pair + rider, pair + rider, 3 + 5.25 + rider,
                                    pair, pair + rider, norm + rider};
    assert_ok(measure_pairs(c, PAIR_K), &err);
    for (int i = 0; i < PAIRS; i++) {
        if (c[i].status != PZ_OK) fail_msg("%d: %s", i, c[i].message);
        assert_int_equal(c[i].norm.n, ROUNDS);
        assert_int_equal(c[i].added.n, ROUNDS);
        for (int r = 0; r < ROUNDS; r++) {
            assert_true(fabs(c[i].norm.samples[r] - expected[i]) < 1e-3);
            assert_true(fabs(c[i].added.samples[r] - (i == PAIR || i == PAIR_SHARED ? 0 : rider)) < 1e-3);
        }
    }
}

static void expect_bad_pair(const pz_measure_norm_case *c, const char *why) {
    assert_int_equal(c->status, PZ_E_VERIFY);
    assert_contains(c->message, why);
    assert_true(c->norm.n == 0 && c->added.n == 0);
}

/* Only the sums show that a rider of just the GEMM's output leaves it as it was. */
static void test_norm_pairs_wrong(void **state) {
    (void)state;
    pz_measure_norm_case c[PAIRS];
    const struct {
        bool *fault;
        const char *exact, *large;
    } faults[] = {{&fake.no_rider, "other bits", "rider of 4096 bytes left"},
                  {&fake.short_rider, "other bits", "rider of 4096 bytes left 4 words"},
                  {&fake.long_rider, "wrote 4 behind", "wrote 4 behind"}};
    for (int i = 0; i < 3; i++) {
        *faults[i].fault = true;
        assert_ok(measure_pairs(c, PAIR_K), &err);
        expect_bad_pair(&c[PAIR_EXACT], faults[i].exact);
        expect_bad_pair(&c[PAIR_LARGE], faults[i].large);
        expect_bad_pair(&c[PAIR_SERIAL], faults[i].large);
        expect_bad_pair(&c[PAIR_RIDER_SHARED], faults[i].large);
        assert_int_equal(c[PAIR].status, PZ_OK);
        *faults[i].fault = false;
    }
}

/* A pair that cannot be run says why, and the norms are measured all the same. */
static void test_norm_pairs_refused(void **state) {
    (void)state;
    pz_measure_norm_case c[PAIRS];
    assert_ok(measure_pairs(c, 24), &err);
    for (int i = 0; i < PAIR_NORM; i++) {
        assert_int_equal(c[i].status, PZ_E_INVAL);
        assert_contains(c[i].message, "K of 24");
        assert_true(c[i].norm.n == 0 && c[i].added.n == 0);
    }
    assert_int_equal(c[PAIR_NORM].added.n, ROUNDS);
    pz_measure_norm_case small = {.gemm = 1, .zero_bytes = PAIR_OUTPUT - 16};
    pz_measure_norm_spec s = {
        .size = sizeof s, .m = PAIR_M, .hidden = PAIR_K, .gemm_n = PAIR_N, .copies = LINKS, .rounds = 1};
    setenv("PREZERO_TUNED", "none", 1);
    assert_ok(pz_cuda_measure_norm(&s, &small, 1, NULL, NULL, &err), &err);
    unsetenv("PREZERO_TUNED");
    assert_int_equal(small.status, PZ_E_INVAL);
    assert_contains(small.message, "rider of 752 bytes");
    assert_contains(small.message, "needs 768");
    for (long n = 0, done = 0; !done; n++) { /* out of memory anywhere */
        fake.malloc_fail_after = n;
        pz_status st = measure_pairs(c, PAIR_K);
        done = st == PZ_OK && c[PAIR].status == PZ_OK;
        assert_int_equal(fake.live, 0);
        assert_true(done || (st == PZ_OK ? c[PAIR].status : st) == PZ_E_NOMEM);
        if (st == PZ_OK) assert_int_equal(c[PAIR_NORM].status, PZ_OK);
        assert_true(n < 40);
    }
}

static void test_device(void **state) {
    (void)state;
    pz_measure_device d;
    assert_ok(pz_cuda_measure_device(0, &d, &err), &err);
    assert_string_equal(d.product, "NVIDIA H200");
    assert_int_equal(d.units, 132);
    assert_int_equal(d.sm, 90);
    assert_int_equal(d.driver, 13010);
    assert_int_equal(d.runtime, 13000);
    assert_true(fabs(d.copy_gbs - 4100) < 5); /* the faster of the two copies */
    assert_fails(pz_cuda_measure_device(1, &d, &err), PZ_E_UNSUPPORTED, &err, "no GPU 1");
}
/* The GEMM behind an all-reduce: what it adds into has to be zeroed for it, and its bits are those of the same GEMM
 * alone, or something is wrong. */
static void test_follower(void **state) {
    (void)state;
    enum { M = 3, N = 64, K = 1024, CHAIN = 4 };
    pz_lab lab;
    pz_device h200;
    pz_follower f;
    uint16_t *x;
    float x_norm[M];
    assert_ok(pz_device_find("h200", 0, &h200, &err), &err);
    assert_ok(pz_lab_open(&lab, 0, &err), &err);
    assert_fails(pz_follower_open(&lab, &h200, M, N, 24, CHAIN, 0, 1, &f, &err), PZ_E_INVAL, &err, "K of 24");
    assert_ok(pz_follower_open(&lab, &h200, M, N, K, CHAIN, 0, 1, &f, &err), &err);
    assert_int_equal(f.choice.strategy, PZ_ZERO_PREZERO);
    assert_ok(pz_lab_alloc(&lab, "x", M * K * 2, (void **)&x, &err), &err);
    for (int i = 0; i < M * K; i++) x[i] = pz_f32_to_bf16((float)(i % 17) - 8);
    for (int i = 0; i < M; i++) x_norm[i] = 1 << 9;
    for (int link = 0; link < CHAIN; link++) {
        size_t bytes;
        void *zero = pz_follower_zero(&f, link, &bytes);
        assert_int_equal(bytes, M * N * 4);
        memset(zero, 0x7f, bytes);
        assert_ok(pz_follower_run(&f, link, x, x_norm, true, &err), &err);
        assert_fails(pz_follower_check(&f, link, x, x_norm, &err), PZ_E_VERIFY, &err, "link", "other bits");
        memset(zero, 0, bytes);
        assert_fails(pz_follower_check(&f, link, x, x_norm, &err), PZ_E_VERIFY, &err, "other bits"); /* not run */
        assert_ok(pz_follower_run(&f, link, x, x_norm, true, &err), &err);
        assert_ok(pz_follower_check(&f, link, x, x_norm, &err), &err);
        ((uint32_t *)zero)[M * N - 1] ^= 1;
        assert_fails(pz_follower_check(&f, link, x, x_norm, &err), PZ_E_VERIFY, &err, "other bits");
    }
    assert_true(memcmp(f.w, f.w + f.w_stride, N * K * 2) != 0); /* a weight of its own */
    pz_lab_close(&lab);
    assert_int_equal(fake.live, 0);
}

#define FAKE_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm_arguments),
        cmocka_unit_test(test_norm_arguments),
        cmocka_unit_test(test_reduce_arguments),
        cmocka_unit_test(test_difference),
#if PZ_FAKE_MEASURE
        FAKE_TEST(test_times),
        FAKE_TEST(test_turns),
        FAKE_TEST(test_wrong_result),
        FAKE_TEST(test_wrong_later),
        FAKE_TEST(test_rider_missing),
        FAKE_TEST(test_missing_wait),
        FAKE_TEST(test_does_not_fit),
        FAKE_TEST(test_best),
        FAKE_TEST(test_search),
        FAKE_TEST(test_default),
        FAKE_TEST(test_copies),
        FAKE_TEST(test_progress),
        FAKE_TEST(test_memory),
        FAKE_TEST(test_norms),
        FAKE_TEST(test_norm_pairs),
        FAKE_TEST(test_norm_pairs_wrong),
        FAKE_TEST(test_norm_pairs_refused),
        FAKE_TEST(test_device),
        FAKE_TEST(test_follower),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
