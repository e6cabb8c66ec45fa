/* SPDX-License-Identifier: Apache-2.0 */
/* Weights: from the checkpoint's rows into panels. */
#include "backend/cpu/cpu.h"
#include "backend/host_rows.h"

void pz_cpu_weight_free(pz_cpu_weight *w) {
    pz_free(w->name);
    pz_free(w->vector);
    pz_free(w->panels.data);
    pz_free(w->transposed.data);
    pz_free(w->w_norm);
    pz_free(w->inv_w_norm);
    pz_vec_free(&w->parts);
    *w = (pz_cpu_weight){0};
}

static int64_t panels_bytes(const pz_panels *p) {
    return p->data ? (int64_t)p->block_bytes * p->blocks : 0;
}

int64_t pz_cpu_weight_bytes(const pz_cpu_weight *w) {
    int64_t norms = w->w_norm ? 2 * pz_panel_align(w->rows) : 0, vector = w->vector ? w->cols : 0;
    return panels_bytes(&w->panels) + panels_bytes(&w->transposed) + (norms + vector) * (int64_t)sizeof(float);
}

/* ---- packing ---- */
typedef struct pack_job {
    const pz_host_weight *host;
    pz_panels *panels;
    bool transposed; /* the host's rows are inputs */
    const pz_simd *simd;
    float *w_norm, *inv_w_norm, *scratch; /* NULL: no norms; scratch cols floats a thread */
} pack_job;

static void pack_bf16(const pz_host_row *col, int64_t k, unsigned char *dst) {
    uint32_t *out = (uint32_t *)(void *)dst;
    for (int j = 0; j < 16; j++) {
        const unsigned char *lo = col[j].data, *hi = col[j + 16].data;
        if (!lo) continue;
        for (int64_t i = 0; i < k; i++)
            out[i * 16 + j] = pz_host_u16(lo + i * 2) | (hi ? pz_host_u16(hi + i * 2) << 16 : 0);
    }
}

static void pack_f32(const pz_host_row *col, int64_t k, unsigned char *dst) {
    float *out = (float *)(void *)dst;
    for (int j = 0; j < PZ_PANEL && col[j].data; j++)
        for (int64_t i = 0; i < k; i++) out[i * PZ_PANEL + j] = pz_host_f32(col[j].data + i * 4);
}

static void pack_mxfp4(const pz_host_row *col, int64_t k, unsigned char *dst) {
    for (int64_t block = 0; block < k / 32; block++, dst += 576) {
        uint32_t *out = (uint32_t *)(void *)dst;
        for (int j = 0; j < PZ_PANEL && col[j].data; j++) {
            int shift = j < 16 ? 0 : 16;
            out[j % 16] |= pz_e8m0_to_bf16(col[j].scale[block]) << shift;
            for (int g = 0; g < 8; g++)
                out[16 + g * 16 + j % 16] |= pz_host_u16(col[j].data + block * 16 + g * 2) << shift;
        }
    }
}

static void pack_transposed(const pack_job *job, int64_t panel, unsigned char *dst) {
    const pz_panels *p = job->panels;
    int64_t first = panel * PZ_PANEL, n = p->n - first < PZ_PANEL ? p->n - first : PZ_PANEL;
    pz_host_hint hint = {0};
    for (int64_t k = 0; k < p->k; k++) {
        const unsigned char *src = pz_host_find_row(job->host, &hint, k).data;
        if (p->kind == PZ_PANEL_F32) {
            memcpy(dst + k * 128, src + first * 4, (size_t)n * 4);
            continue;
        }
        uint32_t *out = (uint32_t *)(void *)(dst + k * 64);
        for (int64_t j = 0; j < n; j++) out[j % 16] |= pz_host_u16(src + (first + j) * 2) << (j < 16 ? 0 : 16);
    }
}

static void pack_panel(const pack_job *job, int64_t block, int64_t panel, pz_host_hint *hint, float *scratch) {
    const pz_panels *p = job->panels;
    unsigned char *dst = p->data + (size_t)block * p->block_bytes + (size_t)panel * p->panel_bytes;
    if (job->transposed) {
        pack_transposed(job, panel, dst);
        return;
    }
    pz_host_row col[PZ_PANEL] = {{0}};
    for (int64_t j = 0; j < PZ_PANEL && panel * PZ_PANEL + j < p->n; j++) {
        int64_t row = block * p->n + panel * PZ_PANEL + j;
        col[j] = pz_host_find_row(job->host, hint, row);
        if (!job->w_norm) continue;
        pz_host_row_values(job->host, col[j], scratch);
        job->w_norm[row] = pz_fixed_norm(job->simd->rows->sum_squares(scratch, p->k));
        job->inv_w_norm[row] = pz_fixed_inv(job->w_norm[row]);
    }
    static void (*const pack[PZ_PANEL_KINDS])(const pz_host_row *, int64_t, unsigned char *) = {
        [PZ_PANEL_BF16] = pack_bf16, [PZ_PANEL_F32] = pack_f32, [PZ_PANEL_MXFP4] = pack_mxfp4};
    pack[p->kind](col, p->k, dst);
}

static void pack_all(void *arg, int tid, int nthreads) {
    const pack_job *job = arg;
    int64_t per_block = pz_panel_count(job->panels->n), begin, end;
    pz_host_hint hint = {0};
    float *scratch = job->scratch ? job->scratch + tid * job->panels->k : NULL;
    pz_cpu_share(job->panels->blocks * per_block, tid, nthreads, &begin, &end);
    for (int64_t u = begin; u < end; u++) pack_panel(job, u / per_block, u % per_block, &hint, scratch);
}

