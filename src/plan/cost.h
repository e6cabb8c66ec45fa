/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model of GEMM launches on a GPU, and the launches that are worth measuring. It ranks; the tuned table knows.
 */
#ifndef PZ_COST_H
#define PZ_COST_H

#include "plan/plan.h"

typedef struct pz_gemm_candidate {
    pz_gemm_config config;
    double us; /* estimated, strategy PREZERO if it is split, else NONE */
} pz_gemm_candidate;

/* Estimated time in us: the bytes that the busiest SM reads, how many it can have in flight, the adds into the output,
 * and what the strategy costs. Infinite for a geometry that does not fit the device or the shape. */
double pz_gemm_estimate(const pz_device *dev, const pz_gemm_shape *shape, const pz_gemm_config *config,
                        pz_strategy strategy);
/* The launches with the smallest estimates, with a zeroed output and without. */
pz_gemm_choices pz_gemm_model(const pz_device *dev, const pz_gemm_shape *shape);

/* The geometry with the smallest estimate for a strategy; split 1 where no split fits the shape or the strategy is
 * NONE, 2 or more with every other strategy where one does. */
pz_gemm_config pz_gemm_model_for(const pz_device *dev, const pz_gemm_shape *shape, pz_strategy strategy);

/* Blocks of a launch; 0: the kernels would refuse it. */
int64_t pz_gemm_blocks(const pz_gemm_shape *shape, const pz_gemm_config *config);

enum { PZ_MAX_CANDIDATES = 64, PZ_MAX_VARIANTS = 4, PZ_MAX_NEIGHBOURS = 24 };
/* Distinct geometries of the own kernels: the best of each family, not split, with at most a block an SM and with more,
 * other depths of these, and the best of tiles all over the list, as the model ranks tiles badly. Ascending by
 * estimate, `max` at most. Returns how many. */
int pz_gemm_candidates(const pz_device *dev, const pz_gemm_shape *shape, pz_gemm_candidate *out, int max);
/* The same geometry with other depths of prefetch. Returns how many. */
int pz_gemm_variants(const pz_gemm_shape *shape, const pz_gemm_config *config, pz_gemm_config out[PZ_MAX_VARIANTS]);
/* Distinct geometries one step away that the kernels take too: other tiles, splits, warps, stages; split if this one
 * is. The depth stays where the ring is as long. Returns how many. */
int pz_gemm_neighbours(const pz_device *dev, const pz_gemm_shape *shape, const pz_gemm_config *config,
                       pz_gemm_config out[PZ_MAX_NEIGHBOURS]);
/* Candidates as text, one a line (pz_free). */
pz_status pz_gemm_candidates_text(const pz_device *dev, const pz_gemm_shape *shape, char **out, pz_error *err);
/* "skinny tile_n 64, split 4, warps 2, stages 0, depth 1" */
void pz_gemm_config_text(const pz_gemm_config *config, pz_str *b);

#endif
