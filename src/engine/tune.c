/* SPDX-License-Identifier: Apache-2.0 */
/* Successive halving in three rounds, for each shape and bucket: all candidates quickly; the best of them, their
 * variants, and the ways to do without a zeroed output longer; the last few with an interval. The launches of a round
 * are measured in turns, so what is compared saw the same device. */
#include "engine/tune.h"

#include <math.h>

#include "base/file.h"
#include "engine/stats.h"
#include "prezero/kernels.h"

enum {
    ROUNDS = 3,
    FINALISTS = 3,
    GEOMETRIES_OFF = 6, /* split ones that are tried with every strategy that zeroes or adds up by itself */
    MAX_CASES = PZ_MAX_CANDIDATES + 16
};

typedef struct cases {
    pz_tune_case at[MAX_CASES];
    int n;
} cases;

typedef struct tuner {
    const pz_tune_plan *plan;
    pz_tuned *table;
    pz_tune_tally *tally;
    pz_error *err;
    PZ_VEC(pz_zero_sample) zero_samples;
    int done, total, begin, end; /* hundredths of rows: finished, all; where the running round begins and ends */
} tuner;

/* ---- one round ---- */
static void add(cases *c, const pz_gemm_shape *shape, pz_strategy strategy, const pz_gemm_config *config) {
    for (int i = 0; i < c->n; i++) {
        const pz_gemm_choice *o = &c->at[i].choice;
        if (o->strategy == strategy && memcmp(&o->config, config, sizeof *config) == 0) return;
    }
    if (c->n < MAX_CASES)
        c->at[c->n++] = (pz_tune_case){.accum = shape->accum, .choice = {.strategy = strategy, .config = *config}};
}

static void round_progress(void *ctx, int done, int total) {
    const tuner *t = ctx;
    if (!t->plan->progress || total < 1) return;
    t->plan->progress(t->plan->user, t->begin + (int)((int64_t)(t->end - t->begin) * done / total), t->total);
}

static int faster(const void *a, const void *b) {
    const pz_tune_case *x = a, *y = b;
    if ((x->status != PZ_OK) != (y->status != PZ_OK)) return x->status != PZ_OK ? 1 : -1;
    return (x->choice.us > y->choice.us) - (x->choice.us < y->choice.us);
}

/* Measures all of them; leaves those that work, the fastest first. */
static pz_status measure(tuner *t, const pz_gemm_shape *shape, pz_effort effort, cases *c) {
    static const int share[ROUNDS + 1] = {0, 50, 80, 100}; /* of a row's time, roughly */
    t->begin = t->done + share[effort];
    t->end = t->done + share[effort + 1];
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
    qsort(c->at, (size_t)c->n, sizeof *c->at, faster);
    while (c->n > 0 && c->at[c->n - 1].status != PZ_OK) c->n--;
    return PZ_OK;
}

/* ---- which launches ---- */
static pz_strategy strategy_on(const pz_gemm_config *c) {
    return c->split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE;
}
static bool is_blas(const pz_tune_case *c) {
    return c->choice.config.family == PZ_GEMM_CUBLASLT;
}
static bool is_on(const pz_tune_case *c) {
    return c->choice.strategy == PZ_ZERO_PREZERO || c->choice.strategy == PZ_ZERO_NONE;
}

static void first_round(const tuner *t, const pz_gemm_shape *shape, cases *c) {
    pz_gemm_candidate at[PZ_MAX_CANDIDATES];
    int n = pz_gemm_candidates(t->plan->dev, shape, at, t->plan->quick ? PZ_MAX_CANDIDATES / 3 : PZ_MAX_CANDIDATES);
    pz_gemm_config blas = {.family = PZ_GEMM_CUBLASLT, .split = 1, .stages = PZ_MEASURE_BEST};
    c->n = 0;
    for (int i = 0; i < n; i++) add(c, shape, strategy_on(&at[i].config), &at[i].config);
    add(c, shape, PZ_ZERO_NONE, &blas);
    if (shape->accum == PZ_ACCUM_FIXED) c->at[c->n - 1].accum = PZ_ACCUM_F32; /* a reference: it has no fixed sums */
}

/* The best eight, at least two of each kind where there are so many, and variants of the first four; the best that are
 * split also with the strategies that need no zeroed output; cuBLASLt's best. */
static void second_round(const tuner *t, const pz_gemm_shape *shape, const cases *all, cases *c) {
    static const pz_strategy without[] = {PZ_ZERO_SELF, PZ_ZERO_REDUCE, PZ_ZERO_TICKET, PZ_ZERO_MEMSET};
    int most = t->plan->quick ? 4 : 8, of[2] = {0, 0}, rank = 0, off = 0;
    c->n = 0;
    for (int i = 0; i < all->n; i++) {
        const pz_gemm_config *g = &all->at[i].choice.config;
        if (is_blas(&all->at[i])) {
            c->at[c->n++] = all->at[i];
            continue;
        }
        bool split = g->split > 1;
        if (rank >= most && of[split] >= 2) continue;
        of[split]++;
        add(c, shape, strategy_on(g), g);
        pz_gemm_config v[PZ_MAX_VARIANTS];
        int variants = rank++ < most / 2 ? pz_gemm_variants(shape, g, v) : 0;
        for (int k = 0; k < variants; k++) add(c, shape, strategy_on(g), &v[k]);
        if (!split || off++ >= GEOMETRIES_OFF) continue;
        for (size_t s = 0; s < sizeof without / sizeof *without; s++) add(c, shape, without[s], g);
    }
}

