/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce and fused_allreduce_rmsnorm over ranks on GPUs that write to each other's memory: bit by bit against sums
 * in f32 in the order of the ranks, and between the ranks; the norms against f64. */
#include "lab.h"
#include "support_team.h"

enum { SWITCH = TEAM_SWITCH, MOST_ROWS = 130 };

/* ---- values ---- */
static void test_values(void **state) {
    (void)state;
    static const int rows[] = {1, SWITCH, SWITCH + 1, 3, MOST_ROWS, 33};
    for (int ranks = 2; ranks <= 4; ranks++) team_check_values(ranks, 256, rows, 6, ranks == 3 ? TEAM_EAGER : 0);
}

static void test_wide_rows(void **state) {
    (void)state;
    static const int rows[] = {1, 9, SWITCH + 2};
    team_check_values(2, 7168, rows, lab_small() ? 2 : 3, 0);
    team_check_values(4, 7168, rows, lab_small() ? 2 : 3, 0);
    team_check_values(2, 16384, rows, 2, 0);
    team_check_values(3, 1000, rows, 3, 0);
    team_check_values(2, 7176, rows, lab_small() ? 2 : 3, 0); /* a warp of a cluster is beyond the row */
    if (lab_small()) return;
    static const int full[] = {MOST_ROWS};
    team_check_values(2, 16384, full, 1, 0); /* four vectors a thread */
}

/* Workspaces that move, to the address that they had or to another one, under graphs that are replayed afterwards. */
static void test_growing(void **state) {
    (void)state;
    enum { SIZES = 4 };
    static const int cols[SIZES] = {64, 512, 3072, 16384};
    team *t = team_open(2, 20000, 0);
    stage *s[SIZES];
    for (int i = 0; i < SIZES; i++) s[i] = stage_of_chain(t, 5, cols[i], 7 + (uint64_t)i);
    for (int i = 0; i < SIZES; i++) {
        team_run_twice(t, s + i, 1);
        running u = {.t = t, .stages = s, .n_stages = i + 1, .replays = 20, .check_every = 1, .missing = -1};
        team_must(&u);
        stage_check(s[i], true);
    }
    for (int i = 0; i < SIZES; i++) stage_free(s[i]);
    team_close(t);
}

/* More rows than one launch takes. */
static void test_many_rows(void **state) {
    (void)state;
    static const int rows[] = {300, 2, 513};
    team_check_values(2, 64, rows, 3, 0);
}

/* The bits of a row are those that it has alone, whichever way it takes and however many blocks share it. */
static void check_rows(int ranks, int cols) {
    enum { SIZES = 7 };
    static const int sizes[SIZES] = {MOST_ROWS, 1, SWITCH, SWITCH + 1, 7, 17, 34};
    team *t = team_open(ranks, 20000, 0);
    stage *s[SIZES];
    for (int i = 0; i < SIZES; i++) s[i] = stage_of_chain(t, sizes[i], cols, 3);
    team_run_twice(t, s, SIZES);
    for (int i = 1; i < SIZES; i++)
        for (int k = 0; k < TEAM_CHAIN; k++)
            for (int e = 0; e < sizes[i] * cols; e++) {
                int whole = (MOST_ROWS - sizes[i]) * cols + e;
                float a = collective_at(s[i]->rig[0], s[i]->first[0], s[i]->c[k].y[0], e),
                      b = collective_at(s[0]->rig[0], s[0]->first[0], s[0]->c[k].y[0], whole);
                assert_memory_equal(&a, &b, sizeof a);
            }
    for (int i = 0; i < SIZES; i++) stage_free(s[i]);
    team_close(t);
}

static void test_rows_do_not_depend_on_others(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        check_rows(ranks, 512);
        check_rows(ranks, 7168);
    }
}

static void test_without_the_fill(void **state) {
    (void)state;
    team_check_without_fill(0);
}

static void test_payloads(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= (lab_small() ? 2 : 4); ranks++)
        for (int i = 0; i < 4; i++)
            team_check_payloads(ranks, i % 2 ? PZ_DT_BF16 : PZ_DT_F32, i / 2 ? 24 : SWITCH + 10, 320, 0);
    /* rows that one pass cannot finish: on clusters of blocks, and several on a block */
    team_check_payloads(2, PZ_DT_BF16, 3, 7168, 0);
    if (lab_small()) return;
    team_check_payloads(2, PZ_DT_BF16, 24, 7168, 0);
    team_check_payloads(2, PZ_DT_F32, 300, 320, 0);
}

