/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner with a clock of our own: what it chooses, what it saves, how it ends and goes on. */
#include "support.h"

#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "base/rng.h"
#include "engine/tune_cases.h"
#include "prezero/kernels.h"

/* ---- the clock ---- */
typedef struct fake {
    pz_device dev;
    double self, reduce, ticket, memset; /* what each strategy takes beyond PREZERO; none: 0 */
    double whole;                        /* what not to split takes beyond the estimate */
    double blas;                         /* us of cuBLASLt, 0: there is none */
    double noise;                        /* relative, by launch */
    const pz_gemm_config *valley; /* the fastest geometry of a landscape that knows nothing of the model; NULL: none */
    bool needle;                  /* everywhere else it is flat */
    int calls, launches, by_effort[PZ_EFFORT_FINAL + 1];
    int fail_at; /* call that fails, 0: none */
    pz_status fail_with;
    int64_t refuse_n;            /* shape that cannot be measured, 0: none */
    bool wrong_first, all_wrong; /* the launch that the model ranks first has a wrong result; all have */
    pz_norm_sample donor;        /* us: base; m, bytes unused */
    double donor_row, fill, rider;
    double steps_base[2], steps_row[2], reduce_ci; /* of a collective, by its steps; half of an interval */
    int reduces, reduce_fail_at;                   /* calls; the one that fails, 0: none */
    pz_status reduce_fail_with;
} fake;

static double hash_unit(const pz_tune_case *c, const pz_gemm_shape *s) {
    const pz_gemm_config *g = &c->choice.config;
    uint64_t seed =
        (uint64_t)(g->tile_n * 131 + g->split * 17 + g->warps * 7 + g->stages * 3 + g->depth + s->m * 1009 + (int)s->n);
    pz_rng_next(&seed);
    return pz_rng_unit(&seed) * 2 - 1;
}

/* Relative time beyond that of the valley's bottom: each step away from it costs, the other families more. */
static double height(const pz_gemm_config *bottom, const pz_gemm_config *c) {
    double h = 0.3 * (c->family != bottom->family) + 0.004 * abs(c->tile_n - bottom->tile_n) / 4 +
               0.015 * abs(c->split - bottom->split) + 0.03 * abs(c->warps - bottom->warps) +
               0.01 * (c->depth != bottom->depth);
    if (c->stages != bottom->stages) h += c->stages && bottom->stages ? 0.01 * abs(c->stages - bottom->stages) : 0.03;
    return h;
}

static double valley_us(const fake *f, const pz_gemm_shape *s, const pz_tune_case *c) {
    double h = height(f->valley, &c->choice.config);
    return 8 * (1 + (f->needle && h > 0 ? 0.4 : h) + f->noise * hash_unit(c, s));
}

static double true_us(const fake *f, const pz_gemm_shape *s, const pz_tune_case *c) {
    const pz_gemm_choice *h = &c->choice;
    if (h->config.family == PZ_GEMM_CUBLASLT) return f->blas;
    double us = pz_gemm_estimate(&f->dev, s, &h->config, h->config.split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE);
    us = f->valley && isfinite(us) ? valley_us(f, s, c) : us * (1 + f->noise * hash_unit(c, s));
    const double extra[] = {[PZ_ZERO_NONE] = f->whole,    [PZ_ZERO_PREZERO] = 0,        [PZ_ZERO_SELF] = f->self,
                            [PZ_ZERO_MEMSET] = f->memset, [PZ_ZERO_REDUCE] = f->reduce, [PZ_ZERO_TICKET] = f->ticket};
    return us + extra[h->strategy];
}

static pz_status fake_gemm(void *ctx, const pz_gemm_shape *shape, pz_effort effort, pz_tune_case *cases, int n,
                           pz_progress_fn progress, void *user, pz_error *err) {
    fake *f = ctx;
    if (++f->calls == f->fail_at) return pz_fail(err, f->fail_with, "the device fell off");
    if (shape->n == f->refuse_n) return pz_fail(err, PZ_E_INVAL, "n is odd");
    pz_gemm_candidate first;
    assert_int_equal(pz_gemm_candidates(&f->dev, shape, &first, 1), 1);
    for (int i = 0; i < n; i++) {
        pz_tune_case *c = &cases[i];
        f->launches++;
        f->by_effort[effort]++;
        progress(user, i + 1, n);
        c->status = PZ_OK;
        if (c->choice.config.family == PZ_GEMM_CUBLASLT) {
            if (!f->blas || c->accum == PZ_ACCUM_FIXED) c->status = PZ_E_UNSUPPORTED;
            if (c->choice.config.stages == PZ_MEASURE_BEST) c->choice.config.stages = 5;
        }
        if (f->all_wrong || (f->wrong_first && memcmp(&c->choice.config, &first.config, sizeof first.config) == 0))
            c->status = PZ_E_VERIFY;
        if (c->status != PZ_OK) continue;
        c->choice.us = true_us(f, shape, c);
        c->choice.ci = 0.01;
        if (!isfinite(c->choice.us)) c->status = PZ_E_UNSUPPORTED; /* as the launcher says of what does not fit */
        for (int k = 0; k < i; k++)                                /* nothing twice */
            assert_false(cases[k].accum == c->accum && cases[k].choice.strategy == c->choice.strategy &&
                         memcmp(&cases[k].choice.config, &c->choice.config, sizeof c->choice.config) == 0);
    }
    return PZ_OK;
}

/* A norm of `us` with a rider: a block for every BLOCK bytes, up to one a unit and first on units without a row. Those
 * beside rows add their share of the time that all units need. */
