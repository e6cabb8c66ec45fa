/* SPDX-License-Identifier: Apache-2.0 */
/* For each shape and bucket: all candidates quickly; as quickly, in three steps, neighbours of the best; the best of
 * them all, their other depths, and the ways to do without a zeroed output longer; the last few with an interval. The
 * launches of a round are measured in turns, so what is compared saw the same device.
 *
 * Buckets are tuned from the largest: a launch takes no longer for fewer rows, so with the larger bucket's choice among
 * its candidates none can be slower than a larger one. */
#include "engine/tune_cases.h"

#include <limits.h>
#include <math.h>

#include "base/file.h"
#include "engine/stats.h"
#include "prezero/kernels.h"

/* Of a row's time, roughly, when each round ends; the first ones are the candidates and the steps of the search. */
static const int share[] = {0, 40, 55, 65, 70, 90, 100};
enum { LONGER_ROUND = 1 + PZ_TUNE_STEPS, FINAL_ROUND, ROUNDS };
_Static_assert(sizeof share / sizeof *share == ROUNDS + 1, "a share for each round");

typedef struct tuner {
    const pz_tune_plan *plan;
    pz_tuned *table;
    pz_tune_tally *tally;
    pz_error *err;
    PZ_VEC(pz_zero_sample) zero_samples;
    int done, total, begin, end; /* hundredths of rows: finished, all; where the running round begins and ends */
} tuner;

/* ---- one round ---- */
static void round_progress(void *ctx, int done, int total) {
    const tuner *t = ctx;
    if (!t->plan->progress || total < 1) return;
    t->plan->progress(t->plan->user, t->begin + (int)((int64_t)(t->end - t->begin) * done / total), t->total);
}

/* Measures all of them and sorts them. */
static pz_status measure(tuner *t, const pz_gemm_shape *shape, int round, pz_tune_cases *c) {
    pz_effort effort = round < LONGER_ROUND    ? PZ_EFFORT_QUICK
                       : round == LONGER_ROUND ? PZ_EFFORT_LONGER
                                               : PZ_EFFORT_FINAL;
    t->begin = t->done + share[round];
    t->end = t->done + share[round + 1];
    const pz_tune_clock *clock = t->plan->clock;
    pz_error own = {0};
    pz_status st = c->n ? clock->gemm(clock->ctx, shape, effort, c->at, c->n, round_progress, t, &own) : PZ_OK;
    if (st == PZ_E_UNSUPPORTED || st == PZ_E_INVAL) { /* of the shape, as the device is there */
        for (int i = 0; i < c->n; i++) c->at[i].status = st;
        if (!t->tally->failure.msg[0]) t->tally->failure = own;
    } else if (st != PZ_OK) {
        if (t->err) *t->err = own;
        return st;
    }
    for (int i = 0; i < c->n; i++) {
        pz_tune_case *e = &c->at[i];
        if (e->status == PZ_OK && !(isfinite(e->choice.us) && e->choice.us > 0)) e->status = PZ_E_UNSUPPORTED;
        if (!(isfinite(e->choice.ci) && e->choice.ci > 0)) e->choice.ci = 0;
        t->tally->measured += e->status == PZ_OK;
        t->tally->unfit += e->status != PZ_OK && e->status != PZ_E_VERIFY;
        if (e->status == PZ_E_VERIFY && t->tally->wrong++ == 0) {
            t->tally->wrong_shape = *shape;
            t->tally->wrong_case = *e;
        }
    }
    pz_tune_sort(c);
    return PZ_OK;
}

/* ---- one row ---- */
/* SELF and PREZERO of the same geometry differ by what zeroing takes. */
static pz_status note_handshakes(tuner *t, const pz_gemm_shape *shape, const pz_tune_cases *c) {
    for (int i = 0; i < c->n; i++) {
        const pz_gemm_choice *self = &c->at[i].choice;
        if (self->strategy != PZ_ZERO_SELF) continue;
        for (int k = 0; k < c->n; k++) {
            const pz_gemm_choice *z = &c->at[k].choice;
            if (z->strategy != PZ_ZERO_PREZERO || memcmp(&z->config, &self->config, sizeof z->config) != 0) continue;
            pz_zero_sample s = {(int64_t)shape->m * shape->n * 4, self->us, z->us};
            PZ_TRY(pz_push(&t->zero_samples, s, t->err));
        }
    }
    return PZ_OK;
}