/* ---- replays ---- */
enum { REPLAYED = 8 };
static const struct {
    int rows, times; /* as wide as others: rows that several blocks share */
} replayed[REPLAYED] = {{1, 28}, {SWITCH, 1}, {SWITCH + 1, 1}, {3, 28}, {MOST_ROWS, 1}, {33, 1}, {8, 8}, {66, 1}};

static void open_replayed(team *t, int cols, uint64_t seed, stage **stages) {
    for (int i = 0; i < REPLAYED; i++)
        stages[i] = stage_of_chain(t, replayed[i].rows, replayed[i].times * cols, seed + (uint64_t)i);
    team_run_twice(t, stages, REPLAYED);
    for (int i = 0; i < REPLAYED; i++) stage_check(stages[i], true);
}

static void close_replayed(team *t, stage **stages) {
    for (int i = 0; i < REPLAYED; i++) stage_free(stages[i]);
    team_close(t);
}

static running replays_of(team *t, stage *const *stages, int replays) {
    return (running){
        .t = t, .stages = stages, .n_stages = REPLAYED, .replays = replays, .check_every = 97, .missing = -1};
}

/* 200,000 replays of graphs, whose rows go from one side of the switch point to the other at random. */
static void test_replays(void **state) {
    (void)state;
    stage *stages[REPLAYED];
    team *t = team_open(2, 20000, 0);
    open_replayed(t, 256, 1, stages);
    running u = replays_of(t, stages, lab_small() ? 2000 : 200000);
    team_must(&u);
    close_replayed(t, stages);
    t = team_open(4, 20000, 0);
    open_replayed(t, 128, 2, stages);
    u = replays_of(t, stages, lab_small() ? 500 : 10000);
    team_must(&u);
    close_replayed(t, stages);
}

static void one_of_two(void *arg, int which) {
    team_try((running *)arg + which);
}

/* Two groups on the same devices at the same time. */
static void test_two_groups(void **state) {
    (void)state;
    pz_error err;
    pz_crew *crew;
    team *t[2];
    stage *stages[2][REPLAYED];
    running u[2];
    assert_ok(pz_crew_new(2, &crew, &err), &err);
    for (int i = 0; i < 2; i++) {
        t[i] = team_open(2, 20000, TEAM_OF_TWO);
        open_replayed(t[i], 256, 5 + (uint64_t)i, stages[i]);
        u[i] = replays_of(t[i], stages[i], lab_small() ? 1000 : 20000);
    }
    assert_ok(pz_crew_run(crew, one_of_two, u, &err), &err);
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < 2; r++) assert_ok(t[i]->st[r], &t[i]->err[r]);
        close_replayed(t[i], stages[i]);
    }
    pz_crew_free(crew);
}

/* ---- failures ---- */
static void test_missing_rank(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int m = 2; m <= SWITCH + 2; m += SWITCH) team_check_missing(ranks, m, 300, 0);
}

static void test_failed_rank(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks += 2) team_check_failed(ranks, 0);
}

static void test_refusals(void **state) {
    (void)state;
    pz_error err;
    pz_group *g;
    const pz_backend_api *api;
    pz_backend *b = NULL;
    assert_ok(pz_backend_cuda(&api, &err), &err);
    assert_ok(pz_group_new(2, 0, &g, &err), &err);
    pz_backend_options o = {.comm = pz_group_comm(g, 0), .one_shot = 257};
    assert_fails(api->open(&o, &b, &err), PZ_E_RANGE, &err, "one_shot 257: must be 1 to 256");
    o = (pz_backend_options){.comm = pz_group_comm(g, 0), .device = 1000};
    assert_fails(api->open(&o, &b, &err), PZ_E_UNSUPPORTED, &err, "no GPU 1000");
    assert_null(b);
    pz_group_free(g);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        lab_test(test_values),
        lab_test(test_wide_rows),
        lab_test(test_many_rows),
        lab_test(test_growing),
        lab_test(test_rows_do_not_depend_on_others),
        lab_test(test_without_the_fill),
        lab_test(test_payloads),
        lab_test(test_replays),
        lab_test(test_two_groups),
        lab_test(test_missing_rank),
        lab_test(test_failed_rank),
        lab_test(test_refusals),
    };
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
