/* SPDX-License-Identifier: Apache-2.0 */
/* Every other kernel of the CPU backend against a plain definition in f64. */
#include "support_cpu.h"

static const pz_dtype act_types[] = {PZ_DT_F32, PZ_DT_BF16};
static const int thread_counts[] = {1, 2, 3, 8};

static double *doubles(int64_t n) {
    double *x = pz_calloc((size_t)n + 1, sizeof *x);
    assert_non_null(x);
    return x;
}

/* Rounding of a result of size |v| stored in dt, plus `steps` roundings of f32 of a sum of size `size`. */
static double rounding(pz_dtype dt, double v, double size, double steps) {
    return (dt == PZ_DT_BF16 ? 0x1p-8 : 0x1p-23) * fabs(v) + size * steps * 0x1p-23 + 1e-37;
}

/* Checks x_norm of a result against what was stored. */
static void check_norms(rig *r, int place) {
    int norm = r->plan.places.at[place].norm;
    int64_t cols = r->plan.places.at[place].type.dim[1];
    float *y = rig_read(r, place);
    for (int i = 0; i < r->plan.m; i++) {
        float want = norm_of(y + i * cols, cols), got = ((float *)rig_data(r, norm))[i];
        assert_true(isnan(want) ? isnan(got) : got == want);
    }
    pz_free(y);
}

/* ---- norms ---- */
typedef struct norm_case {
    pz_op op;
    int m;
    int64_t n;
    pz_dtype x, out, weight;
    int threads;
    const char *isa;
    uint64_t seed;
} norm_case;

static bool takes_residual(pz_op op) {
    return pz_op_operand_index(op, "res") >= 0;
}

static void check_norm(norm_case c) {
    uint64_t s = c.seed;
    rig *r = rig_open(c.isa, c.threads, c.m);
    float *x = rnd_array(&s, c.m * c.n), *res = rnd_array(&s, c.m * c.n), *w = rnd_array(&s, c.n);
    bool add = takes_residual(c.op);
    int xp = rig_act(r, c.x, c.n, x), rp = add ? rig_act(r, c.out, c.n, res) : -1;
    int y = rig_normed_output(r, c.out, c.n), sum = add ? rig_output(r, c.out, c.n) : -1;
    pz_weight *weight = rig_vector(r, "w", c.weight, c.n, w, c.op);
    pz_launch *l = rig_launch(r, c.op);
    rig_in(l, "x", xp);
    if (add) rig_in(l, "res", rp);
    rig_in_weight(l, "w", weight);
    rig_attr_float(l, "eps", 1e-5);
    l->out[0] = y;
    if (add) l->out[1] = sum;
    rig_run(r);
    double *want = doubles(c.m * c.n), *tolerance = doubles(c.m * c.n);
    for (int64_t i = 0; i < c.m; i++) {
        double square = 0;
        float *row = x + i * c.n;
        for (int64_t j = 0; j < c.n; j++) {
            if (add) row[j] = rig_round(c.out, row[j] + res[i * c.n + j]);
            square += (double)row[j] * (double)row[j];
        }
        for (int64_t j = 0; j < c.n; j++) {
            double v = want[i * c.n + j] = (double)row[j] / sqrt(square / (double)c.n + 1e-5) * (double)w[j];
            tolerance[i * c.n + j] = rounding(c.out, v, fabs(v), 3);
        }
    }
    float *got = rig_read(r, y), *got_sum = add ? rig_read(r, sum) : NULL;
    assert_close(got, want, tolerance, c.m * c.n);
    if (add) assert_memory_equal(got_sum, x, (size_t)(c.m * c.n) * sizeof *x);
    check_norms(r, y);
    pz_free(got);
    pz_free(got_sum);
    pz_free(want);
    pz_free(tolerance);
    pz_free(x);
    pz_free(res);
    pz_free(w);
    rig_close(r);
}

static void test_norms(void **state) {
    (void)state;
    static const pz_op ops[] = {PZ_OP_RMS_NORM, PZ_OP_ADD_RMS_NORM, PZ_OP_FUSED_ALLREDUCE_RMSNORM,
                                PZ_OP_LATENT_RMS_NORM};
    uint64_t s = 3;
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int i = 0; i < 64; i++) {
            norm_case c = {
                .op = ops[i % 4], .isa = *isa, .seed = s, .x = act_types[i / 4 % 2], .out = act_types[i / 8 % 2]};
            c.weight = act_types[i / 16 % 2];
            c.m = rnd_int(&s, 1, i % 3 ? 5 : 40);
            c.n = rnd_int(&s, 1, 400);
            c.threads = thread_counts[rnd_int(&s, 0, 3)];
            check_norm(c);
        }
}

