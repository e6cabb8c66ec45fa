/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of the ranks of one process. */
#ifndef PZ_CREW_H
#define PZ_CREW_H

#include "base/base.h"

typedef struct pz_crew pz_crew;
typedef void (*pz_crew_fn)(void *arg, int rank);

/* Starts n - 1 threads, which sleep between calls; rank 0 is the thread that calls pz_crew_run. E_NOMEM where the
 * system gives no thread. */
pz_status pz_crew_new(int n, pz_crew **out, pz_error *err);
/* Ends the threads. NULL is allowed. */
void pz_crew_free(pz_crew *crew);
/* Calls fn(arg, rank) once on the thread of each rank, all at the same time, and returns when all have returned. In the
 * child of a fork, where the threads are not, E_UNSUPPORTED. One call at a time. */
pz_status pz_crew_run(pz_crew *crew, pz_crew_fn fn, void *arg, pz_error *err);

#endif
