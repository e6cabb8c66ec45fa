/* SPDX-License-Identifier: Apache-2.0 */
/* What an open CUDA backend holds. The CUDA objects belong to one device, which every function makes current first. */
#ifndef PZ_CUDA_STATE_H
#define PZ_CUDA_STATE_H

#include "backend/cuda/cuda.h"

extern const pz_backend_api pz_cuda_backend;
pz_status pz_cuda_probe(pz_error *err);

/* ---- memory ---- */
typedef struct pz_cuda_block {
    void *data;
    int64_t bytes;
} pz_cuda_block;

/* Page-locked host memory. */
typedef struct pz_cuda_pinned {
    void *data;
    size_t bytes;
} pz_cuda_pinned;
pz_status pz_cuda_pinned_grow(pz_cuda_pinned *p, size_t bytes, pz_error *err);
void pz_cuda_pinned_free(pz_cuda_pinned *p);

/* Zeroed device memory; E_NOMEM says for what and how much. */
pz_status pz_cuda_memory(pz_backend *b, const char *what, int64_t bytes, pz_cuda_block *out, pz_error *err);
void pz_cuda_memory_free(pz_backend *b, pz_cuda_block *block);

/* ---- what is kept for a plan ---- */
/* Every address that a launch of the plan may hold. */
typedef struct pz_cuda_addresses {
    const void *arena, *cache, *scratch;
    int64_t weights;  /* number of weights loaded so far */
    int64_t meetings; /* times that the workspaces of the ranks have moved: on all ranks the same, unlike addresses */
} pz_cuda_addresses;

typedef struct pz_cuda_scratch_part {
    size_t offset, bytes;
} pz_cuda_scratch_part;

typedef struct pz_cuda_plan {
    const pz_plan *plan;
    pz_cuda_scratch_part *parts; /* [launches] */
    pz_cuda_block scratch;
    pz_cuda_addresses used; /* by the runs so far, and by the graph; arena NULL before the first */
    int hidden, one_shot;   /* longest row of a collective over several ranks, and most rows that it takes in one step;
                               0: there is none */
    bool loaded; /* several ranks: everything that a run needs is there, so that nothing waits for another's kernels */
    cudaGraphExec_t graph;
    cudaEvent_t *events; /* [launches + 1], made at the first timed run */
} pz_cuda_plan;

/* Finds or makes it: checks every launch and gives it its scratch memory. */
pz_status pz_cuda_plan_get(pz_backend *b, const pz_plan *plan, pz_cuda_plan **out, pz_error *err);
void pz_cuda_plan_free(pz_backend *b, pz_cuda_plan *s);

/* ---- the backend ---- */
struct pz_backend {
    int device, units, sm; /* sm: 90 for 9.0 */
    char product[64], isa[16];
    bool eager, check, ranges;
    int64_t total, used; /* bytes */
    cudaStream_t stream;
    PZ_VEC(pz_cuda_weight) weights; /* by pz_weight.index */
    int64_t weight_bytes, loads;
    PZ_VEC(pz_cuda_block) blocks; /* handed out by alloc */
    PZ_VEC(pz_cuda_plan *) plans;

    /* What goes to the device before a run. The copies read the page-locked memory when the stream gets there, so it is
     * not written again before `uploaded`. */
    cudaEvent_t uploaded;
    pz_cuda_pinned inputs, table; /* table: the block table as the device has it */
    pz_cuda_pinned descriptor;    /* pz_cuda_cache, as the device has it */
    pz_cuda_block table_memory, cache;
    pz_cuda_pinned results; /* rows that read copies */

    pz_cuda_block snapshot, counts; /* debug mode */
    struct pz_cuda_group *group;    /* comm/group.h; NULL: one rank */
};

pz_status pz_cuda_enter(const pz_backend *b, pz_error *err);
void pz_cuda_weight_free(pz_backend *b, pz_cuda_weight *w);
pz_status pz_cuda_load(pz_backend *b, const pz_weight *w, pz_op use, const pz_host_weight *host, pz_error *err);
const pz_cuda_weight *pz_cuda_weight_of(const pz_backend *b, const pz_weight *w);
/* Of what read and argmax are asked for. */
pz_status pz_cuda_check_reading(const pz_backend *b, const pz_plan *plan, int place, const int *rows, int n,
                                pz_error *err);

/* ---- running ---- */
pz_status pz_cuda_run_plan(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err);
pz_status pz_cuda_launch_one(pz_cuda_run *r, int launch, pz_error *err);
/* Launches everything in r->stream, one by one. */
pz_status pz_cuda_launch_all(pz_cuda_run *r, pz_error *err);
/* graph.c: captures the launches of a plan that has run once, so that nothing is loaded for the first time meanwhile.
 */
pz_status pz_cuda_capture(pz_cuda_run *r, pz_error *err);
/* check.c: launches everything, and checks after each launch what the plan says of it. */
pz_status pz_cuda_launch_checked(pz_cuda_run *r, pz_error *err);

#endif
