/* SPDX-License-Identifier: Apache-2.0 */
/* Which configuration a case stands for. */
#include <math.h>
#include <stdio.h>

#include "backend/cuda/measure/bench.h"
#include "plan/cost.h"

enum { FINALISTS = 4, STEPS = 2, FINAL_ROUNDS = 5, MAX_TRIED = 256, QUICK_REPLAYS = 3 };
static const double final_us = 500;

/* ---- without measuring ---- */
static pz_gemm_shape shape_of(const pz_bench *b, const pz_measure_case *c) {
    const pz_measure_spec *s = b->spec;
    return (pz_gemm_shape){.n = s->n, .k = s->k, .weight = PZ_DT_BF16, .accum = c->accum, .m = s->m};
}

/* What the library has chosen for this strategy. Where it has chosen another one that splits too, the geometry of that
 * one, so that all else is equal. */
static pz_gemm_config choose(const pz_bench *b, const pz_measure_case *c) {
    pz_gemm_shape shape = shape_of(b, c);
    pz_gemm_choices choices = pz_gemm_choose(&b->device, &shape);
    const pz_gemm_choice *both[] = {&choices.on, &choices.off};
    bool split = c->strategy != PZ_ZERO_NONE;
    for (int i = 0; i < 2; i++)
        if (both[i]->strategy == c->strategy) return both[i]->config;
    for (int i = 0; i < 2; i++)
        if (split && both[i]->config.split > 1) return both[i]->config;
    return pz_gemm_model_for(&b->device, &shape, c->strategy);
}

/* ---- the short run ---- */
typedef struct finalist {
    pz_bench_entry entry;
    double us;
} finalist;

typedef struct search {
    pz_bench *bench;
    const pz_measure_case *c;
    pz_gemm_config configs[MAX_TRIED];
    int n_configs, n;
    finalist at[FINALISTS]; /* ascending */
    pz_error last;          /* why a configuration was not taken */
} search;

static void add(search *s, const pz_gemm_config *config) {
    for (int i = 0; i < s->n_configs; i++)
        if (memcmp(&s->configs[i], config, sizeof *config) == 0) return;
    if (s->n_configs < MAX_TRIED) s->configs[s->n_configs++] = *config;
}

static pz_status collect(search *s, pz_error *err) {
    pz_bench *b = s->bench;
    if (s->c->config.family == PZ_GEMM_CUBLASLT) {
        pz_rival *rival;
        PZ_TRY(pz_bench_rival(b, s->c->accum, &rival, err));
        int n = pz_rival_heuristics(rival);
        for (int i = 0; i < n; i++) add(s, &(pz_gemm_config){.split = 1, .family = PZ_GEMM_CUBLASLT, .stages = i});
        return PZ_OK;
    }
    pz_gemm_candidate candidates[PZ_MAX_CANDIDATES];
    pz_gemm_shape shape = shape_of(b, s->c);
    bool split = s->c->strategy != PZ_ZERO_NONE;
    int n = pz_gemm_candidates(&b->device, &shape, candidates, PZ_MAX_CANDIDATES);
    pz_gemm_config chosen = choose(b, s->c);
    add(s, &chosen);
    for (int i = 0; i < n; i++)
        if ((candidates[i].config.split > 1) == split) add(s, &candidates[i].config);
    return PZ_OK;
}

/* One step away from the fastest, and their other depths. */
static void collect_near(search *s) {
    pz_gemm_shape shape = shape_of(s->bench, s->c);
    pz_gemm_config to[PZ_MAX_NEIGHBOURS], depths[PZ_MAX_VARIANTS];
    for (int i = 0; i < s->n; i++) {
        const pz_gemm_config *from = &s->at[i].entry.used;
        int n = pz_gemm_neighbours(&s->bench->device, &shape, from, to),
            variants = pz_gemm_variants(&shape, from, depths);
        for (int k = 0; k < n; k++) add(s, &to[k]);
        for (int k = 0; k < variants; k++) add(s, &depths[k]);
    }
}

/* Times one configuration and keeps it if it is among the fastest. One that does not fit, or is wrong, is passed over.
 */
