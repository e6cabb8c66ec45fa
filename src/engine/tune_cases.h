/* SPDX-License-Identifier: Apache-2.0 */
/* Which launches of a shape the tuner measures, round by round. */
#ifndef PZ_TUNE_CASES_H
#define PZ_TUNE_CASES_H

#include "engine/tune.h"

/* The most launches of a row by effort; how many of the quick ones come from other rows; steps of the search. */
enum { PZ_TUNE_QUICK = 144, PZ_TUNE_LONGER = 60, PZ_TUNE_FINAL = 12, PZ_TUNE_CARRIED = 8, PZ_TUNE_STEPS = 3 };

/* Distinct launches. Measured: the first n work, the fastest first, the others up to `tried` do not. */
typedef struct pz_tune_cases {
    pz_tune_case at[PZ_TUNE_QUICK];
    int n, tried;
} pz_tune_cases;

/* The best by the cost model; what the table has for neighbouring numbers of rows and other accumulators; cuBLASLt. */
void pz_tune_first(const pz_tune_plan *plan, const pz_tuned *table, const pz_gemm_shape *shape, pz_tune_cases *out);
/* Neighbours of the fastest geometries that have not been tried, in one of the steps. */
void pz_tune_near(const pz_tune_plan *plan, const pz_gemm_shape *shape, const pz_tune_cases *measured, int step,
                  pz_tune_cases *out);
/* Adds what was measured later. */
void pz_tune_merge(pz_tune_cases *all, const pz_tune_cases *more);
/* The best eight, at least two of each kind where there are so many, with their other depths; the best that are split
 * also with the strategies that need no zeroed output; cuBLASLt's best. */
void pz_tune_longer(const pz_tune_plan *plan, const pz_gemm_shape *shape, const pz_tune_cases *measured,
                    pz_tune_cases *out);
/* Of each kind the best few; and the best strategy without a zeroed output in the best geometry for one. */
void pz_tune_last(const pz_gemm_shape *shape, const pz_tune_cases *measured, pz_tune_cases *out);

/* Orders what was measured. */
void pz_tune_sort(pz_tune_cases *c);

bool pz_tune_is_blas(const pz_tune_case *c);
/* Measured with a zeroed output, or not split. */
bool pz_tune_is_on(const pz_tune_case *c);

#endif