static pz_status pack(pz_backend *b, pz_panels *p, int64_t blocks, bool transposed, const pz_host_weight *h,
                      pz_cpu_weight *norms, pz_error *err) {
    pz_panel_kind kind = h->dt == PZ_DT_F32 ? PZ_PANEL_F32 : h->dt == PZ_DT_BF16 ? PZ_PANEL_BF16 : PZ_PANEL_MXFP4;
    *p = (pz_panels){.kind = kind, .blocks = blocks, .n = transposed ? h->cols : h->rows / blocks};
    p->k = transposed ? h->rows : h->cols;
    p->panel_bytes = pz_panel_bytes(kind, (size_t)p->k);
    size_t total;
    if (!pz_mul_ok(p->panel_bytes, (size_t)pz_panel_count(p->n), &p->block_bytes) ||
        !pz_mul_ok(p->block_bytes, (size_t)blocks, &total) || !(p->data = pz_aligned_calloc(total)))
        return PZ_NOMEM(err);
    pack_job job = {.host = h, .panels = p, .transposed = transposed, .simd = b->simd};
    if (norms) {
        norms->w_norm = pz_aligned_calloc((size_t)pz_panel_align(h->rows) * sizeof(float));
        norms->inv_w_norm = pz_aligned_calloc((size_t)pz_panel_align(h->rows) * sizeof(float));
        job.scratch = pz_calloc((size_t)b->threads * (size_t)p->k, sizeof(float));
        if (!norms->w_norm || !norms->inv_w_norm || !job.scratch) {
            pz_free(job.scratch);
            return PZ_NOMEM(err);
        }
        job.w_norm = norms->w_norm;
        job.inv_w_norm = norms->inv_w_norm;
    }
    int threads = total < 65536 ? 1 : b->threads;
    pz_par_run(threads, pack_all, &job);
    pz_free(job.scratch);
    return PZ_OK;
}

static pz_status load_vector(pz_cpu_weight *e, const pz_host_weight *h, pz_error *err) {
    e->vector = pz_calloc((size_t)h->cols, sizeof(float));
    if (!e->vector) return PZ_NOMEM(err);
    pz_host_hint hint = {0};
    pz_host_row_values(h, pz_host_find_row(h, &hint, 0), e->vector);
    return PZ_OK;
}

static pz_status keep_parts(pz_cpu_weight *e, const pz_host_weight *h, pz_error *err) {
    for (int i = 0; i < h->parts.n; i++) PZ_TRY(pz_push(&e->parts, h->parts.at[i], err));
    return PZ_OK;
}

/* ---- entry ---- */
/* Makes what `use` reads, in an entry of its own. */
static pz_status make_forms(pz_backend *b, pz_cpu_weight *e, const pz_weight *w, pz_op use, const pz_host_weight *h,
                            pz_error *err) {
    *e = (pz_cpu_weight){.rows = h->rows, .cols = h->cols, .dt = h->dt, .name = pz_strdup(w->name)};
    if (!e->name) return PZ_NOMEM(err);
    if (w->type.rank == 1) return load_vector(e, h, err);
    bool quantized = h->dt == PZ_DT_MXFP4;
    if (w->type.rank == 3 && use == PZ_OP_MOE_EXPERTS) {
        /* gate and up rows begin panels of their own; a down weight can be halved as well */
        int64_t halves = w->type.dim[1] % 2 == 0 ? 2 : 1;
        return pack(b, &e->panels, w->type.dim[0] * halves, false, h, NULL, err);
    }
    if (w->type.rank == 2 && use == PZ_OP_GEMM) {
        PZ_TRY(keep_parts(e, h, err));
        return pack(b, &e->panels, 1, false, h, e, err);
    }
    if (w->type.rank == 2 && use == PZ_OP_EMBED && !quantized) return keep_parts(e, h, err);
    if (w->type.rank == 2 && (use == PZ_OP_MLA_ABSORB_Q || use == PZ_OP_MLA_ABSORB_V) && !quantized) {
        PZ_TRY(pack(b, &e->panels, 1, false, h, NULL, err));
        return pack(b, &e->transposed, 1, true, h, NULL, err);
    }
    return pz_fail(err, PZ_E_UNSUPPORTED, "weight %s: %s does not take a weight of rank %d in %s", w->name,
                   pz_op_text(use), w->type.rank, pz_dtype_text(h->dt));
}

/* An op that reads the weight in another way (tied embeddings) adds its form to what is there. */
static void merge(pz_cpu_weight *into, pz_cpu_weight *from) {
    if (!from->panels.data) from->panels = into->panels, into->panels.data = NULL;
    if (!from->transposed.data) from->transposed = into->transposed, into->transposed.data = NULL;
    if (!from->w_norm) {
        from->w_norm = into->w_norm;
        from->inv_w_norm = into->inv_w_norm;
        into->w_norm = into->inv_w_norm = NULL;
    }
    if (!from->parts.n) {
        pz_vec_free(&from->parts);
        memcpy(&from->parts, &into->parts, sizeof from->parts);
        memset(&into->parts, 0, sizeof into->parts);
    }
    pz_cpu_weight_free(into);
    *into = *from;
}

pz_status pz_cpu_load(pz_backend *b, const pz_weight *w, pz_op use, const pz_host_weight *host, pz_error *err) {
    if (w->index < 0) return pz_fail(err, PZ_E_INVAL, "weight %s: index %d", w->name, w->index);
    PZ_TRY(pz_host_check(w, host, err));
    while (b->weights.n <= w->index) PZ_TRY(pz_push(&b->weights, (pz_cpu_weight){0}, err));
    pz_cpu_weight made;
    pz_status st = make_forms(b, &made, w, use, host, err);
    if (st == PZ_OK)
        merge(&b->weights.at[w->index], &made);
    else
        pz_cpu_weight_free(&made);
    return st;
}
