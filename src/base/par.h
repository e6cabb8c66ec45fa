/* SPDX-License-Identifier: Apache-2.0 */
/* One parallel region over a fixed number of threads. Every thread that starts regions has workers of its own, which
 * sleep between regions and end with it. */
#ifndef PZ_PAR_H
#define PZ_PAR_H

typedef void (*pz_par_fn)(void *arg, int tid, int nthreads);

/* Calls fn(arg, tid, nthreads) once on each of nthreads threads, the caller being number 0, and returns when all have
 * returned. Where the system gives fewer threads, or inside another region, nthreads is what fn is told. */
void pz_par_run(int nthreads, pz_par_fn fn, void *arg);
/* Inside fn: waits until every thread of the region is here. Memory written before is visible after. */
void pz_par_barrier(void);
/* Online processors that this process may use. */
int pz_par_cpus(void);

#endif
