/* SPDX-License-Identifier: Apache-2.0 */
/* Rope, and the two halves of kv_b: W_UK absorbed into the query, W_UV applied to what attention gives. */
#include "backend/cpu/cpu.h"

enum { ROW_BLOCK = 32, TILE = 2 * PZ_PANEL };

typedef struct absorb_job {
    const pz_cpu_run *r;
    pz_rows x, y;
    const pz_cpu_weight *w;
    const float *table; /* rope */
    float rope_scale;
    int64_t heads, nope, rope, v, latent;
} absorb_job;

/* ---- rope ---- */
pz_status pz_cpu_rope_table(pz_cpu_run *r, const pz_launch *l, const float **table, pz_error *err) {
    pz_backend *b = r->b;
    const pz_cpu_weight *w = pz_cpu_weight_of(r, pz_cpu_in_weight(l, "inv_freq"));
    int place = pz_cpu_in(l, "pos");
    *table = b->rope;
    if (r->rope_place == place && r->rope_weight == w) return PZ_OK;
    size_t need = (size_t)r->m * (size_t)w->cols * 2;
    if (need > b->rope_floats) {
        float *grown = pz_calloc(need, sizeof *grown);
        if (!grown) return PZ_NOMEM(err);
        pz_free(b->rope);
        b->rope = grown;
        b->rope_floats = need;
    }
    const int32_t *pos = pz_cpu_in_i32(r, l, "pos");
    float *at = b->rope;
    for (int i = 0; i < r->m; i++)
        for (int64_t p = 0; p < w->cols; p++, at += 2) {
            float angle = (float)pos[i] * w->vector[p];
            at[0] = cosf(angle);
            at[1] = sinf(angle);
        }
    r->rope_place = place;
    r->rope_weight = w;
    *table = b->rope;
    return PZ_OK;
}

void pz_rope(float *y, const float *x, int64_t pairs, const float *table, float scale) {
    for (int64_t i = 0; i < pairs; i++) {
        float c = table[2 * i] * scale, s = table[2 * i + 1] * scale, a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * c - b * s;
        y[2 * i + 1] = b * c + a * s;
    }
}

/* ---- absorbing kv_b into the query and out of the attention ---- */
static void read_heads(const pz_launch *l, absorb_job *j) {
    j->heads = pz_node_int(l->node, "heads");
    j->nope = pz_node_int(l->node, "nope");
    j->v = pz_node_int(l->node, "v");
}

static pz_status check_kv_b(const pz_cpu_run *r, const pz_launch *l, const absorb_job *j, const pz_cpu_weight **out,
                            pz_error *err) {
    const pz_weight *w = pz_cpu_in_weight(l, "kv_b");
    const pz_cpu_weight *e = w ? pz_cpu_weight_of(r, w) : NULL;
    if (!e || !e->transposed.data)
        return pz_cpu_refuse(l, PZ_E_INVAL, err, "weight %s is not loaded for %s", w ? w->name : "?",
                             pz_op_text(l->op));
    if (j->heads < 1 || j->nope < 1 || j->v < 1 || e->rows != j->heads * (j->nope + j->v))
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "weight %s has %lld rows, expected %lld heads of %lld + %lld", w->name,
                             (long long)e->rows, (long long)j->heads, (long long)j->nope, (long long)j->v);
    *out = e;
    return PZ_OK;
}

pz_status pz_cpu_check_absorb_q(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    absorb_job j = {.rope = pz_node_int(l->node, "rope")};
    const pz_cpu_weight *w;
    read_heads(l, &j);
    PZ_TRY(check_kv_b(r, l, &j, &w, err));
    PZ_TRY(pz_cpu_check_act(r, l, "q", j.heads * (j.nope + j.rope), err));
    PZ_TRY(pz_cpu_check_vector(r, l, "inv_freq", j.rope / 2, err));
    PZ_TRY(pz_cpu_check_i32(r, l, "pos", 0, err));
    pz_cpu_want(r, pz_floats(ROW_BLOCK, j.nope + j.rope) + pz_floats(ROW_BLOCK, TILE) + pz_floats(j.rope, 1), 0);
    return pz_cpu_check_out(r, l, 0, j.heads * (w->cols + j.rope), err);
}

