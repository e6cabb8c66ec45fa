/* SPDX-License-Identifier: Apache-2.0 */
/* Every op on the GPU against the CPU backend, on the same random bytes: results within what another order of f32 sums
 * explains, choices exactly; the same bits from run to run, alone or in a batch, and beside rows that hold NaN. */
#include "lab.h"
#include "support_twin.h"

static const pz_dtype act_types[] = {PZ_DT_F32, PZ_DT_BF16, PZ_DT_FIXED};
static const pz_dtype out_types[] = {PZ_DT_F32, PZ_DT_BF16};
static const int some_rows[] = {1, 2, 3, 5, 8, 17, 33, 64, 130};
enum { N_ROWS = sizeof some_rows / sizeof *some_rows };

/* How many of n cases are run, and the rows of one. */
static int cases_of(int n) {
    return lab_small() ? (n + 5) / 6 : n;
}
static int rows_of(int i) {
    return some_rows[i % (lab_small() ? 5 : N_ROWS)];
}

/* Runs one case with all that holds for every op. */
static void check_case(twin_build build, void (*compare)(twin *t, const void *arg), const void *arg, int m) {
    twin *t = build(arg, m);
    twin_run_cpu(t);
    twin_run_gpu(t, 3);
    if (compare)
        compare(t, arg);
    else
        twin_compare(t);
    if (m > 1) twin_check_alone(t, build, arg);
    if (m > 2) twin_check_isolated(t, build, arg);
    twin_close(t);
}

/* ---- row by row: adds, silu_mul, norms ---- */
typedef struct row_case {
    pz_op op;
    int64_t cols, shift; /* shift: operands are columns [shift, ...) of wider places */
    pz_dtype x, res, out, weight;
    uint64_t seed;
} row_case;

static int operand(twin *t, const row_case *c, pz_dtype dt, int64_t cols, uint64_t seed) {
    int p = twin_act(t, dt, cols + c->shift + c->shift / 2, seed);
    return c->shift ? rig_view(t->r, p, c->shift, cols) : p;
}

static twin *build_row(const void *arg, int m) {
    const row_case *c = arg;
    twin *t = twin_open(m, 5 * (c->cols + 2 * c->shift) + 2);
    uint64_t s = c->seed;
    bool second = pz_op_operand_index(c->op, "b") >= 0, residual = pz_op_operand_index(c->op, "res") >= 0;
    bool norm = pz_op_operand_index(c->op, "w") >= 0, silu = c->op == PZ_OP_SILU_MUL;
    int x = operand(t, c, c->x, silu ? 2 * c->cols : c->cols, s + 1);
    int y = norm || silu ? rig_normed_output(t->r, c->out, c->cols) : rig_output(t->r, c->out, c->cols), sum = -1;
    int other = second || residual ? operand(t, c, c->res, c->cols, s + 2) : -1;
    if (residual) sum = rig_output(t->r, c->out, c->cols);
    float *w = rnd_array(&s, c->cols);
    pz_weight *weight = norm ? rig_vector(t->r, "w", c->weight, c->cols, w, c->op) : NULL;
    pz_free(w);
    pz_launch *l = rig_launch(t->r, c->op);
    rig_in(l, second ? "a" : "x", x);
    if (other >= 0) rig_in(l, second ? "b" : "res", other);
    if (norm) {
        rig_in_weight(l, "w", weight);
        rig_attr_float(l, "eps", 1e-5);
    }
    l->out[0] = y;
    l->out[1] = sum;
    if (norm || silu) twin_slack(t, y, 1e-6);
    return t;
}

/* whole: the kernel takes rows of whole 16 bytes alone, and results of one dtype. */
static void check_rows(pz_op op, bool whole) {
    uint64_t s = (uint64_t)op + 40;
    for (int i = 0; i < cases_of(36); i++) {
        row_case c = {.op = op, .seed = s, .x = act_types[i % 3], .out = out_types[i / 3 % 2]};
        c.res = act_types[i / 2 % 2];
        c.weight = out_types[i / 6 % 2];
        c.cols = i % 6 == 5 ? 7168 : rnd_int(&s, 1, i % 2 ? 40 : 1500);
        c.shift = i % 4 == 3 ? rnd_int(&s, 1, 9) : i % 4 == 2 ? 16 : 0;
        if (whole) {
            c.cols = (c.cols + 7) / 8 * 8;
            c.shift = i % 4 == 2 ? 16 : 0;
            c.res = c.out;
        }
        check_case(build_row, NULL, &c, rows_of(i));
    }
}

