/* SPDX-License-Identifier: Apache-2.0 */
/* Latent cache, absorbed projections and attention of the CPU backend against their definitions in f64. */
#include "support_cpu.h"

static const pz_dtype act_types[] = {PZ_DT_F32, PZ_DT_BF16};
static const int thread_counts[] = {1, 2, 3, 8};
enum { SEQUENCES = 4, PAGES = 48, STRIDE = 12, LAYERS = 2, LAYER = 1 };

static double *doubles(int64_t n) {
    double *x = pz_calloc((size_t)n + 1, sizeof *x);
    assert_non_null(x);
    return x;
}

static double rounding(pz_dtype dt, double v, double size, double steps) {
    return (dt == PZ_DT_BF16 ? 0x1p-8 : 0x1p-23) * fabs(v) + size * steps * 0x1p-23 + 1e-35;
}

/* ---- a cache with scattered pages ---- */
typedef struct test_cache {
    int32_t table[SEQUENCES * STRIDE];
    unsigned char *data, *before;
    int64_t bytes;
} test_cache;

static test_cache open_cache(rig *r, pz_dtype dt, int page_tokens, int entry) {
    test_cache c = {.bytes = 0};
    int64_t layer = (int64_t)PAGES * page_tokens * entry * (pz_dtype_bits(dt) / 8);
    c.bytes = layer * LAYERS;
    c.data = pz_calloc((size_t)c.bytes, 1);
    c.before = pz_calloc((size_t)c.bytes, 1);
    assert_true(c.data && c.before);
    memset(c.data, 0xff, (size_t)c.bytes);
    for (int i = 0; i < SEQUENCES * STRIDE; i++) c.table[i] = (i * 29 + 11) % PAGES; /* each page once */
    r->cache = (pz_cache){.data = c.data,
                          .dt = dt,
                          .page_tokens = page_tokens,
                          .entry = entry,
                          .n_pages = PAGES,
                          .layer_stride = layer,
                          .table_stride = STRIDE};
    return c;
}

static void close_cache(test_cache *c) {
    pz_free(c->data);
    pz_free(c->before);
}

static void *entry_of(const rig *r, const test_cache *c, int seq, int pos) {
    const pz_cache *k = &r->cache;
    int64_t page = c->table[seq * STRIDE + pos / k->page_tokens];
    return k->data + LAYER * k->layer_stride +
           (page * k->page_tokens + pos % k->page_tokens) * k->entry * (pz_dtype_bits(k->dt) / 8);
}

static float cached(const rig *r, const void *entry, int i) {
    return r->cache.dt == PZ_DT_BF16 ? pz_bf16_to_f32(((const uint16_t *)entry)[i]) : ((const float *)entry)[i];
}

static void put_cached(const rig *r, void *entry, int i, float v) {
    if (r->cache.dt == PZ_DT_BF16)
        ((uint16_t *)entry)[i] = pz_f32_to_bf16(v);
    else
        ((float *)entry)[i] = v;
}

/* Rows of several sequences at scattered positions; every fifth row is padding. */
static void make_rows(uint64_t *s, int m, int limit, int32_t *pos, int32_t *seq) {
    for (int i = 0; i < m; i++) {
        seq[i] = i % 5 == 4 ? -1 : i % SEQUENCES;
        pos[i] = seq[i] < 0 ? 0 : rnd_int(s, 0, limit - 1);
    }
}

static float *frequencies(int64_t pairs) {
    float *f = pz_calloc((size_t)pairs + 1, sizeof *f);
    assert_non_null(f);
    for (int64_t i = 0; i < pairs; i++) f[i] = (float)pow(10000, -(double)i / (double)pairs);
    return f;
}

/* Element i of the rotation of x [2 * pairs] at a position: pairs are neighbours. */
static double rotated(const float *x, int64_t i, int pos, const float *inv_freq, double scale) {
    double angle = (double)((float)pos * inv_freq[i / 2]); /* the angle is an f32 */
    double a = (double)x[i / 2 * 2], b = (double)x[i / 2 * 2 + 1];
    return scale * (i % 2 ? b * cos(angle) + a * sin(angle) : a * cos(angle) - b * sin(angle));
}