static double ridden_us(double us, int m, int64_t bytes, int units, double fill) {
    enum { BLOCK = 49152 };
    int blocks = 0, beside = 0;
    while (blocks < units && (int64_t)blocks * BLOCK < bytes) beside += ++blocks > units - m;
    double slowed = us + (double)beside / blocks * (double)bytes / (units * fill), one = (double)bytes / blocks;
    if (blocks < units && one < BLOCK) one = bytes < BLOCK ? (double)bytes : BLOCK;
    return one / fill > slowed ? one / fill : slowed;
}

static double donor_us(const fake *f, int m, int64_t bytes) {
    double us = f->donor.us + f->donor_row * m;
    return bytes ? ridden_us(us, m, bytes, f->dev.units, f->fill) + f->rider : us;
}

static pz_status fake_norm(void *ctx, int m, int hidden, const int64_t *bytes, int n, double *us, pz_error *err) {
    fake *f = ctx;
    (void)err;
    assert_int_equal(hidden, 7168);
    for (int i = 0; i < n; i++) us[i] = bytes[i] == 1 << 18 ? NAN : donor_us(f, m, bytes[i]);
    return PZ_OK;
}

static pz_status fake_reduce(void *ctx, int ranks, int m, int hidden, pz_tune_reduce *cases, int n, pz_error *err) {
    fake *f = ctx;
    assert_true(ranks == 4 && hidden == 7168);
    if (++f->reduces == f->reduce_fail_at) return pz_fail(err, f->reduce_fail_with, "rank 3: no GPU 3: there are 3");
    for (int i = 0; i < n; i++) {
        assert_in_range(cases[i].steps, 1, 2);
        int s = cases[i].steps - 1;
        cases[i].us = f->steps_base[s] + f->steps_row[s] * m + (cases[i].bytes ? f->rider : 0);
        cases[i].ci = f->reduce_ci;
    }
    return PZ_OK;
}

/* ---- a run ---- */
typedef struct rig {
    fake f;
    pz_tune_clock clock;
    pz_gemm_shapes shapes;
    pz_tune_plan plan;
    pz_tuned *table;
    pz_tune_tally tally;
    int last_done, last_total;
} rig;

static const int batches[] = {1, 8, 64};

static void note_progress(void *user, int done, int total) {
    rig *r = user;
    assert_true(done >= r->last_done && done <= total);
    r->last_done = done;
    r->last_total = total;
}

static void rig_table(rig *r) {
    pz_error err;
    pz_tuned_free(r->table);
    assert_ok(pz_tuned_new(&r->f.dev, "test", &r->table, &err), &err);
    r->last_done = 0;
    r->f.calls = r->f.launches = 0;
    memset(r->f.by_effort, 0, sizeof r->f.by_effort);
}

static void rig_open(rig *r, const char *shapes, pz_accum accum) {
    pz_error err;
    *r = (rig){.f = {.self = 0.9, .reduce = 0.7, .ticket = 1.5, .memset = 2, .whole = 3, .blas = 12, .noise = 0.1}};
    assert_ok(pz_device_find("h200", 0, &r->f.dev, &err), &err);
    r->clock = (pz_tune_clock){&r->f, fake_gemm, fake_norm, fake_reduce};
    assert_ok(pz_tune_parse_shapes(shapes, accum, &r->shapes, &err), &err);
    r->plan = (pz_tune_plan){.dev = &r->f.dev,
                             .clock = &r->clock,
                             .shapes = &r->shapes,
                             .batches = batches,
                             .n_batches = 3,
                             .progress = note_progress,
                             .user = r};
    rig_table(r);
}

static void rig_close(rig *r) {
    pz_vec_free(&r->shapes);
    pz_tuned_free(r->table);
}

static void rig_run(rig *r) {
    pz_error err;
    assert_ok(pz_tune_run(&r->plan, r->table, &r->tally, &err), &err);
}

static const pz_tuned_row *row_of(const rig *r, int64_t n, int64_t k, pz_accum accum, int m) {
    pz_gemm_shape s = {n, k, PZ_DT_BF16, accum, m};
    const pz_tuned_row *row = pz_tuned_exact(r->table, &s);
    assert_non_null(row);
    return row;
}

/* The fastest of all candidates with a zeroed output. */
static double fastest(const rig *r, const pz_gemm_shape *s) {
    pz_gemm_candidate c[PZ_MAX_CANDIDATES];
    int n = pz_gemm_candidates(&r->f.dev, s, c, PZ_MAX_CANDIDATES);
    double best = INFINITY;
    for (int i = 0; i < n; i++) {
        pz_tune_case t = {
            .choice = {.strategy = c[i].config.split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE, .config = c[i].config}};
        double us = true_us(&r->f, s, &t);
        if (us < best) best = us;
    }
    return best;
}

static void test_choice(void **state) {
    (void)state;
    rig r;
    rig_open(&r, "2112,7168;384,7168", PZ_ACCUM_FIXED);
    rig_run(&r);
    assert_int_equal(r.tally.rows, 6);
    assert_int_equal(r.tally.kept + r.tally.failed + r.tally.wrong, 0);
    assert_int_equal(r.table->rows.n, 6);
    assert_int_equal(r.last_done, r.last_total);
    assert_int_equal(r.last_total, 600);
    for (int i = 0; i < r.table->rows.n; i++) {
        const pz_tuned_row *row = &r.table->rows.at[i];
        assert_int_equal(row->on.strategy, PZ_ZERO_PREZERO);
        assert_int_equal(row->off.strategy, PZ_ZERO_REDUCE);              /* the cheapest way in this rig */
        assert_true(row->on.us <= fastest(&r, &row->shape) * (1 + 1e-9)); /* its variants may be faster still */
        assert_true(row->off.us >= row->on.us && row->off.us <= row->on.us + 0.7 + 1e-9);
        assert_true(row->cublaslt_us == 12);
    }
    rig_close(&r);
}

