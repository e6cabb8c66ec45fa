/* SPDX-License-Identifier: Apache-2.0 */
/* How NCCL is opened and waited for, with a libnccl.so.2 of our own (fake_nccl/fake.h): whatever it does, every rank
 * comes back within the time-out, and gives back what it has. */
#include "support.h"

#include <dlfcn.h>
#include <unistd.h>

#include "backend/cuda/comm/nccl.h"
#include "comm/crew.h"
#include "fake_nccl/fake.h"

/* ---- CUDA, as far as it is asked ---- */
static _Thread_local int current_device;
static _Atomic cudaError_t stream_state;

cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    (void)stream;
    return stream_state;
}

pz_status pz_cuda_check(cudaError_t code, const char *what, pz_error *err) {
    return code == cudaSuccess ? PZ_OK : pz_fail(err, PZ_E_INTERNAL, "%s: %d", what, (int)code);
}

/* ---- ranks ---- */
static fake_nccl *fake;

static int load(void **state) {
    (void)state;
    void *handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail_msg("%s", dlerror());
    fake = dlsym(handle, "pz_fake_nccl");
    return fake ? 0 : -1;
}

static int reset(void **state) {
    (void)state;
    *fake = (fake_nccl){.polls = 3};
    stream_state = cudaSuccess;
    return 0;
}

typedef struct ranks ranks;
typedef pz_status (*rank_fn)(ranks *t, int rank, pz_error *err);
struct ranks {
    int n;
    const int *device; /* NULL: one each */
    rank_fn fn;        /* after a successful opening; may be NULL */
    pz_group *g;
    pz_nccl *nccl[PZ_MAX_RANKS];
    pz_status st[PZ_MAX_RANKS];
    pz_error err[PZ_MAX_RANKS];
};

static void on_rank(void *arg, int r) {
    ranks *t = arg;
    current_device = t->device ? t->device[r] : r;
    t->st[r] = pz_nccl_open(pz_group_comm(t->g, r), &t->nccl[r], &t->err[r]);
    if (t->st[r] == PZ_OK && t->fn) t->st[r] = t->fn(t, r, &t->err[r]);
}

/* All come back within a few time-outs. */
static void run(ranks *t, int timeout_ms) {
    pz_error err;
    pz_crew *crew;
    assert_ok(pz_group_new(t->n, timeout_ms, &t->g, &err), &err);
    assert_ok(pz_crew_new(t->n, &crew, &err), &err);
    int64_t start = pz_now_ns();
    assert_ok(pz_crew_run(crew, on_rank, t, &err), &err);
    assert_true(pz_now_ns() - start < 3 * timeout_ms * (int64_t)1000000 + 1000000000);
    pz_crew_free(crew);
}

static void finish(ranks *t) {
    for (int r = 0; r < t->n; r++) pz_nccl_close(t->nccl[r]);
    pz_group_free(t->g);
    assert_int_equal(fake->live, 0);
}

static pz_status both_collectives(ranks *t, int rank, pz_error *err) {
    PZ_TRY(pz_nccl_all_gather(t->nccl[rank], NULL, NULL, 16, NULL, err));
    PZ_TRY(pz_nccl_all_reduce(t->nccl[rank], NULL, NULL, 16, NULL, err));
    return pz_nccl_wait(t->nccl[rank], NULL, err);
}

/* ---- tests ---- */
static void test_opening(void **state) {
    (void)state;
    for (int n = 2; n <= PZ_MAX_RANKS; n++)
        for (int polls = 0; polls < 4; polls += 3) {
            *fake = (fake_nccl){.polls = polls};
            ranks t = {.n = n, .fn = both_collectives};
            run(&t, 5000);
            for (int r = 0; r < n; r++) assert_ok(t.st[r], &t.err[r]);
            finish(&t);
            assert_int_equal(fake->ids, 1);
            assert_int_equal(fake->calls, 2 * n);
            assert_int_equal(fake->destroyed, n);
            assert_int_equal(fake->aborted, 0);
        }
}

/* Refused on every rank, before anything is asked of NCCL; the group goes on. */
static void test_shared_device(void **state) {
    (void)state;
    static const struct {
        int n, device[PZ_MAX_RANKS];
        const char *text;
    } cases[] = {{2, {0, 0}, "rank 0 and 1 both are on GPU 0"},
                 {3, {0, 1, 0}, "rank 0 and 2 both are on GPU 0"},
                 {4, {2, 3, 1, 3}, "rank 1 and 3 both are on GPU 3"}};
    for (int i = 0; i < 3; i++) {
        ranks t = {.n = cases[i].n, .device = cases[i].device};
        run(&t, 5000);
        for (int r = 0; r < t.n; r++) assert_fails(t.st[r], PZ_E_UNSUPPORTED, &t.err[r], cases[i].text);
        assert_int_equal(pz_group_check(t.g, NULL), PZ_OK);
        finish(&t);
        assert_int_equal(fake->ids + fake->opened, 0);
    }
}

