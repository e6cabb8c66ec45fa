/* SPDX-License-Identifier: Apache-2.0 */
/* Two engines against each other: the same tokens in interleaved steps, the side that goes first alternating. Each
 * batch size runs twice: once to time whole steps, once to time the launches, so that the clock reads of the latter are
 * not in the former. */
#include <stdio.h>

#include "base/rng.h"
#include "engine/session.h"
#include "engine/stats.h"

enum { COMPARE_PROMPT = 64, COMPARE_WINDOW = 64, COMPARE_WARMUP = 8, COMPARE_MAX_STEPS = 100000 };

/* One role of launches, "gemm qkv_a": its time per launch, [steps] of each side, us. */
typedef struct role {
    const char *name;
    int launches[2];
    double *us[2];
} role;

/* One batch size. Everything is in the arena. */
typedef struct bucket {
    pz_arena arena;
    pz_engine *const *e;
    int batch, steps, prompt, window;
    pz_prepared *prepared[2];
    int *seq[2];
    int n_open[2];
    pz_row *rows[2];
    float *logits[2];
    double *us[2], *diff;
    PZ_VEC(role) roles;
    uint64_t rng;
    bool identical;
} bucket;

typedef struct compare {
    pz_engine *e[2];
    int steps, done, total;
    pz_progress_fn progress;
    void *user;
    PZ_VEC(pz_compare_bucket) buckets;
    PZ_VEC(pz_compare_op) ops;
} compare;

static role *find_role(bucket *b, const char *name) {
    for (int i = 0; i < b->roles.n; i++)
        if (pz_streq(b->roles.at[i].name, name)) return &b->roles.at[i];
    return NULL;
}

static pz_status collect_roles(bucket *b, pz_error *err) {
    for (int side = 0; side < 2; side++) {
        const pz_plan *plan = b->prepared[side]->plan;
        for (int l = 0; l < plan->launches.n; l++) {
            const char *name = plan->launches.at[l].role;
            if (!find_role(b, name)) {
                role r = {.name = name};
                for (int s = 0; s < 2; s++) {
                    r.us[s] = pz_arena_alloc(&b->arena, (size_t)b->steps * sizeof(double));
                    if (!r.us[s]) return PZ_NOMEM(err);
                }
                PZ_TRY(pz_push(&b->roles, r, err));
            }
            find_role(b, name)->launches[side]++;
        }
    }
    return PZ_OK;
}

static pz_status prepare(bucket *b, pz_error *err) {
    size_t batch = (size_t)b->batch, steps = (size_t)b->steps, vocab = (size_t)b->e[0]->hf.vocab;
    for (int side = 0; side < 2; side++) {
        PZ_TRY(pz_engine_prepare(b->e[side], b->batch, true, &b->prepared[side], err));
        b->seq[side] = pz_arena_alloc(&b->arena, batch * sizeof(int));
        b->rows[side] = pz_arena_alloc(&b->arena, batch * sizeof(pz_row));
        b->logits[side] = pz_arena_alloc(&b->arena, batch * vocab * sizeof(float));
        b->us[side] = pz_arena_alloc(&b->arena, steps * sizeof(double));
        if (!b->seq[side] || !b->rows[side] || !b->logits[side] || !b->us[side]) return PZ_NOMEM(err);
    }
    b->diff = pz_arena_alloc(&b->arena, steps * sizeof(double));
    return b->diff ? collect_roles(b, err) : PZ_NOMEM(err);
}

/* All sequences start from one prompt of random tokens. */
static pz_status open_sequences(bucket *b, pz_error *err) {
    int32_t prompt[COMPARE_PROMPT];
    for (int i = 0; i < b->prompt; i++) prompt[i] = (int32_t)(pz_rng_next(&b->rng) % (uint64_t)b->e[0]->hf.vocab);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < b->batch; i++) {
            PZ_TRY(pz_kv_open(&b->e[side]->kv, &b->seq[side][i], err));
            b->n_open[side]++;
            PZ_TRY(pz_engine_prefill(b->e[side], b->seq[side][i], prompt, (size_t)b->prompt, 0, NULL, err));
        }
    return PZ_OK;
}

static void close_sequences(bucket *b) {
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < b->n_open[side]; i++) pz_kv_close(&b->e[side]->kv, b->seq[side][i]);
}

