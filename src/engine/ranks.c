/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of an engine: their threads, and how what each has becomes one result. */
#include <pthread.h>

#include "engine/session.h"

/* Collectives of two engines that wait on the same GPUs, each for what the other one's room keeps from starting, would
 * wait for ever, and so may a call for memory in another thread. So engines of several ranks take turns. */
static pthread_mutex_t turn = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void pz_engine_begin_turn(const pz_engine *e) {
    if (e->tp > 1) pthread_mutex_lock(&turn);
}

void pz_engine_end_turn(const pz_engine *e) {
    if (e->tp > 1) pthread_mutex_unlock(&turn);
}

pz_status pz_engine_open_ranks(pz_engine *e, int timeout_ms, pz_error *err) {
    if (e->tp == 1) return PZ_OK;
    PZ_TRY(pz_group_new(e->tp, timeout_ms, &e->group, err));
    return pz_crew_new(e->tp, &e->crew, err);
}

void pz_engine_close_ranks(pz_engine *e) {
    for (int r = 0; r < e->tp; r++) {
        pz_rank *k = &e->rank[r];
        if (k->arena) e->api->release(k->backend, k->arena);
        if (k->backend) e->api->close(k->backend);
        if (r == 0 || k->graph != e->rank[0].graph) pz_graph_free(k->graph);
        pz_free(k->shard);
        pz_free(k->choice);
    }
    pz_crew_free(e->crew);
    pz_group_free(e->group);
}

/* ---- calls ---- */
typedef struct call {
    pz_engine *e;
    pz_rank_fn fn;
    void *arg;
} call;

static void call_rank(void *arg, int rank) {
    const call *c = arg;
    pz_rank *k = &c->e->rank[rank];
    k->st = c->fn(c->e, rank, c->arg, &k->err);
    if (k->st != PZ_OK) pz_comm_fail(pz_group_comm(c->e->group, rank), &k->err);
}

/* Every rank ends with an error where one does: the one to report is the one that is not about other ranks. */
static pz_status first_error(const pz_engine *e, pz_error *err) {
    const pz_rank *told = NULL;
    for (int r = 0; r < e->tp; r++) {
        const pz_rank *k = &e->rank[r];
        if (k->st == PZ_OK) continue;
        if (k->st != PZ_E_PEER && k->st != PZ_E_TIMEOUT) return pz_fail(err, k->st, "rank %d: %s", r, k->err.msg);
        if (!told) told = k;
    }
    return told ? pz_fail(err, told->st, "%s", told->err.msg) : PZ_OK;
}

pz_status pz_engine_on_ranks(pz_engine *e, pz_rank_fn fn, void *arg, pz_error *err) {
    if (e->tp == 1) return fn(e, 0, arg, err);
    pz_status st = pz_group_check(e->group, err);
    if (st != PZ_OK) return pz_fail_context(err, st, "the ranks have stopped; open a new engine");
    call c = {.e = e, .fn = fn, .arg = arg};
    pz_engine_begin_turn(e);
    st = pz_crew_run(e->crew, call_rank, &c, err);
    pz_engine_end_turn(e);
    return st == PZ_OK ? first_error(e, err) : st;
}

/* ---- what every rank must have alike ---- */
static pz_status same_hidden(pz_engine *e, const pz_prepared *p, int rank, float *x[2], bool *same, pz_error *err) {
    const pz_launch *last = &p->plan->launches.at[p->plan->launches.n - 1];
    int place = last->in[pz_op_operand_index(last->op, "x")].place, m = p->plan->m;
    for (int i = 0; i < 2; i++) {
        int r = i ? rank : 0;
        pz_run_args args = {.arena = e->rank[r].arena};
        PZ_TRY(e->api->read(e->rank[r].backend, p->of[r], &args, place, e->all_rows, m, x[i], err));
    }
    *same = memcmp(x[0], x[1], (size_t)(m * e->hf.hidden) * sizeof **x) == 0;
    return PZ_OK;
}

static pz_status same_cache(pz_engine *e, int rank, unsigned char *pool[2], bool *same, pz_error *err) {
    int64_t bytes = pz_kv_bytes(&e->kv) / e->tp;
    for (int i = 0; i < 2; i++) {
        int r = i ? rank : 0;
        PZ_TRY(e->api->copy(e->rank[r].backend, pool[i], e->kv.pool[r], bytes, PZ_COPY_FROM, err));
    }
    *same = memcmp(pool[0], pool[1], (size_t)bytes) == 0;
    return PZ_OK;
}

pz_status pz_engine_ranks_agree(pz_engine *e, const pz_prepared *p, bool *agree, pz_error *err) {
    float *x[2];
    unsigned char *pool[2];
    pz_status st = PZ_OK;
    *agree = true;
    for (int i = 0; i < 2; i++) {
        x[i] = pz_calloc((size_t)p->plan->m * (size_t)e->hf.hidden, sizeof **x);
        pool[i] = pz_calloc((size_t)pz_kv_bytes(&e->kv), 1);
        if (!x[i] || !pool[i]) st = PZ_NOMEM(err);
    }
    for (int r = 1; r < e->tp && st == PZ_OK; r++) {
        bool hidden = false, cache = false;
        st = same_hidden(e, p, r, x, &hidden, err);
        if (st == PZ_OK) st = same_cache(e, r, pool, &cache, err);
        if (!hidden || !cache) *agree = false;
    }
    for (int i = 0; i < 2; i++) {
        pz_free(x[i]);
        pz_free(pool[i]);
    }
    return st;
}
