/* SPDX-License-Identifier: Apache-2.0 */
#include "base/par.h"

#include <omp.h>

void pz_par_run(int nthreads, pz_par_fn fn, void *arg) {
    if (nthreads <= 1) {
        fn(arg, 0, 1);
        return;
    }
#pragma omp parallel num_threads(nthreads)
    fn(arg, omp_get_thread_num(), omp_get_num_threads());
}

void pz_par_barrier(void) {
#pragma omp barrier
}

int pz_par_cpus(void) {
    return omp_get_num_procs();
}
