/* SPDX-License-Identifier: Apache-2.0 */
#include "support_twin.h"

#include <stdio.h>

static void mirror(void *user, const pz_weight *w, pz_op use, const pz_host_weight *host) {
    twin *t = user;
    pz_error err;
    assert_ok(t->gpu->load(t->b, w, use, host, &err), &err);
}

twin *twin_open(int m, int64_t columns) {
    pz_error err;
    pz_backend_options options = {0};
    const size_t guards = 16 * 512; /* 12 places at most */
    size_t capacity = (size_t)m * (size_t)columns * 4 + guards;
    twin *t = pz_calloc(1, sizeof *t);
    assert_non_null(t);
    t->r = rig_open_sized(NULL, 0, m, capacity);
    t->image = pz_calloc(capacity, 1);
    t->got = pz_calloc(capacity, 1);
    assert_true(t->image && t->got);
    assert_ok(pz_backend_cuda(&t->gpu, &err), &err);
    assert_ok(t->gpu->open(&options, &t->b, &err), &err);
    t->r->mirror = mirror;
    t->r->mirror_user = t;
    for (int i = 0; i < RIG_PLACES; i++) t->slack[i] = -1;
    return t;
}

void twin_close(twin *t) {
    t->gpu->release(t->b, t->arena);
    t->gpu->release(t->b, t->cache);
    t->gpu->close(t->b);
    pz_free(t->r->cache.data);
    rig_close(t->r);
    pz_free(t->image);
    pz_free(t->got);
    pz_free(t->cache_image);
    pz_free(t->cache_got);
    pz_free(t);
}

/* ---- data ---- */
static void put_f32(pz_dtype dt, unsigned char *base, int64_t i, float v) {
    uint16_t h = pz_f32_to_bf16(v);
    if (dt == PZ_DT_BF16)
        memcpy(base + i * 2, &h, 2);
    else
        memcpy(base + i * 4, &v, 4);
}

static float get_f32(pz_dtype dt, const unsigned char *base, int64_t i) {
    uint16_t h;
    float f;
    if (dt == PZ_DT_BF16) return memcpy(&h, base + i * 2, 2), pz_bf16_to_f32(h);
    return memcpy(&f, base + i * 4, 4), f;
}

void twin_cache(twin *t, pz_dtype dt, int page_tokens, int entry, uint64_t seed) {
    int64_t values = (int64_t)TWIN_LAYERS * TWIN_PAGES * page_tokens * entry;
    t->cache_bytes = values * (pz_dtype_bits(dt) / 8);
    unsigned char *data = pz_aligned_calloc((size_t)t->cache_bytes);
    t->cache_image = pz_calloc((size_t)t->cache_bytes, 1);
    t->cache_got = pz_calloc((size_t)t->cache_bytes, 1);
    assert_true(data && t->cache_image && t->cache_got);
    for (int64_t i = 0; i < values; i++) put_f32(dt, data, i, rnd(&seed));
    for (int i = 0; i < TWIN_SEQUENCES * TWIN_STRIDE; i++) t->table[i] = (i * 29 + 11) % TWIN_PAGES;
    t->r->cache = (pz_cache){.data = data,
                             .dt = dt,
                             .page_tokens = page_tokens,
                             .entry = entry,
                             .n_pages = TWIN_PAGES,
                             .layer_stride = t->cache_bytes / TWIN_LAYERS,
                             .block_table = t->table,
                             .table_stride = TWIN_STRIDE};
}

static int fixed_act(twin *t, int64_t cols, uint64_t seed) {
    rig *r = t->r;
    enum { K = 16 };
    char name[32];
    snprintf(name, sizeof name, "scale%d", r->plan.places.n);
    float *w = rnd_array(&seed, cols * K);
    pz_weight *weight = rig_matrix(r, pz_arena_strdup(&r->graph->arena, name), PZ_DT_BF16, cols, K, w, PZ_OP_GEMM);
    pz_free(w);
    int norm = rig_place(r, PZ_DT_F32, 0), p = rig_place(r, PZ_DT_FIXED, cols);
    r->plan.places.at[p].scale_norm = norm;
    r->plan.places.at[p].scale_weight = weight;
    for (int i = 0; i < r->plan.m; i++) {
        uint64_t s = seed + (uint64_t)i * 7919;
        ((float *)rig_data(r, norm))[i] = ldexpf(1, rnd_int(&s, -3, 3));
        for (int64_t c = 0; c < cols; c++) ((int32_t *)rig_data(r, p))[i * cols + c] = (int32_t)(rnd(&s) * 0x1p29f);
    }
    return p;
}

