/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of experts, and the experts: launchers. */
#ifndef PZ_CUDA_MOE_H
#define PZ_CUDA_MOE_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* logits [m, experts] -> ids [m, top_k], weights [m, top_k]. bias [experts] or NULL. */
typedef struct pz_router_params {
    pz_matrix logits, weights;
    int32_t *ids;
    const float *bias;
    int m, experts, top_k, n_group, topk_group, group_top;
    int sigmoid, norm; /* else softmax; weights are renormalised */
    float scale;
} pz_router_params;
enum { PZ_ROUTER_MAX_EXPERTS = 1024 };
pz_status pz_cuda_launch_router(const pz_cuda_run *r, const pz_router_params *p, pz_error *err);

/* One projection of every expert, [experts * n, k]: mxfp4 (two e2m1 a byte, the low nibble first, and an e8m0 scale for
 * every 32) or, scale NULL, bf16. */
typedef struct pz_expert_weight {
    const void *data;
    const uint8_t *scale;
} pz_expert_weight;

/* x [m, hidden] -> y [m, hidden]: sum over t < top_k of weights[t] * down(silu(gate(x)) * up(x)) of expert ids[t].
 * Experts [first, first + experts) of `total` are here; the others add nothing, whatever their weights[t]. An id
 * outside all of them gives NaN. middle: [m * top_k, inner] scratch. */
typedef struct pz_experts_params {
    pz_matrix x, y, weights, middle;
    const int32_t *ids;
    pz_expert_weight gate_up, down; /* n = 2 * inner, gate rows first, k = hidden; n = hidden, k = inner */
    int first, total;
    int m, experts, top_k, hidden, inner; /* hidden and inner multiples of 32 (mxfp4), 8 (bf16) */
} pz_experts_params;
pz_status pz_cuda_launch_experts(const pz_cuda_run *r, const pz_experts_params *p, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
