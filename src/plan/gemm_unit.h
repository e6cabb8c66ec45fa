/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the GEMM kernels and how they cut K: what they and the model of their cost agree on. */
#ifndef PZ_GEMM_UNIT_H
#define PZ_GEMM_UNIT_H

#include <stdint.h>

enum {
    PZ_GEMM_CHUNK = 128,
    PZ_GEMM_MAX_WARPS = 16,     /* of a block of skinny and group */
    PZ_GEMM_MAX_SLOTS = 9,      /* their chunks of a warp in shared memory */
    PZ_GEMM_SMEM = 231424,      /* bytes of shared memory that one of their launches may ask for, */
    PZ_GEMM_WIDE_SMEM = 231040, /* and one of wide: an SM has as much left as a block of the norm takes */
    PZ_GEMM_MAX_GROUPS = 3      /* warpgroups of a block of wide */
};

/* K is added up in units of so many chunks: the f32 sum of a unit, in the order of k, is what FIXED rounds, and blocks
 * and warps share K by units. It depends on the shape of w alone, and the tensor cores sum 16 values of k at once
 * whatever the instruction, so the bits of a row depend on no geometry, family or number of rows. Rounding costs as
 * much as multiplying when there are many rows, so large shapes have longer units. */
static inline int pz_gemm_unit(int64_t n, int64_t k) {
    return n * k >= 1 << 23 ? 2 : 1;
}

/* Units of K: the most parts that it can be split into. */
static inline int64_t pz_gemm_units(int64_t n, int64_t k) {
    int64_t values = (int64_t)pz_gemm_unit(n, k) * PZ_GEMM_CHUNK;
    return (k + values - 1) / values;
}

#endif
