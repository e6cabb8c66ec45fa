/* SPDX-License-Identifier: Apache-2.0 */
#include "base/par.h"

#include <sched.h>

#include "base/base.h"
#include "base/thread.h"

typedef struct team team;
typedef struct worker {
    _Alignas(64) _Atomic uint32_t go; /* one more for each region that the worker has a part in */
    team *team;
    int tid;
    pthread_t thread;
} worker;

struct team {
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t phase; /* one more for each barrier that all threads have reached */
    pz_waiters waiters;
    /* Constant while a region runs. */
    pz_par_fn fn;
    void *arg;
    int nthreads;
    bool stop;
    PZ_VEC(worker *) workers; /* tid 1, 2, ... */
};

static _Thread_local team *own;     /* workers of this thread */
static _Thread_local team *current; /* region that this thread is in */

/* The last to arrive opens the barrier; `wait` is false for who needs not know when. */
static void arrive(team *t, bool wait) {
    /* Read first: once all have arrived, the next region may begin and set them anew. */
    uint32_t phase = atomic_load(&t->phase), n = (uint32_t)t->nthreads;
    if (atomic_fetch_add(&t->arrived, 1) + 1 == n) {
        atomic_store(&t->arrived, 0);
        atomic_fetch_add(&t->phase, 1);
        pz_wake(&t->waiters);
    } else if (wait) {
        pz_await(&t->waiters, &t->phase, phase, INT64_MAX);
    }
}

static void *work(void *arg) {
    worker *w = arg;
    team *t = current = w->team;
    for (uint32_t seen = 0;; seen++) {
        pz_await(&t->waiters, &w->go, seen, INT64_MAX);
        if (t->stop) return NULL;
        t->fn(t->arg, w->tid, t->nthreads);
        arrive(t, false);
    }
}

/* ---- the team of a thread ---- */
static pthread_key_t at_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;

static void free_team(team *t) {
    for (int i = 0; i < t->workers.n; i++) pz_free(t->workers.at[i]);
    pz_vec_free(&t->workers);
    pz_waiters_free(&t->waiters);
    pz_free(t);
}

static void end_team(void *arg) {
    team *t = arg;
    t->stop = true;
    for (int i = 0; i < t->workers.n; i++) atomic_fetch_add(&t->workers.at[i]->go, 1);
    pz_wake(&t->waiters);
    for (int i = 0; i < t->workers.n; i++) pthread_join(t->workers.at[i]->thread, NULL);
    free_team(t);
    own = NULL;
}

/* The child of a fork has none of the workers. What they held of the team is left as it is. */
static void forget_team(void) {
    own = NULL;
    if (have_key) pthread_setspecific(at_exit, NULL);
}

static void set_up(void) {
    have_key = pthread_key_create(&at_exit, end_team) == 0 && pthread_atfork(NULL, NULL, forget_team) == 0;
}

static team *new_team(void) {
    pthread_once(&once, set_up);
    team *t = have_key ? pz_aligned_calloc(sizeof *t) : NULL;
    if (!t || !pz_waiters_init(&t->waiters)) {
        pz_free(t);
        return NULL;
    }
    if (pthread_setspecific(at_exit, t) != 0) {
        free_team(t);
        return NULL;
    }
    return t;
}

static bool add_worker(team *t) {
    worker *w = pz_aligned_calloc(sizeof *w);
    if (!w) return false;
    w->team = t;
    w->tid = t->workers.n + 1;
    if (pz_push(&t->workers, w, NULL) == PZ_OK) {
        if (pz_thread_start(&w->thread, work, w) == 0) return true;
        t->workers.n--;
    }
    pz_free(w);
    return false;
}

void pz_par_run(int nthreads, pz_par_fn fn, void *arg) {
    team *outer = current;
    if (nthreads > 1 && !outer && !own) own = new_team();
    int n = 1;
    if (nthreads > 1 && !outer && own) {
        while (own->workers.n < nthreads - 1 && add_worker(own)) {
        }
        n = own->workers.n + 1 < nthreads ? own->workers.n + 1 : nthreads;
    }
    if (n == 1) {
        current = NULL;
        fn(arg, 0, 1);
        current = outer;
        return;
    }
    team *t = current = own;
    t->fn = fn;
    t->arg = arg;
    t->nthreads = n;
    for (int i = 0; i < n - 1; i++) atomic_fetch_add(&t->workers.at[i]->go, 1);
    pz_wake(&t->waiters);
    fn(arg, 0, n);
    arrive(t, true);
    current = NULL;
}

void pz_par_barrier(void) {
    if (current) arrive(current, true);
}

int pz_par_cpus(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    return n > 0 ? n : 1;
}
