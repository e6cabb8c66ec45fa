/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce and fused_allreduce_rmsnorm over ranks on GPUs, through captured graphs: bit by bit against sums in f32 in
 * the order of the ranks, and between the ranks; the norms against f64. Ranks have a GPU each where there are enough,
 * else they share. */
#include "lab.h"
#include "support_cpu.h"

#include <stdio.h>
#include <unistd.h>

#include "base/knobs.h"
#include "comm/crew.h"

enum { CHAIN = 4, SWITCH = 64, MOST_ROWS = 130 };

/* ---- ranks ---- */
typedef struct team {
    const pz_backend_api *api;
    pz_group *g;
    pz_crew *crew;
    pz_backend *b[PZ_MAX_RANKS];
    int n, weights;
    pz_status st[PZ_MAX_RANKS];
    pz_error err[PZ_MAX_RANKS];
} team;

static team *team_open(int n, int timeout_ms, bool eager) {
    pz_error err;
    team *t = pz_calloc(1, sizeof *t);
    assert_non_null(t);
    t->n = n;
    assert_ok(pz_backend_cuda(&t->api, &err), &err);
    assert_ok(pz_group_new(n, timeout_ms, &t->g, &err), &err);
    assert_ok(pz_crew_new(n, &t->crew, &err), &err);
    bool nccl;
    assert_ok(pz_knob_bool(PZ_KNOB_NCCL, &nccl, &err), &err);
    for (int r = 0; r < n; r++) {
        pz_backend_options o = {.nccl = nccl,
                                .device = r,
                                .comm = pz_group_comm(t->g, r),
                                .share_device = true,
                                .one_shot = SWITCH,
                                .eager = eager};
        assert_ok(t->api->open(&o, &t->b[r], &err), &err);
    }
    return t;
}

static void team_close(team *t) {
    for (int r = 0; r < t->n; r++) t->api->close(t->b[r]);
    pz_crew_free(t->crew);
    pz_group_free(t->g);
    pz_free(t);
}

/* ---- one collective, as all ranks hold it ---- */
typedef struct collective {
    pz_op op;
    pz_dtype x, out;
    bool fill;
    float *part[PZ_MAX_RANKS], *res, *w; /* what is not given is made */
    int y[PZ_MAX_RANKS], sum[PZ_MAX_RANKS], buffer[PZ_MAX_RANKS];
} collective;

static bool fused(const collective *c) {
    return c->op == PZ_OP_FUSED_ALLREDUCE_RMSNORM;
}

/* A plan of a number of rows on every rank: rigs, which are there to be written by hand, and their arenas on the GPUs.
 */
typedef struct stage {
    team *t;
    int m, cols, n; /* n: collectives */
    rig *rig[PZ_MAX_RANKS];
    unsigned char *arena[PZ_MAX_RANKS], *first[PZ_MAX_RANKS]; /* first: what the first run left */
    collective c[CHAIN];
} stage;

typedef struct mirror_to {
    team *t;
    int rank;
} mirror_to;

/* Weights of all rigs of a rank lie in one backend, by names that are theirs alone. */
static void mirror(void *user, const pz_weight *w, pz_op use, const pz_host_weight *host) {
    const mirror_to *to = user;
    pz_error err;
    pz_weight other = *w;
    other.index = to->t->weights++;
    assert_ok(to->t->api->load(to->t->b[to->rank], &other, use, host, &err), &err);
}

static const char *new_name(rig *k) {
    static int serial;
    char name[32];
    snprintf(name, sizeof name, "w%d", serial++);
    return pz_arena_strdup(&k->graph->arena, name);
}

/* Values of a row depend on the seed and on the row, counted from the end, alone. */
static float *random_rows(uint64_t seed, int m, int cols) {
    float *x = pz_calloc((size_t)m * (size_t)cols, sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < m; i++) {
        uint64_t s = seed * 1000003 + (uint64_t)(m - i) * 7919;
        for (int c = 0; c < cols; c++) x[i * cols + c] = rnd(&s);
    }
    return x;
}

