/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a weight as the checkpoint holds them, for backends that bring them into a form of their own. */
#ifndef PZ_HOST_ROWS_H
#define PZ_HOST_ROWS_H

#include "ir/host_weight.h"

/* The weight's shape is the graph's, its dtype f32, bf16 or mxfp4 (a matrix, with scales, of a multiple of 32 columns).
 * E_TYPE, E_UNSUPPORTED or E_INVAL names it. */
pz_status pz_host_check(const pz_weight *w, const pz_host_weight *h, pz_error *err);

typedef struct pz_host_row {
    const unsigned char *data, *scale;
} pz_host_row;
/* The part where the last row was found, and where that part begins; starts as {0}. */
typedef struct pz_host_hint {
    int part;
    int64_t first;
} pz_host_hint;
pz_host_row pz_host_find_row(const pz_host_weight *h, pz_host_hint *hint, int64_t row);

/* A row as f32, which is exact for every dtype. */
void pz_host_row_values(const pz_host_weight *h, pz_host_row row, float *dst);

static inline float pz_host_f32(const unsigned char *p) {
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}
static inline uint32_t pz_host_u16(const unsigned char *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}
/* e8m0 as bf16, exactly: 2^(e - 127), 255 is NaN. */
static inline uint32_t pz_e8m0_to_bf16(unsigned char e) {
    return e == 255 ? 0x7fc0u : e == 0 ? 0x40u : (uint32_t)e << 7;
}

#endif
