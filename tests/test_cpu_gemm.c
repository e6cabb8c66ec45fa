/* SPDX-License-Identifier: Apache-2.0 */
/* The split-K GEMM of the CPU backend: every strategy, accumulator, dtype, number of threads and instruction set. */
#include "support_cpu.h"

#include <stdio.h>

typedef struct gemm_case {
    int m;
    int64_t n, k;
    pz_dtype x, w;
    pz_accum accum;
    pz_strategy strategy;
    int split, tile_n, threads;
    const char *isa;
    uint64_t seed;
    bool no_fill; /* PREZERO without the zeros */
} gemm_case;

static const gemm_case plain = {.m = 3,
                                .n = 70,
                                .k = 320,
                                .x = PZ_DT_BF16,
                                .w = PZ_DT_BF16,
                                .accum = PZ_ACCUM_FIXED,
                                .strategy = PZ_ZERO_SELF,
                                .split = 4,
                                .tile_n = 32,
                                .threads = 2,
                                .seed = 1};
static const int thread_counts[] = {1, 2, 3, 8};
static const pz_strategy strategies[] = {PZ_ZERO_PREZERO, PZ_ZERO_SELF, PZ_ZERO_MEMSET, PZ_ZERO_REDUCE};
enum { N_THREADS = 4, N_STRATEGIES = 4 };

/* ---- one GEMM in a rig ---- */
typedef struct gemm_rig {
    gemm_case c;
    rig *r;
    float *x, *w; /* as stored; a fixed-point x as its consumer reads it */
    float *x_norm;
    int y;
} gemm_rig;

/* Fixed-point rows: sums, their scale, and what they stand for. */
static int fixed_input(gemm_rig *g) {
    const gemm_case *c = &g->c;
    uint64_t s = c->seed + 7;
    rig *r = g->r;
    float *scale = rnd_array(&s, (c->k + 3) * 32);
    pz_weight *w = rig_matrix(r, "scale", PZ_DT_BF16, c->k + 3, 32, scale, PZ_OP_GEMM);
    int x = rig_place(r, PZ_DT_FIXED, c->k), norm = rig_place(r, PZ_DT_F32, 0);
    pz_place *p = &r->plan.places.at[x];
    p->scale_norm = norm;
    p->scale_weight = w;
    p->scale_col = 2;
    for (int i = 0; i < c->m; i++) {
        float x_norm = ((float *)rig_data(r, norm))[i] = ldexpf(1, rnd_int(&s, -3, 3));
        for (int64_t k = 0; k < c->k; k++) {
            int32_t q = (int32_t)((pz_rng_unit(&s) - 0.5) * 0x1p29);
            ((int32_t *)rig_data(r, x))[i * c->k + k] = q;
            g->x[i * c->k + k] = (float)q * 0x1p-30f * (x_norm * norm_of(scale + (k + 2) * 32, 32));
        }
    }
    pz_free(scale);
    return x;
}

static gemm_rig prepare(gemm_case c) {
    uint64_t s = c.seed, sw = c.seed + 1;
    gemm_rig g = {.c = c, .r = rig_open(c.isa, c.threads, c.m)};
    rig *r = g.r;
    g.x = rnd_array(&s, c.m * c.k);
    g.w = rnd_array(&sw, c.n * c.k); /* the same for any m */
    g.x_norm = pz_calloc((size_t)c.m, sizeof *g.x_norm);
    assert_non_null(g.x_norm);
    int x = c.x == PZ_DT_FIXED ? fixed_input(&g) : rig_act(r, c.x, c.k, g.x);
    int norm = rig_place(r, PZ_DT_F32, 0);
    for (int i = 0; i < c.m; i++) g.x_norm[i] = norm_of(g.x + i * c.k, c.k);
    memcpy(rig_data(r, norm), g.x_norm, (size_t)c.m * sizeof *g.x_norm);
    pz_weight *w = rig_matrix(r, "w", c.w, c.n, c.k, g.w, PZ_OP_GEMM);
    g.y = rig_output(r, pz_accum_dtype(c.accum), c.n);
    pz_place *y = &r->plan.places.at[g.y];
    if (c.accum == PZ_ACCUM_FIXED) {
        y->scale_norm = norm;
        y->scale_weight = w;
    }
    pz_launch *l = rig_launch(r, PZ_OP_GEMM);
    rig_in(l, "x", x);
    rig_in_weight(l, "w", w);
    l->out[0] = g.y;
    l->accum = c.accum;
    l->strategy = c.strategy;
    l->gemm = (pz_gemm_config){.tile_n = c.tile_n, .split = c.split};
    if (c.strategy == PZ_ZERO_REDUCE) l->workspace = rig_output(r, PZ_DT_F32, c.split * c.n);
    return g;
}