/* A partial sum of dtype F32, BF16 or FIXED; x becomes what it stands for. */
static int partial(rig *k, pz_dtype dt, int cols, float *x, uint64_t seed) {
    enum { K = 16 };
    if (dt != PZ_DT_FIXED) return rig_act(k, dt, cols, x);
    float *values = rnd_array(&seed, cols * K);
    pz_weight *w = rig_matrix(k, new_name(k), PZ_DT_BF16, cols, K, values, PZ_OP_GEMM);
    int p = rig_place(k, dt, cols), norm = rig_place(k, PZ_DT_F32, 0);
    k->plan.places.at[p].scale_norm = norm;
    k->plan.places.at[p].scale_weight = w;
    for (int i = 0; i < k->plan.m; i++) {
        uint64_t s = seed + (uint64_t)(k->plan.m - i) * 7919;
        float x_norm = ((float *)rig_data(k, norm))[i] = ldexpf(1, rnd_int(&s, -3, 3));
        for (int c = 0; c < cols; c++) {
            int32_t acc = rnd_int(&s, -(1 << 29), 1 << 29);
            ((int32_t *)rig_data(k, p))[i * cols + c] = acc;
            x[i * cols + c] = pz_fixed_value(acc, x_norm, norm_of(values + c * K, K));
        }
    }
    pz_free(values);
    return p;
}

static void add_fill(collective *c, rig *k, int r, int cols, pz_launch *l) {
    pz_error err;
    c->buffer[r] = rig_output(k, PZ_DT_F32, cols);
    l->fill = k->plan.fills.n;
    const pz_place *p = &k->plan.places.at[c->buffer[r]];
    pz_fill f = {.place = c->buffer[r], .offset = p->offset, .bytes = p->bytes / 128 * 64};
    assert_ok(pz_push(&k->plan.fills, f, &err), &err);
}

static void add_collective(stage *s, collective *c, uint64_t seed) {
    if (!c->res) c->res = random_rows(seed, s->m, s->cols);
    if (!c->w) c->w = random_rows(seed + 1, 1, s->cols);
    for (int r = 0; r < s->t->n; r++) {
        rig *k = s->rig[r];
        mirror_to to = {s->t, r};
        k->mirror = mirror;
        k->mirror_user = &to;
        if (!c->part[r]) c->part[r] = random_rows(seed + 2 + (uint64_t)r, s->m, s->cols);
        int x = partial(k, c->x, s->cols, c->part[r], seed + (uint64_t)r);
        int res = fused(c) ? rig_act(k, c->out, s->cols, c->res) : -1;
        c->y[r] = fused(c) ? rig_normed_output(k, c->out, s->cols) : rig_output(k, c->out, s->cols);
        c->sum[r] = fused(c) ? rig_output(k, c->out, s->cols) : c->y[r];
        pz_weight *w = fused(c) ? rig_vector(k, new_name(k), PZ_DT_F32, s->cols, c->w, c->op) : NULL;
        pz_launch *l = rig_launch(k, c->op);
        rig_in(l, "x", x);
        l->out[0] = c->y[r];
        if (fused(c)) {
            rig_in(l, "res", res);
            rig_in_weight(l, "w", w);
            l->out[1] = c->sum[r];
        }
        if (c->fill) add_fill(c, k, r, s->cols, l);
        k->mirror = NULL;
    }
}

static size_t arena_bytes(const stage *s, int r) {
    return (size_t)s->rig[r]->plan.arena_bytes;
}

static stage *stage_new(team *t, int m, int cols) {
    stage *s = pz_calloc(1, sizeof *s);
    assert_non_null(s);
    s->t = t;
    s->m = m;
    s->cols = cols;
    for (int r = 0; r < t->n; r++)
        s->rig[r] = rig_open_sized("baseline", 1, m, (size_t)m * (size_t)cols * 4 * CHAIN * 6 + 65536);
    return s;
}

static void stage_ready(stage *s) {
    pz_error err;
    for (int r = 0; r < s->t->n; r++) {
        assert_ok(s->t->api->alloc(s->t->b[r], (int64_t)arena_bytes(s, r), &s->arena[r], &err), &err);
        s->first[r] = pz_calloc(arena_bytes(s, r), 1);
        assert_non_null(s->first[r]);
    }
}

/* CHAIN collectives of several dtypes. A number that 3 does not divide, so that replays begin with each of the buffers.
 */
