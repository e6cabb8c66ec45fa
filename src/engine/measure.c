/* SPDX-License-Identifier: Apache-2.0 */
/* The public side of pz_measure_*: checks, defaults and statistics. The module takes the samples. */
#include "backend/cuda_module.h"
#include "engine/stats.h"
#include "plan/donor.h"

enum {
    DEFAULT_ROUNDS = 7,
    DEFAULT_NORMS = 32,
    DEFAULT_GEMM_N = 2112,
    MAX_COPIES = 4096,
    MAX_WIDTH = 16384,
    MAX_SIDE = 1 << 20
};
static const double default_sample_us = 1000, max_sample_us = 1e6;

/* ---- statistics ---- */
static void finish_times(pz_measure_times *t) {
    t->us = t->lo = t->hi = 0;
    if (t->n < 1) return;
    double sorted[PZ_MEASURE_MAX_ROUNDS];
    memcpy(sorted, t->samples, (size_t)t->n * sizeof *sorted);
    pz_stats_sort(sorted, t->n);
    t->us = pz_stats_median(sorted, t->n);
    pz_stats_median_ci(sorted, t->n, &t->lo, &t->hi);
}

pz_status pz_measure_difference(const pz_measure_times *a, const pz_measure_times *b, pz_measure_times *out,
                                pz_error *err) {
    PZ_NEED(a && b && out, "two series of samples and a place for the result", err);
    if (a->n != b->n || a->n < 1 || a->n > PZ_MEASURE_MAX_ROUNDS)
        return pz_fail(err, PZ_E_INVAL, "pz_measure_difference: %d and %d samples do not pair", a->n, b->n);
    pz_measure_times t = {.n = a->n};
    for (int i = 0; i < t.n; i++) t.samples[i] = b->samples[i] - a->samples[i];
    finish_times(&t);
    *out = t;
    return PZ_OK;
}

/* ---- checks ---- */
static pz_status check_range(const char *function, const char *what, int64_t v, int64_t lo, int64_t hi, pz_error *err) {
    if (v >= lo && v <= hi) return PZ_OK;
    return pz_fail(err, PZ_E_INVAL, "%s: %s is %lld, must be %lld to %lld", function, what, (long long)v, (long long)lo,
                   (long long)hi);
}

/* What both kinds of specification have. */
static pz_status check_sampling(const char *function, int *rounds, double *sample_us, pz_error *err) {
    PZ_TRY(check_range(function, "rounds", *rounds, 0, PZ_MEASURE_MAX_ROUNDS, err));
    if (!(*sample_us >= 0 && *sample_us <= max_sample_us))
        return pz_fail(err, PZ_E_INVAL, "%s: sample_us is %g, must be 0 to %g", function, *sample_us, max_sample_us);
    if (*rounds == 0) *rounds = DEFAULT_ROUNDS;
    if (*sample_us == 0) *sample_us = default_sample_us;
    return PZ_OK;
}

static pz_status check_size(const char *function, size_t given, size_t want, pz_error *err) {
    if (given == want) return PZ_OK;
    return pz_fail(err, PZ_E_INVAL, "%s: the specification's size is %zu, set it to the size of its struct, %zu",
                   function, given, want);
}

static pz_status check_gemm(const char *f, pz_measure_spec *s, const pz_measure_case *cases, int n, pz_error *err) {
    PZ_TRY(check_range(f, "device", s->device, 0, 1023, err));
    PZ_TRY(check_range(f, "m", s->m, 1, MAX_SIDE, err));
    PZ_TRY(check_range(f, "n", s->n, 1, MAX_SIDE, err));
    PZ_TRY(check_range(f, "k", s->k, 16, MAX_WIDTH, err));
    if (s->k % 16) return pz_fail(err, PZ_E_INVAL, "%s: k is %d, must be a multiple of 16", f, s->k);
    PZ_TRY(check_range(f, "copies", s->copies, 0, MAX_COPIES, err));
    PZ_TRY(check_range(f, "the number of cases", n, 1, PZ_MEASURE_MAX_CASES, err));
    for (int i = 0; i < n; i++) {
        PZ_TRY(check_range(f, "accum of a case", cases[i].accum, 0, PZ_ACCUM_BF16, err));
        PZ_TRY(check_range(f, "strategy of a case", cases[i].strategy, 0, PZ_ZERO_TICKET, err));
        PZ_TRY(check_range(f, "family of a case", cases[i].config.family, 0, PZ_GEMM_CUBLASLT, err));
    }
    return check_sampling(f, &s->rounds, &s->sample_us, err);
}

static pz_status check_norm(const char *f, pz_measure_norm_spec *s, const pz_measure_norm_case *cases, int n,
                            pz_error *err) {
    PZ_TRY(check_range(f, "device", s->device, 0, 1023, err));
    PZ_TRY(check_range(f, "m", s->m, 1, MAX_SIDE, err));
    PZ_TRY(check_range(f, "hidden", s->hidden, 8, MAX_WIDTH, err));
    if (s->hidden % 8) return pz_fail(err, PZ_E_INVAL, "%s: hidden is %d, must be a multiple of 8", f, s->hidden);
    PZ_TRY(check_range(f, "gemm_n", s->gemm_n, 0, MAX_SIDE, err));
    PZ_TRY(check_range(f, "copies", s->copies, 0, MAX_COPIES, err));
    PZ_TRY(check_range(f, "the number of cases", n, 1, PZ_MEASURE_MAX_CASES, err));
    for (int i = 0; i < n; i++)
        if (cases[i].zero_bytes % 16 || cases[i].zero_bytes > (size_t)1 << 32)
            return pz_fail(err, PZ_E_INVAL, "%s: a rider of %zu bytes: must be a multiple of 16, at most 4 GiB", f,
                           cases[i].zero_bytes);
    if (s->gemm_n == 0) s->gemm_n = DEFAULT_GEMM_N;
    if (s->copies == 0) s->copies = DEFAULT_NORMS;
    return check_sampling(f, &s->rounds, &s->sample_us, err);
}

