/* SPDX-License-Identifier: Apache-2.0 */
/* One parallel region over a fixed number of threads (OpenMP underneath). */
#ifndef PZ_PAR_H
#define PZ_PAR_H

typedef void (*pz_par_fn)(void *arg, int tid, int nthreads);

/* Calls fn(arg, tid, nthreads) once on each of nthreads threads and returns when all have returned. */
void pz_par_run(int nthreads, pz_par_fn fn, void *arg);
/* Inside fn: waits until every thread of the region is here. Memory written before is visible after. */
void pz_par_barrier(void);
/* Online processors that this process may use. */
int pz_par_cpus(void);

#endif
