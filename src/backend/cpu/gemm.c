/* SPDX-License-Identifier: Apache-2.0 */
/* Split-K GEMM. A unit of work is one split of one tile of columns; a thread owns a contiguous range of units, so at
 * most its first and last tile are shared with others. What it owns alone it adds with plain adds, the rest with atomic
 * ones. */
#include "backend/cpu/cpu.h"

typedef struct gemm_job {
    const pz_cpu_run *r;
    const pz_launch *l;
    const pz_cpu_weight *w;
    pz_rows x, y;
    const float *x_norm; /* FIXED */
    float *workspace;    /* REDUCE: [split][m][n] */
    int64_t m, n, k, tiles;
} gemm_job;

enum { ROW_BLOCK_BYTES = 256 * 1024 };

/* Rows whose f32 copies stay in the cache of a core. */
static int64_t row_block(int64_t m, int64_t k) {
    int64_t rows = ROW_BLOCK_BYTES / 4 / k / 8 * 8;
    if (rows < 8) rows = 8;
    return rows < m ? rows : m;
}

static pz_status check_strategy(const pz_cpu_run *r, const pz_launch *l, int64_t n, pz_error *err) {
    const pz_gemm_config *c = &l->gemm;
    if (c->tile_n < 1 || c->tile_n % PZ_PANEL != 0 || c->split < 1)
        return pz_cpu_refuse(l, PZ_E_UNSUPPORTED, err,
                             "tile_n %d, split %d; tile_n must be a multiple of %d, split 1 or more", c->tile_n,
                             c->split, PZ_PANEL);
    switch (l->strategy) {
    case PZ_ZERO_PREZERO:
    case PZ_ZERO_SELF:
    case PZ_ZERO_MEMSET: return PZ_OK;
    case PZ_ZERO_NONE:
        if (c->split == 1) return PZ_OK;
        return pz_cpu_refuse(l, PZ_E_UNSUPPORTED, err, "strategy none cannot add up %d splits", c->split);
    case PZ_ZERO_REDUCE:
        if (l->workspace >= 0 && l->workspace < r->plan->places.n &&
            r->plan->places.at[l->workspace].bytes / 4 / c->split / r->m >= n)
            return PZ_OK;
        return pz_cpu_refuse(l, PZ_E_INTERNAL, err, "strategy reduce needs a workspace of %d x %d x %lld f32", c->split,
                             r->m, (long long)n);
    default:
        return pz_cpu_refuse(l, PZ_E_UNSUPPORTED, err,
                             "strategy %s is not supported; there are none, prezero, self, memset, reduce",
                             pz_strategy_text(l->strategy));
    }
}

pz_status pz_cpu_check_gemm(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    const pz_weight *w = pz_cpu_in_weight(l, "w");
    const pz_cpu_weight *e = w ? pz_cpu_weight_of(r, w) : NULL;
    if (!e || !e->w_norm)
        return pz_cpu_refuse(l, PZ_E_INVAL, err, "weight %s is not loaded for gemm", w ? w->name : "?");
    PZ_TRY(pz_cpu_check_act(r, l, "x", e->cols, err));
    const pz_place *y = l->out[0] >= 0 ? &r->plan->places.at[l->out[0]] : NULL;
    if (!y || y->type.rank != 2 || y->type.dim[1] != e->rows || y->type.dt != pz_accum_dtype(l->accum))
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "result must be %s[m,%lld]", pz_accum_text(l->accum),
                             (long long)e->rows);
    if (l->accum == PZ_ACCUM_FIXED && (y->scale_norm < 0 || y->scale_norm >= r->plan->places.n || y->scale_col != 0 ||
                                       !y->scale_weight || !pz_streq(y->scale_weight->name, w->name)))
        return pz_cpu_refuse(l, PZ_E_INTERNAL, err, "the fixed accumulator needs the x_norm of its input");
    PZ_TRY(check_strategy(r, l, e->rows, err));
    int64_t rows = row_block(r->m, e->cols);
    pz_cpu_want(r, pz_floats(rows, e->cols) + pz_floats(rows, l->gemm.tile_n), 0);
    return PZ_OK;
}