/* ---- writing the cache ---- */
static void check_cache_write(int m, int64_t latent, int64_t rope, pz_dtype x, pz_dtype dt, int threads,
                              uint64_t seed) {
    uint64_t s = seed;
    int64_t entry = latent + rope;
    int32_t pos[64], seq[64];
    rig *r = rig_open(NULL, threads, m);
    test_cache c = open_cache(r, dt, 7, (int)entry);
    r->cache.block_table = c.table;
    for (int i = 0; i < m; i++) {
        seq[i] = i % 5 == 4 ? -1 : i % SEQUENCES;
        pos[i] = seq[i] < 0 ? 0 : i / SEQUENCES * 3 + seq[i];
    }
    float *kv = rnd_array(&s, m * entry), *w = rnd_array(&s, latent), *freq = frequencies(rope / 2);
    int xp = rig_act(r, x, entry, kv), pp = rig_i32(r, 0, pos), sp = rig_i32(r, 0, seq);
    pz_weight *norm = rig_vector(r, "norm", PZ_DT_BF16, latent, w, PZ_OP_MLA_CACHE_WRITE);
    pz_weight *inv_freq = rig_vector(r, "freq", PZ_DT_F32, rope / 2, freq, PZ_OP_MLA_CACHE_WRITE);
    pz_launch *l = rig_launch(r, PZ_OP_MLA_CACHE_WRITE);
    rig_in(l, "kv", xp);
    rig_in(l, "pos", pp);
    rig_in(l, "seq", sp);
    rig_in_weight(l, "w", norm);
    rig_in_weight(l, "inv_freq", inv_freq);
    rig_attr_int(l, "layer", LAYER);
    rig_attr_float(l, "eps", 1e-6);
    rig_attr_float(l, "rope_scale", 1.25);
    rig_run(r);
    memcpy(c.before, c.data, (size_t)c.bytes);
    for (int row = 0; row < m; row++) {
        if (seq[row] < 0) continue;
        const void *got = entry_of(r, &c, seq[row], pos[row]);
        const float *at = kv + row * entry;
        double square = 0;
        for (int64_t i = 0; i < latent; i++) square += (double)at[i] * (double)at[i];
        for (int64_t i = 0; i < entry; i++) {
            double want = i < latent ? (double)at[i] / sqrt(square / (double)latent + 1e-6) * (double)w[i]
                                     : rotated(at + latent, i - latent, pos[row], freq, 1.25);
            double tolerance = rounding(dt, want, i < latent ? fabs(want) : 2.5, 4);
            if (fabs((double)cached(r, got, (int)i) - want) > tolerance)
                fail_msg("row %d element %d is %g, expected %g", row, (int)i, (double)cached(r, got, (int)i), want);
        }
        memset(entry_of(r, &c, seq[row], pos[row]), 0xff, (size_t)(entry * pz_dtype_bits(dt) / 8));
    }
    for (int64_t i = 0; i < c.bytes; i++) assert_int_equal(c.data[i], 0xff); /* nothing else was written */
    pz_free(kv);
    pz_free(w);
    pz_free(freq);
    close_cache(&c);
    rig_close(r);
}

static void test_cache_write(void **state) {
    (void)state;
    uint64_t s = 21;
    for (int i = 0; i < 24; i++)
        check_cache_write(rnd_int(&s, 1, 40), rnd_int(&s, 1, 150), 2 * rnd_int(&s, 1, 20), act_types[i % 2],
                          act_types[i / 2 % 2], thread_counts[i % 4], s);
}

/* ---- absorbing kv_b ---- */
typedef struct absorb_case {
    int m, threads;
    int64_t heads, nope, rope, v, latent;
    pz_dtype x, weight, out;
    const char *isa;
    uint64_t seed;
} absorb_case;

static absorb_case random_absorb(uint64_t *s, int i, const char *isa) {
    absorb_case c = {.isa = isa, .seed = *s, .threads = thread_counts[i % 4]};
    c.m = rnd_int(s, 1, i % 3 ? 6 : 50);
    c.heads = rnd_int(s, 1, 5);
    c.nope = rnd_int(s, 1, 70);
    c.rope = 2 * rnd_int(s, 1, 16);
    c.v = rnd_int(s, 1, 100);
    c.latent = rnd_int(s, 1, 150);
    c.x = act_types[i % 2];
    c.weight = act_types[i / 2 % 2];
    c.out = act_types[i / 4 % 2];
    return c;
}

