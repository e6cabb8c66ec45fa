/* SPDX-License-Identifier: Apache-2.0 */
#include "support_team.h"

#include "lab.h"

#include <stdio.h>
#include <unistd.h>

/* ---- ranks ---- */
team *team_open(int n, int timeout_ms, int flags) {
    pz_error err;
    team *t = pz_calloc(1, sizeof *t);
    assert_non_null(t);
    t->n = n;
    assert_ok(pz_backend_cuda(&t->api, &err), &err);
    assert_ok(pz_group_new(n, lab_timeout_ms(timeout_ms), &t->g, &err), &err);
    assert_ok(pz_crew_new(n, &t->crew, &err), &err);
    for (int r = 0; r < n; r++) {
        pz_backend_options o = {.nccl = flags & TEAM_NCCL,
                                .device = r,
                                .comm = pz_group_comm(t->g, r),
                                .share_device = true,
                                .groups = flags & TEAM_OF_TWO ? 2 : 1,
                                .one_shot = TEAM_SWITCH,
                                .eager = flags & TEAM_EAGER};
        assert_ok(t->api->open(&o, &t->b[r], &err), &err);
    }
    return t;
}

void team_close(team *t) {
    for (int r = 0; r < t->n; r++) t->api->close(t->b[r]);
    pz_crew_free(t->crew);
    pz_group_free(t->g);
    pz_free(t);
}

/* ---- plans ---- */
/* Weights of all rigs of a rank lie in one backend, by names that are theirs alone. */
static void mirror(void *user, const pz_weight *w, pz_op use, const pz_host_weight *host) {
    const stage_rank *to = user;
    team *t = to->stage->t;
    pz_error err;
    pz_weight other = *w;
    other.index = t->weights++;
    assert_ok(t->api->load(t->b[to->rank], &other, use, host, &err), &err);
}

size_t stage_bytes(const stage *s, int rank) {
    return (size_t)s->rig[rank]->plan.arena_bytes;
}

stage *stage_new(team *t, int m, int cols) {
    stage *s = pz_calloc(1, sizeof *s);
    assert_non_null(s);
    s->t = t;
    s->m = m;
    s->cols = cols;
    for (int r = 0; r < t->n; r++) {
        s->rig[r] = rig_open_sized("baseline", 1, m, (size_t)m * (size_t)cols * 4 * TEAM_CHAIN * 6 + 65536);
        s->at[r] = (stage_rank){s, r};
        s->rig[r]->mirror = mirror;
        s->rig[r]->mirror_user = &s->at[r];
    }
    return s;
}

void stage_ready(stage *s) {
    pz_error err;
    for (int r = 0; r < s->t->n; r++) {
        assert_ok(s->t->api->alloc(s->t->b[r], (int64_t)stage_bytes(s, r), &s->arena[r], &err), &err);
        s->first[r] = pz_calloc(stage_bytes(s, r), 1);
        assert_non_null(s->first[r]);
    }
}

stage *stage_of_chain(team *t, int m, int cols, uint64_t seed) {
    static const pz_dtype x_types[] = {PZ_DT_BF16, PZ_DT_F32, PZ_DT_FIXED}, out_types[] = {PZ_DT_BF16, PZ_DT_F32};
    stage *s = stage_new(t, m, cols);
    for (int i = 0; i < TEAM_CHAIN; i++) {
        collective *c = &s->c[s->n++];
        c->op = i == 2 ? PZ_OP_ALL_REDUCE : PZ_OP_FUSED_ALLREDUCE_RMSNORM;
        c->x = x_types[(i + (int)(seed % 3)) % 3];
        c->out = out_types[i == 3];
        c->fill = i % 3 == 0;
        collective_add(c, s->rig, t->n, cols, seed * 100 + (uint64_t)i * 10);
    }
    stage_ready(s);
    return s;
}

void stage_free(stage *s) {
    for (int r = 0; r < s->t->n; r++) {
        s->t->api->forget(s->t->b[r], &s->rig[r]->plan);
        s->t->api->release(s->t->b[r], s->arena[r]);
        pz_free(s->first[r]);
        rig_close(s->rig[r]);
    }
    for (int i = 0; i < s->n; i++) collective_free(&s->c[i]);
    pz_free(s);
}

void stage_check(const stage *s, bool filled) {
    for (int i = 0; i < s->n; i++) collective_check(&s->c[i], s->rig, s->first, s->t->n, 0x1p-19, filled);
}