static bool same(const pz_gemm_config *a, const pz_gemm_config *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static void check_launches(const rig *r) {
    int rows = r->tally.rows;
    assert_true(r->f.by_effort[PZ_EFFORT_QUICK] <= rows * PZ_TUNE_QUICK);
    assert_true(r->f.by_effort[PZ_EFFORT_LONGER] <= rows * PZ_TUNE_LONGER);
    assert_true(r->f.by_effort[PZ_EFFORT_FINAL] <= rows * PZ_TUNE_FINAL);
}

/* Geometries that a list by the model has not, each the fastest of its landscape, are found; where times are noisy,
 * nearly. */
static void test_valleys(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        int m;
        pz_gemm_config best;
    } valleys[] = {
        {"2112,7168", 1, {240, 11, PZ_GEMM_SKINNY, 1, 0, 1}}, {"2112,7168", 1, {224, 11, PZ_GEMM_SKINNY, 1, 0, 0}},
        {"2112,7168", 2, {112, 8, PZ_GEMM_SKINNY, 2, 0, 1}},  {"2112,7168", 4, {208, 12, PZ_GEMM_SKINNY, 1, 0, 1}},
        {"2112,7168", 8, {192, 13, PZ_GEMM_GROUP, 1, 0, 1}},  {"2112,7168", 16, {128, 9, PZ_GEMM_WIDE, 1, 0, 2}},
        {"2112,7168", 32, {192, 9, PZ_GEMM_WIDE, 1, 0, 2}},   {"2112,7168", 64, {64, 6, PZ_GEMM_WIDE, 2, 0, 2}},
        {"2112,7168", 128, {64, 8, PZ_GEMM_WIDE, 1, 3, 2}},   {"384,7168", 1, {80, 23, PZ_GEMM_SKINNY, 3, 0, 0}},
        {"384,7168", 64, {64, 25, PZ_GEMM_WIDE, 1, 0, 2}},    {"7168,2048", 16, {128, 3, PZ_GEMM_WIDE, 1, 4, 1}},
        {"7168,2048", 4, {112, 3, PZ_GEMM_SKINNY, 2, 0, 1}},
    };
    for (size_t i = 0; i < sizeof valleys / sizeof *valleys; i++)
        for (int noisy = 0; noisy < 2; noisy++) {
            rig r;
            rig_open(&r, valleys[i].shape, noisy ? PZ_ACCUM_F32 : PZ_ACCUM_FIXED);
            r.f.valley = &valleys[i].best;
            r.f.noise = noisy ? 0.01 : 0;
            r.plan.batches = &valleys[i].m;
            r.plan.n_batches = 1;
            pz_gemm_shape s = r.shapes.at[0];
            s.m = valleys[i].m;
            pz_gemm_candidate c[PZ_MAX_CANDIDATES];
            int n = pz_gemm_candidates(&r.f.dev, &s, c, PZ_MAX_CANDIDATES);
            for (int k = 0; k < n; k++)
                if (same(&c[k].config, &valleys[i].best)) fail_msg("valley %d is in the list, number %d", (int)i, k);
            rig_run(&r);
            assert_int_equal(r.tally.rows, 1);
            check_launches(&r);
            const pz_gemm_config *found = &r.table->rows.at[0].on.config;
            if (height(&valleys[i].best, found) > (noisy ? 0.03 : 1e-9))
                fail_msg("%s, m %d: tile_n %d, split %d, family %d, warps %d, stages %d, depth %d", valleys[i].shape,
                         s.m, found->tile_n, found->split, found->family, found->warps, found->stages, found->depth);
            rig_close(&r);
        }
}

/* A geometry that no slope leads to is known from rows of the table: of more rows, of fewer, of another accumulator, of
 * its own as it was tuned before. */
static void test_carried(void **state) {
    (void)state;
    static const pz_gemm_config needle = {.tile_n = 80, .split = 13, .family = PZ_GEMM_SKINNY, .warps = 3, .depth = 1};
    static const pz_gemm_shape from[] = {
        {2112, 7168, PZ_DT_BF16, PZ_ACCUM_FIXED, 8}, {2112, 7168, PZ_DT_BF16, PZ_ACCUM_FIXED, 2},
        {2112, 7168, PZ_DT_BF16, PZ_ACCUM_F32, 4},   {2112, 7168, PZ_DT_BF16, PZ_ACCUM_F32, 16},
        {2112, 7168, PZ_DT_BF16, PZ_ACCUM_FIXED, 4}, {384, 7168, PZ_DT_BF16, PZ_ACCUM_FIXED, 4},
        {2112, 7168, PZ_DT_F32, PZ_ACCUM_FIXED, 4}};
    static const int m = 4;
    for (size_t i = 0; i < sizeof from / sizeof *from; i++)
        for (int off = 0; off < 2; off++) {
            rig r;
            pz_error err;
            rig_open(&r, "2112,7168", PZ_ACCUM_FIXED);
            r.f.valley = &needle;
            r.f.needle = true;
            r.plan.batches = &m;
            r.plan.n_batches = 1;
            pz_tuned_row row = {.shape = from[i]};
            row.on = row.off = (pz_gemm_choice){.strategy = PZ_ZERO_SELF, .config = {64, 4, PZ_GEMM_SKINNY, 4, 0, 1}};
            row.on.us = row.off.us = 9;
            row.on.strategy = PZ_ZERO_PREZERO;
            *(off ? &row.off.config : &row.on.config) = needle;
            assert_ok(pz_tuned_put(r.table, &row, &err), &err);
            rig_run(&r);
            check_launches(&r);
            bool other = row.shape.n != 2112 || row.shape.weight != PZ_DT_BF16;
            assert_int_equal(same(&row_of(&r, 2112, 7168, PZ_ACCUM_FIXED, m)->on.config, &needle), !other);
            rig_close(&r);
        }
}