/* The output is poisoned before each run; the zeros that a donor would have written are put there by hand. */
static void run(gemm_rig *g) {
    int64_t bytes = g->r->plan.places.at[g->y].bytes;
    bool zeroed = g->c.strategy == PZ_ZERO_PREZERO && !g->c.no_fill;
    memset(rig_data(g->r, g->y), zeroed ? 0 : 0x7a, (size_t)bytes);
    rig_run(g->r);
}

static void *bits_of(gemm_rig *g) {
    run(g);
    int64_t bytes = g->r->plan.places.at[g->y].bytes;
    void *copy = pz_calloc((size_t)bytes, 1);
    assert_non_null(copy);
    return memcpy(copy, rig_data(g->r, g->y), (size_t)bytes);
}

static void finish(gemm_rig *g) {
    rig_close(g->r);
    pz_free(g->x);
    pz_free(g->w);
    pz_free(g->x_norm);
}

static void *bits(gemm_case c) {
    gemm_rig g = prepare(c);
    void *b = bits_of(&g);
    finish(&g);
    return b;
}

static size_t bytes_of(gemm_case c) {
    return (size_t)(c.m * c.n * pz_dtype_bits(pz_accum_dtype(c.accum)) / 8);
}

static void assert_same_bits(gemm_case a, gemm_case b) {
    void *x = bits(a), *y = bits(b);
    assert_memory_equal(x, y, bytes_of(a));
    pz_free(x);
    pz_free(y);
}

/* Compares with sums in f64. Each addition in f32 may round by 2^-24 of what has been added up so far, each addition
 * in bf16 by 2^-9; a split of a fixed sum by half a unit. */
static void check(gemm_case c) {
    gemm_rig g = prepare(c);
    run(&g);
    float *got = rig_read(g.r, g.y);
    double *want = pz_calloc((size_t)(c.m * c.n), sizeof *want),
           *tolerance = pz_calloc((size_t)(c.m * c.n), sizeof *want);
    assert_true(want && tolerance);
    for (int64_t i = 0; i < c.m; i++)
        for (int64_t j = 0; j < c.n; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < c.k; k++) {
                double p = (double)g.x[i * c.k + k] * (double)g.w[j * c.k + k];
                sum += p;
                size += fabs(p);
            }
            double unit = (double)g.x_norm[i] * (double)norm_of(g.w + j * c.k, c.k) * 0x1p-30;
            double per_add = c.accum == PZ_ACCUM_BF16 ? 0x1p-9 * (c.split + 1) : 0;
            if (c.accum == PZ_ACCUM_FIXED) per_add = 0x1p-24;
            want[i * c.n + j] = sum;
            tolerance[i * c.n + j] = size * (0x1p-24 * (double)(2 * c.k + c.split) + per_add) + 1e-40 +
                                     (c.accum == PZ_ACCUM_FIXED ? unit * 0.5 * c.split : 0);
        }
    assert_close(got, want, tolerance, c.m * c.n);
    pz_free(got);
    pz_free(want);
    pz_free(tolerance);
    finish(&g);
}

/* ---- right results ---- */
static void test_random_shapes(void **state) {
    (void)state;
    uint64_t s = 42;
    static const pz_dtype xs[] = {PZ_DT_BF16, PZ_DT_F32, PZ_DT_FIXED}, ws[] = {PZ_DT_BF16, PZ_DT_F32, PZ_DT_MXFP4};
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int i = 0; i < 120; i++) {
            gemm_case c = {.isa = *isa, .seed = s};
            c.m = rnd_int(&s, 1, i % 4 ? 12 : 70);
            c.n = rnd_int(&s, 1, 200);
            c.k = rnd_int(&s, 1, 500);
            c.x = xs[rnd_int(&s, 0, 2)];
            c.w = ws[rnd_int(&s, 0, 2)];
            if (c.w == PZ_DT_MXFP4) c.k = (c.k + 31) / 32 * 32;
            c.accum = (pz_accum)rnd_int(&s, 0, 2);
            c.threads = thread_counts[rnd_int(&s, 0, 3)];
            c.tile_n = 32 * rnd_int(&s, 1, 4);
            c.split = rnd_int(&s, 1, (int)(c.k / 32) + 1);
            if (c.split > 9) c.split = 9;
            c.strategy = i % 5 == 4 ? PZ_ZERO_NONE : strategies[rnd_int(&s, 0, 3)];
            if (c.strategy == PZ_ZERO_NONE) c.split = 1;
            check(c);
        }
}

