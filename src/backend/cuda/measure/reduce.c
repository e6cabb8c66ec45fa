/* SPDX-License-Identifier: Apache-2.0 */
/* pz_measure_reduce: chains of collectives on all ranks at the same time. Every rank runs the same code on a thread of
 * its own; rank 0 writes the results. */
#include <stdio.h>

#include "backend/cuda/comm/group.h"
#include "backend/cuda/comm/nccl.h"
#include "backend/cuda/measure/follower.h"
#include "backend/cuda/measure/kernels.h"
#include "backend/cuda/measure/lab.h"
#include "backend/cuda/measure/measure.h"
#include "backend/cuda/norm/norm.h"
#include "backend/cuda/state.h"
#include "base/fixed.h"
#include "comm/crew.h"
#include "plan/tuned.h"

enum { ALIGN = 256, GEMM_STEP = 16 /* K of a GEMM is a multiple of it */ };
static const float eps = 1e-6f;

struct race;
/* A rank. */
typedef struct member {
    struct race *race;
    pz_comm *comm;
    pz_lab lab;
    pz_backend *b; /* for its group */
    pz_nccl *nccl; /* NULL: none, as no_nccl says */
    pz_error no_nccl;
    int one_shot;
    pz_follower follower; /* where a case has a GEMM */
    size_t stride;        /* bytes of one x */
    int sources;          /* that the links take in turn */
    unsigned char *x;
    void *res, *r, *y, *sum, *zero;
    float *w, *x_norm;
    pz_lab_chain *chains; /* [cases] */
    uint16_t *host_x, *host_r;
    size_t wrong;   /* sums of the last case checked */
    pz_status late; /* of its GEMM */
    pz_status st;
    pz_error err;
} member;

typedef struct race {
    const pz_measure_reduce_spec *spec;
    pz_measure_reduce_case *cases;
    int n_cases;
    size_t zero_bytes;         /* of the largest rider */
    bool one_step, nccl, gemm; /* some case wants it */
    pz_progress_fn progress;
    void *user;
    pz_group *group;
    int replays[PZ_MEASURE_MAX_CASES]; /* rank 0's, for all */
    member at[PZ_MAX_RANKS];
} race;

static bool is_ours(const pz_measure_reduce_case *c) {
    return c->kind == PZ_REDUCE_FUSED || c->kind == PZ_REDUCE_ALL_REDUCE || c->kind == PZ_REDUCE_FUSED_GEMM;
}

/* ---- links ---- */
typedef struct chain_link {
    member *k;
    const pz_measure_reduce_case *c;
    bool alone;
} chain_link;

static pz_status run_link(void *ctx, int number, pz_error *err) {
    const chain_link *l = ctx;
    member *k = l->k;
    const pz_measure_reduce_spec *s = k->race->spec;
    const pz_matrix dense = {.ld = s->hidden, .elem = PZ_ELEM_BF16};
    pz_norm_args a = {.size = sizeof a, .x = dense, .res = dense, .y = dense, .r = dense, .w = k->w, .eps = eps};
    a.x.data = k->x + (size_t)(number % k->sources) * k->stride;
    a.res.data = k->res;
    a.r.data = k->r;
    a.y.data = k->y;
    a.x_norm = k->x_norm;
    a.m = s->m;
    a.hidden = s->hidden;
    a.zero = l->c->zero_bytes ? k->zero : NULL;
    a.zero_bytes = l->c->zero_bytes;
    const bool gemm = l->c->kind == PZ_REDUCE_FUSED_GEMM;
    a.dependent = (gemm || !l->c->serial) && number > 0;
    if (gemm) a.zero = pz_follower_zero(&k->follower, number, &a.zero_bytes);
    a.stream = k->lab.stream;
    if (l->c->kind == PZ_REDUCE_NCCL || l->c->kind == PZ_REDUCE_NCCL_NORM) {
        size_t count = (size_t)s->m * (size_t)s->hidden;
        if (!l->alone) PZ_TRY(pz_nccl_all_reduce(k->nccl, a.x.data, k->sum, count, k->lab.stream, err));
        a.x.data = k->sum;
        a.dependent = 0;
        return l->c->kind == PZ_REDUCE_NCCL ? PZ_OK : pz_cuda_rms_norm(&a, err);
    }
    if (l->c->kind == PZ_REDUCE_ALL_REDUCE) a.y.data = a.res.data = a.x_norm = NULL, a.w = NULL;
    const int by_steps[] = {k->one_shot, PZ_GROUP_ROWS, 0};
    pz_group_view view = pz_cuda_group_view(k->b, l->alone, by_steps[l->c->steps]);
    PZ_TRY(pz_cuda_reduce_norm(&a, &view, err));
    return gemm ? pz_follower_run(&k->follower, number, a.y.data, k->x_norm, !l->c->serial, err) : PZ_OK;
}

