/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce and fused_allreduce_rmsnorm over ranks, each a rig on a thread of its own: against sums in f64, bit by bit
 * against sums in f32 in the order of the ranks, and bit by bit between the ranks. */
#include "support_cpu.h"

#include <stdio.h>

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

/* A partial sum of dtype F32, BF16 or FIXED; x becomes what it stands for. */
static int partial(rig *r, pz_dtype dt, int64_t cols, float *x, uint64_t *s) {
    if (dt != PZ_DT_FIXED) return rig_act(r, dt, cols, x);
    static int serial;
    char name[32];
    snprintf(name, sizeof name, "w%d", serial++);
    float *values = rnd_array(s, cols * 4);
    pz_weight *w = rig_matrix(r, name, PZ_DT_F32, cols, 4, values, PZ_OP_GEMM);
    int p = rig_place(r, dt, cols), norm = rig_place(r, PZ_DT_F32, 0);
    pz_place *place = &r->plan.places.at[p];
    place->scale_norm = norm;
    place->scale_weight = w;
    for (int i = 0; i < r->plan.m; i++) {
        float x_norm = ((float *)rig_data(r, norm))[i] = ldexpf(1, rnd_int(s, -3, 3));
        for (int64_t k = 0; k < cols; k++) {
            int32_t acc = rnd_int(s, -(1 << 29), 1 << 29);
            ((int32_t *)rig_data(r, p))[i * cols + k] = acc;
            x[i * cols + k] = pz_fixed_value(acc, x_norm, norm_of(values + k * 4, 4));
        }
    }
    pz_free(values);
    return p;
}

/* One collective, as all ranks hold it. */
typedef struct collective {
    pz_op op;
    pz_dtype x, out;
    bool fill;
    float *part[PZ_MAX_RANKS], *res, *w;
    int y[PZ_MAX_RANKS], sum[PZ_MAX_RANKS], buffer[PZ_MAX_RANKS];
} collective;

static bool fused(const collective *c) {
    return c->op == PZ_OP_FUSED_ALLREDUCE_RMSNORM;
}

static void add_fill(collective *c, group *g, int r, pz_launch *l) {
    pz_error err;
    c->buffer[r] = rig_output(g->rig[r], PZ_DT_F32, COLS);
    l->fill = g->rig[r]->plan.fills.n;
    const pz_place *p = &g->rig[r]->plan.places.at[c->buffer[r]];
    pz_fill f = {.place = c->buffer[r], .offset = p->offset, .bytes = p->bytes / 128 * 64};
    assert_ok(pz_push(&g->rig[r]->plan.fills, f, &err), &err);
}

/* part[r], res and w are given, or made at random where they are NULL. */
static void add_collective(collective *c, group *g, int index, uint64_t *s) {
    char name[16];
    snprintf(name, sizeof name, "norm%d", index);
    if (!c->res) c->res = rnd_array(s, g->m * COLS);
    if (!c->w) c->w = rnd_array(s, COLS);
    for (int r = 0; r < g->n; r++) {
        rig *k = g->rig[r];
        if (!c->part[r]) c->part[r] = rnd_array(s, g->m * COLS);
        int x = partial(k, c->x, COLS, c->part[r], s);
        int res = fused(c) ? rig_act(k, c->out, COLS, c->res) : -1;
        c->y[r] = fused(c) ? rig_normed_output(k, c->out, COLS) : rig_output(k, c->out, COLS);
        c->sum[r] = fused(c) ? rig_output(k, c->out, COLS) : -1;
        pz_weight *w = fused(c) ? rig_vector(k, name, PZ_DT_F32, COLS, c->w, c->op) : NULL;
        pz_launch *l = rig_launch(k, c->op);
        rig_in(l, "x", x);
        l->out[0] = c->y[r];
        if (fused(c)) {
            rig_in(l, "res", res);
            rig_in_weight(l, "w", w);
            l->out[1] = c->sum[r];
        }
        if (c->fill) add_fill(c, g, r, l);
    }
}

