/* SPDX-License-Identifier: Apache-2.0 */
/* Row by row kernels: norms with their riders, adds, silu_mul, embed. Collectives sum the ranks' rows in f32, rank 0
 * first, then rank 1, and so on: each rank does so for all rows, so all get the same bits, whatever the rows. */
#include "backend/cpu/cpu.h"

typedef struct row_job {
    const pz_cpu_run *r;
    pz_rows x, res, y, sum; /* res, sum: data NULL if absent */
    int ranks;              /* more than 1: x is the sum of parts */
    const float *parts[PZ_MAX_RANKS];
    const float *w; /* norm weight */
    double eps;
    unsigned char *fill; /* the rider */
    int64_t fill_bytes, next_chunk;
    const pz_cpu_weight *table; /* embed */
    const int32_t *ids;
} row_job;

/* ---- x, of one rank or of all ---- */
static bool is_collective(const pz_cpu_run *r, const pz_launch *l) {
    return pz_cpu_ranks(r) > 1 && pz_op_traits(l->op) & PZ_TRAIT_COLLECTIVE;
}

static pz_status set_x(row_job *j, const pz_launch *l, const char *operand, pz_error *err) {
    j->x = pz_cpu_in_rows(j->r, l, operand);
    j->ranks = 1;
    if (!is_collective(j->r, l)) return PZ_OK;
    j->ranks = pz_cpu_ranks(j->r);
    return pz_cpu_gather(j->r, &j->x, j->parts, err);
}

static const float *get_x(const row_job *j, int64_t row, float *scratch) {
    int64_t n = j->x.cols;
    if (j->ranks == 1) return pz_rows_get(j->r->simd, &j->x, row, 0, n, scratch);
    memcpy(scratch, j->parts[0] + row * n, (size_t)n * sizeof *scratch);
    for (int p = 1; p < j->ranks; p++) j->r->simd->rows->add_f32(scratch, j->parts[p] + row * n, n);
    return scratch;
}

/* ---- norms ---- */
pz_status pz_cpu_check_norm(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cpu_check_out(r, l, 0, 0, err));
    int64_t cols = r->plan->places.at[l->out[0]].type.dim[1];
    PZ_TRY(pz_cpu_check_act(r, l, "x", cols, err));
    PZ_TRY(pz_cpu_check_vector(r, l, "w", cols, err));
    if (pz_op_operand_index(l->op, "res") >= 0) {
        PZ_TRY(pz_cpu_check_act(r, l, "res", cols, err));
        PZ_TRY(pz_cpu_check_out(r, l, 1, cols, err));
    }
    if (l->fill >= r->plan->fills.n) return pz_cpu_refuse(l, PZ_E_INTERNAL, err, "no fill %d", l->fill);
    pz_cpu_want(r, 3 * pz_floats(cols, 1), 0);
    if (is_collective(r, l)) pz_cpu_want_gather(r, cols);
    return PZ_OK;
}

static void norm_row(const row_job *j, int64_t row, float *scratch) {
    const pz_simd *simd = j->r->simd;
    int64_t n = j->y.cols;
    size_t step = pz_floats(n, 1) / sizeof(float);
    float *y = scratch + step;
    const float *x = get_x(j, row, scratch);
    if (j->res.data) {
        pz_rows_copy(simd, &j->res, row, 0, n, y);
        simd->rows->add_f32(y, x, n);
        pz_round_row(simd, j->sum.dt, y, n);
        pz_rows_put(simd, &j->sum, row, 0, n, y);
        x = y;
        y += step;
    }
    double mean = simd->rows->sum_squares(x, n) / (double)n;
    simd->rows->scale(y, x, (float)(1.0 / sqrt(mean + j->eps)), j->w, n);
    pz_rows_put(simd, &j->y, row, 0, n, y);
    pz_rows_put_norm(simd, &j->y, row, scratch);
}

/* The rider: whoever has no row left takes the next chunk. */
static void carry_fill(row_job *j) {
    const int64_t chunk = 4096;
    if (j->fill_bytes == 0) return;
    for (;;) {
        int64_t at = __atomic_fetch_add(&j->next_chunk, chunk, __ATOMIC_RELAXED);
        if (at >= j->fill_bytes) return;
        memset(j->fill + at, 0, (size_t)(j->fill_bytes - at < chunk ? j->fill_bytes - at : chunk));
    }
}

static void norm_region(void *arg, int tid, int nthreads) {
    row_job *j = arg;
    int64_t begin, end;
    pz_cpu_share(j->r->m, tid, nthreads, &begin, &end);
    for (int64_t row = begin; row < end; row++) norm_row(j, row, pz_cpu_thread_scratch(j->r, tid));
    carry_fill(j);
}

pz_status pz_cpu_run_norm(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    row_job j = {.r = r, .y = pz_cpu_rows(r, l->out[0])};
    PZ_TRY(set_x(&j, l, "x", err));
    j.w = pz_cpu_weight_of(r, pz_cpu_in_weight(l, "w"))->vector;
    j.eps = pz_node_float(l->node, "eps");
    if (pz_op_operand_index(l->op, "res") >= 0) {
        j.res = pz_cpu_in_rows(r, l, "res");
        j.sum = pz_cpu_rows(r, l->out[1]);
    }
    if (l->fill >= 0) {
        j.fill = r->arena + r->plan->fills.at[l->fill].offset;
        j.fill_bytes = r->plan->fills.at[l->fill].bytes;
    }
    pz_cpu_par(r, r->m * j.y.cols * (7 + j.ranks) + j.fill_bytes, norm_region, &j);
    return PZ_OK;
}