/* ---- data: the partial sums are each rank's own, everything else is the same on all ---- */
static pz_status make_data(member *k, pz_error *err) {
    const pz_measure_reduce_spec *s = k->race->spec;
    size_t count = (size_t)s->m * (size_t)s->hidden;
    uint64_t own = s->seed + 1000 * ((uint64_t)pz_comm_rank(k->comm) + 1);
    pz_lab *lab = &k->lab;
    k->stride = pz_align_up(count * 2, ALIGN);
    /* as where a GEMM has just written them: in the L2 cache */
    size_t near = (size_t)lab->l2_bytes / 8 / k->stride;
    k->sources = near < 2 ? 2 : near < (size_t)s->copies ? (int)near : s->copies;
    PZ_TRY(pz_lab_alloc(lab, "the partial sums", (size_t)k->sources * k->stride, (void **)&k->x, err));
    PZ_TRY(pz_lab_alloc(lab, "the residual", k->stride, &k->res, err));
    PZ_TRY(pz_lab_alloc(lab, "the residual", k->stride, &k->r, err));
    PZ_TRY(pz_lab_alloc(lab, "the output", k->stride, &k->y, err));
    PZ_TRY(pz_lab_alloc(lab, "the sum", k->stride, &k->sum, err));
    PZ_TRY(pz_lab_alloc(lab, "the weight", (size_t)s->hidden * sizeof(float), (void **)&k->w, err));
    PZ_TRY(pz_lab_alloc(lab, "the norms of the rows", (size_t)s->m * sizeof(float), (void **)&k->x_norm, err));
    PZ_TRY(pz_lab_alloc(lab, "what is zeroed", k->race->zero_bytes, &k->zero, err));
    PZ_TRY(pz_lab_fill_bf16(k->x, (int64_t)((size_t)k->sources * k->stride / 2), 0, 1, own, lab->stream, err));
    PZ_TRY(pz_lab_fill_bf16(k->res, (int64_t)(k->stride / 2), 0, 1, s->seed + 2, lab->stream, err));
    PZ_TRY(pz_lab_fill_f32(k->w, s->hidden, 1, 0.5f, s->seed + 3, lab->stream, err));
    k->host_x = pz_calloc(count, sizeof *k->host_x);
    k->host_r = pz_calloc(count, sizeof *k->host_r);
    k->chains = pz_calloc((size_t)k->race->n_cases, sizeof *k->chains);
    return k->host_x && k->host_r && k->chains ? pz_lab_wait(lab, err) : PZ_NOMEM(err);
}

/* As a plan on this device would say. */
static pz_status choose(member *k, pz_error *err) {
    const pz_measure_reduce_spec *s = k->race->spec;
    pz_device device;
    pz_tuned *tuned;
    pz_cuda_backend.device(k->b, &device);
    PZ_TRY(pz_tuned_open(&device, &tuned, err));
    pz_device_tune(&device, tuned);
    device.ranks = s->ranks;
    device.one_shot = s->one_shot;
    k->one_shot = pz_donor_of(&device, s->m, true, s->hidden).one_shot;
    pz_status st = PZ_OK;
    if (k->race->gemm)
        st = pz_follower_open(&k->lab, &device, s->m, s->gemm_n, s->hidden, s->copies, 0, s->seed + 4, &k->follower,
                              err);
    pz_tuned_free(tuned);
    return st;
}

static void free_chains(member *k) {
    for (int i = 0; i < k->race->n_cases && k->chains; i++) pz_lab_chain_free(&k->chains[i]);
}

/* NCCL's kernels would wait for a rank that has failed for ever. */
static pz_status wait_for_ranks(void *ctx, pz_error *err) {
    member *k = ctx;
    pz_status st = pz_nccl_wait(k->nccl, k->lab.stream, err);
    if (st == PZ_OK) return PZ_OK;
    free_chains(k);
    pz_nccl_abort(k->nccl);
    return st;
}

static pz_status open_member(member *k, pz_error *err) {
    const pz_measure_reduce_spec *s = k->race->spec;
    pz_backend_options o = {
        .device = s->device + pz_comm_rank(k->comm), .comm = k->comm, .share_device = s->share_device != 0};
    PZ_TRY(pz_cuda_backend.open(&o, &k->b, err));
    PZ_TRY(pz_lab_open(&k->lab, k->b->device, err));
    PZ_TRY(make_data(k, err));
    PZ_TRY(choose(k, err));
    PZ_TRY(pz_cuda_group_reserve(k->b, s->hidden, k->race->one_step ? PZ_GROUP_ROWS : k->one_shot, err));
    if (!k->race->nccl) return PZ_OK;
    pz_status st = pz_nccl_open(k->comm, &k->nccl, &k->no_nccl);
    if (st == PZ_OK) k->lab.wait = wait_for_ranks, k->lab.wait_ctx = k;
    return st == PZ_OK || st == PZ_E_UNSUPPORTED ? PZ_OK : pz_fail(err, st, "%s", k->no_nccl.msg);
}

