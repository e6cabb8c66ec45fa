/* SPDX-License-Identifier: Apache-2.0 */
/* What measurements are made of: a stream with a clock, device memory that is released at the end, and chains: captured
 * graphs of links that follow each other. */
#ifndef PZ_CUDA_LAB_H
#define PZ_CUDA_LAB_H

#include "backend/cuda/cuda.h"

typedef struct pz_lab {
    int device, before; /* before: the thread's device, current again after close */
    int units, sm;
    int64_t l2_bytes, memory_bytes;
    char product[64];
    cudaStream_t stream;
    cudaEvent_t begin, end;
    PZ_VEC(void *) memory;
    /* How to wait for the stream, where its kernels may not end; NULL: until they do. */
    pz_status (*wait)(void *ctx, pz_error *err);
    void *wait_ctx;
} pz_lab;

/* On failure too, close releases what there is. */
pz_status pz_lab_open(pz_lab *lab, int device, pz_error *err);
void pz_lab_close(pz_lab *lab);
/* Device memory, zeroed, until close. E_NOMEM says for what and how much. */
pz_status pz_lab_alloc(pz_lab *lab, const char *what, size_t bytes, void **out, pz_error *err);
/* Waits for the stream; an error of a kernel shows here. */
pz_status pz_lab_wait(pz_lab *lab, pz_error *err);

/* ---- chains ---- */
typedef struct pz_lab_chain {
    cudaGraphExec_t graph;
    int links;
    int replays; /* of one sample */
} pz_lab_chain;

/* Launches link number `link` into the lab's stream. */
typedef pz_status (*pz_lab_link_fn)(void *ctx, int link, pz_error *err);

/* Launches one link eagerly, so that nothing is loaded while capturing and a launch that does not fit is seen here,
 * then captures all. */
pz_status pz_lab_capture(pz_lab *lab, int links, pz_lab_link_fn fn, void *ctx, pz_lab_chain *out, pz_error *err);
void pz_lab_chain_free(pz_lab_chain *c);
pz_status pz_lab_replay(pz_lab *lab, const pz_lab_chain *c, pz_error *err);
/* Chooses `replays`, so that a sample lasts sample_us. */
pz_status pz_lab_calibrate(pz_lab *lab, pz_lab_chain *c, double sample_us, pz_error *err);
/* One replay that is not counted, then the mean over `replays`: us of one link. */
pz_status pz_lab_sample(pz_lab *lab, const pz_lab_chain *c, double *us, pz_error *err);

/* The numbers 0..n-1 in random order. */
void pz_lab_shuffle(uint64_t *rng, int *order, int n);

#endif
