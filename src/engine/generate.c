/* SPDX-License-Identifier: Apache-2.0 */
/* Continuous batching: prompts of new requests go through in chunks that several of them may share, in turn with decode
 * steps of all requests that are past their prompt. */
#include "engine/session.h"

typedef struct slot {
    int request, seq;
    size_t fed; /* tokens of the prompt in the cache */
    int produced;
    int32_t next; /* the token to feed, once the prompt is through */
    uint64_t rng;
    bool ended;
} slot;

typedef struct batch {
    pz_engine *engine;
    const pz_request *requests;
    int n, next; /* requests, first one not started */
    pz_token_fn fn;
    void *user;
    slot *slots;
    int n_slots, max_slots;
    pz_row *rows;
    int *pick, *owner; /* rows whose results are wanted, and the slot each belongs to */
    float *logits;
    int32_t *best; /* their greedy choices, in place of logits where that is all that is asked for */
} batch;

static pz_status check_requests(const pz_engine *e, const pz_request *r, int n, pz_error *err) {
    for (int i = 0; i < n; i++) {
        if (!r[i].prompt || r[i].prompt_len == 0)
            return pz_fail(err, PZ_E_INVAL, "request %d: the prompt is empty, it needs at least one token", i);
        if (r[i].prompt_len > (size_t)e->kv.context)
            return pz_fail(err, PZ_E_RANGE, "request %d: a prompt of %zu tokens exceeds the context of %d", i,
                           r[i].prompt_len, e->kv.context);
        if (r[i].max_tokens < 1)
            return pz_fail(err, PZ_E_RANGE, "request %d: max_tokens %d: must be at least 1", i, r[i].max_tokens);
        for (size_t t = 0; t < r[i].prompt_len; t++)
            if (r[i].prompt[t] < 0 || r[i].prompt[t] >= e->hf.vocab)
                return pz_fail(err, PZ_E_RANGE, "request %d: token %d is outside the vocabulary (0 to %lld)", i,
                               (int)r[i].prompt[t], (long long)e->hf.vocab - 1);
    }
    return PZ_OK;
}

static pz_status start_requests(batch *b, pz_error *err) {
    while (b->n_slots < b->max_slots && b->next < b->n) {
        int seq;
        /* The caller may hold sequences of its own: then go on with those this batch has. */
        pz_status st = pz_kv_open(&b->engine->kv, &seq, b->n_slots ? NULL : err);
        if (st != PZ_OK) return b->n_slots ? PZ_OK : st;
        b->slots[b->n_slots++] = (slot){.request = b->next, .seq = seq, .rng = b->requests[b->next].sampling.seed};
        b->next++;
    }
    return PZ_OK;
}

static bool is_end(const pz_hf_config *hf, int32_t token) {
    for (int i = 0; i < hf->n_eos; i++)
        if (hf->eos[i] == token) return true;
    return false;
}

/* Chooses the next token of a slot, from result `i` of the step, and reports it. */
static pz_status advance(batch *b, slot *s, int i, bool greedy, pz_error *err) {
    const pz_request *r = &b->requests[s->request];
    int vocab = (int)b->engine->hf.vocab;
    const float *logits = b->logits + (size_t)i * (size_t)vocab;
    pz_status st = greedy ? pz_greedy_token(b->best[i], vocab, &s->next, err)
                          : pz_sample(logits, vocab, &r->sampling, &s->rng, &s->next, err);
    if (st != PZ_OK) return pz_fail_context(err, st, "request %d", s->request);
    if (!r->ignore_eos && is_end(&b->engine->hf, s->next)) {
        b->fn(b->user, s->request, -1, 1);
        s->ended = true;
        return PZ_OK;
    }
    s->produced++;
    bool last = s->produced == r->max_tokens || b->engine->kv.length[s->seq] == b->engine->kv.context;
    s->ended = b->fn(b->user, s->request, s->next, last) != 0 || last;
    return PZ_OK;
}

/* Whether the step's tokens are all greedy choices, which the backend makes where the logits are. A sampling that is no
 * good is reported by pz_sample. */
static bool all_greedy(const batch *b, int n_pick) {
    bool all = true, greedy;
    for (int i = 0; i < n_pick && all; i++) {
        const slot *s = &b->slots[b->owner[i]];
        all = pz_sampling_is_greedy(&b->requests[s->request].sampling, &greedy, NULL) == PZ_OK && greedy;
    }
    return all;
}

