/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks: threads that meet, exchange pointers, fail, or never come. */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/par.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "comm/crew.h"

typedef struct ranks {
    pz_group *group;
    int n, rounds, wrong[PZ_MAX_RANKS];
    int quitter, quits_at;  /* rank and round; -1: nobody */
    int late_us;            /* the quitter comes after so long */
    bool reports;           /* the quitter says that it fails */
    int made[PZ_MAX_RANKS]; /* rounds that succeeded */
    uint64_t seed;
    int cell[2][PZ_MAX_RANKS];
    pz_status st[PZ_MAX_RANKS], again[PZ_MAX_RANKS];
    pz_error err[PZ_MAX_RANKS];
    int64_t ns[PZ_MAX_RANKS];
} ranks;

static ranks make(int n, int rounds, int timeout_ms) {
    pz_error err;
    ranks r = {.n = n, .rounds = rounds, .quitter = -1, .quits_at = -1};
    assert_ok(pz_group_new(n, timeout_ms, &r.group, &err), &err);
    return r;
}

static void on_all(ranks *r, pz_crew_fn fn) {
    pz_error err;
    pz_crew *crew;
    assert_ok(pz_crew_new(r->n, &crew, &err), &err);
    assert_ok(pz_crew_run(crew, fn, r, &err), &err);
    pz_crew_free(crew);
}

static void sleep_us(int us) {
    if (us) usleep((useconds_t)us);
}

/* Each rank shows a cell of its own, which the others read, and takes the other cell next time. */
static pz_status exchange_round(ranks *r, int rank, int round, uint64_t *rng) {
    pz_comm *c = pz_group_comm(r->group, rank);
    void *all[PZ_MAX_RANKS];
    int *mine = &r->cell[pz_comm_epoch(c) & 1][rank];
    *mine = round * 100 + rank;
    PZ_TRY(pz_comm_exchange(c, mine, all, &r->err[rank]));
    if (pz_rng_next(rng) % 16 == 0) sleep_us((int)(pz_rng_next(rng) % 200));
    for (int i = 0; i < r->n; i++) r->wrong[rank] += *(int *)all[i] != round * 100 + i;
    return PZ_OK;
}

static void exchange_rounds(void *arg, int rank) {
    ranks *r = arg;
    pz_comm *c = pz_group_comm(r->group, rank);
    uint64_t rng = r->seed + (uint64_t)rank;
    int64_t start = pz_now_ns();
    for (int i = 0; i < r->rounds && r->st[rank] == PZ_OK; i++) {
        if (rank == r->quitter && i == r->quits_at) {
            if (r->reports) {
                pz_error why;
                pz_fail(&why, PZ_E_NOMEM, "no memory for round %d", i);
                pz_comm_fail(c, &why);
                pz_comm_fail(c, &(pz_error){.msg = "the second reason"});
            }
            sleep_us(r->late_us);
        }
        r->st[rank] = i % 3 == 2 ? pz_comm_barrier(c, &r->err[rank]) : exchange_round(r, rank, i, &rng);
        if (r->st[rank] == PZ_OK) r->made[rank]++;
    }
    r->ns[rank] = pz_now_ns() - start;
    r->again[rank] = r->st[rank] == PZ_OK ? PZ_OK : pz_comm_barrier(c, NULL);
}

static void test_exchange(void **state) {
    (void)state;
    for (int n = 1; n <= PZ_MAX_RANKS; n++) {
        ranks r = make(n, n < 5 ? 3000 : 500, 0);
        r.seed = (uint64_t)n * 77;
        on_all(&r, exchange_rounds);
        for (int i = 0; i < n; i++) {
            assert_ok(r.st[i], &r.err[i]);
            assert_int_equal(r.made[i], r.rounds);
            assert_int_equal(r.wrong[i], 0);
            assert_int_equal(pz_comm_epoch(pz_group_comm(r.group, i)), (r.rounds * 2 + 2) / 3);
            assert_int_equal(pz_comm_rank(pz_group_comm(r.group, i)), i);
            assert_int_equal(pz_comm_ranks(pz_group_comm(r.group, i)), n);
        }
        assert_int_equal(pz_group_check(r.group, NULL), PZ_OK);
        pz_group_free(r.group);
    }
}