static stage *stage_of_chain(team *t, int m, int cols, uint64_t seed) {
    static const pz_dtype x_types[] = {PZ_DT_BF16, PZ_DT_F32, PZ_DT_FIXED}, out_types[] = {PZ_DT_BF16, PZ_DT_F32};
    stage *s = stage_new(t, m, cols);
    for (int i = 0; i < CHAIN; i++) {
        collective *c = &s->c[s->n++];
        c->op = i == 2 ? PZ_OP_ALL_REDUCE : PZ_OP_FUSED_ALLREDUCE_RMSNORM;
        c->x = x_types[(i + (int)(seed % 3)) % 3];
        c->out = out_types[i == 3];
        c->fill = i % 3 == 0;
        add_collective(s, c, seed * 100 + (uint64_t)i * 10);
    }
    stage_ready(s);
    return s;
}

static void stage_free(stage *s) {
    for (int r = 0; r < s->t->n; r++) {
        s->t->api->forget(s->t->b[r], &s->rig[r]->plan);
        s->t->api->release(s->t->b[r], s->arena[r]);
        pz_free(s->first[r]);
        rig_close(s->rig[r]);
    }
    for (int i = 0; i < s->n; i++) {
        for (int r = 0; r < PZ_MAX_RANKS; r++) pz_free(s->c[i].part[r]);
        pz_free(s->c[i].res);
        pz_free(s->c[i].w);
    }
    pz_free(s);
}

/* ---- running ---- */
typedef struct running {
    team *t;
    stage *const *stages;
    int n_stages, replays, check_every, missing;
    bool fails; /* the missing rank: after a while, by a run that cannot be */
    bool keep;  /* results become the first ones; else they are compared with those */
} running;

/* Outputs and riders poisoned, as the rigs have made them, then one run that is looked at. */
static pz_status run_fresh(const running *u, stage *s, int r, unsigned char *got, pz_error *err) {
    const pz_backend_api *api = u->t->api;
    int64_t bytes = (int64_t)arena_bytes(s, r);
    pz_run_args args = {.arena = s->arena[r]};
    PZ_TRY(api->copy(u->t->b[r], s->arena[r], s->rig[r]->arena, bytes, PZ_COPY_TO, err));
    PZ_TRY(api->run(u->t->b[r], &s->rig[r]->plan, &args, err));
    PZ_TRY(api->copy(u->t->b[r], got, s->arena[r], bytes, PZ_COPY_FROM, err));
    if (u->keep) {
        memcpy(s->first[r], got, (size_t)bytes);
        return PZ_OK;
    }
    for (int64_t i = 0; i < bytes; i++)
        if (got[i] != s->first[r][i])
            return pz_fail(err, PZ_E_VERIFY, "rank %d, %d rows: byte %lld differs from the first run", r, s->m,
                           (long long)i);
    return PZ_OK;
}

static pz_status run_rank(const running *u, int r, pz_error *err) {
    uint64_t rng = 1; /* the same order of stages on all ranks */
    size_t most = 0;
    for (int i = 0; i < u->n_stages; i++)
        if (arena_bytes(u->stages[i], r) > most) most = arena_bytes(u->stages[i], r);
    unsigned char *got = pz_calloc(most, 1);
    if (!got) return PZ_NOMEM(err);
    pz_status st = PZ_OK;
    for (int i = 0; i < u->replays && st == PZ_OK; i++) {
        stage *s = u->stages[u->keep ? i % u->n_stages : (int)(pz_rng_next(&rng) % (uint64_t)u->n_stages)];
        pz_run_args args = {.arena = s->arena[r]};
        if (i % u->check_every == 0)
            st = run_fresh(u, s, r, got, err);
        else
            st = u->t->api->run(u->t->b[r], &s->rig[r]->plan, &args, err);
    }
    pz_free(got);
    return st;
}

static pz_status fail_later(const running *u, int r, pz_error *err) {
    pz_plan none = {.m = 0};
    pz_run_args args = {.arena = u->stages[0]->arena[r]};
    usleep(200 * 1000);
    return u->t->api->run(u->t->b[r], &none, &args, err);
}

