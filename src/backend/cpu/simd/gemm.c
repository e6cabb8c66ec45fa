/* SPDX-License-Identifier: Apache-2.0 */
/* Rows times panels. Each output element is one chain of multiply-adds over k in order, so its bits depend neither on
 * the rows beside it nor on how rows and panels are blocked here. */
#include "backend/cpu/simd/vec.h"

/* Vectors of one panel: the low halves of the lanes are its columns 0..15, the high halves 16..31. */
enum { PANEL_VECTORS = 2 * PZ_NV, MAX_ROWS = 8, MAX_PANELS = 2 };
typedef pz_vf pz_tile[MAX_ROWS][MAX_PANELS * PANEL_VECTORS];

PZ_INLINE void unpack_pair(const unsigned char *p, pz_vf *v) {
    for (int i = 0; i < PZ_NV; i++) {
        pz_vu u = pz_load_u32(p + i * sizeof u);
        v[i] = (pz_vf)(u << 16);
        v[PZ_NV + i] = (pz_vf)(u & 0xffff0000u);
    }
}

/* Value of the e2m1 code in the low four bits of each lane; the other bits may hold anything. */
PZ_INLINE pz_vf decode_e2m1(pz_vu code) {
#if defined(__AVX512F__)
    const __m512 values =
        _mm512_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f);
    return (pz_vf)_mm512_permutexvar_ps((__m512i)code, values);
#elif defined(__AVX2__)
    const __m256 values = _mm256_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f);
    pz_vu magnitude = (pz_vu)_mm256_permutevar8x32_ps(values, (__m256i)code);
    return (pz_vf)(magnitude ^ (code << 28 & 0x80000000u));
#else
    /* exponent and mantissa moved into a float biased by 126: right where the exponent is not 0; below, the implied
     * one is taken off again */
    pz_vu sign = (code & 8) << 28, magnitude = code & 7;
    pz_vf normal = (pz_vf)((magnitude << 22) + (126u << 23));
    pz_vf subnormal = normal + normal - 1.f;
    pz_vu small = (pz_vu)(magnitude < 2);
    return (pz_vf)((((pz_vu)subnormal & small) | ((pz_vu)normal & ~small)) | sign);
#endif
}

PZ_INLINE void multiply_add(const int rows, const int vectors, const float *x, int64_t ldx, const pz_vf *w,
                            pz_tile acc) {
    PZ_EACH (r, rows) {
        PZ_EACH (c, vectors) acc[r][c] += w[c] * x[r * ldx];
    }
}

PZ_INLINE void block_mxfp4(const int rows, const int panels, int64_t k, const float *x, int64_t ldx,
                           const unsigned char *w, size_t panel_bytes, pz_tile acc) {
    for (int64_t k0 = 0; k0 < k; k0 += 32, w += 576) {
        pz_vf scale[MAX_PANELS * PANEL_VECTORS], v[MAX_PANELS * PANEL_VECTORS];
        PZ_EACH (p, panels) unpack_pair(w + p * panel_bytes, scale + p * PANEL_VECTORS);
        for (int k4 = 0; k4 < 8; k4++) {
            PZ_EACH (i, 4) {
                PZ_EACH (c, panels * PANEL_VECTORS) {
                    int panel = c / PANEL_VECTORS, high = c % PANEL_VECTORS / PZ_NV, part = c % PZ_NV;
                    pz_vu u = pz_load_u32(w + panel * panel_bytes + 64 + k4 * 64 + part * sizeof u);
                    v[c] = decode_e2m1(u >> (16 * high + 4 * i)) * scale[c];
                }
                multiply_add(rows, panels * PANEL_VECTORS, x + k0 + k4 * 4 + i, ldx, v, acc);
            }
        }
    }
}