int twin_act(twin *t, pz_dtype dt, int64_t cols, uint64_t seed) {
    if (dt == PZ_DT_FIXED) return fixed_act(t, cols, seed);
    int p = rig_place(t->r, dt, cols);
    for (int i = 0; i < t->r->plan.m; i++) {
        uint64_t s = seed + (uint64_t)i * 7919;
        for (int64_t c = 0; c < cols; c++) put_f32(dt, rig_data(t->r, p), i * cols + c, rnd(&s));
    }
    return p;
}

void twin_rows(twin *t, int limit, uint64_t seed, int *pos, int *seq) {
    *pos = rig_place(t->r, PZ_DT_I32, 0);
    *seq = rig_place(t->r, PZ_DT_I32, 0);
    for (int i = 0; i < t->r->plan.m; i++) {
        uint64_t s = seed + (uint64_t)i * 7919;
        bool padding = i % 5 == 4;
        ((int32_t *)rig_data(t->r, *seq))[i] = padding ? -1 : i % TWIN_SEQUENCES;
        ((int32_t *)rig_data(t->r, *pos))[i] = padding ? 0 : rnd_int(&s, 0, limit - 1);
    }
}

void twin_slack(twin *t, int place, double relative) {
    t->slack[place] = relative;
}

double twin_sum(int64_t n) {
    return (8 + 2 * sqrt((double)n)) * 0x1p-23;
}

/* ---- running ---- */
static size_t watched(const twin *t) {
    return (size_t)t->r->plan.arena_bytes + 192;
}

static void take_image(twin *t) {
    memcpy(t->image, t->r->arena, watched(t));
    if (t->cache_bytes) memcpy(t->cache_image, t->r->cache.data, (size_t)t->cache_bytes);
}

void twin_run_cpu(twin *t) {
    take_image(t);
    rig_run(t->r);
}

static void check_untouched(const twin *t) {
    unsigned char *want = pz_calloc(watched(t), 1);
    assert_non_null(want);
    memcpy(want, t->image, watched(t));
    for (int i = 0; i < t->r->plan.places.n; i++) {
        const pz_place *p = &t->r->plan.places.at[i];
        if (i == p->root && t->r->written[i]) memcpy(want + p->offset, t->got + p->offset, (size_t)p->bytes);
    }
    for (size_t i = 0; i < watched(t); i++)
        if (want[i] != t->got[i]) fail_msg("byte %zu outside the outputs was written on the GPU", i);
    pz_free(want);
}

static void run_once(twin *t) {
    pz_error err;
    const int64_t bytes = (int64_t)watched(t);
    pz_cache cache = t->r->cache;
    cache.data = t->cache;
    pz_run_args args = {.arena = t->arena, .n_sequences = TWIN_SEQUENCES};
    assert_ok(t->gpu->copy(t->b, t->arena, t->image, bytes, PZ_COPY_TO, &err), &err);
    if (t->cache) {
        args.cache = &cache;
        assert_ok(t->gpu->copy(t->b, t->cache, t->cache_image, t->cache_bytes, PZ_COPY_TO, &err), &err);
    }
    assert_ok(t->gpu->run(t->b, &t->r->plan, &args, &err), &err);
    assert_ok(t->gpu->copy(t->b, t->got, t->arena, bytes, PZ_COPY_FROM, &err), &err);
    if (t->cache) assert_ok(t->gpu->copy(t->b, t->cache_got, t->cache, t->cache_bytes, PZ_COPY_FROM, &err), &err);
}

