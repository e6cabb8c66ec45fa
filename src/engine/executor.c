/* SPDX-License-Identifier: Apache-2.0 */
/* One step: check the rows, reserve pages, write the inputs, run the plan, read the logits. A step either happens as a
 * whole or leaves every sequence as it was. */
#include "engine/session.h"

void pz_bucket_set_init(pz_bucket_set *set, int max_rows) {
    *set = (pz_bucket_set){0};
    for (int64_t m = 1; m < max_rows; m *= 2) set->rows[set->n++] = (int)m;
    set->rows[set->n++] = max_rows;
}

/* What the backend keeps for the plans holds the address of the arena. */
static void forget_plans(const pz_engine *e, const pz_bucket_set *set) {
    for (int i = 0; i < set->n; i++)
        if (set->prepared[i].plan) e->api->forget(e->backend, set->prepared[i].plan);
}

void pz_bucket_set_free(const pz_engine *e, pz_bucket_set *set) {
    forget_plans(e, set);
    for (int i = 0; i < set->n; i++) {
        pz_plan_free(set->prepared[i].plan);
        pz_free(set->prepared[i].launch_ns);
    }
    *set = (pz_bucket_set){0};
}

static pz_status grow_arena(pz_engine *e, int64_t bytes, pz_error *err) {
    if (bytes <= e->arena_bytes) return PZ_OK;
    unsigned char *arena = NULL;
    pz_status st = e->api->alloc(e->backend, bytes, &arena, err);
    if (st != PZ_OK) return pz_fail_context(err, st, "activations");
    forget_plans(e, &e->decode);
    forget_plans(e, &e->prompt);
    if (e->arena) e->api->release(e->backend, e->arena);
    e->arena = arena;
    e->arena_bytes = bytes;
    return PZ_OK;
}

pz_status pz_engine_prepare(pz_engine *e, int rows, bool decode, pz_prepared **out, pz_error *err) {
    pz_bucket_set *set = decode ? &e->decode : &e->prompt;
    int i = 0;
    while (set->rows[i] < rows) i++;
    pz_prepared *p = &set->prepared[i];
    *out = p;
    if (p->plan) return PZ_OK;
    pz_plan_options options = {
        .device = e->device, .m = set->rows[i], .prefill = !decode, .gate = e->gate, .strategy = e->strategy};
    pz_plan *plan = NULL;
    PZ_TRY(pz_plan_create(e->graph, &options, &plan, err));
    int64_t *ns = pz_calloc((size_t)plan->launches.n, sizeof *ns);
    pz_status st = ns ? grow_arena(e, plan->arena_bytes, err) : PZ_NOMEM(err);
    if (st != PZ_OK) {
        pz_free(ns);
        pz_plan_free(plan);
        return st;
    }
    *p = (pz_prepared){.plan = plan, .launch_ns = ns};
    return PZ_OK;
}

static pz_status check_rows(const pz_engine *e, const pz_row *rows, int n, pz_error *err) {
    if (n < 1 || n > e->max_rows)
        return pz_fail(err, PZ_E_RANGE, "a step of %d rows: this engine takes 1 to %d", n, e->max_rows);
    for (int i = 0; i < n; i++) {
        if (!pz_kv_is_open(&e->kv, rows[i].seq))
            return pz_fail(err, PZ_E_RANGE, "row %d: sequence %d is not open (numbers go from 0 to %d)", i,
                           (int)rows[i].seq, e->kv.max_sequences - 1);
        if (rows[i].token < 0 || rows[i].token >= e->hf.vocab)
            return pz_fail(err, PZ_E_RANGE, "row %d: token %d is outside the vocabulary (0 to %lld)", i,
                           (int)rows[i].token, (long long)e->hf.vocab - 1);
    }
    return PZ_OK;
}

/* Counts each sequence's rows in e->pending and gets their pages. */
static pz_status admit(pz_engine *e, const pz_row *rows, int n, bool *decode, pz_error *err) {
    *decode = n <= e->max_batch;
    for (int i = 0; i < n; i++)
        if (++e->pending[rows[i].seq] > 1) *decode = false;
    for (int i = 0; i < n; i++) {
        int seq = rows[i].seq, add = e->pending[seq];
        if (add > e->kv.context - e->kv.length[seq])
            return pz_fail(err, PZ_E_RANGE, "sequence %d: %d tokens and %d more exceed the context of %d", seq,
                           e->kv.length[seq], add, e->kv.context);
    }
    for (int i = 0; i < n; i++) PZ_TRY(pz_kv_reserve(&e->kv, rows[i].seq, e->pending[rows[i].seq], err));
    return PZ_OK;
}

/* Ends a step: the sequences take their new tokens, or give back the pages reserved for them. */
static void settle(pz_engine *e, const pz_row *rows, int n, bool done) {
    for (int i = 0; i < n; i++) {
        int seq = rows[i].seq;
        if (e->pending[seq] == 0) continue;
        pz_kv_trim(&e->kv, seq, e->kv.length[seq] + (done ? e->pending[seq] : 0));
        e->pending[seq] = 0;
    }
}

