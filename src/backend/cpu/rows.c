/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing activations. Consumers convert: whatever a producer left (bf16, f32, a fixed-point sum), a kernel
 * sees rows of f32. */
#include "backend/cpu/cpu.h"

pz_rows pz_cpu_rows(const pz_cpu_run *r, int place) {
    const pz_place *p = &r->plan->places.at[place];
    int64_t size = pz_dtype_bits(p->type.dt) / 8;
    pz_rows v = {.dt = p->type.dt, .cols = p->type.dim[p->type.rank - 1], .ld = p->ld};
    v.data = r->arena + p->offset + p->col * size;
    if (p->norm >= 0) v.norm = (float *)(void *)(r->arena + r->plan->places.at[p->norm].offset);
    if (p->type.dt == PZ_DT_FIXED) {
        v.x_norm = (const float *)(const void *)(r->arena + r->plan->places.at[p->scale_norm].offset);
        v.w_norm = pz_cpu_weight_of(r, p->scale_weight)->w_norm + p->scale_col;
    }
    return v;
}

const int32_t *pz_cpu_in_i32(const pz_cpu_run *r, const pz_launch *l, const char *operand) {
    return (const int32_t *)(const void *)(r->arena + r->plan->places.at[pz_cpu_in(l, operand)].offset);
}

static const void *element(const pz_rows *v, int64_t row, int64_t col) {
    return v->data + (row * v->ld + col) * (v->dt == PZ_DT_BF16 ? 2 : 4);
}

const float *pz_rows_get(const pz_simd *simd, const pz_rows *v, int64_t row, int64_t col, int64_t n, float *scratch) {
    if (v->dt == PZ_DT_F32) return element(v, row, col);
    pz_rows_copy(simd, v, row, col, n, scratch);
    return scratch;
}

void pz_rows_copy(const pz_simd *simd, const pz_rows *v, int64_t row, int64_t col, int64_t n, float *dst) {
    const void *src = element(v, row, col);
    if (v->dt == PZ_DT_F32)
        memcpy(dst, src, (size_t)n * sizeof *dst);
    else if (v->dt == PZ_DT_BF16)
        simd->rows->from_bf16(dst, src, n);
    else
        simd->rows->from_fixed(dst, src, v->x_norm[row], v->w_norm + col, n);
}

void pz_rows_put(const pz_simd *simd, const pz_rows *v, int64_t row, int64_t col, int64_t n, const float *src) {
    void *dst = v->data + (row * v->ld + col) * (v->dt == PZ_DT_BF16 ? 2 : 4);
    if (v->dt == PZ_DT_BF16)
        simd->rows->to_bf16(dst, src, n);
    else
        memcpy(dst, src, (size_t)n * sizeof *src);
}

void pz_round_row(const pz_simd *simd, pz_dtype dt, float *x, int64_t n) {
    uint16_t part[64];
    if (dt != PZ_DT_BF16) return;
    for (int64_t i = 0; i < n; i += 64) {
        int64_t c = n - i < 64 ? n - i : 64;
        simd->rows->to_bf16(part, x + i, c);
        simd->rows->from_bf16(x + i, part, c);
    }
}

void pz_rows_put_norm(const pz_simd *simd, const pz_rows *v, int64_t row, float *scratch) {
    if (!v->norm) return;
    const float *x = pz_rows_get(simd, v, row, 0, v->cols, scratch);
    v->norm[row] = pz_fixed_norm(simd->rows->sum_squares(x, v->cols));
}