/* Batches are tuned from the largest, so what is found for more rows serves fewer, in whatever order they are told and
 * told twice or not. */
static void test_order(void **state) {
    (void)state;
    static const int mixed[] = {8, 1, 64, 8, 2};
    rig r;
    rig_open(&r, "2112,7168", PZ_ACCUM_FIXED);
    r.plan.batches = mixed;
    r.plan.n_batches = 5;
    rig_run(&r);
    assert_int_equal(r.tally.rows, 4);
    assert_int_equal(r.last_total, 400);
    assert_int_equal(r.last_done, 400);
    check_launches(&r);
    for (int i = 1; i < r.table->rows.n; i++) {
        const pz_tuned_row *fewer = &r.table->rows.at[i - 1], *more = &r.table->rows.at[i];
        pz_tune_case c = {.choice = more->on};
        assert_true(fewer->on.us <= true_us(&r.f, &fewer->shape, &c) * (1 + 1e-9));
    }
    rig_close(&r);
}

/* Each way to be the best wins where it is. */
static void test_kinds(void **state) {
    (void)state;
    static const struct {
        double self, reduce, ticket, memset, whole;
        pz_strategy on, off;
    } kinds[] = {
        {0.1, 0.7, 0.7, 0.7, 50, PZ_ZERO_PREZERO, PZ_ZERO_SELF},
        {0.7, 0.7, 0.1, 0.7, 50, PZ_ZERO_PREZERO, PZ_ZERO_TICKET},
        {0.7, 0.7, 0.7, 0.1, 50, PZ_ZERO_PREZERO, PZ_ZERO_MEMSET},
        {9, 9, 9, 9, 2, PZ_ZERO_PREZERO, PZ_ZERO_NONE},
        {9, 9, 9, 9, -6, PZ_ZERO_NONE, PZ_ZERO_NONE},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        rig r;
        rig_open(&r, "2112,7168", PZ_ACCUM_FIXED);
        r.f.self = kinds[i].self;
        r.f.reduce = kinds[i].reduce;
        r.f.ticket = kinds[i].ticket;
        r.f.memset = kinds[i].memset;
        r.f.whole = kinds[i].whole;
        r.f.noise = 0;
        r.plan.n_batches = 2;
        rig_run(&r);
        const pz_tuned_row *row = row_of(&r, 2112, 7168, PZ_ACCUM_FIXED, 1);
        assert_int_equal(row->on.strategy, kinds[i].on);
        assert_int_equal(row->off.strategy, kinds[i].off);
        rig_close(&r);
    }
}

/* cuBLASLt is chosen where its bits do not matter, and is but a reference where they do. */
static void test_cublaslt(void **state) {
    (void)state;
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_BF16; accum++) {
        rig r;
        rig_open(&r, "2112,7168", (pz_accum)accum);
        r.f.blas = 1;
        rig_run(&r);
        const pz_tuned_row *row = row_of(&r, 2112, 7168, (pz_accum)accum, 8);
        assert_true(row->cublaslt_us == 1);
        if (accum == PZ_ACCUM_FIXED) {
            assert_int_equal(row->on.config.family == PZ_GEMM_CUBLASLT || row->off.config.family == PZ_GEMM_CUBLASLT,
                             0);
        } else {
            assert_int_equal(row->on.config.family, PZ_GEMM_CUBLASLT);
            assert_int_equal(row->off.config.family, PZ_GEMM_CUBLASLT);
            assert_int_equal(row->on.config.stages, 5); /* the number of the best, not "the best" */
            assert_int_equal(row->on.strategy, PZ_ZERO_NONE);
        }
        rig_close(&r);
        rig_open(&r, "2112,7168", (pz_accum)accum);
        r.f.blas = 0; /* a build without it */
        rig_run(&r);
        assert_true(row_of(&r, 2112, 7168, (pz_accum)accum, 8)->cublaslt_us == 0);
        rig_close(&r);
    }
}

static void test_wrong(void **state) {
    (void)state;
    rig r;
    rig_open(&r, "2112,7168", PZ_ACCUM_FIXED);
    r.f.noise = 0; /* what the model ranks first would be the fastest */
    r.f.wrong_first = true;
    rig_run(&r);
    assert_int_equal(r.tally.rows, 3);
    assert_true(r.tally.wrong >= 3);
    for (int i = 0; i < r.table->rows.n; i++) {
        const pz_tuned_row *row = &r.table->rows.at[i];
        pz_gemm_candidate first;
        assert_int_equal(pz_gemm_candidates(&r.f.dev, &row->shape, &first, 1), 1);
        assert_int_not_equal(memcmp(&row->on.config, &first.config, sizeof first.config), 0);
        assert_int_not_equal(memcmp(&row->off.config, &first.config, sizeof first.config), 0);
    }
    char *text;
    pz_error err;
    assert_ok(pz_tune_summary(&r.plan, r.table, &r.tally, &text, &err), &err);
    assert_contains(text,
                    "launches gave WRONG results and were refused; the first: n 2112, k 7168, m 64, fixed, prezero");
    pz_free(text);
    rig_table(&r);
    r.f.all_wrong = true;
    rig_run(&r);
    assert_int_equal(r.tally.rows, 0);
    assert_int_equal(r.tally.failed, 3);
    assert_int_equal(r.table->rows.n, 0);
    rig_close(&r);
}