static void test_add(void **state) {
    (void)state;
    check_rows(PZ_OP_ADD, false);
}
static void test_all_reduce(void **state) {
    (void)state;
    check_rows(PZ_OP_ALL_REDUCE, false);
}
static void test_silu_mul(void **state) {
    (void)state;
    check_rows(PZ_OP_SILU_MUL, false);
}
static void test_latent_norm(void **state) {
    (void)state;
    check_rows(PZ_OP_LATENT_RMS_NORM, false);
}
static void test_rms_norm(void **state) {
    (void)state;
    check_rows(PZ_OP_RMS_NORM, true);
}
static void test_add_rms_norm(void **state) {
    (void)state;
    check_rows(PZ_OP_ADD_RMS_NORM, true);
}

/* Values at the edges of f32, all rows of which must come out as on the CPU. */
static void test_edges(void **state) {
    (void)state;
    static const float edge[] = {0,     -0.f,    1e-40f, -1e-40f, 1e-38f, 3e38f,     -3e38f, INFINITY,
                                 1e19f, -1e-23f, 88.f,   -88.f,   -200.f, -INFINITY, NAN,    1.f};
    static const pz_op ops[] = {PZ_OP_ALL_REDUCE, PZ_OP_SILU_MUL, PZ_OP_LATENT_RMS_NORM};
    for (int i = 0; i < 3; i++) {
        row_case c = {.op = ops[i], .cols = 24, .x = PZ_DT_F32, .out = PZ_DT_F32, .weight = PZ_DT_F32, .seed = 3};
        twin *t = build_row(&c, 17);
        pz_launch *l = &t->r->plan.launches.at[0];
        float *x = rig_data(t->r, l->in[pz_op_operand_index(l->op, "x")].place);
        int64_t cols = c.op == PZ_OP_SILU_MUL ? 48 : 24;
        for (int row = 0; row < 17; row++)
            for (int k = 0; k < cols; k++)
                if (row == 16 || k % 5 == 0) x[row * cols + k] = row == 16 ? 0.f : edge[row];
        twin_slack(t, l->out[0], 1e-6);
        twin_check(t);
        twin_close(t);
    }
}

/* ---- embed ---- */
typedef struct embed_case {
    int64_t vocab, cols;
    pz_dtype out;
    uint64_t seed;
} embed_case;

static twin *build_embed(const void *arg, int m) {
    const embed_case *c = arg;
    twin *t = twin_open(m, c->cols + 1);
    uint64_t s = c->seed;
    float *w = rnd_array(&s, c->vocab * c->cols);
    int ids = rig_place(t->r, PZ_DT_I32, 0), y = rig_output(t->r, c->out, c->cols);
    for (int i = 0; i < m; i++) ((int32_t *)rig_data(t->r, ids))[i] = (int32_t)((i * 31 + 5) % c->vocab);
    pz_weight *weight = rig_matrix(t->r, "table", PZ_DT_BF16, c->vocab, c->cols, w, PZ_OP_EMBED);
    pz_free(w);
    pz_launch *l = rig_launch(t->r, PZ_OP_EMBED);
    rig_in(l, "ids", ids);
    rig_in_weight(l, "w", weight);
    l->out[0] = y;
    return t;
}

static void test_embed(void **state) {
    (void)state;
    uint64_t s = 6;
    for (int i = 0; i < cases_of(16); i++) {
        embed_case c = {.out = out_types[i % 2], .seed = s};
        c.vocab = rnd_int(&s, 2, 300);
        c.cols = i % 4 ? rnd_int(&s, 1, 700) : 7168;
        check_case(build_embed, NULL, &c, rows_of(i));
    }
}

/* ---- latent attention ---- */
typedef struct mla_case {
    int64_t heads, latent, rope, nope, v;
    int page_tokens, limit; /* positions are below limit */
    pz_dtype x, cache, out;
    uint64_t seed;
} mla_case;

static pz_weight *frequencies(twin *t, int64_t rope, pz_op use) {
    float *f = pz_calloc((size_t)rope, sizeof *f);
    assert_non_null(f);
    for (int64_t i = 0; i < rope / 2; i++) f[i] = (float)pow(50000, -2.0 * (double)i / (double)rope);
    pz_weight *w = rig_vector(t->r, "freq", PZ_DT_F32, rope / 2, f, use);
    pz_free(f);
    return w;
}

