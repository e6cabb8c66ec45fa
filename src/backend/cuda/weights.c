/* SPDX-License-Identifier: Apache-2.0 */
/* Weights: from the checkpoint's rows into device memory, through page-locked memory a few rows at a time. */
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/state.h"
#include "backend/host_rows.h"
#include "base/fixed.h"

void pz_cuda_weight_free(pz_backend *b, pz_cuda_weight *w) {
    void *memory[] = {w->vector, w->bf16, w->fp4, w->scale, w->w_norm};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i]) cudaFree(memory[i]);
    b->used -= w->bytes;
    b->weight_bytes -= w->bytes;
    pz_free(w->name);
    *w = (pz_cuda_weight){0};
}

static pz_status reserve(pz_backend *b, pz_cuda_weight *e, int64_t bytes, void **out, pz_error *err) {
    pz_cuda_block block;
    PZ_TRY(pz_cuda_memory(b, e->name, bytes, &block, err));
    e->bytes += bytes;
    b->weight_bytes += bytes;
    *out = block.data;
    return PZ_OK;
}

/* ---- one row in the form of the device ---- */
/* Writes host row `row` to dst; false if the form cannot hold a value exactly. */
typedef bool (*row_form)(const pz_host_weight *h, pz_host_row row, unsigned char *dst);

static bool form_f32(const pz_host_weight *h, pz_host_row row, unsigned char *dst) {
    pz_host_row_values(h, row, (float *)(void *)dst);
    return true;
}

static bool form_bf16(const pz_host_weight *h, pz_host_row row, unsigned char *dst) {
    uint16_t *out = (uint16_t *)(void *)dst;
    if (h->dt == PZ_DT_BF16) {
        memcpy(out, row.data, (size_t)h->cols * 2);
        return true;
    }
    if (h->dt == PZ_DT_MXFP4) {
        static const uint16_t code[16] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                          0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
        for (int64_t block = 0; block < h->cols / 32; block++) {
            uint16_t value[16];
            float scale = pz_bf16_to_f32((uint16_t)pz_e8m0_to_bf16(row.scale[block]));
            for (int i = 0; i < 16; i++) value[i] = pz_f32_to_bf16(pz_bf16_to_f32(code[i]) * scale);
            for (int64_t k = block * 32; k < block * 32 + 32; k++) out[k] = value[row.data[k / 2] >> (k % 2 * 4) & 15];
        }
        return true;
    }
    for (int64_t k = 0; k < h->cols; k++) {
        float v = pz_host_f32(row.data + k * 4);
        out[k] = pz_f32_to_bf16(v);
        if (v == v && pz_bf16_to_f32(out[k]) != v) return false;
    }
    return true;
}

static bool form_fp4(const pz_host_weight *h, pz_host_row row, unsigned char *dst) {
    memcpy(dst, row.data, (size_t)h->cols / 2);
    return true;
}

static bool form_scale(const pz_host_weight *h, pz_host_row row, unsigned char *dst) {
    memcpy(dst, row.scale, (size_t)h->cols / 32);
    return true;
}

/* ---- all rows ---- */
enum { STAGE_BYTES = 8 << 20 };

/* Makes rows of row_bytes each in device memory of this weight. */
static pz_status upload(pz_backend *b, pz_cuda_weight *e, const pz_host_weight *h, row_form form, int64_t row_bytes,
                        void **out, pz_error *err) {
    size_t bytes;
    if (!pz_mul_ok((size_t)h->rows, (size_t)row_bytes, &bytes) || bytes > INT64_MAX) return PZ_NOMEM(err);
    PZ_TRY(reserve(b, e, (int64_t)bytes, out, err));
    int64_t block = row_bytes < STAGE_BYTES ? STAGE_BYTES / row_bytes : 1;
    PZ_TRY(pz_cuda_pinned_grow(&b->results, (size_t)(block * row_bytes), err));
    pz_host_hint hint = {0};
    for (int64_t first = 0; first < h->rows; first += block) {
        int64_t rows = h->rows - first < block ? h->rows - first : block;
        unsigned char *stage = b->results.data;
        for (int64_t i = 0; i < rows; i++)
            if (!form(h, pz_host_find_row(h, &hint, first + i), stage + i * row_bytes))
                return pz_fail(err, PZ_E_UNSUPPORTED,
                               "weight %s, row %lld: an f32 value that bf16 cannot hold exactly; a GPU multiplies bf16",
                               e->name, (long long)(first + i));
        PZ_CUDA_TRY(cudaMemcpyAsync((unsigned char *)*out + first * row_bytes, stage, (size_t)(rows * row_bytes),
                                    cudaMemcpyHostToDevice, b->stream),
                    err);
        PZ_CUDA_TRY(cudaStreamSynchronize(b->stream), err);
    }
    return PZ_OK;
}

