/* SPDX-License-Identifier: Apache-2.0 */
/* Up to four heads of one row against the entries of one page. The sums of a head do not depend on the heads beside
 * it, nor on how positions are blocked. */
#include <math.h>

#include "backend/cpu/simd/exp.h"

/* Heads and positions whose sums stay in registers. */
#if PZ_VW == 16
enum { HEADS = 4, POSITIONS = 4, COLUMNS = 4 };
#elif PZ_VW == 8
enum { HEADS = 2, POSITIONS = 2, COLUMNS = 2 };
#else
enum { HEADS = 1, POSITIONS = 2, COLUMNS = 1 };
#endif

PZ_INLINE pz_vf load_entry(const int bf16, const void *c, int64_t i) {
    return bf16 ? pz_load_bf16((const uint16_t *)c + i) : pz_load((const float *)c + i);
}
PZ_INLINE float load_one(const int bf16, const void *c, int64_t i) {
    float f;
    if (!bf16) return memcpy(&f, (const float *)c + i, 4), f;
    uint32_t u = (uint32_t)((const uint16_t *)c)[i] << 16;
    return memcpy(&f, &u, 4), f;
}
PZ_INLINE const void *entry_at(const int bf16, const void *c, int64_t i) {
    return bf16 ? (const void *)((const uint16_t *)c + i) : (const void *)((const float *)c + i);
}

PZ_INLINE void score_block(const int bf16, const int heads, const int positions, const float *q, int64_t ldq,
                           const void *c, int entry, float scale, float *s, int64_t ld) {
    pz_vf acc[HEADS][POSITIONS][PZ_NV];
    PZ_EACH (h, heads)
        PZ_EACH (t, positions)
            PZ_EACH (v, PZ_NV) acc[h][t][v] = (pz_vf){0};
    int whole = entry / 16 * 16;
    for (int i = 0; i < whole; i += 16) {
        PZ_EACH (v, PZ_NV) {
            pz_vf x[POSITIONS];
            PZ_EACH (t, positions) x[t] = load_entry(bf16, c, (int64_t)t * entry + i + v * PZ_VW);
            PZ_EACH (h, heads) {
                pz_vf qv = pz_load(q + h * ldq + i + v * PZ_VW);
                PZ_EACH (t, positions) acc[h][t][v] += qv * x[t];
            }
        }
    }
    PZ_EACH (h, heads) {
        float sum[POSITIONS];
#if PZ_VW == 16
        if (positions == 4)
            pz_sum16x4((const pz_vf(*)[PZ_NV])acc[h], sum);
        else
#endif
            PZ_EACH (t, positions) sum[t] = pz_sum16(acc[h][t]);
        PZ_EACH (t, positions) {
            for (int i = whole; i < entry; i++) sum[t] += q[h * ldq + i] * load_one(bf16, c, (int64_t)t * entry + i);
            s[h * ld + t] = sum[t] * scale;
        }
    }
}

PZ_INLINE void prefetch(const void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)p + i);
}

PZ_INLINE void scores_of(const int bf16, const int heads, const float *q, int64_t ldq, const void *c, const void *next,
                         int entry, int n, float scale, float *s, int64_t ld) {
    const size_t bytes = (size_t)entry * (bf16 ? 2 : 4);
    int t = 0;
    for (; t + POSITIONS <= n; t += POSITIONS) {
        prefetch(entry_at(bf16, next, (int64_t)t * entry), POSITIONS * bytes);
        score_block(bf16, heads, POSITIONS, q, ldq, entry_at(bf16, c, (int64_t)t * entry), entry, scale, s + t, ld);
    }
    for (; t < n; t++)
        score_block(bf16, heads, 1, q, ldq, entry_at(bf16, c, (int64_t)t * entry), entry, scale, s + t, ld);
}

PZ_INLINE void scores(const int bf16, int heads, const float *q, int64_t ldq, const void *c, const void *next,
                      int entry, int n, float scale, float *s, int64_t ld) {
    int h = 0;
#if PZ_VW == 16
    for (; h + 4 <= heads; h += 4) scores_of(bf16, 4, q + h * ldq, ldq, c, next, entry, n, scale, s + h * ld, ld);
#endif
#if PZ_VW >= 8
    for (; h + 2 <= heads; h += 2) scores_of(bf16, 2, q + h * ldq, ldq, c, next, entry, n, scale, s + h * ld, ld);
#endif
    for (; h < heads; h++) scores_of(bf16, 1, q + h * ldq, ldq, c, next, entry, n, scale, s + h * ld, ld);
}