static twin *build_cache_write(const void *arg, int m) {
    const mla_case *c = arg;
    twin *t = twin_open(m, c->latent + c->rope + 3);
    uint64_t s = c->seed;
    twin_cache(t, c->cache, c->page_tokens, (int)(c->latent + c->rope), s + 1);
    int kv = twin_act(t, c->x, c->latent + c->rope, s + 2), pos, seq;
    twin_rows(t, c->limit, s + 3, &pos, &seq);
    for (int i = 0; i < m; i++) ((int32_t *)rig_data(t->r, pos))[i] = i / TWIN_SEQUENCES; /* no two rows in one place */
    float *w = rnd_array(&s, c->latent);
    pz_weight *norm = rig_vector(t->r, "norm", PZ_DT_BF16, c->latent, w, PZ_OP_MLA_CACHE_WRITE);
    pz_free(w);
    pz_weight *freq = frequencies(t, c->rope, PZ_OP_MLA_CACHE_WRITE);
    pz_launch *l = rig_launch(t->r, PZ_OP_MLA_CACHE_WRITE);
    rig_in(l, "kv", kv);
    rig_in(l, "pos", pos);
    rig_in(l, "seq", seq);
    rig_in_weight(l, "w", norm);
    rig_in_weight(l, "inv_freq", freq);
    rig_attr_int(l, "layer", TWIN_LAYER);
    rig_attr_float(l, "eps", 1e-6);
    rig_attr_float(l, "rope_scale", 1.25);
    return t;
}

static int64_t entry_offset(const twin *t, int seq, int pos) {
    const pz_cache *c = &t->r->cache;
    int64_t page = t->table[seq * TWIN_STRIDE + pos / c->page_tokens];
    return TWIN_LAYER * c->layer_stride +
           (page * c->page_tokens + pos % c->page_tokens) * c->entry * (pz_dtype_bits(c->dt) / 8);
}

/* What a row writes has the same bits when it is alone, and a row with NaN spoils no other's entry. */
static void check_entries(const twin *all, const mla_case *c) {
    int m = all->r->plan.m, bad = m / 2;
    const pz_launch *l = &all->r->plan.launches.at[0];
    int kv = l->in[pz_op_operand_index(l->op, "kv")].place, pos = l->in[pz_op_operand_index(l->op, "pos")].place;
    int seq = l->in[pz_op_operand_index(l->op, "seq")].place;
    const int32_t *p = (int32_t *)(void *)(all->image + all->r->plan.places.at[pos].offset);
    const int32_t *q = (int32_t *)(void *)(all->image + all->r->plan.places.at[seq].offset);
    size_t bytes = (size_t)(all->r->cache.entry * (pz_dtype_bits(all->r->cache.dt) / 8));
    twin *one = build_cache_write(c, 1), *spoilt = build_cache_write(c, m);
    if (c->x == PZ_DT_F32) ((float *)rig_data(spoilt->r, kv))[bad * (c->latent + c->rope)] = NAN;
    twin_run_cpu(spoilt);
    twin_run_gpu(spoilt, 2);
    twin_compare(spoilt);
    for (int row = 0; row < m; row++) {
        if (q[row] < 0) continue;
        int64_t at = entry_offset(all, q[row], p[row]);
        if (row != bad) assert_memory_equal(spoilt->cache_got + at, all->cache_got + at, bytes);
        if (row % 7 || c->x == PZ_DT_FIXED) continue; /* a FIXED row's scale is a place of its own */
        size_t width = (size_t)(all->r->plan.places.at[kv].bytes / m);
        memcpy(rig_data(one->r, kv), all->image + all->r->plan.places.at[kv].offset + (size_t)row * width, width);
        ((int32_t *)rig_data(one->r, pos))[0] = p[row];
        ((int32_t *)rig_data(one->r, seq))[0] = q[row];
        memcpy(one->r->cache.data, all->cache_image, (size_t)all->cache_bytes);
        twin_run_cpu(one);
        twin_run_gpu(one, 1);
        assert_memory_equal(one->cache_got + at, all->cache_got + at, bytes);
    }
    twin_close(one);
    twin_close(spoilt);
}

static mla_case random_mla(uint64_t *s, int i) {
    mla_case c = {.seed = *s, .x = act_types[i % 3], .cache = out_types[i % 2], .out = out_types[i / 2 % 2]};
    bool real = i % 3 == 0;
    c.page_tokens = i % 2 ? 16 : rnd_int(s, 3, 13);
    c.heads = real ? 16 : rnd_int(s, 1, 9);
    c.latent = real ? 512 : 8 * rnd_int(s, 1, i % 4 == 1 ? 128 : 16);
    c.rope = real ? 64 : 2 * rnd_int(s, 1, 24);
    c.nope = real ? 128 : rnd_int(s, 1, 150);
    c.v = real ? 128 : rnd_int(s, 1, 150);
    c.limit = TWIN_STRIDE * c.page_tokens;
    return c;
}

