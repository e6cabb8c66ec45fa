/* SPDX-License-Identifier: Apache-2.0 */
/* A twin runs the launches of a rig on the CPU backend and on the GPU, on the same bytes, and compares. On the GPU
 * whatever a launch may not write must keep its bits, and running again, eagerly or as a captured graph, must give the
 * same ones. */
#ifndef PZ_TEST_SUPPORT_TWIN_H
#define PZ_TEST_SUPPORT_TWIN_H

#include "support_cpu.h"

enum { TWIN_SEQUENCES = 4, TWIN_PAGES = 48, TWIN_STRIDE = 12, TWIN_LAYERS = 2, TWIN_LAYER = 1 };

typedef struct twin {
    rig *r; /* its arena and cache are the CPU's */
    const pz_backend_api *gpu;
    pz_backend *b;
    unsigned char *arena;       /* on the GPU */
    unsigned char *image, *got; /* what both began with; what the GPU left */
    unsigned char *cache;       /* on the GPU */
    unsigned char *cache_image, *cache_got;
    int64_t cache_bytes;
    int32_t table[TWIN_SEQUENCES * TWIN_STRIDE];
    double slack[RIG_PLACES]; /* see twin_slack */
} twin;

/* With room for places of `columns` 4-byte columns in all. */
twin *twin_open(int m, int64_t columns);
void twin_close(twin *t);

/* Gives the rig a cache with scattered pages: random entries, so small that two layers of them are compared quickly. */
void twin_cache(twin *t, pz_dtype dt, int page_tokens, int entry, uint64_t seed);

/* An activation [m, cols] of a dtype F32, BF16 or FIXED, of random values; FIXED ones are sums with norms and a weight
 * of their own. The values of a row depend on the seed and on the row alone. */
int twin_act(twin *t, pz_dtype dt, int64_t cols, uint64_t seed);
/* Random positions below `limit` and sequences; every fifth row is padding. */
void twin_rows(twin *t, int limit, uint64_t seed, int *pos, int *seq);

/* Result `place` may differ by `relative` times the root mean square of its row on the CPU, and by rounding in its
 * dtype. Results without a slack must be equal bit by bit, NaN for NaN. */
void twin_slack(twin *t, int place, double relative);
/* What the sums of n products in f32 differ by when they are taken in another order. */
double twin_sum(int64_t n);

/* Runs on the CPU. */
void twin_run_cpu(twin *t);
/* Runs on the GPU `times` times from the same image; asserts that nothing but outputs changed and that all runs gave
 * the same bits. The first run is eager, the later ones may replay a captured graph. */
void twin_run_gpu(twin *t, int times);
/* Asserts what twin_slack says of all outputs and of the cache; x_norms must be those of what was stored. */
void twin_compare(twin *t);
/* All of the above. */
void twin_check(twin *t);

/* Row `row` of place `place` as the GPU left it, as f32 [cols]. */
void twin_row(const twin *t, int place, int row, float *dst);
static inline void *twin_got(const twin *t, int place) {
    return t->got + t->r->plan.places.at[place].offset;
}

/* Builds the same launches with another number of rows; places must be made in the same order, weights and the cache
 * must not depend on the rows. */
typedef twin *(*twin_build)(const void *arg, int m);
/* Asserts that each of some rows has the same bits alone, and among the first few rows, as in the whole batch `all`,
 * which has run on the GPU. */
void twin_check_alone(const twin *all, twin_build build, const void *arg);
/* Asserts that a NaN and an Inf in one row's activations leave all other rows' bits as they are in `all`. */
void twin_check_isolated(const twin *all, twin_build build, const void *arg);

#endif
