/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/host_rows.h"

#include "base/fixed.h"

pz_status pz_host_check(const pz_weight *w, const pz_host_weight *h, pz_error *err) {
    if (h->dt != PZ_DT_F32 && h->dt != PZ_DT_BF16 && h->dt != PZ_DT_MXFP4)
        return pz_fail(err, PZ_E_UNSUPPORTED, "weight %s: data type %s; f32, bf16 and mxfp4 are read", w->name,
                       pz_dtype_text(h->dt));
    int64_t rows = 1, parts = 0;
    for (int i = 0; i + 1 < w->type.rank; i++) rows *= w->type.dim[i];
    for (int i = 0; i < h->parts.n; i++) parts += h->parts.at[i].rows;
    int64_t cols = w->type.rank > 0 ? w->type.dim[w->type.rank - 1] : 0;
    if (rows < 1 || cols < 1 || h->rows != rows || h->cols != cols || parts != rows)
        return pz_fail(err, PZ_E_TYPE, "weight %s: %lld x %lld values in parts of %lld rows, expected %lld x %lld",
                       w->name, (long long)h->rows, (long long)h->cols, (long long)parts, (long long)rows,
                       (long long)cols);
    if (h->dt == PZ_DT_MXFP4 && (w->type.rank < 2 || cols % 32 != 0))
        return pz_fail(err, PZ_E_UNSUPPORTED,
                       "weight %s: mxfp4 needs a matrix of a multiple of 32 columns, this has %lld", w->name,
                       (long long)cols);
    for (int i = 0; i < h->parts.n && h->dt == PZ_DT_MXFP4; i++)
        if (!h->parts.at[i].scale) return pz_fail(err, PZ_E_INVAL, "weight %s: mxfp4 without scales", w->name);
    return PZ_OK;
}

pz_host_row pz_host_find_row(const pz_host_weight *h, pz_host_hint *hint, int64_t row) {
    if (row < hint->first) *hint = (pz_host_hint){0, 0};
    while (row >= hint->first + h->parts.at[hint->part].rows) hint->first += h->parts.at[hint->part++].rows;
    const pz_host_part *part = &h->parts.at[hint->part];
    int64_t r = row - hint->first;
    return (pz_host_row){part->data + r * part->row_stride, part->scale ? part->scale + r * part->scale_stride : NULL};
}

static float mxfp4_value(pz_host_row row, int64_t k) {
    static const float values[8] = {0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};
    int code = row.data[k / 2] >> (k % 2 * 4) & 15;
    float v = values[code & 7] * pz_bf16_to_f32((uint16_t)pz_e8m0_to_bf16(row.scale[k / 32]));
    return code & 8 ? -v : v;
}

void pz_host_row_values(const pz_host_weight *h, pz_host_row row, float *dst) {
    for (int64_t k = 0; k < h->cols; k++) {
        if (h->dt == PZ_DT_F32)
            dst[k] = pz_host_f32(row.data + k * 4);
        else if (h->dt == PZ_DT_BF16)
            dst[k] = pz_bf16_to_f32((uint16_t)pz_host_u16(row.data + k * 2));
        else
            dst[k] = mxfp4_value(row, k);
    }
}