static void test_cache_write(void **state) {
    (void)state;
    uint64_t s = 7;
    for (int i = 0; i < cases_of(20); i++) {
        mla_case c = random_mla(&s, i);
        if (i % 5 == 4) c.latent = rnd_int(&s, 1, 90); /* odd ones too */
        int most = c.limit * TWIN_SEQUENCES, m = rows_of(i);
        twin *t = build_cache_write(&c, m < most ? m : most);
        twin_check(t);
        check_entries(t, &c);
        twin_close(t);
    }
}

static void give_kv_b(twin *t, pz_launch *l, const mla_case *c, const pz_weight *kv_b) {
    (void)t;
    rig_in_weight(l, "kv_b", kv_b);
    rig_attr_int(l, "heads", c->heads);
    rig_attr_int(l, "nope", c->nope);
    rig_attr_int(l, "v", c->v);
}

static pz_weight *make_kv_b(twin *t, const mla_case *c, pz_op use) {
    uint64_t s = c->seed + 5;
    int64_t rows = c->heads * (c->nope + c->v);
    float *w = rnd_array(&s, rows * c->latent);
    pz_weight *kv_b = rig_matrix(t->r, "kv_b", PZ_DT_BF16, rows, c->latent, w, use);
    pz_free(w);
    return kv_b;
}

static twin *build_absorb_q(const void *arg, int m) {
    const mla_case *c = arg;
    twin *t = twin_open(m, c->heads * (c->nope + c->latent + 2 * c->rope) + 3);
    int q = twin_act(t, c->x, c->heads * (c->nope + c->rope), c->seed + 1), pos, seq;
    twin_rows(t, c->limit, c->seed + 2, &pos, &seq);
    int y = rig_output(t->r, c->out, c->heads * (c->latent + c->rope));
    pz_weight *kv_b = make_kv_b(t, c, PZ_OP_MLA_ABSORB_Q), *freq = frequencies(t, c->rope, PZ_OP_MLA_ABSORB_Q);
    pz_launch *l = rig_launch(t->r, PZ_OP_MLA_ABSORB_Q);
    give_kv_b(t, l, c, kv_b);
    rig_in(l, "q", q);
    rig_in(l, "pos", pos);
    rig_in_weight(l, "inv_freq", freq);
    rig_attr_int(l, "rope", c->rope);
    rig_attr_float(l, "rope_scale", 0.75);
    l->out[0] = y;
    twin_slack(t, y, twin_sum(c->nope));
    return t;
}

static twin *build_absorb_v(const void *arg, int m) {
    const mla_case *c = arg;
    twin *t = twin_open(m, c->heads * (c->latent + c->v) + 2);
    int o = twin_act(t, c->x, c->heads * c->latent, c->seed + 1), y = rig_normed_output(t->r, c->out, c->heads * c->v);
    pz_weight *kv_b = make_kv_b(t, c, PZ_OP_MLA_ABSORB_V);
    pz_launch *l = rig_launch(t->r, PZ_OP_MLA_ABSORB_V);
    give_kv_b(t, l, c, kv_b);
    rig_in(l, "o", o);
    l->out[0] = y;
    twin_slack(t, y, twin_sum(c->latent));
    return t;
}

static void test_absorb(void **state) {
    (void)state;
    uint64_t s = 8;
    for (int i = 0; i < cases_of(18); i++) {
        mla_case c = random_mla(&s, i);
        c.limit = 1000000; /* sines of large angles */
        check_case(build_absorb_q, NULL, &c, rows_of(i));
        check_case(build_absorb_v, NULL, &c, rows_of(i));
    }
}