/* A unit is one head times one tile of latent columns. */
static void absorb_q_region(void *arg, int tid, int nthreads) {
    const absorb_job *j = arg;
    const pz_simd *simd = j->r->simd;
    const pz_panels *p = &j->w->transposed;
    int64_t width = j->nope + j->rope, tiles = pz_ceil_div(j->latent, TILE), begin, end;
    float *x = pz_cpu_thread_scratch(j->r, tid), *part = x + pz_floats(ROW_BLOCK, width) / sizeof(float);
    float *rotated = part + ROW_BLOCK * TILE;
    pz_cpu_share(j->heads * tiles, tid, nthreads, &begin, &end);
    for (int64_t first = 0; first < j->r->m && begin < end; first += ROW_BLOCK) {
        int64_t rows = j->r->m - first < ROW_BLOCK ? j->r->m - first : ROW_BLOCK, have = -1;
        for (int64_t u = begin; u < end; u++) {
            int64_t h = u / tiles, col = u % tiles * TILE, n = j->latent - col < TILE ? j->latent - col : TILE;
            for (int64_t i = 0; i < rows && have != h; i++)
                pz_rows_copy(simd, &j->x, first + i, h * width, width, x + i * width);
            have = h;
            simd->gemm->multiply[p->kind]((int)rows, (int)pz_panel_count(n), j->nope, x, width,
                                          pz_panel_at(p, 0, col / PZ_PANEL, h * (j->nope + j->v)), p->panel_bytes, part,
                                          TILE);
            for (int64_t i = 0; i < rows; i++) {
                int64_t at = h * (j->latent + j->rope);
                pz_rows_put(simd, &j->y, first + i, at + col, n, part + i * TILE);
                if (col > 0) continue;
                pz_rope(rotated, x + i * width + j->nope, j->rope / 2, j->table + (first + i) * j->rope, j->rope_scale);
                pz_rows_put(simd, &j->y, first + i, at + j->latent, j->rope, rotated);
            }
        }
    }
}

pz_status pz_cpu_run_absorb_q(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    absorb_job j = {.r = r, .x = pz_cpu_in_rows(r, l, "q"), .y = pz_cpu_rows(r, l->out[0])};
    PZ_TRY(pz_cpu_rope_table(r, l, &j.table, err));
    read_heads(l, &j);
    j.rope = pz_node_int(l->node, "rope");
    j.w = pz_cpu_weight_of(r, pz_cpu_in_weight(l, "kv_b"));
    j.latent = j.w->cols;
    j.rope_scale = (float)pz_node_float(l->node, "rope_scale");
    pz_cpu_par(r, r->m * j.heads * j.nope * j.latent, absorb_q_region, &j);
    return PZ_OK;
}

pz_status pz_cpu_check_absorb_v(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    absorb_job j = {0};
    const pz_cpu_weight *w;
    read_heads(l, &j);
    PZ_TRY(check_kv_b(r, l, &j, &w, err));
    PZ_TRY(pz_cpu_check_act(r, l, "o", j.heads * w->cols, err));
    size_t unit = pz_floats(ROW_BLOCK, w->cols) + pz_floats(ROW_BLOCK, TILE), norm = pz_floats(j.heads, j.v);
    pz_cpu_want(r, unit > norm ? unit : norm, 0);
    return pz_cpu_check_out(r, l, 0, j.heads * j.v, err);
}

/* A unit is one head times two panels. A head's rows of kv_b need not begin with a panel: what a panel holds of its
 * neighbours is not stored. */
static void absorb_v_region(void *arg, int tid, int nthreads) {
    const absorb_job *j = arg;
    const pz_simd *simd = j->r->simd;
    const pz_panels *p = &j->w->panels;
    int64_t chunks = (j->v / PZ_PANEL + 3) / 2, begin, end;
    float *x = pz_cpu_thread_scratch(j->r, tid), *part = x + pz_floats(ROW_BLOCK, j->latent) / sizeof(float);
    pz_cpu_share(j->heads * chunks, tid, nthreads, &begin, &end);
    for (int64_t first = 0; first < j->r->m && begin < end; first += ROW_BLOCK) {
        int64_t rows = j->r->m - first < ROW_BLOCK ? j->r->m - first : ROW_BLOCK, have = -1;
        for (int64_t u = begin; u < end; u++) {
            int64_t h = u / chunks, lo = h * (j->nope + j->v) + j->nope, hi = lo + j->v; /* rows of kv_b */
            int64_t panel = lo / PZ_PANEL + u % chunks * 2, past = pz_panel_count(hi);
            if (panel >= past) continue;
            for (int64_t i = 0; i < rows && have != h; i++)
                pz_rows_copy(simd, &j->x, first + i, h * j->latent, j->latent, x + i * j->latent);
            have = h;
            simd->gemm->multiply[p->kind]((int)rows, past - panel < 2 ? 1 : 2, j->latent, x, j->latent,
                                          pz_panel_at(p, 0, panel, 0), p->panel_bytes, part, TILE);
            int64_t base = panel * PZ_PANEL, from = lo > base ? lo : base, to = hi < base + TILE ? hi : base + TILE;
            for (int64_t i = 0; i < rows; i++)
                pz_rows_put(simd, &j->y, first + i, h * j->v + from - lo, to - from, part + i * TILE + from - base);
        }
    }
    if (!j->y.norm) return;
    pz_par_barrier();
    pz_cpu_share(j->r->m, tid, nthreads, &begin, &end);
    for (int64_t i = begin; i < end; i++) pz_rows_put_norm(simd, &j->y, i, x);
}

pz_status pz_cpu_run_absorb_v(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    (void)err;
    absorb_job j = {.r = r, .x = pz_cpu_in_rows(r, l, "o"), .y = pz_cpu_rows(r, l->out[0])};
    read_heads(l, &j);
    j.w = pz_cpu_weight_of(r, pz_cpu_in_weight(l, "kv_b"));
    j.latent = j.w->cols;
    pz_cpu_par(r, r->m * j.heads * j.v * j.latent, absorb_v_region, &j);
    return PZ_OK;
}