static void on_rank(void *arg, int r) {
    const running *u = arg;
    u->t->st[r] = PZ_OK;
    if (r != u->missing)
        u->t->st[r] = run_rank(u, r, &u->t->err[r]);
    else if (u->fails)
        u->t->st[r] = fail_later(u, r, &u->t->err[r]);
    if (u->t->st[r] != PZ_OK) pz_comm_fail(pz_group_comm(u->t->g, r), &u->t->err[r]);
}

static void try_run(const running *u) {
    pz_error err;
    assert_ok(pz_crew_run(u->t->crew, on_rank, (void *)u, &err), &err);
}

static void must_run(const running *u) {
    try_run(u);
    for (int r = 0; r < u->t->n; r++) assert_ok(u->t->st[r], &u->t->err[r]);
}

/* The first run and the second one, which both are looked at: the first of a plan and a replay. */
static void run_twice(team *t, stage *const *stages, int n) {
    running u = {.t = t, .stages = stages, .n_stages = n, .replays = n, .check_every = 1, .missing = -1, .keep = true};
    must_run(&u);
    u.keep = false;
    u.replays = 2 * n;
    must_run(&u);
}

/* ---- checks of the first run's results ---- */
static float got_at(const stage *s, int r, int place, int i) {
    const pz_place *p = &s->rig[r]->plan.places.at[place];
    const unsigned char *at = s->first[r] + p->offset;
    uint16_t h;
    float f;
    if (p->type.dt == PZ_DT_BF16) return memcpy(&h, at + i * 2, 2), pz_bf16_to_f32(h);
    return memcpy(&f, at + i * 4, 4), f;
}

static void check_bits(const stage *s, int r, int place, const float *want) {
    for (int i = 0; i < s->m * s->cols; i++) {
        float got = got_at(s, r, place, i);
        if (isnan(want[i]) ? isnan(got) : memcmp(&got, &want[i], 4) == 0) continue;
        fail_msg("rank %d of %d, %d rows of %d: element (%d, %d) is %a, expected %a", r, s->t->n, s->m, s->cols,
                 i / s->cols, i % s->cols, (double)got, (double)want[i]);
    }
}

static void check_same_on_all(const stage *s, const int *places) {
    const pz_place *p = &s->rig[0]->plan.places.at[places[0]];
    for (int r = 1; r < s->t->n; r++)
        assert_memory_equal(s->first[r] + s->rig[r]->plan.places.at[places[r]].offset, s->first[0] + p->offset,
                            (size_t)p->bytes);
}

static void check_fill(const stage *s, const collective *c, int r, bool filled) {
    const pz_place *p = &s->rig[r]->plan.places.at[c->buffer[r]];
    for (int64_t i = 0; i < p->bytes; i++)
        assert_int_equal(s->first[r][p->offset + i], filled && i < p->bytes / 128 * 64 ? 0 : 0xff);
}

static void check_norm(const stage *s, const collective *c, int r, const float *sum) {
    float *got = pz_calloc((size_t)s->cols, sizeof *got);
    assert_non_null(got);
    int norm = s->rig[r]->plan.places.at[c->y[r]].norm;
    for (int i = 0; i < s->m; i++) {
        double square = 0;
        const float *row = sum + i * s->cols;
        for (int k = 0; k < s->cols; k++) square += (double)row[k] * (double)row[k];
        for (int k = 0; k < s->cols; k++) {
            double want = (double)row[k] / sqrt(square / s->cols + 1e-6) * (double)c->w[k];
            got[k] = got_at(s, r, c->y[r], i * s->cols + k);
            double off = fabs((double)got[k] - want), limit = c->out == PZ_DT_BF16 ? 0x1p-8 : 0x1p-19;
            if (isnan(want) ? isnan(got[k]) : off <= limit * fabs(want) + 1e-37) continue;
            fail_msg("rank %d, %d rows: y (%d, %d) is %a, expected %a", r, s->m, i, k, (double)got[k], want);
        }
        float x_norm = norm_of(got, s->cols), has = got_at(s, r, norm, i);
        assert_true(isnan(x_norm) ? isnan(has) : x_norm == has);
    }
    pz_free(got);
}

