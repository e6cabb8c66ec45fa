/* SPDX-License-Identifier: Apache-2.0 */
/* SplitMix64 (Steele, Lea, Flood 2014): sampling and tests; one 64-bit state, reproducible everywhere. */
#ifndef PZ_RNG_H
#define PZ_RNG_H

#include <stdint.h>

static inline uint64_t pz_rng_next(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
/* Uniform in [0, 1). */
static inline double pz_rng_unit(uint64_t *state) {
    return (double)(pz_rng_next(state) >> 11) * 0x1p-53;
}

#endif
