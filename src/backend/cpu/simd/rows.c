/* SPDX-License-Identifier: Apache-2.0 */
/* Element by element over a row; plain loops that the compiler vectorises. base/fixed.h defines the arithmetic. */
#include "backend/cpu/simd/exp.h"
#include "base/fixed.h"

static void from_bf16(float *restrict y, const uint16_t *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = pz_bf16_to_f32(x[i]);
}

static void to_bf16(uint16_t *restrict y, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = pz_f32_to_bf16(x[i]);
}

static void from_fixed(float *restrict y, const int32_t *restrict x, float x_norm, const float *restrict w_norm,
                       int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = pz_fixed_value(x[i], x_norm, w_norm[i]);
}

/* pz_fixed_round with rintf spelt out, which the baseline instruction set lacks. */
PZ_INLINE int32_t fixed_round(float scaled) {
    float a = fabsf(scaled), near = (a + 0x1p23f) - 0x1p23f;
    float r = copysignf(a < 0x1p23f ? near : a, scaled);
    return (int32_t)(a <= PZ_FIXED_LIMIT ? r : 0.f);
}

static void to_fixed(int32_t *restrict y, const float *restrict x, float inv_x, const float *restrict inv_w,
                     int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = fixed_round(x[i] * inv_x * inv_w[i]);
}

static void add_fixed(int32_t *restrict y, const float *restrict x, float inv_x, const float *restrict inv_w,
                      int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = (int32_t)((uint32_t)y[i] + (uint32_t)fixed_round(x[i] * inv_x * inv_w[i]));
}

static void add_f32(float *restrict y, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

static void add_bf16(uint16_t *restrict y, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = pz_f32_to_bf16(pz_bf16_to_f32(y[i]) + x[i]);
}

/* Lane l takes elements l, l + 16, ...; the lanes are then added in order. Squares of f32 are exact in f64. */
static double sum_squares(const float *restrict x, int64_t n) {
    double lane[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) lane[l] += (double)x[i + l] * (double)x[i + l];
    for (int l = 0; i + l < n; l++) lane[l] += (double)x[i + l] * (double)x[i + l];
    double sum = 0;
    for (int l = 0; l < 16; l++) sum += lane[l];
    return sum;
}

static void scale(float *restrict y, const float *restrict x, float factor, const float *restrict w, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * w[i];
}

static void add_scaled(float *restrict y, const float *restrict x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += x[i] * factor;
}

static void silu_mul(float *restrict y, const float *restrict gate, const float *restrict up, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = gate[i] / (1.f + pz_exp(-gate[i])) * up[i];
}

extern const pz_simd_rows PZ_ISA_NAME(pz_simd_rows);
const pz_simd_rows PZ_ISA_NAME(pz_simd_rows) = {
    .from_bf16 = from_bf16,
    .to_bf16 = to_bf16,
    .from_fixed = from_fixed,
    .to_fixed = to_fixed,
    .add_fixed = add_fixed,
    .add_f32 = add_f32,
    .add_bf16 = add_bf16,
    .sum_squares = sum_squares,
    .scale = scale,
    .add_scaled = add_scaled,
    .silu_mul = silu_mul,
};
