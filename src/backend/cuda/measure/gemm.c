/* SPDX-License-Identifier: Apache-2.0 */
/* pz_measure_gemm: the cases of one shape take turns. */
#include <stdio.h>

#include "backend/cuda/measure/bench.h"
#include "backend/cuda/measure/measure.h"

typedef struct race {
    pz_bench bench;
    pz_measure_case *cases;
    pz_bench_entry *entries; /* [n] */
    int n, *order;           /* order: [n + 1], n stands for the plain norm */
    pz_measure_times *norm;
    pz_progress_fn progress;
    void *user;
    int done, total;
} race;

static void advance(race *r) {
    r->done++;
    if (r->progress) r->progress(r->user, r->done, r->total);
}

static void give_up(pz_measure_case *c, const pz_error *why) {
    c->status = why->code;
    snprintf(c->message, sizeof c->message, "%.*s", (int)sizeof c->message - 1, why->msg);
    c->pair.n = 0;
}

static void reset(const race *r, pz_measure_case *c) {
    const pz_measure_spec *s = r->bench.spec;
    double out = c->accum == PZ_ACCUM_BF16 ? 2 : 4, m = s->m, n = s->n, k = s->k;
    c->status = PZ_OK;
    c->message[0] = c->name[0] = 0;
    c->used = c->config;
    c->tried = 0;
    c->gemm = c->pair = (pz_measure_times){0};
    c->bytes = 2 * n * k + 2 * m * k + out * m * n;
    c->gbs = c->max_error = 0;
}

/* A failure of the device itself ends the call; one of the case, only the case. */
static pz_status prepare(race *r, int i, pz_error *err) {
    pz_measure_case *c = &r->cases[i];
    pz_error why;
    reset(r, c);
    pz_status st = pz_bench_choose(&r->bench, c, &r->entries[i], &why);
    if (st == PZ_OK) st = pz_lab_calibrate(&r->bench.lab, &r->entries[i].chain, r->bench.spec->sample_us, &why);
    if (st != PZ_OK) give_up(c, &why);
    advance(r);
    return pz_lab_wait(&r->bench.lab, err);
}

static pz_status sample_norm(race *r, pz_error *err) {
    double *us = &r->norm->samples[r->norm->n++];
    return pz_lab_sample(&r->bench.lab, &r->bench.plain, us, err);
}

static pz_status sample_case(race *r, int i, bool last, pz_error *err) {
    pz_measure_case *c = &r->cases[i];
    pz_error why;
    if (c->status != PZ_OK) return PZ_OK;
    PZ_TRY(pz_bench_poison(&r->bench, err));
    PZ_TRY(pz_lab_sample(&r->bench.lab, &r->entries[i].chain, &c->pair.samples[c->pair.n], err));
    c->pair.n++;
    if (last && pz_bench_compare(&r->entries[i], &why) != PZ_OK) give_up(c, &why);
    return PZ_OK;
}

static pz_status run(race *r, const pz_measure_spec *spec, pz_error *err) {
    PZ_TRY(pz_bench_open(&r->bench, spec, err));
    r->entries = pz_calloc((size_t)r->n, sizeof *r->entries);
    r->order = pz_calloc((size_t)r->n + 1, sizeof *r->order);
    if (!r->entries || !r->order) return PZ_NOMEM(err);
    for (int i = 0; i < r->n; i++) PZ_TRY(prepare(r, i, err));
    uint64_t rng = spec->seed;
    for (int round = 0; round < spec->rounds; round++) {
        pz_lab_shuffle(&rng, r->order, r->n + 1);
        for (int i = 0; i <= r->n; i++)
            PZ_TRY(r->order[i] == r->n ? sample_norm(r, err)
                                       : sample_case(r, r->order[i], round == spec->rounds - 1, err));
        advance(r);
    }
    for (int i = 0; i < r->n; i++) r->cases[i].max_error = r->entries[i].max_error;
    return PZ_OK;
}

pz_status pz_cuda_measure_gemm(const pz_measure_spec *spec, pz_measure_case *cases, int n_cases, pz_measure_times *norm,
                               pz_progress_fn progress, void *user, pz_error *err) {
    race r = {.cases = cases,
              .n = n_cases,
              .norm = norm,
              .progress = progress,
              .user = user,
              .total = n_cases + spec->rounds};
    pz_status st = run(&r, spec, err);
    for (int i = 0; i < n_cases && r.entries; i++) pz_bench_entry_free(&r.entries[i]);
    pz_bench_close(&r.bench);
    pz_free(r.entries);
    pz_free(r.order);
    return st;
}