/* The rider: exactly its bytes, whatever the rows and the threads; `fill` 0 leaves the poison: the control. */
static void check_rider(pz_op op, int m, int threads, int64_t bytes, int64_t fill) {
    uint64_t s = 5;
    rig *r = rig_open(NULL, threads, m);
    int64_t n = 200;
    float *x = rnd_array(&s, m * n), *w = rnd_array(&s, n);
    int xp = rig_act(r, PZ_DT_BF16, n, x), rp = rig_act(r, PZ_DT_BF16, n, x);
    int y = rig_normed_output(r, PZ_DT_BF16, n), sum = rig_output(r, PZ_DT_BF16, n);
    int buffer = rig_output(r, PZ_DT_BF16, bytes / 2);
    pz_weight *weight = rig_vector(r, "w", PZ_DT_BF16, n, w, op);
    pz_launch *l = rig_launch(r, op);
    rig_in(l, "x", xp);
    rig_in_weight(l, "w", weight);
    l->out[0] = y;
    if (takes_residual(op)) {
        rig_in(l, "res", rp);
        l->out[1] = sum;
    }
    l->fill = 0;
    /* the buffer's place has room for m times as much: what lies behind the fill must keep its poison */
    pz_fill f = {.place = buffer, .offset = r->plan.places.at[buffer].offset, .bytes = fill};
    pz_error err;
    assert_ok(pz_push(&r->plan.fills, f, &err), &err);
    rig_run(r);
    const unsigned char *at = rig_data(r, buffer);
    for (int64_t i = 0; i < m * bytes; i++) assert_int_equal(at[i], i < fill ? 0 : 0xff);
    check_norms(r, y);
    pz_free(x);
    pz_free(w);
    rig_close(r);
}

static void test_rider(void **state) {
    (void)state;
    static const pz_op ops[] = {PZ_OP_RMS_NORM, PZ_OP_ADD_RMS_NORM, PZ_OP_FUSED_ALLREDUCE_RMSNORM};
    for (int m = 1; m <= 9; m++)
        for (int t = 0; t < 4; t++) {
            int64_t big = 96 * 1024;
            check_rider(ops[m % 3], m, thread_counts[t], big, big);
            check_rider(ops[(m + 1) % 3], m, thread_counts[t], 8192, 64 * (1 + 5 * m));
            check_rider(ops[(m + 2) % 3], m, thread_counts[t], 8192, 0);
        }
}

static void test_norm_keeps_nan(void **state) {
    (void)state;
    rig *r = rig_open(NULL, 2, 3);
    float x[12] = {1, 2, NAN, 4, 0, 0, 0, 0, INFINITY, 1, 1, 1}, w[4] = {1, 1, 1, 1};
    int xp = rig_act(r, PZ_DT_F32, 4, x), y = rig_normed_output(r, PZ_DT_BF16, 4);
    pz_weight *weight = rig_vector(r, "w", PZ_DT_F32, 4, w, PZ_OP_RMS_NORM);
    pz_launch *l = rig_launch(r, PZ_OP_RMS_NORM);
    rig_in(l, "x", xp);
    rig_in_weight(l, "w", weight);
    l->out[0] = y;
    rig_run(r);
    float *got = rig_read(r, y), *norm = rig_data(r, r->plan.places.at[y].norm);
    for (int i = 0; i < 4; i++) assert_true(isnan(got[i]) && got[4 + i] == 0);
    assert_true(isnan(got[8]));
    assert_true(isnan(norm[0]) && norm[1] == PZ_NORM_MIN && isnan(norm[2]));
    pz_free(got);
    rig_close(r);
}

/* ---- adds, silu_mul, embed ---- */
static void test_add_and_all_reduce(void **state) {
    (void)state;
    uint64_t s = 8;
    for (int i = 0; i < 32; i++) {
        int m = rnd_int(&s, 1, 40), all_reduce = i % 2;
        int64_t n = rnd_int(&s, 1, 900);
        pz_dtype out = act_types[i / 2 % 2];
        rig *r = rig_open(NULL, thread_counts[i % 4], m);
        float *a = rnd_array(&s, m * n), *b = rnd_array(&s, m * n);
        int ap = rig_act(r, act_types[i / 4 % 2], n, a), bp = rig_act(r, act_types[i / 8 % 2], n, b);
        int y = rig_output(r, out, n);
        pz_launch *l = rig_launch(r, all_reduce ? PZ_OP_ALL_REDUCE : PZ_OP_ADD);
        rig_in(l, all_reduce ? "x" : "a", ap);
        if (!all_reduce) rig_in(l, "b", bp);
        l->out[0] = y;
        rig_run(r);
        float *got = rig_read(r, y);
        for (int64_t k = 0; k < m * n; k++) assert_true(got[k] == rig_round(out, all_reduce ? a[k] : a[k] + b[k]));
        pz_free(got);
        pz_free(a);
        pz_free(b);
        rig_close(r);
    }
}

static void test_silu_mul(void **state) {
    (void)state;
    uint64_t s = 9;
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int i = 0; i < 16; i++) {
            int m = rnd_int(&s, 1, 30);
            int64_t n = rnd_int(&s, 1, 300);
            pz_dtype out = act_types[i % 2];
            rig *r = rig_open(*isa, thread_counts[i % 4], m);
            float *x = rnd_array(&s, m * 2 * n);
            for (int64_t k = 0; k < m * 2 * n; k++) x[k] *= i / 4 % 2 ? 100.f : 3.f;
            int xp = rig_act(r, act_types[i / 2 % 2], 2 * n, x), y = rig_normed_output(r, out, n);
            pz_launch *l = rig_launch(r, PZ_OP_SILU_MUL);
            rig_in(l, "x", xp);
            l->out[0] = y;
            rig_run(r);
            double *want = doubles(m * n), *tolerance = doubles(m * n);
            for (int64_t k = 0; k < m * n; k++) {
                double gate = (double)x[k / n * 2 * n + k % n], up = (double)x[k / n * 2 * n + n + k % n];
                want[k] = gate / (1 + exp(-gate)) * up;
                tolerance[k] = rounding(out, want[k], fabs(want[k]), 6) + 1e-34; /* e^-gate overflows */
            }
            float *got = rig_read(r, y);
            assert_close(got, want, tolerance, m * n);
            check_norms(r, y);
            pz_free(got);
            pz_free(want);
            pz_free(tolerance);
            pz_free(x);
            rig_close(r);
        }
}

