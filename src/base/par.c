/* SPDX-License-Identifier: Apache-2.0 */
/* A decode step has about a hundred regions of a few microseconds. Waiting by spinning is right while the other threads
 * run, and ruinous while one of them waits for a processor that a spinning one holds. So threads spin as long as that
 * has lately paid off, and sleep otherwise. */
#include "base/par.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/base.h"

enum {
    SPIN_MAX = 4000, /* pauses, about 100 us: longer than what lies between two regions of a step */
    SPIN_SLACK = 64,
    SPIN_PROBE = 32, /* every so many waits spin to the maximum, to find out whether it pays off again */
};

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
    _Atomic uint32_t sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Constant while a region runs. */
    pz_par_fn fn;
    void *arg;
    int nthreads;
    bool stop;
    PZ_VEC(worker *) workers; /* tid 1, 2, ... */
};

static _Thread_local team *own;     /* workers of this thread */
static _Thread_local team *current; /* region that this thread is in */
static _Thread_local int spin = SPIN_MAX;
static _Thread_local unsigned waits;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until *word is no longer `old`. */
static void await(team *t, _Atomic uint32_t *word, uint32_t old) {
    int limit = ++waits % SPIN_PROBE == 0 ? SPIN_MAX : spin;
    for (int i = 0; i < limit; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) {
            int enough = 2 * i + SPIN_SLACK;
            if (spin < enough) spin = enough < SPIN_MAX ? enough : SPIN_MAX;
            return;
        }
        relax();
    }
    spin -= spin / 4;
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(word) == old) pthread_cond_wait(&t->changed, &t->mutex);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->mutex);
}

/* To be called after a word has changed. Either the sleeper sees the change or this sees the sleeper: both sides write
 * first and read then, in sequentially consistent order. */
static void wake(team *t) {
    if (atomic_load(&t->sleepers) == 0) return;
    pthread_mutex_lock(&t->mutex);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
}

/* The last to arrive opens the barrier; `wait` is false for who needs not know when. */
static void arrive(team *t, bool wait) {
    /* Read first: once all have arrived, the next region may begin and set them anew. */
    uint32_t phase = atomic_load(&t->phase), n = (uint32_t)t->nthreads;
    if (atomic_fetch_add(&t->arrived, 1) + 1 == n) {
        atomic_store(&t->arrived, 0);
        atomic_fetch_add(&t->phase, 1);
        wake(t);
    } else if (wait) {
        await(t, &t->phase, phase);
    }
}

static void *work(void *arg) {
    worker *w = arg;
    team *t = current = w->team;
    for (uint32_t seen = 0;; seen++) {
        await(t, &w->go, seen);
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
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->mutex);
    pz_free(t);
}

static void end_team(void *arg) {
    team *t = arg;
    t->stop = true;
    for (int i = 0; i < t->workers.n; i++) atomic_fetch_add(&t->workers.at[i]->go, 1);
    wake(t);
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
    if (!t) return NULL;
    t->mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    t->changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
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
        sigset_t all, old; /* signals are for the program's own threads */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int failed = pthread_create(&w->thread, NULL, work, w);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (!failed) return true;
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
    wake(t);
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
