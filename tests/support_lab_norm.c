/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm with residual, x_norm and rider against float64. */
#include <stdio.h>

#include "support_lab.h"

typedef enum residual { NO_RES, RES, RES_IN_PLACE } residual;

typedef struct norm_spec {
    int m, hidden;
    pz_elem x, y; /* elements; res and r are as y */
    residual res;
    int r, x_norm, late, dependent; /* whether r and x_norm are written */
    int pad;                        /* elements beyond a row, a multiple of 8 */
    int64_t zero_bytes;             /* -1: no rider */
    elem_data data;
    int exponent, w_exponent;
    float w; /* 0: w is random */
    float eps;
    const gemm_poke *pokes; /* of x, bf16 only */
    int n_pokes;
    uint64_t seed;
} norm_spec;

/* A matrix with guards before and after it. */
typedef struct guarded {
    uint8_t *base;
    size_t bytes;
    int64_t rows, width, pitch; /* bytes */
} guarded;

enum { GUARD = GEMM_GUARD };

typedef struct norm_problem {
    lab *l;
    norm_spec s;
    int64_t ld;
    void *x, *res, *zeros;
    float *w, *fixed_x, *fixed_w;
    guarded y, r, x_norm, rider;
    double *mean;
    elem_result *outside, *wrong;
} norm_problem;

static guarded guarded_open(lab *l, int64_t rows, int64_t width, int64_t pitch, uint32_t word) {
    guarded g = {.rows = rows, .width = width, .pitch = pitch};
    g.bytes = (size_t)(rows * pitch + 2 * GUARD + 3) / 4 * 4;
    g.base = l->alloc(l, g.bytes);
    lab_poison(l, g.base, g.bytes, word, NULL);
    return g;
}

static void guarded_check(lab *l, const guarded *g, uint32_t word, elem_result *result) {
    if (g->base)
        lab_outside(l, (elem_outside){g->base, GUARD, g->rows, g->width, g->pitch, word, result}, (int64_t)g->bytes,
                    NULL);
}

static void *filled(lab *l, const norm_spec *s, int64_t ld, pz_elem elem, elem_data data, int exponent, uint64_t seed) {
    size_t bytes = (size_t)((s->m - 1) * ld + s->hidden) * (size_t)elem_size(elem);
    void *p = l->alloc(l, (bytes + 3) / 4 * 4);
    lab_poison(l, p, (bytes + 3) / 4 * 4, lab_patterns[0], NULL);
    lab_fill(l, (elem_fill){p, s->hidden, ld, elem, data, seed, exponent}, (int64_t)s->m * s->hidden, NULL);
    return p;
}

/* Powers of two around 1, as the norms of FIXED are. */
static float *powers(lab *l, int n, uint64_t seed) {
    float *host = pz_calloc((size_t)n, sizeof *host), *p = l->alloc(l, (size_t)n * sizeof *host);
    assert_non_null(host);
    for (int i = 0; i < n; i++) host[i] = ldexpf(1.0f, (int)(elem_hash(seed, (uint64_t)i) % 8));
    l->put(l, p, host, (size_t)n * sizeof *host);
    pz_free(host);
    return p;
}

static void norm_open(norm_problem *p, lab *l, const norm_spec *s, uint32_t word) {
    *p = (norm_problem){.l = l, .s = *s, .ld = s->hidden + s->pad};
    int size = elem_size(s->y);
    p->x = filled(l, s, p->ld, s->x, s->data, s->exponent, s->seed);
    for (int i = 0; i < s->n_pokes; i++)
        l->put(l, (uint16_t *)p->x + s->pokes[i].row * p->ld + s->pokes[i].col, &s->pokes[i].bits, 2);
    if (s->res) p->res = filled(l, s, p->ld, s->y, DATA_UNIFORM, s->exponent, s->seed + 1);
    p->w = l->alloc(l, (size_t)s->hidden * sizeof(float));
    lab_fill(l, (elem_fill){p->w, s->hidden, s->hidden, PZ_ELEM_F32, DATA_UNIFORM, s->seed + 2, s->w_exponent},
             s->hidden, NULL);
    if (s->w != 0) {
        uint32_t bits;
        memcpy(&bits, &s->w, sizeof bits);
        lab_poison(l, p->w, (size_t)s->hidden * sizeof(float), bits, NULL);
    }
    if (s->x == PZ_ELEM_FIXED) {
        p->fixed_x = powers(l, s->m, s->seed + 3);
        p->fixed_w = powers(l, s->hidden, s->seed + 4);
    }
    p->y = guarded_open(l, s->m, s->hidden * size, p->ld * size, word);
    if (s->r) p->r = guarded_open(l, s->m, s->hidden * size, p->ld * size, word);
    if (s->r && s->res == RES_IN_PLACE) /* the same values as in res, which stays for the reference */
        lab_fill(l, (elem_fill){p->r.base + GUARD, s->hidden, p->ld, s->y, DATA_UNIFORM, s->seed + 1, s->exponent},
                 (int64_t)s->m * s->hidden, NULL);
    if (s->x_norm) p->x_norm = guarded_open(l, 1, s->m * 4, s->m * 4, word);
    if (s->zero_bytes >= 0) {
        p->rider = guarded_open(l, 1, s->zero_bytes, s->zero_bytes, word);
        p->zeros = l->alloc(l, (size_t)s->zero_bytes + 4);
        lab_clear(l, p->zeros, (size_t)s->zero_bytes + 4, NULL);
    }
    p->mean = l->alloc(l, (size_t)s->m * sizeof *p->mean);
    p->outside = lab_result(l);
    p->wrong = lab_result(l);
}