static void test_silu_mul_extremes(void **state) {
    (void)state;
    rig *r = rig_open(NULL, 1, 1);
    float x[12] = {NAN, INFINITY, -200, 200, 0, -87.5f, 1, 1, 3, 3, 1, 1};
    int xp = rig_act(r, PZ_DT_F32, 12, x), y = rig_output(r, PZ_DT_F32, 6);
    pz_launch *l = rig_launch(r, PZ_OP_SILU_MUL);
    rig_in(l, "x", xp);
    l->out[0] = y;
    rig_run(r);
    float *got = rig_read(r, y);
    assert_true(isnan(got[0]) && got[1] == INFINITY && got[2] <= 0 && got[2] > -1e-30f && got[3] == 600 && got[4] == 0);
    assert_true(got[5] < 0 && got[5] > -1e-35f);
    pz_free(got);
    rig_close(r);
}

/* Operands that are columns of something wider, as slices are. */
static void test_views(void **state) {
    (void)state;
    uint64_t s = 10;
    for (int i = 0; i < 8; i++) {
        int m = rnd_int(&s, 1, 20);
        int64_t n = rnd_int(&s, 1, 90), col = rnd_int(&s, 0, 50), wide = col + 2 * n + rnd_int(&s, 0, 9);
        rig *r = rig_open(NULL, 2, m);
        float *x = rnd_array(&s, m * wide);
        int xp = rig_act(r, act_types[i % 2], wide, x), y = rig_output(r, PZ_DT_F32, n);
        pz_launch *l = rig_launch(r, PZ_OP_ADD);
        rig_in(l, "a", rig_view(r, xp, col, n));
        rig_in(l, "b", rig_view(r, xp, col + n, n));
        l->out[0] = y;
        rig_run(r);
        float *got = rig_read(r, y);
        for (int64_t k = 0; k < m * n; k++) {
            const float *row = x + k / n * wide + col + k % n;
            assert_true(got[k] == row[0] + row[n]);
        }
        pz_free(got);
        pz_free(x);
        rig_close(r);
    }
}

static void test_embed(void **state) {
    (void)state;
    uint64_t s = 11;
    for (int i = 0; i < 8; i++) {
        int m = rnd_int(&s, 1, 30);
        int64_t n = rnd_int(&s, 1, 200), vocab = rnd_int(&s, 2, 90);
        pz_dtype table = act_types[i % 2], out = act_types[i / 2 % 2];
        rig *r = rig_open(NULL, thread_counts[i % 4], m);
        float *w = rnd_array(&s, vocab * n);
        int32_t ids[30];
        for (int k = 0; k < m; k++) ids[k] = rnd_int(&s, 0, (int)vocab - 1);
        pz_weight *weight = rig_matrix(r, "embed", table, vocab, n, w, PZ_OP_EMBED);
        int ip = rig_i32(r, 0, ids), y = rig_output(r, out, n);
        pz_launch *l = rig_launch(r, PZ_OP_EMBED);
        rig_in(l, "ids", ip);
        rig_in_weight(l, "w", weight);
        l->out[0] = y;
        rig_run(r);
        float *got = rig_read(r, y);
        for (int64_t k = 0; k < m * n; k++) assert_true(got[k] == rig_round(out, w[ids[k / n] * n + k % n]));
        pz_free(got);
        pz_free(w);
        pz_error err;
        ((int32_t *)rig_data(r, ip))[m - 1] = i % 2 ? (int32_t)vocab : -1;
        assert_fails(rig_try(r, &err), PZ_E_RANGE, &err, "token", "outside 0 to");
        rig_close(r);
    }
}

/* One weight that is the embedding and, as a GEMM weight, the head. */
static void test_tied_embedding(void **state) {
    (void)state;
    uint64_t s = 12;
    for (int order = 0; order < 2; order++) {
        rig *r = rig_open(NULL, 1, 1);
        float w[8 * 4], x[4] = {1, 2, 3, 4};
        for (int k = 0; k < 32; k++) w[k] = rnd(&s);
        pz_weight *weight = rig_matrix(r, "tied", PZ_DT_F32, 8, 4, w, order ? PZ_OP_GEMM : PZ_OP_EMBED);
        pz_host_weight host = {.dt = PZ_DT_F32, .rows = 8, .cols = 4};
        pz_error err;
        assert_ok(pz_push(&host.parts, ((pz_host_part){(unsigned char *)w, 8, 16, NULL, 0}), &err), &err);
        assert_ok(r->api->load(r->b, weight, order ? PZ_OP_EMBED : PZ_OP_GEMM, &host, &err), &err);
        pz_vec_free(&host.parts);
        int ids = rig_i32(r, 0, (int32_t[]){5}), xp = rig_act(r, PZ_DT_F32, 4, x);
        int y = rig_output(r, PZ_DT_F32, 4), logits = rig_output(r, PZ_DT_F32, 8);
        pz_launch *l = rig_launch(r, PZ_OP_EMBED);
        rig_in(l, "ids", ids);
        rig_in_weight(l, "w", weight);
        l->out[0] = y;
        l = rig_launch(r, PZ_OP_GEMM);
        rig_in(l, "x", xp);
        rig_in_weight(l, "w", weight);
        l->out[0] = logits;
        l->accum = PZ_ACCUM_F32;
        l->strategy = PZ_ZERO_NONE;
        l->gemm = (pz_gemm_config){.tile_n = 32, .split = 1};
        rig_run(r);
        float *got = rig_data(r, logits);
        assert_memory_equal(rig_data(r, y), w + 20, sizeof x);
        for (int j = 0; j < 8; j++)
            assert_true(fabsf(got[j] - (w[4 * j] + 2 * w[4 * j + 1] + 3 * w[4 * j + 2] + 4 * w[4 * j + 3])) < 1e-5f);
        rig_close(r);
    }
}

