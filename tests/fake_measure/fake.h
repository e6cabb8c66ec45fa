/* SPDX-License-Identifier: Apache-2.0 */
/* What measurements stand on, without a GPU: a CUDA runtime whose device is host memory and whose clock is moved by the
 * kernels, and kernels that compute and can be told to go wrong. */
#ifndef PZ_FAKE_MEASURE_H
#define PZ_FAKE_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "prezero/kernels.h"

typedef struct fake_state {
    /* set by tests */
    long malloc_fail_after; /* calls of cudaMalloc that still succeed, negative: all */
    int64_t l2_bytes;
    double norm_us, dependent_us, rider_us;          /* a norm; less where it is dependent; more with a rider */
    double (*gemm_us)(const pz_gemm_args *a);        /* cost of a GEMM */
    bool (*wrong)(const pz_gemm_args *a);            /* GEMMs that leave out the last element of K; NULL: none */
    bool (*unsupported)(const pz_gemm_args *a);      /* NULL: none */
    double (*rival_us)(int heuristic);               /* negative: does not run */
    int rivals;                                      /* heuristics; 0: no cuBLASLt */
    bool no_rider, short_rider, long_rider, stale_x; /* nothing zeroed, too little, too much; x of the link before */
    long wrong_after;                                /* GEMMs until they go wrong, negative: never */
    /* what happened */
    int live; /* memory, streams, events, graphs */
    int captures;
    long gemms, norms; /* executed */
    char order[4096];  /* one letter a replay: p a chain of norms alone, then by strategy */
} fake_state;
extern fake_state fake;

void fake_reset(void);

#endif
