/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an engine, for the files of this part and for tests. */
#ifndef PZ_SESSION_H
#define PZ_SESSION_H

#include "engine/kvcache.h"
#include "model/model.h"
#include "plan/tuned.h"
#include "prezero/engine.h"

enum { PZ_MAX_BUCKETS = 32, PZ_ENGINE_INPUTS = 3 };

/* A plan and the time its launches took. */
typedef struct pz_prepared {
    pz_plan *plan;
    int64_t *launch_ns; /* [launches] */
    int64_t calls;      /* timed steps */
} pz_prepared;

typedef struct pz_bucket_set {
    int n, rows[PZ_MAX_BUCKETS]; /* 1, 2, 4, ... and the largest */
    pz_prepared prepared[PZ_MAX_BUCKETS];
} pz_bucket_set;

struct pz_engine {
    pz_hf_config hf;
    pz_checkpoint *checkpoint; /* stays open: embeddings are read in place */
    pz_graph *graph;
    const pz_backend_api *api;
    pz_backend *backend;
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
    int *pending;         /* [max_sequences] rows of the running step, 0 between steps */
    int *all_rows;        /* 0, 1, 2, ... */
    unsigned char *arena; /* as large as the largest prepared plan needs */
    int64_t arena_bytes;
    double load_seconds;
    bool timed;
    bool poison; /* tests: the plan's part of the arena is filled with 0xFF before each step */
};

/* Opens the backend of a device (as pz_engine_options.device) and the device's tuned table. */
pz_status pz_engine_open_device(pz_engine *e, const char *word, int threads, pz_error *err);
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

#endif