/* One shape that cannot be measured does not end the run. */
static void test_refused_shape(void **state) {
    (void)state;
    rig r;
    rig_open(&r, "384,7168;2112,7168", PZ_ACCUM_FIXED);
    r.f.refuse_n = 384;
    rig_run(&r);
    assert_int_equal(r.tally.rows, 3);
    assert_int_equal(r.tally.failed, 3);
    char *text;
    pz_error err;
    assert_ok(pz_tune_summary(&r.plan, r.table, &r.tally, &text, &err), &err);
    assert_contains(text, "3 shapes and batches for which no launch works (n is odd)");
    assert_contains(text, "   2112 x 7168   fixed    8  prezero ");
    pz_free(text);
    rig_close(&r);
}

/* ---- the file ---- */
static char *read_text(const char *path) {
    char *text;
    size_t size;
    pz_error err;
    assert_ok(pz_file_read(path, &text, &size, &err), &err);
    return text;
}

/* However a run ends, the file is whole and has what was finished; the next run measures the rest, and what comes out
 * is what one run gives. */
static void test_interrupted(void **state) {
    (void)state;
    char *dir = support_tmp_dir(), *path = support_path(dir, "t.json"), *whole = support_path(dir, "whole.json");
    pz_error err;
    rig r;
    rig_open(&r, "2112,7168;384,7168", PZ_ACCUM_FIXED);
    r.plan.path = whole;
    rig_run(&r);
    int calls = r.f.calls, launches = r.f.launches;
    char *want = read_text(whole);
    for (int at = 1; at <= calls; at += 4) {
        rig_table(&r);
        remove(path);
        r.plan.path = path;
        r.plan.resume = true;
        r.f.fail_at = at;
        r.f.fail_with = at % 8 == 1 ? PZ_E_INTERNAL : PZ_E_NOMEM;
        assert_fails(pz_tune_run(&r.plan, r.table, &r.tally, &err), r.f.fail_with, &err, "fell off");
        int rows = r.tally.rows, done = r.f.launches;
        pz_tuned_free(r.table);
        assert_ok(pz_tuned_load(path, &r.f.dev, &r.table, &err), &err);
        assert_int_equal(r.table->rows.n, rows);
        assert_int_equal(support_count_entries(dir), 2);
        r.f.fail_at = 0;
        r.f.launches = 0;
        r.last_done = 0;
        rig_run(&r);
        assert_int_equal(r.tally.kept, rows);
        assert_int_equal(r.tally.rows, 6 - rows);
        assert_true(r.f.launches <=
                    launches - done + launches / 3); /* no more than the row that was broken off again */
        char *got = read_text(path);
        assert_string_equal(strstr(got, "\"rows\""), strstr(want, "\"rows\""));
        pz_free(got);
    }
    /* nothing left to do: nothing is measured, not even the norm */
    r.f.launches = 0;
    r.plan.hidden = 7168;
    rig_run(&r);
    assert_int_equal(r.f.launches, 0);
    assert_int_equal(r.tally.kept, 6);
    assert_true(isnan(r.table->gate.norm_base));
    /* without resume the rows are measured again, those of other shapes stay */
    pz_vec_free(&r.shapes);
    assert_ok(pz_tune_parse_shapes("384,7168", PZ_ACCUM_FIXED, &r.shapes, &err), &err);
    r.plan.resume = false;
    r.plan.hidden = 0;
    r.last_done = 0;
    r.f.blas = 13;
    rig_run(&r);
    assert_int_equal(r.tally.rows, 3);
    assert_int_equal(r.table->rows.n, 6);
    assert_true(row_of(&r, 384, 7168, PZ_ACCUM_FIXED, 8)->cublaslt_us == 13);
    assert_true(row_of(&r, 2112, 7168, PZ_ACCUM_FIXED, 8)->cublaslt_us == 12);
    /* where the file cannot be written nothing is measured */
    char *nowhere = support_path(dir, "no/t.json");
    r.plan.path = nowhere;
    r.f.launches = 0;
    assert_fails(pz_tune_run(&r.plan, r.table, &r.tally, &err), PZ_E_NOTFOUND, &err, "no/t.json");
    assert_int_equal(r.f.launches, 0);
    pz_free(nowhere);
    pz_free(want);
    rig_close(&r);
    pz_free(path);
    pz_free(whole);
    support_tmp_remove(dir);
}

static void test_open_table(void **state) {
    (void)state;
    char *dir = support_tmp_dir(), *path = support_path(dir, "t.json");
    pz_error err;
    rig r;
    pz_tuned *t;
    int stale = -1;
    rig_open(&r, "2112,7168", PZ_ACCUM_FIXED);
    assert_ok(pz_tune_open_table(&r.f.dev, path, "again", &t, &stale, &err), &err); /* there is no file */
    assert_int_equal(t->rows.n + stale, 0);
    assert_string_equal(t->command, "again");
    pz_tuned_free(t);
    rig_run(&r);
    r.table->gate.fill = 123;
    assert_ok(pz_tuned_save(r.table, path, &err), &err);
    assert_ok(pz_tune_open_table(&r.f.dev, path, "again", &t, &stale, &err), &err);
    assert_int_equal(t->rows.n, 3);
    assert_int_equal(stale, 0);
    assert_string_equal(t->command, "again");
    assert_true(t->gate.fill == 123);
    pz_tuned_free(t);
    pz_device other = r.f.dev;
    other.units = 78;
    assert_ok(pz_tune_open_table(&other, path, "again", &t, &stale, &err), &err);
    assert_int_equal(t->rows.n, 0);
    assert_int_equal(t->units, 78);
    assert_int_equal(stale, 3);
    pz_tuned_free(t);
    assert_ok(pz_file_write(path, "{", 1, &err), &err);
    assert_fails(pz_tune_open_table(&r.f.dev, path, "again", &t, &stale, &err), PZ_E_FORMAT, &err, "t.json");
    assert_null(t);
    rig_close(&r);
    pz_free(path);
    support_tmp_remove(dir);
}