static pz_status run_rows(batch *b, int n_rows, int n_pick, pz_error *err) {
    bool greedy = all_greedy(b, n_pick);
    int32_t *best = greedy ? b->best : NULL;
    PZ_TRY(pz_engine_run(b->engine, b->rows, n_rows, b->pick, n_pick, b->logits, best, err));
    for (int i = 0; i < n_pick; i++) PZ_TRY(advance(b, &b->slots[b->owner[i]], i, greedy, err));
    return PZ_OK;
}

/* One chunk of prompt tokens, oldest requests first. */
static pz_status prompt_step(batch *b, pz_error *err) {
    int n = 0, n_pick = 0;
    for (int i = 0; i < b->n_slots; i++) {
        slot *s = &b->slots[i];
        const pz_request *r = &b->requests[s->request];
        if (s->fed == r->prompt_len) continue;
        while (s->fed < r->prompt_len && n < b->engine->prefill_chunk)
            b->rows[n++] = (pz_row){s->seq, r->prompt[s->fed++]};
        if (s->fed < r->prompt_len || n_pick == b->max_slots) break;
        b->pick[n_pick] = n - 1;
        b->owner[n_pick++] = i;
    }
    return n ? run_rows(b, n, n_pick, err) : PZ_OK;
}

static pz_status decode_step(batch *b, pz_error *err) {
    int n = 0;
    for (int i = 0; i < b->n_slots; i++) {
        const slot *s = &b->slots[i];
        if (s->ended || s->produced == 0) continue;
        b->rows[n] = (pz_row){s->seq, s->next};
        b->pick[n] = n;
        b->owner[n++] = i;
    }
    return n ? run_rows(b, n, n, err) : PZ_OK;
}

/* Closes the sequences of requests that ended; the others keep their order. */
static void drop_ended(batch *b, bool all) {
    int kept = 0;
    for (int i = 0; i < b->n_slots; i++) {
        if (all || b->slots[i].ended)
            pz_kv_close(&b->engine->kv, b->slots[i].seq);
        else
            b->slots[kept++] = b->slots[i];
    }
    b->n_slots = kept;
}

static pz_status serve(batch *b, pz_error *err) {
    for (;;) {
        PZ_TRY(start_requests(b, err));
        if (b->n_slots == 0) return PZ_OK;
        PZ_TRY(prompt_step(b, err));
        drop_ended(b, false);
        PZ_TRY(decode_step(b, err));
        drop_ended(b, false);
    }
}

pz_status pz_generate(pz_engine *e, const pz_request *requests, int n, int max_slots, pz_token_fn fn, void *user,
                      pz_error *err) {
    if (!e || n < 0 || (!requests && n) || !fn)
        return pz_fail(err, PZ_E_INVAL, "pz_generate: needs an engine, requests and a callback");
    if (max_slots < 1 || max_slots > e->max_batch)
        return pz_fail(err, PZ_E_RANGE, "batch %d: this engine decodes 1 to %d requests at once", max_slots,
                       e->max_batch);
    PZ_TRY(check_requests(e, requests, n, err));
    batch b = {.engine = e, .requests = requests, .n = n, .fn = fn, .user = user, .max_slots = max_slots};
    b.slots = pz_calloc((size_t)max_slots, sizeof *b.slots);
    b.rows = pz_calloc((size_t)e->max_rows, sizeof *b.rows);
    b.pick = pz_calloc((size_t)max_slots, sizeof *b.pick);
    b.owner = pz_calloc((size_t)max_slots, sizeof *b.owner);
    b.logits = pz_calloc((size_t)max_slots * (size_t)e->hf.vocab, sizeof *b.logits);
    b.best = pz_calloc((size_t)max_slots, sizeof *b.best);
    pz_status st = b.slots && b.rows && b.pick && b.owner && b.logits && b.best ? serve(&b, err) : PZ_NOMEM(err);
    if (b.slots) drop_ended(&b, true);
    pz_free(b.slots);
    pz_free(b.rows);
    pz_free(b.pick);
    pz_free(b.owner);
    pz_free(b.logits);
    pz_free(b.best);
    return st;
}
