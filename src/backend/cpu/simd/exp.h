/* SPDX-License-Identifier: Apache-2.0 */
/* e^x for vectorised loops: within 2 units in the last place, denormal results included; NaN stays NaN. */
#ifndef PZ_CPU_EXP_H
#define PZ_CPU_EXP_H

#include "backend/cpu/simd/vec.h"

PZ_INLINE float pz_exp2_int(int32_t n) { /* 2^n, -126 <= n <= 127 */
    uint32_t u = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

PZ_INLINE float pz_exp(float x) {
    const float magic = 0x1.8p23f; /* adding it rounds to an integer, which then stands in the low bits */
    float c = x < -104.f ? -104.f : x;
    c = c > 89.f ? 89.f : c;
    float t = c * 0x1.715476p+0f + magic;
    int32_t n;
    memcpy(&n, &t, 4);
    n = (int32_t)((uint32_t)n - 0x4b400000u);
    float k = t - magic;
    float r = (c - k * 0x1.62e4p-1f) - k * 0x1.7f7d1cp-20f; /* ln 2 in two parts, the first exact times k */
    float p = 0x1.6850e4p-10f;                              /* minimax of e^r on |r| <= ln 2 / 2 */
    p = p * r + 0x1.123bccp-7f;
    p = p * r + 0x1.555b98p-5f;
    p = p * r + 0x1.55548ep-3f;
    p = p * r + 0x1.fffff8p-2f;
    p = p * r + 1.f;
    p = p * r + 1.f;
    n = n < -152 ? -152 : n > 130 ? 130 : n; /* only NaN leaves the range */
    int32_t half = n / 2;
    return p * pz_exp2_int(half) * pz_exp2_int(n - half);
}

#endif
