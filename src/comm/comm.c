/* SPDX-License-Identifier: Apache-2.0 */
/* A group of ranks that are threads of one process. */
#include "comm/comm.h"

#include <stdio.h>

#include "base/thread.h"

struct pz_comm {
    _Alignas(64) pz_group *group;
    int rank;
    uint32_t epoch;
};

struct pz_group {
    /* Bit r: rank r has arrived at the running barrier. */
    _Alignas(64) _Atomic uint32_t arrived;
    /* Twice the number of barriers that all ranks have reached; odd once the group has failed. A barrier opens, or
     * fails, by one exchange of this word, so it does the same for all ranks. */
    _Alignas(64) _Atomic uint32_t state;
    pz_waiters waiters;
    int ranks, timeout_ms;
    pthread_mutex_t failing; /* of who sets and who reads the failure */
    pz_error failure;
    void *shown[2][PZ_MAX_RANKS]; /* by epoch & 1 */
    pz_comm comms[PZ_MAX_RANKS];
};

pz_status pz_group_new(int ranks, int timeout_ms, pz_group **out, pz_error *err) {
    if (ranks < 1 || ranks > PZ_MAX_RANKS)
        return pz_fail(err, PZ_E_RANGE, "%d ranks: must be 1 to %d", ranks, PZ_MAX_RANKS);
    if (timeout_ms < 0)
        return pz_fail(err, PZ_E_RANGE, "a time-out of %d ms: must be 1 or more, 0: %d", timeout_ms,
                       PZ_COMM_TIMEOUT_MS);
    pz_group *g = pz_aligned_calloc(sizeof *g);
    if (!g) return PZ_NOMEM(err);
    g->ranks = ranks;
    g->timeout_ms = timeout_ms ? timeout_ms : PZ_COMM_TIMEOUT_MS;
    for (int r = 0; r < ranks; r++) g->comms[r] = (pz_comm){.group = g, .rank = r};
    if (!pz_waiters_init(&g->waiters) || pthread_mutex_init(&g->failing, NULL) != 0) {
        pz_free(g);
        return PZ_NOMEM(err);
    }
    *out = g;
    return PZ_OK;
}

void pz_group_free(pz_group *g) {
    if (!g) return;
    pz_waiters_free(&g->waiters);
    pthread_mutex_destroy(&g->failing);
    pz_free(g);
}

pz_comm *pz_group_comm(pz_group *g, int rank) {
    return &g->comms[rank];
}

int pz_comm_rank(const pz_comm *c) {
    return c->rank;
}

int pz_comm_ranks(const pz_comm *c) {
    return c->group->ranks;
}

int pz_comm_timeout_ms(const pz_comm *c) {
    return c->group->timeout_ms;
}

uint32_t pz_comm_epoch(const pz_comm *c) {
    return c->epoch;
}

/* ---- failure ---- */
/* The group fails if `state`, an even one, is still its state. */
static bool fail_at(pz_group *g, uint32_t state, const pz_error *failure) {
    pthread_mutex_lock(&g->failing);
    bool done = atomic_compare_exchange_strong(&g->state, &state, state | 1);
    if (done) g->failure = *failure;
    pthread_mutex_unlock(&g->failing);
    if (done) pz_wake(&g->waiters);
    return done;
}

static pz_status report(pz_group *g, pz_error *err) {
    pthread_mutex_lock(&g->failing);
    pz_error failure = g->failure;
    pthread_mutex_unlock(&g->failing);
    return pz_fail(err, failure.code, "%s", failure.msg);
}

pz_status pz_group_check(pz_group *g, pz_error *err) {
    return atomic_load(&g->state) & 1 ? report(g, err) : PZ_OK;
}

pz_status pz_comm_check(const pz_comm *c, pz_error *err) {
    return pz_group_check(c->group, err);
}

void pz_comm_fail(pz_comm *c, const pz_error *why) {
    pz_error failure;
    pz_fail(&failure, PZ_E_PEER, "rank %d failed: %s", c->rank, why->msg);
    for (;;) {
        uint32_t state = atomic_load(&c->group->state);
        if (state & 1 || fail_at(c->group, state, &failure)) return;
    }
}

/* Whoever has waited longest says who is missing. */
static void time_out(pz_group *g, uint32_t state) {
    uint32_t arrived = atomic_load(&g->arrived);
    char missing[4 * PZ_MAX_RANKS];
    int n = 0, missed = 0;
    for (int r = 0; r < g->ranks; r++)
        if (!(arrived >> r & 1)) n += snprintf(missing + n, sizeof missing - (size_t)n, missed++ ? ", %d" : "%d", r);
    pz_error failure;
    pz_fail(&failure, PZ_E_TIMEOUT, "rank%s %s of %d did not arrive within %d ms", missed > 1 ? "s" : "", missing,
            g->ranks, g->timeout_ms);
    /* None at all: the last one has come, and is about to open the barrier. */
    if (missed && arrived) fail_at(g, state, &failure);
}

/* ---- meeting ---- */
pz_status pz_comm_barrier(pz_comm *c, pz_error *err) {
    pz_group *g = c->group;
    /* Nothing but a failure changes it before this rank has arrived. */
    uint32_t state = atomic_load(&g->state), me = 1u << c->rank;
    if (state & 1) return report(g, err);
    if ((atomic_fetch_or(&g->arrived, me) | me) == (1u << g->ranks) - 1) {
        uint32_t expected = state;
        atomic_store(&g->arrived, 0);
        if (!atomic_compare_exchange_strong(&g->state, &expected, state + 2)) return report(g, err);
        pz_wake(&g->waiters);
        return PZ_OK;
    }
    int64_t wait_ns = (int64_t)g->timeout_ms * 1000000;
    while (!pz_await(&g->waiters, &g->state, state, pz_now_ns() + wait_ns)) time_out(g, state);
    /* A failure after the barrier has opened is the next call's. */
    return (atomic_load(&g->state) & ~1u) == state ? report(g, err) : PZ_OK;
}

pz_status pz_comm_exchange(pz_comm *c, void *mine, void *all[PZ_MAX_RANKS], pz_error *err) {
    void **shown = c->group->shown[c->epoch & 1];
    shown[c->rank] = mine;
    PZ_TRY(pz_comm_barrier(c, err));
    memcpy(all, shown, (size_t)c->group->ranks * sizeof *all);
    c->epoch++;
    return PZ_OK;
}
