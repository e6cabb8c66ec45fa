/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner on a GPU: its clock, and the public function. */
#include <math.h>
#include <stdio.h>

#include "engine/tune.h"
#include "pass/pass.h"
#include "prezero/kernels.h"

static const int default_batches[] = {1, 2, 4, 8, 16, 32, 64, 128};

/* Columns of the collectives that are tuned with GEMMs given by numbers. */
enum { COLLECTIVE_HIDDEN = 7168 };

/* Weights above which a few copies are far more than the L2 cache. */
enum { LARGE_WEIGHT = 256 << 20, LARGE_COPIES = 4 };

/* ---- the clock ---- */
static pz_status gpu_gemm(void *ctx, const pz_gemm_shape *shape, pz_effort effort, pz_tune_case *cases, int n,
                          pz_progress_fn progress, void *user, pz_error *err) {
    static const struct {
        int rounds, sample_us;
    } efforts[] = {[PZ_EFFORT_QUICK] = {3, 150}, [PZ_EFFORT_LONGER] = {6, 400}, [PZ_EFFORT_FINAL] = {15, 1000}};
    const pz_gpu_clock *gpu = ctx;
    pz_measure_case *c = pz_calloc((size_t)n, sizeof *c);
    if (!c) return PZ_NOMEM(err);
    for (int i = 0; i < n; i++) {
        c[i].accum = cases[i].accum;
        c[i].strategy = cases[i].choice.strategy;
        c[i].config = cases[i].choice.config;
    }
    pz_measure_spec spec = {.size = sizeof spec,
                            .device = gpu->device,
                            .m = shape->m,
                            .n = (int)shape->n,
                            .k = (int)shape->k,
                            .copies = shape->n * shape->k * 2 > LARGE_WEIGHT ? LARGE_COPIES : 0,
                            .rounds = efforts[effort].rounds,
                            .sample_us = efforts[effort].sample_us * (gpu->quick ? 0.5 : 1),
                            .seed = 1};
    pz_status st = pz_measure_gemm(&spec, c, n, NULL, progress, user, err);
    for (int i = 0; i < n && st == PZ_OK; i++) {
        cases[i].status = c[i].status;
        cases[i].choice.config = c[i].status == PZ_OK ? c[i].used : cases[i].choice.config;
        cases[i].choice.us = c[i].gemm.us;
        cases[i].choice.ci = (c[i].gemm.hi - c[i].gemm.lo) / 2;
    }
    pz_free(c);
    return st;
}

static pz_status gpu_norm(void *ctx, int m, int hidden, const int64_t *bytes, int n, double *us, pz_error *err) {
    const pz_gpu_clock *gpu = ctx;
    pz_measure_norm_case *c = pz_calloc((size_t)n, sizeof *c);
    if (!c) return PZ_NOMEM(err);
    for (int i = 0; i < n; i++) {
        c[i].zero_bytes = (size_t)bytes[i];
        c[i].x_norm = 1;
    }
    pz_measure_norm_spec spec = {.size = sizeof spec, .device = gpu->device, .m = m, .hidden = hidden, .seed = 1};
    spec.sample_us = gpu->quick ? 300 : 0;
    pz_status st = pz_measure_norm(&spec, c, n, NULL, NULL, err);
    for (int i = 0; i < n && st == PZ_OK; i++) us[i] = c[i].status == PZ_OK ? c[i].norm.us : NAN;
    pz_free(c);
    return st;
}

static pz_status gpu_reduce(void *ctx, int ranks, int m, int hidden, pz_tune_reduce *cases, int n, pz_error *err) {
    const pz_gpu_clock *gpu = ctx;
    pz_measure_reduce_case *c = pz_calloc((size_t)n, sizeof *c);
    if (!c) return PZ_NOMEM(err);
    for (int i = 0; i < n; i++) {
        c[i].kind = PZ_REDUCE_FUSED;
        c[i].steps = cases[i].steps;
        c[i].zero_bytes = (size_t)cases[i].bytes;
    }
    pz_measure_reduce_spec spec = {
        .size = sizeof spec, .device = gpu->device, .ranks = ranks, .m = m, .hidden = hidden, .rounds = 11, .seed = 1};
    spec.sample_us = gpu->quick ? 300 : 0;
    pz_status st = pz_measure_reduce(&spec, c, n, NULL, NULL, err);
    for (int i = 0; i < n && st == PZ_OK; i++) {
        cases[i].us = c[i].times.us;
        cases[i].ci = (c[i].times.hi - c[i].times.lo) / 2;
        if (c[i].status != PZ_OK) st = pz_fail(err, c[i].status, "%s", c[i].message);
    }
    pz_free(c);
    return st;
}

pz_tune_clock pz_tune_gpu_clock(pz_gpu_clock *gpu) {
    return (pz_tune_clock){.ctx = gpu, .gemm = gpu_gemm, .norm = gpu_norm, .reduce = gpu_reduce};
}

