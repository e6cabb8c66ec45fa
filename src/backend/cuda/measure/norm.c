/* SPDX-License-Identifier: Apache-2.0 */
/* pz_measure_norm: chains of norms, alone or each with a GEMM behind it, with riders, and those without as what they
 * are compared with. */
#include <stdio.h>

#include "backend/cuda/measure/follower.h"
#include "backend/cuda/measure/kernels.h"
#include "backend/cuda/measure/lab.h"
#include "backend/cuda/measure/measure.h"
#include "backend/cuda/norm/norm.h"
#include "plan/tuned.h"

enum { ALIGN = 256, POISON = 0x7f };
#define POISON_WORD 0x7f7f7f7fu
static const size_t most_zeroed = (size_t)4 << 30; /* bytes; beyond that links share what they zero */
static const float eps = 1e-6f;

typedef struct norms {
    pz_lab lab;
    const pz_measure_norm_spec *spec;
    size_t x_stride, zero_stride; /* zero_stride: with room behind that must stay as it is */
    int targets;
    unsigned char *x, *zero;
    void *res, *r, *y;
    float *w, *x_norm;
    unsigned long long *count;
    pz_follower follower; /* where a case has a GEMM and no_gemm is OK */
    pz_error no_gemm;
} norms;

/* One chain: of a case, or the plain one of the cases that are compared with it. */
typedef struct runner {
    norms *n;
    pz_measure_norm_case *c;
    pz_measure_norm_case own; /* c of a plain one */
    pz_lab_chain chain;
} runner;

typedef struct race {
    norms n;
    runner *runners; /* [cases], then the plain ones: plain_kind */
    int n_cases, n_runners, *order;
    bool gemm; /* some case has one */
} race;

static int plain_kind(const pz_measure_norm_case *c) {
    return (c->serial != 0) + (c->gemm ? 2 + 2 * (c->shared != 0) : 0);
}

/* How many places the links of a case zero, and the GEMM behind them. */
static int count_targets(const norms *n, const pz_measure_norm_case *c) {
    return c->shared ? 1 : c->gemm ? n->spec->copies : n->targets;
}
static pz_follower follower_of(const norms *n, const pz_measure_norm_case *c) {
    pz_follower f = n->follower;
    if (c->shared) f.y_stride = 0;
    return f;
}

/* What the rider of a link zeroes first: in front of a GEMM, its output. */
static unsigned char *target(const norms *n, const pz_measure_norm_case *c, int link) {
    size_t at = (size_t)(link % count_targets(n, c));
    return c->gemm ? n->follower.y + at * n->follower.y_stride : n->zero + at * n->zero_stride;
}

static pz_status run_link(void *ctx, int link, pz_error *err) {
    runner *u = ctx;
    norms *n = u->n;
    int hidden = n->spec->hidden;
    size_t bytes = u->c->zero_bytes;
    pz_norm_args a = {.size = sizeof a,
                      .x = {.data = n->x + (size_t)link * n->x_stride, .ld = hidden, .elem = PZ_ELEM_BF16},
                      .res = {.data = n->res, .ld = hidden, .elem = PZ_ELEM_BF16},
                      .w = n->w,
                      .eps = eps,
                      .y = {.data = n->y, .ld = hidden, .elem = PZ_ELEM_BF16},
                      .r = {.data = n->r, .ld = hidden, .elem = PZ_ELEM_BF16},
                      .x_norm = u->c->x_norm || u->c->gemm ? n->x_norm : NULL,
                      .m = n->spec->m,
                      .hidden = hidden,
                      .zero = bytes ? target(n, u->c, link) : NULL,
                      .zero_bytes = bytes,
                      .late = u->c->late,
                      .dependent = !u->c->serial && link > 0,
                      .stream = n->lab.stream};
    PZ_TRY(pz_cuda_rms_norm(&a, err));
    if (!u->c->gemm) return PZ_OK;
    const pz_follower f = follower_of(n, u->c);
    return pz_follower_run(&f, link, n->y, n->x_norm, !u->c->serial, err);
}

