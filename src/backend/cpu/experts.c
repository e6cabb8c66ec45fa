/* SPDX-License-Identifier: Apache-2.0 */
/* Routed experts. Rows are grouped by expert; a pair is one row with one of its experts. First every pair's
 * silu(gate) * up, then, column tile by column tile, the down projections and their weighted sum in the order of each
 * row's ids. So a row's bits depend on its own ids alone. */
#include "backend/cpu/cpu.h"

enum { BLOCK = 32, TILE = 2 * PZ_PANEL };

/* Up to BLOCK pairs of one expert. */
typedef struct pair_block {
    int32_t expert, first, count;
} pair_block;

typedef struct experts_job {
    const pz_cpu_run *r;
    pz_rows x, y, weights;
    const int32_t *ids;
    const pz_panels *gate_up, *down;
    int64_t top_k, hidden, inner, pairs;
    int64_t first, experts, total; /* experts [first, first + experts) of the ids below total are here */
    int n_blocks;
    int32_t *row_of;    /* [pairs] in order of expert: the pair's row */
    int32_t *place_of;  /* [m][top_k]: where the pair stands in that order, -1: its expert is not here */
    pair_block *blocks; /* [n_blocks] */
    float *middle;      /* [pairs][inner] in order of expert */
    int64_t next[2];    /* next unit of each phase */
} experts_job;

static const pz_cpu_weight *check_weight(const pz_cpu_run *r, const pz_launch *l, const char *operand, pz_error *err) {
    const pz_weight *w = pz_cpu_in_weight(l, operand);
    const pz_cpu_weight *e = w && w->type.rank == 3 ? pz_cpu_weight_of(r, w) : NULL;
    if (e && e->panels.data) return e;
    pz_cpu_refuse(l, PZ_E_INVAL, err, "weight %s is not loaded for moe_experts", w ? w->name : "?");
    return NULL;
}

/* Shared scratch: the job's four arrays and a count for each expert. */
static size_t shared_parts(experts_job *j, unsigned char *base, int32_t **counts) {
    size_t at = 0;
    const size_t sizes[] = {pz_floats(j->pairs, 1), pz_floats(j->pairs, 1), pz_floats(j->pairs, 3),
                            pz_floats(j->experts + 1, 1), pz_floats(j->pairs, j->inner)};
    unsigned char *part[5] = {NULL};
    for (int i = 0; i < 5; i++) {
        if (base) part[i] = base + at;
        at = at + sizes[i] < at ? SIZE_MAX / 2 : at + sizes[i];
    }
    j->row_of = (int32_t *)(void *)part[0];
    j->place_of = (int32_t *)(void *)part[1];
    j->blocks = (pair_block *)(void *)part[2];
    *counts = (int32_t *)(void *)part[3];
    j->middle = (float *)(void *)part[4];
    return at;
}

static void read_range(const pz_launch *l, experts_job *j) {
    j->experts = pz_cpu_in_weight(l, "gate_up")->type.dim[0];
    j->first = pz_node_int(l->node, "first");
    j->total = pz_node_int(l->node, "total");
    if (!j->total) j->total = j->experts;
}

pz_status pz_cpu_check_experts(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    const pz_cpu_weight *gate_up = check_weight(r, l, "gate_up", err),
                        *down = gate_up ? check_weight(r, l, "down", err) : NULL;
    if (!down) return PZ_E_INVAL;
    const pz_type *g = &pz_cpu_in_weight(l, "gate_up")->type, *d = &pz_cpu_in_weight(l, "down")->type;
    if (g->dim[1] != 2 * d->dim[2] || g->dim[0] != d->dim[0] || g->dim[2] != d->dim[1])
        return pz_cpu_refuse(l, PZ_E_TYPE, err,
                             "gate_up is [%lld,%lld,%lld], down [%lld,%lld,%lld]; [e,2i,h] and [e,h,i] belong together",
                             (long long)g->dim[0], (long long)g->dim[1], (long long)g->dim[2], (long long)d->dim[0],
                             (long long)d->dim[1], (long long)d->dim[2]);
    PZ_TRY(pz_cpu_check_act(r, l, "x", g->dim[2], err));
    PZ_TRY(pz_cpu_check_act(r, l, "weights", 0, err));
    int64_t top_k = r->plan->places.at[pz_cpu_in(l, "weights")].type.dim[1];
    PZ_TRY(pz_cpu_check_i32(r, l, "ids", top_k, err));
    experts_job j = {.pairs = r->m * top_k, .inner = d->dim[2]};
    read_range(l, &j);
    if (j.first < 0 || j.first > j.total - j.experts)
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "%lld experts from %lld on of %lld", (long long)j.experts,
                             (long long)j.first, (long long)j.total);
    int32_t *counts;
    size_t first = pz_floats(BLOCK, g->dim[2]) + 2 * pz_floats(BLOCK, TILE);
    size_t second = pz_floats(j.pairs, TILE) + pz_floats(TILE, 1) + pz_floats(top_k, 1);
    pz_cpu_want(r, first > second ? first : second, shared_parts(&j, NULL, &counts));
    return pz_cpu_check_out(r, l, 0, g->dim[2], err);
}

static bool is_here(const experts_job *j, int64_t pair) {
    return j->ids[pair] >= j->first && j->ids[pair] < j->first + j->experts;
}