/* What is written before a barrier is seen by all after it, also where ranks come at very different times. */
static void barrier_rounds(void *arg, int rank) {
    ranks *r = arg;
    uint64_t rng = r->seed + (uint64_t)rank;
    for (int i = 0; i < r->rounds; i++) {
        if (pz_rng_next(&rng) % 8 == 0) sleep_us((int)(pz_rng_next(&rng) % 400));
        r->cell[i & 1][rank] = i;
        if (pz_comm_barrier(pz_group_comm(r->group, rank), &r->err[rank]) != PZ_OK) r->wrong[rank]++;
        for (int k = 0; k < r->n; k++) r->wrong[rank] += r->cell[i & 1][k] != i;
    }
}

static void test_barrier(void **state) {
    (void)state;
    for (int n = 2; n <= PZ_MAX_RANKS; n += 3) {
        ranks r = make(n, 600, 0);
        on_all(&r, barrier_rounds);
        for (int i = 0; i < n; i++) assert_int_equal(r.wrong[i], 0);
        pz_group_free(r.group);
    }
}

static void test_failure(void **state) {
    (void)state;
    for (int n = 1; n <= PZ_MAX_RANKS; n++)
        for (int at = 0; at < 4; at++) {
            ranks r = make(n, 100, 20000);
            r.quitter = at * 3 % n;
            r.quits_at = at * 9;
            r.reports = true;
            char text[80];
            snprintf(text, sizeof text, "rank %d failed: no memory for round %d", r.quitter, r.quits_at);
            on_all(&r, exchange_rounds);
            for (int i = 0; i < n; i++) {
                assert_fails(r.st[i], PZ_E_PEER, &r.err[i], text);
                assert_int_equal(r.again[i], PZ_E_PEER);
                assert_int_equal(r.made[i], r.quits_at);
                assert_int_equal(r.wrong[i], 0);
                assert_true(r.ns[i] < 10000000000); /* woken, not timed out */
            }
            pz_error err;
            assert_fails(pz_group_check(r.group, &err), PZ_E_PEER, &err, text);
            pz_group_free(r.group);
        }
}

/* The late one finds the group failed and gets the same error as those who waited. */
static void test_time_out(void **state) {
    (void)state;
    for (int n = 2; n <= PZ_MAX_RANKS; n += 2) {
        ranks r = make(n, 100, 60);
        r.quitter = n - 1;
        r.quits_at = 7;
        r.late_us = 300000;
        char text[80];
        snprintf(text, sizeof text, "rank %d of %d did not arrive within 60 ms", n - 1, n);
        on_all(&r, exchange_rounds);
        for (int i = 0; i < n; i++) {
            assert_fails(r.st[i], PZ_E_TIMEOUT, &r.err[i], text);
            assert_int_equal(r.again[i], PZ_E_TIMEOUT);
            assert_int_equal(r.made[i], 7);
            assert_true(r.ns[i] < 10000000000);
        }
        pz_group_free(r.group);
    }
    ranks r = make(4, 1, 40);
    pz_error err;
    assert_fails(pz_comm_barrier(pz_group_comm(r.group, 1), &err), PZ_E_TIMEOUT, &err,
                 "ranks 0, 2, 3 of 4 did not arrive within 40 ms");
    pz_group_free(r.group);
}

/* A rank that arrives just when the others give up: all have the barrier, or none has. */
static void test_time_out_race(void **state) {
    (void)state;
    int passed = 0, tries = 150;
    for (int t = 0; t < tries; t++) {
        ranks r = make(3, 1, 2);
        r.quitter = t % 3;
        r.quits_at = 0;
        r.late_us = 1700 + t * 4;
        on_all(&r, exchange_rounds);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r.made[i], r.made[0]);
            assert_int_equal(r.st[i], r.made[0] ? PZ_OK : PZ_E_TIMEOUT);
            assert_int_equal(r.wrong[i], 0);
        }
        passed += r.made[0];
        pz_group_free(r.group);
    }
    print_message("%d of %d barriers opened in time\n", passed, tries);
}

static void *run_group(void *arg) {
    pz_crew *crew;
    ranks *r = arg;
    if (pz_crew_new(r->n, &crew, NULL) != PZ_OK) return arg;
    pz_status st = pz_crew_run(crew, exchange_rounds, r, NULL);
    pz_crew_free(crew);
    return st == PZ_OK ? NULL : arg;
}

