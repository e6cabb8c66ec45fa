/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the GPU kernels compute per element: data, float64 references, error bounds and comparisons. The
 * same source runs on the host, where fake kernels show that every comparison can fail, and on the GPU, where it is
 * fast enough for large shapes. Shares nothing with the kernels under test. */
#ifndef PZ_TEST_SUPPORT_ELEM_H
#define PZ_TEST_SUPPORT_ELEM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "prezero/kernels.h"

#ifdef __CUDACC__
#define ELEM_FN static __host__ __device__ inline
#else
#define ELEM_FN static inline
#endif

/* ---- results: how many elements are wrong, the first of them, the largest error over its bound ---- */
typedef struct elem_result {
    unsigned long long wrong, first;
    uint32_t worst; /* bits of a float >= 0 */
    uint32_t unused;
} elem_result;

ELEM_FN void elem_wrong(elem_result *r, int64_t at) {
#ifdef __CUDA_ARCH__
    atomicAdd(&r->wrong, 1ull);
    atomicMin(&r->first, (unsigned long long)at);
#else
    unsigned long long first = __atomic_load_n(&r->first, __ATOMIC_RELAXED);
    __atomic_fetch_add(&r->wrong, 1, __ATOMIC_RELAXED);
    while ((unsigned long long)at < first && !__atomic_compare_exchange_n(&r->first, &first, (unsigned long long)at, 1,
                                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
#endif
}

/* The load before the atomic keeps elements that change nothing off the one word. */
ELEM_FN void elem_worst(elem_result *r, float ratio) {
    uint32_t bits;
    memcpy(&bits, &ratio, 4);
#ifdef __CUDA_ARCH__
    if (bits > *(volatile uint32_t *)&r->worst) atomicMax(&r->worst, bits);
#else
    uint32_t old = __atomic_load_n(&r->worst, __ATOMIC_RELAXED);
    while (bits > old && !__atomic_compare_exchange_n(&r->worst, &old, bits, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
#endif
}

/* ---- numbers ---- */
ELEM_FN float elem_bf16(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* To nearest, ties to even; not for NaN. */
ELEM_FN uint16_t elem_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
ELEM_FN int elem_finite(double v) {
    return v - v == 0;
}
/* 2^e in double, -1022 <= e <= 1023. */
ELEM_FN double elem_exp2(int e) {
    uint64_t u = (uint64_t)(e + 1023) << 52;
    double d;
    memcpy(&d, &u, 8);
    return d;
}

/* The norm of the fixed-point accumulator: the smallest power of two >= root * (1 + headroom), at least 2^-100; NaN
 * above 2^112 and for what is no number. */
ELEM_FN float elem_norm_up(double sum_of_squares) {
    if (!elem_finite(sum_of_squares)) return (float)NAN;
    double root = sqrt(sum_of_squares) * (1.0 + 0x1p-20);
    for (int e = -100; e <= 112; e++)
        if (root <= elem_exp2(e)) return (float)elem_exp2(e);
    return (float)NAN;
}

/* Element of a matrix as f64; FIXED is scaled exactly, NaN where the product of the norms is none. */
ELEM_FN double elem_get(const pz_matrix *a, int64_t row, int64_t col) {
    int64_t i = row * a->ld + col;
    if (a->elem == PZ_ELEM_F32) return ((const float *)a->data)[i];
    if (a->elem == PZ_ELEM_BF16) return elem_bf16(((const uint16_t *)a->data)[i]);
    float bound = a->x_norm[row] * a->w_norm[col];
    if (!elem_finite(bound)) return NAN;
    return (double)((const int32_t *)a->data)[i] * 0x1p-30 * (double)a->x_norm[row] * (double)a->w_norm[col];
}
ELEM_FN int elem_size(pz_elem e) {
    return e == PZ_ELEM_BF16 ? 2 : 4;
}

/* ---- data, a function of (seed, row, col) ---- */
typedef enum elem_data {
    DATA_UNIFORM,  /* [-1, 1) */
    DATA_SPREAD,   /* [-1, 1) times 2^-12 ... 2^11 */
    DATA_TERNARY,  /* -1, 0, 1; a quarter is not 0: sums of up to 16384 products stay below 256, exact in bf16 */
    DATA_HUGE_ROW, /* -4 ... 4, and one 2^16 in the row, at an even column */
    DATA_HUGE_COL, /* the same at an odd column: with HUGE_ROW, units of the accumulator are larger than 1 */
    DATA_DENORMAL, /* below the smallest normal number */
    DATA_HOLES,    /* [-1, 1), every fourth row 0 */
    DATA_SIGNS,    /* -1, 1 */
} elem_data;

ELEM_FN uint64_t elem_hash(uint64_t seed, uint64_t i) {
    uint64_t z = seed * 0xD1342543DE82EF95u + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

ELEM_FN float elem_value(elem_data kind, uint64_t seed, int64_t row, int64_t col, int64_t cols) {
    uint64_t h = elem_hash(seed, (uint64_t)(row * cols + col));
    float unit = (float)(h >> 40) * 0x1p-23f - 1.0f;
    switch (kind) {
    case DATA_SPREAD: return unit * (float)elem_exp2((int)(h & 0xffff) % 24 - 12);
    case DATA_TERNARY: return h & 3 ? 0.0f : h & 4 ? 1.0f : -1.0f;
    case DATA_HUGE_ROW:
    case DATA_HUGE_COL: {
        int64_t at = (int64_t)(elem_hash(seed + 1, (uint64_t)row) % (uint64_t)(cols / 2)) * 2 + (kind == DATA_HUGE_COL);
        return col == at ? 65536.0f : (float)((int)(h % 9) - 4);
    }
    case DATA_DENORMAL: return unit * 0x1p-126f;
    case DATA_HOLES: return row % 4 == 3 ? 0.0f : unit;
    case DATA_SIGNS: return h & 4 ? 1.0f : -1.0f;
    default: return unit;
    }
}

/* One block of parameters a kind of work, and the work on element i. */
typedef struct elem_fill {
    void *dst; /* BF16 or F32 [.., cols] */
    int64_t cols, ld;
    pz_elem elem;
    elem_data kind;
    uint64_t seed;
    int exponent; /* every value times 2^exponent */
} elem_fill;
ELEM_FN void elem_fill_at(const elem_fill *p, int64_t i) {
    int64_t row = i / p->cols, col = i % p->cols, at = row * p->ld + col;
    float v = (float)((double)elem_value(p->kind, p->seed, row, col, p->cols) * elem_exp2(p->exponent));
    if (p->elem == PZ_ELEM_F32)
        ((float *)p->dst)[at] = v;
    else if (p->elem == PZ_ELEM_BF16)
        ((uint16_t *)p->dst)[at] = elem_to_bf16(v);
    else
        ((int32_t *)p->dst)[at] = (int32_t)(v * 0x1p28f);
}

/* Words of a pattern that a result must not show, and rows of zeros. */
typedef struct elem_pattern {
    uint32_t *dst, word;
} elem_pattern;
ELEM_FN void elem_pattern_at(const elem_pattern *p, int64_t i) {
    p->dst[i] = p->word;
}
typedef struct elem_zero {
    uint8_t *dst;
    int64_t width, pitch; /* bytes */
} elem_zero;
ELEM_FN void elem_zero_at(const elem_zero *p, int64_t i) {
    p->dst[i / p->width * p->pitch + i % p->width] = 0;
}

/* Bytes of an allocation outside `rows` rows of `width` bytes at `begin`: still the pattern? */
typedef struct elem_outside {
    const uint8_t *base;
    int64_t begin, rows, width, pitch; /* bytes */
    uint32_t word;
    elem_result *result;
} elem_outside;
ELEM_FN void elem_outside_at(const elem_outside *p, int64_t i) {
    int64_t at = i - p->begin;
    if (at >= 0 && at / p->pitch < p->rows && at % p->pitch < p->width) return;
    if (p->base[i] != (uint8_t)(p->word >> (8 * (i & 3)))) elem_wrong(p->result, i);
}

/* Bit by bit equality of [.., cols] elements of `size` bytes. */
typedef struct elem_equal {
    const void *a, *b;
    int64_t lda, ldb, cols;
    int size;
    elem_result *result;
} elem_equal;
ELEM_FN void elem_equal_at(const elem_equal *p, int64_t i) {
    int64_t row = i / p->cols, col = i % p->cols, a = row * p->lda + col, b = row * p->ldb + col;
    int same = p->size == 2 ? ((const uint16_t *)p->a)[a] == ((const uint16_t *)p->b)[b]
                            : ((const uint32_t *)p->a)[a] == ((const uint32_t *)p->b)[b];
    if (!same) elem_wrong(p->result, i);
}

/* Norms of the rows of a bf16 matrix. */
typedef struct elem_norms {
    const uint16_t *a;
    int64_t ld, cols;
    float *norm;
} elem_norms;
ELEM_FN void elem_norms_at(const elem_norms *p, int64_t row) {
    double sum = 0;
    for (int64_t k = 0; k < p->cols; k++) {
        double v = elem_bf16(p->a[row * p->ld + k]);
        sum += v * v;
    }
    p->norm[row] = elem_norm_up(sum);
}

/* ---- GEMM ---- */
/* Of every element: the sum, the sum of magnitudes, the sum of squares of its products, in f64. Products of bf16 are
 * exact there. Rows begin at multiples of 16 bytes. */
typedef struct elem_reference {
    const uint16_t *x, *w;
    int64_t ldx, ldw, n, k;
    double *sum, *abs, *squares;
} elem_reference;
ELEM_FN void elem_reference_at(const elem_reference *p, int64_t i) {
    const uint16_t *x = p->x + i / p->n * p->ldx, *w = p->w + i % p->n * p->ldw;
    double sum = 0, abs = 0, squares = 0;
    for (int64_t k = 0; k < p->k; k += 8) {
        uint16_t xs[8] __attribute__((aligned(16))), ws[8] __attribute__((aligned(16)));
        memcpy(xs, __builtin_assume_aligned(x + k, 16), 16);
        memcpy(ws, __builtin_assume_aligned(w + k, 16), 16);
        for (int j = 0; j < 8; j++) {
            double v = (double)elem_bf16(xs[j]) * (double)elem_bf16(ws[j]);
            sum += v;
            abs += fabs(v);
            squares += v * v;
        }
    }
    p->sum[i] = sum;
    p->abs[i] = abs;
    p->squares[i] = squares;
}

/* What FIXED holds, by its definition: the sum over units of K of round(sum of the unit * scale), for data whose sums
 * of a unit are exact in f32. */
typedef struct elem_fixed {
    const uint16_t *x, *w;
    int64_t ldx, ldw, n, k, unit; /* unit: values of k */
    const float *x_norm, *w_norm;
    const int32_t *y;
    int64_t ldy;
    elem_result *result;
} elem_fixed;
ELEM_FN void elem_fixed_at(const elem_fixed *p, int64_t i) {
    int64_t row = i / p->n, col = i % p->n, want = 0;
    double scale = 0x1p30 / ((double)p->x_norm[row] * (double)p->w_norm[col]);
    for (int64_t k0 = 0; k0 < p->k; k0 += p->unit) {
        int64_t k1 = k0 + p->unit < p->k ? k0 + p->unit : p->k;
        double sum = 0;
        for (int64_t k = k0; k < k1; k++)
            sum += (double)elem_bf16(p->x[row * p->ldx + k]) * (double)elem_bf16(p->w[col * p->ldw + k]);
        want += (int64_t)rint(sum * scale);
    }
    if (p->y[row * p->ldy + col] != want) elem_wrong(p->result, i);
}

/* Error bounds of a GEMM's element. Nothing here is tuned to what kernels happen to give.
 *
 * f32 sums. A matrix instruction adds 16 products and the accumulator: it aligns them to the largest and cuts each off
 * below 2^-25 of it, then cuts the result to 24 bits, so it errs by at most (17/4 + 1) 2^-23 < 6 * 2^-23 of the
 * largest partial sum P; so does, with less, any addition in f32. A sum of K takes K/16 of them and some that join
 * warps and splits. P is at most the sum of magnitudes; for data with independent random signs it is also below 8
 * times the root of the sum of squares (which a subset of the products exceeds with probability 1e-15).
 *
 * FIXED. The f32 sum of each unit of K errs as above, with a P of its own (together at most sqrt(units) times that of
 * the whole), its rounding by half of the accumulator's unit.
 *
 * bf16. The result is rounded once, or each of `adds` partial sums and each addition of one, by 2^-8 each (bf16 has 8
 * bits). */
typedef struct elem_limits {
    pz_accum accum;
    int adds;        /* partial sums that are added into the output; 0: it is stored, and bf16 rounded once */
    int exact;       /* every sum and partial sum is exact in the accumulator: no error at all */
    int64_t k, unit; /* FIXED: values of k that are summed before they are rounded */
} elem_limits;
ELEM_FN double elem_bound(const elem_limits *l, double sum, double abs, double squares, float x_norm, float w_norm) {
    const double step = 6 * 0x1p-23;
    double root = sqrt(squares);
    if (l->exact || abs == 0) return 0;
    if (l->accum == PZ_ACCUM_FIXED) {
        double one = 0x1p-30 * (double)x_norm * (double)w_norm, units = (double)((l->k + l->unit - 1) / l->unit);
        double steps = (double)l->unit / 16 + 1;
        return step * steps * fmin(abs, 8 * sqrt(units) * root) + (units / 2 + 1) * one + 0x1p-126;
    }
    double most = fmin(abs, 8 * root), steps = (double)(l->k / 16 + l->adds + 64);
    double f32 = step * steps * most + steps * 0x1p-126;
    if (l->accum == PZ_ACCUM_F32) return f32;
    return f32 + 0x1p-8 * (l->adds ? 2 * l->adds * most : fabs(sum) + f32) + 0x1p-126;
}

typedef struct elem_check {
    pz_matrix y; /* with the norms if FIXED */
    const double *sum, *abs, *squares;
    int64_t n;
    elem_limits limits;
    elem_result *result;
} elem_check;
/* Where the sum of magnitudes leaves the range of f32, partial sums may overflow. Then NaN and Inf are right, finite
 * values only within the bound; where the sum itself is none, nothing finite is right. */
ELEM_FN void elem_check_at(const elem_check *p, int64_t i) {
    int64_t row = i / p->n, col = i % p->n;
    double got = elem_get(&p->y, row, col), sum = p->sum[i];
    float x_norm = 0, w_norm = 0;
    int finite = p->abs[i] < 0x1.fp127;
    if (p->limits.accum == PZ_ACCUM_FIXED) {
        x_norm = p->y.x_norm[row];
        w_norm = p->y.w_norm[col];
        finite = elem_finite(x_norm * w_norm);
        if (!finite && elem_finite(got)) elem_wrong(p->result, i);
        if (!finite) return;
    }
    if (!elem_finite(got) || !elem_finite(sum)) {
        if (finite || elem_finite(got)) elem_wrong(p->result, i);
        return;
    }
    double bound = elem_bound(&p->limits, sum, p->abs[i], p->squares[i], x_norm, w_norm), error = fabs(got - sum);
    if (!(error <= bound))
        elem_wrong(p->result, i);
    else if (bound > 0)
        elem_worst(p->result, (float)(error / bound));
}

/* Where the sum is large enough for it to mean something: bf16 of FIXED against bf16 of float64, at most one unit in
 * the last place apart. */
typedef struct elem_ulp {
    pz_matrix y;
    const double *sum, *squares;
    int64_t n;
    elem_result *result;
} elem_ulp;
ELEM_FN void elem_ulp_at(const elem_ulp *p, int64_t i) {
    double got = elem_get(&p->y, i / p->n, i % p->n), sum = p->sum[i];
    if (fabs(sum) < sqrt(p->squares[i]) / 4) return;
    int a = elem_to_bf16((float)got), b = elem_to_bf16((float)sum);
    if (!elem_finite(got) || a - b > 1 || b - a > 1) elem_wrong(p->result, i);
}

/* ---- RMSNorm ---- */
typedef struct elem_rms {
    pz_matrix x, res, y, r; /* as the kernel had them; `res` a copy where r overwrote it; res, r: data NULL if absent */
    const float *w, *x_norm; /* x_norm NULL: not written */
    double eps;
    int64_t hidden;
    double *mean; /* [m]: mean square of what is normalised */
    elem_result *result;
} elem_rms;

/* x + res as the kernel normalises it: in f32, rounded to r's element if r is written. */
ELEM_FN float elem_rms_sum(const elem_rms *p, int64_t row, int64_t col) {
    float v;
    if (p->x.elem == PZ_ELEM_FIXED) {
        float bound = p->x.x_norm[row] * p->x.w_norm[col];
        v = elem_finite(bound) ? (float)((const int32_t *)p->x.data)[row * p->x.ld + col] * 0x1p-30f * bound
                               : (float)NAN;
    } else {
        v = (float)elem_get(&p->x, row, col);
    }
    if (p->res.data) v += (float)elem_get(&p->res, row, col);
    if (p->r.data && p->r.elem == PZ_ELEM_BF16 && v == v) v = elem_bf16(elem_to_bf16(v));
    return v;
}

/* Of each row: the mean, and x_norm against the true norm of y as stored: a power of two, not below it, and less than
 * twice it but for the head room of base/fixed.h that covers the rounding of the sum in f64. */
ELEM_FN void elem_rms_row_at(const elem_rms *p, int64_t row) {
    double squares = 0, norm = 0;
    for (int64_t i = 0; i < p->hidden; i++) {
        double v = elem_rms_sum(p, row, i), y = elem_get(&p->y, row, i);
        squares += v * v;
        norm += y * y;
    }
    p->mean[row] = squares / (double)p->hidden;
    if (!p->x_norm) return;
    float got = p->x_norm[row];
    uint32_t bits;
    memcpy(&bits, &got, 4);
    norm = sqrt(norm);
    if (!elem_finite(norm) || norm > 0x1p112) {
        if (elem_finite(got)) elem_wrong(p->result, row * p->hidden);
        return;
    }
    int power = (bits & 0x807fffffu) == 0 && elem_finite(got);
    if (!power || (double)got < norm || ((double)got >= 2 * norm * (1 + 0x1p-19) && got != 0x1p-100f))
        elem_wrong(p->result, row * p->hidden);
}

/* Each element of r, bit by bit, and of y. The scale errs by at most 64 roundings of 2^-24: 32 additions a thread and
 * 10 of a tree for 16384 columns, halved by the root; root, division and products. Where the mean square leaves the
 * range of f32 nothing finite but the right value is right. */
ELEM_FN void elem_rms_at(const elem_rms *p, int64_t i) {
    int64_t row = i / p->hidden, col = i % p->hidden;
    float v = elem_rms_sum(p, row, col);
    if (p->r.data) {
        double r = elem_get(&p->r, row, col);
        if (v == v ? r != v : elem_finite(r)) elem_wrong(p->result, i);
    }
    double want = (double)v / sqrt(p->mean[row] + p->eps) * (double)p->w[col], got = elem_get(&p->y, row, col);
    int overflow = p->mean[row] * (double)p->hidden >= 0x1.fp127;
    if (!elem_finite(want) || !elem_finite(got)) {
        if (elem_finite(got) || (elem_finite(want) && !overflow)) elem_wrong(p->result, i);
        return;
    }
    double bound = fabs(want) * (64 * 0x1p-24 + (p->y.elem == PZ_ELEM_BF16 ? 0x1p-8 : 0)) + 0x1p-126;
    if (!(fabs(got - want) <= bound)) elem_wrong(p->result, i);
}

/* ---- chains of launches ---- */
/* Copies input number (counter mod n) to dst, in words. */
typedef struct elem_advance {
    const uint32_t *inputs;
    uint32_t *dst;
    int64_t words; /* of one input */
    const unsigned long long *counter;
    unsigned n;
} elem_advance;
ELEM_FN void elem_advance_at(const elem_advance *p, int64_t i) {
    p->dst[i] = p->inputs[(int64_t)(*p->counter % p->n) * p->words + i];
}
/* Compares everything with what is expected for that input. */
typedef struct elem_expect {
    const uint32_t *got, *expected;
    int64_t words;
    const unsigned long long *counter;
    unsigned n;
    elem_result *result;
} elem_expect;
ELEM_FN void elem_expect_at(const elem_expect *p, int64_t i) {
    if (p->got[i] != p->expected[(int64_t)(*p->counter % p->n) * p->words + i]) elem_wrong(p->result, i);
}
typedef struct elem_tick {
    unsigned long long *counter;
} elem_tick;
ELEM_FN void elem_tick_at(const elem_tick *p, int64_t i) {
    *p->counter += (unsigned long long)(i + 1);
}

/* Every kind of work: name, of the function elem_NAME_at too, and struct of parameters. */
#define ELEM_WORKS(X)            \
    X(fill, elem_fill)           \
    X(pattern, elem_pattern)     \
    X(zero, elem_zero)           \
    X(outside, elem_outside)     \
    X(equal, elem_equal)         \
    X(norms, elem_norms)         \
    X(reference, elem_reference) \
    X(fixed, elem_fixed)         \
    X(check, elem_check)         \
    X(ulp, elem_ulp)             \
    X(rms_row, elem_rms)         \
    X(rms, elem_rms)             \
    X(advance, elem_advance)     \
    X(expect, elem_expect)       \
    X(tick, elem_tick)

typedef enum lab_work {
#define LAB_WORK(name, params) LAB_##name,
    ELEM_WORKS(LAB_WORK)
#undef LAB_WORK
} lab_work;

#endif
