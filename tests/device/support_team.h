/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on GPUs, a thread each, and plans of collectives that they run through captured graphs, as the rigs of the CPU
 * say. Ranks have a GPU each where there are enough, else they share. */
#ifndef PZ_TEST_SUPPORT_TEAM_H
#define PZ_TEST_SUPPORT_TEAM_H

#include "support_collective.h"

#include "comm/crew.h"

enum { TEAM_CHAIN = 4, TEAM_SWITCH = 64 /* rows that are sent to all */ };

typedef struct team {
    const pz_backend_api *api;
    pz_group *g;
    pz_crew *crew;
    pz_backend *b[PZ_MAX_RANKS];
    int n, weights;
    pz_status st[PZ_MAX_RANKS];
    pz_error err[PZ_MAX_RANKS];
} team;

enum { TEAM_EAGER = 1, TEAM_NCCL = 2, TEAM_OF_TWO = 4 /* teams, at the same time */ };
team *team_open(int n, int timeout_ms, int flags);
void team_close(team *t);

/* ---- plans ---- */
struct stage;
typedef struct stage_rank {
    struct stage *stage;
    int rank;
} stage_rank;

/* A plan of a number of rows on every rank: rigs, which are there to be written by hand, and their arenas on the GPUs.
 */
typedef struct stage {
    team *t;
    int m, cols, n; /* n: collectives */
    rig *rig[PZ_MAX_RANKS];
    stage_rank at[PZ_MAX_RANKS];
    unsigned char *arena[PZ_MAX_RANKS], *first[PZ_MAX_RANKS]; /* first: what the first run left */
    collective c[TEAM_CHAIN];
} stage;

/* Without collectives: collective_add, up to TEAM_CHAIN times, then ready. */
stage *stage_new(team *t, int m, int cols);
void stage_ready(stage *s);
/* TEAM_CHAIN collectives of several dtypes. A number that 3 does not divide, so that replays begin with each of the
 * buffers. */
stage *stage_of_chain(team *t, int m, int cols, uint64_t seed);
void stage_free(stage *s);
size_t stage_bytes(const stage *s, int rank);
/* Of what the first run left, as collective_check. */
void stage_check(const stage *s, bool filled);

/* ---- running ---- */
typedef struct running {
    team *t;
    stage *const *stages;
    int n_stages, replays, check_every, missing;
    bool fails; /* the missing rank: after a while, by a run that cannot be */
    bool keep;  /* results become the first ones; else they are compared with those */
} running;

/* Every rank's status is in the team afterwards. */
void team_try(const running *u);
void team_must(const running *u);
/* Two runs that are looked at, from poisoned outputs: the first of a plan and a replay. */
void team_run_twice(team *t, stage *const *stages, int n);

/* ---- whole tests ---- */
void team_check_values(int ranks, int cols, const int *rows, int n, int flags);
/* Partial sums of strange values. */
void team_check_payloads(int ranks, pz_dtype x, int m, int cols, int flags);
/* Fills without bytes: what they should have zeroed stays poisoned, which the checks of the others would see. */
void team_check_without_fill(int flags);
/* The last rank never launches: the others end within the time-out, and later runs are refused at once. */
void team_check_missing(int ranks, int m, int timeout_ms, int flags);
/* Rank 1 fails: what the others run ends long before the time-out. */
void team_check_failed(int ranks, int flags);

#endif