static void norm_close(norm_problem *p) {
    void *all[] = {p->x,      p->res,         p->zeros,      p->w,    p->fixed_x, p->fixed_w, p->y.base,
                   p->r.base, p->x_norm.base, p->rider.base, p->mean, p->outside, p->wrong};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) p->l->release(p->l, all[i]);
}

static pz_norm_args norm_args(const norm_problem *p) {
    const norm_spec *s = &p->s;
    pz_norm_args a = {.size = sizeof a,
                      .x = {p->x, p->ld, s->x, p->fixed_x, p->fixed_w},
                      .w = p->w,
                      .eps = s->eps,
                      .y = {p->y.base + GUARD, p->ld, s->y, NULL, NULL},
                      .m = s->m,
                      .hidden = s->hidden,
                      .late = s->late,
                      .dependent = s->dependent};
    if (s->r) a.r = (pz_matrix){p->r.base + GUARD, p->ld, s->y, NULL, NULL};
    if (s->res) a.res = s->res == RES_IN_PLACE && s->r ? a.r : (pz_matrix){p->res, p->ld, s->y, NULL, NULL};
    if (s->x_norm) a.x_norm = (float *)(void *)(p->x_norm.base + GUARD);
    if (s->zero_bytes >= 0) {
        a.zero = p->rider.base + GUARD;
        a.zero_bytes = (size_t)s->zero_bytes;
    }
    return a;
}

static void norm_check(norm_problem *p, uint32_t word, const pz_norm_args *a) {
    lab *l = p->l;
    int64_t elements = (int64_t)p->s.m * p->s.hidden;
    elem_rms rms = {a->x, {0}, a->y, a->r, a->w, a->x_norm, (double)a->eps, a->hidden, p->mean, p->wrong};
    if (p->s.res) rms.res = (pz_matrix){p->res, p->ld, p->s.y, NULL, NULL};
    lab_rms_row(l, rms, p->s.m, NULL);
    lab_rms(l, rms, elements, NULL);
    guarded_check(l, &p->y, word, p->outside);
    guarded_check(l, &p->r, word, p->outside);
    guarded_check(l, &p->x_norm, word, p->outside);
    if (p->s.zero_bytes > 0) {
        int64_t words = p->s.zero_bytes / 4;
        lab_equal(l, (elem_equal){p->rider.base + GUARD, p->zeros, words, words, words, 4, p->outside}, words, NULL);
    }
    if (p->s.zero_bytes > 0) guarded_check(l, &p->rider, word, p->outside);
}

static void norm_try(lab *l, const norm_spec *s, uint32_t word) {
    norm_problem p;
    pz_error err = {0};
    if (lab_done(l)) return;
    norm_open(&p, l, s, word);
    pz_norm_args a = norm_args(&p);
    pz_status st = l->rms_norm(&a, &err);
    norm_check(&p, word, &a);
    elem_result wrong = lab_result_get(l, p.wrong), outside = lab_result_get(l, p.outside);
    if (st != PZ_OK || wrong.wrong || outside.wrong)
        lab_fault(l,
                  "rms_norm m %d hidden %d elements %d %d res %d r %d x_norm %d rider %lld late %d data %d 2^%d seed "
                  "%llu: %s %s; %llu wrong, first at row %lld column %lld; %llu bytes or words outside or not zeroed, "
                  "first %lld",
                  s->m, s->hidden, s->x, s->y, s->res, s->r, s->x_norm, (long long)s->zero_bytes, s->late, s->data,
                  s->exponent, (unsigned long long)s->seed, pz_status_name(st), err.msg, wrong.wrong,
                  (long long)wrong.first / s->hidden, (long long)wrong.first % s->hidden, outside.wrong,
                  (long long)outside.first);
    norm_close(&p);
}

