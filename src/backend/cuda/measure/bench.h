/* SPDX-License-Identifier: Apache-2.0 */
/* One GEMM shape on the bench: its data, its chains, its check. */
#ifndef PZ_CUDA_BENCH_H
#define PZ_CUDA_BENCH_H

#include "backend/cuda/measure/lab.h"
#include "backend/cuda/measure/rival.h"
#include "plan/plan.h"

enum { PZ_BENCH_CHECKED = 3 }; /* links whose result is compared: the first, one in the middle, the last */

/* What the result of one link has to be. */
typedef struct pz_bench_reference {
    int link;
    double *expected; /* [m, n] */
    float *x_norm;    /* [m] */
    double rms;       /* of expected */
} pz_bench_reference;

/* y, r and x_norm are shared by all links: a GEMM that does not wait for the norm before it multiplies another link's
 * rows, and is found out. */
typedef struct pz_bench {
    pz_lab lab;
    const pz_measure_spec *spec;
    pz_device device;
    struct pz_tuned *tuned;
    pz_rival *rivals[2]; /* by pz_elem of the output, BF16 and F32; opened when a case needs them */
    int links;
    size_t w_stride, x_stride, y_stride; /* bytes between the links' matrices */
    unsigned char *w, *x, *out;          /* [links]: bf16 [n, k], bf16 [m, k], [m, n] of 4 bytes */
    float *w_norm, *norm_w, *x_norm;     /* [links][n], [k], [m] */
    void *res, *r, *y;                   /* bf16 [m, k]: residual in and out, output of the norm */
    unsigned long long *worst;           /* what a comparison found */
    pz_bench_reference references[PZ_BENCH_CHECKED];
    pz_lab_chain plain; /* the norms alone */
} pz_bench;

/* On failure too, close releases what there is. */
pz_status pz_bench_open(pz_bench *b, const pz_measure_spec *spec, pz_error *err);
void pz_bench_close(pz_bench *b);

/* One launch on the bench. The fields of `c` that say what is launched are read, `used` is what is launched. */
typedef struct pz_bench_entry {
    pz_bench *bench;
    const pz_measure_case *c;
    pz_gemm_config used;
    void *workspace;
    pz_lab_chain chain;
    double max_error;
} pz_bench_entry;

/* Captures, and unless the bench is unchecked replays and compares. E_VERIFY: the result is wrong. On failure too, free
 * releases what there is. */
pz_status pz_bench_prepare(pz_bench *b, const pz_measure_case *c, const pz_gemm_config *used, pz_bench_entry *out,
                           pz_error *err);
void pz_bench_entry_free(pz_bench_entry *e);
/* Fills all outputs with bytes 0x7f: large numbers in every type. */
pz_status pz_bench_poison(pz_bench *b, pz_error *err);
/* Compares what the last replay left in the outputs. */
pz_status pz_bench_compare(pz_bench_entry *e, pz_error *err);
/* The rival for the case's accumulator. */
pz_status pz_bench_rival(pz_bench *b, pz_accum accum, pz_rival **out, pz_error *err);

/* search.c: from the case's config to the one that is launched, with a short run where it asks for the fastest; that
 * one is prepared. `tried` and `name` of the case are set. */
pz_status pz_bench_choose(pz_bench *b, pz_measure_case *c, pz_bench_entry *out, pz_error *err);

#endif
