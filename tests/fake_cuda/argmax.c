/* SPDX-License-Identifier: Apache-2.0 */
/* The greedy choice of each part of a row, in host memory. */
#include "backend/cuda/rows/argmax.h"

#include "base/fixed.h"

static float element(const pz_matrix *x, int row, int col) {
    int64_t i = row * x->ld + col;
    if (x->elem == PZ_ELEM_F32) return ((const float *)x->data)[i];
    if (x->elem == PZ_ELEM_BF16) return pz_bf16_to_f32(((const uint16_t *)x->data)[i]);
    return pz_fixed_value(((const int32_t *)x->data)[i], x->x_norm[row], x->w_norm[col]);
}

pz_status pz_cuda_launch_argmax(const pz_argmax_params *p, cudaStream_t stream, pz_error *err) {
    (void)stream, (void)err;
    for (int i = 0; i < p->n * p->parts; i++) {
        int first = i % p->parts * PZ_ARGMAX_SPAN, n = p->cols - first;
        if (n > PZ_ARGMAX_SPAN) n = PZ_ARGMAX_SPAN;
        pz_argmax_part *out = &p->out[i];
        *out = (pz_argmax_part){-INFINITY, -1, 0};
        for (int c = first; c < first + n; c++) {
            float v = element(&p->x, p->rows[i / p->parts], c);
            out->finite |= isfinite(v) != 0;
            if (v > out->value) *out = (pz_argmax_part){v, c, out->finite};
        }
    }
    return PZ_OK;
}