static twin *build_attention(const void *arg, int m) {
    const mla_case *c = arg;
    int64_t entry = c->latent + c->rope;
    twin *t = twin_open(m, c->heads * (entry + c->latent) + 3);
    twin_cache(t, c->cache, c->page_tokens, (int)entry, c->seed + 1);
    int q = twin_act(t, c->x, c->heads * entry, c->seed + 2), pos, seq;
    twin_rows(t, c->limit, c->seed + 3, &pos, &seq);
    int y = rig_output(t->r, c->out, c->heads * c->latent);
    pz_launch *l = rig_launch(t->r, PZ_OP_MLA_ATTENTION);
    rig_in(l, "ql", q);
    rig_in(l, "pos", pos);
    rig_in(l, "seq", seq);
    rig_attr_int(l, "layer", TWIN_LAYER);
    rig_attr_int(l, "heads", c->heads);
    rig_attr_int(l, "latent", c->latent);
    rig_attr_int(l, "rope", c->rope);
    rig_attr_float(l, "scale", 0.2);
    l->out[0] = y;
    twin_slack(t, y, 16 * twin_sum(entry));
    return t;
}

static void test_attention(void **state) {
    (void)state;
    uint64_t s = 9;
    for (int i = 0; i < cases_of(27); i++) {
        mla_case c = random_mla(&s, i);
        if (i % 5 == 4) c.latent = rnd_int(&s, 1, 150);
        if (i == 10) c.latent = 1024, c.rope = 128;
        if (i % 9 == 8) c.limit = 3; /* shorter than a tile */
        check_case(build_attention, NULL, &c, rows_of(i));
    }
}

/* What lies behind a row's position is not read; a NaN before it shows. */
static void test_attention_reads_no_further(void **state) {
    (void)state;
    mla_case c = {.heads = 3, .latent = 40, .rope = 8, .page_tokens = 5, .limit = 60, .seed = 5};
    c.x = c.out = PZ_DT_F32;
    for (int end = 0; end < (lab_small() ? 3 : 59); end += end < 20 ? 1 : 7) {
        c.cache = out_types[end % 2];
        twin *t = build_attention(&c, 1);
        const pz_launch *l = &t->r->plan.launches.at[0];
        int32_t *pos = rig_data(t->r, l->in[pz_op_operand_index(l->op, "pos")].place);
        int64_t size = pz_dtype_bits(c.cache) / 8;
        for (int p = end + 1; p < 60; p++) memset(t->r->cache.data + entry_offset(t, 0, p), 0xff, (size_t)(48 * size));
        for (int shows = 0; shows < 2; shows++) {
            pos[0] = end + shows;
            twin_run_cpu(t);
            twin_run_gpu(t, 1);
            float row[120];
            twin_row(t, l->out[0], 0, row);
            for (int i = 0; i < 120; i++) assert_true(shows ? isnan(row[i]) : isfinite(row[i]));
        }
        twin_close(t);
    }
}

/* ---- router ---- */
typedef struct router_case {
    int experts, top_k, n_group, topk_group, group_top;
    bool sigmoid, norm, bias, ties;
    double scale;
    pz_dtype x;
    uint64_t seed;
} router_case;

static twin *build_router(const void *arg, int m) {
    const router_case *c = arg;
    twin *t = twin_open(m, c->experts + 2 * c->top_k + 1);
    uint64_t s = c->seed;
    int logits = twin_act(t, c->x, c->experts, s + 1), ids = rig_output(t->r, PZ_DT_I32, c->top_k);
    int weights = rig_output(t->r, PZ_DT_F32, c->top_k);
    float *bias = rnd_array(&s, c->experts), *x = rig_data(t->r, logits);
    for (int i = 0; c->ties && i < m * c->experts; i++) x[i] = roundf(2 * x[i]);
    for (int i = 0; c->ties && i < c->experts; i++) bias[i] = 0;
    pz_weight *w = c->bias ? rig_vector(t->r, "bias", PZ_DT_F32, c->experts, bias, PZ_OP_ROUTER) : NULL;
    pz_free(bias);
    pz_launch *l = rig_launch(t->r, PZ_OP_ROUTER);
    rig_in(l, "logits", logits);
    if (w) rig_in_weight(l, "bias", w);
    rig_attr_int(l, "top_k", c->top_k);
    rig_attr_int(l, "n_group", c->n_group);
    rig_attr_int(l, "topk_group", c->topk_group);
    rig_attr_int(l, "group_top", c->group_top);
    rig_attr_int(l, "norm", c->norm);
    rig_attr_float(l, "scale", c->scale);
    rig_attr_str(l, "scoring", c->sigmoid ? "sigmoid" : "softmax");
    l->out[0] = ids;
    l->out[1] = weights;
    return t;
}