static pz_status try_one(search *s, const pz_gemm_config *config, pz_error *err) {
    pz_bench_entry e;
    double us = INFINITY;
    pz_status st = pz_bench_prepare(s->bench, s->c, config, &e, &s->last);
    if (st == PZ_OK) {
        e.chain.replays = QUICK_REPLAYS;
        st = pz_lab_sample(&s->bench->lab, &e.chain, &us, &s->last);
    }
    if (st != PZ_OK || (s->n == FINALISTS && us >= s->at[FINALISTS - 1].us)) {
        pz_bench_entry_free(&e);
        return pz_lab_wait(&s->bench->lab, err);
    }
    if (s->n == FINALISTS) pz_bench_entry_free(&s->at[--s->n].entry);
    int at = s->n++;
    for (; at > 0 && s->at[at - 1].us > us; at--) s->at[at] = s->at[at - 1];
    s->at[at] = (finalist){.entry = e, .us = us};
    return PZ_OK;
}

/* The fastest of the finalists, by their best of several rounds. */
static pz_status decide(search *s, int *best, pz_error *err) {
    pz_lab *lab = &s->bench->lab;
    for (int i = 0; i < s->n; i++) {
        PZ_TRY(pz_lab_calibrate(lab, &s->at[i].entry.chain, final_us, err));
        s->at[i].us = INFINITY;
    }
    for (int round = 0; round < FINAL_ROUNDS; round++)
        for (int i = 0; i < s->n; i++) {
            double us;
            PZ_TRY(pz_lab_sample(lab, &s->at[i].entry.chain, &us, err));
            if (us < s->at[i].us) s->at[i].us = us;
        }
    *best = 0;
    for (int i = 1; i < s->n; i++)
        if (s->at[i].us < s->at[*best].us) *best = i;
    return PZ_OK;
}

static pz_status run_search(search *s, pz_bench_entry *out, pz_error *err) {
    int best = 0, tried = 0;
    PZ_TRY(collect(s, err));
    for (int step = 0; step <= STEPS; step++) {
        if (step > 0) collect_near(s);
        for (; tried < s->n_configs; tried++) PZ_TRY(try_one(s, &s->configs[tried], err));
    }
    if (s->n == 0) {
        if (s->n_configs == 0) return pz_fail(err, PZ_E_UNSUPPORTED, "no configuration fits this shape");
        return pz_fail(err, s->last.code, "none of %d configurations: %s", s->n_configs, s->last.msg);
    }
    if (s->n > 1) PZ_TRY(decide(s, &best, err));
    *out = s->at[best].entry;
    s->at[best].entry = (pz_bench_entry){0};
    return PZ_OK;
}

static pz_status fastest(pz_bench *b, pz_measure_case *c, pz_bench_entry *out, pz_error *err) {
    search *s = pz_calloc(1, sizeof *s);
    if (!s) return PZ_NOMEM(err);
    s->bench = b;
    s->c = c;
    pz_status st = run_search(s, out, err);
    c->tried = s->n_configs;
    for (int i = 0; i < s->n; i++) pz_bench_entry_free(&s->at[i].entry);
    pz_free(s);
    return st;
}

/* ---- a case ---- */
static void describe(pz_bench *b, pz_measure_case *c) {
    pz_rival *rival;
    if (c->used.family == PZ_GEMM_CUBLASLT) {
        if (pz_bench_rival(b, c->accum, &rival, NULL) == PZ_OK)
            pz_rival_name(rival, c->used.stages, c->name, sizeof c->name);
        return;
    }
    pz_str text = {0};
    char *name = NULL;
    pz_gemm_config_text(&c->used, &text);
    if (pz_str_take(&text, &name, NULL) == PZ_OK) snprintf(c->name, sizeof c->name, "%s", name);
    pz_free(name);
}

pz_status pz_bench_choose(pz_bench *b, pz_measure_case *c, pz_bench_entry *out, pz_error *err) {
    *out = (pz_bench_entry){0};
    int family = c->config.family;
    if ((family == PZ_GEMM_DEFAULT || family == PZ_GEMM_CUBLASLT) && c->config.stages == PZ_MEASURE_BEST) {
        PZ_TRY(fastest(b, c, out, err));
    } else {
        pz_gemm_config config = family == PZ_GEMM_DEFAULT ? choose(b, c) : c->config;
        c->used = config;
        if (config.family == PZ_GEMM_CUBLASLT) {
            pz_rival *rival;
            PZ_TRY(pz_bench_rival(b, c->accum, &rival, err));
            if (config.stages < 0 || config.stages >= pz_rival_heuristics(rival))
                return pz_fail(err, PZ_E_INVAL,
                               "cuBLASLt has %d heuristics for this shape, numbered from 0; %d is none",
                               pz_rival_heuristics(rival), config.stages);
        }
        PZ_TRY(pz_bench_prepare(b, c, &config, out, err));
    }
    c->used = out->used;
    describe(b, c);
    return PZ_OK;
}