/* Groups the pairs whose expert is here by expert, rows in order, and cuts the groups into blocks. */
static void group_pairs(experts_job *j, int32_t *counts) {
    memset(counts, 0, (size_t)(j->experts + 1) * sizeof *counts);
    for (int64_t i = 0; i < j->pairs; i++)
        if (is_here(j, i)) counts[j->ids[i] - j->first + 1]++;
    j->n_blocks = 0;
    for (int64_t e = 0; e < j->experts; e++) {
        for (int32_t at = 0, n = counts[e + 1]; at < n; at += BLOCK)
            j->blocks[j->n_blocks++] = (pair_block){(int32_t)e, counts[e] + at, n - at < BLOCK ? n - at : BLOCK};
        counts[e + 1] += counts[e];
    }
    for (int64_t i = 0; i < j->pairs; i++) {
        j->place_of[i] = -1;
        if (!is_here(j, i)) continue;
        int32_t at = counts[j->ids[i] - j->first]++;
        j->row_of[at] = (int32_t)(i / j->top_k);
        j->place_of[i] = at;
    }
}

static int64_t next_unit(experts_job *j, int phase) {
    return __atomic_fetch_add(&j->next[phase], 1, __ATOMIC_RELAXED);
}

/* One block times one tile of the middle's columns. */
static void gate_up_unit(const experts_job *j, const pair_block *b, int64_t tile, float *scratch) {
    const pz_simd *simd = j->r->simd;
    const pz_panels *p = j->gate_up;
    int64_t col = tile * TILE, n = j->inner - col < TILE ? j->inner - col : TILE, h = j->hidden;
    float *gate = scratch + pz_floats(BLOCK, h) / sizeof(float), *up = gate + BLOCK * TILE;
    for (int i = 0; i < b->count; i++) pz_rows_copy(simd, &j->x, j->row_of[b->first + i], 0, h, scratch + i * h);
    for (int half = 0; half < 2; half++)
        simd->gemm->multiply[p->kind](b->count, (int)pz_panel_count(n), h, scratch, h,
                                      pz_panel_at(p, 2 * b->expert + half, col / PZ_PANEL, 0), p->panel_bytes,
                                      half ? up : gate, TILE);
    for (int i = 0; i < b->count; i++) {
        float *to = j->middle + (b->first + i) * j->inner + col;
        simd->rows->silu_mul(to, gate + i * TILE, up + i * TILE, n);
        pz_round_row(simd, j->x.dt, to, n);
    }
}

/* One tile of the output's columns for all rows; the tile is in half `half` of each expert's rows. */
static void down_unit(const experts_job *j, int64_t half, int64_t tile, float *scratch) {
    const pz_simd *simd = j->r->simd;
    const pz_panels *p = j->down;
    int64_t col = tile * TILE, n = p->n - col < TILE ? p->n - col : TILE, halves = p->blocks / j->experts;
    float *sum = scratch + pz_floats(j->pairs, TILE) / sizeof(float), *weight = sum + TILE;
    for (int i = 0; i < j->n_blocks; i++) {
        const pair_block *b = &j->blocks[i];
        simd->gemm->multiply[p->kind](b->count, (int)pz_panel_count(n), j->inner, j->middle + b->first * j->inner,
                                      j->inner, pz_panel_at(p, halves * b->expert + half, col / PZ_PANEL, 0),
                                      p->panel_bytes, scratch + b->first * TILE, TILE);
    }
    for (int64_t row = 0; row < j->r->m; row++) {
        const float *w = pz_rows_get(simd, &j->weights, row, 0, j->top_k, weight);
        memset(sum, 0, TILE * sizeof *sum);
        const int32_t *place = j->place_of + row * j->top_k;
        for (int64_t t = 0; t < j->top_k; t++)
            if (place[t] >= 0) simd->rows->add_scaled(sum, scratch + place[t] * TILE, w[t], n);
        pz_rows_put(simd, &j->y, row, half * p->n + col, n, sum);
    }
}

static void experts_region(void *arg, int tid, int nthreads) {
    (void)nthreads;
    experts_job *j = arg;
    float *scratch = pz_cpu_thread_scratch(j->r, tid);
    int64_t tiles = pz_ceil_div(j->inner, TILE), u;
    while ((u = next_unit(j, 0)) < j->n_blocks * tiles) gate_up_unit(j, &j->blocks[u / tiles], u % tiles, scratch);
    pz_par_barrier();
    tiles = pz_ceil_div(j->down->n, TILE);
    while ((u = next_unit(j, 1)) < j->down->blocks / j->experts * tiles) down_unit(j, u / tiles, u % tiles, scratch);
}

pz_status pz_cpu_run_experts(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    experts_job j = {.r = r, .x = pz_cpu_in_rows(r, l, "x"), .y = pz_cpu_rows(r, l->out[0])};
    j.weights = pz_cpu_in_rows(r, l, "weights");
    j.ids = pz_cpu_in_i32(r, l, "ids");
    j.gate_up = &pz_cpu_weight_of(r, pz_cpu_in_weight(l, "gate_up"))->panels;
    j.down = &pz_cpu_weight_of(r, pz_cpu_in_weight(l, "down"))->panels;
    j.top_k = j.weights.cols;
    j.pairs = r->m * j.top_k;
    read_range(l, &j);
    j.hidden = j.gate_up->k;
    j.inner = j.down->k;
    for (int64_t i = 0; i < j.pairs; i++)
        if (j.ids[i] < 0 || j.ids[i] >= j.total)
            return pz_cpu_refuse(l, PZ_E_RANGE, err, "row %lld: expert %d is outside 0 to %lld",
                                 (long long)(i / j.top_k), (int)j.ids[i], (long long)j.total - 1);
    int32_t *counts;
    shared_parts(&j, pz_cpu_shared_scratch(r), &counts);
    group_pairs(&j, counts);
    pz_cpu_par(r, j.pairs * j.hidden * j.inner * 3, experts_region, &j);
    return PZ_OK;
}
