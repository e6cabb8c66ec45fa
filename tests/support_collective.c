/* SPDX-License-Identifier: Apache-2.0 */
#include "support_collective.h"

#include <stdio.h>

static bool fused(const collective *c) {
    return c->op == PZ_OP_FUSED_ALLREDUCE_RMSNORM;
}

/* ---- making ---- */
static const char *new_name(rig *k) {
    static int serial;
    char name[32];
    snprintf(name, sizeof name, "w%d", serial++);
    return pz_arena_strdup(&k->graph->arena, name);
}

static float *new_rows(int m, int cols) {
    float *x = pz_calloc((size_t)m * (size_t)cols, sizeof *x);
    assert_non_null(x);
    return x;
}

static float *random_rows(uint64_t seed, int m, int cols) {
    float *x = new_rows(m, cols);
    for (int i = 0; i < m; i++) {
        uint64_t s = seed * 1000003 + (uint64_t)(m - i) * 7919;
        for (int c = 0; c < cols; c++) x[i * cols + c] = rnd(&s);
    }
    return x;
}

float *collective_strange(int m, int cols, uint64_t *seed) {
    /* the word of all ones is what an empty place holds; in bf16 it takes two neighbours */
    static const uint32_t bits[] = {
        0x80000000u, 0x00000000u, 0x00000001u, 0x807fffffu, 0x00800000u, 0x7f800000u,
        0xff800000u, 0x7fc00000u, 0x7fc00001u, 0x7fffffffu, 0xffffffffu, 0x7f800001u,
        0xfffffffeu, 0xffff0000u, 0x7f7fffffu, 0xff7fffffu, 0x3f800000u, 0xbf800000u,
    };
    enum { N = sizeof bits / sizeof *bits };
    float *x = new_rows(m, cols);
    for (int i = 0; i < m * cols; i++) {
        int row = i / cols;
        uint32_t v = row < N ? bits[row] : pz_rng_next(seed) % 3 ? bits[pz_rng_next(seed) % N] : 0x80000000u;
        memcpy(&x[i], &v, 4);
    }
    return x;
}

/* A partial sum; x becomes what it stands for. */
static int partial(rig *k, pz_dtype dt, int cols, float *x, uint64_t seed) {
    enum { K = 16 };
    if (dt != PZ_DT_FIXED) return rig_act(k, dt, cols, x);
    float *values = rnd_array(&seed, cols * K);
    pz_weight *w = rig_matrix(k, new_name(k), PZ_DT_BF16, cols, K, values, PZ_OP_GEMM);
    int p = rig_place(k, dt, cols), norm = rig_place(k, PZ_DT_F32, 0);
    k->plan.places.at[p].scale_norm = norm;
    k->plan.places.at[p].scale_weight = w;
    for (int i = 0; i < k->plan.m; i++) {
        uint64_t s = seed + (uint64_t)(k->plan.m - i) * 7919;
        float x_norm = ((float *)rig_data(k, norm))[i] = ldexpf(1, rnd_int(&s, -3, 3));
        for (int c = 0; c < cols; c++) {
            int32_t acc = rnd_int(&s, -(1 << 29), 1 << 29);
            ((int32_t *)rig_data(k, p))[i * cols + c] = acc;
            x[i * cols + c] = pz_fixed_value(acc, x_norm, norm_of(values + c * K, K));
        }
    }
    pz_free(values);
    return p;
}

static int64_t filled_bytes(const rig *k, int place) {
    return k->plan.places.at[place].bytes / 128 * 64;
}

static void add_fill(rig *k, int cols, int *buffer, pz_launch *l) {
    pz_error err;
    *buffer = rig_output(k, PZ_DT_F32, cols);
    l->fill = k->plan.fills.n;
    pz_fill f = {.place = *buffer, .offset = k->plan.places.at[*buffer].offset, .bytes = filled_bytes(k, *buffer)};
    assert_ok(pz_push(&k->plan.fills, f, &err), &err);
}

void collective_add(collective *c, rig *const *rigs, int n, int cols, uint64_t seed) {
    int m = rigs[0]->plan.m;
    if (!c->res) c->res = random_rows(seed, m, cols);
    if (!c->w) c->w = random_rows(seed + 1, 1, cols);
    for (int r = 0; r < n; r++) {
        rig *k = rigs[r];
        if (!c->part[r]) c->part[r] = random_rows(seed + 2 + (uint64_t)r, m, cols);
        int x = partial(k, c->x, cols, c->part[r], seed + (uint64_t)r);
        int res = fused(c) ? rig_act(k, c->out, cols, c->res) : -1;
        c->y[r] = fused(c) ? rig_normed_output(k, c->out, cols) : rig_output(k, c->out, cols);
        c->sum[r] = fused(c) ? rig_output(k, c->out, cols) : c->y[r];
        pz_weight *w = fused(c) ? rig_vector(k, new_name(k), PZ_DT_F32, cols, c->w, c->op) : NULL;
        pz_launch *l = rig_launch(k, c->op);
        rig_in(l, "x", x);
        l->out[0] = c->y[r];
        if (fused(c)) {
            rig_in(l, "res", res);
            rig_in_weight(l, "w", w);
            l->out[1] = c->sum[r];
        }
        if (c->fill) add_fill(k, cols, &c->buffer[r], l);
    }
}

