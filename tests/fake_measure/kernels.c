/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels, the rival, and what measurements need beside them, on the host. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/measure/kernels.h"
#include "backend/cuda/measure/rival.h"
#include "backend/cuda/norm/norm.h"
#include "base/fixed.h"
#include "base/rng.h"
#include "fake_measure/launches.h"

enum { MOST = 1 << 16 };
static uint16_t stale[MOST]; /* what y of the last norm but one was */

/* ---- execution ---- */
static void execute_norm(const pz_norm_args *a) {
    const uint16_t *x = a->x.data, *res = a->res.data;
    uint16_t *y = a->y.data, *r = a->r.data;
    size_t elements = (size_t)a->m * (size_t)a->hidden;
    memcpy(stale, y, elements * sizeof *y);
    for (int row = 0; row < a->m; row++) {
        double squares = 0, out = 0;
        for (int i = 0; i < a->hidden; i++) {
            size_t at = (size_t)row * (size_t)a->hidden + (size_t)i;
            r[at] = pz_f32_to_bf16(pz_bf16_to_f32(x[at]) + pz_bf16_to_f32(res[at]));
            squares += pow(pz_bf16_to_f32(r[at]), 2);
        }
        for (int i = 0; i < a->hidden; i++) {
            size_t at = (size_t)row * (size_t)a->hidden + (size_t)i;
            y[at] = pz_f32_to_bf16(pz_bf16_to_f32(r[at]) * a->w[i] / sqrtf((float)squares / (float)a->hidden));
            out += pow(pz_bf16_to_f32(y[at]), 2);
        }
        if (a->x_norm) a->x_norm[row] = pz_fixed_norm(out);
    }
    size_t bytes = a->zero_bytes + (fake.long_rider ? 16 : 0) - (fake.short_rider ? 16 : 0);
    if (a->zero && !fake.no_rider) memset(a->zero, 0, bytes);
    fake.norms++;
    fake_advance(fake.norm_us - (a->dependent ? fake.dependent_us : 0) + (a->zero ? fake.rider_us : 0));
}

static double dot(const pz_gemm_args *a, const uint16_t *x, int row, int column, int k) {
    const uint16_t *w = (const uint16_t *)a->w + (size_t)column * (size_t)a->ldw;
    double sum = 0;
    for (int i = 0; i < k; i++) sum += (double)pz_bf16_to_f32(x[row * a->ldx + i]) * (double)pz_bf16_to_f32(w[i]);
    return sum;
}

static void put(const pz_gemm_args *a, int row, int column, double p) {
    int64_t at = row * a->ldy + column;
    bool adds = a->strategy == PZ_ZERO_PREZERO;
    if (a->accum == PZ_ACCUM_FIXED) {
        int32_t *y = (int32_t *)a->y + at,
                q = (int32_t)lrint(p * 0x1p30 / (double)a->x_norm[row] / (double)a->w_norm[column]);
        *y = (int32_t)((adds ? (uint32_t)*y : 0) + (uint32_t)q);
    } else if (a->accum == PZ_ACCUM_F32) {
        float *y = (float *)a->y + at;
        *y = (adds ? *y : 0) + (float)p;
    } else {
        uint16_t *y = (uint16_t *)a->y + at;
        *y = pz_f32_to_bf16((adds ? pz_bf16_to_f32(*y) : 0) + (float)p);
    }
}

static void compute(const pz_gemm_args *a) {
    bool wrong = (fake.wrong && fake.wrong(a)) || fake.wrong_after == 0;
    const uint16_t *x = fake.stale_x ? stale : a->x;
    for (int row = 0; row < a->m; row++)
        for (int column = 0; column < a->n; column++)
            put(a, row, column, dot(a, x, row, column, wrong ? a->k / 2 : a->k));
}

void fake_execute(const fake_launch *l) {
    if (l->kind == FAKE_NORM) {
        execute_norm(&l->norm);
        return;
    }
    compute(&l->gemm);
    fake.gemms++;
    if (fake.wrong_after > 0) fake.wrong_after--;
    fake_advance(l->kind == FAKE_RIVAL ? l->us : fake.gemm_us(&l->gemm));
}

char fake_letter(const fake_launches *l) {
    static const char letters[] = "npsmrt";
    for (int i = 0; i < l->n; i++) {
        if (l->at[i].kind == FAKE_RIVAL) return 'c';
        if (l->at[i].kind == FAKE_GEMM) return letters[l->at[i].gemm.strategy];
    }
    return '-';
}

/* ---- the launchers ---- */
pz_status pz_cuda_rms_norm(const pz_norm_args *a, pz_error *err) {
    (void)err;
    fake_launch l = {.kind = FAKE_NORM, .norm = *a};
    fake_submit(&l);
    return PZ_OK;
}

pz_status pz_cuda_gemm_workspace(const pz_gemm_args *a, size_t *bytes, pz_error *err) {
    *bytes = a->strategy == PZ_ZERO_REDUCE ? 4096 : 0;
    if (fake.unsupported && fake.unsupported(a)) return pz_fail(err, PZ_E_UNSUPPORTED, "gemm: does not fit");
    return PZ_OK;
}

