/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/crew.h"

#include <unistd.h>

#include "base/thread.h"

typedef struct member {
    pz_crew *crew;
    int rank;
    pthread_t thread;
} member;

struct pz_crew {
    _Alignas(64) _Atomic uint32_t calls;  /* one more for each call that has begun */
    _Alignas(64) _Atomic uint32_t absent; /* members that have not returned from the running call */
    pz_waiters waiters;
    pz_crew_fn fn; /* NULL: go home */
    void *arg;
    int n_members;
    pid_t process;
    member members[];
};

static void *work(void *arg) {
    member *m = arg;
    pz_crew *crew = m->crew;
    for (uint32_t seen = 0;; seen++) {
        pz_await(&crew->waiters, &crew->calls, seen, INT64_MAX);
        if (!crew->fn) return NULL;
        crew->fn(crew->arg, m->rank);
        if (atomic_fetch_sub(&crew->absent, 1) == 1) pz_wake(&crew->waiters);
    }
}

static void call(pz_crew *crew, pz_crew_fn fn, void *arg) {
    crew->fn = fn;
    crew->arg = arg;
    atomic_store(&crew->absent, (uint32_t)crew->n_members);
    atomic_fetch_add(&crew->calls, 1);
    pz_wake(&crew->waiters);
}

pz_status pz_crew_new(int n, pz_crew **out, pz_error *err) {
    pz_crew *crew = pz_aligned_calloc(sizeof *crew + (size_t)(n - 1) * sizeof *crew->members);
    if (!crew || !pz_waiters_init(&crew->waiters)) {
        pz_free(crew);
        return PZ_NOMEM(err);
    }
    crew->process = getpid();
    for (int rank = 1; rank < n; rank++) {
        member *m = &crew->members[crew->n_members];
        *m = (member){.crew = crew, .rank = rank};
        int failed = pz_thread_start(&m->thread, work, m);
        if (failed) {
            pz_crew_free(crew);
            return pz_fail(err, PZ_E_NOMEM, "no thread for rank %d of %d: %s", rank, n, strerror(failed));
        }
        crew->n_members++;
    }
    *out = crew;
    return PZ_OK;
}

void pz_crew_free(pz_crew *crew) {
    if (!crew) return;
    if (crew->process == getpid()) { /* in the child of a fork what the threads held is left as it is */
        call(crew, NULL, NULL);
        for (int i = 0; i < crew->n_members; i++) pthread_join(crew->members[i].thread, NULL);
        pz_waiters_free(&crew->waiters);
    }
    pz_free(crew);
}

pz_status pz_crew_run(pz_crew *crew, pz_crew_fn fn, void *arg, pz_error *err) {
    if (crew->process != getpid())
        return pz_fail(err, PZ_E_UNSUPPORTED, "the threads of the ranks are not in this process, the child of a fork");
    call(crew, fn, arg);
    fn(arg, 0);
    for (uint32_t left; (left = atomic_load(&crew->absent)) != 0;)
        pz_await(&crew->waiters, &crew->absent, left, INT64_MAX);
    return PZ_OK;
}