/* Of each kind the best few; and the best strategy without a zeroed output in the best geometry for one. */
static void third_round(const pz_gemm_shape *shape, const cases *longer, cases *c) {
    int whole = 0, on = 0, off = 0;
    const pz_gemm_config *best_on = NULL;
    c->n = 0;
    for (int i = 0; i < longer->n; i++) {
        const pz_tune_case *e = &longer->at[i];
        int *kind = e->choice.strategy == PZ_ZERO_NONE ? &whole : is_on(e) ? &on : &off;
        if (is_blas(e))
            c->at[c->n++] = *e;
        else if ((*kind)++ < FINALISTS)
            add(c, shape, e->choice.strategy, &e->choice.config);
        if (!best_on && e->choice.strategy == PZ_ZERO_PREZERO) best_on = &e->choice.config;
    }
    for (int i = 0; best_on && i < longer->n; i++)
        if (!is_on(&longer->at[i])) {
            add(c, shape, longer->at[i].choice.strategy, best_on);
            break;
        }
}

/* SELF and PREZERO of the same geometry differ by what zeroing takes. */
static pz_status note_handshakes(tuner *t, const pz_gemm_shape *shape, const cases *c) {
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

/* ---- one row ---- */
/* The cases are ascending. Those of another accumulator are references. */
static bool choose(const pz_gemm_shape *shape, const cases *last, pz_tuned_row *row) {
    bool on = false, off = false;
    *row = (pz_tuned_row){.shape = *shape};
    for (int i = 0; i < last->n; i++) {
        const pz_tune_case *e = &last->at[i];
        if (is_blas(e) && row->cublaslt_us == 0) row->cublaslt_us = e->choice.us;
        if (e->accum != shape->accum) continue;
        if (!on && is_on(e)) row->on = e->choice, on = true;
        if (!off && e->choice.strategy != PZ_ZERO_PREZERO) row->off = e->choice, off = true;
    }
    return on && off;
}

static pz_status tune_row(tuner *t, const pz_gemm_shape *shape, bool *fits) {
    cases all, longer, last;
    first_round(t, shape, &all);
    PZ_TRY(measure(t, shape, PZ_EFFORT_QUICK, &all));
    second_round(t, shape, &all, &longer);
    PZ_TRY(measure(t, shape, PZ_EFFORT_LONGER, &longer));
    PZ_TRY(note_handshakes(t, shape, &longer));
    third_round(shape, &longer, &last);
    PZ_TRY(measure(t, shape, PZ_EFFORT_FINAL, &last));
    pz_tuned_row row;
    *fits = choose(shape, &last, &row);
    return *fits ? pz_tuned_put(t->table, &row, t->err) : PZ_OK;
}

/* ---- the gate's constants ---- */
static pz_status fit_gate(tuner *t) {
    static const int rows[] = {1, 4, 16, 32, 64, 96, 128};
    static const int64_t fills[] = {0, 1 << 15, 1 << 18, 1 << 22, 1 << 24, 1 << 25};
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

/* ---- the table ---- */
pz_status pz_tune_open_table(const pz_device *dev, const char *path, const char *command, pz_tuned **out, int *stale,
                             pz_error *err) {
    *out = NULL;
    pz_tuned *old = NULL;
    if (pz_file_exists(path)) PZ_TRY(pz_tuned_load(path, dev, &old, err));
    pz_status st = pz_tuned_new(dev, command, out, err);
    for (int i = 0; old && i < old->rows.n && st == PZ_OK; i++) st = pz_tuned_put(*out, &old->rows.at[i], err);
    if (st == PZ_OK && old) (*out)->gate = old->gate;
    *stale = old ? old->stale : 0;
    pz_tuned_free(old);
    return st;
}

/* ---- all of it ---- */
static pz_status save(const tuner *t) {
    return t->plan->path ? pz_tuned_save(t->table, t->plan->path, t->err) : PZ_OK;
}

static pz_status tune_shape(tuner *t, const pz_gemm_shape *shape) {
    for (int b = 0; b < t->plan->n_batches; b++) {
        pz_gemm_shape s = *shape;
        s.m = t->plan->batches[b];
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
    for (int i = 0; i < p->shapes->n; i++)
        for (int b = 0; b < p->n_batches; b++) {
            pz_gemm_shape s = p->shapes->at[i];
            s.m = p->batches[b];
            todo += !p->resume || !pz_tuned_exact(t->table, &s);
        }
    t->total = todo * 100;
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
    return PZ_OK;
}

pz_status pz_tune_run(const pz_tune_plan *plan, pz_tuned *table, pz_tune_tally *tally, pz_error *err) {
    *tally = (pz_tune_tally){0};
    tuner t = {.plan = plan, .table = table, .tally = tally, .err = err};
    pz_status st = run(&t);
    pz_vec_free(&t.zero_samples);
    return st;
}