/* Rows and columns of all sizes near the blocks of the kernels. */
static void test_block_edges(void **state) {
    (void)state;
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int m = 1; m <= 17; m++)
            for (int n = 31; n <= 33; n++) {
                gemm_case c = plain;
                c.isa = *isa;
                c.m = m;
                c.n = n + 32 * (m % 3);
                c.k = 64 + m;
                c.split = 2;
                check(c);
            }
}

/* More rows than fit a block of the cache. */
static void test_many_rows(void **state) {
    (void)state;
    gemm_case c = plain;
    c.m = 70;
    c.k = 4128;
    c.n = 40;
    for (int i = 0; i < N_STRATEGIES; i++) {
        c.strategy = strategies[i];
        c.accum = (pz_accum)(i % 3);
        check(c);
    }
}

/* Sums that reach their bound: equal elements, whose sums in f32 can even pass it. */
static void test_sums_at_the_bound(void **state) {
    (void)state;
    gemm_case c = plain;
    c.k = 1024;
    c.x = c.w = PZ_DT_F32;
    for (int i = 0; i < 2; i++) {
        gemm_rig g = prepare(c);
        float v = i ? 0.99999f : 1.f;
        for (int64_t k = 0; k < c.m * c.k; k++) ((float *)rig_data(g.r, 0))[k] = v;
        for (int row = 0; row < c.m; row++) ((float *)rig_data(g.r, 1))[row] = pz_fixed_norm((double)v * v * 1024);
        float *ones = pz_calloc((size_t)(c.n * c.k), sizeof *ones);
        assert_non_null(ones);
        for (int64_t k = 0; k < c.n * c.k; k++) ones[k] = v;
        pz_weight *w = rig_matrix(g.r, "equal", PZ_DT_F32, c.n, c.k, ones, PZ_OP_GEMM);
        rig_in_weight(&g.r->plan.launches.at[0], "w", w);
        g.r->plan.places.at[g.y].scale_weight = w;
        run(&g);
        float *got = rig_read(g.r, g.y);
        for (int64_t j = 0; j < c.m * c.n; j++) assert_true(fabsf(got[j] - v * v * 1024) < 0.05f);
        pz_free(ones);
        pz_free(got);
        finish(&g);
    }
}

/* ---- the same bits ---- */
/* A fixed sum depends on the split of K alone: not on the threads, the strategy or the run. */
static void test_fixed_is_exact(void **state) {
    (void)state;
    for (const char *const *isa = rig_isas(); *isa; isa++) {
        gemm_case c = plain;
        c.isa = *isa;
        c.m = 5;
        c.n = 135;
        c.k = 512;
        c.split = 5;
        c.threads = 1;
        void *want = bits(c);
        for (int i = 0; i < N_STRATEGIES * N_THREADS; i++) {
            c.strategy = strategies[i / N_THREADS];
            c.threads = thread_counts[i % N_THREADS];
            void *got = bits(c);
            assert_memory_equal(got, want, bytes_of(c));
            pz_free(got);
        }
        pz_free(want);
    }
}

static void test_fifty_runs(void **state) {
    (void)state;
    gemm_case c = plain;
    c.m = 2;
    c.n = 97;
    c.k = 1024;
    c.split = 9;
    c.threads = 3;
    for (int strategy = 0; strategy < N_STRATEGIES; strategy++) {
        c.strategy = strategies[strategy];
        gemm_rig g = prepare(c);
        void *want = bits_of(&g);
        for (int i = 0; i < 50; i++) {
            void *got = bits_of(&g);
            assert_memory_equal(got, want, bytes_of(c));
            pz_free(got);
        }
        pz_free(want);
        finish(&g);
    }
}

/* The rounding accumulators have fixed bits on one thread, whatever zeroes the output. On more threads they need not.
 */
static void test_rounding_accumulators_on_one_thread(void **state) {
    (void)state;
    for (int accum = PZ_ACCUM_F32; accum <= PZ_ACCUM_BF16; accum++) {
        gemm_case a = plain, b;
        a.accum = (pz_accum)accum;
        a.threads = 1;
        a.m = 9;
        for (int i = 0; i < 3; i++) {
            b = a;
            b.strategy = strategies[i];
            assert_same_bits(a, b);
        }
    }
}

/* REDUCE and NONE add in an order of their own, so the number of threads is no matter for any accumulator. */
static void test_reduce_and_none_on_any_threads(void **state) {
    (void)state;
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_BF16; accum++)
        for (int i = 0; i < 2 * N_THREADS; i++) {
            gemm_case a = plain, b;
            a.accum = (pz_accum)accum;
            a.strategy = i % 2 ? PZ_ZERO_REDUCE : PZ_ZERO_NONE;
            a.split = i % 2 ? 5 : 1;
            a.m = 9;
            b = a;
            a.threads = 1;
            b.threads = thread_counts[i / 2];
            assert_same_bits(a, b);
        }
}