/* ---- add; all_reduce, which on one rank hands its operand on ---- */
pz_status pz_cpu_check_add(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cpu_check_out(r, l, 0, 0, err));
    int64_t cols = r->plan->places.at[l->out[0]].type.dim[1];
    if (l->op == PZ_OP_ADD) {
        PZ_TRY(pz_cpu_check_act(r, l, "a", cols, err));
        PZ_TRY(pz_cpu_check_act(r, l, "b", cols, err));
    } else {
        PZ_TRY(pz_cpu_check_act(r, l, "x", cols, err));
        if (is_collective(r, l)) pz_cpu_want_gather(r, cols);
    }
    pz_cpu_want(r, 2 * pz_floats(cols, 1), 0);
    return PZ_OK;
}

static void add_region(void *arg, int tid, int nthreads) {
    const row_job *j = arg;
    int64_t begin, end, n = j->y.cols;
    float *sum = pz_cpu_thread_scratch(j->r, tid), *scratch = sum + pz_floats(n, 1) / sizeof(float);
    pz_cpu_share(j->r->m, tid, nthreads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const float *x = get_x(j, row, sum);
        if (x != sum) memcpy(sum, x, (size_t)n * sizeof *sum);
        if (j->res.data) j->r->simd->rows->add_f32(sum, pz_rows_get(j->r->simd, &j->res, row, 0, n, scratch), n);
        pz_rows_put(j->r->simd, &j->y, row, 0, n, sum);
    }
}

pz_status pz_cpu_run_add(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    row_job j = {.r = r, .y = pz_cpu_rows(r, l->out[0])};
    PZ_TRY(set_x(&j, l, l->op == PZ_OP_ADD ? "a" : "x", err));
    if (l->op == PZ_OP_ADD) j.res = pz_cpu_in_rows(r, l, "b");
    pz_cpu_par(r, r->m * j.y.cols * (3 + j.ranks), add_region, &j);
    return PZ_OK;
}

/* ---- silu_mul ---- */
pz_status pz_cpu_check_silu_mul(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cpu_check_out(r, l, 0, 0, err));
    int64_t cols = r->plan->places.at[l->out[0]].type.dim[1];
    PZ_TRY(pz_cpu_check_act(r, l, "x", 2 * cols, err));
    pz_cpu_want(r, pz_floats(2, cols) + pz_floats(cols, 1), 0);
    return PZ_OK;
}

static void silu_region(void *arg, int tid, int nthreads) {
    const row_job *j = arg;
    int64_t begin, end, n = j->y.cols;
    float *y = pz_cpu_thread_scratch(j->r, tid), *scratch = y + pz_floats(n, 1) / sizeof(float);
    pz_cpu_share(j->r->m, tid, nthreads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const float *x = pz_rows_get(j->r->simd, &j->x, row, 0, 2 * n, scratch);
        j->r->simd->rows->silu_mul(y, x, x + n, n);
        pz_rows_put(j->r->simd, &j->y, row, 0, n, y);
        pz_rows_put_norm(j->r->simd, &j->y, row, scratch);
    }
}

pz_status pz_cpu_run_silu_mul(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    (void)err;
    row_job j = {.r = r, .x = pz_cpu_in_rows(r, l, "x"), .y = pz_cpu_rows(r, l->out[0])};
    pz_cpu_par(r, r->m * j.y.cols * 16, silu_region, &j);
    return PZ_OK;
}

/* ---- embed ---- */
pz_status pz_cpu_check_embed(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    const pz_weight *w = pz_cpu_in_weight(l, "w");
    const pz_cpu_weight *e = w ? pz_cpu_weight_of(r, w) : NULL;
    if (!e || !e->parts.n || e->dt == PZ_DT_MXFP4)
        return pz_cpu_refuse(l, PZ_E_INVAL, err, "weight %s is not loaded for embed", w ? w->name : "?");
    PZ_TRY(pz_cpu_check_i32(r, l, "ids", 0, err));
    pz_cpu_want(r, 2 * pz_floats(e->cols, 1), 0);
    return pz_cpu_check_out(r, l, 0, e->cols, err);
}

static void embed_region(void *arg, int tid, int nthreads) {
    const row_job *j = arg;
    int64_t begin, end, n = j->y.cols;
    float *x = pz_cpu_thread_scratch(j->r, tid), *raw = x + pz_floats(n, 1) / sizeof(float);
    pz_cpu_share(j->r->m, tid, nthreads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t at = j->ids[row];
        const pz_host_part *part = j->table->parts.at;
        while (at >= part->rows) at -= part++->rows;
        const unsigned char *src = part->data + at * part->row_stride;
        memcpy(raw, src, (size_t)n * (j->table->dt == PZ_DT_F32 ? 4 : 2)); /* the file's data need not be aligned */
        if (j->table->dt == PZ_DT_BF16) j->r->simd->rows->from_bf16(x, (const uint16_t *)(const void *)raw, n);
        pz_rows_put(j->r->simd, &j->y, row, 0, n, j->table->dt == PZ_DT_BF16 ? x : raw);
    }
}

pz_status pz_cpu_run_embed(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    row_job j = {.r = r, .y = pz_cpu_rows(r, l->out[0])};
    j.table = pz_cpu_weight_of(r, pz_cpu_in_weight(l, "w"));
    j.ids = pz_cpu_in_i32(r, l, "ids");
    for (int i = 0; i < r->m; i++)
        if (j.ids[i] < 0 || j.ids[i] >= j.table->rows)
            return pz_cpu_refuse(l, PZ_E_RANGE, err, "row %d: token %d is outside 0 to %lld", i, (int)j.ids[i],
                                 (long long)j.table->rows - 1);
    pz_cpu_par(r, r->m * j.y.cols * 2, embed_region, &j);
    return PZ_OK;
}