PZ_INLINE void value_block(const int bf16, const int heads, const int columns, const float *p, int64_t ld,
                           const void *c, int entry, int n, float *o, int64_t ldo) {
    enum { MOST = COLUMNS * PZ_NV };
    const int vectors = columns * PZ_NV;
    pz_vf acc[HEADS][MOST];
    PZ_EACH (h, heads)
        PZ_EACH (v, vectors) acc[h][v] = pz_load(o + h * ldo + v * PZ_VW);
    for (int t = 0; t < n; t++) {
        PZ_EACH (v, vectors) {
            pz_vf x = load_entry(bf16, c, (int64_t)t * entry + v * PZ_VW);
            PZ_EACH (h, heads) acc[h][v] += x * p[h * ld + t];
        }
    }
    PZ_EACH (h, heads)
        PZ_EACH (v, vectors) pz_store(o + h * ldo + v * PZ_VW, acc[h][v]);
}

PZ_INLINE void values_of(const int bf16, const int heads, const float *p, int64_t ld, const void *c, int entry, int n,
                         int latent, float *o, int64_t ldo) {
    int i = 0;
    for (; i + 16 * COLUMNS <= latent; i += 16 * COLUMNS)
        value_block(bf16, heads, COLUMNS, p, ld, entry_at(bf16, c, i), entry, n, o + i, ldo);
    for (; i + 16 <= latent; i += 16) value_block(bf16, heads, 1, p, ld, entry_at(bf16, c, i), entry, n, o + i, ldo);
    for (; i < latent; i++)
        for (int h = 0; h < heads; h++)
            for (int t = 0; t < n; t++) o[h * ldo + i] += load_one(bf16, c, (int64_t)t * entry + i) * p[h * ld + t];
}

PZ_INLINE void values(const int bf16, int heads, const float *p, int64_t ld, const void *c, int entry, int n,
                      int latent, float *o, int64_t ldo) {
    int h = 0;
#if PZ_VW == 16
    for (; h + 4 <= heads; h += 4) values_of(bf16, 4, p + h * ld, ld, c, entry, n, latent, o + h * ldo, ldo);
#endif
#if PZ_VW >= 8
    for (; h + 2 <= heads; h += 2) values_of(bf16, 2, p + h * ld, ld, c, entry, n, latent, o + h * ldo, ldo);
#endif
    for (; h < heads; h++) values_of(bf16, 1, p + h * ld, ld, c, entry, n, latent, o + h * ldo, ldo);
}

static void scores_f32(int heads, const float *q, int64_t ldq, const float *c, const float *next, int entry, int n,
                       float scale, float *s, int64_t ld) {
    scores(0, heads, q, ldq, c, next, entry, n, scale, s, ld);
}
static void scores_bf16(int heads, const float *q, int64_t ldq, const uint16_t *c, const uint16_t *next, int entry,
                        int n, float scale, float *s, int64_t ld) {
    scores(1, heads, q, ldq, c, next, entry, n, scale, s, ld);
}
static void values_f32(int heads, const float *p, int64_t ld, const float *c, int entry, int n, int latent, float *o,
                       int64_t ldo) {
    values(0, heads, p, ld, c, entry, n, latent, o, ldo);
}
static void values_bf16(int heads, const float *p, int64_t ld, const uint16_t *c, int entry, int n, int latent,
                        float *o, int64_t ldo) {
    values(1, heads, p, ld, c, entry, n, latent, o, ldo);
}

/* Maximum and sum are taken in 16 lanes by index, the lanes in order. A NaN or +Inf among the scores makes all of them
 * NaN, as the definition does. */
static void softmax(float *restrict x, int64_t n) {
    float lane[16], max = -INFINITY, sum = 0;
    int64_t i = 0;
    for (int l = 0; l < 16; l++) lane[l] = -INFINITY;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int l = 0; i + l < n; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int l = 0; l < 16; l++) max = lane[l] > max ? lane[l] : max;
    for (i = 0; i < n; i++) x[i] = pz_exp(x[i] - max);
    for (int l = 0; l < 16; l++) lane[l] = 0;
    for (i = 0; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) lane[l] += x[i + l];
    for (int l = 0; i + l < n; l++) lane[l] += x[i + l];
    for (int l = 0; l < 16; l++) sum += lane[l];
    for (i = 0; i < n; i++) x[i] /= sum;
}

extern const pz_simd_attention PZ_ISA_NAME(pz_simd_attention);
const pz_simd_attention PZ_ISA_NAME(pz_simd_attention) = {
    .scores_f32 = scores_f32,
    .scores_bf16 = scores_bf16,
    .values_f32 = values_f32,
    .values_bf16 = values_bf16,
    .softmax = softmax,
};
