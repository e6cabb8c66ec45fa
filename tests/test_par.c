/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

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

static int check_region(int asked, int got) {
    region r = {0};
    pz_par_run(asked, exchange, &r);
    int bad = 0;
    for (int t = 0; t < THREADS; t++) {
        bad += r.calls[t] != (t < got);
        bad += r.nthreads[t] != (t < got ? got : 0);
        bad += r.wrong[t] != 0;
    }
    return bad;
}

static void test_regions(void **state) {
    (void)state;
    /* Growing, shrinking and alternating numbers of threads. */
    for (int n = 1; n <= THREADS; n++) assert_int_equal(check_region(n, n), 0);
    for (int n = THREADS; n >= 0; n--) assert_int_equal(check_region(n, n ? n : 1), 0);
    for (int i = 0; i < 20; i++) assert_int_equal(check_region(i % 2 ? 2 : 7, i % 2 ? 2 : 7), 0);
    assert_in_range(pz_par_cpus(), 1, 4096);
}

static void add_own(void *arg, int tid, int nthreads) {
    (void)nthreads;
    ((long *)arg)[tid * 16]++;
}

/* Regions that follow each other at once, without barriers inside: what one wrote, the next one and the caller see. */
static void test_many_short_regions(void **state) {
    (void)state;
    long cells[THREADS * 16] = {0};
    for (int i = 0; i < 5000; i++) {
        int n = 2 + i % 3;
        pz_par_run(n, add_own, cells);
        assert_int_equal(cells[0], i + 1);
        if (i % 1000 == 0) usleep(1000); /* long enough for the workers to fall asleep */
    }
    assert_int_equal(cells[16], 5000);
    assert_int_equal(cells[32], 5000 / 3 * 2 + 1);
    assert_int_equal(cells[48], 5000 / 3);
}

static void nested(void *arg, int tid, int nthreads) {
    (void)nthreads;
    int *bad = arg;
    bad[tid] = check_region(4, 1); /* one thread: its barriers must not wait for the outer region */
    pz_par_barrier();
}

static void test_nested(void **state) {
    (void)state;
    int bad[3] = {-1, -1, -1};
    pz_par_run(3, nested, bad);
    for (int i = 0; i < 3; i++) assert_int_equal(bad[i], 0);
    pz_par_barrier(); /* outside of any region: nothing to wait for */
}

static void *other_thread(void *arg) {
    int *bad = arg;
    for (int i = 0; i < 10; i++) *bad += check_region(1 + i % 4, 1 + i % 4);
    return NULL;
}

/* Threads that start regions at the same time have workers of their own, which end with them. */
static void test_several_callers(void **state) {
    (void)state;
    enum { CALLERS = 4 };
    for (int repeat = 0; repeat < 3; repeat++) {
        pthread_t thread[CALLERS];
        int bad[CALLERS] = {0};
        for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&thread[i], NULL, other_thread, &bad[i]), 0);
        assert_int_equal(check_region(3, 3), 0);
        for (int i = 0; i < CALLERS; i++) {
            assert_int_equal(pthread_join(thread[i], NULL), 0);
            assert_int_equal(bad[i], 0);
        }
    }
}

/* Without memory for workers a region runs on the threads there are. */
static void *without_memory(void *arg) {
    int *bad = arg;
    pz_alloc_fail_after(0);
    *bad += check_region(4, 1); /* no team */
    pz_alloc_fail_after(1);
    *bad += check_region(4, 1); /* no worker */
    pz_alloc_fail_after(2);
    *bad += check_region(4, 2); /* one worker and the list of them */
    pz_alloc_fail_after(-1);
    *bad += check_region(4, 4);
    return NULL;
}

static void test_no_memory(void **state) {
    (void)state;
    pthread_t thread;
    int bad = 0;
    assert_int_equal(pthread_create(&thread, NULL, without_memory, &bad), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(bad, 0);
}

/* A forked child has none of its parent's workers and makes new ones. */
static void test_fork(void **state) {
    (void)state;
    assert_int_equal(check_region(3, 3), 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(check_region(3, 3) != 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(check_region(3, 3), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regions),   cmocka_unit_test(test_many_short_regions),
        cmocka_unit_test(test_nested),    cmocka_unit_test(test_several_callers),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
