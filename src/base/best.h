/* SPDX-License-Identifier: Apache-2.0 */
/* The greedy choice, defined once. */
#ifndef PZ_BEST_H
#define PZ_BEST_H

#include <math.h>
#include <stdint.h>

/* The choice among the values looked at so far, which come in the order of their indices. */
typedef struct pz_choice {
    int32_t index; /* of the largest, the lowest of equals; -1: all were NaN, which is never it */
    float value;
    int finite; /* whether any value was */
} pz_choice;
#define PZ_NO_CHOICE \
    { .index = -1 }

/* Looks at n more values, the first of which has index `first`. */
static inline void pz_choose(pz_choice *c, const float *x, int64_t n, int32_t first) {
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i])) continue;
        c->finite |= isfinite(x[i]) != 0;
        if (c->index >= 0 && !(x[i] > c->value)) continue;
        c->index = first + (int32_t)i;
        c->value = x[i];
    }
}

/* The choice among the values behind both; those of `more` have the higher indices. */
static inline void pz_choose_among(pz_choice *c, const pz_choice *more) {
    c->finite |= more->finite;
    if (more->index < 0 || (c->index >= 0 && !(more->value > c->value))) return;
    c->index = more->index;
    c->value = more->value;
}

/* The index chosen; -1 where no value is finite. */
static inline int32_t pz_chosen(const pz_choice *c) {
    return c->finite ? c->index : -1;
}

static inline int32_t pz_best(const float *x, int64_t n) {
    pz_choice c = PZ_NO_CHOICE;
    pz_choose(&c, x, n, 0);
    return pz_chosen(&c);
}

#endif