void twin_run_gpu(twin *t, int times) {
    pz_error err;
    if (!t->arena) {
        assert_ok(t->gpu->alloc(t->b, (int64_t)watched(t), &t->arena, &err), &err);
        if (t->cache_bytes) assert_ok(t->gpu->alloc(t->b, t->cache_bytes, &t->cache, &err), &err);
    }
    unsigned char *first = pz_calloc(watched(t), 1), *first_cache = pz_calloc((size_t)t->cache_bytes + 1, 1);
    assert_true(first && first_cache);
    for (int i = 0; i < times; i++) {
        run_once(t);
        check_untouched(t);
        if (i == 0) {
            memcpy(first, t->got, watched(t));
            if (t->cache_bytes) memcpy(first_cache, t->cache_got, (size_t)t->cache_bytes);
        }
        if (memcmp(first, t->got, watched(t)) != 0) fail_msg("run %d gives other bits than run 0", i);
        if (t->cache_bytes && memcmp(first_cache, t->cache_got, (size_t)t->cache_bytes) != 0)
            fail_msg("run %d writes other bits into the cache than run 0", i);
    }
    pz_free(first);
    pz_free(first_cache);
}

/* ---- comparing ---- */
void twin_row(const twin *t, int place, int row, float *dst) {
    const pz_place *p = &t->r->plan.places.at[place];
    int64_t cols = p->type.rank == 2 ? p->type.dim[1] : 1;
    for (int64_t c = 0; c < cols; c++) dst[c] = get_f32(p->type.dt, t->got + p->offset, row * p->ld + p->col + c);
}

static bool close_to(double got, double want, double tolerance) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got)) return want == got;
    return fabs(got - want) <= tolerance;
}

static double rms_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i])) sum += (double)x[i] * (double)x[i];
    return sqrt(sum / (double)n);
}

static void compare_rows(const twin *t, int place) {
    const pz_place *p = &t->r->plan.places.at[place];
    int64_t cols = p->type.rank == 2 ? p->type.dim[1] : 1;
    double ulp = p->type.dt == PZ_DT_BF16 ? 0x1p-7 : 0x1p-22;
    float *got = pz_calloc((size_t)cols, sizeof *got), *want = pz_calloc((size_t)cols, sizeof *want);
    assert_true(got && want);
    for (int row = 0; row < t->r->plan.m; row++) {
        twin_row(t, place, row, got);
        for (int64_t c = 0; c < cols; c++) want[c] = get_f32(p->type.dt, rig_data(t->r, place), row * cols + c);
        double allowed = t->slack[place] * rms_of(want, cols);
        for (int64_t c = 0; c < cols; c++)
            if (!close_to((double)got[c], (double)want[c], allowed + ulp * fabs((double)want[c]) + 1e-34))
                fail_msg("result %d, row %d of %d, column %lld of %lld: %.9g on the GPU, %.9g on the CPU, allowed %.3g",
                         place, row, t->r->plan.m, (long long)c, (long long)cols, (double)got[c], (double)want[c],
                         allowed);
    }
    pz_free(got);
    pz_free(want);
}

/* x_norm is exact for what was stored. */
static void compare_norms(const twin *t, int place) {
    const pz_place *p = &t->r->plan.places.at[place];
    int64_t cols = p->type.dim[1];
    float *got = pz_calloc((size_t)cols, sizeof *got);
    assert_non_null(got);
    for (int row = 0; row < t->r->plan.m; row++) {
        twin_row(t, place, row, got);
        float want = norm_of(got, cols), have = ((float *)twin_got(t, p->norm))[row];
        if (isnan(want) ? !isnan(have) : have != want)
            fail_msg("x_norm of row %d is %g, expected %g", row, (double)have, (double)want);
    }
    pz_free(got);
}

static bool is_norm(const twin *t, int place) {
    for (int i = 0; i < t->r->plan.places.n; i++)
        if (t->r->plan.places.at[i].norm == place) return true;
    return false;
}

static void compare_cache(const twin *t) {
    pz_dtype dt = t->r->cache.dt;
    int64_t size = pz_dtype_bits(dt) / 8;
    for (int64_t i = 0; i < t->cache_bytes / size; i++) {
        const unsigned char *before = t->cache_image + i * size, *want = t->r->cache.data + i * size;
        if (memcmp(before, want, (size_t)size) == 0) {
            if (memcmp(before, t->cache_got + i * size, (size_t)size) != 0)
                fail_msg("cache element %lld was written on the GPU alone", (long long)i);
            continue;
        }
        double w = (double)get_f32(dt, t->r->cache.data, i), g = (double)get_f32(dt, t->cache_got, i);
        double tolerance = dt == PZ_DT_BF16 ? 0x1p-7 * fabs(w) + 1e-6 : 4e-6 * fabs(w) + 1e-6;
        if (!close_to(g, w, tolerance))
            fail_msg("cache element %lld is %g on the GPU, %g on the CPU", (long long)i, g, w);
    }
}