/* Groups do not know of each other; the failure of one is not the other's. */
static void test_two_groups(void **state) {
    (void)state;
    ranks a = make(3, 1000, 0), b = make(2, 1000, 0);
    b.quitter = 1;
    b.quits_at = 500;
    b.reports = true;
    pthread_t other;
    void *result;
    assert_int_equal(pthread_create(&other, NULL, run_group, &b), 0);
    assert_null(run_group(&a));
    pthread_join(other, &result);
    assert_null(result);
    for (int i = 0; i < 3; i++) assert_int_equal(a.made[i], 1000);
    for (int i = 0; i < 2; i++) assert_int_equal(b.st[i], PZ_E_PEER);
    pz_group_free(a.group);
    pz_group_free(b.group);
}

static void test_refusals(void **state) {
    (void)state;
    pz_error err;
    pz_group *g = NULL;
    assert_fails(pz_group_new(0, 0, &g, &err), PZ_E_RANGE, &err, "0 ranks: must be 1 to 8");
    assert_fails(pz_group_new(9, 0, &g, &err), PZ_E_RANGE, &err, "9 ranks");
    assert_fails(pz_group_new(2, -1, &g, &err), PZ_E_RANGE, &err, "time-out of -1 ms");
    assert_null(g);
    pz_group_free(NULL);
    pz_crew_free(NULL);
    pz_crew *crew;
    pz_alloc_fail_after(0);
    pz_status group = pz_group_new(2, 0, &g, &err), threads = pz_crew_new(2, &crew, NULL);
    pz_alloc_fail_after(-1);
    assert_fails(group, PZ_E_NOMEM, &err, "out of memory");
    assert_int_equal(threads, PZ_E_NOMEM);
    assert_ok(pz_group_new(2, 0, &g, &err), &err);
    assert_int_equal(pz_comm_timeout_ms(pz_group_comm(g, 1)), PZ_COMM_TIMEOUT_MS);
    pz_group_free(g);
}

/* ---- the threads ---- */
static void count(void *arg, int rank) {
    ((int *)arg)[rank]++;
}

static void test_crew(void **state) {
    (void)state;
    pz_error err;
    for (int n = 1; n <= PZ_MAX_RANKS; n++) {
        pz_crew *crew;
        int calls[PZ_MAX_RANKS] = {0};
        assert_ok(pz_crew_new(n, &crew, &err), &err);
        for (int i = 0; i < 2000; i++) assert_ok(pz_crew_run(crew, count, calls, &err), &err);
        for (int r = 0; r < PZ_MAX_RANKS; r++) assert_int_equal(calls[r], r < n ? 2000 : 0);
        pz_crew_free(crew);
    }
}

static void count_threads(void *arg, int tid, int nthreads) {
    (void)tid;
    atomic_fetch_add((_Atomic int *)arg, nthreads);
}

static void region(void *arg, int rank) {
    pz_par_run(3, count_threads, (_Atomic int *)arg + rank);
}

/* Each rank has a team of its own. */
static void test_crew_regions(void **state) {
    (void)state;
    pz_error err;
    pz_crew *crew;
    _Atomic int calls[4] = {0};
    assert_ok(pz_crew_new(4, &crew, &err), &err);
    for (int i = 0; i < 50; i++) assert_ok(pz_crew_run(crew, region, calls, &err), &err);
    for (int r = 0; r < 4; r++) assert_int_equal(calls[r], 50 * 3 * 3);
    pz_crew_free(crew);
}

static void test_fork(void **state) {
    (void)state;
    pz_error err;
    pz_crew *crew;
    int calls[2] = {0}, status = 0;
    assert_ok(pz_crew_new(2, &crew, &err), &err);
    pid_t child = fork();
    if (child == 0) {
        pz_status st = pz_crew_run(crew, count, calls, &err);
        pz_crew_free(crew);
        _exit(st == PZ_E_UNSUPPORTED ? 7 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
    assert_ok(pz_crew_run(crew, count, calls, &err), &err);
    assert_int_equal(calls[1], 1);
    pz_crew_free(crew);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange), cmocka_unit_test(test_barrier),       cmocka_unit_test(test_failure),
        cmocka_unit_test(test_time_out), cmocka_unit_test(test_time_out_race), cmocka_unit_test(test_two_groups),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_crew),          cmocka_unit_test(test_crew_regions),
        cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