static void check_absorb_q(absorb_case c) {
    uint64_t s = c.seed;
    rig *r = rig_open(c.isa, c.threads, c.m);
    int64_t width = c.nope + c.rope, entry = c.latent + c.rope, rows = c.heads * (c.nope + c.v);
    float *q = rnd_array(&s, c.m * c.heads * width), *w = rnd_array(&s, rows * c.latent),
          *freq = frequencies(c.rope / 2);
    int32_t pos[64], seq[64];
    make_rows(&s, c.m, 4000, pos, seq);
    int qp = rig_act(r, c.x, c.heads * width, q), pp = rig_i32(r, 0, pos), y = rig_output(r, c.out, c.heads * entry);
    pz_weight *kv_b = rig_matrix(r, "kv_b", c.weight, rows, c.latent, w, PZ_OP_MLA_ABSORB_Q);
    pz_weight *inv_freq = rig_vector(r, "freq", PZ_DT_F32, c.rope / 2, freq, PZ_OP_MLA_ABSORB_Q);
    pz_launch *l = rig_launch(r, PZ_OP_MLA_ABSORB_Q);
    rig_in(l, "q", qp);
    rig_in(l, "pos", pp);
    rig_in_weight(l, "kv_b", kv_b);
    rig_in_weight(l, "inv_freq", inv_freq);
    rig_attr_int(l, "heads", c.heads);
    rig_attr_int(l, "nope", c.nope);
    rig_attr_int(l, "rope", c.rope);
    rig_attr_int(l, "v", c.v);
    rig_attr_float(l, "rope_scale", 0.75);
    l->out[0] = y;
    rig_run(r);
    int64_t total = c.m * c.heads * entry;
    double *want = doubles(total), *tolerance = doubles(total);
    for (int64_t i = 0; i < total; i++) {
        int64_t row = i / (c.heads * entry), h = i / entry % c.heads, e = i % entry;
        const float *x = q + (row * c.heads + h) * width;
        double size = 3;
        if (e >= c.latent) want[i] = rotated(x + c.nope, e - c.latent, pos[row], freq, 0.75);
        for (int64_t k = 0; k < c.nope && e < c.latent; k++) {
            double p = (double)x[k] * (double)w[(h * (c.nope + c.v) + k) * c.latent + e];
            want[i] += p;
            size += fabs(p);
        }
        tolerance[i] = rounding(c.out, want[i], size, (double)c.nope);
    }
    float *got = rig_read(r, y);
    assert_close(got, want, tolerance, total);
    pz_free(got);
    pz_free(want);
    pz_free(tolerance);
    pz_free(q);
    pz_free(w);
    pz_free(freq);
    rig_close(r);
}

static void check_absorb_v(absorb_case c) {
    uint64_t s = c.seed;
    rig *r = rig_open(c.isa, c.threads, c.m);
    int64_t rows = c.heads * (c.nope + c.v), total = c.m * c.heads * c.v;
    float *o = rnd_array(&s, c.m * c.heads * c.latent), *w = rnd_array(&s, rows * c.latent);
    int op = rig_act(r, c.x, c.heads * c.latent, o), y = rig_normed_output(r, c.out, c.heads * c.v);
    pz_weight *kv_b = rig_matrix(r, "kv_b", c.weight, rows, c.latent, w, PZ_OP_MLA_ABSORB_V);
    pz_launch *l = rig_launch(r, PZ_OP_MLA_ABSORB_V);
    rig_in(l, "o", op);
    rig_in_weight(l, "kv_b", kv_b);
    rig_attr_int(l, "heads", c.heads);
    rig_attr_int(l, "nope", c.nope);
    rig_attr_int(l, "v", c.v);
    l->out[0] = y;
    rig_run(r);
    double *want = doubles(total), *tolerance = doubles(total);
    for (int64_t i = 0; i < total; i++) {
        int64_t row = i / (c.heads * c.v), h = i / c.v % c.heads, e = i % c.v;
        double size = 0;
        for (int64_t k = 0; k < c.latent; k++) {
            double p = (double)o[(row * c.heads + h) * c.latent + k] *
                       (double)w[(h * (c.nope + c.v) + c.nope + e) * c.latent + k];
            want[i] += p;
            size += fabs(p);
        }
        tolerance[i] = rounding(c.out, want[i], size, (double)c.latent);
    }
    float *got = rig_read(r, y);
    assert_close(got, want, tolerance, total);
    float *norm = rig_data(r, r->plan.places.at[y].norm);
    for (int i = 0; i < c.m; i++) assert_true(norm[i] == norm_of(got + i * c.heads * c.v, c.heads * c.v));
    pz_free(got);
    pz_free(want);
    pz_free(tolerance);
    pz_free(o);
    pz_free(w);
    rig_close(r);
}