/* ---- adding partial sums into the output ---- */
static void atomic_add_f32(float *y, const float *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float old, sum;
        __atomic_load(&y[i], &old, __ATOMIC_RELAXED);
        do {
            sum = old + p[i];
        } while (!__atomic_compare_exchange(&y[i], &old, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    }
}

static void atomic_add_bf16(uint16_t *y, const float *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t old = __atomic_load_n(&y[i], __ATOMIC_RELAXED), sum;
        do {
            sum = pz_f32_to_bf16(pz_bf16_to_f32(old) + p[i]);
        } while (!__atomic_compare_exchange_n(&y[i], &old, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    }
}

static void atomic_add_fixed(const gemm_job *j, int32_t *y, const float *p, float inv_x, const float *inv_w,
                             int64_t n) {
    int32_t q[PZ_PANEL];
    for (int64_t i = 0; i < n; i += PZ_PANEL) {
        int64_t c = n - i < PZ_PANEL ? n - i : PZ_PANEL;
        j->r->simd->rows->to_fixed(q, p + i, inv_x, inv_w + i, c);
        for (int64_t a = 0; a < c; a++) __atomic_fetch_add(&y[i + a], q[a], __ATOMIC_RELAXED);
    }
}

typedef enum add_mode { ADD_STORE, ADD_PLAIN, ADD_ATOMIC } add_mode;

/* n sums of one row, columns from col on. */
static void add_row(const gemm_job *j, add_mode mode, int64_t row, int64_t col, int64_t n, const float *p) {
    const pz_simd_rows *simd = j->r->simd->rows;
    int64_t at = row * j->y.ld + col;
    if (j->y.dt == PZ_DT_FIXED) {
        int32_t *y = (int32_t *)(void *)j->y.data + at;
        float inv_x = pz_fixed_inv(j->x_norm[row]);
        const float *inv_w = j->w->inv_w_norm + col;
        if (mode == ADD_STORE)
            simd->to_fixed(y, p, inv_x, inv_w, n);
        else if (mode == ADD_PLAIN)
            simd->add_fixed(y, p, inv_x, inv_w, n);
        else
            atomic_add_fixed(j, y, p, inv_x, inv_w, n);
        return;
    }
    if (mode == ADD_STORE) {
        pz_rows_put(j->r->simd, &j->y, row, col, n, p);
    } else if (j->y.dt == PZ_DT_F32) {
        float *y = (float *)(void *)j->y.data + at;
        if (mode == ADD_PLAIN)
            simd->add_f32(y, p, n);
        else
            atomic_add_f32(y, p, n);
    } else {
        uint16_t *y = (uint16_t *)(void *)j->y.data + at;
        if (mode == ADD_PLAIN)
            simd->add_bf16(y, p, n);
        else
            atomic_add_bf16(y, p, n);
    }
}

/* ---- units ---- */
/* f32 rows [first, first + rows) of x: the memory itself, or a copy. */
static const float *block_of_x(const gemm_job *j, int64_t first, int64_t rows, float *scratch, int64_t *ldx) {
    *ldx = j->x.dt == PZ_DT_F32 ? j->x.ld : j->k;
    if (j->x.dt == PZ_DT_F32) return pz_rows_get(j->r->simd, &j->x, first, 0, j->k, NULL);
    for (int64_t i = 0; i < rows; i++) pz_rows_copy(j->r->simd, &j->x, first + i, 0, j->k, scratch + i * j->k);
    return scratch;
}

static void unit(const gemm_job *j, int64_t tile, int split, add_mode mode, int64_t first, int64_t rows, const float *x,
                 int64_t ldx, float *part) {
    const pz_gemm_config *c = &j->l->gemm;
    int64_t col = tile * c->tile_n, n = j->n - col < c->tile_n ? j->n - col : c->tile_n;
    int64_t k0 = pz_split_begin(j->k, c->split, split), k1 = pz_split_begin(j->k, c->split, split + 1);
    const pz_panels *p = &j->w->panels;
    j->r->simd->gemm->multiply[p->kind]((int)rows, (int)pz_panel_count(n), k1 - k0, x + k0, ldx,
                                        pz_panel_at(p, 0, col / PZ_PANEL, k0), p->panel_bytes, part, c->tile_n);
    for (int64_t i = 0; i < rows; i++) {
        if (j->l->strategy == PZ_ZERO_REDUCE)
            memcpy(j->workspace + (split * j->m + first + i) * j->n + col, part + i * c->tile_n,
                   (size_t)n * sizeof(float));
        else
            add_row(j, mode, first + i, col, n, part + i * c->tile_n);
    }
}

static void all_units(const gemm_job *j, int tid, int nthreads) {
    const pz_gemm_config *c = &j->l->gemm;
    int64_t begin, end, block = row_block(j->m, j->k), ldx;
    float *scratch = pz_cpu_thread_scratch(j->r, tid);
    float *part = (float *)(void *)((unsigned char *)scratch + pz_floats(block, j->k));
    pz_cpu_share(j->tiles * c->split, tid, nthreads, &begin, &end);
    if (begin == end) return;
    for (int64_t first = 0; first < j->m; first += block) {
        int64_t rows = j->m - first < block ? j->m - first : block;
        const float *x = block_of_x(j, first, rows, scratch, &ldx);
        for (int64_t u = begin; u < end; u++) {
            int64_t tile = u / c->split;
            bool alone = tile * c->split >= begin && (tile + 1) * c->split <= end;
            add_mode mode = j->l->strategy == PZ_ZERO_NONE ? ADD_STORE : alone ? ADD_PLAIN : ADD_ATOMIC;
            unit(j, tile, (int)(u % c->split), mode, first, rows, x, ldx, part);
        }
    }
}

/* REDUCE: adds the splits in order: as integers, like the other strategies, if fixed; else in f32, rounded once. */
static void reduce(const gemm_job *j, int tid, int nthreads) {
    int64_t begin, end, tile_n = j->l->gemm.tile_n;
    float *sum = pz_cpu_thread_scratch(j->r, tid);
    pz_cpu_share(j->m * j->tiles, tid, nthreads, &begin, &end);
    for (int64_t u = begin; u < end; u++) {
        int64_t row = u / j->tiles, col = u % j->tiles * tile_n, n = j->n - col < tile_n ? j->n - col : tile_n;
        for (int s = 0; s < j->l->gemm.split; s++) {
            const float *part = j->workspace + (s * j->m + row) * j->n + col;
            if (j->y.dt == PZ_DT_FIXED)
                add_row(j, s == 0 ? ADD_STORE : ADD_PLAIN, row, col, n, part);
            else if (s == 0)
                memcpy(sum, part, (size_t)n * sizeof *sum);
            else
                j->r->simd->rows->add_f32(sum, part, n);
        }
        if (j->y.dt != PZ_DT_FIXED) add_row(j, ADD_STORE, row, col, n, sum);
    }
}

static void zero(void *arg, int tid, int nthreads) {
    const gemm_job *j = arg;
    int64_t size = pz_dtype_bits(j->y.dt) / 8, begin, end;
    pz_cpu_share(j->n, tid, nthreads, &begin, &end);
    for (int64_t i = 0; i < j->m; i++)
        memset(j->y.data + (i * j->y.ld + begin) * size, 0, (size_t)((end - begin) * size));
}

static void gemm_region(void *arg, int tid, int nthreads) {
    const gemm_job *j = arg;
    if (j->l->strategy == PZ_ZERO_SELF) {
        zero(arg, tid, nthreads);
        pz_par_barrier();
    }
    all_units(j, tid, nthreads);
    if (j->l->strategy == PZ_ZERO_REDUCE) {
        pz_par_barrier();
        reduce(j, tid, nthreads);
    }
}

pz_status pz_cpu_run_gemm(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    (void)err;
    gemm_job j = {.r = r, .l = l, .w = pz_cpu_weight_of(r, pz_cpu_in_weight(l, "w")), .m = r->m};
    j.x = pz_cpu_in_rows(r, l, "x");
    j.y = pz_cpu_rows(r, l->out[0]);
    j.x_norm = j.y.x_norm;
    j.n = j.w->rows;
    j.k = j.w->cols;
    j.tiles = pz_ceil_div(j.n, l->gemm.tile_n);
    if (l->strategy == PZ_ZERO_REDUCE)
        j.workspace = (float *)(void *)(r->arena + r->plan->places.at[l->workspace].offset);
    int64_t work = j.m * j.n * j.k;
    if (l->strategy == PZ_ZERO_MEMSET) pz_cpu_par(r, work, zero, &j);
    pz_cpu_par(r, work, gemm_region, &j);
    return PZ_OK;
}
