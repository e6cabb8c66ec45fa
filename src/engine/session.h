/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an engine, for the files of this part and for tests. */
#ifndef PZ_SESSION_H
#define PZ_SESSION_H

#include "base/best.h"
#include "comm/crew.h"
#include "engine/kvcache.h"
#include "model/model.h"
#include "plan/tuned.h"
#include "prezero/engine.h"

enum { PZ_MAX_BUCKETS = 32, PZ_ENGINE_INPUTS = 3 };

/* A plan and the time its launches took. */
typedef struct pz_prepared {
    pz_plan *plan;             /* rank 0's, whose times are the ones reported */
    pz_plan *of[PZ_MAX_RANKS]; /* of each rank: the same plan where the graphs are the same */
    int64_t *launch_ns;        /* [ranks][launches] */
    int64_t calls;             /* timed steps */
} pz_prepared;

typedef struct pz_bucket_set {
    int n, rows[PZ_MAX_BUCKETS]; /* 1, 2, 4, ... and the largest */
    pz_prepared prepared[PZ_MAX_BUCKETS];
} pz_bucket_set;

/* What a rank has of its own. A group and a crew are there where there are several. */
typedef struct pz_rank {
    pz_graph *graph; /* rank 0's where all are equal */
    pz_backend *backend;
    unsigned char *arena; /* as large as the largest prepared plan needs */
    float *shard; /* its columns of the logits that are read, [shard_rows][vocab / tp], and the choice in each */
    pz_choice *choice;
    pz_status st; /* of the running call */
    pz_error err;
} pz_rank;

struct pz_engine {
    pz_hf_config hf;
    pz_checkpoint *checkpoint; /* stays open: embeddings are read in place */
    int tp;
    pz_expert_split experts;
    pz_group *group;
    pz_crew *crew;
    pz_rank rank[PZ_MAX_RANKS];
    int shard_rows;
    const pz_backend_api *api;
    char device_name[80]; /* "cpu", "cuda:0 (NVIDIA H200)" */
    pz_device device;
    pz_tuned *tuned; /* of the device, NULL: none */
    pz_gate_mode gate;
    int strategy; /* as pz_plan_options */
    bool prezero;
    int max_batch, prefill_chunk, max_rows;
    int in_ids, in_pos, in_seq;        /* parameter numbers of the entry */
    int32_t *inputs[PZ_ENGINE_INPUTS]; /* [max_rows] each, by parameter number */
    pz_bucket_set decode;              /* decode steps; prepared when the engine opens */
    pz_bucket_set prompt;              /* any other step; prepared at first use */
    pz_kv kv;
    int *pending;  /* [max_sequences] rows of the running step, 0 between steps */
    int *all_rows; /* 0, 1, 2, ... */
    int64_t arena_bytes;
    double load_seconds;
    bool timed;
    bool poison; /* tests: the plan's part of the arena is filled with 0xFF before each step */
};

/* Opens the ranks' backends on a device (as pz_engine_options.device), which share `threads`, and the device's tuned
 * table. */
pz_status pz_engine_open_device(pz_engine *e, const char *word, int threads, pz_error *err);
/* Makes the group and the threads of e->tp ranks; nothing for one. */
pz_status pz_engine_open_ranks(pz_engine *e, int timeout_ms, pz_error *err);
void pz_engine_close_ranks(pz_engine *e);
/* Calls fn for every rank, at the same time, each on its thread. The error of a rank is returned with its number in
 * front (but where there is one alone), and ends the group: no later call is made. */
typedef pz_status (*pz_rank_fn)(pz_engine *e, int rank, void *arg, pz_error *err);
pz_status pz_engine_on_ranks(pz_engine *e, pz_rank_fn fn, void *arg, pz_error *err);
/* Around calls that use devices, from the thread that calls the engine; may be nested. One rank needs no turn. */
void pz_engine_begin_turn(const pz_engine *e);
void pz_engine_end_turn(const pz_engine *e);
/* The prepared plan that serves `rows` rows. */
pz_status pz_engine_prepare(pz_engine *e, int rows, bool decode, pz_prepared **out, pz_error *err);
/* pz_engine_step with the results of the `n_pick` rows pick[] only: the greedy choices best [n_pick], -1 where no logit
 * is finite, or, best NULL, the logits f32 [n_pick, vocab]. */
pz_status pz_engine_run(pz_engine *e, const pz_row *rows, int n, const int *pick, int n_pick, float *logits,
                        int32_t *best, pz_error *err);
/* Whether a choice needs no more than the greedy one; E_RANGE for what no sampling may be. */
pz_status pz_sampling_is_greedy(const pz_sampling *how, bool *greedy, pz_error *err);
/* E_RANGE unless a token was chosen. */
pz_status pz_greedy_token(int32_t best, int vocab, int32_t *token, pz_error *err);
void pz_bucket_set_init(pz_bucket_set *set, int max_rows);
void pz_bucket_set_free(const pz_engine *e, pz_bucket_set *set);
/* Tests, the negative control: every prepared decode plan's donors fill nothing, while its GEMMs still skip zeroing. */
void pz_engine_break_fills(pz_engine *e);
/* Tests: whether what every rank has, it has with the same bits: the latent cache, and the hidden state that the last
 * GEMM of plan `p`, which the last step ran, was given. */
pz_status pz_engine_ranks_agree(pz_engine *e, const pz_prepared *p, bool *agree, pz_error *err);

#endif