static void test_absorb(void **state) {
    (void)state;
    uint64_t s = 22;
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int i = 0; i < 24; i++) {
            check_absorb_q(random_absorb(&s, i, *isa));
            check_absorb_v(random_absorb(&s, i, *isa));
        }
}

/* ---- attention ---- */
typedef struct attention_case {
    int m, threads, page_tokens;
    int64_t heads, latent, rope;
    pz_dtype x, cache, out;
    const char *isa;
    uint64_t seed;
} attention_case;

typedef struct attention_rig {
    rig *r;
    test_cache cache;
    float *q;
    int32_t *pos, *seq;
    int qp, pp, sp, y;
} attention_rig;

enum { SCALE_PERCENT = 20 };

static attention_rig prepare_attention(attention_case c) {
    uint64_t s = c.seed, sq = c.seed + 1;
    int64_t entry = c.latent + c.rope;
    attention_rig a = {.r = rig_open(c.isa, c.threads, c.m)};
    rig *r = a.r;
    a.cache = open_cache(r, c.cache, c.page_tokens, (int)entry);
    a.q = rnd_array(&sq, c.m * c.heads * entry);
    a.pos = pz_calloc((size_t)c.m, sizeof *a.pos);
    a.seq = pz_calloc((size_t)c.m, sizeof *a.seq);
    assert_true(a.pos && a.seq);
    make_rows(&sq, c.m, STRIDE * c.page_tokens, a.pos, a.seq);
    for (int sequence = 0; sequence < SEQUENCES; sequence++)
        for (int t = 0; t < STRIDE * c.page_tokens; t++)
            for (int i = 0; i < (int)entry; i++) put_cached(r, entry_of(r, &a.cache, sequence, t), i, rnd(&s));
    a.qp = rig_act(r, c.x, c.heads * entry, a.q);
    a.pp = rig_i32(r, 0, a.pos);
    a.sp = rig_i32(r, 0, a.seq);
    a.y = rig_output(r, c.out, c.heads * c.latent);
    pz_launch *l = rig_launch(r, PZ_OP_MLA_ATTENTION);
    rig_in(l, "ql", a.qp);
    rig_in(l, "pos", a.pp);
    rig_in(l, "seq", a.sp);
    rig_attr_int(l, "layer", LAYER);
    rig_attr_int(l, "heads", c.heads);
    rig_attr_int(l, "latent", c.latent);
    rig_attr_int(l, "rope", c.rope);
    rig_attr_float(l, "scale", SCALE_PERCENT / 100.0);
    l->out[0] = a.y;
    return a;
}

/* The table belongs to the rig's copy, so it is set right before a run. */
static void run_attention(attention_rig *a) {
    a->r->cache.block_table = a->cache.table;
    memcpy(a->cache.before, a->cache.data, (size_t)a->cache.bytes);
    rig_run(a->r);
    assert_memory_equal(a->cache.before, a->cache.data, (size_t)a->cache.bytes);
}

static void finish_attention(attention_rig *a) {
    rig_close(a->r);
    close_cache(&a->cache);
    pz_free(a->q);
    pz_free(a->pos);
    pz_free(a->seq);
}

/* One head of one row. `error` bounds what the scores' rounding does to the weights. */
static void attend(const attention_rig *a, const attention_case *c, int row, int64_t h, double *want,
                   double *tolerance) {
    int64_t entry = c->latent + c->rope;
    int n = a->pos[row] + 1;
    const float *q = a->q + (row * c->heads + h) * entry;
    double *p = doubles(n), max = -INFINITY, sum = 0, error = 0;
    for (int t = 0; t < n; t++) {
        const void *e = entry_of(a->r, &a->cache, a->seq[row], t);
        double size = 0;
        for (int i = 0; i < (int)entry; i++) {
            p[t] += (double)q[i] * (double)cached(a->r, e, i);
            size += fabs((double)q[i] * (double)cached(a->r, e, i));
        }
        p[t] *= SCALE_PERCENT / 100.0;
        if (size * (double)entry * 0x1p-23 > error) error = size * (double)entry * 0x1p-23;
        if (p[t] > max) max = p[t];
    }
    for (int t = 0; t < n; t++) sum += p[t] = exp(p[t] - max);
    for (int i = 0; i < (int)c->latent; i++) {
        double size = 0, v = 0;
        for (int t = 0; t < n; t++) {
            double x = p[t] / sum * (double)cached(a->r, entry_of(a->r, &a->cache, a->seq[row], t), i);
            v += x;
            size += fabs(x);
        }
        want[i] = v;
        tolerance[i] = rounding(c->out, v, size, n + 8) + size * 2 * error;
    }
    pz_free(p);
}

