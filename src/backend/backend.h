/* SPDX-License-Identifier: Apache-2.0 */
/* What a backend offers the engine. A backend decides nothing: it runs the launches of a plan. */
#ifndef PZ_BACKEND_H
#define PZ_BACKEND_H

#include "comm/comm.h"
#include "ir/host_weight.h"
#include "plan/plan.h"

typedef struct pz_backend pz_backend;

typedef struct pz_backend_options {
    int threads;     /* CPU; 0: online processors */
    const char *isa; /* CPU; a word of knob ISA */
    int device;      /* GPU number */
    /* This rank of a group, borrowed; NULL: one rank alone. Each rank has an instance of its own, loaded with its share
     * of the weights. All run the same plans in the same order, at the same time and on threads of their own, and none
     * begins a run before all have ended the one before. */
    pz_comm *comm;
    bool share_device; /* GPU: where there are fewer than ranks, several get the same one (slow: for tests) */
    int groups;        /* GPU: groups whose runs may overlap on a device, each with its share of it; 0: 1 */
    bool nccl;         /* GPU: collectives through NCCL, also where ranks can write to each other's memory */
    int one_shot;      /* GPU: rows up to which a collective takes one step, whatever plans say; 0: as they say */
    bool eager;        /* GPU: launches one by one, no captured graphs */
    bool check;        /* debug mode: addresses compared at each run, fills checked before their consumers */
    bool ranges;       /* GPU: NVTX ranges with op names, launches one by one */
} pz_backend_options;

/* The paged latent cache. Entry of token t of page p in layer l: data + l * layer_stride + (p * page_tokens + t) *
 * entry * element size. */
typedef struct pz_cache {
    unsigned char *data;
    pz_dtype dt; /* BF16 or F32 */
    int page_tokens, entry /* latent + rope */, n_pages;
    int64_t layer_stride;       /* bytes */
    const int32_t *block_table; /* [sequence][table_stride]: pages of the sequence in order */
    int table_stride;
} pz_cache;

typedef struct pz_run_args {
    unsigned char *arena;         /* plan->arena_bytes from alloc */
    const int32_t *const *inputs; /* host arrays [plan->m], by plan->inputs: written to their places before the
                                     launches; NULL: they are there */
    const pz_cache *cache;        /* data from alloc, block_table on the host */
    int n_sequences;              /* rows of the block table */
    bool poison;        /* tests: the plan's part of the arena is filled with 0xFF before the inputs are written */
    int64_t *launch_ns; /* [launches]: time of each is added (then run eagerly); NULL: not timed */
} pz_run_args;

typedef enum pz_copy { PZ_COPY_TO, PZ_COPY_WITHIN, PZ_COPY_FROM } pz_copy; /* the memory that kernels see */

typedef struct pz_backend_api {
    const char *name;
    int max_ranks; /* of a group that collectives can span; 0: none, one rank alone */
    /* Instances are independent: threads may use different ones at the same time. */
    pz_status (*open)(const pz_backend_options *opts, pz_backend **out, pz_error *err);
    void (*close)(pz_backend *b);
    void (*device)(const pz_backend *b, pz_device *out); /* for plans */
    const char *(*isa)(const pz_backend *b);             /* "avx512", "sm_90" */
    const char *(*product)(const pz_backend *b);         /* "NVIDIA H200"; "" for the CPU */
    /* Bytes of a GPU's memory: held by this backend, and in all; 0 on the CPU. */
    void (*memory)(const pz_backend *b, int64_t *used, int64_t *total);
    /* Brings a weight into the form its kernels read (one copy) and computes w_norm for GEMM weights. `use` is an op
     * that reads it. The host's memory is not needed afterwards, except for EMBED tables, which are read in place. */
    pz_status (*load)(pz_backend *b, const pz_weight *w, pz_op use, const pz_host_weight *host, pz_error *err);
    int64_t (*weight_bytes)(const pz_backend *b);
    /* Memory that kernels see: zeroed, 64-byte aligned. E_NOMEM says how much was asked for. */
    pz_status (*alloc)(pz_backend *b, int64_t bytes, unsigned char **out, pz_error *err);
    void (*release)(pz_backend *b, unsigned char *p);
    pz_status (*copy)(pz_backend *b, void *dst, const void *src, int64_t bytes, pz_copy kind, pz_error *err);
    /* May return before the work has ended: read and copy wait for it and report what went wrong in it. Padded rows
     * carry seq -1, pos 0, token 0: kernels give them finite results and touch no cache for them. */
    pz_status (*run)(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err);
    /* Before a plan that has been run is changed or freed, or is run on another arena: drops what is kept for it
     * (captured graphs). */
    void (*forget)(pz_backend *b, const pz_plan *plan);
    /* After run: rows[i] of an activation's place (views and FIXED accumulators included) as f32 into dst[i][columns].
     * This is how the engine reads the logits. */
    pz_status (*read)(pz_backend *b, const pz_plan *plan, const pz_run_args *args, int place, const int *rows, int n,
                      float *dst, pz_error *err);
    /* After run: the greedy choice of base/best.h among the columns of rows[i], into ids[i]. */
    pz_status (*argmax)(pz_backend *b, const pz_plan *plan, const pz_run_args *args, int place, const int *rows, int n,
                        int32_t *ids, pz_error *err);
} pz_backend_api;

/* What read and argmax check, for a backend to call: an activation's place, with its scale loaded if it is FIXED
 * (`scaled`), and rows of the plan. */
pz_status pz_backend_check_reading(const char *backend, const pz_plan *plan, int place, bool scaled, const int *rows,
                                   int n, pz_error *err);

const pz_backend_api *pz_backend_cpu(void);
/* The CUDA backend lives in a module that is loaded at the first call. E_UNSUPPORTED says why there is none: not built,
 * no driver, no device of a built architecture. */
pz_status pz_backend_cuda(const pz_backend_api **out, pz_error *err);

#endif
