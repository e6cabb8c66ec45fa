/* SPDX-License-Identifier: Apache-2.0 */
/* The vector kernels of the CPU backend: one table per instruction set, all compiled from the same sources.
 *
 * Every kernel works in 16 lanes, whatever the width of the machine's vectors, and adds up in an order that depends on
 * the index of the data alone. Without FMA (baseline) a product is rounded before it is added. */
#ifndef PZ_CPU_SIMD_H
#define PZ_CPU_SIMD_H

#include <stddef.h>
#include <stdint.h>

/* A panel is PZ_PANEL output columns of a weight, packed so that the multiply loop reads it front to back.
 *   BF16   [k][16] u32: column j in the low half, column j + 16 in the high half
 *   F32    [k][32] f32
 *   MXFP4  per 32 k: scales [16] u32 (bf16 pairs as above), then [8][16] u32, each 4 k: bits 4i..4i+3 the code of
 *          column j at k + i, bits 16+4i..16+4i+3 that of column j + 16 */
enum { PZ_PANEL = 32 };
typedef enum pz_panel_kind { PZ_PANEL_BF16, PZ_PANEL_F32, PZ_PANEL_MXFP4, PZ_PANEL_KINDS } pz_panel_kind;

/* Bytes of k rows of a panel (k a multiple of 32 for MXFP4). */
static inline size_t pz_panel_bytes(pz_panel_kind kind, size_t k) {
    return kind == PZ_PANEL_MXFP4 ? k / 32 * 576 : k * (kind == PZ_PANEL_F32 ? 128 : 64);
}

/* out[r][c] = sum over k, in order, of x[r][k] * w[k][c], for `rows` rows and `panels` panels.
 * x: f32, ldx elements from row to row. w: the first panel at its first k; panel_bytes from panel to panel. out: f32
 * [rows][ldo], panels * PZ_PANEL columns written. */
typedef void (*pz_simd_multiply)(int rows, int panels, int64_t k, const float *x, int64_t ldx, const void *w,
                                 size_t panel_bytes, float *out, int64_t ldo);

typedef struct pz_simd_gemm {
    pz_simd_multiply multiply[PZ_PANEL_KINDS];
} pz_simd_gemm;

typedef struct pz_simd_rows {
    void (*from_bf16)(float *y, const uint16_t *x, int64_t n);
    void (*to_bf16)(uint16_t *y, const float *x, int64_t n);
    /* y[i] = pz_fixed_value(x[i], x_norm, w_norm[i]) */
    void (*from_fixed)(float *y, const int32_t *x, float x_norm, const float *w_norm, int64_t n);
    /* y[i] = pz_fixed_round(x[i] * inv_x * inv_w[i]) */
    void (*to_fixed)(int32_t *y, const float *x, float inv_x, const float *inv_w, int64_t n);
    /* y[i] += the same */
    void (*add_fixed)(int32_t *y, const float *x, float inv_x, const float *inv_w, int64_t n);
    void (*add_f32)(float *y, const float *x, int64_t n);
    void (*add_bf16)(uint16_t *y, const float *x, int64_t n);
    double (*sum_squares)(const float *x, int64_t n);
    /* y = x * factor * w */
    void (*scale)(float *y, const float *x, float factor, const float *w, int64_t n);
    void (*add_scaled)(float *y, const float *x, float factor, int64_t n); /* y += x * factor */
    void (*silu_mul)(float *y, const float *gate, const float *up, int64_t n);
} pz_simd_rows;

/* Heads of one row against the entries of one page, f32 or bf16. */
enum { PZ_MAX_HEADS = 4 };
typedef struct pz_simd_attention {
    /* s[h * ld + t] = scale * q[h * ldq + :] . entry[t]; `entry` elements an entry, n entries one after another at c.
     * next: as many entries that will be needed soon, for the cache; may be c */
    void (*scores_f32)(int heads, const float *q, int64_t ldq, const float *c, const float *next, int entry, int n,
                       float scale, float *s, int64_t ld);
    void (*scores_bf16)(int heads, const float *q, int64_t ldq, const uint16_t *c, const uint16_t *next, int entry,
                        int n, float scale, float *s, int64_t ld);
    /* o[h * ldo + i] += p[h * ld + t] * entry[t][i] for i < latent, t in order */
    void (*values_f32)(int heads, const float *p, int64_t ld, const float *c, int entry, int n, int latent, float *o,
                       int64_t ldo);
    void (*values_bf16)(int heads, const float *p, int64_t ld, const uint16_t *c, int entry, int n, int latent,
                        float *o, int64_t ldo);
    void (*softmax)(float *x, int64_t n);
} pz_simd_attention;

typedef struct pz_simd {
    const char *name; /* word of knob ISA */
    const pz_simd_gemm *gemm;
    const pz_simd_rows *rows;
    const pz_simd_attention *attention;
} pz_simd;

#endif
