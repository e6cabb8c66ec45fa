/* SPDX-License-Identifier: Apache-2.0 */
/* How the rows of a donor or a collective are launched on a GPU: what its kernel, the gate and explanations agree on.
 * Read by CUDA C++ too. */
#ifndef PZ_DONOR_H
#define PZ_DONOR_H

enum {
    PZ_GROUP_ROWS = 256,  /* rows of one launch of a collective at most; more are several launches */
    PZ_ONE_SHOT_ROWS = 64 /* up to which a collective takes one step, where no table says more */
};

/* Threads of a block of a collective at most, as registers allow, blocks that may share a row, and sums that a row may
 * have: one for each warp and vector, also beyond its end; those of 16384 columns. */
#define PZ_GROUP_THREADS(vectors, ranks) ((vectors) == 1 && (ranks) <= 2 ? 896 : 512)
enum { PZ_GROUP_PARTS = 8, PZ_GROUP_SUMS = 64 };

/* Blocks that take the rows of a collective. */
typedef struct pz_group_shape {
    int threads; /* of a block, a multiple of 32 */
    int vectors; /* of 8 elements, that a thread has of a row; 1, 2 or 4 */
    int parts;   /* blocks that share a row, a cluster of the device */
    int rows;    /* at a time; the rest come after them */
} pz_group_shape;

/* units: multiprocessors that it may fill. clusters: the device has them (compute capability 9.0). Few rows are shared
 * by several blocks each: what one multiprocessor loads, stores and issues for a row takes longer than the row's way to
 * another device. */
static inline pz_group_shape pz_group_shape_of(int hidden, int ranks, int m, int units, int clusters) {
    const int warps = hidden > 8 ? (hidden / 8 + 31) / 32 : 1;
    pz_group_shape s = {0, 1, 1, units > 1 ? units : 1};
    if (clusters && m > 0) s.parts = s.rows / m;
    if (s.parts > PZ_GROUP_PARTS) s.parts = PZ_GROUP_PARTS;
    if (s.parts > warps / 4) s.parts = warps / 4;
    if (s.parts < 1) s.parts = 1;
    for (;; s.parts--) {
        s.vectors = 1;
        while (32 * warps > PZ_GROUP_THREADS(s.vectors, ranks) * s.parts * s.vectors) s.vectors *= 2;
        const int each = (warps + s.parts * s.vectors - 1) / (s.parts * s.vectors); /* warps of a block */
        s.threads = 32 * each;
        s.parts = (warps + each * s.vectors - 1) / (each * s.vectors);
        if (s.parts == 1 || s.parts * each * s.vectors <= PZ_GROUP_SUMS) break;
    }
    s.rows = s.rows > s.parts ? s.rows / s.parts : 1;
    if (s.rows > m) s.rows = m;
    return s;
}

/* Blocks of its own that a collective's rider has, of those that it wants. 0: the blocks of the rows store it while
 * they wait, as they are on most of the multiprocessors. */
static inline int pz_group_rider(int blocks, int wanted, int units) {
    const int idle = units - blocks;
    return wanted <= idle ? wanted : 2 * blocks > units ? 0 : idle;
}

#endif