static void free_collective(collective *c) {
    for (int r = 0; r < PZ_MAX_RANKS; r++) pz_free(c->part[r]);
    pz_free(c->res);
    pz_free(c->w);
}

static void check_bits(const float *got, const float *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (isnan(want[i]) ? isnan(got[i]) : memcmp(&got[i], &want[i], 4) == 0) continue;
        fail_msg("element %lld is %a, expected %a", (long long)i, (double)got[i], (double)want[i]);
    }
}

static void check_same_on_all(const collective *c, group *g) {
    for (int r = 1; r < g->n; r++) {
        size_t bytes = (size_t)g->rig[0]->plan.places.at[c->y[0]].bytes;
        assert_memory_equal(rig_data(g->rig[r], c->y[r]), rig_data(g->rig[0], c->y[0]), bytes);
        if (fused(c)) assert_memory_equal(rig_data(g->rig[r], c->sum[r]), rig_data(g->rig[0], c->sum[0]), bytes);
    }
}

static void check_fill(const collective *c, group *g, int r) {
    const pz_place *p = &g->rig[r]->plan.places.at[c->buffer[r]];
    const unsigned char *at = rig_data(g->rig[r], c->buffer[r]);
    for (int64_t i = 0; i < p->bytes; i++) assert_int_equal(at[i], i < p->bytes / 128 * 64 ? 0 : 0xff);
}

static void check_norm(const collective *c, rig *r, int y, const float *sum) {
    float *got = rig_read(r, y);
    const float *norms = rig_data(r, r->plan.places.at[y].norm);
    for (int i = 0; i < r->plan.m; i++) {
        double square = 0;
        for (int k = 0; k < COLS; k++) square += (double)sum[i * COLS + k] * (double)sum[i * COLS + k];
        for (int k = 0; k < COLS; k++) {
            double want = (double)sum[i * COLS + k] / sqrt(square / COLS + 1e-6) * (double)c->w[k];
            double off = fabs((double)got[i * COLS + k] - want);
            if (isnan(want))
                assert_true(isnan(got[i * COLS + k]));
            else
                assert_true(off <= (c->out == PZ_DT_BF16 ? 0x1p-8 : 0x1p-21) * fabs(want) + 1e-37);
        }
        float norm = norm_of(got + i * COLS, COLS);
        assert_true(isnan(norm) ? isnan(norms[i]) : norm == norms[i]);
    }
    pz_free(got);
}

