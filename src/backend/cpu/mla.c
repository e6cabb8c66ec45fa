/* SPDX-License-Identifier: Apache-2.0 */
/* The paged latent cache and attention over it: what is attended is one vector of latent + rope values a token,
 * shared by all heads. */
#include "backend/cpu/cpu.h"

/* Width of the rotated part, 0 if the weight is not loaded. */
static int64_t rope_width(const pz_cpu_run *r, const pz_launch *l) {
    const pz_weight *w = pz_cpu_in_weight(l, "inv_freq");
    const pz_cpu_weight *e = w ? pz_cpu_weight_of(r, w) : NULL;
    return e && e->vector ? 2 * e->cols : 0;
}

/* ---- the cache ---- */
static pz_status check_cache(const pz_cpu_run *r, const pz_launch *l, int64_t entry, pz_error *err) {
    const pz_cache *c = r->cache;
    if (!c || !c->data || !c->block_table || c->page_tokens < 1)
        return pz_cpu_refuse(l, PZ_E_INVAL, err, "this plan needs a latent cache");
    if ((c->dt != PZ_DT_BF16 && c->dt != PZ_DT_F32) || c->entry != entry)
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "the cache holds %d values of %s a token, expected %lld of bf16 or f32",
                             c->entry, pz_dtype_text(c->dt), (long long)entry);
    PZ_TRY(pz_cpu_check_i32(r, l, "pos", 0, err));
    return pz_cpu_check_i32(r, l, "seq", 0, err);
}

/* Pages [first, pos / page_tokens] of each row must lie in the cache; first 0, or the last page alone. */
static pz_status check_pages(const pz_cpu_run *r, const pz_launch *l, bool all, pz_error *err) {
    const pz_cache *c = r->cache;
    const int32_t *pos = pz_cpu_in_i32(r, l, "pos"), *seq = pz_cpu_in_i32(r, l, "seq");
    for (int i = 0; i < r->m; i++) {
        if (seq[i] < 0) continue;
        int last = pos[i] / c->page_tokens;
        if (pos[i] < 0 || last >= c->table_stride)
            return pz_cpu_refuse(l, PZ_E_RANGE, err, "row %d: position %d is outside 0 to %lld", i, (int)pos[i],
                                 (long long)c->table_stride * c->page_tokens - 1);
        const int32_t *table = c->block_table + (int64_t)seq[i] * c->table_stride;
        for (int p = all ? 0 : last; p <= last; p++)
            if (table[p] < 0 || table[p] >= c->n_pages)
                return pz_cpu_refuse(l, PZ_E_RANGE, err, "row %d: page %d of sequence %d is page %d of %d", i, p,
                                     (int)seq[i], (int)table[p], c->n_pages);
    }
    return PZ_OK;
}

static unsigned char *entry_at(const pz_cache *c, int layer, int32_t page, int64_t token) {
    int64_t size = c->dt == PZ_DT_BF16 ? 2 : 4;
    return c->data + layer * c->layer_stride + ((int64_t)page * c->page_tokens + token) * c->entry * size;
}

typedef struct mla_job {
    const pz_cpu_run *r;
    pz_rows x, y;
    const int32_t *pos, *seq;
    const pz_cpu_weight *w;
    const float *table; /* rope */
    float rope_scale, scale;
    double eps;
    int layer;
    int64_t heads, latent, rope;
    int64_t group, next; /* attention: heads of a unit, next unit */
} mla_job;

pz_status pz_cpu_check_cache_write(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(pz_cpu_check_act(r, l, "kv", 0, err));
    int64_t entry = r->plan->places.at[pz_cpu_in(l, "kv")].type.dim[1], rope = rope_width(r, l);
    PZ_TRY(pz_cpu_check_vector(r, l, "inv_freq", rope / 2, err));
    if (rope >= entry)
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "%lld rotated columns of %lld", (long long)rope, (long long)entry);
    PZ_TRY(pz_cpu_check_vector(r, l, "w", entry - rope, err));
    pz_cpu_want(r, 2 * pz_floats(entry, 1), 0);
    return check_cache(r, l, entry, err);
}

static void cache_write_region(void *arg, int tid, int nthreads) {
    const mla_job *j = arg;
    const pz_cache *c = j->r->cache;
    const pz_simd *simd = j->r->simd;
    int64_t begin, end, n = c->entry;
    float *scratch = pz_cpu_thread_scratch(j->r, tid), *y = scratch + pz_floats(n, 1) / sizeof(float);
    pz_cpu_share(j->r->m, tid, nthreads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        if (j->seq[row] < 0) continue;
        const float *x = pz_rows_get(simd, &j->x, row, 0, n, scratch);
        double mean = simd->rows->sum_squares(x, j->latent) / (double)j->latent;
        simd->rows->scale(y, x, (float)(1.0 / sqrt(mean + j->eps)), j->w->vector, j->latent);
        pz_rope(y + j->latent, x + j->latent, j->rope / 2, j->table + row * j->rope, j->rope_scale);
        int32_t page = c->block_table[(int64_t)j->seq[row] * c->table_stride + j->pos[row] / c->page_tokens];
        pz_rows to = {
            .data = entry_at(c, j->layer, page, j->pos[row] % c->page_tokens), .dt = c->dt, .cols = n, .ld = n};
        pz_rows_put(simd, &to, 0, 0, n, y);
    }
}

