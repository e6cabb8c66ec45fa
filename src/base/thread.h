/* SPDX-License-Identifier: Apache-2.0 */
/* Starting threads, and waiting for a word of memory that another thread changes.
 *
 * A decode step has about a hundred meetings a few microseconds apart. Waiting by spinning is right while the other
 * threads run, and ruinous while one of them waits for a processor that a spinning one holds. So a thread spins as long
 * as that has lately paid off for it, and sleeps otherwise. */
#ifndef PZ_THREAD_H
#define PZ_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* pthread_create of a thread that takes no signals: those are for the program's own threads. 0, or an errno. */
int pz_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg);

/* Where those sleep who wait for one of a set of words. */
typedef struct pz_waiters {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    _Atomic uint32_t sleepers;
} pz_waiters;
bool pz_waiters_init(pz_waiters *w);
void pz_waiters_free(pz_waiters *w);

/* Waits until *word is no longer `old`: true. false if it still is and pz_now_ns() is beyond the deadline, which is
 * looked at after about 100 us of spinning; INT64_MAX: none. What was written before the change is visible after. */
bool pz_await(pz_waiters *w, _Atomic uint32_t *word, uint32_t old, int64_t deadline);
/* To be called after a word has changed, which must be in sequentially consistent order. */
void pz_wake(pz_waiters *w);

#endif
