/* SPDX-License-Identifier: Apache-2.0 */
/* How the rows of a donor or a collective are launched on a GPU: what its kernel, the gate and explanations agree on.
 * Read by CUDA C++ too. */
#ifndef PZ_DONOR_H
#define PZ_DONOR_H

enum {
    PZ_DONOR_THREADS = 512, /* of a block, which works on one row at a time; a thread has 8 elements of it, or more */
    PZ_GROUP_ROWS = 256,    /* rows of one launch of a collective at most; more are several launches */
    PZ_ONE_SHOT_ROWS = 64   /* up to which a collective takes one step, where no table says more */
};

/* Blocks of a collective that a multiprocessor holds at once, where each thread has so many times 8 elements. */
#define PZ_GROUP_RESIDENTS(vectors, ranks) ((vectors) <= 2 && (ranks) == 2 ? 2 : 1)

/* Blocks that a collective has for its rows at most: half of what the device holds at once, so that those of two groups
 * in two streams are there together. The rest of the rows come after the first. */
static inline int pz_group_blocks(int hidden, int ranks, int two_step, int units) {
    int vectors = (hidden / 8 + PZ_DONOR_THREADS - 1) / PZ_DONOR_THREADS;
    int blocks = units * PZ_GROUP_RESIDENTS(vectors, two_step ? 0 : ranks) / 2;
    return blocks > 1 ? blocks : 1;
}

#endif