static pz_status alloc_data(norms *n, size_t zero_bytes, pz_error *err) {
    const pz_measure_norm_spec *s = n->spec;
    size_t links = (size_t)s->copies, targets;
    pz_lab *lab = &n->lab;
    n->x_stride = pz_align_up((size_t)s->m * (size_t)s->hidden * 2, ALIGN);
    n->zero_stride = pz_align_up(zero_bytes, ALIGN) + ALIGN;
    targets = most_zeroed / n->zero_stride;
    targets = targets < 1 ? 1 : targets > links ? links : targets;
    n->targets = (int)targets;
    PZ_TRY(pz_lab_alloc(lab, "the inputs", links * n->x_stride, (void **)&n->x, err));
    PZ_TRY(pz_lab_alloc(lab, "what is zeroed", targets * n->zero_stride, (void **)&n->zero, err));
    PZ_TRY(pz_lab_alloc(lab, "the residual", n->x_stride, &n->res, err));
    PZ_TRY(pz_lab_alloc(lab, "the residual", n->x_stride, &n->r, err));
    PZ_TRY(pz_lab_alloc(lab, "the output", n->x_stride, &n->y, err));
    PZ_TRY(pz_lab_alloc(lab, "the weight", (size_t)s->hidden * sizeof(float), (void **)&n->w, err));
    PZ_TRY(pz_lab_alloc(lab, "the norms of the rows", (size_t)s->m * sizeof(float), (void **)&n->x_norm, err));
    PZ_TRY(pz_lab_alloc(lab, "the check", sizeof *n->count, (void **)&n->count, err));
    PZ_TRY(pz_lab_fill_bf16(n->x, (int64_t)(links * n->x_stride / 2), 0, 1, s->seed + 1, lab->stream, err));
    PZ_TRY(pz_lab_fill_bf16(n->res, (int64_t)(n->x_stride / 2), 0, 1, s->seed + 2, lab->stream, err));
    return pz_lab_fill_f32(n->w, s->hidden, 1, 0.5f, s->seed + 3, lab->stream, err);
}

/* As a plan on this device would choose it. */
static pz_status open_gemm(norms *n, pz_error *err) {
    const pz_measure_norm_spec *s = n->spec;
    pz_device device;
    pz_tuned *tuned;
    pz_device_gpu(n->lab.product, n->lab.sm, n->lab.units, &device);
    PZ_TRY(pz_tuned_open(&device, &tuned, err));
    pz_device_tune(&device, tuned);
    pz_status st = pz_follower_open(&n->lab, &device, s->m, s->gemm_n, s->hidden, s->copies, n->zero_stride,
                                    s->seed + 4, &n->follower, err);
    pz_tuned_free(tuned);
    return st;
}

static pz_status count_other(norms *n, const void *p, size_t bytes, uint32_t value, unsigned long long *out,
                             pz_error *err) {
    cudaStream_t stream = n->lab.stream;
    PZ_CUDA_TRY(cudaMemsetAsync(n->count, 0, sizeof *n->count, stream), err);
    PZ_TRY(pz_lab_count_other(p, bytes, value, n->count, stream, err));
    PZ_CUDA_TRY(cudaMemcpyAsync(out, n->count, sizeof *out, cudaMemcpyDeviceToHost, stream), err);
    return pz_lab_wait(&n->lab, err);
}

/* Replays over poisoned memory: the rider's range has to be zero, but for what the GEMM has added into it, and what is
 * behind it as it was. */
static pz_status check_rider(runner *u, pz_error *err) {
    norms *n = u->n;
    const pz_measure_norm_spec *s = n->spec;
    const bool gemm = u->c->gemm;
    unsigned char *zero = target(n, u->c, 0);
    size_t bytes = u->c->zero_bytes, stride = gemm ? n->follower.y_stride : n->zero_stride;
    size_t targets = (size_t)count_targets(n, u->c);
    size_t sums = gemm ? (size_t)s->m * (size_t)s->gemm_n * 4 : 0;
    unsigned long long dirty = 0, harmed = 0;
    if (bytes == 0) return PZ_OK;
    PZ_CUDA_TRY(cudaMemsetAsync(zero, POISON, targets * stride, n->lab.stream), err);
    PZ_TRY(pz_lab_replay(&n->lab, &u->chain, err));
    if (bytes > sums) PZ_TRY(count_other(n, zero + sums, bytes - sums, 0, &dirty, err));
    PZ_TRY(count_other(n, zero + bytes, stride - bytes, POISON_WORD, &harmed, err));
    if (dirty || harmed)
        return pz_fail(err, PZ_E_VERIFY, "a rider of %zu bytes left %llu words that are not zero and wrote %llu behind",
                       bytes, dirty, harmed);
    if (!gemm) return PZ_OK;
    const pz_follower f = follower_of(n, u->c);
    return pz_follower_check(&f, s->copies - 1, n->y, n->x_norm, err);
}