static void test_quick(void **state) {
    (void)state;
    rig r;
    rig_open(&r, "2112,7168", PZ_ACCUM_FIXED);
    rig_run(&r);
    int launches = r.f.launches;
    rig_table(&r);
    r.plan.quick = true;
    rig_run(&r);
    assert_int_equal(r.tally.rows, 3);
    assert_true(r.f.launches < launches * 2 / 3);
    rig_close(&r);
}

/* ---- the gate's constants ---- */
static void test_gate_constants(void **state) {
    (void)state;
    rig r;
    rig_open(&r, "2112,7168", PZ_ACCUM_FIXED);
    r.plan.hidden = 7168;
    r.f.donor.us = 2.25;
    r.f.donor_row = 0.01;
    r.f.fill = 15000;
    r.f.rider = 0.125;
    rig_run(&r);
    const pz_gate_constants *g = &r.table->gate;
    assert_true(fabs(g->norm_base - 2.25) < 1e-6 && fabs(g->norm_row - 0.01) < 1e-6);
    assert_true(fabs(g->rider - 0.125) < 1e-6);
    assert_true(fabs(g->fill - 15000) < 1);
    assert_true(g->handshake > 0 && g->handshake <= 0.9); /* SELF takes 0.9 more, some of it for the fill */
    assert_true(isnan(g->ar_base) && isnan(g->ar_row));   /* there was no all-reduce to measure */
    rig_close(&r);
}

/* ---- collectives ---- */
static void rig_collectives(rig *r) {
    rig_open(r, "2112,7168", PZ_ACCUM_FIXED);
    r->plan.ranks = 4;
    r->plan.ranks_hidden = 7168;
    r->f.steps_base[0] = 3, r->f.steps_row[0] = 0.0625;
    r->f.steps_base[1] = 4.5, r->f.steps_row[1] = 0.03125; /* one step is the faster way up to 48 rows */
    r->f.rider = 0.125;
}

static void test_collectives(void **state) {
    (void)state;
    static const struct {
        double one_base, one_row, two_base, two_row, ci, rider;
        int one_shot;
        double base, row; /* 0, 0: not a line */
    } rows[] = {
        {3, 0.0625, 4.5, 0.03125, 0, 0.125, 48, 0, 0},
        {3, 0.0625, 4.5, 0.03125, 0.25, 0.125, 64, 0, 0}, /* by 0.5 slower at 64 rows, which the intervals allow */
        {3, 0.03, 4.5, 0.03, 0, 0, 256, 3, 0.03},         /* two ranks: both send as much */
        {5, 0.06, 4.5, 0.03, 0, 0.04, 1, 0, 0},           /* slower from the first row on; the rider is noise */
        {4, -0.01, 4.5, -0.01, 0, 1, 256, 4 - 0.01 * (1 + 4 + 8 + 16 + 32 + 48 + 64 + 96 + 128) / 9.0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rig r;
        rig_collectives(&r);
        r.f.steps_base[0] = rows[i].one_base, r.f.steps_row[0] = rows[i].one_row;
        r.f.steps_base[1] = rows[i].two_base, r.f.steps_row[1] = rows[i].two_row;
        r.f.reduce_ci = rows[i].ci;
        r.f.rider = rows[i].rider;
        rig_run(&r);
        assert_int_equal(r.last_done, r.last_total);
        assert_int_equal(r.last_total, 400);
        const pz_tuned_collective *c = pz_tuned_collective_exact(r.table, 4, 7168);
        assert_non_null(c);
        assert_int_equal(c->one_shot, rows[i].one_shot);
        if (rows[i].base > 0)
            assert_true(fabs(c->ar_base - rows[i].base) < 1e-9 && fabs(c->ar_row - rows[i].row) < 1e-9);
        assert_true(c->ar_base > 2 && c->ar_base < 7 && c->ar_row >= 0 && c->ar_row < 0.07);
        assert_true(fabs(c->rider - (rows[i].rider > 0.05 ? rows[i].rider : 0)) < 1e-9);
        assert_true(r.table->gate.ar_base == c->ar_base && r.table->gate.ar_row == c->ar_row);
        rig_close(&r);
    }
}

/* Where the GPUs are not there the rest is tuned all the same, and the summary says why not; wrong sums end the run,
 * which has written its rows. What the table has is kept, and measured again without `resume`. */
static void test_no_collectives(void **state) {
    (void)state;
    pz_error err;
    char *text;
    rig r;
    rig_collectives(&r);
    r.f.reduce_fail_at = 3;
    r.f.reduce_fail_with = PZ_E_UNSUPPORTED;
    rig_run(&r);
    assert_int_equal(r.tally.rows, 3);
    assert_int_equal(r.table->collectives.n, 0);
    assert_true(isnan(r.table->gate.ar_base));
    assert_int_equal(r.last_done, 400 - 100 + 100 * 2 / 11);
    assert_ok(pz_tune_summary(&r.plan, r.table, &r.tally, &text, &err), &err);
    assert_contains(text, "collectives of 4 ranks were not tuned: rank 3: no GPU 3: there are 3\n");
    pz_free(text);

    char *dir = support_tmp_dir(), *path = support_path(dir, "t.json");
    static const pz_status ends[] = {PZ_E_VERIFY, PZ_E_TIMEOUT, PZ_E_NOMEM};
    r.plan.path = path;
    r.plan.resume = true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        rig_table(&r);
        r.f.reduces = 0;
        r.f.reduce_fail_with = ends[i];
        assert_fails(pz_tune_run(&r.plan, r.table, &r.tally, &err), ends[i], &err, "collectives of 4 ranks: rank 3");
        pz_tuned_free(r.table);
        assert_ok(pz_tuned_load(path, &r.f.dev, &r.table, &err), &err);
        assert_int_equal(r.table->rows.n, 3);
        assert_int_equal(r.table->collectives.n, 0);
    }
    r.f.reduce_fail_at = 0; /* and goes on there */
    r.last_done = 0;
    rig_run(&r);
    assert_int_equal(r.tally.kept, 3);
    assert_int_equal(r.last_total, 100);
    pz_tuned *again;
    int stale;
    assert_ok(pz_tune_open_table(&r.f.dev, path, "again", &again, &stale, &err), &err);
    assert_int_equal(again->collectives.n, 1);
    assert_int_equal(again->collectives.at[0].one_shot, 48);
    assert_ok(pz_tune_summary(&r.plan, again, &r.tally, &text, &err), &err);
    assert_contains(text, "all-reduce + norm of 7168 columns over 4 ranks: one step up to 48 rows; ");
    assert_contains(text, "a rider adds 0.12 us\n");
    pz_free(text);
    pz_tuned_free(again);
    r.f.reduces = 0;
    rig_run(&r);
    assert_int_equal(r.f.reduces, 0);
    r.plan.resume = false;
    r.last_done = 0;
    r.f.steps_base[1] = 100;
    rig_run(&r);
    assert_int_equal(r.table->collectives.n, 1);
    assert_int_equal(r.table->collectives.at[0].one_shot, 256);
    rig_close(&r);
    pz_free(path);
    support_tmp_remove(dir);
}