/* The time of each role in the step just made. */
static void note_roles(bucket *b, int side, int step) {
    pz_prepared *p = b->prepared[side];
    for (int l = 0; l < p->plan->launches.n; l++)
        find_role(b, p->plan->launches.at[l].role)->us[side][step] += (double)p->launch_ns[l] * 1e-3;
    for (int i = 0; i < b->roles.n; i++)
        if (b->roles.at[i].launches[side]) b->roles.at[i].us[side][step] /= b->roles.at[i].launches[side];
}

static void reset_times(pz_prepared *p) {
    if (!p) return;
    memset(p->launch_ns, 0, (size_t)p->plan->launches.n * sizeof *p->launch_ns);
    p->calls = 0;
}

/* One step of both sides with the same random tokens. After `window` steps the sequences go back to their prompt, so
 * that any number of steps fits the context. step < 0: not recorded. */
static pz_status run_pair(bucket *b, int index, int step, bool timed, pz_error *err) {
    for (int i = 0; i < b->batch; i++) {
        int32_t token = (int32_t)(pz_rng_next(&b->rng) % (uint64_t)b->e[0]->hf.vocab);
        for (int side = 0; side < 2; side++) {
            b->rows[side][i] = (pz_row){b->seq[side][i], token};
            if (index % b->window == 0) pz_kv_trim(&b->e[side]->kv, b->seq[side][i], b->prompt);
        }
    }
    for (int turn = 0; turn < 2; turn++) {
        int side = (index + turn) % 2;
        pz_prepared *p = b->prepared[side];
        b->e[side]->timed = timed;
        reset_times(p);
        int64_t start = pz_now_ns();
        PZ_TRY(pz_engine_step(b->e[side], b->rows[side], b->batch, b->logits[side], err));
        if (step < 0) continue;
        if (timed)
            note_roles(b, side, step);
        else
            b->us[side][step] = (double)(pz_now_ns() - start) * 1e-3;
    }
    size_t bytes = (size_t)b->batch * (size_t)b->e[0]->hf.vocab * sizeof(float);
    if (memcmp(b->logits[0], b->logits[1], bytes) != 0) b->identical = false;
    return PZ_OK;
}

typedef struct summary {
    double median[2], diff, lo, hi;
} summary;

/* Sorts the samples: the pairs are gone afterwards. */
static summary summarise(bucket *b, double *us[2]) {
    summary s;
    for (int i = 0; i < b->steps; i++) b->diff[i] = us[1][i] - us[0][i];
    pz_stats_sort(b->diff, b->steps);
    s.diff = pz_stats_median(b->diff, b->steps);
    pz_stats_median_ci(b->diff, b->steps, &s.lo, &s.hi);
    for (int side = 0; side < 2; side++) {
        pz_stats_sort(us[side], b->steps);
        s.median[side] = pz_stats_median(us[side], b->steps);
    }
    return s;
}

static pz_status report(compare *c, bucket *b, pz_error *err) {
    summary s = summarise(b, b->us);
    pz_compare_bucket r = {.batch = b->batch,
                           .steps = b->steps,
                           .a_us = s.median[0],
                           .b_us = s.median[1],
                           .diff_us = s.diff,
                           .ci_lo_us = s.lo,
                           .ci_hi_us = s.hi,
                           .a_tokens_per_s = b->batch * 1e6 / s.median[0],
                           .b_tokens_per_s = b->batch * 1e6 / s.median[1],
                           .identical = b->identical};
    const pz_plan *plan = b->prepared[1]->plan;
    for (int f = 0; f < plan->fills.n; f++) {
        r.riders += plan->fills.at[f].level > 0;
        r.slices += plan->fills.at[f].level;
        r.active_slices += plan->fills.at[f].n_active;
    }
    PZ_TRY(pz_push(&c->buckets, r, err));
    for (int i = 0; i < b->roles.n; i++) {
        s = summarise(b, b->roles.at[i].us);
        pz_compare_op op = {.batch = b->batch,
                            .a_us = s.median[0],
                            .b_us = s.median[1],
                            .diff_us = s.diff,
                            .ci_lo_us = s.lo,
                            .ci_hi_us = s.hi};
        snprintf(op.op, sizeof op.op, "%s", b->roles.at[i].name);
        PZ_TRY(pz_push(&c->ops, op, err));
    }
    return PZ_OK;
}