static void test_all_refused(void **state) {
    (void)state;
    fake->refused = 7;
    ranks t = {.n = 3};
    run(&t, 5000);
    for (int r = 0; r < 3; r++)
        assert_fails(t.st[r], PZ_E_UNSUPPORTED, &t.err[r], "NCCL, opening: a fault of the system");
    assert_int_equal(pz_group_check(t.g, NULL), PZ_OK);
    finish(&t);
}

/* The others wait in the opening for the one that was refused. */
static void test_one_refused(void **state) {
    (void)state;
    fake->refused = 2;
    ranks t = {.n = 3};
    run(&t, 150);
    for (int r = 0; r < 3; r++) {
        assert_int_not_equal(t.st[r], PZ_OK);
        assert_null(t.nccl[r]);
    }
    assert_fails(t.st[1], PZ_E_UNSUPPORTED, &t.err[1], "NCCL, opening: a fault of the system");
    finish(&t);
    assert_int_equal(fake->aborted, 2);
}

static void test_endless_opening(void **state) {
    (void)state;
    fake->never = 1;
    ranks t = {.n = 4};
    run(&t, 100);
    for (int r = 0; r < 4; r++) assert_int_not_equal(t.st[r], PZ_OK);
    assert_fails(t.st[0], PZ_E_TIMEOUT, &t.err[0], "did not arrive within 100 ms");
    finish(&t);
    assert_int_equal(fake->aborted, 4);
}

static pz_status endless_call(ranks *t, int rank, pz_error *err) {
    if (rank == 0) fake->never = 1;
    PZ_TRY(pz_comm_barrier(pz_group_comm(t->g, rank), err));
    return pz_nccl_all_gather(t->nccl[rank], NULL, NULL, 16, NULL, err);
}

static pz_status endless_stream(ranks *t, int rank, pz_error *err) {
    stream_state = cudaErrorNotReady;
    return pz_nccl_wait(t->nccl[rank], NULL, err);
}

static void test_endless_work(void **state) {
    (void)state;
    static const rank_fn fns[] = {endless_call, endless_stream};
    for (int i = 0; i < 2; i++) {
        reset(NULL);
        ranks t = {.n = 2, .fn = fns[i]};
        run(&t, 200);
        for (int r = 0; r < 2; r++) {
            assert_fails(t.st[r], PZ_E_TIMEOUT, &t.err[r], "a rank of 2 did not arrive within 200 ms");
            pz_comm_fail(pz_group_comm(t.g, r), &t.err[r]);
        }
        pz_nccl_abort(t.nccl[0]); /* and again by close */
        finish(&t);
        assert_int_equal(fake->aborted, 2);
    }
}

/* Who waits for a rank that has failed ends at once. */
static pz_status fail_or_wait(ranks *t, int rank, pz_error *err) {
    stream_state = cudaErrorNotReady;
    if (rank != 1) return pz_nccl_wait(t->nccl[rank], NULL, err);
    usleep(20000);
    pz_comm_fail(pz_group_comm(t->g, 1), &(pz_error){.msg = "lost its device"});
    return PZ_OK;
}

static void test_failed_rank(void **state) {
    (void)state;
    ranks t = {.n = 3, .fn = fail_or_wait};
    int64_t start = pz_now_ns();
    run(&t, 60000);
    assert_true(pz_now_ns() - start < 10000000000);
    for (int r = 0; r < 3; r += 2) assert_fails(t.st[r], PZ_E_PEER, &t.err[r], "rank 1 failed: lost its device");
    finish(&t);
    assert_int_equal(fake->aborted, 3);
}

static void test_faulty_call(void **state) {
    (void)state;
    for (int polls = 0; polls < 3; polls += 2) {
        *fake = (fake_nccl){.polls = polls, .call_error = 2};
        ranks t = {.n = 2, .fn = both_collectives};
        run(&t, 5000);
        for (int r = 0; r < 2; r++)
            assert_fails(t.st[r], PZ_E_UNSUPPORTED, &t.err[r], "NCCL, all-gather: a fault of the system");
        finish(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_opening, reset),         cmocka_unit_test_setup(test_shared_device, reset),
        cmocka_unit_test_setup(test_all_refused, reset),     cmocka_unit_test_setup(test_one_refused, reset),
        cmocka_unit_test_setup(test_endless_opening, reset), cmocka_unit_test_setup(test_endless_work, reset),
        cmocka_unit_test_setup(test_failed_rank, reset),     cmocka_unit_test_setup(test_faulty_call, reset),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