static void test_fit(void **state) {
    (void)state;
    double x[] = {1, 2, 3, 4}, y[] = {3.1, 4.9, 7.1, 8.9}, base = -1, slope = -1;
    assert_true(pz_fit_line(x, y, 4, &base, &slope)); /* by hand: 1.96 x + 1.1 */
    assert_true(fabs(slope - 1.96) < 1e-9 && fabs(base - 1.1) < 1e-9);
    double same[] = {2, 2, 2};
    assert_false(pz_fit_line(same, y, 3, &base, &slope));
    assert_false(pz_fit_line(x, y, 1, &base, &slope));
    assert_false(pz_fit_line(x, y, 0, &base, &slope));
    assert_true(fabs(slope - 1.96) < 1e-9); /* untouched */

    /* noise of 1 % around known constants, many times; the smallest rider is one that every norm hides */
    uint64_t seed = 11;
    pz_error err;
    for (int round = 0; round < 1400; round++) {
        double b = 1 + 3 * pz_rng_unit(&seed), row = 0.02 * pz_rng_unit(&seed),
               fill = 12000 + 60000 * pz_rng_unit(&seed), rider = round % 2 ? 0 : 0.1 + 0.9 * pz_rng_unit(&seed);
        pz_norm_sample s[64];
        int n = 0;
        for (int m = 1; m <= 128; m *= 2)
            for (int64_t bytes = 0; bytes <= 1 << 25; bytes = bytes ? bytes * 8 : 1 << 13) {
                double us = b + row * m;
                if (bytes) us = ridden_us(us, m, bytes, 132, fill) + rider;
                s[n++] = (pz_norm_sample){m, bytes, us * (1 + 0.01 * (2 * pz_rng_unit(&seed) - 1))};
            }
        pz_gate_constants g = {.handshake = 7};
        assert_ok(pz_fit_norm(s, n, 132, &g, &err), &err);
        assert_true(fabs(g.norm_base - b) < 0.03 * b);
        assert_true(fabs(g.norm_row - row) < 0.001);
        assert_true(fabs(g.fill - fill) < 0.03 * fill);
        assert_true(fabs(g.rider - rider) < 0.06);
        assert_true(g.handshake == 7);
    }

    /* what the samples cannot tell is left alone */
    pz_gate_constants g = {.fill = 1, .norm_base = 2, .norm_row = 3, .rider = 4};
    assert_ok(pz_fit_norm(NULL, 0, 132, &g, &err), &err);
    assert_true(g.fill == 1 && g.norm_base == 2 && g.norm_row == 3 && g.rider == 4);
    const pz_norm_sample one[] = {{8, 0, 2.5}, {8, 4096, 2.5}};
    assert_ok(pz_fit_norm(one, 2, 132, &g, &err), &err);
    assert_true(g.fill == 1 && g.norm_base == 2.5 && g.norm_row == 0 && g.rider == 0);
    const pz_norm_sample falling[] = {{1, 0, 3}, {128, 0, 2}};
    assert_ok(pz_fit_norm(falling, 2, 132, &g, &err), &err);
    assert_true(g.norm_base == 2.5 && g.norm_row == 0);

    const pz_zero_sample z[] = {{20000 * 132, 3, 1}, {0, 1.5, 1}, {0, 9, 1}};
    g.fill = 20000;
    assert_ok(pz_fit_handshake(z, 3, 132, &g, &err), &err); /* 1, 0.5 and 8 beyond the fill */
    assert_true(fabs(g.handshake - 1) < 1e-9);
    const pz_zero_sample faster[] = {{0, 1, 2}};
    assert_ok(pz_fit_handshake(faster, 1, 132, &g, &err), &err);
    assert_true(g.handshake == 0);
    g.handshake = 5;
    assert_ok(pz_fit_handshake(faster, 0, 132, &g, &err), &err);
    assert_true(g.handshake == 5);
}