pz_status pz_cuda_gemm(const pz_gemm_args *a, pz_error *err) {
    if (a->strategy == PZ_ZERO_REDUCE && !a->workspace) return pz_fail(err, PZ_E_INVAL, "gemm: no workspace");
    fake_launch l = {.kind = FAKE_GEMM, .gemm = *a};
    fake_submit(&l);
    return PZ_OK;
}

pz_status pz_cuda_weight_norms(const void *w, int64_t ldw, int n, int k, float *w_norm, void *stream, pz_error *err) {
    (void)stream, (void)err;
    for (int row = 0; row < n; row++) {
        double squares = 0;
        for (int i = 0; i < k; i++) squares += pow(pz_bf16_to_f32(((const uint16_t *)w)[row * ldw + i]), 2);
        w_norm[row] = pz_fixed_norm(squares);
    }
    return PZ_OK;
}

/* ---- the rival ---- */
struct pz_rival {
    int m, n, k;
    pz_elem elem;
};

pz_status pz_rival_open(pz_lab *lab, int m, int n, int k, pz_elem y, pz_rival **out, pz_error *err) {
    (void)lab;
    if (!fake.rivals) return pz_fail(err, PZ_E_UNSUPPORTED, "this build has no cuBLASLt");
    *out = pz_calloc(1, sizeof **out);
    if (!*out) return PZ_NOMEM(err);
    **out = (pz_rival){m, n, k, y};
    return PZ_OK;
}
void pz_rival_close(pz_rival *r) {
    pz_free(r);
}
int pz_rival_heuristics(const pz_rival *r) {
    (void)r;
    return fake.rivals;
}
pz_status pz_rival_run(const pz_rival *r, int heuristic, const void *x, const void *w, void *y, pz_error *err) {
    fake_launch l = {.kind = FAKE_RIVAL, .us = fake.rival_us(heuristic)};
    if (l.us < 0) return pz_fail(err, PZ_E_UNSUPPORTED, "cublasLtMatmul: not supported");
    l.gemm = (pz_gemm_args){.x = x, .w = w, .y = y, .m = r->m, .n = r->n, .k = r->k};
    l.gemm.ldx = l.gemm.ldw = r->k;
    l.gemm.ldy = r->n;
    l.gemm.accum = r->elem == PZ_ELEM_F32 ? PZ_ACCUM_F32 : PZ_ACCUM_BF16;
    fake_submit(&l);
    return PZ_OK;
}
void pz_rival_name(const pz_rival *r, int heuristic, char *buf, size_t size) {
    (void)r;
    snprintf(buf, size, "heuristic %d", heuristic);
}
int64_t pz_rival_version(void) {
    return 130000;
}

/* ---- beside them ---- */
static float number(uint64_t *rng, float centre, float scale) {
    return centre + scale * (float)(2 * pz_rng_unit(rng) - 1);
}
pz_status pz_lab_fill_bf16(void *p, int64_t n, float centre, float scale, uint64_t seed, cudaStream_t s,
                           pz_error *err) {
    (void)s, (void)err;
    for (int64_t i = 0; i < n; i++) ((uint16_t *)p)[i] = pz_f32_to_bf16(number(&seed, centre, scale));
    return PZ_OK;
}
pz_status pz_lab_fill_f32(float *p, int64_t n, float centre, float scale, uint64_t seed, cudaStream_t s,
                          pz_error *err) {
    (void)s, (void)err;
    for (int64_t i = 0; i < n; i++) p[i] = number(&seed, centre, scale);
    return PZ_OK;
}

pz_status pz_lab_reference(const void *x, const void *w, int m, int n, int k, double *out, double *squares,
                           cudaStream_t s, pz_error *err) {
    (void)s, (void)err;
    pz_gemm_args a = {.w = w, .ldx = k, .ldw = k};
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            double sum = dot(&a, x, row, column, k);
            out[row * n + column] = sum;
            *squares += sum * sum;
        }
    return PZ_OK;
}

pz_status pz_lab_compare(const pz_matrix *y, int m, int n, const double *reference, unsigned long long *worst,
                         cudaStream_t s, pz_error *err) {
    (void)s, (void)err;
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            int64_t at = row * y->ld + column;
            float v = y->elem == PZ_ELEM_BF16 ? pz_bf16_to_f32(((const uint16_t *)y->data)[at])
                      : y->elem == PZ_ELEM_F32
                          ? ((const float *)y->data)[at]
                          : pz_fixed_value(((const int32_t *)y->data)[at], y->x_norm[row], y->w_norm[column]);
            float error = (float)fabs((double)v - reference[row * n + column]);
            uint32_t bits;
            memcpy(&bits, &error, sizeof bits);
            unsigned long long key = (unsigned long long)bits << 32 | (uint32_t)(row * n + column);
            if (key > *worst) *worst = key;
        }
    return PZ_OK;
}

pz_status pz_lab_count_other(const void *p, size_t bytes, uint32_t value, unsigned long long *count, cudaStream_t s,
                             pz_error *err) {
    (void)s, (void)err;
    for (size_t i = 0; i < bytes / 4; i++) *count += ((const uint32_t *)p)[i] != value;
    return PZ_OK;
}

pz_status pz_lab_copy(void *dst, const void *src, size_t bytes, int units, cudaStream_t s, pz_error *err) {
    (void)s, (void)err, (void)units, (void)dst, (void)src;
    fake_advance((double)bytes * 2 / 4.1e6); /* 4100 GB/s */
    return PZ_OK;
}