/* ---- running ---- */
/* Outputs and riders poisoned, as the rigs have made them, then one run that is looked at. */
static pz_status run_fresh(const running *u, stage *s, int r, unsigned char *got, pz_error *err) {
    const pz_backend_api *api = u->t->api;
    int64_t bytes = (int64_t)stage_bytes(s, r);
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
        if (stage_bytes(u->stages[i], r) > most) most = stage_bytes(u->stages[i], r);
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

void team_try(const running *u) {
    pz_error err;
    assert_ok(pz_crew_run(u->t->crew, on_rank, (void *)u, &err), &err);
}

void team_must(const running *u) {
    team_try(u);
    for (int r = 0; r < u->t->n; r++) assert_ok(u->t->st[r], &u->t->err[r]);
}

void team_run_twice(team *t, stage *const *stages, int n) {
    running u = {.t = t, .stages = stages, .n_stages = n, .replays = n, .check_every = 1, .missing = -1, .keep = true};
    team_must(&u);
    u.keep = false;
    u.replays = 2 * n;
    team_must(&u);
}

/* ---- whole tests ---- */
void team_check_values(int ranks, int cols, const int *rows, int n, int flags) {
    team *t = team_open(ranks, 20000, flags);
    stage *stages[8];
    for (int i = 0; i < n; i++) stages[i] = stage_of_chain(t, rows[i], cols, (uint64_t)(ranks * 10 + i));
    team_run_twice(t, stages, n);
    for (int i = 0; i < n; i++) {
        stage_check(stages[i], true);
        stage_free(stages[i]);
    }
    team_close(t);
}

/* bf16 by the conversion of the host may lose a NaN's bits: they are put into the rig as they are. */
static void put_bits(const stage *s, const collective *c, int r) {
    if (c->x != PZ_DT_BF16) return;
    const pz_launch *l = &s->rig[r]->plan.launches.at[c - s->c];
    uint16_t *at = rig_data(s->rig[r], l->in[pz_op_operand_index(l->op, "x")].place);
    for (int i = 0; i < s->m * s->cols; i++)
        if (isnan(c->part[r][i])) at[i] = i % 2 || i / s->cols % 2 ? 0xffff : 0x7fc0;
}

void team_check_payloads(int ranks, pz_dtype x, int m, int cols, int flags) {
    uint64_t seed = (uint64_t)(ranks * 100 + m);
    team *t = team_open(ranks, 20000, flags);
    stage *s = stage_new(t, m, cols);
    for (int i = 0; i < 2; i++) {
        collective *c = &s->c[s->n++];
        *c = (collective){.op = i ? PZ_OP_ALL_REDUCE : PZ_OP_FUSED_ALLREDUCE_RMSNORM, .x = x, .out = x, .fill = !i};
        for (int r = 0; r < ranks; r++) c->part[r] = collective_strange(m, s->cols, &seed);
        collective_add(c, s->rig, ranks, s->cols, seed);
        for (int r = 0; r < ranks; r++) put_bits(s, c, r);
    }
    stage_ready(s);
    team_run_twice(t, &s, 1);
    stage_check(s, true);
    float zero = collective_at(s->rig[0], s->first[0], s->c[1].y[0], 0);
    assert_true(zero == 0 && signbit(zero));
    stage_free(s);
    team_close(t);
}

void team_check_without_fill(int flags) {
    team *t = team_open(2, 20000, flags);
    stage *s = stage_of_chain(t, 5, 256, 1);
    for (int r = 0; r < 2; r++)
        for (int f = 0; f < s->rig[r]->plan.fills.n; f++) s->rig[r]->plan.fills.at[f].bytes = 0;
    team_run_twice(t, &s, 1);
    stage_check(s, false);
    stage_free(s);
    team_close(t);
}

void team_check_missing(int ranks, int m, int timeout_ms, int flags) {
    int wait_ms = lab_timeout_ms(timeout_ms);
    team *t = team_open(ranks, timeout_ms, flags);
    stage *s = stage_of_chain(t, m, 256, 1);
    team_run_twice(t, &s, 1);
    running u = {.t = t, .stages = &s, .n_stages = 1, .replays = 1, .check_every = 1, .missing = ranks - 1};
    char text[80];
    snprintf(text, sizeof text, "did not arrive within %d ms", wait_ms);
    int64_t start = pz_now_ns();
    team_try(&u);
    assert_true(pz_now_ns() - start < wait_ms * (int64_t)1000000 + 5000000000);
    int told = 0;
    for (int r = 0; r < ranks - 1; r++) {
        assert_true(t->st[r] == PZ_E_TIMEOUT || t->st[r] == PZ_E_PEER);
        told += t->st[r] == PZ_E_TIMEOUT && strstr(t->err[r].msg, text);
    }
    assert_true(told >= 1);
    start = pz_now_ns();
    u.missing = -1;
    team_try(&u);
    assert_true(pz_now_ns() - start < 2000000000);
    for (int r = 0; r < ranks; r++) assert_int_not_equal(t->st[r], PZ_OK);
    stage_free(s);
    team_close(t);
}

void team_check_failed(int ranks, int flags) {
    team *t = team_open(ranks, 60000, flags);
    stage *s = stage_of_chain(t, 4, 256, 1);
    team_run_twice(t, &s, 1);
    running u = {.t = t, .stages = &s, .n_stages = 1, .replays = 1, .check_every = 1, .missing = 1, .fails = true};
    int64_t start = pz_now_ns();
    team_try(&u);
    assert_true(pz_now_ns() - start < 20000000000);
    assert_int_equal(t->st[1], PZ_E_INVAL);
    for (int r = 0; r < ranks; r++)
        if (r != 1) assert_fails(t->st[r], PZ_E_PEER, &t->err[r], "rank 1 failed");
    stage_free(s);
    team_close(t);
}