static void check_collective(const stage *s, const collective *c, bool filled) {
    int n = s->m * s->cols;
    float *want = pz_calloc((size_t)n, sizeof *want);
    assert_non_null(want);
    for (int i = 0; i < n; i++) {
        float sum = c->part[0][i];
        double exact = (double)sum, size = fabs(exact);
        for (int r = 1; r < s->t->n; r++) {
            sum += c->part[r][i];
            exact += (double)c->part[r][i];
            size += fabs((double)c->part[r][i]);
        }
        if (isfinite(sum)) assert_true(fabs((double)sum - exact) <= size * 0x1p-23 * s->t->n);
        want[i] = rig_round(c->out, fused(c) ? sum + c->res[i] : sum);
    }
    for (int r = 0; r < s->t->n; r++) {
        check_bits(s, r, c->sum[r], want);
        if (fused(c)) check_norm(s, c, r, want);
        if (c->fill) check_fill(s, c, r, filled);
    }
    check_same_on_all(s, c->sum);
    check_same_on_all(s, c->y);
    pz_free(want);
}

static void check_stage(const stage *s) {
    for (int i = 0; i < s->n; i++) check_collective(s, &s->c[i], true);
}

/* ---- values ---- */
static void check_values(int ranks, int cols, const int *rows, int n, bool eager) {
    team *t = team_open(ranks, 20000, eager);
    stage *stages[8];
    for (int i = 0; i < n; i++) stages[i] = stage_of_chain(t, rows[i], cols, (uint64_t)(ranks * 10 + i));
    run_twice(t, stages, n);
    for (int i = 0; i < n; i++) {
        check_stage(stages[i]);
        stage_free(stages[i]);
    }
    team_close(t);
}

static void test_values(void **state) {
    (void)state;
    static const int rows[] = {1, SWITCH, SWITCH + 1, 3, MOST_ROWS, 33};
    for (int ranks = 2; ranks <= 4; ranks++) check_values(ranks, 256, rows, 6, ranks == 3);
}

static void test_wide_rows(void **state) {
    (void)state;
    static const int rows[] = {1, 9, SWITCH + 2};
    check_values(2, 7168, rows, lab_small() ? 2 : 3, false);
    check_values(4, 7168, rows, lab_small() ? 2 : 3, false);
    check_values(2, 16384, rows, 2, false);
    check_values(3, 1000, rows, 3, false);
}

/* More rows than one launch takes. */
static void test_many_rows(void **state) {
    (void)state;
    static const int rows[] = {300, 2, 513};
    check_values(2, 64, rows, 3, false);
}

/* The bits of a row are those that it has alone, whichever way it takes. */
static void test_rows_do_not_depend_on_others(void **state) {
    (void)state;
    enum { COLS = 512, SIZES = 5 };
    static const int sizes[SIZES] = {MOST_ROWS, 1, SWITCH, SWITCH + 1, 7};
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        team *t = team_open(ranks, 20000, false);
        stage *s[SIZES];
        for (int i = 0; i < SIZES; i++) s[i] = stage_of_chain(t, sizes[i], COLS, 3);
        run_twice(t, s, SIZES);
        for (int i = 1; i < SIZES; i++)
            for (int k = 0; k < CHAIN; k++)
                for (int e = 0; e < sizes[i] * COLS; e++) {
                    int whole = (MOST_ROWS - sizes[i]) * COLS + e;
                    float a = got_at(s[i], 0, s[i]->c[k].y[0], e), b = got_at(s[0], 0, s[0]->c[k].y[0], whole);
                    assert_memory_equal(&a, &b, sizeof a);
                }
        for (int i = 0; i < SIZES; i++) stage_free(s[i]);
        team_close(t);
    }
}

/* Without the fill what it should have zeroed stays poisoned: the checks above would see it. */
static void test_without_the_fill(void **state) {
    (void)state;
    team *t = team_open(2, 20000, false);
    stage *s = stage_of_chain(t, 5, 256, 1);
    for (int r = 0; r < 2; r++)
        for (int f = 0; f < s->rig[r]->plan.fills.n; f++) s->rig[r]->plan.fills.at[f].bytes = 0;
    run_twice(t, &s, 1);
    for (int i = 0; i < s->n; i++) check_collective(s, &s->c[i], false);
    stage_free(s);
    team_close(t);
}

