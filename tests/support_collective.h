/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce and fused_allreduce_rmsnorm in the rigs of all ranks, and what they must leave: bit by bit the sums in f32
 * in the order of the ranks, the same bits on all ranks, norms close to f64, and what their fill zeroes. */
#ifndef PZ_TEST_SUPPORT_COLLECTIVE_H
#define PZ_TEST_SUPPORT_COLLECTIVE_H

#include "support_cpu.h"

typedef struct collective {
    pz_op op;
    pz_dtype x, out; /* of the partial sums: F32, BF16 or FIXED */
    bool fill;
    /* Rows [m, cols]; what is not given is made. Freed with the collective. */
    float *part[PZ_MAX_RANKS], *res, *w;
    int y[PZ_MAX_RANKS], sum[PZ_MAX_RANKS], buffer[PZ_MAX_RANKS]; /* places; all_reduce: sum is y */
} collective;

/* A launch in the rig of each rank. What is made depends on the seed, and in a row on that and on the number of rows
 * from there to the end. */
void collective_add(collective *c, rig *const *rigs, int n, int cols, uint64_t seed);
void collective_free(collective *c);
/* Partial sums with a row of each strange value (signed zeros, NaNs, infinities), then rows with some of each. */
float *collective_strange(int m, int cols, uint64_t *seed);

/* Element i of a place of a rig whose arena is `memory`. */
float collective_at(const rig *r, const unsigned char *memory, int place, int i);
/* memory[r]: the arena of rank r after a run. y in f32 may be off by `norm_error`, relatively. filled: the fill has
 * been done, else nothing of its buffer has been written. */
void collective_check(const collective *c, rig *const *rigs, unsigned char *const *memory, int n, double norm_error,
                      bool filled);

#endif