/* The cases are ascending. Those of another accumulator are references. */
static bool choose(const pz_gemm_shape *shape, const pz_tune_cases *last, pz_tuned_row *row) {
    bool on = false, off = false;
    *row = (pz_tuned_row){.shape = *shape};
    for (int i = 0; i < last->n; i++) {
        const pz_tune_case *e = &last->at[i];
        if (pz_tune_is_blas(e) && row->cublaslt_us == 0) row->cublaslt_us = e->choice.us;
        if (e->accum != shape->accum) continue;
        if (!on && pz_tune_is_on(e)) row->on = e->choice, on = true;
        if (!off && e->choice.strategy != PZ_ZERO_PREZERO) row->off = e->choice, off = true;
    }
    return on && off;
}

static pz_status tune_row(tuner *t, const pz_gemm_shape *shape, bool *fits) {
    pz_tune_cases all, some;
    pz_tune_first(t->plan, t->table, shape, &all);
    PZ_TRY(measure(t, shape, 0, &all));
    for (int step = 0; step < PZ_TUNE_STEPS; step++) {
        pz_tune_near(t->plan, shape, &all, step, &some);
        PZ_TRY(measure(t, shape, 1 + step, &some));
        pz_tune_merge(&all, &some);
    }
    pz_tune_longer(t->plan, shape, &all, &some);
    PZ_TRY(measure(t, shape, LONGER_ROUND, &some));
    PZ_TRY(note_handshakes(t, shape, &some));
    pz_tune_last(shape, &some, &all);
    PZ_TRY(measure(t, shape, FINAL_ROUND, &all));
    pz_tuned_row row;
    *fits = choose(shape, &all, &row);
    return *fits ? pz_tuned_put(t->table, &row, t->err) : PZ_OK;
}

/* ---- the gate's constants ---- */
static pz_status fit_gate(tuner *t) {
    static const int rows[] = {1, 4, 16, 32, 64, 96, 128};
    static const int64_t fills[] = {0, 1 << 13, 1 << 18, 1 << 22, 1 << 24, 1 << 25};
    enum { ROWS = sizeof rows / sizeof *rows, FILLS = sizeof fills / sizeof *fills };
    pz_norm_sample s[ROWS * FILLS];
    const pz_tune_plan *p = t->plan;
    int n = 0;
    for (int r = 0; r < ROWS; r++) {
        double us[FILLS];
        PZ_TRY(p->clock->norm(p->clock->ctx, rows[r], p->hidden, fills, FILLS, us, t->err));
        for (int f = 0; f < FILLS; f++)
            if (isfinite(us[f]) && us[f] > 0) s[n++] = (pz_norm_sample){rows[r], fills[f], us[f]};
    }
    return pz_fit_norm(s, n, p->dev->units, &t->table->gate, t->err);
}

static pz_status fit_handshake(tuner *t) {
    pz_gate_constants *g = &t->table->gate, known = *g;
    if (isnan(known.fill)) known.fill = t->plan->dev->gate.fill;
    PZ_TRY(pz_fit_handshake(t->zero_samples.at, t->zero_samples.n, t->plan->dev->units, &known, t->err));
    g->handshake = known.handshake;
    return PZ_OK;
}

/* ---- collectives ---- */
static bool ranks_wanted(const tuner *t) {
    const pz_tune_plan *p = t->plan;
    return p->ranks > 1 && !(p->resume && pz_tuned_collective_exact(t->table, p->ranks, p->ranks_hidden));
}