static void check_attention(attention_case c) {
    attention_rig a = prepare_attention(c);
    run_attention(&a);
    int64_t total = c.m * c.heads * c.latent;
    double *want = doubles(total), *tolerance = doubles(total);
    for (int row = 0; row < c.m; row++)
        for (int64_t h = 0; h < c.heads && a.seq[row] >= 0; h++) {
            int64_t at = (row * c.heads + h) * c.latent;
            attend(&a, &c, row, h, want + at, tolerance + at);
        }
    float *got = rig_read(a.r, a.y); /* padded rows: zeros, exactly */
    assert_close(got, want, tolerance, total);
    pz_free(got);
    pz_free(want);
    pz_free(tolerance);
    finish_attention(&a);
}

static void test_attention(void **state) {
    (void)state;
    uint64_t s = 23;
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int i = 0; i < 24; i++) {
            attention_case c = {.isa = *isa, .seed = s, .threads = thread_counts[i % 4]};
            c.m = rnd_int(&s, 1, i % 3 ? 5 : 12);
            c.page_tokens = i % 2 ? 16 : rnd_int(&s, 1, 13);
            c.heads = rnd_int(&s, 1, 9);
            c.latent = i % 2 ? 16 * rnd_int(&s, 1, 9) : rnd_int(&s, 1, 150);
            c.rope = 2 * rnd_int(&s, 1, 12);
            c.x = act_types[i / 2 % 2];
            c.cache = act_types[i % 2];
            c.out = act_types[i / 4 % 2];
            check_attention(c);
        }
}

/* A row's bits depend on its query and its sequence alone. */
static void test_attention_batch_mates(void **state) {
    (void)state;
    attention_case c = {.m = 13, .heads = 6, .latent = 80, .rope = 16, .page_tokens = 5, .threads = 1, .seed = 77};
    c.x = c.out = PZ_DT_F32;
    for (int i = 0; i < 2; i++) {
        c.cache = act_types[i];
        c.m = 13;
        c.threads = 1;
        attention_rig all = prepare_attention(c);
        run_attention(&all);
        c.m = 1;
        for (int row = 0; row < 13; row++) {
            c.threads = thread_counts[row % 4];
            attention_rig one = prepare_attention(c);
            memcpy(rig_data(one.r, one.qp), (float *)rig_data(all.r, all.qp) + row * 6 * 96, 6 * 96 * sizeof(float));
            ((int32_t *)rig_data(one.r, one.pp))[0] = all.pos[row];
            ((int32_t *)rig_data(one.r, one.sp))[0] = all.seq[row];
            run_attention(&one);
            assert_memory_equal(rig_data(one.r, one.y), (float *)rig_data(all.r, all.y) + row * 480,
                                480 * sizeof(float));
            finish_attention(&one);
        }
        finish_attention(&all);
    }
}

/* What lies behind a row's position, be it NaN, is not read. A NaN before it shows. */
static void test_attention_reads_no_further(void **state) {
    (void)state;
    attention_case c = {.m = 1, .heads = 3, .latent = 40, .rope = 8, .page_tokens = 4, .threads = 2, .seed = 5};
    c.x = c.out = PZ_DT_F32;
    c.cache = PZ_DT_BF16;
    for (int end = 0; end < STRIDE * 4 - 1; end++) {
        attention_rig a = prepare_attention(c);
        int32_t *pos = rig_data(a.r, a.pp);
        pos[0] = end;
        for (int t = end + 1; t < STRIDE * 4; t++) put_cached(a.r, entry_of(a.r, &a.cache, 0, t), 3, NAN);
        run_attention(&a);
        float *got = rig_data(a.r, a.y);
        for (int i = 0; i < 120; i++) assert_true(isfinite(got[i]));
        pos[0] = end + 1;
        run_attention(&a);
        for (int i = 0; i < 120; i++) assert_true(isnan(got[i]));
        finish_attention(&a);
    }
}