static void check_collective(const collective *c, group *g) {
    int64_t n = (int64_t)g->m * COLS;
    float *want = pz_calloc((size_t)n, sizeof *want);
    assert_non_null(want);
    for (int64_t i = 0; i < n; i++) {
        float sum = c->part[0][i];
        double exact = (double)sum, size = fabs(exact);
        for (int r = 1; r < g->n; r++) {
            sum += c->part[r][i];
            exact += (double)c->part[r][i];
            size += fabs((double)c->part[r][i]);
        }
        if (isfinite(sum)) assert_true(fabs((double)sum - exact) <= size * 0x1p-23 * g->n);
        want[i] = rig_round(c->out, fused(c) ? c->res[i] + sum : sum);
    }
    for (int r = 0; r < g->n; r++) {
        float *got = rig_read(g->rig[r], fused(c) ? c->sum[r] : c->y[r]);
        check_bits(got, want, n);
        pz_free(got);
        if (fused(c)) check_norm(c, g->rig[r], c->y[r], want);
        if (c->fill) check_fill(c, g, r);
    }
    check_same_on_all(c, g);
    pz_free(want);
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
        add_collective(&chain[i], &g, i, &seed);
    }
    for (int i = 0; i < 6; i++) rigs_run(g.rig, n);
    for (int i = 0; i < CHAIN; i++) {
        check_collective(&chain[i], &g);
        free_collective(&chain[i]);
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
    static const uint32_t bits[] = {
        0x80000000u, 0x00000000u, 0x00000001u, 0x807fffffu, 0x00800000u, 0x7f800000u, 0xff800000u, 0x7fc00000u,
        0x7fc00001u, 0xffffffffu, 0x7f800001u, 0xfffffffeu, 0x7f7fffffu, 0xff7fffffu, 0x3f800000u, 0xbf800000u,
    };
    enum { N = sizeof bits / sizeof *bits };
    uint64_t s = (uint64_t)n;
    group g = open_group(n, 24, 0, 0);
    collective c = {.op = op, .x = x, .out = x == PZ_DT_BF16 ? PZ_DT_BF16 : PZ_DT_F32};
    c.fill = fused(&c);
    for (int r = 0; r < n; r++) {
        c.part[r] = rnd_array(&s, g.m * COLS);
        for (int i = 0; i < g.m * COLS; i++) {
            /* a row of one payload on all ranks, then rows with some of each */
            uint32_t v = i / COLS < N ? bits[i / COLS] : pz_rng_next(&s) % 3 ? bits[pz_rng_next(&s) % N] : 0x80000000u;
            memcpy(&c.part[r][i], &v, 4);
        }
    }
    add_collective(&c, &g, 0, &s);
    for (int i = 0; i < 2; i++) rigs_run(g.rig, n);
    check_collective(&c, &g);
    if (op == PZ_OP_ALL_REDUCE) {
        float *got = rig_read(g.rig[0], c.y[0]);
        assert_true(got[0] == 0 && signbit(got[0]) && got[COLS] == 0 && !signbit(got[COLS]));
        pz_free(got);
    }
    free_collective(&c);
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
        add_collective(&c, &g, 0, &s);
        rigs_run(g.rig, 3);
        float *got = rig_read(g.rig[i % 3], c.y[i % 3]);
        if (!first) first = rig_read(g.rig[0], c.y[0]);
        assert_memory_equal(got, first + (ROWS - m) * COLS, (size_t)(m * COLS) * sizeof *got);
        pz_free(got);
        free_collective(&c);
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
        uint64_t s = 3;
        group g = open_group(n, 4, 0, 80);
        collective c = {.op = n % 4 ? PZ_OP_ALL_REDUCE : PZ_OP_FUSED_ALLREDUCE_RMSNORM, .x = PZ_DT_F32};
        c.out = PZ_DT_F32;
        c.fill = fused(&c);
        add_collective(&c, &g, 0, &s);
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
        free_collective(&c);
        close_group(&g);
    }
}

/* A rank that says that it failed: nobody waits for it. */
static void test_failed_rank(void **state) {
    (void)state;
    uint64_t s = 3;
    group g = open_group(3, 4, 0, 60000);
    collective c = {.op = PZ_OP_FUSED_ALLREDUCE_RMSNORM, .x = PZ_DT_F32, .out = PZ_DT_F32};
    add_collective(&c, &g, 0, &s);
    pz_comm_fail(pz_group_comm(g.g, 1), &(pz_error){.msg = "lost its device"});
    pz_status st[PZ_MAX_RANKS];
    pz_error err[PZ_MAX_RANKS];
    rigs_try(g.rig, 3, 1, st, err);
    for (int r = 0; r < 3; r += 2) assert_fails(st[r], PZ_E_PEER, &err[r], "rank 1 failed: lost its device");
    free_collective(&c);
    close_group(&g);
}

/* Any allocation of a run may fail; once it has its memory it waits for the other rank. */
static void test_out_of_memory(void **state) {
    (void)state;
    uint64_t s = 3;
    group g = open_group(2, 4, 1, 50);
    collective c = {.op = PZ_OP_ALL_REDUCE, .x = PZ_DT_F32, .out = PZ_DT_F32};
    add_collective(&c, &g, 0, &s);
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
    free_collective(&c);
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