/* Other numbers of ranks are taken to need as long, where the table does not know better. */
static pz_status tune_ranks(tuner *t) {
    pz_tuned_collective row;
    pz_error own = {0};
    t->begin = t->done;
    t->end = t->done += 100;
    pz_status st = pz_tune_collective(t->plan, round_progress, t, &row, &own);
    if (st == PZ_E_UNSUPPORTED || st == PZ_E_INVAL) {
        t->tally->no_ranks = own;
        return PZ_OK;
    }
    if (st != PZ_OK) return pz_fail(t->err, st, "collectives of %d ranks: %s", t->plan->ranks, own.msg);
    t->table->gate.ar_base = row.ar_base;
    t->table->gate.ar_row = row.ar_row;
    return pz_tuned_put_collective(t->table, &row, t->err);
}

/* ---- the table ---- */
pz_status pz_tune_open_table(const pz_device *dev, const char *path, const char *command, pz_tuned **out, int *stale,
                             pz_error *err) {
    *out = NULL;
    pz_tuned *old = NULL;
    if (pz_file_exists(path)) PZ_TRY(pz_tuned_load(path, dev, &old, err));
    pz_status st = pz_tuned_new(dev, command, out, err);
    for (int i = 0; old && i < old->rows.n && st == PZ_OK; i++) st = pz_tuned_put(*out, &old->rows.at[i], err);
    for (int i = 0; old && i < old->collectives.n && st == PZ_OK; i++)
        st = pz_tuned_put_collective(*out, &old->collectives.at[i], err);
    if (st == PZ_OK && old) (*out)->gate = old->gate;
    *stale = old ? old->stale + old->stale_collectives : 0;
    pz_tuned_free(old);
    return st;
}

/* ---- all of it ---- */
static pz_status save(const tuner *t) {
    return t->plan->path ? pz_tuned_save(t->table, t->plan->path, t->err) : PZ_OK;
}

/* The largest batch below m; 0: none. */
static int next_batch(const pz_tune_plan *p, int m) {
    int next = 0;
    for (int b = 0; b < p->n_batches; b++)
        if (p->batches[b] < m && p->batches[b] > next) next = p->batches[b];
    return next;
}

static pz_status tune_shape(tuner *t, const pz_gemm_shape *shape) {
    pz_gemm_shape s = *shape;
    for (s.m = INT_MAX; (s.m = next_batch(t->plan, s.m)) > 0;) {
        if (t->plan->resume && pz_tuned_exact(t->table, &s)) {
            t->tally->kept++;
            continue;
        }
        bool fits = false;
        PZ_TRY(tune_row(t, &s, &fits));
        t->done += 100;
        t->tally->rows += fits;
        t->tally->failed += !fits;
        if (fits) PZ_TRY(save(t));
    }
    return PZ_OK;
}

static pz_status run(tuner *t) {
    const pz_tune_plan *p = t->plan;
    int todo = 0;
    for (int i = 0; i < p->shapes->n; i++) {
        pz_gemm_shape s = p->shapes->at[i];
        for (s.m = INT_MAX; (s.m = next_batch(p, s.m)) > 0;) todo += !p->resume || !pz_tuned_exact(t->table, &s);
    }
    t->total = (todo + ranks_wanted(t)) * 100;
    PZ_TRY(save(t)); /* a file that cannot be written is known before anything is measured */
    if (todo && p->hidden > 0) {
        PZ_TRY(fit_gate(t));
        PZ_TRY(save(t));
    }
    for (int i = 0; i < p->shapes->n; i++) PZ_TRY(tune_shape(t, &p->shapes->at[i]));
    if (t->zero_samples.n) {
        PZ_TRY(fit_handshake(t));
        PZ_TRY(save(t));
    }
    if (!ranks_wanted(t)) return PZ_OK;
    PZ_TRY(tune_ranks(t));
    return save(t);
}

pz_status pz_tune_run(const pz_tune_plan *plan, pz_tuned *table, pz_tune_tally *tally, pz_error *err) {
    *tally = (pz_tune_tally){0};
    tuner t = {.plan = plan, .table = table, .tally = tally, .err = err};
    pz_status st = run(&t);
    pz_vec_free(&t.zero_samples);
    return st;
}