static pz_status check_reduce(const char *f, pz_measure_reduce_spec *s, const pz_measure_reduce_case *cases, int n,
                              pz_error *err) {
    PZ_TRY(check_range(f, "device", s->device, 0, 1023, err));
    PZ_TRY(check_range(f, "ranks", s->ranks, 2, PZ_MAX_RANKS, err));
    PZ_TRY(check_range(f, "m", s->m, 1, MAX_SIDE, err));
    PZ_TRY(check_range(f, "hidden", s->hidden, 8, MAX_WIDTH, err));
    if (s->hidden % 8) return pz_fail(err, PZ_E_INVAL, "%s: hidden is %d, must be a multiple of 8", f, s->hidden);
    PZ_TRY(check_range(f, "one_shot", s->one_shot, 0, PZ_GROUP_ROWS, err));
    PZ_TRY(check_range(f, "copies", s->copies, 0, MAX_COPIES, err));
    PZ_TRY(check_range(f, "the number of cases", n, 1, PZ_MEASURE_MAX_CASES, err));
    for (int i = 0; i < n; i++) {
        PZ_TRY(check_range(f, "kind of a case", cases[i].kind, 0, PZ_REDUCE_FUSED_GEMM, err));
        PZ_TRY(check_range(f, "steps of a case", cases[i].steps, 0, 2, err));
        if (cases[i].zero_bytes % 16 || cases[i].zero_bytes > (size_t)1 << 32)
            return pz_fail(err, PZ_E_INVAL, "%s: a rider of %zu bytes: must be a multiple of 16, at most 4 GiB", f,
                           cases[i].zero_bytes);
    }
    PZ_TRY(check_range(f, "gemm_n", s->gemm_n, 0, MAX_SIDE, err));
    if (s->gemm_n == 0) s->gemm_n = DEFAULT_GEMM_N;
    if (s->copies == 0) s->copies = DEFAULT_NORMS;
    return check_sampling(f, &s->rounds, &s->sample_us, err);
}

/* ---- the functions ---- */
pz_status pz_measure_gemm(const pz_measure_spec *spec, pz_measure_case *cases, int n_cases, pz_measure_times *norm,
                          pz_progress_fn progress, void *user, pz_error *err) {
    const pz_cuda_module *module;
    PZ_NEED(spec && cases, "a specification and cases", err);
    PZ_TRY(check_size(__func__, spec->size, sizeof *spec, err));
    pz_measure_spec s = *spec;
    PZ_TRY(check_gemm(__func__, &s, cases, n_cases, err));
    PZ_TRY(pz_cuda_module_load(&module, err));
    pz_measure_times plain = {0};
    PZ_TRY(module->measure_gemm(&s, cases, n_cases, &plain, progress, user, err));
    for (int i = 0; i < n_cases; i++) {
        pz_measure_case *c = &cases[i];
        for (int r = 0; r < c->pair.n; r++) c->gemm.samples[r] = c->pair.samples[r] - plain.samples[r];
        c->gemm.n = c->pair.n;
        finish_times(&c->pair);
        finish_times(&c->gemm);
        c->gbs = c->gemm.us > 0 ? c->bytes / c->gemm.us * 1e-3 : 0;
    }
    finish_times(&plain);
    if (norm) *norm = plain;
    return PZ_OK;
}

pz_status pz_measure_norm(const pz_measure_norm_spec *spec, pz_measure_norm_case *cases, int n_cases,
                          pz_progress_fn progress, void *user, pz_error *err) {
    const pz_cuda_module *module;
    PZ_NEED(spec && cases, "a specification and cases", err);
    PZ_TRY(check_size(__func__, spec->size, sizeof *spec, err));
    pz_measure_norm_spec s = *spec;
    PZ_TRY(check_norm(__func__, &s, cases, n_cases, err));
    PZ_TRY(pz_cuda_module_load(&module, err));
    PZ_TRY(module->measure_norm(&s, cases, n_cases, progress, user, err));
    for (int i = 0; i < n_cases; i++) {
        finish_times(&cases[i].norm);
        finish_times(&cases[i].added);
    }
    return PZ_OK;
}

pz_status pz_measure_reduce(const pz_measure_reduce_spec *spec, pz_measure_reduce_case *cases, int n_cases,
                            pz_progress_fn progress, void *user, pz_error *err) {
    const pz_cuda_module *module;
    PZ_NEED(spec && cases, "a specification and cases", err);
    PZ_TRY(check_size(__func__, spec->size, sizeof *spec, err));
    pz_measure_reduce_spec s = *spec;
    PZ_TRY(check_reduce(__func__, &s, cases, n_cases, err));
    PZ_TRY(pz_cuda_module_load(&module, err));
    PZ_TRY(module->measure_reduce(&s, cases, n_cases, progress, user, err));
    for (int i = 0; i < n_cases; i++) finish_times(&cases[i].times);
    return PZ_OK;
}

pz_status pz_measure_get_device(int device, pz_measure_device *out, pz_error *err) {
    const pz_cuda_module *module;
    PZ_NEED(out, "a place for the description", err);
    PZ_TRY(check_range(__func__, "device", device, 0, 1023, err));
    PZ_TRY(pz_cuda_module_load(&module, err));
    return module->measure_device(device, out, err);
}