/* The same experts in the same order. */
static void compare_choice(twin *t, const void *arg) {
    const router_case *c = arg;
    const pz_launch *l = &t->r->plan.launches.at[0];
    for (int row = 0; row < t->r->plan.m; row++) {
        const int32_t *got = (int32_t *)twin_got(t, l->out[0]) + row * c->top_k;
        const int32_t *want = (int32_t *)rig_data(t->r, l->out[0]) + row * c->top_k;
        const float *w = (float *)twin_got(t, l->out[1]) + row * c->top_k;
        const float *v = (float *)rig_data(t->r, l->out[1]) + row * c->top_k;
        for (int k = 0; k < c->top_k; k++) {
            if (got[k] != want[k])
                fail_msg("row %d: choice %d is expert %d on the GPU, %d on the CPU", row, k, got[k], want[k]);
            if (isnan(v[k]) ? !isnan(w[k]) : fabsf(w[k] - v[k]) > 2e-6f * fabsf(v[k]))
                fail_msg("row %d: weight %d is %.9g on the GPU, %.9g on the CPU", row, k, (double)w[k], (double)v[k]);
        }
    }
}

static void test_router(void **state) {
    (void)state;
    uint64_t s = 10;
    for (int i = 0; i < cases_of(60); i++) {
        router_case c = {.sigmoid = i % 2, .norm = i / 2 % 2, .bias = i / 4 % 2, .ties = i % 5 == 0, .seed = s};
        int size = rnd_int(&s, 1, 9);
        c.n_group = rnd_int(&s, 1, 9);
        c.experts = c.n_group * size;
        if (i % 3 == 0) c.n_group = 1, c.experts = (int[]){384, 256, 1024, 385}[i / 3 % 4];
        if (i % 6 == 1) c.n_group = 8, c.experts = 256;
        size = c.experts / c.n_group;
        c.group_top = rnd_int(&s, 1, size < 2 ? 1 : 2);
        c.topk_group = rnd_int(&s, 1, c.n_group);
        c.top_k = rnd_int(&s, 1, c.topk_group * size < 8 ? c.topk_group * size : 8);
        c.scale = i % 3 ? 2.5 : 1;
        c.x = c.ties ? PZ_DT_F32 : act_types[i % 3];
        check_case(build_router, compare_choice, &c, rows_of(i));
    }
}

/* Whatever the logits are, the ids are those of the CPU: different experts, within range. */
static void test_router_strange_logits(void **state) {
    (void)state;
    router_case c = {.experts = 8, .top_k = 4, .n_group = 4, .topk_group = 2, .group_top = 2, .norm = true, .scale = 1};
    c.x = PZ_DT_F32;
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        c.sigmoid = sigmoid;
        twin *t = build_router(&c, 5);
        float *x = rig_data(t->r, t->r->plan.launches.at[0].in[0].place);
        for (int e = 0; e < 8; e++) {
            x[e] = NAN;
            x[8 + e] = -INFINITY;
            x[16 + e] = INFINITY;
            x[24 + e] = -1e30f;
        }
        x[32 + 5] = NAN;
        twin_run_cpu(t);
        twin_run_gpu(t, 2);
        compare_choice(t, &c);
        twin_close(t);
    }
}

/* ---- experts ---- */
typedef struct experts_case {
    int experts, top_k;
    int first, total; /* of total, 0: all are here */
    int64_t hidden, inner;
    pz_dtype x, weight, out;
    uint64_t seed;
} experts_case;

static pz_weight *expert_weight(twin *t, const experts_case *c, const char *name, int64_t n, int64_t k, uint64_t seed) {
    int64_t dim[] = {c->experts, n, k};
    float *w = rnd_array(&seed, c->experts * n * k);
    pz_weight *weight = rig_weight(t->r, name, c->weight, 3, dim, w, PZ_OP_MOE_EXPERTS);
    pz_free(w);
    return weight;
}

