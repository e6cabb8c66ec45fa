/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed-point accumulation: the one definition of its scale, for every backend.
 *
 * Cauchy-Schwarz bounds every sum and partial sum of x[m,:].w[n,:] by |x|_2 |w|_2. Both norms are rounded up to a power
 * of two (x_norm, w_norm), so that scaling is exact and the rounding to an integer is the only error:
 *   q = round(p * 2^30 / (x_norm * w_norm))     |q| <= 2^30
 *   p = q * 2^-30 * (x_norm * w_norm)
 * int32 has a factor of two above that, for what the additions inside the partial sums in f32 and the rounding of each
 * split add. A row or column that holds NaN or Inf has the norm NaN, and everything it takes part in reads back as NaN.
 * The same holds for a norm above PZ_NORM_MAX and where x_norm * w_norm leaves the range of f32 (the product could
 * overflow). Zero rows have the smallest norm and give 0. */
#ifndef PZ_FIXED_H
#define PZ_FIXED_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The range in which neither step of the scaling, p / x_norm and then / w_norm, can overflow. */
#define PZ_NORM_MIN 0x1p-100f
#define PZ_NORM_MAX 0x1p112f
/* Largest scaled partial sum that counts. Sums in f32 can pass the bound 2^30 by their rounding; beyond half as much
 * again they are no sums of this row and column. */
#define PZ_FIXED_LIMIT 0x1.8p30f

/* Smallest power of two >= sqrt(sum_of_squares), within [PZ_NORM_MIN, PZ_NORM_MAX]; NaN if the sum is not finite or the
 * norm is above the range. The sum is taken in f64, where the squares of f32 cannot overflow; the head room of 2^-20
 * covers its rounding. */
static inline float pz_fixed_norm(double sum_of_squares) {
    if (!(sum_of_squares < (double)INFINITY)) return NAN;
    double norm = sqrt(sum_of_squares) * (1.0 + 0x1p-20);
    if (norm <= (double)PZ_NORM_MIN) return PZ_NORM_MIN;
    int e;
    double f = frexp(norm, &e); /* norm = f * 2^e, 0.5 <= f < 1 */
    if (f == 0.5) e--;
    double up = ldexp(1.0, e);
    return up > (double)PZ_NORM_MAX ? NAN : (float)up;
}

/* Factor of one side: p * pz_fixed_inv(x_norm) * pz_fixed_inv(w_norm), multiplied in this order or with the sides
 * swapped, is p in units of the accumulator; exact where that is not below 2^-11, which rounds to 0. */
static inline float pz_fixed_inv(float norm) {
    return 0x1p15f / norm;
}

/* Scaled partial sum to the integer that is added. Anything outside the bound (NaN and Inf too) becomes 0; such an
 * element's norm product is not finite, so it reads back as NaN whatever is stored. */
static inline int32_t pz_fixed_round(float scaled) {
    return scaled >= -PZ_FIXED_LIMIT && scaled <= PZ_FIXED_LIMIT ? (int32_t)rintf(scaled) : 0;
}

static inline float pz_fixed_value(int32_t acc, float x_norm, float w_norm) {
    float bound = x_norm * w_norm;
    return bound <= 0x1.fffffep127f ? (float)acc * 0x1p-30f * bound : NAN;
}

/* bf16 <-> f32, round to nearest even, NaN stays NaN. */
static inline float pz_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t pz_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#endif
