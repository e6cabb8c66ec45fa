/* SPDX-License-Identifier: Apache-2.0 */
/* The greedy choice, defined once. */
#ifndef PZ_BEST_H
#define PZ_BEST_H

#include <math.h>
#include <stdint.h>

/* Index of the largest of n values, the lowest of equals; NaN is never it. -1 where no value is finite. */
static inline int32_t pz_best(const float *x, int64_t n) {
    int32_t best = -1;
    int finite = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i])) continue;
        finite |= isfinite(x[i]) != 0;
        if (best < 0 || x[i] > x[best]) best = (int32_t)i;
    }
    return finite ? best : -1;
}

#endif