/* Row `row` of a batch against the same row alone. */
static void row_alone(gemm_case c, int row) {
    gemm_case one = c;
    one.m = 1;
    gemm_rig all = prepare(c), alone = prepare(one);
    int64_t x_bytes = c.k * pz_dtype_bits(c.x) / 8;
    memcpy(rig_data(alone.r, 0), (char *)rig_data(all.r, 0) + row * x_bytes, (size_t)x_bytes);
    memcpy(rig_data(alone.r, 1), (float *)rig_data(all.r, 1) + row, sizeof(float));
    char *want = bits_of(&all), *got = bits_of(&alone);
    assert_memory_equal(got, want + (size_t)row * bytes_of(one), bytes_of(one));
    pz_free(want);
    pz_free(got);
    finish(&all);
    finish(&alone);
}

static void test_batch_mates_do_not_matter(void **state) {
    (void)state;
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int i = 0; i < 18; i++) {
            gemm_case c = plain;
            c.isa = *isa;
            c.m = 17;
            c.k = 352;
            c.x = i % 2 ? PZ_DT_F32 : PZ_DT_BF16;
            c.w = i / 2 % 3 == 0 ? PZ_DT_BF16 : i / 2 % 3 == 1 ? PZ_DT_F32 : PZ_DT_MXFP4;
            c.accum = (pz_accum)(i / 6);
            c.threads = c.accum == PZ_ACCUM_FIXED ? 3 : 1;
            c.strategy = strategies[i % N_STRATEGIES];
            for (int row = 0; row < 17; row += 1 + row / 2) row_alone(c, row);
        }
}

/* Products of bf16 numbers are exact in f32, so with and without FMA the same is added: all instruction sets agree in
 * every bit. With f32 on a side they agree within rounding, which the comparison with f64 shows. */
static void test_instruction_sets_agree(void **state) {
    (void)state;
    const char *const *isas = rig_isas();
    for (int i = 1; isas[i]; i++)
        for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_BF16; accum++)
            for (int quantized = 0; quantized < 2; quantized++) {
                gemm_case a = plain, b;
                a.m = 11;
                a.accum = (pz_accum)accum;
                a.w = quantized ? PZ_DT_MXFP4 : PZ_DT_BF16;
                a.threads = 1;
                b = a;
                a.isa = isas[0];
                b.isa = isas[i];
                assert_same_bits(a, b);
            }
}

/* The values of `from`, an mxfp4 weight, as a bf16 weight in another rig. */
static void mxfp4_against_bf16(gemm_case c, int special) {
    gemm_case d = c;
    d.w = PZ_DT_BF16;
    gemm_rig a = prepare(c), b = prepare(d);
    /* A scale of each special kind at the first block of the second row. */
    static const unsigned char scales[] = {127, 0, 1, 254, 255};
    pz_error err;
    int64_t rows = c.n, blocks = c.k / 32;
    unsigned char *codes = pz_calloc((size_t)(rows * c.k / 2), 1), *scale = pz_calloc((size_t)(rows * blocks), 1);
    float *values = pz_calloc((size_t)(rows * c.k), sizeof *values);
    assert_true(codes && scale && values);
    static const float e2m1[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    for (int64_t i = 0; i < rows * c.k / 2; i++) codes[i] = (unsigned char)(i * 37 + i / 16);
    for (int64_t i = 0; i < rows * blocks; i++) scale[i] = (unsigned char)(124 + i % 7);
    scale[blocks] = scales[special];
    for (int64_t i = 0; i < rows * c.k; i++) {
        int code = codes[i / 2] >> (i % 2 * 4) & 15, e = scale[i / 32];
        float v = e == 255 ? NAN : (float)ldexp(e2m1[code & 7], e - 127);
        values[i] = code & 8 ? -v : v;
    }
    pz_weight *wa, *wb = rig_matrix(b.r, "bf16", PZ_DT_BF16, c.n, c.k, values, PZ_OP_GEMM);
    assert_ok(pz_graph_add_weight(a.r->graph, "mxfp4", pz_type_make(PZ_DT_MXFP4, 2, c.n, c.k, 0), &wa, &err), &err);
    pz_host_weight host = {.dt = PZ_DT_MXFP4, .rows = rows, .cols = c.k};
    pz_host_part part = {codes, rows, c.k / 2, scale, blocks};
    assert_ok(pz_push(&host.parts, part, &err), &err);
    assert_ok(a.r->api->load(a.r->b, wa, PZ_OP_GEMM, &host, &err), &err);
    pz_vec_free(&host.parts);
    rig_in_weight(&a.r->plan.launches.at[0], "w", wa);
    rig_in_weight(&b.r->plan.launches.at[0], "w", wb);
    if (c.accum == PZ_ACCUM_FIXED) {
        a.r->plan.places.at[a.y].scale_weight = wa;
        b.r->plan.places.at[b.y].scale_weight = wb;
    }
    void *x = bits_of(&a), *y = bits_of(&b);
    assert_memory_equal(x, y, bytes_of(c));
    float *got = rig_read(a.r, a.y);
    for (int64_t i = 0; i < c.m * c.n; i++) {
        bool spoilt = i % c.n == 1 && special >= 3; /* 6 * 2^127 is infinite already */
        assert_int_equal(isfinite(got[i]) != 0, !spoilt);
    }
    pz_free(got);
    pz_free(x);
    pz_free(y);
    pz_free(codes);
    pz_free(scale);
    pz_free(values);
    finish(&a);
    finish(&b);
}

static void test_mxfp4_is_its_bf16(void **state) {
    (void)state;
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int i = 0; i < 15; i++) {
            gemm_case c = plain;
            c.isa = *isa;
            c.m = i % 2 ? 13 : 1;
            c.k = i / 3 == 1 ? 32 : 192; /* alone in its row, a smallest scale shows */
            c.split = i / 3 == 1 ? 1 : 3;
            c.x = i % 4 ? PZ_DT_BF16 : PZ_DT_F32;
            c.w = PZ_DT_MXFP4;
            c.accum = (pz_accum)(i % 3);
            c.threads = 1;
            mxfp4_against_bf16(c, i / 3);
        }
}