PZ_INLINE void block_plain(const pz_panel_kind kind, const int rows, const int panels, int64_t k, const float *x,
                           int64_t ldx, const unsigned char *w, size_t panel_bytes, pz_tile acc) {
    const size_t step = kind == PZ_PANEL_F32 ? 128 : 64;
#pragma GCC unroll 2
    for (int64_t i = 0; i < k; i++, w += step) {
        pz_vf v[MAX_PANELS * PANEL_VECTORS];
        PZ_EACH (p, panels) {
            const unsigned char *at = w + p * panel_bytes;
            if (kind == PZ_PANEL_F32) {
                PZ_EACH (c, PANEL_VECTORS) v[p * PANEL_VECTORS + c] = (pz_vf)pz_load_u32(at + c * sizeof(pz_vf));
            } else {
                unpack_pair(at, v + p * PANEL_VECTORS);
            }
        }
        multiply_add(rows, panels * PANEL_VECTORS, x + i, ldx, v, acc);
    }
}

PZ_INLINE void block(const pz_panel_kind kind, const int rows, const int panels, int64_t k, const float *x, int64_t ldx,
                     const unsigned char *w, size_t panel_bytes, float *out, int64_t ldo) {
    pz_tile acc;
    PZ_EACH (r, rows)
        PZ_EACH (c, panels * PANEL_VECTORS) acc[r][c] = (pz_vf){0};
    if (kind == PZ_PANEL_MXFP4)
        block_mxfp4(rows, panels, k, x, ldx, w, panel_bytes, acc);
    else
        block_plain(kind, rows, panels, k, x, ldx, w, panel_bytes, acc);
    PZ_EACH (r, rows)
        PZ_EACH (c, panels * PANEL_VECTORS) pz_store(out + r * ldo + c * PZ_VW, acc[r][c]);
}

/* The largest blocks whose sums stay in registers: 16 vectors of accumulators with 32 registers, 8 with 16. Few rows
 * take two panels at once, for more independent chains. */
PZ_INLINE void multiply(const pz_panel_kind kind, int rows, int panels, int64_t k, const float *x, int64_t ldx,
                        const unsigned char *w, size_t panel_bytes, float *out, int64_t ldo) {
    for (int p = 0; p < panels;) {
        const unsigned char *wp = w + p * panel_bytes;
        float *op = out + p * PZ_PANEL;
        int r = 0, two = p + 1 < panels;
#define PZ_ROWS(n, np) \
    for (; r + (n) <= rows; r += (n)) block(kind, n, np, k, x + r * ldx, ldx, wp, panel_bytes, op + r * ldo, ldo)
        if (two) {
#if PZ_VW == 16
            PZ_ROWS(4, 2);
            PZ_ROWS(2, 2);
            PZ_ROWS(1, 2);
#elif PZ_VW == 8
            PZ_ROWS(1, 2);
#else
            two = 0;
#endif
        }
        if (!two) {
#if PZ_VW == 16
            PZ_ROWS(8, 1);
            PZ_ROWS(4, 1);
#endif
#if PZ_VW >= 8
            PZ_ROWS(2, 1);
#endif
            PZ_ROWS(1, 1);
        }
#undef PZ_ROWS
        p += two ? 2 : 1;
    }
}

#define PZ_MULTIPLY(name, kind)                                                                                       \
    static void name(int rows, int panels, int64_t k, const float *x, int64_t ldx, const void *w, size_t panel_bytes, \
                     float *out, int64_t ldo) {                                                                       \
        multiply(kind, rows, panels, k, x, ldx, w, panel_bytes, out, ldo);                                            \
    }
PZ_MULTIPLY(multiply_bf16, PZ_PANEL_BF16)
PZ_MULTIPLY(multiply_f32, PZ_PANEL_F32)
PZ_MULTIPLY(multiply_mxfp4, PZ_PANEL_MXFP4)

extern const pz_simd_gemm PZ_ISA_NAME(pz_simd_gemm);
const pz_simd_gemm PZ_ISA_NAME(pz_simd_gemm) = {
    .multiply = {[PZ_PANEL_BF16] = multiply_bf16, [PZ_PANEL_F32] = multiply_f32, [PZ_PANEL_MXFP4] = multiply_mxfp4},
};