/* That the GEMM of a case can be run, and its rider is large enough for it. */
static pz_status check_gemm(const runner *u, pz_error *err) {
    const norms *n = u->n;
    size_t output, bytes = u->c->zero_bytes;
    if (!u->c->gemm) return PZ_OK;
    if (n->no_gemm.code != PZ_OK) return pz_fail(err, n->no_gemm.code, "%s", n->no_gemm.msg);
    pz_follower_zero(&n->follower, 0, &output);
    if (bytes == 0 || bytes >= output) return PZ_OK;
    return pz_fail(err, PZ_E_INVAL, "a rider of %zu bytes: the GEMM behind it needs %zu", bytes, output);
}

static pz_status prepare(runner *u, pz_error *err) {
    norms *n = u->n;
    pz_measure_norm_case *c = u->c;
    pz_error why;
    c->status = PZ_OK;
    c->message[0] = 0;
    c->norm = c->added = (pz_measure_times){0};
    pz_status st = check_gemm(u, &why);
    if (st == PZ_OK) st = pz_lab_capture(&n->lab, n->spec->copies, run_link, u, &u->chain, &why);
    if (st == PZ_OK) st = check_rider(u, &why);
    if (st == PZ_OK) st = pz_lab_calibrate(&n->lab, &u->chain, n->spec->sample_us, &why);
    if (st != PZ_OK) {
        c->status = why.code;
        snprintf(c->message, sizeof c->message, "%.*s", (int)sizeof c->message - 1, why.msg);
    }
    return pz_lab_wait(&n->lab, err);
}

static pz_status set_up(race *r, const pz_measure_norm_spec *spec, pz_measure_norm_case *cases, pz_error *err) {
    size_t most = 0;
    for (int i = 0; i < r->n_cases; i++) {
        if (cases[i].zero_bytes > most) most = cases[i].zero_bytes;
        r->gemm = r->gemm || cases[i].gemm;
    }
    r->n.spec = spec;
    PZ_TRY(pz_lab_open(&r->n.lab, spec->device, err));
    PZ_TRY(alloc_data(&r->n, most, err));
    if (r->gemm) r->n.no_gemm.code = open_gemm(&r->n, &r->n.no_gemm);
    r->n_runners = r->n_cases + (r->gemm ? 6 : 2);
    r->runners = pz_calloc((size_t)r->n_runners, sizeof *r->runners);
    r->order = pz_calloc((size_t)r->n_runners, sizeof *r->order);
    if (!r->runners || !r->order) return PZ_NOMEM(err);
    for (int i = 0; i < r->n_runners; i++) {
        runner *u = &r->runners[i];
        u->n = &r->n;
        u->own.serial = (i - r->n_cases) & 1;
        u->own.gemm = i - r->n_cases >= 2;
        u->own.shared = i - r->n_cases >= 4;
        u->c = i < r->n_cases ? &cases[i] : &u->own;
        PZ_TRY(prepare(u, err));
    }
    return PZ_OK;
}

static pz_status run(race *r, const pz_measure_norm_spec *spec, pz_measure_norm_case *cases, pz_progress_fn progress,
                     void *user, pz_error *err) {
    PZ_TRY(set_up(r, spec, cases, err));
    uint64_t rng = spec->seed;
    for (int round = 0; round < spec->rounds; round++) {
        pz_lab_shuffle(&rng, r->order, r->n_runners);
        for (int i = 0; i < r->n_runners; i++) {
            runner *u = &r->runners[r->order[i]];
            if (u->c->status != PZ_OK) continue;
            PZ_TRY(pz_lab_sample(&r->n.lab, &u->chain, &u->c->norm.samples[round], err));
            u->c->norm.n = round + 1;
        }
        if (progress) progress(user, round + 1, spec->rounds);
    }
    for (int i = 0; i < r->n_cases; i++) {
        const pz_measure_times *plain = &r->runners[r->n_cases + plain_kind(&cases[i])].own.norm;
        if (plain->n != cases[i].norm.n) continue;
        for (int s = 0; s < plain->n; s++) cases[i].added.samples[s] = cases[i].norm.samples[s] - plain->samples[s];
        cases[i].added.n = plain->n;
    }
    return PZ_OK;
}

pz_status pz_cuda_measure_norm(const pz_measure_norm_spec *spec, pz_measure_norm_case *cases, int n_cases,
                               pz_progress_fn progress, void *user, pz_error *err) {
    race r = {.n_cases = n_cases};
    pz_status st = run(&r, spec, cases, progress, user, err);
    for (int i = 0; i < r.n_runners && r.runners; i++) pz_lab_chain_free(&r.runners[i].chain);
    pz_lab_close(&r.n.lab);
    pz_free(r.runners);
    pz_free(r.order);
    return st;
}
