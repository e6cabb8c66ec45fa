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
        for (int r = 0; r < e->tp; r++)
            if (set->prepared[i].of[r]) e->api->forget(e->rank[r].backend, set->prepared[i].of[r]);
}

static void free_plans(const pz_prepared *p) {
    for (int r = PZ_MAX_RANKS - 1; r >= 0; r--)
        if (r == 0 || p->of[r] != p->plan) pz_plan_free(p->of[r]);
}

void pz_bucket_set_free(const pz_engine *e, pz_bucket_set *set) {
    forget_plans(e, set);
    for (int i = 0; i < set->n; i++) {
        free_plans(&set->prepared[i]);
        pz_free(set->prepared[i].launch_ns);
    }
    *set = (pz_bucket_set){0};
}

static pz_status grow_arena(pz_engine *e, int64_t bytes, pz_error *err) {
    if (bytes <= e->arena_bytes) return PZ_OK;
    unsigned char *arena[PZ_MAX_RANKS] = {0};
    pz_status st = PZ_OK;
    pz_engine_begin_turn(e);
    for (int r = 0; r < e->tp && st == PZ_OK; r++) st = e->api->alloc(e->rank[r].backend, bytes, &arena[r], err);
    if (st == PZ_OK) {
        forget_plans(e, &e->decode);
        forget_plans(e, &e->prompt);
    }
    for (int r = 0; r < e->tp; r++) {
        unsigned char *old = st == PZ_OK ? e->rank[r].arena : arena[r];
        if (old) e->api->release(e->rank[r].backend, old);
        if (st == PZ_OK) e->rank[r].arena = arena[r];
    }
    pz_engine_end_turn(e);
    if (st != PZ_OK) return pz_fail_context(err, st, "activations");
    e->arena_bytes = bytes;
    return PZ_OK;
}

/* Ranks with the same graph run the same plan: it names weights, and each backend has its own. */
static pz_status make_plans(const pz_engine *e, int rows, bool decode, pz_prepared *p, pz_error *err) {
    pz_plan_options options = {
        .device = e->device, .m = rows, .prefill = !decode, .gate = e->gate, .strategy = e->strategy};
    PZ_TRY(pz_plan_create(e->rank[0].graph, &options, &p->plan, err));
    p->of[0] = p->plan;
    for (int r = 1; r < e->tp; r++) {
        if (e->rank[r].graph == e->rank[0].graph)
            p->of[r] = p->plan;
        else
            PZ_TRY(pz_plan_create(e->rank[r].graph, &options, &p->of[r], err));
    }
    return PZ_OK;
}

