/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the GEMM kernels, how they cut K, and what a block has in shared memory: what they and the model of their
 * cost agree on. */
#ifndef PZ_GEMM_UNIT_H
#define PZ_GEMM_UNIT_H

#include <stdbool.h>
#include <stdint.h>

#include "prezero/kernels.h"

enum {
    PZ_GEMM_CHUNK = 128,
    PZ_GEMM_MAX_WARPS = 16,     /* of a block of skinny and group */
    PZ_GEMM_MAX_SLOTS = 9,      /* their chunks of a warp in shared memory */
    PZ_GEMM_SMEM = 231424,      /* bytes of shared memory that one of their launches may ask for, */
    PZ_GEMM_WIDE_SMEM = 231040, /* and one of wide: an SM has as much left as a block of the norm takes */
    PZ_GEMM_ALONE = 122880,     /* two blocks that ask for so much are not on one SM */
    PZ_GEMM_MAX_GROUPS = 3,     /* warpgroups of a block of wide, */
    PZ_GEMM_WIDE_HEAD = 1280,   /* bytes of its shared memory that are no ring, at most, */
    PZ_GEMM_BARRIERS = 32,      /* its barriers, one for a block of 64 k whatever the slot, */
    PZ_GEMM_MAX_RING = 24       /* and the most slots of a ring */
};

/* K is added up in units of so many chunks: the f32 sum of a unit, in the order of k, is what FIXED rounds, and blocks
 * and warps share K by units. It depends on the shape of w alone, and the tensor cores sum 16 values of k at once
 * whatever the instruction, so the bits of a row depend on no geometry, family or number of rows. Rounding costs as
 * much as multiplying when there are many rows, so the larger a shape the longer its units, as far as enough of them
 * are left to be shared. */
static inline int pz_gemm_unit(int64_t n, int64_t k) {
    return n * k >= 1 << 23 ? 4 : n * k >= 1 << 22 ? 2 : 1;
}

/* Units of K: the most parts that it can be split into. */
static inline int64_t pz_gemm_units(int64_t n, int64_t k) {
    int64_t values = (int64_t)pz_gemm_unit(n, k) * PZ_GEMM_CHUNK;
    return (k + values - 1) / values;
}

/* Units of the longest part. */
static inline int64_t pz_gemm_longest(int64_t n, int64_t k, int split) {
    return (pz_gemm_units(n, k) + split - 1) / split;
}

static inline int64_t pz_min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Skinny and group: slots for chunks of w, then x, then sums. */
typedef struct pz_gemm_slots {
    int slot, slots;     /* bytes of one of all warps; how many */
    int x_piece, direct; /* bytes of 8 k of all rows; sums go from registers to y, no other warp has a part of them */
    int64_t x_bytes, sum_bytes;
} pz_gemm_slots;

/* Of a launch with m rows in tiles of tile_m. False: it does not fit. */
static inline bool pz_gemm_lay_out_slots(const pz_gemm_config *c, int m, int tile_m, int64_t n, int64_t k,
                                         pz_gemm_slots *s) {
    int64_t unit = pz_gemm_unit(n, k), part = pz_gemm_longest(n, k, c->split);
    int64_t more = (part + c->warps - 1) / c->warps * unit - 1; /* chunks of a warp that are not in registers */
    int rows = m < tile_m ? m : tile_m, sum_rows = tile_m < 8 ? 8 : tile_m;
    s->x_piece = 16 * (rows | 1); /* odd: neighbours begin in other banks */
    s->direct = c->warps == 1 && rows > 4;
    /* what is read beyond the rows of the last piece are sums that nobody uses */
    s->x_bytes = (part * unit * (PZ_GEMM_CHUNK / 8) * s->x_piece + 16 * sum_rows + 127) / 128 * 128;
    s->sum_bytes = s->direct ? 0 : (int64_t)c->warps * sum_rows * (c->tile_n + 4) * 4;
    s->slot = c->tile_n / 16 * c->warps * 32 * PZ_GEMM_CHUNK;
    int64_t room = PZ_GEMM_SMEM - s->x_bytes - s->sum_bytes;
    if (room < 0) return false;
    s->slots = (int)pz_min64(pz_min64(more, PZ_GEMM_MAX_SLOTS), room / s->slot);
    if (c->stages && s->slots > c->stages) s->slots = c->stages;
    return s->slots > 0 || more == 0;
}