/* Rows of a sequence take positions from its length on: counted down from the last row, then up again. Rows beyond n
 * are padding: no sequence, so that kernels touch no cache for them. */
static void write_inputs(pz_engine *e, const pz_plan *plan, const pz_row *rows, int n) {
    int32_t *ids = e->inputs[e->in_ids], *pos = e->inputs[e->in_pos], *seq = e->inputs[e->in_seq];
    for (int i = n - 1; i >= 0; i--) {
        ids[i] = rows[i].token;
        seq[i] = rows[i].seq;
        pos[i] = e->kv.length[rows[i].seq] + --e->pending[rows[i].seq];
    }
    for (int i = 0; i < n; i++) e->pending[rows[i].seq]++;
    for (int i = n; i < plan->m; i++) {
        ids[i] = 0;
        pos[i] = 0;
        seq[i] = -1;
    }
}

static pz_status launch(pz_engine *e, const pz_row *rows, int n, bool decode, const int *pick, int n_pick,
                        float *logits, int32_t *best, pz_error *err) {
    pz_prepared *p;
    PZ_TRY(pz_engine_prepare(e, n, decode, &p, err));
    write_inputs(e, p->plan, rows, n);
    pz_run_args args = {.arena = e->arena,
                        .inputs = (const int32_t *const *)e->inputs,
                        .cache = &e->kv.view,
                        .n_sequences = e->kv.max_sequences,
                        .poison = e->poison,
                        .launch_ns = e->timed ? p->launch_ns : NULL};
    PZ_TRY(e->api->run(e->backend, p->plan, &args, err));
    if (e->timed) p->calls++;
    if (n_pick == 0) return PZ_OK;
    int place = p->plan->outputs.at[0];
    if (best) return e->api->argmax(e->backend, p->plan, &args, place, pick, n_pick, best, err);
    return e->api->read(e->backend, p->plan, &args, place, pick, n_pick, logits, err);
}

pz_status pz_engine_run(pz_engine *e, const pz_row *rows, int n, const int *pick, int n_pick, float *logits,
                        int32_t *best, pz_error *err) {
    bool decode;
    PZ_TRY(check_rows(e, rows, n, err));
    pz_status st = admit(e, rows, n, &decode, err);
    if (st == PZ_OK) st = launch(e, rows, n, decode, pick, n_pick, logits, best, err);
    settle(e, rows, n, st == PZ_OK);
    return st;
}

pz_status pz_engine_step(pz_engine *e, const pz_row *rows, int n, float *logits, pz_error *err) {
    if (!e || !rows) return pz_fail(err, PZ_E_INVAL, "pz_engine_step: needs an engine and rows");
    return pz_engine_run(e, rows, n, e->all_rows, logits ? n : 0, logits, NULL, err);
}

pz_status pz_engine_prefill(pz_engine *e, int seq, const int32_t *ids, size_t n, int all, float *logits,
                            pz_error *err) {
    if (!e || (!ids && n)) return pz_fail(err, PZ_E_INVAL, "pz_engine_prefill: needs an engine and token ids");
    if (n == 0 && logits) return pz_fail(err, PZ_E_INVAL, "pz_engine_prefill: no tokens, so no logits");
    if (!pz_kv_is_open(&e->kv, seq))
        return pz_fail(err, PZ_E_RANGE, "sequence %d is not open (numbers go from 0 to %d)", seq,
                       e->kv.max_sequences - 1);
    int start = e->kv.length[seq];
    if (n > (size_t)(e->kv.context - start))
        return pz_fail(err, PZ_E_RANGE, "sequence %d: %d tokens and %zu more exceed the context of %d", seq, start, n,
                       e->kv.context);
    pz_row *rows = pz_calloc((size_t)e->prefill_chunk, sizeof *rows);
    if (!rows) return PZ_NOMEM(err);
    pz_status st = PZ_OK;
    for (size_t at = 0; at < n && st == PZ_OK;) {
        int c = n - at < (size_t)e->prefill_chunk ? (int)(n - at) : e->prefill_chunk, last = c - 1;
        for (int i = 0; i < c; i++) rows[i] = (pz_row){seq, ids[at + (size_t)i]};
        if (logits && all)
            st = pz_engine_run(e, rows, c, e->all_rows, c, logits + at * (size_t)e->hf.vocab, NULL, err);
        else
            st = pz_engine_run(e, rows, c, &last, logits && at + (size_t)c == n ? 1 : 0, logits, NULL, err);
        at += (size_t)c;
    }
    if (st != PZ_OK) pz_kv_trim(&e->kv, seq, start);
    pz_free(rows);
    return st;
}

void pz_engine_break_fills(pz_engine *e) {
    for (int i = 0; i < e->decode.n; i++) {
        pz_plan *plan = e->decode.prepared[i].plan;
        if (plan) e->api->forget(e->backend, plan);
        for (int f = 0; plan && f < plan->fills.n; f++) plan->fills.at[f].bytes = 0;
    }
}