/* ---- strange payloads ---- */
static void fill_strange(float *x, int m, int cols, uint64_t *s) {
    /* the word of all ones is what an empty place holds; in bf16 it takes two neighbours */
    static const uint32_t bits[] = {
        0x80000000u, 0x00000000u, 0x00000001u, 0x807fffffu, 0x00800000u, 0x7f800000u, 0xff800000u, 0x7fc00000u,
        0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xfffffffeu, 0xffff0000u, 0x7f7fffffu, 0xff7fffffu, 0x3f800000u,
    };
    enum { N = sizeof bits / sizeof *bits };
    for (int i = 0; i < m * cols; i++) {
        int row = i / cols;
        uint32_t v = row < N ? bits[row] : pz_rng_next(s) % 3 ? bits[pz_rng_next(s) % N] : 0x80000000u;
        memcpy(&x[i], &v, 4);
    }
}

/* bf16 by the conversion of the host may lose a NaN's bits: they are put into the rig as they are. */
static void put_bits(const stage *s, const collective *c, int r) {
    if (c->x != PZ_DT_BF16) return;
    const pz_launch *l = &s->rig[r]->plan.launches.at[c - s->c];
    uint16_t *at = rig_data(s->rig[r], l->in[pz_op_operand_index(l->op, "x")].place);
    for (int i = 0; i < s->m * s->cols; i++)
        if (isnan(c->part[r][i])) at[i] = i % 2 || i / s->cols % 2 ? 0xffff : 0x7fc0;
}

static void check_payloads(int ranks, pz_dtype x, int m) {
    uint64_t seed = (uint64_t)(ranks * 100 + m);
    team *t = team_open(ranks, 20000, false);
    stage *s = stage_new(t, m, 320);
    for (int i = 0; i < 2; i++) {
        collective *c = &s->c[s->n++];
        *c = (collective){.op = i ? PZ_OP_ALL_REDUCE : PZ_OP_FUSED_ALLREDUCE_RMSNORM, .x = x, .out = x, .fill = !i};
        for (int r = 0; r < ranks; r++) {
            c->part[r] = pz_calloc((size_t)(m * s->cols), sizeof **c->part);
            assert_non_null(c->part[r]);
            fill_strange(c->part[r], m, s->cols, &seed);
        }
        add_collective(s, c, seed);
        for (int r = 0; r < ranks; r++) put_bits(s, c, r);
    }
    stage_ready(s);
    run_twice(t, &s, 1);
    check_stage(s);
    float zero = got_at(s, 0, s->c[1].y[0], 0);
    assert_true(zero == 0 && signbit(zero));
    stage_free(s);
    team_close(t);
}

static void test_payloads(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int i = 0; i < 4; i++) check_payloads(ranks, i % 2 ? PZ_DT_BF16 : PZ_DT_F32, i / 2 ? 24 : SWITCH + 10);
}

/* ---- replays ---- */
enum { REPLAYED = 8 };
static const int replayed_rows[REPLAYED] = {1, SWITCH, SWITCH + 1, 3, MOST_ROWS, 33, 8, 66};

static void open_replayed(team *t, int cols, uint64_t seed, stage **stages) {
    for (int i = 0; i < REPLAYED; i++) stages[i] = stage_of_chain(t, replayed_rows[i], cols, seed + (uint64_t)i);
    run_twice(t, stages, REPLAYED);
    for (int i = 0; i < REPLAYED; i++) check_stage(stages[i]);
}

static void close_replayed(team *t, stage **stages) {
    for (int i = 0; i < REPLAYED; i++) stage_free(stages[i]);
    team_close(t);
}

static running replays_of(team *t, stage *const *stages, int replays) {
    return (running){
        .t = t, .stages = stages, .n_stages = REPLAYED, .replays = replays, .check_every = 97, .missing = -1};
}

/* 200,000 replays of graphs, whose rows go from one side of the switch point to the other at random. */
static void test_replays(void **state) {
    (void)state;
    stage *stages[REPLAYED];
    team *t = team_open(2, 20000, false);
    open_replayed(t, 256, 1, stages);
    running u = replays_of(t, stages, lab_small() ? 2000 : 200000);
    must_run(&u);
    close_replayed(t, stages);
    t = team_open(4, 20000, false);
    open_replayed(t, 128, 2, stages);
    u = replays_of(t, stages, lab_small() ? 500 : 10000);
    must_run(&u);
    close_replayed(t, stages);
}

