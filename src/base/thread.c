/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>
#include <time.h>

enum {
    SPIN_MAX = 4000, /* pauses, about 100 us: longer than what lies between two regions of a step */
    SPIN_SLACK = 64,
    SPIN_PROBE = 32, /* every so many waits spin to the maximum, to find out whether it pays off again */
};

static _Thread_local int spin = SPIN_MAX;
static _Thread_local unsigned waits;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int pz_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failed;
}

bool pz_waiters_init(pz_waiters *w) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) return false;
    bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 && pthread_mutex_init(&w->mutex, NULL) == 0;
    if (ok && pthread_cond_init(&w->changed, &attr) != 0) {
        pthread_mutex_destroy(&w->mutex);
        ok = false;
    }
    pthread_condattr_destroy(&attr);
    atomic_init(&w->sleepers, 0);
    return ok;
}

void pz_waiters_free(pz_waiters *w) {
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
}

static bool sleep_until_changed(pz_waiters *w, _Atomic uint32_t *word, uint32_t old, int64_t deadline) {
    struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000), .tv_nsec = (long)(deadline % 1000000000)};
    bool late = false;
    pthread_mutex_lock(&w->mutex);
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(word) == old && !late) {
        if (deadline == INT64_MAX)
            pthread_cond_wait(&w->changed, &w->mutex);
        else
            late = pthread_cond_timedwait(&w->changed, &w->mutex, &until) != 0;
    }
    atomic_fetch_sub(&w->sleepers, 1);
    pthread_mutex_unlock(&w->mutex);
    return !late || atomic_load(word) != old;
}

bool pz_await(pz_waiters *w, _Atomic uint32_t *word, uint32_t old, int64_t deadline) {
    int limit = ++waits % SPIN_PROBE == 0 ? SPIN_MAX : spin;
    for (int i = 0; i < limit; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) {
            int enough = 2 * i + SPIN_SLACK;
            if (spin < enough) spin = enough < SPIN_MAX ? enough : SPIN_MAX;
            return true;
        }
        relax();
    }
    spin -= spin / 4;
    return sleep_until_changed(w, word, old, deadline);
}

/* Either the sleeper sees the change or this sees the sleeper: both sides write first and read then. */
void pz_wake(pz_waiters *w) {
    if (atomic_load(&w->sleepers) == 0) return;
    pthread_mutex_lock(&w->mutex);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}