static pz_status load_matrix(pz_backend *b, pz_cuda_weight *e, pz_op use, const pz_host_weight *h, pz_error *err) {
    PZ_TRY(upload(b, e, h, form_bf16, h->cols * 2, &e->bf16, err));
    if (use != PZ_OP_GEMM) return PZ_OK;
    if (h->rows > INT32_MAX || h->cols > INT32_MAX)
        return pz_fail(err, PZ_E_UNSUPPORTED, "weight %s: %lld x %lld; a GPU's GEMM takes up to 2^31 of each", e->name,
                       (long long)h->rows, (long long)h->cols);
    void *norms = NULL;
    PZ_TRY(reserve(b, e, h->rows * (int64_t)sizeof(float), &norms, err));
    e->w_norm = norms;
    PZ_TRY(pz_cuda_weight_norms(e->bf16, h->cols, (int)h->rows, (int)h->cols, e->w_norm, b->stream, err));
    return pz_cuda_check(cudaStreamSynchronize(b->stream), e->name, err);
}

static pz_status load_experts(pz_backend *b, pz_cuda_weight *e, const pz_host_weight *h, pz_error *err) {
    if (h->dt != PZ_DT_MXFP4) return upload(b, e, h, form_bf16, h->cols * 2, &e->bf16, err);
    void *fp4 = NULL, *scale = NULL;
    pz_status st = upload(b, e, h, form_fp4, h->cols / 2, &fp4, err);
    e->fp4 = fp4;
    if (st == PZ_OK) st = upload(b, e, h, form_scale, h->cols / 32, &scale, err);
    e->scale = scale;
    return st;
}

static pz_status make_forms(pz_backend *b, pz_cuda_weight *e, const pz_weight *w, pz_op use, const pz_host_weight *h,
                            pz_error *err) {
    *e = (pz_cuda_weight){.rows = h->rows, .cols = h->cols, .name = pz_strdup(w->name)};
    if (!e->name) return PZ_NOMEM(err);
    bool absorb = use == PZ_OP_MLA_ABSORB_Q || use == PZ_OP_MLA_ABSORB_V;
    if (w->type.rank == 1) {
        void *vector = NULL;
        pz_status st = upload(b, e, h, form_f32, h->cols * 4, &vector, err);
        e->vector = vector;
        return st;
    }
    if (w->type.rank == 3 && use == PZ_OP_MOE_EXPERTS) return load_experts(b, e, h, err);
    if (w->type.rank == 2 && use == PZ_OP_GEMM) return load_matrix(b, e, use, h, err);
    if (w->type.rank == 2 && (use == PZ_OP_EMBED || absorb) && h->dt != PZ_DT_MXFP4)
        return load_matrix(b, e, use, h, err);
    return pz_fail(err, PZ_E_UNSUPPORTED, "weight %s: %s does not take a weight of rank %d in %s", w->name,
                   pz_op_text(use), w->type.rank, pz_dtype_text(h->dt));
}

pz_status pz_cuda_load(pz_backend *b, const pz_weight *w, pz_op use, const pz_host_weight *host, pz_error *err) {
    if (w->index < 0) return pz_fail(err, PZ_E_INVAL, "weight %s: index %d", w->name, w->index);
    PZ_TRY(pz_cuda_enter(b, err));
    PZ_TRY(pz_host_check(w, host, err));
    while (b->weights.n <= w->index) PZ_TRY(pz_push(&b->weights, (pz_cuda_weight){0}, err));
    pz_cuda_weight *old = &b->weights.at[w->index], made;
    if (old->w_norm && pz_streq(old->name, w->name)) use = PZ_OP_GEMM; /* tied embeddings: its form serves both */
    pz_status st = make_forms(b, &made, w, use, host, err);
    if (st != PZ_OK) {
        pz_cuda_weight_free(b, &made);
        return st;
    }
    pz_cuda_weight_free(b, old);
    *old = made;
    b->loads++;
    return PZ_OK;
}