/* Wide: rows of x in a tile. Three warpgroups have no registers for fixed sums of more than 64. */
static inline int pz_gemm_wide_rows(int m, pz_accum accum, int64_t groups) {
    const int most = accum == PZ_ACCUM_FIXED && groups >= PZ_GEMM_MAX_GROUPS ? 64 : 128;
    int rows = 8;
    while (rows < m && rows < most) rows *= 2;
    return rows;
}

/* Wide: warpgroups that have equal parts of the rows of a tile. A warpgroup multiplies or rounds, and one of 128 rows
 * alone leaves the tensor cores idle while it rounds. */
static inline int pz_gemm_wide_halves(int rows, pz_accum accum, int64_t groups) {
    return accum == PZ_ACCUM_FIXED && rows == 128 && groups == 1 ? 2 : 1;
}

/* Wide: threads of a block, and the most registers of one whose warpgroup has so many rows. Together they leave room
 * for a block of the norm, 512 threads of 32. */
static inline int pz_gemm_wide_threads(int64_t groups, int halves) {
    return 128 * (int)groups * halves + 32;
}
#define PZ_GEMM_WIDE_REGISTERS(rows, fixed) ((fixed) && (rows) == 128 ? 168 : 112)

/* Wide: rings of w and x, 64 k a slot; sums take their place. What lies behind both, the barriers among it, is never
 * overwritten: memory that has been a barrier must be invalidated (mbarrier.inval) before it is anything else. */
typedef struct pz_gemm_rings {
    int w_slots, x_slots, w_bytes, x_bytes; /* bytes of one slot */
    int64_t head, smem;                     /* where the barriers begin, and where all ends */
} pz_gemm_rings;

/* Of a launch with `rows` rows of x in a tile. As many slots as the longest part of K has blocks if they fit, else
 * equally many of both, and what is left to the weights, which can be loaded before the wait. A warpgroup has a chunk
 * when it asks for its next one. False: these two, or the sums, do not fit. */
static inline bool pz_gemm_lay_out_rings(const pz_gemm_config *c, int rows, int64_t n, int64_t k, pz_gemm_rings *r) {
    int64_t unit = pz_gemm_unit(n, k), room = PZ_GEMM_WIDE_SMEM - PZ_GEMM_WIDE_HEAD,
            part = pz_min64(unit * pz_gemm_longest(n, k, c->split), (k + PZ_GEMM_CHUNK - 1) / PZ_GEMM_CHUNK),
            hold = 2 * pz_min64(2, part), asked = 2 * (int64_t)c->stages,
            sums = c->warps > 1 ? (int64_t)c->warps * rows * (c->tile_n + 4) * 4 : 0;
    /* who waits for a block has waited for the last one of its unit before */
    int64_t most = pz_min64(PZ_GEMM_MAX_RING, PZ_GEMM_BARRIERS - 2 * unit * (c->warps - 1) - 1);
    if (asked) most = pz_min64(most, asked < hold ? hold : asked);
    most = pz_min64(most, 2 * part);
    r->w_bytes = c->tile_n * 128, r->x_bytes = rows * 128;
    r->x_slots = (int)pz_min64(most, room / (r->w_bytes + r->x_bytes));
    r->w_slots = (int)pz_min64(most, (room - r->x_slots * r->x_bytes) / r->w_bytes);
    int64_t rings = r->w_slots * r->w_bytes + r->x_slots * r->x_bytes;
    r->head = rings > sums ? rings : sums;
    r->smem = r->head + PZ_GEMM_WIDE_HEAD;
    return r->x_slots >= hold && sums <= room;
}

#endif