/* ---- router ---- */
typedef struct router_case {
    int m, experts, top_k, n_group, topk_group, group_top;
    bool sigmoid, norm, bias;
    double scale;
} router_case;

/* By the definition: rank of each expert among those in kept groups. */
static bool before(double a, int i, double b, int j) {
    return a > b || (a == b && i < j);
}

static void route(const router_case *c, const float *logits, const float *bias, int32_t *ids, double *weights) {
    double score[64], choice[64], group[16], sum = 0, total = 0;
    int size = c->experts / c->n_group;
    for (int e = 0; e < c->experts; e++) total += exp((double)logits[e]);
    for (int e = 0; e < c->experts; e++) {
        score[e] = c->sigmoid ? 1 / (1 + exp(-(double)logits[e])) : exp((double)logits[e]) / total;
        choice[e] = score[e] + (c->bias ? (double)bias[e] : 0);
    }
    for (int g = 0; g < c->n_group; g++) {
        group[g] = 0;
        for (int i = 0; i < size; i++) {
            int rank = 0;
            for (int k = 0; k < size; k++) rank += before(choice[g * size + k], k, choice[g * size + i], i);
            if (rank < c->group_top) group[g] += choice[g * size + i];
        }
    }
    bool kept[64];
    for (int e = 0; e < c->experts; e++) {
        int rank = 0;
        for (int g = 0; g < c->n_group; g++) rank += before(group[g], g, group[e / size], e / size);
        kept[e] = rank < c->topk_group;
    }
    for (int e = 0; e < c->experts; e++) {
        int rank = 0;
        for (int k = 0; k < c->experts; k++) rank += kept[k] && before(choice[k], k, choice[e], e);
        if (kept[e] && rank < c->top_k) {
            ids[rank] = e;
            weights[rank] = score[e];
            sum += score[e];
        }
    }
    for (int t = 0; t < c->top_k; t++) weights[t] = (c->norm ? weights[t] / (sum + 1e-20) : weights[t]) * c->scale;
}

typedef struct router_rig {
    rig *r;
    int ids, weights;
} router_rig;

static router_rig prepare_router(const router_case *c, int threads, pz_dtype dt, float *logits, float *bias) {
    rig *r = rig_open(NULL, threads, c->m);
    int lp = rig_act(r, dt, c->experts, logits);
    router_rig g = {r, rig_output(r, PZ_DT_I32, c->top_k), rig_output(r, PZ_DT_F32, c->top_k)};
    pz_weight *w = c->bias ? rig_vector(r, "bias", PZ_DT_F32, c->experts, bias, PZ_OP_ROUTER) : NULL;
    pz_launch *l = rig_launch(r, PZ_OP_ROUTER);
    rig_in(l, "logits", lp);
    if (w) rig_in_weight(l, "bias", w);
    rig_attr_int(l, "top_k", c->top_k);
    rig_attr_int(l, "n_group", c->n_group);
    rig_attr_int(l, "topk_group", c->topk_group);
    rig_attr_int(l, "group_top", c->group_top);
    rig_attr_int(l, "norm", c->norm);
    rig_attr_float(l, "scale", c->scale);
    rig_attr_str(l, "scoring", c->sigmoid ? "sigmoid" : "softmax");
    l->out[0] = g.ids;
    l->out[1] = g.weights;
    return g;
}

static void test_router(void **state) {
    (void)state;
    uint64_t s = 13;
    for (int i = 0; i < 80; i++) {
        router_case c = {.m = rnd_int(&s, 1, 50), .sigmoid = i % 2, .norm = i / 2 % 2, .bias = i / 4 % 2};
        c.n_group = rnd_int(&s, 1, 8);
        int size = rnd_int(&s, 1, 8);
        c.experts = c.n_group * size;
        c.group_top = rnd_int(&s, 1, size < 2 ? 1 : 2);
        c.topk_group = rnd_int(&s, 1, c.n_group);
        c.top_k = rnd_int(&s, 1, c.topk_group * size < 8 ? c.topk_group * size : 8);
        c.scale = i % 3 ? 2.5 : 1;
        float *logits = rnd_array(&s, c.m * c.experts), *bias = rnd_array(&s, c.experts);
        for (int k = 0; i % 5 == 0 && k < c.m * c.experts; k++) logits[k] = roundf(2 * logits[k]); /* ties */
        for (int k = 0; i % 5 == 0 && k < c.experts; k++) bias[k] = 0;
        router_rig g = prepare_router(&c, thread_counts[i % 4], act_types[i % 2], logits, bias);
        rig_run(g.r);
        for (int row = 0; row < c.m; row++) {
            int32_t ids[8];
            double want[8], tolerance[8];
            route(&c, logits + row * c.experts, bias, ids, want);
            assert_memory_equal((int32_t *)rig_data(g.r, g.ids) + row * c.top_k, ids, (size_t)c.top_k * sizeof *ids);
            for (int t = 0; t < c.top_k; t++) tolerance[t] = want[t] * 1e-5;
            assert_close((float *)rig_data(g.r, g.weights) + row * c.top_k, want, tolerance, c.top_k);
        }
        pz_free(logits);
        pz_free(bias);
        rig_close(g.r);
    }
}