void twin_compare(twin *t) {
    for (int i = 0; i < t->r->plan.places.n; i++) {
        const pz_place *p = &t->r->plan.places.at[i];
        if (i != p->root || !t->r->written[i] || is_norm(t, i)) continue;
        if (t->slack[i] >= 0)
            compare_rows(t, i);
        else
            assert_memory_equal(twin_got(t, i), rig_data(t->r, i), (size_t)p->bytes);
        if (p->norm >= 0) compare_norms(t, i);
    }
    if (t->cache_bytes) compare_cache(t);
}

void twin_check(twin *t) {
    twin_run_cpu(t);
    twin_run_gpu(t, 3);
    twin_compare(t);
}

/* ---- rows and their neighbours ---- */
/* Copies rows [first, first + n) of every place's image from `all` to the start of `to`. */
static void copy_rows(const twin *all, twin *to, int first, int n) {
    int m = all->r->plan.m;
    take_image(to);
    for (int i = 0; i < all->r->plan.places.n; i++) {
        const pz_place *a = &all->r->plan.places.at[i], *p = &to->r->plan.places.at[i];
        if (i != a->root || all->r->written[i]) continue;
        int64_t row = a->bytes / m;
        memcpy(to->image + p->offset, all->image + a->offset + first * row, (size_t)(row * n));
    }
    if (all->cache_bytes) memcpy(to->cache_image, all->cache_image, (size_t)all->cache_bytes);
}

/* Asserts that rows [first, first + n) of `all` are the first n of `some`. */
static void same_rows(const twin *all, const twin *some, int first, int n) {
    int m = all->r->plan.m;
    for (int i = 0; i < all->r->plan.places.n; i++) {
        const pz_place *a = &all->r->plan.places.at[i], *p = &some->r->plan.places.at[i];
        if (i != a->root || !all->r->written[i]) continue;
        int64_t row = a->bytes / m;
        if (memcmp(some->got + p->offset, all->got + a->offset + first * row, (size_t)(row * n)) != 0)
            fail_msg("result %d: rows %d to %d of %d have other bits among %d rows", i, first, first + n - 1, m,
                     some->r->plan.m);
    }
}

void twin_check_alone(const twin *all, twin_build build, const void *arg) {
    int m = all->r->plan.m;
    const struct {
        int first, n;
    } parts[] = {{0, 1}, {m - 1, 1}, {m / 2, 1}, {m / 3, m / 2 + 1 < m - m / 3 ? m / 2 + 1 : m - m / 3}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        twin *some = build(arg, parts[i].n);
        copy_rows(all, some, parts[i].first, parts[i].n);
        twin_run_gpu(some, 1);
        same_rows(all, some, parts[i].first, parts[i].n);
        twin_close(some);
    }
}

void twin_check_isolated(const twin *all, twin_build build, const void *arg) {
    int m = all->r->plan.m, bad = m / 2;
    twin *t = build(arg, m);
    copy_rows(all, t, 0, m);
    for (int i = 0; i < t->r->plan.places.n; i++) {
        const pz_place *p = &t->r->plan.places.at[i];
        if (i != p->root || t->r->written[i] || !pz_dtype_is_act(p->type.dt) || p->type.dt == PZ_DT_FIXED) continue;
        int64_t cols = p->type.rank == 2 ? p->type.dim[1] : 1;
        put_f32(p->type.dt, t->image + p->offset, bad * cols + cols / 2, NAN);
        if (cols > 2) put_f32(p->type.dt, t->image + p->offset, bad * cols + cols - 1, INFINITY);
    }
    twin_run_gpu(t, 2);
    for (int row = 0; row < m; row++) {
        if (row == bad) continue;
        for (int i = 0; i < t->r->plan.places.n; i++) {
            const pz_place *p = &t->r->plan.places.at[i];
            if (i != p->root || !t->r->written[i]) continue;
            int64_t bytes = p->bytes / m;
            if (memcmp(t->got + p->offset + row * bytes, all->got + p->offset + row * bytes, (size_t)bytes) != 0)
                fail_msg("result %d: row %d has other bits beside a row with NaN", i, row);
        }
    }
    twin_close(t);
}