/* ---- what must not happen ---- */
/* Without the donor's zeros PREZERO adds to what lies there: were it not so, the tests above would prove nothing. */
static void test_no_zeros_no_result(void **state) {
    (void)state;
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_BF16; accum++) {
        gemm_case c = plain;
        c.accum = (pz_accum)accum;
        c.strategy = PZ_ZERO_PREZERO;
        void *want = bits(c);
        c.no_fill = true;
        void *got = bits(c);
        assert_memory_not_equal(got, want, bytes_of(c));
        pz_free(want);
        pz_free(got);
    }
}

/* NaN or Inf in a row of x or of w comes out as no finite number, and touches nothing else. */
static void spoil(gemm_case c, float bad, bool in_x) {
    gemm_rig clean = prepare(c), g = prepare(c);
    int64_t row = in_x ? c.m / 2 : c.n / 2, at = row * c.k + c.k / 3;
    if (in_x) {
        if (c.x == PZ_DT_BF16)
            ((uint16_t *)rig_data(g.r, 0))[at] = pz_f32_to_bf16(bad);
        else
            ((float *)rig_data(g.r, 0))[at] = bad;
        ((float *)rig_data(g.r, 1))[row] = NAN;
    } else {
        g.w[at] = bad;
        pz_weight *w = rig_matrix(g.r, "spoilt", c.w, c.n, c.k, g.w, PZ_OP_GEMM);
        rig_in_weight(&g.r->plan.launches.at[0], "w", w);
        if (c.accum == PZ_ACCUM_FIXED) g.r->plan.places.at[g.y].scale_weight = w;
    }
    run(&clean);
    run(&g);
    float *want = rig_read(clean.r, clean.y), *got = rig_read(g.r, g.y);
    for (int64_t i = 0; i < c.m * c.n; i++) {
        if ((in_x ? i / c.n : i % c.n) == row)
            assert_false(isfinite(got[i]));
        else
            assert_memory_equal(&got[i], &want[i], sizeof got[i]);
    }
    pz_free(want);
    pz_free(got);
    finish(&clean);
    finish(&g);
}

static void test_nan_and_inf_stay(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int i = 0; i < 36; i++) {
            gemm_case c = plain;
            c.isa = *isa;
            c.m = 9;
            c.accum = (pz_accum)(i % 3);
            c.x = i / 18 ? PZ_DT_F32 : PZ_DT_BF16;
            c.w = i / 18 ? PZ_DT_F32 : PZ_DT_BF16;
            c.strategy = strategies[i % N_STRATEGIES];
            c.threads = c.accum == PZ_ACCUM_FIXED ? 3 : 1;
            spoil(c, bad[i / 3 % 3], i / 9 % 2);
        }
}