static twin *build_experts(const void *arg, int m) {
    const experts_case *c = arg;
    twin *t = twin_open(m, 2 * (c->hidden + c->top_k));
    int x = twin_act(t, c->x, c->hidden, c->seed + 1), ids = rig_place(t->r, PZ_DT_I32, c->top_k);
    int weights = twin_act(t, PZ_DT_F32, c->top_k, c->seed + 2), y = rig_output(t->r, c->out, c->hidden);
    for (int i = 0; i < m; i++) {
        uint64_t s = c->seed + (uint64_t)i * 7919;
        int all = c->total ? c->total : c->experts, first = rnd_int(&s, 0, all - 1);
        for (int k = 0; k < c->top_k; k++) {
            int id = ((int32_t *)rig_data(t->r, ids))[i * c->top_k + k] = (first + k) % all;
            bool here = id >= c->first && id < c->first + c->experts;
            if (!here && i % 2) ((float *)rig_data(t->r, weights))[i * c->top_k + k] = NAN;
        }
    }
    pz_weight *gate_up = expert_weight(t, c, "gate_up", 2 * c->inner, c->hidden, c->seed + 3);
    pz_weight *down = expert_weight(t, c, "down", c->hidden, c->inner, c->seed + 4);
    pz_launch *l = rig_launch(t->r, PZ_OP_MOE_EXPERTS);
    rig_in(l, "x", x);
    rig_in(l, "ids", ids);
    rig_in(l, "weights", weights);
    rig_in_weight(l, "gate_up", gate_up);
    rig_in_weight(l, "down", down);
    l->out[0] = y;
    rig_attr_int(l, "first", c->first);
    rig_attr_int(l, "total", c->total);
    /* a value between the projections may round to the neighbour in bf16 */
    twin_slack(t, y, 4 * (twin_sum(c->hidden) + twin_sum(c->inner)) + (c->x == PZ_DT_BF16 ? 0x1p-7 : 0));
    return t;
}

static void test_experts(void **state) {
    (void)state;
    uint64_t s = 11;
    for (int i = 0; i < cases_of(24); i++) {
        experts_case c = {.seed = s, .weight = i % 2 ? PZ_DT_MXFP4 : PZ_DT_BF16, .x = out_types[i / 2 % 2]};
        c.out = out_types[i / 4 % 2];
        c.experts = rnd_int(&s, 2, 9);
        c.top_k = rnd_int(&s, 1, c.experts < 8 ? c.experts : 8);
        int64_t step = c.weight == PZ_DT_MXFP4 ? 32 : 8;
        c.hidden = step * rnd_int(&s, 1, 12);
        c.inner = step * rnd_int(&s, 1, 12);
        check_case(build_experts, NULL, &c, rows_of(i));
    }
}

/* Experts of which some are on other ranks: those add nothing, even with weights that are no numbers. */
static void test_experts_of_a_rank(void **state) {
    (void)state;
    uint64_t s = 12;
    for (int i = 0; i < cases_of(12); i++) {
        experts_case c = {.seed = s, .weight = i % 2 ? PZ_DT_MXFP4 : PZ_DT_BF16, .x = out_types[i / 2 % 2]};
        int ranks = 2 << i % 3, rank = rnd_int(&s, 0, ranks - 1);
        c.out = PZ_DT_F32;
        c.experts = rnd_int(&s, 1, 4);
        c.total = c.experts * ranks;
        c.first = c.experts * rank;
        c.top_k = rnd_int(&s, 1, c.total < 8 ? c.total : 8);
        c.hidden = 32 * rnd_int(&s, 1, 12);
        c.inner = 32 * rnd_int(&s, 1, 12);
        check_case(build_experts, NULL, &c, rows_of(i));
    }
}

/* Widths of real models, many experts, rows longer than what fits in shared memory at a time. */
static void test_experts_sizes(void **state) {
    (void)state;
    static const struct {
        experts_case c;
        int m;
    } cases[] = {
        {{.experts = 4, .top_k = 2, .hidden = 512, .inner = 2880, .weight = PZ_DT_MXFP4}, 9},
        {{.experts = 3, .top_k = 2, .hidden = 2880, .inner = 288, .weight = PZ_DT_MXFP4}, 3},
        {{.experts = 384, .top_k = 8, .hidden = 96, .inner = 64, .weight = PZ_DT_MXFP4}, 130},
        {{.experts = 3, .top_k = 2, .hidden = 7168, .inner = 512, .weight = PZ_DT_MXFP4}, 3},
        {{.experts = 2, .top_k = 2, .hidden = 64, .inner = 8224, .weight = PZ_DT_MXFP4}, 5},
        {{.experts = 2, .top_k = 2, .hidden = 72, .inner = 5000, .weight = PZ_DT_BF16}, 5},
    };
    for (int i = 0; i < cases_of(sizeof cases / sizeof *cases); i++) {
        experts_case c = cases[i].c;
        c.x = PZ_DT_BF16;
        c.out = PZ_DT_F32;
        c.seed = 60 + (uint64_t)i;
        check_case(build_experts, NULL, &c, cases[i].m);
    }
}