/* Whatever the logits are, the ids are different experts; a NaN is chosen and shows. */
static void test_router_strange_logits(void **state) {
    (void)state;
    router_case c = {
        .m = 5, .experts = 8, .top_k = 4, .n_group = 4, .topk_group = 2, .group_top = 2, .norm = true, .scale = 1};
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        c.sigmoid = sigmoid;
        float logits[40] = {0};
        for (int e = 0; e < 8; e++) {
            logits[e] = NAN;
            logits[8 + e] = -INFINITY;
            logits[16 + e] = INFINITY;
            logits[24 + e] = -1e30f;
        }
        logits[32 + 5] = NAN;
        router_rig g = prepare_router(&c, 1, PZ_DT_F32, logits, NULL);
        rig_run(g.r);
        const int32_t *ids = rig_data(g.r, g.ids);
        const float *w = rig_data(g.r, g.weights);
        for (int i = 0; i < 20; i++) {
            assert_in_range(ids[i], 0, 7);
            for (int k = i / 4 * 4; k < i; k++) assert_int_not_equal(ids[i], ids[k]);
        }
        for (int t = 0; t < 4; t++) assert_true(isnan(w[t]));
        bool shows = false;
        for (int t = 16; t < 20; t++) shows |= isnan(w[t]) != 0;
        assert_true(shows);
        rig_close(g.r);
    }
}

static void refuse_router(router_case c, const char *text) {
    pz_error err;
    float logits[16] = {0};
    router_rig g = prepare_router(&c, 1, PZ_DT_F32, logits, NULL);
    assert_fails(rig_try(g.r, &err), PZ_E_TYPE, &err, "router", text);
    rig_close(g.r);
}

static void test_router_refusals(void **state) {
    (void)state;
    router_case c = {.m = 1, .experts = 8, .top_k = 4, .n_group = 2, .topk_group = 1, .group_top = 2};
    c.n_group = 3;
    refuse_router(c, "groups");
    c.n_group = 2;
    c.top_k = 5;
    refuse_router(c, "top 5 of 8 experts");
    c.top_k = 4;
    c.group_top = 5;
    refuse_router(c, "groups");
    c.group_top = 2;
    c.topk_group = 3;
    refuse_router(c, "best 3 of 2");
    c.topk_group = 1;
    pz_error err;
    float logits[16] = {0};
    router_rig g = prepare_router(&c, 1, PZ_DT_F32, logits, NULL);
    rig_attr_str(&g.r->plan.launches.at[0], "scoring", "tanh");
    assert_fails(rig_try(g.r, &err), PZ_E_UNSUPPORTED, &err, "scoring tanh");
    rig_close(g.r);
}

/* ---- experts ---- */
typedef struct experts_case {
    int m, experts, top_k;
    int first, total; /* the op's attributes */
    int64_t hidden, inner;
    pz_dtype x, weight, out;
    int threads;
    const char *isa;
    uint64_t seed;
} experts_case;

typedef struct experts_rig {
    rig *r;
    float *x, *gate_up, *down, *weights;
    int32_t *ids;
    int xp, ip, wp, y;
} experts_rig;

static experts_rig prepare_experts(experts_case c) {
    uint64_t s = c.seed, sx = c.seed + 1;
    experts_rig g = {.r = rig_open(c.isa, c.threads, c.m)};
    g.x = rnd_array(&sx, c.m * c.hidden);
    g.gate_up = rnd_array(&s, c.experts * 2 * c.inner * c.hidden);
    g.down = rnd_array(&s, c.experts * c.inner * c.hidden);
    g.weights = rnd_array(&s, c.m * c.top_k);
    g.ids = pz_calloc((size_t)(c.m * c.top_k), sizeof *g.ids);
    assert_non_null(g.ids);
    int total = c.total ? c.total : c.experts;
    for (int i = 0; i < c.m * c.top_k; i++) /* distinct in a row; the last expert gets no row */
        g.ids[i] = (int32_t)((i / c.top_k * 7 + i % c.top_k * 3 + (int)(c.seed % 5)) % (total > 1 ? total - 1 : 1));
    g.xp = rig_act(g.r, c.x, c.hidden, g.x);
    g.ip = rig_i32(g.r, c.top_k, g.ids);
    g.wp = rig_act(g.r, PZ_DT_F32, c.top_k, g.weights);
    g.y = rig_output(g.r, c.out, c.hidden);
    pz_weight *up = rig_weight(g.r, "gate_up", c.weight, 3, (int64_t[]){c.experts, 2 * c.inner, c.hidden}, g.gate_up,
                               PZ_OP_MOE_EXPERTS);
    pz_weight *down =
        rig_weight(g.r, "down", c.weight, 3, (int64_t[]){c.experts, c.hidden, c.inner}, g.down, PZ_OP_MOE_EXPERTS);
    pz_launch *l = rig_launch(g.r, PZ_OP_MOE_EXPERTS);
    rig_in(l, "x", g.xp);
    rig_in(l, "ids", g.ip);
    rig_in(l, "weights", g.wp);
    rig_in_weight(l, "gate_up", up);
    rig_in_weight(l, "down", down);
    rig_attr_int(l, "first", c.first);
    rig_attr_int(l, "total", c.total);
    l->out[0] = g.y;
    return g;
}

static void finish_experts(experts_rig *g) {
    rig_close(g->r);
    pz_free(g->x);
    pz_free(g->gate_up);
    pz_free(g->down);
    pz_free(g->weights);
    pz_free(g->ids);
}

