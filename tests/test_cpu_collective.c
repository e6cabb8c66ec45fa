/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce and fused_allreduce_rmsnorm over ranks, each a rig on a thread of its own: against sums in f64, bit by bit
 * against sums in f32 in the order of the ranks, and bit by bit between the ranks. */
#include "support_collective.h"

enum { COLS = 333, CHAIN = 5 };

typedef struct group {
    pz_group *g;
    rig *rig[PZ_MAX_RANKS];
    int n, m;
} group;

static group open_group(int n, int m, int threads, int timeout_ms) {
    pz_error err;
    group g = {.n = n, .m = m};
    assert_ok(pz_group_new(n, timeout_ms, &g.g, &err), &err);
    /* ranks need not have as many threads as their neighbours */
    for (int r = 0; r < n; r++) g.rig[r] = rig_open_rank(pz_group_comm(g.g, r), threads ? threads : 1 + r % 3, m);
    return g;
}

static void close_group(group *g) {
    for (int r = 0; r < g->n; r++) rig_close(g->rig[r]);
    pz_group_free(g->g);
}

static void check(const collective *c, const group *g) {
    unsigned char *memory[PZ_MAX_RANKS];
    for (int r = 0; r < g->n; r++) memory[r] = g->rig[r]->arena;
    collective_check(c, g->rig, memory, g->n, 0x1p-21, true);
}

/* ---- values ---- */
/* Several collectives in one plan, run several times: buffers that are taken in turn must not be taken too early. */
static void check_chain(int n, int m, int threads, uint64_t seed) {
    static const pz_dtype x_types[] = {PZ_DT_F32, PZ_DT_BF16, PZ_DT_FIXED}, out_types[] = {PZ_DT_BF16, PZ_DT_F32};
    group g = open_group(n, m, threads, 0);
    collective chain[CHAIN] = {0};
    for (int i = 0; i < CHAIN; i++) {
        chain[i].op = i % 2 ? PZ_OP_ALL_REDUCE : PZ_OP_FUSED_ALLREDUCE_RMSNORM;
        chain[i].x = x_types[(i + n) % 3];
        chain[i].out = out_types[(i + m) % 2];
        chain[i].fill = i == 2;
        collective_add(&chain[i], g.rig, n, COLS, seed * 100 + (uint64_t)i * 10);
    }
    for (int i = 0; i < 6; i++) rigs_run(g.rig, n);
    for (int i = 0; i < CHAIN; i++) {
        check(&chain[i], &g);
        collective_free(&chain[i]);
    }
    close_group(&g);
}

static void test_values(void **state) {
    (void)state;
    for (int n = 1; n <= PZ_MAX_RANKS; n++)
        for (int i = 0; i < 3; i++) check_chain(n, 1 + (i * 5 + n) % 12, i % 2 ? 0 : 1, (uint64_t)(n * 10 + i));
}

/* Rows beyond what one thread takes. */
static void test_many_rows(void **state) {
    (void)state;
    check_chain(3, 60, 0, 5);
}

/* ---- strange payloads ---- */
static void check_payloads(pz_op op, pz_dtype x, int n) {
    uint64_t s = (uint64_t)n;
    group g = open_group(n, 24, 0, 0);
    collective c = {.op = op, .x = x, .out = x == PZ_DT_BF16 ? PZ_DT_BF16 : PZ_DT_F32};
    c.fill = op == PZ_OP_FUSED_ALLREDUCE_RMSNORM;
    for (int r = 0; r < n; r++) c.part[r] = collective_strange(g.m, COLS, &s);
    collective_add(&c, g.rig, n, COLS, s);
    for (int i = 0; i < 2; i++) rigs_run(g.rig, n);
    check(&c, &g);
    if (op == PZ_OP_ALL_REDUCE) {
        float *got = rig_read(g.rig[0], c.y[0]);
        assert_true(got[0] == 0 && signbit(got[0]) && got[COLS] == 0 && !signbit(got[COLS]));
        pz_free(got);
    }
    collective_free(&c);
    close_group(&g);
}

static void test_payloads(void **state) {
    (void)state;
    for (int n = 1; n <= PZ_MAX_RANKS; n *= 2)
        for (int i = 0; i < 4; i++)
            check_payloads(i % 2 ? PZ_OP_ALL_REDUCE : PZ_OP_FUSED_ALLREDUCE_RMSNORM, i / 2 ? PZ_DT_BF16 : PZ_DT_F32, n);
}

/* ---- rows ---- */
static float *last_rows(const float *x, int all, int m) {
    float *part = pz_calloc((size_t)(m * COLS), sizeof *part);
    assert_non_null(part);
    return memcpy(part, x + (all - m) * COLS, (size_t)(m * COLS) * sizeof *part);
}