static void close_member(member *k) {
    free_chains(k);
    pz_nccl_close(k->nccl);
    pz_lab_close(&k->lab);
    if (k->b) pz_cuda_backend.close(k->b);
    pz_free(k->host_x);
    pz_free(k->host_r);
    pz_free(k->chains);
}

/* ---- one case ---- */
static bool is_possible(const member *k, const pz_measure_reduce_case *c) {
    if (c->kind == PZ_REDUCE_FUSED_GEMM && !k->race->gemm) return false;
    return is_ours(c) ? !pz_cuda_group_nccl(k->b) : k->nccl != NULL;
}

/* What the last replay left in r, bit by bit. Rank 0 writes what all have found; the others see it after the next
 * barrier. */
static pz_status check_sums(member *k, pz_measure_reduce_case *c, pz_error *err) {
    const pz_measure_reduce_spec *s = k->race->spec;
    size_t count = (size_t)s->m * (size_t)s->hidden;
    void *all[PZ_MAX_RANKS];
    uint16_t *res = pz_calloc(count, sizeof *res);
    if (!res) return PZ_NOMEM(err);
    const void *last = k->x + (size_t)((s->copies - 1) % k->sources) * k->stride;
    pz_status st = pz_cuda_check(cudaMemcpy(k->host_x, last, count * 2, cudaMemcpyDeviceToHost), "cudaMemcpy", err);
    if (st == PZ_OK) st = pz_cuda_check(cudaMemcpy(k->host_r, k->r, count * 2, cudaMemcpyDeviceToHost), "r", err);
    if (st == PZ_OK) st = pz_cuda_check(cudaMemcpy(res, k->res, count * 2, cudaMemcpyDeviceToHost), "res", err);
    if (st == PZ_OK) st = pz_comm_exchange(k->comm, k->host_x, all, err);
    k->wrong = 0;
    k->late = PZ_OK;
    if (st == PZ_OK && c->kind == PZ_REDUCE_FUSED_GEMM)
        k->late = pz_follower_check(&k->follower, s->copies - 1, k->y, k->x_norm, err);
    if (k->late != PZ_E_VERIFY && st == PZ_OK) st = k->late;
    for (size_t i = 0; i < count && st == PZ_OK; i++) {
        float sum = pz_bf16_to_f32(((const uint16_t *)all[0])[i]);
        for (int r = 1; r < s->ranks; r++) sum += pz_bf16_to_f32(((const uint16_t *)all[r])[i]);
        if (c->kind != PZ_REDUCE_ALL_REDUCE) sum += pz_bf16_to_f32(res[i]);
        k->wrong += pz_f32_to_bf16(sum) != k->host_r[i];
    }
    pz_free(res);
    if (st == PZ_OK) st = pz_comm_barrier(k->comm, err); /* all have read what is shown */
    if (st != PZ_OK || pz_comm_rank(k->comm) != 0) return st;
    for (int r = s->ranks - 1; r >= 0; r--) {
        size_t wrong = k->race->at[r].wrong;
        if (!wrong && k->race->at[r].late == PZ_OK) continue;
        c->status = PZ_E_VERIFY;
        snprintf(c->message, sizeof c->message, "rank %d: the GEMM has other bits than by itself", r);
        if (!wrong) continue;
        snprintf(c->message, sizeof c->message, "rank %d: %zu of %zu sums are wrong", r, wrong, count);
    }
    return PZ_OK;
}

static pz_status prepare(member *k, int i, pz_error *err) {
    race *r = k->race;
    pz_measure_reduce_case *c = &r->cases[i];
    chain_link l = {k, c, true};
    PZ_TRY(run_link(&l, 0, err)); /* loads the kernels: see load_all of the backend */
    PZ_TRY(pz_lab_wait(&k->lab, err));
    PZ_TRY(pz_comm_barrier(k->comm, err));
    l.alone = false;
    PZ_TRY(pz_lab_capture(&k->lab, r->spec->copies, run_link, &l, &k->chains[i], err));
    PZ_TRY(pz_lab_wait(&k->lab, err));
    PZ_TRY(pz_comm_barrier(k->comm, err));
    PZ_TRY(pz_lab_replay(&k->lab, &k->chains[i], err));
    PZ_TRY(pz_lab_wait(&k->lab, err));
    PZ_TRY(pz_cuda_group_check(k->b, err));
    if (is_ours(c)) PZ_TRY(check_sums(k, c, err));
    PZ_TRY(pz_comm_barrier(k->comm, err));
    if (c->status != PZ_OK) return PZ_OK;
    PZ_TRY(pz_lab_calibrate(&k->lab, &k->chains[i], r->spec->sample_us, err));
    if (pz_comm_rank(k->comm) == 0) r->replays[i] = k->chains[i].replays;
    PZ_TRY(pz_comm_barrier(k->comm, err));
    k->chains[i].replays = r->replays[i];
    return PZ_OK;
}