static double dot(const float *a, const float *b, int64_t n, double *size) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
        *size += fabs((double)a[i] * (double)b[i]);
    }
    return sum;
}

static void check_experts(experts_case c) {
    experts_rig g = prepare_experts(c);
    rig_run(g.r);
    float *got = rig_read(g.r, g.y), *middle = rnd_array(&c.seed, c.inner);
    double *want = doubles(c.m * c.hidden), *tolerance = doubles(c.m * c.hidden);
    for (int64_t pair = 0; pair < c.m * c.top_k; pair++) {
        int64_t row = pair / c.top_k, e = g.ids[pair] - c.first;
        if (e < 0 || e >= c.experts) continue;
        double slack = 0; /* relative, of the middle */
        for (int64_t i = 0; i < c.inner; i++) {
            double size_gate = 0, size_up = 0;
            const float *w = g.gate_up + (e * 2 * c.inner + i) * c.hidden;
            double gate = dot(g.x + row * c.hidden, w, c.hidden, &size_gate);
            double up = dot(g.x + row * c.hidden, w + c.inner * c.hidden, c.hidden, &size_up);
            double v = gate / (1 + exp(-gate)) * up;
            double error =
                (size_gate * fabs(up) * 1.1 + size_up * fabs(gate)) * 0x1p-23 * (double)c.hidden + fabs(v) * 1e-6;
            if (c.x == PZ_DT_BF16) error += fabs(v) * 0x1p-8; /* may round to a neighbour */
            middle[i] = rig_round(c.x, (float)v);
            if (error > slack) slack = error;
        }
        for (int64_t j = 0; j < c.hidden; j++) {
            double size = 0, weight = (double)g.weights[pair], norm = 0;
            const float *w = g.down + (e * c.hidden + j) * c.inner;
            want[row * c.hidden + j] += weight * dot(middle, w, c.inner, &size);
            for (int64_t i = 0; i < c.inner; i++) norm += fabs((double)w[i]);
            tolerance[row * c.hidden + j] += fabs(weight) * (slack * norm + size * 0x1p-23 * (double)c.inner);
        }
    }
    for (int64_t i = 0; i < c.m * c.hidden; i++) tolerance[i] += rounding(c.out, want[i], 1, 1);
    assert_close(got, want, tolerance, c.m * c.hidden);
    pz_free(got);
    pz_free(middle);
    pz_free(want);
    pz_free(tolerance);
    finish_experts(&g);
}

static void test_experts(void **state) {
    (void)state;
    static const pz_dtype weights[] = {PZ_DT_BF16, PZ_DT_F32, PZ_DT_MXFP4};
    uint64_t s = 14;
    for (const char *const *isa = rig_isas(); *isa; isa++)
        for (int i = 0; i < 24; i++) {
            experts_case c = {.isa = *isa, .seed = s, .weight = weights[i % 3], .x = act_types[i % 2]};
            c.out = act_types[i / 2 % 2];
            c.m = rnd_int(&s, 1, i % 4 ? 9 : 70);
            c.experts = rnd_int(&s, 2, 6);
            c.top_k = rnd_int(&s, 1, c.experts - 1 < 3 ? c.experts - 1 : 3);
            c.hidden = rnd_int(&s, 1, 90);
            c.inner = rnd_int(&s, 1, 90);
            if (c.weight == PZ_DT_MXFP4) {
                c.hidden = (c.hidden + 31) / 32 * 32;
                c.inner = (c.inner + 31) / 32 * 32;
            }
            c.threads = thread_counts[i % 4];
            check_experts(c);
        }
}

/* A rank that holds some of the experts: rows without any of them, with one, with all. */
static void test_experts_in_part(void **state) {
    (void)state;
    static const pz_dtype weights[] = {PZ_DT_BF16, PZ_DT_F32, PZ_DT_MXFP4};
    uint64_t s = 15;
    for (int i = 0; i < 48; i++) {
        experts_case c = {.seed = s, .weight = weights[i % 3], .x = act_types[i % 2], .out = PZ_DT_F32};
        c.m = rnd_int(&s, 1, i % 4 ? 9 : 70);
        c.experts = rnd_int(&s, 1, 4);
        c.total = rnd_int(&s, c.experts, 8);
        c.first = rnd_int(&s, 0, c.total - c.experts);
        c.top_k = rnd_int(&s, 1, c.total > 3 ? 3 : c.total);
        c.hidden = c.inner = i % 3 == 2 ? 64 : 41;
        c.threads = thread_counts[i % 4];
        check_experts(c);
    }
    /* No expert of any row: exact zeros, not what lay in memory. */
    experts_case none = {.m = 3, .experts = 1, .total = 4, .first = 3, .top_k = 2, .hidden = 40, .inner = 33};
    none.x = none.weight = none.out = PZ_DT_F32;
    none.threads = 2;
    experts_rig g = prepare_experts(none); /* the last expert gets no row */
    rig_run(g.r);
    for (int i = 0; i < 3 * 40; i++) assert_true(((float *)rig_data(g.r, g.y))[i] == 0);
    finish_experts(&g);
}

