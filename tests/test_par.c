/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "base/par.h"

enum { THREADS = 8, ROUNDS = 50 };

typedef struct region {
    int calls[THREADS];
    int nthreads[THREADS];
    int value[2][THREADS];
    int wrong[THREADS];
} region;

/* Every thread writes its own cell and reads all others' after the barrier. */
static void exchange(void *arg, int tid, int nthreads) {
    region *r = arg;
    r->calls[tid]++;
    r->nthreads[tid] = nthreads;
    for (int round = 0; round < ROUNDS; round++) {
        int *cells = r->value[round % 2];
        cells[tid] = round * 100 + tid;
        pz_par_barrier();
        for (int i = 0; i < nthreads; i++) r->wrong[tid] += cells[i] != round * 100 + i;
    }
}

static void test_regions(void **state) {
    (void)state;
    for (int n = 1; n <= THREADS; n++)
        for (int repeat = 0; repeat < 3; repeat++) {
            region r = {0};
            pz_par_run(n, exchange, &r);
            for (int t = 0; t < THREADS; t++) {
                assert_int_equal(r.calls[t], t < n);
                assert_int_equal(r.nthreads[t], t < n ? n : 0);
                assert_int_equal(r.wrong[t], 0);
            }
        }
    region r = {0};
    pz_par_run(0, exchange, &r); /* as 1 */
    assert_int_equal(r.calls[0], 1);
    assert_in_range(pz_par_cpus(), 1, 4096);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_regions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