static pz_status run_steps(compare *c, bucket *b, pz_error *err) {
    PZ_TRY(prepare(b, err));
    PZ_TRY(open_sequences(b, err));
    for (int timed = 0; timed < 2; timed++)
        for (int i = 0; i < COMPARE_WARMUP + b->steps; i++) {
            PZ_TRY(run_pair(b, i, i - COMPARE_WARMUP, timed, err));
            if (i < COMPARE_WARMUP) continue;
            c->done++;
            if (c->progress) c->progress(c->user, c->done, c->total);
        }
    return report(c, b, err);
}

static pz_status run_batch(compare *c, int batch, pz_error *err) {
    int context = c->e[0]->kv.context < c->e[1]->kv.context ? c->e[0]->kv.context : c->e[1]->kv.context;
    bucket b = {.e = c->e, .batch = batch, .steps = c->steps, .rng = (uint64_t)batch, .identical = true};
    b.prompt = context / 2 < COMPARE_PROMPT ? context / 2 : COMPARE_PROMPT;
    b.window = context - b.prompt < COMPARE_WINDOW ? context - b.prompt : COMPARE_WINDOW;
    bool timed[2] = {c->e[0]->timed, c->e[1]->timed};
    pz_status st = run_steps(c, &b, err);
    close_sequences(&b);
    for (int side = 0; side < 2; side++) {
        c->e[side]->timed = timed[side];
        reset_times(b.prepared[side]);
    }
    pz_vec_free(&b.roles);
    pz_arena_free(&b.arena);
    return st;
}

static pz_status check(const pz_engine *a, const pz_engine *b, const int *batches, int n, int steps, pz_error *err) {
    if (!a || !b || a == b || !batches || n < 1 || n > 1024)
        return pz_fail(err, PZ_E_INVAL, "pz_compare: needs two engines and 1 to 1024 batch sizes");
    if (a->hf.vocab != b->hf.vocab || a->hf.layers != b->hf.layers || a->hf.hidden != b->hf.hidden)
        return pz_fail(err, PZ_E_INVAL, "pz_compare: the engines hold different models");
    if (a->kv.context < 2 || b->kv.context < 2)
        return pz_fail(err, PZ_E_RANGE, "pz_compare: a context of at least 2 tokens is needed");
    if (steps < PZ_STATS_MIN_CI || steps > COMPARE_MAX_STEPS)
        return pz_fail(err, PZ_E_RANGE, "steps %d: must be between %d (fewer have no 95 %% interval) and %d", steps,
                       PZ_STATS_MIN_CI, COMPARE_MAX_STEPS);
    int max_batch = a->max_batch < b->max_batch ? a->max_batch : b->max_batch;
    for (int i = 0; i < n; i++)
        if (batches[i] < 1 || batches[i] > max_batch)
            return pz_fail(err, PZ_E_RANGE, "batch %d: the engines decode 1 to %d rows", batches[i], max_batch);
    return PZ_OK;
}

pz_status pz_compare(pz_engine *a, pz_engine *b, const int *batches, int n_batches, int steps, pz_progress_fn progress,
                     void *user, pz_compare_result *result, pz_error *err) {
    PZ_TRY(check(a, b, batches, n_batches, steps, err));
    if (!result) return pz_fail(err, PZ_E_INVAL, "pz_compare: needs a place for the result");
    compare c = {.e = {a, b}, .steps = steps, .total = 2 * steps * n_batches, .progress = progress, .user = user};
    pz_status st = PZ_OK;
    for (int i = 0; i < n_batches && st == PZ_OK; i++) st = run_batch(&c, batches[i], err);
    *result = (pz_compare_result){.buckets = c.buckets.at, .n_buckets = c.buckets.n, .ops = c.ops.at, .n_ops = c.ops.n};
    if (st != PZ_OK) pz_compare_result_free(result);
    return st;
}

void pz_compare_result_free(pz_compare_result *result) {
    if (!result) return;
    pz_free(result->buckets);
    pz_free(result->ops);
    *result = (pz_compare_result){0};
}