/* A row's bits depend neither on the rows beside it nor on the threads. */
static void test_experts_batch_mates(void **state) {
    (void)state;
    experts_case c = {.m = 33, .experts = 5, .top_k = 2, .hidden = 96, .inner = 64, .seed = 4, .threads = 3};
    c.x = c.out = PZ_DT_BF16;
    c.weight = PZ_DT_MXFP4;
    experts_rig all = prepare_experts(c);
    rig_run(all.r);
    c.m = 1;
    for (int row = 0; row < 33; row += 4) {
        c.threads = 1 + row % 3;
        experts_rig one = prepare_experts(c);
        memcpy(rig_data(one.r, one.xp), (uint16_t *)rig_data(all.r, all.xp) + row * 96, 96 * 2);
        memcpy(rig_data(one.r, one.ip), (int32_t *)rig_data(all.r, all.ip) + row * 2, 8);
        memcpy(rig_data(one.r, one.wp), (float *)rig_data(all.r, all.wp) + row * 2, 8);
        rig_run(one.r);
        assert_memory_equal(rig_data(one.r, one.y), (uint16_t *)rig_data(all.r, all.y) + row * 96, 96 * 2);
        finish_experts(&one);
    }
    finish_experts(&all);
}

/* One hidden and one inner column: silu(128) * 2^-7 is 1, so the output is the sum of the weights in f32, taken in the
 * order of the ids, which here is not that of the experts. */
static void test_experts_sum_order(void **state) {
    (void)state;
    rig *r = rig_open(NULL, 2, 2);
    float x[2] = {1, 1}, gate_up[6] = {128, 0x1p-7f, 128, 0x1p-7f, 128, 0x1p-7f}, down[3] = {1, 1, 1};
    float weights[6] = {0x1p24f, 1, -0x1p24f, 0x1p24f, -0x1p24f, 1};
    int xp = rig_act(r, PZ_DT_F32, 1, x), ip = rig_i32(r, 3, (int32_t[]){2, 0, 1, 1, 2, 0});
    int wp = rig_act(r, PZ_DT_F32, 3, weights), y = rig_output(r, PZ_DT_F32, 1);
    pz_weight *up = rig_weight(r, "gate_up", PZ_DT_F32, 3, (int64_t[]){3, 2, 1}, gate_up, PZ_OP_MOE_EXPERTS);
    pz_weight *w = rig_weight(r, "down", PZ_DT_F32, 3, (int64_t[]){3, 1, 1}, down, PZ_OP_MOE_EXPERTS);
    pz_launch *l = rig_launch(r, PZ_OP_MOE_EXPERTS);
    rig_in(l, "x", xp);
    rig_in(l, "ids", ip);
    rig_in(l, "weights", wp);
    rig_in_weight(l, "gate_up", up);
    rig_in_weight(l, "down", w);
    l->out[0] = y;
    rig_run(r);
    const float *got = rig_data(r, y);
    assert_true(got[0] == 0 && got[1] == 1);
    rig_close(r);
}

/* The rows between the two projections have the dtype of x: with a unit matrix for down they can be seen. */
static void test_experts_round_between(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        experts_case c = {.m = 3, .experts = 2, .top_k = 1, .hidden = 40, .inner = 40, .threads = 1, .seed = 3};
        c.x = act_types[i];
        c.weight = c.out = PZ_DT_F32;
        experts_rig g = prepare_experts(c);
        memset(g.down, 0, 2 * 40 * 40 * sizeof *g.down);
        for (int k = 0; k < 40; k++) g.down[k * 40 + k] = g.down[1600 + k * 40 + k] = 1;
        pz_weight *unit = rig_weight(g.r, "unit", PZ_DT_F32, 3, (int64_t[]){2, 40, 40}, g.down, PZ_OP_MOE_EXPERTS);
        rig_in_weight(&g.r->plan.launches.at[0], "down", unit);
        for (int k = 0; k < 3; k++) ((float *)rig_data(g.r, g.wp))[k] = 1;
        rig_run(g.r);
        const float *y = rig_data(g.r, g.y);
        int rounded = 0;
        for (int k = 0; k < 120; k++) rounded += y[k] == rig_round(PZ_DT_BF16, y[k]);
        assert_true(c.x == PZ_DT_BF16 ? rounded == 120 : rounded < 60);
        finish_experts(&g);
    }
}

static void test_experts_refusals(void **state) {
    (void)state;
    pz_error err;
    experts_case c = {.m = 2, .experts = 3, .top_k = 2, .hidden = 33, .inner = 20, .threads = 1};
    c.x = c.weight = c.out = PZ_DT_F32;
    experts_rig g = prepare_experts(c);
    pz_launch *l = &g.r->plan.launches.at[0];
    ((int32_t *)rig_data(g.r, g.ip))[3] = 3;
    assert_fails(rig_try(g.r, &err), PZ_E_RANGE, &err, "row 1: expert 3 is outside 0 to 2");
    ((int32_t *)rig_data(g.r, g.ip))[3] = -1;
    assert_fails(rig_try(g.r, &err), PZ_E_RANGE, &err, "expert -1");
    rig_attr_int(l, "first", 3);
    rig_attr_int(l, "total", 5);
    assert_fails(rig_try(g.r, &err), PZ_E_TYPE, &err, "3 experts from 3 on of 5");
    rig_attr_int(l, "first", 2);
    ((int32_t *)rig_data(g.r, g.ip))[3] = 5;
    assert_fails(rig_try(g.r, &err), PZ_E_RANGE, &err, "row 1: expert 5 is outside 0 to 4");
    rig_attr_int(l, "first", 0);
    rig_attr_int(l, "total", 0);
    rig_in_weight(l, "down", l->in[pz_op_operand_index(l->op, "gate_up")].weight);
    assert_fails(rig_try(g.r, &err), PZ_E_TYPE, &err, "belong together");
    rig_in_weight(l, "down", NULL);
    assert_fails(rig_try(g.r, &err), PZ_E_INVAL, &err, "not loaded");
    finish_experts(&g);
}