/* Rows of zeros, of denormal numbers and of huge ones. */
static void test_extreme_rows(void **state) {
    (void)state;
    gemm_case c = plain;
    c.m = 4;
    c.x = PZ_DT_F32;
    gemm_rig g = prepare(c);
    static const float factor[] = {0, 1e-40f, 0x1p100f, 1e-20f};
    double *want = pz_calloc((size_t)(c.m * c.n), sizeof *want),
           *tolerance = pz_calloc((size_t)(c.m * c.n), sizeof *want);
    assert_true(want && tolerance);
    for (int i = 0; i < c.m; i++) {
        float *x = (float *)rig_data(g.r, 0) + i * c.k, *norm = rig_data(g.r, 1);
        for (int64_t k = 0; k < c.k; k++) x[k] *= factor[i];
        norm[i] = norm_of(x, c.k);
        for (int64_t j = 0; j < c.n; j++) {
            double unit = (double)norm[i] * (double)norm_of(g.w + j * c.k, c.k) * 0x1p-30;
            for (int64_t k = 0; k < c.k; k++) want[i * c.n + j] += (double)x[k] * (double)g.w[j * c.k + k];
            tolerance[i * c.n + j] = unit * 64;
        }
    }
    run(&g);
    float *got = rig_read(g.r, g.y);
    assert_close(got, want, tolerance, c.m * c.n);
    for (int64_t j = 0; j < c.n; j++) assert_true(got[j] == 0);
    pz_free(got);
    pz_free(want);
    pz_free(tolerance);
    finish(&g);
}

/* ---- refusals: before anything runs ---- */
static void refuse_config(gemm_case c, pz_status want, const char *text) {
    pz_error err;
    gemm_rig g = prepare(plain);
    pz_launch *l = rig_launch(g.r, PZ_OP_GEMM);
    pz_launch *first = &g.r->plan.launches.at[0];
    const pz_node *node = l->node;
    *l = *first; /* the first would write its output if it ran */
    l->node = node;
    l->strategy = c.strategy;
    l->gemm = (pz_gemm_config){.tile_n = c.tile_n, .split = c.split};
    l->accum = c.accum;
    assert_fails(rig_try(g.r, &err), want, &err, "gemm", text);
    finish(&g);
}

static void test_refused_configurations(void **state) {
    (void)state;
    gemm_case c = plain;
    c.strategy = PZ_ZERO_TICKET;
    refuse_config(c, PZ_E_UNSUPPORTED, "strategy ticket is not supported");
    c.strategy = PZ_ZERO_NONE;
    refuse_config(c, PZ_E_UNSUPPORTED, "cannot add up 4 splits");
    c.strategy = PZ_ZERO_REDUCE;
    refuse_config(c, PZ_E_INTERNAL, "workspace");
    c = plain;
    c.tile_n = 48;
    refuse_config(c, PZ_E_UNSUPPORTED, "multiple of 32");
    c.tile_n = 32;
    c.split = 0;
    refuse_config(c, PZ_E_UNSUPPORTED, "split 1 or more");
    c = plain;
    c.accum = PZ_ACCUM_F32;
    refuse_config(c, PZ_E_TYPE, "f32[m,70]");
}

static void test_refused_operands(void **state) {
    (void)state;
    pz_error err;
    gemm_rig g = prepare(plain);
    rig *r = g.r;
    pz_launch *l = &r->plan.launches.at[0];
    pz_launch good = *l;
    rig_in(l, "x", rig_place(r, PZ_DT_BF16, plain.k + 1));
    assert_fails(rig_try(r, &err), PZ_E_TYPE, &err, "operand x has 321 columns, expected 320");
    rig_in(l, "x", rig_place(r, PZ_DT_I32, plain.k));
    assert_fails(rig_try(r, &err), PZ_E_UNSUPPORTED, &err, "operand x is i32");
    rig_in(l, "x", -1);
    assert_fails(rig_try(r, &err), PZ_E_INTERNAL, &err, "operand x has no place");
    rig_in(l, "x", rig_place(r, PZ_DT_FIXED, plain.k));
    assert_fails(rig_try(r, &err), PZ_E_INTERNAL, &err, "without its scale");
    *l = good;
    pz_weight *w;
    assert_ok(pz_graph_add_weight(r->graph, "late", pz_type_make(PZ_DT_BF16, 2, plain.n, plain.k, 0), &w, &err), &err);
    rig_in_weight(l, "w", w);
    assert_fails(rig_try(r, &err), PZ_E_INVAL, &err, "weight late is not loaded");
    *l = good;
    r->plan.places.at[g.y].scale_norm = -1;
    assert_fails(rig_try(r, &err), PZ_E_INTERNAL, &err, "x_norm");
    finish(&g);
}

/* A weight that another graph numbers otherwise is found by its name. */
static void test_weight_by_name(void **state) {
    (void)state;
    gemm_rig g = prepare(plain);
    void *want = bits_of(&g);
    pz_weight other = *g.r->plan.launches.at[0].in[pz_op_operand_index(PZ_OP_GEMM, "w")].weight;
    other.index = 12345;
    rig_in_weight(&g.r->plan.launches.at[0], "w", &other);
    void *got = bits_of(&g);
    assert_memory_equal(got, want, bytes_of(plain));
    pz_free(want);
    pz_free(got);
    finish(&g);
}