static norm_spec random_norm(uint64_t *state, int m, int hidden) {
    /* less than a block's 49152 bytes, one block, several, and more than that for each unit */
    static const int64_t riders[] = {-1, 0, 16, 48, 4096 + 16, 49152, 197632, 1 << 20, (7 << 20) + 32};
    norm_spec s = {.m = m, .hidden = hidden, .seed = pz_rng_next(state) >> 16, .eps = 1e-6f};
    s.x = (pz_elem)lab_int(state, 0, 2);
    s.y = (pz_elem)lab_int(state, 0, 1);
    s.res = (residual)lab_int(state, 0, 2);
    s.r = s.res == RES_IN_PLACE ? 1 : lab_int(state, 0, 1);
    s.x_norm = lab_int(state, 0, 3) > 0;
    s.late = lab_int(state, 0, 1);
    s.dependent = lab_int(state, 0, 1);
    s.pad = 8 * lab_int(state, 0, 2);
    s.zero_bytes = riders[lab_int(state, 0, 8)];
    s.data = lab_int(state, 0, 2) ? DATA_UNIFORM : lab_int(state, 0, 1) ? DATA_SPREAD : DATA_HOLES;
    s.exponent = lab_int(state, 0, 1) ? 0 : lab_int(state, -20, 20);
    return s;
}

void suite_norm_random(lab *l) {
    static const int ms[] = {1, 2, 5, 8, 17, 64, 100, 131, 132, 133, 264, 300};
    static const int hiddens[] = {8, 16, 24, 512, 1536, 2048, 4088, 4096, 4104, 7168, 8192, 8200, 16376, 16384};
    int n_m = l->small ? 3 : (int)(sizeof ms / sizeof *ms);
    int n_h = l->small ? 5 : (int)(sizeof hiddens / sizeof *hiddens);
    uint64_t state = 51;
    for (int i = 0; i < n_m; i++)
        for (int j = 0; j < n_h; j++)
            for (int k = 0; k < 3; k++) {
                norm_spec s = random_norm(&state, ms[i], hiddens[j]);
                if (l->small && s.zero_bytes > 40000) s.zero_bytes = 4096;
                norm_try(l, &s, lab_patterns[k & 1]);
            }
    for (int x = 0; x < 3; x++) /* every element, residual and rider */
        for (int y = 0; y < 2; y++)
            for (int res = 0; res < 3; res++)
                for (int more = 0; more < 8; more++) {
                    norm_spec s =
                        random_norm(&state, l->small ? 3 : lab_int(&state, 1, 40), 8 * lab_int(&state, 1, 99));
                    s.x = (pz_elem)x;
                    s.y = (pz_elem)y;
                    s.res = (residual)res;
                    s.r = res == RES_IN_PLACE || (more & 1);
                    s.x_norm = more >> 1 & 1;
                    s.zero_bytes = more & 4 ? 16 * lab_int(&state, 1, 999) : -1;
                    norm_try(l, &s, lab_patterns[more & 1]);
                }
}

/* Norms that the rounding of y carries over a power of two, and rows whose squares, products with w or scale leave the
 * range of f32 where y does not. */
static void norm_edges(lab *l) {
    static const struct {
        elem_data data;
        int hidden, exponent, w_exponent;
        float w, eps;
    } cases[] = {
        {DATA_SIGNS, 4048, 0, 0, 1 + 0x1p-8f + 0x1p-12f, 0}, /* up: 63.9 to 64.1 */
        {DATA_SIGNS, 4128, 0, 0, 1 - 0x1p-9f - 0x1p-12f, 0}, /* down: 64.1 to 63.9 */
        {DATA_UNIFORM, 4096, 0, 0, 1, 1e-6f},                /* 64, more or less */
        {DATA_UNIFORM, 520, 0, 70, 0, 1e-6f},
        {DATA_UNIFORM, 520, 0, 110, 0, 1e-6f},
        {DATA_UNIFORM, 520, 0, -70, 0, 1e-6f},
        {DATA_UNIFORM, 520, 0, -90, 0, 1e-6f},
        {DATA_UNIFORM, 520, 0, -120, 0, 1e-6f},
        {DATA_UNIFORM, 520, 55, 60, 0, 1e-6f},
        {DATA_UNIFORM, 520, 55, -60, 0, 1e-6f},
        {DATA_UNIFORM, 520, -15, 0, 0, 0},
        {DATA_UNIFORM, 520, -30, 50, 0, 0},
        {DATA_UNIFORM, 520, -30, -90, 0, 0},
        {DATA_UNIFORM, 520, -60, 0, 0, 0},
    };
    uint64_t state = 83;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int y = 0; y < 2; y++) {
            norm_spec s = random_norm(&state, l->small ? 3 : 140, cases[i].hidden);
            s.x = PZ_ELEM_BF16;
            s.y = (pz_elem)y;
            s.res = NO_RES;
            s.r = (int)(i & 1);
            s.x_norm = 1;
            s.data = cases[i].data;
            s.exponent = cases[i].exponent;
            s.w_exponent = cases[i].w_exponent;
            s.w = cases[i].w;
            s.eps = cases[i].eps;
            norm_try(l, &s, lab_patterns[1]);
        }
}