/* ---- greedy choice ---- */
/* Rows of ties, of NaN and infinities, and random ones, of logits in each dtype. */
static void check_argmax(pz_dtype dt, int m, int64_t cols, uint64_t seed) {
    twin *t = twin_open(m, 2 * cols + 1);
    int p = twin_act(t, dt, cols, seed);
    float *x = rig_data(t->r, p);
    for (int row = 0; dt == PZ_DT_F32 && row < m; row++)
        for (int64_t c = 0; c < cols; c++) {
            float *v = &x[row * cols + c];
            const float strange[] = {
                *v, roundf(*v), NAN, -INFINITY, c == cols / 2 ? 1.f : NAN, c % 3 ? INFINITY : -1.f};
            *v = strange[row % 6];
        }
    rig_launch(t->r, PZ_OP_ALL_REDUCE);
    rig_in(&t->r->plan.launches.at[0], "x", p);
    t->r->plan.launches.at[0].out[0] = rig_output(t->r, PZ_DT_F32, cols);
    twin_run_cpu(t);
    twin_run_gpu(t, 1);
    pz_error err;
    int *rows = pz_calloc((size_t)m, sizeof *rows);
    int32_t *got = pz_calloc((size_t)m, sizeof *got), *want = pz_calloc((size_t)m, sizeof *want);
    assert_true(rows && got && want);
    for (int i = 0; i < m; i++) rows[i] = m - 1 - i;
    pz_run_args cpu = {.arena = t->r->arena}, gpu = {.arena = t->arena};
    assert_ok(t->r->api->argmax(t->r->b, &t->r->plan, &cpu, p, rows, m, want, &err), &err);
    assert_ok(t->gpu->argmax(t->b, &t->r->plan, &gpu, p, rows, m, got, &err), &err);
    for (int i = 0; i < m; i++)
        if (got[i] != want[i])
            fail_msg("row %d of %lld columns: %d on the GPU, %d on the CPU", rows[i], (long long)cols, got[i], want[i]);
    rows[0] = m;
    assert_fails(t->gpu->argmax(t->b, &t->r->plan, &gpu, p, rows, m, got, &err), PZ_E_RANGE, &err, "row");
    pz_free(rows);
    pz_free(got);
    pz_free(want);
    twin_close(t);
}

static void test_argmax(void **state) {
    (void)state;
    uint64_t s = 12;
    for (int i = 0; i < cases_of(27); i++) {
        int64_t cols = i % 3 == 0 ? rnd_int(&s, 1, 40) : i % 3 == 1 ? rnd_int(&s, 4000, 9000) : 1024;
        check_argmax(act_types[i / 3 % 3], rows_of(i), cols, s);
    }
    if (!lab_small()) check_argmax(PZ_DT_FIXED, 3, 163840, s);
}

/* ---- refusals ---- */
/* Shapes that a kernel does not take are refused before anything runs, with a message. */
static void refuse(twin *t, const char *text) {
    pz_error err;
    pz_run_args args = {.arena = t->r->arena}; /* never reached */
    assert_fails(t->gpu->run(t->b, &t->r->plan, &args, &err), PZ_E_UNSUPPORTED, &err, "cuda", text);
    twin_close(t);
}

static void test_refusals(void **state) {
    (void)state;
    mla_case c = {.heads = 1, .latent = 12, .rope = 2, .nope = 4, .v = 4, .page_tokens = 4, .limit = 8, .seed = 1};
    c.x = c.out = c.cache = PZ_DT_F32;
    refuse(build_absorb_q(&c, 1), "latent of 12");
    c.latent = 1032;
    refuse(build_attention(&c, 1), "1032 + 2 values");
    router_case r = {.experts = 1025, .top_k = 1, .n_group = 1, .topk_group = 1, .group_top = 1, .x = PZ_DT_F32};
    refuse(build_router(&r, 1), "1025 experts");
    experts_case e = {.experts = 1, .top_k = 1, .hidden = 12, .inner = 8, .x = PZ_DT_F32};
    e.weight = PZ_DT_BF16;
    e.out = PZ_DT_F32;
    refuse(build_experts(&e, 1), "12 columns");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        lab_test(test_add),           lab_test(test_all_reduce),
        lab_test(test_silu_mul),      lab_test(test_latent_norm),
        lab_test(test_rms_norm),      lab_test(test_add_rms_norm),
        lab_test(test_edges),         lab_test(test_embed),
        lab_test(test_cache_write),   lab_test(test_absorb),
        lab_test(test_attention),     lab_test(test_attention_reads_no_further),
        lab_test(test_router),        lab_test(test_router_strange_logits),
        lab_test(test_experts),       lab_test(test_experts_of_a_rank),
        lab_test(test_experts_sizes), lab_test(test_argmax),
        lab_test(test_refusals),
    };
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