/* ---- what is tuned ---- */
static void test_parse_shapes(void **state) {
    (void)state;
    pz_gemm_shapes s = {0};
    pz_error err;
    assert_ok(pz_tune_parse_shapes("2112,7168;384,7168;384,16", PZ_ACCUM_F32, &s, &err), &err);
    assert_ok(pz_tune_parse_shapes("384,7168", PZ_ACCUM_BF16, &s, &err), &err);
    assert_ok(pz_tune_parse_shapes("384,7168", PZ_ACCUM_F32, &s, &err), &err); /* there already */
    assert_int_equal(s.n, 4);
    assert_true(s.at[0].n == 384 && s.at[0].k == 16 && s.at[1].k == 7168 && s.at[1].accum == PZ_ACCUM_F32);
    assert_true(s.at[2].accum == PZ_ACCUM_BF16 && s.at[3].n == 2112);
    pz_vec_free(&s);
    static const char *const bad[] = {"",     "3",     "3,",     "a,16",     "16,17", "0,16",
                                      "16,0", "-1,16", "16,16;", "16,16,16", "16 16", "99999999999,16"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(pz_tune_parse_shapes(bad[i], PZ_ACCUM_F32, &s, &err), PZ_E_INVAL, &err, "N,K", bad[i]);
    pz_vec_free(&s);
}

static void test_model_shapes(void **state) {
    (void)state;
    pz_graph *g;
    pz_error err;
    pz_model_graph_options o = {.size = sizeof o, .tp = 4};
    assert_ok(pz_graph_from_config(PZ_SOURCE_DIR "/tests/data/configs/kimi-k2", &o, &g, &err), &err);
    pz_gemm_shapes s = {0};
    int hidden;
    assert_ok(pz_tune_shapes(g, &s, &hidden, &err), &err);
    assert_int_equal(hidden, 7168);
    static const int64_t want[][2] = {{384, 7168}, {2112, 7168}, {3072, 1536}, {7168, 2048}, {40960, 7168}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int found = 0;
        for (int k = 0; k < s.n; k++)
            if (s.at[k].n == want[i][0] && s.at[k].k == want[i][1]) found++, assert_int_equal(s.at[k].accum, 0);
        assert_int_equal(found, 1);
    }
    for (int k = 1; k < s.n; k++) assert_true(s.at[k - 1].n <= s.at[k].n);
    pz_vec_free(&s);
    pz_graph_free(g);
}

static void test_public(void **state) {
    (void)state;
    pz_error err;
    pz_tune_result r;
    pz_tune_options o = {.size = sizeof o, .shapes = "64,256"};
    assert_fails(pz_tune(NULL, &r, &err), PZ_E_INVAL, &err, "size");
    assert_fails(pz_tune(&o, NULL, &err), PZ_E_INVAL, &err, "result");
    pz_tune_options bad = o;
    bad.size = 3;
    assert_fails(pz_tune(&bad, &r, &err), PZ_E_INVAL, &err, "size");
    bad = o, bad.model = "somewhere";
    assert_fails(pz_tune(&bad, &r, &err), PZ_E_INVAL, &err, "one of them");
    bad = o, bad.shapes = NULL;
    assert_fails(pz_tune(&bad, &r, &err), PZ_E_INVAL, &err, "one of them");
    bad = o, bad.shapes = "64";
    assert_fails(pz_tune(&bad, &r, &err), PZ_E_INVAL, &err, "\"64\"");
    bad = o, bad.accums = 8;
    assert_fails(pz_tune(&bad, &r, &err), PZ_E_INVAL, &err, "accums is 8");
    static const int zero[] = {4, 0};
    bad = o, bad.batches = zero, bad.n_batches = 2;
    assert_fails(pz_tune(&bad, &r, &err), PZ_E_INVAL, &err, "batch 0 (number 2)");
    bad.n_batches = 0;
    assert_fails(pz_tune(&bad, &r, &err), PZ_E_INVAL, &err, "n_batches is 0");
    bad = o, bad.shapes = NULL, bad.model = "/nonexistent";
    assert_fails(pz_tune(&bad, &r, &err), PZ_E_NOTFOUND, &err, "/nonexistent");
    assert_null(r.summary);
    pz_tune_result_free(&r);
    pz_tune_result_free(NULL);
}

static pz_status run_once(void *ctx) {
    rig *r = ctx;
    pz_tuned *t = NULL;
    pz_tune_tally tally;
    pz_gemm_shapes shapes = {0};
    char *text = NULL;
    pz_error err;
    r->f.calls = 0;
    r->last_done = 0;
    pz_status st = pz_tuned_new(&r->f.dev, "test", &t, &err);
    if (st == PZ_OK) st = pz_tune_parse_shapes("384,7168;2112,7168", PZ_ACCUM_FIXED, &shapes, &err);
    r->plan.shapes = &shapes;
    if (st == PZ_OK) st = pz_tune_run(&r->plan, t, &tally, &err);
    if (st == PZ_OK) st = pz_tune_summary(&r->plan, t, &tally, &text, &err);
    pz_free(text);
    pz_vec_free(&shapes);
    pz_tuned_free(t);
    return st;
}

static void test_memory(void **state) {
    (void)state;
    rig r;
    rig_open(&r, "64,256", PZ_ACCUM_FIXED);
    r.plan.hidden = 7168;
    r.plan.n_batches = 1;
    r.plan.quick = true;
    r.f.donor.us = 2;
    r.f.fill = 15000;
    r.clock.gemm = fake_gemm;
    assert_true(support_alloc_sweep(run_once, &r) > 8);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),       cmocka_unit_test(test_valleys),
        cmocka_unit_test(test_carried),      cmocka_unit_test(test_order),
        cmocka_unit_test(test_kinds),        cmocka_unit_test(test_cublaslt),
        cmocka_unit_test(test_wrong),        cmocka_unit_test(test_refused_shape),
        cmocka_unit_test(test_interrupted),  cmocka_unit_test(test_open_table),
        cmocka_unit_test(test_quick),        cmocka_unit_test(test_gate_constants),
        cmocka_unit_test(test_collectives),  cmocka_unit_test(test_no_collectives),
        cmocka_unit_test(test_fit),          cmocka_unit_test(test_parse_shapes),
        cmocka_unit_test(test_model_shapes), cmocka_unit_test(test_public),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