/* Scores far apart: the softmax neither overflows nor divides by zero. */
static void test_attention_large_scores(void **state) {
    (void)state;
    attention_case c = {.m = 1, .heads = 1, .latent = 16, .rope = 2, .page_tokens = 4, .threads = 1, .seed = 6};
    c.x = c.cache = c.out = PZ_DT_F32;
    attention_rig a = prepare_attention(c);
    ((int32_t *)rig_data(a.r, a.pp))[0] = 2;
    float *q = rig_data(a.r, a.qp);
    for (int i = 0; i < 18; i++) q[i] = i == 0;
    put_cached(a.r, entry_of(a.r, &a.cache, 0, 0), 0, 1e6f);
    put_cached(a.r, entry_of(a.r, &a.cache, 0, 1), 0, 2e6f);
    put_cached(a.r, entry_of(a.r, &a.cache, 0, 2), 0, -3e38f);
    run_attention(&a);
    const float *got = rig_data(a.r, a.y), *entry = entry_of(a.r, &a.cache, 0, 1);
    for (int i = 0; i < 16; i++) assert_true(got[i] == entry[i]);
    finish_attention(&a);
}

/* ---- refusals ---- */
static void test_refused_positions(void **state) {
    (void)state;
    pz_error err;
    attention_case c = {.m = 2, .heads = 1, .latent = 16, .rope = 2, .page_tokens = 4, .threads = 1, .seed = 6};
    c.x = c.cache = c.out = PZ_DT_F32;
    attention_rig a = prepare_attention(c);
    a.r->cache.block_table = a.cache.table;
    int32_t *pos = rig_data(a.r, a.pp);
    pos[1] = STRIDE * 4;
    assert_fails(rig_try(a.r, &err), PZ_E_RANGE, &err, "row 1: position 48 is outside 0 to 47");
    pos[1] = -1;
    assert_fails(rig_try(a.r, &err), PZ_E_RANGE, &err, "position -1");
    pos[1] = 9;
    a.cache.table[STRIDE + 1] = PAGES;
    assert_fails(rig_try(a.r, &err), PZ_E_RANGE, &err, "row 1: page 1 of sequence 1 is page 48 of 48");
    a.cache.table[STRIDE + 1] = 0;
    pz_cache good = a.r->cache;
    a.r->cache.entry = 17;
    assert_fails(rig_try(a.r, &err), PZ_E_TYPE, &err, "holds 17 values of f32 a token, expected 18");
    a.r->cache = good;
    a.r->cache.dt = PZ_DT_I32;
    assert_fails(rig_try(a.r, &err), PZ_E_TYPE, &err, "i32");
    a.r->cache = good;
    a.r->cache.data = NULL;
    assert_fails(rig_try(a.r, &err), PZ_E_INVAL, &err, "needs a latent cache");
    a.r->cache = good;
    rig_in(&a.r->plan.launches.at[0], "seq", a.qp);
    assert_fails(rig_try(a.r, &err), PZ_E_TYPE, &err, "operand seq must be i32");
    rig_attr_int(&a.r->plan.launches.at[0], "heads", 0);
    assert_fails(rig_try(a.r, &err), PZ_E_TYPE, &err, "0 heads");
    finish_attention(&a);
}

static void test_refused_kv_b(void **state) {
    (void)state;
    pz_error err;
    rig *r = rig_open(NULL, 1, 1);
    float w[32] = {0}, x[16] = {0};
    pz_weight *kv_b = rig_matrix(r, "kv_b", PZ_DT_F32, 8, 4, w, PZ_OP_MLA_ABSORB_V);
    int op = rig_act(r, PZ_DT_F32, 8, x), y = rig_output(r, PZ_DT_F32, 6);
    pz_launch *l = rig_launch(r, PZ_OP_MLA_ABSORB_V);
    rig_in(l, "o", op);
    rig_attr_int(l, "heads", 2);
    rig_attr_int(l, "nope", 1);
    rig_attr_int(l, "v", 4);
    l->out[0] = y;
    assert_fails(rig_try(r, &err), PZ_E_INVAL, &err, "not loaded for mla_absorb_v");
    rig_in_weight(l, "kv_b", kv_b);
    assert_fails(rig_try(r, &err), PZ_E_TYPE, &err, "8 rows, expected 2 heads of 1 + 4");
    rig_attr_int(l, "v", 3);
    rig_run(r);
    rig_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache_write),
        cmocka_unit_test(test_absorb),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_batch_mates),
        cmocka_unit_test(test_attention_reads_no_further),
        cmocka_unit_test(test_attention_large_scores),
        cmocka_unit_test(test_refused_positions),
        cmocka_unit_test(test_refused_kv_b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