static void test_launch_times(void **state) {
    (void)state;
    gemm_rig g = prepare(plain);
    int64_t ns = 0;
    g.r->launch_ns = &ns;
    run(&g);
    int64_t once = ns;
    assert_true(once > 0);
    run(&g);
    assert_true(ns > once);
    finish(&g);
}

/* ---- opening, loading, reading ---- */
static void test_open(void **state) {
    (void)state;
    pz_error err;
    pz_backend *b;
    const pz_backend_api *api = pz_backend_cpu();
    pz_device d;
    assert_string_equal(api->name, "cpu");
    assert_ok(api->open(NULL, &b, &err), &err);
    assert_int_equal(api->weight_bytes(b), 0);
    api->close(b);
    api->close(NULL);
    assert_ok(api->open(&(pz_backend_options){.threads = 5, .isa = "auto"}, &b, &err), &err);
    const char *const *isas = rig_isas();
    int best = 0;
    while (isas[best + 1]) best++;
    assert_string_equal(api->isa(b), isas[best]);
    api->device(b, &d);
    assert_string_equal(d.name, "cpu");
    assert_int_equal(d.units, 5);
    api->close(b);
    assert_fails(api->open(&(pz_backend_options){.threads = -1}, &b, &err), PZ_E_INVAL, &err, "-1 threads");
    assert_fails(api->open(&(pz_backend_options){.threads = 5000}, &b, &err), PZ_E_INVAL, &err, "5000 threads");
    assert_fails(api->open(&(pz_backend_options){.isa = "mmx"}, &b, &err), PZ_E_INVAL, &err, "mmx", "avx2");
}