pz_status pz_engine_prepare(pz_engine *e, int rows, bool decode, pz_prepared **out, pz_error *err) {
    pz_bucket_set *set = decode ? &e->decode : &e->prompt;
    int i = 0;
    while (set->rows[i] < rows) i++;
    *out = &set->prepared[i];
    if ((*out)->plan) return PZ_OK;
    pz_prepared p = {0};
    int64_t bytes = 0;
    pz_status st = make_plans(e, set->rows[i], decode, &p, err);
    if (st == PZ_OK) {
        for (int r = 0; r < e->tp; r++)
            if (p.of[r]->arena_bytes > bytes) bytes = p.of[r]->arena_bytes;
        p.launch_ns = pz_calloc((size_t)e->tp * (size_t)p.plan->launches.n, sizeof *p.launch_ns);
        st = p.launch_ns ? grow_arena(e, bytes, err) : PZ_NOMEM(err);
    }
    if (st != PZ_OK) {
        pz_free(p.launch_ns);
        free_plans(&p);
        return st;
    }
    **out = p;
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

/* ---- running ---- */
typedef struct step {
    const pz_prepared *p;
    const int *pick;
    int n_pick;
    float *logits;
    int32_t *best;
} step;

/* The logits of a rank are columns of all: they go to their places, or the choice is made among them. */
static pz_status read_shard(pz_engine *e, int rank, const step *s, const pz_run_args *args, pz_error *err) {
    pz_rank *k = &e->rank[rank];
    const pz_plan *plan = s->p->of[rank];
    size_t cols = (size_t)(e->hf.vocab / e->tp), first = cols * (size_t)rank;
    PZ_TRY(e->api->read(k->backend, plan, args, plan->outputs.at[0], s->pick, s->n_pick, k->shard, err));
    for (int i = 0; i < s->n_pick; i++) {
        const float *row = k->shard + (size_t)i * cols;
        if (!s->best) {
            memcpy(s->logits + (size_t)i * (size_t)e->hf.vocab + first, row, cols * sizeof *row);
            continue;
        }
        k->choice[i] = (pz_choice)PZ_NO_CHOICE;
        pz_choose(&k->choice[i], row, (int64_t)cols, (int32_t)first);
    }
    return PZ_OK;
}

static pz_status run_rank(pz_engine *e, int rank, void *arg, pz_error *err) {
    const step *s = arg;
    pz_rank *k = &e->rank[rank];
    const pz_plan *plan = s->p->of[rank];
    pz_cache cache = pz_kv_view(&e->kv, rank);
    pz_run_args args = {.arena = k->arena,
                        .inputs = (const int32_t *const *)e->inputs,
                        .cache = &cache,
                        .n_sequences = e->kv.max_sequences,
                        .poison = e->poison,
                        .launch_ns = e->timed ? s->p->launch_ns + rank * plan->launches.n : NULL};
    PZ_TRY(e->api->run(k->backend, plan, &args, err));
    /* of several ranks also where nothing is read: no collective of this step is still running after it */
    if (e->tp > 1) return read_shard(e, rank, s, &args, err);
    if (s->n_pick == 0) return PZ_OK;
    int place = plan->outputs.at[0];
    if (s->best) return e->api->argmax(k->backend, plan, &args, place, s->pick, s->n_pick, s->best, err);
    return e->api->read(k->backend, plan, &args, place, s->pick, s->n_pick, s->logits, err);
}

/* Memory for n rows of every rank's logits. */
static pz_status grow_shards(pz_engine *e, int n, pz_error *err) {
    if (e->tp == 1 || n <= e->shard_rows) return PZ_OK;
    for (int r = 0; r < e->tp; r++) {
        pz_rank *k = &e->rank[r];
        float *shard = pz_realloc(k->shard, (size_t)n, (size_t)(e->hf.vocab / e->tp) * sizeof *shard);
        if (shard) k->shard = shard;
        pz_choice *choice = shard ? pz_realloc(k->choice, (size_t)n, sizeof *choice) : NULL;
        if (!choice) return PZ_NOMEM(err);
        k->choice = choice;
    }
    e->shard_rows = n;
    return PZ_OK;
}

static pz_status launch(pz_engine *e, const pz_row *rows, int n, bool decode, const int *pick, int n_pick,
                        float *logits, int32_t *best, pz_error *err) {
    pz_prepared *p;
    PZ_TRY(pz_engine_prepare(e, n, decode, &p, err));
    PZ_TRY(grow_shards(e, n_pick, err));
    write_inputs(e, p->plan, rows, n);
    step s = {.p = p, .pick = pick, .n_pick = n_pick, .logits = logits, .best = best};
    PZ_TRY(pz_engine_on_ranks(e, run_rank, &s, err));
    if (e->timed) p->calls++;
    for (int i = 0; best && e->tp > 1 && i < n_pick; i++) {
        pz_choice all = e->rank[0].choice[i];
        for (int r = 1; r < e->tp; r++) pz_choose_among(&all, &e->rank[r].choice[i]);
        best[i] = pz_chosen(&all);
    }
    return PZ_OK;
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
        for (int r = 0; r < e->tp; r++) {
            pz_plan *plan = e->decode.prepared[i].of[r];
            if (plan) e->api->forget(e->rank[r].backend, plan);
            for (int f = 0; plan && f < plan->fills.n; f++) plan->fills.at[f].bytes = 0;
        }
    }
}