void suite_norm_special(lab *l) {
    const gemm_poke pokes[] = {{0, 0, 3, 0x7fc0}, {0, 2, 7, 0x7f80}, {0, 4, 0, 0xff80}, {0, 5, 1, 0x7f7f}};
    static const struct {
        elem_data data;
        int exponent, n_pokes;
    } cases[] = {{DATA_UNIFORM, 0, 4},  {DATA_HOLES, 0, 1},     {DATA_UNIFORM, 50, 0},  {DATA_UNIFORM, 58, 0},
                 {DATA_UNIFORM, 64, 0}, {DATA_UNIFORM, 110, 0}, {DATA_UNIFORM, -60, 0}, {DATA_UNIFORM, -110, 0},
                 {DATA_DENORMAL, 0, 0}, {DATA_SPREAD, 0, 0},    {DATA_TERNARY, 0, 0}};
    uint64_t state = 67;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int y = 0; y < 2; y++)
            for (int res = 0; res < 2; res++) {
                norm_spec s = random_norm(&state, 7, l->small ? 264 : 7168);
                s.x = PZ_ELEM_BF16;
                s.y = (pz_elem)y;
                s.res = res ? RES : NO_RES;
                s.r = res;
                s.x_norm = 1;
                s.zero_bytes = 4096;
                s.data = cases[i].data;
                s.exponent = cases[i].exponent;
                s.pokes = pokes;
                s.n_pokes = cases[i].n_pokes;
                norm_try(l, &s, lab_patterns[1]);
            }
    norm_edges(l);
}

void suite_norm_arguments(lab *l) {
    norm_spec s = {.m = 3,
                   .hidden = 64,
                   .x = PZ_ELEM_FIXED,
                   .res = RES,
                   .r = 1,
                   .x_norm = 1,
                   .zero_bytes = 256,
                   .eps = 1e-5f,
                   .seed = 9};
    struct {
        const char *what;
        pz_norm_args a;
    } bad[24];
    int n = 0;
    norm_problem p;
    norm_open(&p, l, &s, lab_patterns[0]);
    const pz_norm_args good = norm_args(&p);
#define BAD(text, ...)                 \
    do {                               \
        bad[n].what = text;            \
        bad[n].a = good;               \
        pz_norm_args *a = &bad[n++].a; \
        __VA_ARGS__;                   \
    } while (0)
    BAD("m 0", a->m = 0);
    BAD("m -2", a->m = -2);
    BAD("hidden 0", a->hidden = 0);
    BAD("hidden 12", a->hidden = 12);
    BAD("hidden 16392", a->hidden = 16392; a->x.ld = a->y.ld = a->res.ld = a->r.ld = 16392);
    BAD("x NULL", a->x.data = NULL);
    BAD("w NULL", a->w = NULL);
    BAD("y NULL", a->y.data = NULL);
    BAD("x without x_norm", a->x.x_norm = NULL);
    BAD("x without w_norm", a->x.w_norm = NULL);
    BAD("y fixed", a->y.elem = PZ_ELEM_FIXED);
    BAD("r fixed", a->r.elem = PZ_ELEM_FIXED);
    BAD("x unaligned", a->x.data = (char *)a->x.data + 4);
    BAD("y unaligned", a->y.data = (char *)a->y.data + 2);
    BAD("zero unaligned", a->zero = (char *)a->zero + 8);
    BAD("zero_bytes 24", a->zero_bytes = 24);
    BAD("size 0", a->size = 0);
    BAD("size too large", a->size = sizeof *a + 8);
#undef BAD
    for (int i = 0; i < n; i++) {
        pz_error err = {0};
        pz_status st = l->rms_norm(&bad[i].a, &err);
        if ((st != PZ_E_INVAL && st != PZ_E_UNSUPPORTED) || err.code != st || !err.msg[0])
            lab_fault(l, "rms_norm with %s gives %s '%s'", bad[i].what, pz_status_name(st), err.msg);
    }
    const guarded *outputs[] = {&p.y, &p.r, &p.x_norm, &p.rider};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        guarded untouched = *outputs[i];
        untouched.rows = 0;
        guarded_check(l, &untouched, lab_patterns[0], p.outside);
    }
    if (lab_result_get(l, p.outside).wrong) lab_fault(l, "a refused rms_norm has written");
    pz_error err = {0};
    if (l->rms_norm(&good, &err) != PZ_OK) lab_fault(l, "the arguments that all others are made of: %s", err.msg);
    norm_close(&p);
}
