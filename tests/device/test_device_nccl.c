/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives through NCCL, as where GPUs cannot write to each other's memory: the same values and the same bits as
 * without it, and no rank that waits for ever. */
#include "lab.h"
#include "support_team.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>

/* NCCL opens and connects within it. */
enum { TIMEOUT_MS = 8000 };

/* ---- what there is ---- */
static int devices(void) {
    int n = 0;
    assert_int_equal(cudaGetDeviceCount(&n), cudaSuccess);
    return n < PZ_MAX_RANKS ? n : PZ_MAX_RANKS;
}

/* Ranks that there can be at most; less than 2: nothing can be tested, which has been said. */
static int most_ranks(void) {
    if (!dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
        print_message("  NOT TESTED: NCCL: %s\n", dlerror());
        return 0;
    }
    if (devices() < 2) print_message("  NOT TESTED: NCCL: there is one GPU\n");
    return devices();
}

/* ---- values ---- */
static void test_nccl_values(void **state) {
    (void)state;
    static const int rows[] = {1, TEAM_SWITCH, TEAM_SWITCH + 1, 3, 130, 33}, many[] = {300, 2, 513};
    int most = most_ranks();
    for (int ranks = 2; ranks <= most; ranks += ranks < 4 ? 1 : 4) {
        team_check_values(ranks, 256, rows, 6, TEAM_NCCL);
        team_check_values(ranks, 256, rows, 2, TEAM_NCCL | TEAM_EAGER);
        team_check_values(ranks, 64, many, 3, TEAM_NCCL);
    }
}

static void test_nccl_payloads(void **state) {
    (void)state;
    int most = most_ranks();
    for (int ranks = 2; ranks <= most; ranks += ranks < 4 ? 1 : 4)
        for (int i = 0; i < 2; i++) team_check_payloads(ranks, i ? PZ_DT_BF16 : PZ_DT_F32, 24, 320, TEAM_NCCL);
}

static void test_nccl_without_the_fill(void **state) {
    (void)state;
    if (most_ranks() < 2) return;
    team_check_without_fill(TEAM_NCCL);
}

/* Everything that a run leaves from the same poisoned memory: sums, norms, and what is zeroed on the way. */
static void test_nccl_bits_as_ours(void **state) {
    (void)state;
    enum { SIZES = 4 };
    static const int rows[SIZES] = {1, 9, TEAM_SWITCH + 1, 200};
    int most = most_ranks();
    for (int ranks = 2; ranks <= most; ranks += ranks < 4 ? 1 : 4) {
        team *t[2];
        stage *s[2][SIZES];
        for (int i = 0; i < 2; i++) {
            t[i] = team_open(ranks, TIMEOUT_MS, i ? TEAM_NCCL : 0);
            for (int k = 0; k < SIZES; k++) s[i][k] = stage_of_chain(t[i], rows[k], 512, (uint64_t)k);
            team_run_twice(t[i], s[i], SIZES);
        }
        for (int k = 0; k < SIZES; k++) {
            stage_check(s[1][k], true);
            for (int r = 0; r < ranks; r++)
                assert_memory_equal(s[0][k]->first[r], s[1][k]->first[r], stage_bytes(s[0][k], r));
        }
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < SIZES; k++) stage_free(s[i][k]);
            team_close(t[i]);
        }
    }
}

/* Graphs of several numbers of rows in random order. */
static void test_nccl_replays(void **state) {
    (void)state;
    enum { SIZES = 4 };
    static const int rows[SIZES] = {1, 200, 8, TEAM_SWITCH};
    if (most_ranks() < 2) return;
    team *t = team_open(2, TIMEOUT_MS, TEAM_NCCL);
    stage *s[SIZES];
    for (int k = 0; k < SIZES; k++) s[k] = stage_of_chain(t, rows[k], 256, (uint64_t)k);
    team_run_twice(t, s, SIZES);
    running u = {.t = t, .stages = s, .n_stages = SIZES, .check_every = 13, .missing = -1};
    u.replays = lab_small() ? 200 : 5000;
    team_must(&u);
    for (int k = 0; k < SIZES; k++) stage_free(s[k]);
    team_close(t);
}

/* ---- refusals and failures ---- */
static void try_once(team *t, stage *s, int missing) {
    running u = {.t = t, .stages = &s, .n_stages = 1, .replays = 1, .check_every = 1, .keep = true};
    u.missing = missing;
    int64_t start = pz_now_ns();
    team_try(&u);
    assert_true(pz_now_ns() - start < 2 * TIMEOUT_MS * (int64_t)1000000);
}

static void test_nccl_refuses_shared_device(void **state) {
    (void)state;
    int ranks = devices() + 1;
    if (ranks > PZ_MAX_RANKS) {
        print_message("  NOT TESTED: NCCL with ranks on one GPU: there is one for each\n");
        return;
    }
    team *t = team_open(ranks, TIMEOUT_MS, TEAM_NCCL);
    stage *s = stage_of_chain(t, 2, 256, 1);
    char text[64];
    snprintf(text, sizeof text, "rank 0 and %d both are on GPU 0", ranks - 1);
    try_once(t, s, -1);
    for (int r = 0; r < ranks; r++) assert_fails(t->st[r], PZ_E_UNSUPPORTED, &t->err[r], text);
    stage_free(s);
    team_close(t);
}

static void test_nccl_missing_rank(void **state) {
    (void)state;
    int ranks = most_ranks();
    if (ranks < 2) return;
    team_check_missing(ranks, 2, TIMEOUT_MS, TEAM_NCCL);
    team_check_missing(ranks, 2, TIMEOUT_MS, TEAM_NCCL | TEAM_EAGER);
}

/* Before anything has been opened. */
static void test_nccl_missing_from_the_first_run(void **state) {
    (void)state;
    if (most_ranks() < 2) return;
    team *t = team_open(2, 1000, TEAM_NCCL);
    stage *s = stage_of_chain(t, 2, 256, 1);
    try_once(t, s, 1);
    assert_fails(t->st[0], PZ_E_TIMEOUT, &t->err[0], "rank 1 of 2 did not arrive within 1000 ms");
    stage_free(s);
    team_close(t);
}

static void test_nccl_failed_rank(void **state) {
    (void)state;
    int most = most_ranks();
    for (int ranks = 2; ranks <= most; ranks += 2) team_check_failed(ranks, TEAM_NCCL);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        lab_test(test_nccl_values),           lab_test(test_nccl_payloads),
        lab_test(test_nccl_without_the_fill), lab_test(test_nccl_bits_as_ours),
        lab_test(test_nccl_replays),          lab_test(test_nccl_refuses_shared_device),
        lab_test(test_nccl_missing_rank),     lab_test(test_nccl_missing_from_the_first_run),
        lab_test(test_nccl_failed_rank),
    };
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