static void refuse(const member *k, pz_measure_reduce_case *c) {
    if (pz_comm_rank(k->comm) != 0) return;
    const char *why = k->no_nccl.msg;
    if (is_ours(c)) why = "these GPUs cannot write to each other's memory";
    if (c->kind == PZ_REDUCE_FUSED_GEMM && !k->race->gemm) why = "a GEMM needs rows of a multiple of 16";
    c->status = PZ_E_UNSUPPORTED;
    snprintf(c->message, sizeof c->message, "%.*s", (int)sizeof c->message - 1, why);
}

static pz_status measure(member *k, pz_error *err) {
    race *r = k->race;
    bool first = pz_comm_rank(k->comm) == 0;
    int order[PZ_MEASURE_MAX_CASES];
    uint64_t rng = r->spec->seed;
    PZ_TRY(open_member(k, err));
    for (int i = 0; i < r->n_cases; i++) {
        if (is_possible(k, &r->cases[i]))
            PZ_TRY(prepare(k, i, err));
        else
            refuse(k, &r->cases[i]);
    }
    for (int round = 0; round < r->spec->rounds; round++) {
        pz_lab_shuffle(&rng, order, r->n_cases);
        for (int i = 0; i < r->n_cases; i++) {
            pz_measure_reduce_case *c = &r->cases[order[i]];
            double us;
            if (!is_possible(k, c) || c->status != PZ_OK) continue;
            PZ_TRY(pz_comm_barrier(k->comm, err));
            PZ_TRY(pz_lab_sample(&k->lab, &k->chains[order[i]], &us, err));
            PZ_TRY(pz_cuda_group_check(k->b, err));
            if (first) c->times.samples[c->times.n++] = us;
        }
        if (first && r->progress) r->progress(r->user, round + 1, r->spec->rounds);
    }
    return pz_comm_barrier(k->comm, err);
}

static void on_rank(void *arg, int rank) {
    member *k = &((race *)arg)->at[rank];
    k->st = measure(k, &k->err);
    if (k->b) pz_cuda_group_fail(k->b, k->st, &k->err); /* ends the kernels of the others */
    if (k->st != PZ_OK) pz_comm_fail(k->comm, &k->err);
    if (k->st != PZ_OK && k->nccl) wait_for_ranks(k, NULL);
}

/* When no rank launches any more: their kernels write to each other's memory, also those of a failed group. */
static void close_rank(void *arg, int rank) {
    close_member(&((race *)arg)->at[rank]);
}

pz_status pz_cuda_measure_reduce(const pz_measure_reduce_spec *spec, pz_measure_reduce_case *cases, int n_cases,
                                 pz_progress_fn progress, void *user, pz_error *err) {
    race r = {.spec = spec, .cases = cases, .n_cases = n_cases, .progress = progress, .user = user};
    pz_crew *crew = NULL;
    for (int i = 0; i < n_cases; i++) {
        cases[i].status = PZ_OK;
        cases[i].message[0] = 0;
        cases[i].times = (pz_measure_times){0};
        if (cases[i].zero_bytes > r.zero_bytes) r.zero_bytes = cases[i].zero_bytes;
        r.one_step = r.one_step || cases[i].steps == 1;
        r.nccl = r.nccl || !is_ours(&cases[i]);
        r.gemm = r.gemm || (cases[i].kind == PZ_REDUCE_FUSED_GEMM && spec->hidden % GEMM_STEP == 0);
    }
    PZ_TRY(pz_group_new(spec->ranks, 0, &r.group, err));
    for (int k = 0; k < spec->ranks; k++) {
        r.at[k] = (member){.race = &r, .comm = pz_group_comm(r.group, k)};
        r.at[k].lab.before = -1;
    }
    pz_status st = pz_crew_new(spec->ranks, &crew, err);
    if (st == PZ_OK) st = pz_crew_run(crew, on_rank, &r, err);
    if (st == PZ_OK) st = pz_crew_run(crew, close_rank, &r, err);
    for (int pass = 0; pass < 2 && st == PZ_OK; pass++) /* first the errors that are not about other ranks */
        for (int k = 0; k < spec->ranks && st == PZ_OK; k++)
            if (r.at[k].st != PZ_OK && (pass || r.at[k].st != PZ_E_PEER))
                st = pz_fail(err, r.at[k].st, "rank %d: %s", k, r.at[k].err.msg);
    pz_crew_free(crew);
    pz_group_free(r.group);
    return st;
}