pz_status pz_cpu_run_cache_write(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(check_pages(r, l, false, err));
    mla_job j = {.r = r, .x = pz_cpu_in_rows(r, l, "kv"), .rope = rope_width(r, l)};
    PZ_TRY(pz_cpu_rope_table(r, l, &j.table, err));
    j.pos = pz_cpu_in_i32(r, l, "pos");
    j.seq = pz_cpu_in_i32(r, l, "seq");
    j.w = pz_cpu_weight_of(r, pz_cpu_in_weight(l, "w"));
    j.latent = j.x.cols - j.rope;
    j.layer = (int)pz_node_int(l->node, "layer");
    j.eps = pz_node_float(l->node, "eps");
    j.rope_scale = (float)pz_node_float(l->node, "rope_scale");
    pz_cpu_par(r, r->m * j.x.cols * 8, cache_write_region, &j);
    return PZ_OK;
}

/* ---- attention ---- */
pz_status pz_cpu_check_attention(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    int64_t heads = pz_node_int(l->node, "heads"), latent = pz_node_int(l->node, "latent");
    int64_t entry = latent + pz_node_int(l->node, "rope");
    if (heads < 1 || latent < 1 || entry < latent)
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "%lld heads of %lld latent values", (long long)heads,
                             (long long)latent);
    PZ_TRY(check_cache(r, l, entry, err));
    PZ_TRY(pz_cpu_check_act(r, l, "ql", heads * entry, err));
    int64_t context = (int64_t)r->cache->table_stride * r->cache->page_tokens;
    pz_cpu_want(r, pz_floats(PZ_MAX_HEADS, entry) + pz_floats(PZ_MAX_HEADS, context) + pz_floats(PZ_MAX_HEADS, latent),
                0);
    return pz_cpu_check_out(r, l, 0, heads * latent, err);
}

/* `heads` heads of one row from head h on. Positions are taken in order, page by page. */
static void attend(const mla_job *j, int64_t row, int64_t h, int heads, float *q, float *p, float *o) {
    const pz_cache *c = j->r->cache;
    const pz_simd *simd = j->r->simd;
    int64_t entry = c->entry, n = (int64_t)j->pos[row] + 1;
    memset(o, 0, (size_t)(heads * j->latent) * sizeof *o);
    if (j->seq[row] >= 0) {
        const int32_t *pages = c->block_table + (int64_t)j->seq[row] * c->table_stride;
        const float *x = pz_rows_get(simd, &j->x, row, h * entry, heads * entry, q);
        for (int64_t t = 0; t < n; t += c->page_tokens) {
            int count = n - t < c->page_tokens ? (int)(n - t) : c->page_tokens;
            const void *at = entry_at(c, j->layer, pages[t / c->page_tokens], 0), *next = at;
            if (t + c->page_tokens < n) next = entry_at(c, j->layer, pages[t / c->page_tokens + 1], 0);
            if (c->dt == PZ_DT_BF16)
                simd->attention->scores_bf16(heads, x, entry, at, next, c->entry, count, j->scale, p + t, n);
            else
                simd->attention->scores_f32(heads, x, entry, at, next, c->entry, count, j->scale, p + t, n);
        }
        for (int i = 0; i < heads; i++) simd->attention->softmax(p + i * n, n);
        for (int64_t t = 0; t < n; t += c->page_tokens) {
            int count = n - t < c->page_tokens ? (int)(n - t) : c->page_tokens;
            const void *at = entry_at(c, j->layer, pages[t / c->page_tokens], 0);
            if (c->dt == PZ_DT_BF16)
                simd->attention->values_bf16(heads, p + t, n, at, c->entry, count, (int)j->latent, o, j->latent);
            else
                simd->attention->values_f32(heads, p + t, n, at, c->entry, count, (int)j->latent, o, j->latent);
        }
    }
    pz_rows_put(simd, &j->y, row, h * j->latent, heads * j->latent, o);
}

static void attention_region(void *arg, int tid, int nthreads) {
    (void)nthreads;
    mla_job *j = arg;
    const pz_cache *c = j->r->cache;
    float *q = pz_cpu_thread_scratch(j->r, tid), *p = q + pz_floats(PZ_MAX_HEADS, c->entry) / sizeof(float);
    float *o = p + pz_floats(PZ_MAX_HEADS, (int64_t)c->table_stride * c->page_tokens) / sizeof(float);
    int64_t groups = pz_ceil_div(j->heads, j->group);
    for (;;) { /* rows differ in length: each thread takes the next unit */
        int64_t u = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (u >= j->r->m * groups) return;
        int64_t h = u % groups * j->group, heads = j->heads - h < j->group ? j->heads - h : j->group;
        attend(j, u / groups, h, (int)heads, q, p, o);
    }
}

pz_status pz_cpu_run_attention(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    PZ_TRY(check_pages(r, l, true, err));
    mla_job j = {.r = r, .x = pz_cpu_in_rows(r, l, "ql"), .y = pz_cpu_rows(r, l->out[0])};
    j.pos = pz_cpu_in_i32(r, l, "pos");
    j.seq = pz_cpu_in_i32(r, l, "seq");
    j.heads = pz_node_int(l->node, "heads");
    j.latent = pz_node_int(l->node, "latent");
    j.layer = (int)pz_node_int(l->node, "layer");
    j.scale = (float)pz_node_float(l->node, "scale");
    j.group =
        pz_ceil_div(r->m * j.heads, r->b->threads); /* few rows: fewer heads a unit, so that all threads have one */
    if (j.group > PZ_MAX_HEADS) j.group = PZ_MAX_HEADS;
    int64_t positions = 0;
    for (int i = 0; i < r->m; i++) positions += j.seq[i] < 0 ? 0 : j.pos[i] + 1;
    pz_cpu_par(r, positions * j.heads * r->cache->entry * 2, attention_region, &j);
    return PZ_OK;
}