static void one_of_two(void *arg, int which) {
    try_run((running *)arg + which);
}

/* Two groups on the same devices at the same time. */
static void test_two_groups(void **state) {
    (void)state;
    pz_error err;
    pz_crew *crew;
    team *t[2];
    stage *stages[2][REPLAYED];
    running u[2];
    assert_ok(pz_crew_new(2, &crew, &err), &err);
    for (int i = 0; i < 2; i++) {
        t[i] = team_open(2, 20000, false);
        open_replayed(t[i], 256, 5 + (uint64_t)i, stages[i]);
        u[i] = replays_of(t[i], stages[i], lab_small() ? 1000 : 20000);
    }
    assert_ok(pz_crew_run(crew, one_of_two, u, &err), &err);
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < 2; r++) assert_ok(t[i]->st[r], &t[i]->err[r]);
        close_replayed(t[i], stages[i]);
    }
    pz_crew_free(crew);
}

/* ---- failures ---- */
/* A rank that never launches: the others end within the time-out, and later runs are refused at once. */
static void test_missing_rank(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int m = 2; m <= SWITCH + 2; m += SWITCH) {
            team *t = team_open(ranks, 300, false);
            stage *s = stage_of_chain(t, m, 256, 1);
            run_twice(t, &s, 1);
            running u = {.t = t, .stages = &s, .n_stages = 1, .replays = 1, .check_every = 1, .missing = ranks - 1};
            char text[80];
            snprintf(text, sizeof text, "did not arrive within 300 ms");
            int64_t start = pz_now_ns();
            try_run(&u);
            assert_true(pz_now_ns() - start < 5000000000);
            int told = 0;
            for (int r = 0; r < ranks - 1; r++) {
                assert_true(t->st[r] == PZ_E_TIMEOUT || t->st[r] == PZ_E_PEER);
                told += t->st[r] == PZ_E_TIMEOUT && strstr(t->err[r].msg, text);
            }
            assert_true(told >= 1);
            start = pz_now_ns();
            u.missing = -1;
            try_run(&u);
            assert_true(pz_now_ns() - start < 2000000000);
            for (int r = 0; r < ranks; r++) assert_int_not_equal(t->st[r], PZ_OK);
            stage_free(s);
            team_close(t);
        }
}

/* A rank whose run fails: the kernels of the others, which wait for its own, end long before the time-out. */
static void test_failed_rank(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        team *t = team_open(ranks, 60000, false);
        stage *s = stage_of_chain(t, 4, 256, 1);
        run_twice(t, &s, 1);
        running u = {.t = t, .stages = &s, .n_stages = 1, .replays = 1, .check_every = 1, .missing = 1, .fails = true};
        int64_t start = pz_now_ns();
        try_run(&u);
        assert_true(pz_now_ns() - start < 20000000000);
        assert_int_equal(t->st[1], PZ_E_INVAL);
        for (int r = 0; r < ranks; r++)
            if (r != 1) assert_fails(t->st[r], PZ_E_PEER, &t->err[r], "rank 1 failed");
        stage_free(s);
        team_close(t);
    }
}

static void test_refusals(void **state) {
    (void)state;
    pz_error err;
    pz_group *g;
    const pz_backend_api *api;
    pz_backend *b = NULL;
    assert_ok(pz_backend_cuda(&api, &err), &err);
    assert_ok(pz_group_new(2, 0, &g, &err), &err);
    pz_backend_options o = {.comm = pz_group_comm(g, 0), .one_shot = 257};
    assert_fails(api->open(&o, &b, &err), PZ_E_RANGE, &err, "one_shot 257: must be 1 to 256");
    o = (pz_backend_options){.comm = pz_group_comm(g, 0), .device = 1000};
    assert_fails(api->open(&o, &b, &err), PZ_E_UNSUPPORTED, &err, "no GPU 1000");
    assert_null(b);
    pz_group_free(g);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        lab_test(test_values),           lab_test(test_wide_rows),
        lab_test(test_many_rows),        lab_test(test_rows_do_not_depend_on_others),
        lab_test(test_without_the_fill), lab_test(test_payloads),
        lab_test(test_replays),          lab_test(test_two_groups),
        lab_test(test_missing_rank),     lab_test(test_failed_rank),
        lab_test(test_refusals),
    };
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
