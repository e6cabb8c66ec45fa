/* SPDX-License-Identifier: Apache-2.0 */
/* Row by row kernels: launchers. Matrices have m rows; `cols` are those of the result. */
#ifndef PZ_CUDA_ROWS_H
#define PZ_CUDA_ROWS_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = row ids[m] of w, bf16 [vocab, cols]; an id outside the table gives NaN. */
typedef struct pz_embed_params {
    const int32_t *ids;
    const void *w;
    int64_t vocab;
    pz_matrix y;
    int m, cols;
} pz_embed_params;
pz_status pz_cuda_launch_embed(const pz_cuda_run *r, const pz_embed_params *p, pz_error *err);

/* y = a + b, or a where b.data is NULL. */
typedef struct pz_add_params {
    pz_matrix a, b, y;
    int m, cols;
} pz_add_params;
pz_status pz_cuda_launch_add(const pz_cuda_run *r, const pz_add_params *p, pz_error *err);

/* y = silu(x[:, :cols]) * x[:, cols:]; x_norm [m] of y as stored, or NULL. */
typedef struct pz_silu_params {
    pz_matrix x, y;
    float *x_norm;
    int m, cols;
} pz_silu_params;
pz_status pz_cuda_launch_silu_mul(const pz_cuda_run *r, const pz_silu_params *p, pz_error *err);

/* y = x / sqrt(mean(x^2) + eps) * w; x_norm as above. */
typedef struct pz_latent_norm_params {
    pz_matrix x, y;
    const float *w;
    double eps;
    float *x_norm;
    int m, cols;
} pz_latent_norm_params;
pz_status pz_cuda_launch_latent_norm(const pz_cuda_run *r, const pz_latent_norm_params *p, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