/* ---- greedy choice ---- */
/* The largest of each row that is asked for, the lowest of equals; NaN never; -1 where nothing is finite. */
static void test_argmax(void **state) {
    (void)state;
    pz_error err;
    float x[7 * 4] = {1,         3,         3,         2,      NAN,  -5,       NAN,  -4,  NAN,      NAN,
                      NAN,       NAN,       -INFINITY, 2,      7,    INFINITY, NAN,  NAN, INFINITY, NAN,
                      -INFINITY, -INFINITY, -INFINITY, -1e38f, -0.f, 0,        -0.f, 0};
    static const int rows[] = {6, 0, 1, 2, 3, 4, 5, 0};
    static const int32_t want[] = {0, 1, 3, -1, 3, -1, 3, 1};
    int32_t ids[8];
    rig *r = rig_open(NULL, 2, 7);
    int p = rig_act(r, PZ_DT_F32, 4, x), ids_place = rig_i32(r, 0, (int32_t[7]){0});
    pz_run_args args = {.arena = r->arena};
    assert_ok(r->api->argmax(r->b, &r->plan, &args, p, rows, 8, ids, &err), &err);
    for (int i = 0; i < 8; i++) assert_int_equal(ids[i], want[i]);
    assert_fails(r->api->argmax(r->b, &r->plan, &args, p, (int[]){7}, 1, ids, &err), PZ_E_RANGE, &err, "row 7");
    assert_fails(r->api->argmax(r->b, &r->plan, &args, ids_place, rows, 1, ids, &err), PZ_E_INVAL, &err,
                 "no activation");
    pz_alloc_fail_after(0);
    pz_status st = r->api->argmax(r->b, &r->plan, &args, p, rows, 1, ids, &err);
    pz_alloc_fail_after(-1);
    assert_int_equal(st, PZ_E_NOMEM);
    rig_close(r);
}

/* ---- ops that are no kernels, broken launches ---- */
static void test_no_kernel(void **state) {
    (void)state;
    static const pz_op ops[] = {PZ_OP_SLICE, PZ_OP_BUFFER, PZ_OP_CALL};
    pz_error err;
    for (int i = 0; i < 3; i++) {
        rig *r = rig_open(NULL, 1, 1);
        rig_launch(r, ops[i]);
        assert_fails(rig_try(r, &err), PZ_E_UNSUPPORTED, &err, pz_op_text(ops[i]), "no kernel");
        r->plan.launches.at[0].op = PZ_OP_COUNT;
        assert_fails(rig_try(r, &err), PZ_E_INTERNAL, &err, "unknown op");
        r->plan.m = 0;
        assert_fails(rig_try(r, &err), PZ_E_INVAL, &err, "0 rows");
        rig_close(r);
    }
}

static void test_row_kernel_refusals(void **state) {
    (void)state;
    pz_error err;
    rig *r = rig_open(NULL, 1, 2);
    float x[16] = {0}, w[8] = {0};
    int a = rig_act(r, PZ_DT_F32, 8, x), b = rig_act(r, PZ_DT_F32, 4, x), ids = rig_place(r, PZ_DT_I32, 8);
    pz_weight *weight = rig_vector(r, "w", PZ_DT_F32, 8, w, PZ_OP_RMS_NORM);
    pz_launch *l = rig_launch(r, PZ_OP_ADD_RMS_NORM);
    rig_in(l, "x", a);
    assert_fails(rig_try(r, &err), PZ_E_INTERNAL, &err, "result 0 has no place");
    l->out[0] = ids;
    assert_fails(rig_try(r, &err), PZ_E_UNSUPPORTED, &err, "result 0 is i32");
    l->out[0] = rig_output(r, PZ_DT_F32, 8);
    assert_fails(rig_try(r, &err), PZ_E_INVAL, &err, "(w) is not loaded");
    rig_in_weight(l, "w", weight);
    rig_in(l, "res", b);
    assert_fails(rig_try(r, &err), PZ_E_TYPE, &err, "operand res has 4 columns, expected 8");
    rig_in(l, "res", a);
    l->out[1] = rig_output(r, PZ_DT_F32, 4);
    assert_fails(rig_try(r, &err), PZ_E_TYPE, &err, "result 1 has 4 columns, expected 8");
    l->out[1] = rig_output(r, PZ_DT_F32, 8);
    l->fill = 2;
    assert_fails(rig_try(r, &err), PZ_E_INTERNAL, &err, "no fill 2");
    l->fill = -1;
    float w4[4] = {0};
    rig_in_weight(l, "w", rig_vector(r, "short", PZ_DT_F32, 4, w4, PZ_OP_RMS_NORM));
    assert_fails(rig_try(r, &err), PZ_E_TYPE, &err, "weight short has 4 values, expected 8");
    rig_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_rider),
        cmocka_unit_test(test_norm_keeps_nan),
        cmocka_unit_test(test_add_and_all_reduce),
        cmocka_unit_test(test_silu_mul),
        cmocka_unit_test(test_silu_mul_extremes),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_tied_embedding),
        cmocka_unit_test(test_router),
        cmocka_unit_test(test_router_strange_logits),
        cmocka_unit_test(test_router_refusals),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_experts_in_part),
        cmocka_unit_test(test_experts_batch_mates),
        cmocka_unit_test(test_experts_sum_order),
        cmocka_unit_test(test_experts_round_between),
        cmocka_unit_test(test_experts_refusals),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_no_kernel),
        cmocka_unit_test(test_row_kernel_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
