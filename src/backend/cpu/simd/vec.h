/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of the machine's own width. 16 lanes are PZ_NV of them. */
#ifndef PZ_CPU_VEC_H
#define PZ_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include "backend/cpu/simd/simd.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define PZ_VW 16
#elif defined(__AVX2__)
#define PZ_VW 8
#else
#define PZ_VW 4
#endif
enum { PZ_NV = 16 / PZ_VW };

typedef float pz_vf __attribute__((vector_size(PZ_VW * 4)));
typedef uint32_t pz_vu __attribute__((vector_size(PZ_VW * 4)));
typedef int32_t pz_vi __attribute__((vector_size(PZ_VW * 4)));
typedef uint16_t pz_vh __attribute__((vector_size(PZ_VW * 2)));
typedef float pz_v4 __attribute__((vector_size(16)));

#define PZ_INLINE static inline __attribute__((always_inline))
/* A loop with a small constant trip count, unrolled whole so that arrays of vectors become registers. */
#if defined(__clang__)
#define PZ_EACH(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define PZ_EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif
#define PZ_PASTE2(a, b) a##b
#define PZ_PASTE(a, b) PZ_PASTE2(a, b)
/* Name of this instruction set's copy of a table. */
#define PZ_ISA_NAME(name) PZ_PASTE(name##_, PZ_ISA)

PZ_INLINE pz_vf pz_load(const float *p) {
    pz_vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
PZ_INLINE pz_vu pz_load_u32(const void *p) {
    pz_vu v;
    memcpy(&v, p, sizeof v);
    return v;
}
PZ_INLINE pz_vf pz_load_bf16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (pz_vf)((pz_vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)) << 16);
#elif defined(__AVX2__)
    return (pz_vf)((pz_vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)) << 16);
#else
    pz_vh h;
    memcpy(&h, p, sizeof h);
    return (pz_vf)(__builtin_convertvector(h, pz_vu) << 16);
#endif
}
PZ_INLINE void pz_store(float *p, pz_vf v) {
    memcpy(p, &v, sizeof v);
}

/* Sum of 16 lanes: i with i + 8, then + 4, + 2, + 1. */
PZ_INLINE float pz_sum16(const pz_vf a[PZ_NV]) {
#if PZ_VW == 16
    typedef float v8 __attribute__((vector_size(32)));
    v8 lo = __builtin_shufflevector(a[0], a[0], 0, 1, 2, 3, 4, 5, 6, 7);
    v8 x = lo + __builtin_shufflevector(a[0], a[0], 8, 9, 10, 11, 12, 13, 14, 15);
    pz_v4 y = __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#elif PZ_VW == 8
    pz_vf x = a[0] + a[1];
    pz_v4 y = __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#else
    pz_v4 y = (a[0] + a[2]) + (a[1] + a[3]);
#endif
    pz_v4 z = y + __builtin_shufflevector(y, y, 2, 3, 2, 3);
    return z[0] + z[1];
}

#if PZ_VW == 16
/* Four such sums at once, to s[0..3]: the same additions. */
PZ_INLINE void pz_sum16x4(const pz_vf a[4][PZ_NV], float *s) {
#define PZ_HALVES(x, y, from)                                                                                 \
    __builtin_shufflevector(x, y, from, from + 1, from + 2, from + 3, from + 4, from + 5, from + 6, from + 7, \
                            from + 16, from + 17, from + 18, from + 19, from + 20, from + 21, from + 22, from + 23)
#define PZ_QUARTERS(x, y, from)                                                                                 \
    __builtin_shufflevector(x, y, from, from + 1, from + 2, from + 3, from + 8, from + 9, from + 10, from + 11, \
                            from + 16, from + 17, from + 18, from + 19, from + 24, from + 25, from + 26, from + 27)
    pz_vf p = PZ_HALVES(a[0][0], a[1][0], 0) + PZ_HALVES(a[0][0], a[1][0], 8);
    pz_vf q = PZ_HALVES(a[2][0], a[3][0], 0) + PZ_HALVES(a[2][0], a[3][0], 8);
    pz_vf y = PZ_QUARTERS(p, q, 0) + PZ_QUARTERS(p, q, 4);
    pz_vf z = y + __builtin_shufflevector(y, y, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    z = z + __builtin_shufflevector(z, z, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    PZ_EACH (i, 4) s[i] = z[4 * i];
#undef PZ_HALVES
#undef PZ_QUARTERS
}
#endif

#endif