void collective_free(collective *c) {
    for (int r = 0; r < PZ_MAX_RANKS; r++) pz_free(c->part[r]);
    pz_free(c->res);
    pz_free(c->w);
}

/* ---- checking ---- */
float collective_at(const rig *r, const unsigned char *memory, int place, int i) {
    const pz_place *p = &r->plan.places.at[place];
    uint16_t h;
    float f;
    if (p->type.dt == PZ_DT_BF16) return memcpy(&h, memory + p->offset + i * 2, 2), pz_bf16_to_f32(h);
    return memcpy(&f, memory + p->offset + i * 4, 4), f;
}

static void check_bits(const rig *k, const unsigned char *memory, int place, int rank, const float *want) {
    int m = k->plan.m, cols = (int)k->plan.places.at[place].type.dim[1];
    for (int i = 0; i < m * cols; i++) {
        float got = collective_at(k, memory, place, i);
        if (isnan(want[i]) ? isnan(got) : memcmp(&got, &want[i], 4) == 0) continue;
        fail_msg("rank %d, %d rows of %d: element (%d, %d) is %a, expected %a", rank, m, cols, i / cols, i % cols,
                 (double)got, (double)want[i]);
    }
}

static void check_same_on_all(rig *const *rigs, unsigned char *const *memory, int n, const int *places) {
    const pz_place *p = &rigs[0]->plan.places.at[places[0]];
    for (int r = 1; r < n; r++)
        assert_memory_equal(memory[r] + rigs[r]->plan.places.at[places[r]].offset, memory[0] + p->offset,
                            (size_t)p->bytes);
}

static void check_fill(const rig *k, const unsigned char *memory, int place, bool filled) {
    const pz_place *p = &k->plan.places.at[place];
    for (int64_t i = 0; i < p->bytes; i++)
        assert_int_equal(memory[p->offset + i], filled && i < filled_bytes(k, place) ? 0 : 0xff);
}

static void check_norm(const collective *c, const rig *k, const unsigned char *memory, int rank, const float *sum,
                       double norm_error) {
    int y = c->y[rank], cols = (int)k->plan.places.at[y].type.dim[1], norm = k->plan.places.at[y].norm;
    double limit = c->out == PZ_DT_BF16 ? 0x1p-8 : norm_error;
    float *got = new_rows(1, cols);
    for (int i = 0; i < k->plan.m; i++) {
        double square = 0;
        const float *row = sum + i * cols;
        for (int e = 0; e < cols; e++) square += (double)row[e] * (double)row[e];
        for (int e = 0; e < cols; e++) {
            double want = (double)row[e] / sqrt(square / cols + 1e-6) * (double)c->w[e];
            got[e] = collective_at(k, memory, y, i * cols + e);
            double off = fabs((double)got[e] - want);
            if (isnan(want) ? isnan(got[e]) : off <= limit * fabs(want) + 1e-37) continue;
            fail_msg("rank %d, %d rows: y (%d, %d) is %a, expected %a", rank, k->plan.m, i, e, (double)got[e], want);
        }
        float x_norm = norm_of(got, cols), has = collective_at(k, memory, norm, i);
        assert_true(isnan(x_norm) ? isnan(has) : x_norm == has);
    }
    pz_free(got);
}

void collective_check(const collective *c, rig *const *rigs, unsigned char *const *memory, int n, double norm_error,
                      bool filled) {
    int m = rigs[0]->plan.m, cols = (int)rigs[0]->plan.places.at[c->y[0]].type.dim[1];
    float *want = new_rows(m, cols);
    for (int i = 0; i < m * cols; i++) {
        float sum = c->part[0][i];
        double exact = (double)sum, size = fabs(exact);
        for (int r = 1; r < n; r++) {
            sum += c->part[r][i];
            exact += (double)c->part[r][i];
            size += fabs((double)c->part[r][i]);
        }
        if (isfinite(sum)) assert_true(fabs((double)sum - exact) <= size * 0x1p-23 * n);
        want[i] = rig_round(c->out, fused(c) ? sum + c->res[i] : sum);
    }
    for (int r = 0; r < n; r++) {
        check_bits(rigs[r], memory[r], c->sum[r], r, want);
        if (fused(c)) check_norm(c, rigs[r], memory[r], r, want, norm_error);
        if (c->fill) check_fill(rigs[r], memory[r], c->buffer[r], filled);
    }
    check_same_on_all(rigs, memory, n, c->sum);
    check_same_on_all(rigs, memory, n, c->y);
    pz_free(want);
}
