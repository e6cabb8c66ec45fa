/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled f32 to the nearest integer by additions alone. An SM converts 16 values a cycle, but adds 128. For C and CUDA.
 */
#ifndef PZ_CUDA_ROUND_H
#define PZ_CUDA_ROUND_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define PZ_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PZ_HOST_DEVICE inline
#endif

static PZ_HOST_DEVICE uint32_t pz_bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* v * inv for a power of two `inv`, rounded to nearest even, for -2^31 <= v * inv < 2^31; what it is elsewhere does not
 * matter, as such an element reads back as NaN (base/fixed.h).
 *
 * The ulp of `high` is 1024, so h - high is the nearest multiple of 1024. What is left, l, is exact: at most 512, and a
 * multiple of 2^-14 unless v * inv is below 512 itself, where h is `high`. The ulp of `low` is 1, and `low` is even, so
 * l is rounded to nearest even; 1024 divides the rest, so ties of l and of v * inv round alike. The bits of `high`, 10
 * to the left, and of `low` add up to zero in 32 bits. */
static PZ_HOST_DEVICE int32_t pz_round_scaled(float v, float inv) {
    const float high = 0x1.5a6p33f, low = 0x1.8p23f;
    const float h = fmaf(v, inv, high), l = fmaf(v, inv, high - h);
    return (int32_t)((pz_bits_of(h) << 10) + pz_bits_of(l + low));
}

#endif