static void test_refused_weights(void **state) {
    (void)state;
    pz_error err;
    rig *r = rig_open(NULL, 1, 1);
    static const unsigned char data[4096], scale[128];
    struct {
        pz_type type;
        pz_dtype dt;
        int64_t rows, cols, part_rows;
        pz_op use;
        bool no_scale;
        pz_status want;
        const char *text;
    } bad[] = {
        {pz_type_make(PZ_DT_BF16, 2, 8, 32, 0), PZ_DT_FP8, 8, 32, 8, PZ_OP_GEMM, false, PZ_E_UNSUPPORTED, "fp8"},
        {pz_type_make(PZ_DT_BF16, 2, 8, 32, 0), PZ_DT_BF16, 9, 32, 9, PZ_OP_GEMM, false, PZ_E_TYPE, "expected 8 x 32"},
        {pz_type_make(PZ_DT_BF16, 2, 8, 32, 0), PZ_DT_BF16, 8, 32, 7, PZ_OP_GEMM, false, PZ_E_TYPE, "parts of 7 rows"},
        {pz_type_make(PZ_DT_MXFP4, 2, 8, 33, 0), PZ_DT_MXFP4, 8, 33, 8, PZ_OP_GEMM, false, PZ_E_UNSUPPORTED,
         "multiple of 32"},
        {pz_type_make(PZ_DT_MXFP4, 2, 8, 32, 0), PZ_DT_MXFP4, 8, 32, 8, PZ_OP_GEMM, true, PZ_E_INVAL, "without scales"},
        {pz_type_make(PZ_DT_MXFP4, 2, 8, 32, 0), PZ_DT_MXFP4, 8, 32, 8, PZ_OP_EMBED, false, PZ_E_UNSUPPORTED, "embed"},
        {pz_type_make(PZ_DT_MXFP4, 2, 8, 32, 0), PZ_DT_MXFP4, 8, 32, 8, PZ_OP_MLA_ABSORB_Q, false, PZ_E_UNSUPPORTED,
         "mla_absorb_q"},
        {pz_type_make(PZ_DT_BF16, 3, 2, 4, 32), PZ_DT_BF16, 8, 32, 8, PZ_OP_GEMM, false, PZ_E_UNSUPPORTED, "rank 3"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%zu", i);
        pz_weight w = {.name = name, .type = bad[i].type, .index = (int)i};
        pz_host_weight host = {.dt = bad[i].dt, .rows = bad[i].rows, .cols = bad[i].cols};
        pz_host_part part = {data, bad[i].part_rows, 64, bad[i].no_scale ? NULL : scale, 1};
        assert_ok(pz_push(&host.parts, part, &err), &err);
        assert_fails(r->api->load(r->b, &w, bad[i].use, &host, &err), bad[i].want, &err, name, bad[i].text);
        pz_vec_free(&host.parts);
    }
    pz_weight odd = {.name = "odd", .type = pz_type_make(PZ_DT_BF16, 1, 4, 0, 0), .index = -1};
    assert_fails(r->api->load(r->b, &odd, PZ_OP_RMS_NORM, &(pz_host_weight){.dt = PZ_DT_BF16}, &err), PZ_E_INVAL, &err,
                 "odd");
    rig_close(r);
}

static void test_read(void **state) {
    (void)state;
    pz_error err;
    rig *r = rig_open(NULL, 1, 3);
    float x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, got[4];
    int bf16 = rig_act(r, PZ_DT_BF16, 4, x), view = rig_view(r, bf16, 1, 2), ids = rig_i32(r, 0, (int32_t[]){1, 2, 3});
    int fixed = rig_place(r, PZ_DT_FIXED, 4), rows[2] = {2, 0}, outside = 3;
    pz_run_args args = {.arena = r->arena};
    assert_ok(r->api->read(r->b, &r->plan, &args, view, rows, 2, got, &err), &err);
    assert_memory_equal(got, ((float[]){10, 11, 2, 3}), sizeof got);
    assert_fails(r->api->read(r->b, &r->plan, &args, bf16, &outside, 1, got, &err), PZ_E_RANGE, &err, "row 3");
    assert_fails(r->api->read(r->b, &r->plan, &args, ids, rows, 1, got, &err), PZ_E_INVAL, &err, "no activation");
    assert_fails(r->api->read(r->b, &r->plan, &args, 99, rows, 1, got, &err), PZ_E_INVAL, &err, "no activation");
    assert_fails(r->api->read(r->b, &r->plan, &args, fixed, rows, 1, got, &err), PZ_E_INVAL, &err, "scale");
    rig_close(r);
}

/* ---- out of memory ---- */
typedef struct memory_case {
    const pz_weight *w;
    pz_host_weight host;
    pz_op use;
} memory_case;

static pz_status load_alone(void *ctx) {
    const memory_case *c = ctx;
    pz_backend *b = NULL;
    pz_status st = pz_backend_cpu()->open(&(pz_backend_options){.threads = 2}, &b, NULL);
    if (st != PZ_OK) return st;
    st = pz_backend_cpu()->load(b, c->w, c->use, &c->host, NULL);
    if (st == PZ_OK) assert_true(pz_backend_cpu()->weight_bytes(b) > 0 || c->use == PZ_OP_EMBED);
    pz_backend_cpu()->close(b);
    return st;
}

static void test_load_out_of_memory(void **state) {
    (void)state;
    pz_error err;
    static const unsigned char data[64 * 64 * 2];
    pz_weight w = {.name = "w", .type = pz_type_make(PZ_DT_BF16, 2, 64, 64, 0), .index = 2};
    memory_case c = {.w = &w, .host = {.dt = PZ_DT_BF16, .rows = 64, .cols = 64}};
    assert_ok(pz_push(&c.host.parts, ((pz_host_part){data, 64, 128, NULL, 0}), &err), &err);
    static const struct {
        pz_op use;
        long allocations;
    } uses[] = {{PZ_OP_GEMM, 7}, {PZ_OP_EMBED, 4}, {PZ_OP_MLA_ABSORB_V, 5}};
    for (int i = 0; i < 3; i++) {
        c.use = uses[i].use;
        assert_true(support_alloc_sweep(load_alone, &c) >= uses[i].allocations);
    }
    pz_vec_free(&c.host.parts);
}

static pz_status run_again(void *ctx) {
    gemm_rig *g = ctx;
    pz_error err;
    return rig_try(g->r, &err);
}

static void test_run_out_of_memory(void **state) {
    (void)state;
    gemm_rig g = prepare(plain);
    assert_true(support_alloc_sweep(run_again, &g) >= 1);
    finish(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_block_edges),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_sums_at_the_bound),
        cmocka_unit_test(test_fixed_is_exact),
        cmocka_unit_test(test_fifty_runs),
        cmocka_unit_test(test_rounding_accumulators_on_one_thread),
        cmocka_unit_test(test_reduce_and_none_on_any_threads),
        cmocka_unit_test(test_batch_mates_do_not_matter),
        cmocka_unit_test(test_instruction_sets_agree),
        cmocka_unit_test(test_mxfp4_is_its_bf16),
        cmocka_unit_test(test_no_zeros_no_result),
        cmocka_unit_test(test_nan_and_inf_stay),
        cmocka_unit_test(test_extreme_rows),
        cmocka_unit_test(test_refused_configurations),
        cmocka_unit_test(test_refused_operands),
        cmocka_unit_test(test_weight_by_name),
        cmocka_unit_test(test_launch_times),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_refused_weights),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_load_out_of_memory),
        cmocka_unit_test(test_run_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