/* ---- what is tuned ---- */
static pz_status check_options(const pz_tune_options *in, pz_tune_options *o, pz_error *err) {
    *o = (pz_tune_options){0};
    if (!in || in->size < sizeof in->size || in->size > sizeof *in)
        return pz_fail(err, PZ_E_INVAL, "pz_tune: options.size must be sizeof(pz_tune_options), %zu", sizeof *in);
    memcpy(o, in, in->size);
    if (!o->batches) {
        o->batches = default_batches;
        o->n_batches = sizeof default_batches / sizeof *default_batches;
    }
    if (!o->accums) o->accums = 1 << PZ_ACCUM_FIXED;
    if (!o->tp) o->tp = 1;
    if (!o->model == !o->shapes) return pz_fail(err, PZ_E_INVAL, "pz_tune: needs a model or shapes, one of them");
    if (o->accums < 0 || o->accums >> (PZ_ACCUM_BF16 + 1))
        return pz_fail(err, PZ_E_INVAL, "pz_tune: accums is %d, expected bits 1 << PZ_ACCUM_x", o->accums);
    if (o->n_batches < 1) return pz_fail(err, PZ_E_INVAL, "pz_tune: n_batches is %d, must be 1 or more", o->n_batches);
    for (int i = 0; i < o->n_batches; i++)
        if (o->batches[i] < 1 || o->batches[i] > 65536)
            return pz_fail(err, PZ_E_INVAL, "pz_tune: batch %d (number %d), expected 1 to 65536", o->batches[i], i + 1);
    return PZ_OK;
}

static pz_status model_shapes(const pz_tune_options *o, pz_accum accum, pz_gemm_shapes *shapes, int *hidden,
                              pz_error *err) {
    pz_model_graph_options mo = {.size = sizeof mo, .tp = o->tp, .accum = accum};
    pz_graph *g = NULL;
    PZ_TRY(pz_graph_from_config(o->model, &mo, &g, err));
    pz_status st = pz_passes_run(g, NULL, NULL, err);
    if (st == PZ_OK) st = pz_tune_shapes(g, shapes, hidden, err);
    pz_graph_free(g);
    return st;
}

static pz_status gather_shapes(const pz_tune_options *o, pz_gemm_shapes *shapes, int *hidden, pz_error *err) {
    *hidden = 0;
    for (int a = PZ_ACCUM_FIXED; a <= PZ_ACCUM_BF16; a++) {
        if (!(o->accums >> a & 1)) continue;
        if (o->model)
            PZ_TRY(model_shapes(o, (pz_accum)a, shapes, hidden, err));
        else
            PZ_TRY(pz_tune_parse_shapes(o->shapes, (pz_accum)a, shapes, err));
    }
    if (!shapes->n) return pz_fail(err, PZ_E_NOTFOUND, "%s: has no GEMM whose K is a multiple of 16", o->model);
    for (int i = 0; o->shapes && i < shapes->n; i++)
        if (shapes->at[i].k > *hidden) *hidden = (int)shapes->at[i].k; /* the width of the norm before it */
    if (*hidden % 8 || *hidden > 16384) *hidden = 0;
    return PZ_OK;
}

/* ---- all of it ---- */
static pz_status tune(const pz_tune_options *o, pz_tune_plan *plan, pz_tune_result *r, pz_error *err) {
    pz_measure_device info;
    pz_device dev;
    pz_tuned *table = NULL;
    pz_tune_tally tally;
    PZ_TRY(pz_measure_get_device(o->device, &info, err));
    pz_device_gpu(info.product, info.sm, info.units, &dev);
    char path[PZ_DEVICE_NAME + 16];
    snprintf(path, sizeof path, "tuned/%s.json", dev.name);
    r->path = pz_strdup(o->path ? o->path : path);
    if (!r->path) return PZ_NOMEM(err);
    plan->dev = &dev;
    plan->path = r->path;
    pz_status st = pz_tune_open_table(&dev, r->path, o->command, &table, &r->stale, err);
    if (st == PZ_OK) st = pz_tune_run(plan, table, &tally, err);
    if (st == PZ_OK) st = pz_tune_summary(plan, table, &tally, &r->summary, err);
    if (st == PZ_OK) {
        r->rows = tally.rows;
        r->kept = tally.kept;
        r->failed = tally.failed;
        r->wrong = tally.wrong;
    }
    pz_tuned_free(table);
    plan->dev = NULL;
    return st;
}

pz_status pz_tune(const pz_tune_options *opts, pz_tune_result *result, pz_error *err) {
    PZ_NEED(result, "a place for the result", err);
    *result = (pz_tune_result){0};
    pz_tune_options o;
    PZ_TRY(check_options(opts, &o, err));
    pz_gemm_shapes shapes = {0};
    pz_gpu_clock gpu = {.device = o.device, .quick = o.quick != 0};
    pz_tune_clock clock = pz_tune_gpu_clock(&gpu);
    pz_tune_plan plan = {.clock = &clock,
                         .shapes = &shapes,
                         .batches = o.batches,
                         .n_batches = o.n_batches,
                         .ranks = o.tp,
                         .quick = o.quick != 0,
                         .resume = o.resume != 0,
                         .progress = o.progress,
                         .user = o.user};
    pz_status st = gather_shapes(&o, &shapes, &plan.hidden, err);
    plan.ranks_hidden = o.model ? plan.hidden : COLLECTIVE_HIDDEN;
    if (plan.ranks_hidden == 0) plan.ranks = 1;
    if (st == PZ_OK) st = tune(&o, &plan, result, err);
    pz_vec_free(&shapes);
    if (st != PZ_OK) pz_tune_result_free(result);
    return st;
}

void pz_tune_result_free(pz_tune_result *result) {
    if (!result) return;
    pz_free(result->path);
    pz_free(result->summary);
    *result = (pz_tune_result){0};
}