/* The bits of a row are those that it has alone, in any batch and with any number of threads. */
static void test_rows_do_not_depend_on_others(void **state) {
    (void)state;
    enum { ROWS = 40 };
    static const int sizes[] = {ROWS, 1, 2, 7, 33};
    uint64_t s = 9;
    float *given[5], *first = NULL;
    for (int i = 0; i < 5; i++) given[i] = rnd_array(&s, ROWS * COLS);
    for (int i = 0; i < 5; i++) {
        int m = sizes[i];
        group g = open_group(3, m, i % 2 ? 0 : 2, 0);
        collective c = {.op = PZ_OP_FUSED_ALLREDUCE_RMSNORM, .x = PZ_DT_F32, .out = PZ_DT_BF16};
        for (int r = 0; r < 3; r++) c.part[r] = last_rows(given[r], ROWS, m);
        c.res = last_rows(given[3], ROWS, m);
        c.w = last_rows(given[4], ROWS, 1);
        collective_add(&c, g.rig, 3, COLS, 0);
        rigs_run(g.rig, 3);
        float *got = rig_read(g.rig[i % 3], c.y[i % 3]);
        if (!first) first = rig_read(g.rig[0], c.y[0]);
        assert_memory_equal(got, first + (ROWS - m) * COLS, (size_t)(m * COLS) * sizeof *got);
        pz_free(got);
        collective_free(&c);
        close_group(&g);
    }
    pz_free(first);
    for (int i = 0; i < 5; i++) pz_free(given[i]);
}

/* ---- failures ---- */
/* A rank that never runs: the others end within the time-out and write nothing. */
static void test_missing_rank(void **state) {
    (void)state;
    for (int n = 2; n <= PZ_MAX_RANKS; n += 2) {
        group g = open_group(n, 4, 0, 80);
        collective c = {.op = n % 4 ? PZ_OP_ALL_REDUCE : PZ_OP_FUSED_ALLREDUCE_RMSNORM, .x = PZ_DT_F32};
        c.out = PZ_DT_F32;
        c.fill = c.op == PZ_OP_FUSED_ALLREDUCE_RMSNORM;
        collective_add(&c, g.rig, n, COLS, 3);
        pz_status st[PZ_MAX_RANKS];
        pz_error err[PZ_MAX_RANKS];
        int64_t start = pz_now_ns();
        rigs_try(g.rig, n, n / 2, st, err);
        assert_true(pz_now_ns() - start < 10000000000);
        for (int r = 0; r < n; r++) {
            if (r == n / 2) continue;
            assert_fails(st[r], PZ_E_TIMEOUT, &err[r], "did not arrive within 80 ms");
            assert_memory_equal(g.rig[r]->arena, g.rig[r]->before, (size_t)g.rig[r]->plan.arena_bytes);
        }
        /* and a later run ends at once */
        rigs_try(g.rig, n, -1, st, err);
        for (int r = 0; r < n; r++) assert_int_equal(st[r], PZ_E_TIMEOUT);
        collective_free(&c);
        close_group(&g);
    }
}

/* A rank that says that it failed: nobody waits for it. */
static void test_failed_rank(void **state) {
    (void)state;
    group g = open_group(3, 4, 0, 60000);
    collective c = {.op = PZ_OP_FUSED_ALLREDUCE_RMSNORM, .x = PZ_DT_F32, .out = PZ_DT_F32};
    collective_add(&c, g.rig, 3, COLS, 3);
    pz_comm_fail(pz_group_comm(g.g, 1), &(pz_error){.msg = "lost its device"});
    pz_status st[PZ_MAX_RANKS];
    pz_error err[PZ_MAX_RANKS];
    rigs_try(g.rig, 3, 1, st, err);
    for (int r = 0; r < 3; r += 2) assert_fails(st[r], PZ_E_PEER, &err[r], "rank 1 failed: lost its device");
    collective_free(&c);
    close_group(&g);
}

/* Any allocation of a run may fail; once it has its memory it waits for the other rank. */
static void test_out_of_memory(void **state) {
    (void)state;
    group g = open_group(2, 4, 1, 50);
    collective c = {.op = PZ_OP_ALL_REDUCE, .x = PZ_DT_F32, .out = PZ_DT_F32};
    collective_add(&c, g.rig, 2, COLS, 3);
    static const struct {
        long succeed;
        const char *text;
    } runs[] = {{0, "scratch"}, {1, "partial sums"}, {1, "partial sums"}};
    pz_error err;
    for (int i = 0; i < 3; i++) {
        pz_alloc_fail_after(runs[i].succeed);
        pz_status st = rig_try(g.rig[0], &err);
        pz_alloc_fail_after(-1);
        assert_fails(st, PZ_E_NOMEM, &err, runs[i].text);
    }
    assert_fails(rig_try(g.rig[0], &err), PZ_E_TIMEOUT, &err, "rank 1 of 2 did not arrive");
    collective_free(&c);
    close_group(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_payloads),      cmocka_unit_test(test_rows_do_not_depend_on_others),
        cmocka_unit_test(test_missing_rank),  cmocka_unit_test(test_failed_rank),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
