/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention: launchers. What is attended is one vector of latent + rope values a token, shared by all
 * heads. Rows without a sequence (seq -1) touch no cache. */
#ifndef PZ_CUDA_MLA_H
#define PZ_CUDA_MLA_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* kv [m, latent + rope]: rms_norm(kv[:, :latent]) * w and rope(kv[:, latent:]) * rope_scale go to the entry of position
 * pos[m] of sequence seq[m]. */
typedef struct pz_cache_write_params {
    pz_matrix kv;
    const int32_t *pos, *seq;
    const float *w, *inv_freq; /* [latent], [rope / 2] */
    const pz_cuda_cache *cache;
    double eps;
    float rope_scale;
    int m, latent, rope, layer;
} pz_cache_write_params;
pz_status pz_cuda_launch_cache_write(const pz_cuda_run *r, const pz_cache_write_params *p, pz_error *err);

/* q [m, heads * (nope + rope)] -> y [m, heads * (latent + rope)]. kv_b: bf16 [heads * (nope + v), latent]. */
typedef struct pz_absorb_q_params {
    pz_matrix q, y;
    const int32_t *pos;
    const void *kv_b;
    const float *inv_freq;
    float rope_scale;
    int m, heads, nope, rope, v, latent; /* latent a multiple of 8 */
} pz_absorb_q_params;
enum { PZ_ABSORB_MAX_NOPE = 2048 };
pz_status pz_cuda_launch_absorb_q(const pz_cuda_run *r, const pz_absorb_q_params *p, pz_error *err);

/* o [m, heads * latent] -> y [m, heads * v]; x_norm [m] of y as stored, or NULL: then no tickets are needed. */
typedef struct pz_absorb_v_params {
    pz_matrix o, y;
    const void *kv_b;
    float *x_norm;
    uint32_t *tickets; /* [PZ_ABSORB_TICKETS(m)], zero; left zero */
    int m, heads, nope, v, latent;
} pz_absorb_v_params;
enum { PZ_ABSORB_ROWS = 4, PZ_ABSORB_MAX_LATENT = 2048 };
#define PZ_ABSORB_TICKETS(m) (((m) + PZ_ABSORB_ROWS - 1) / PZ_ABSORB_ROWS)
pz_status pz_cuda_launch_absorb_v(const pz_cuda_run *r, const pz_absorb_v_params *p, pz_error *err);

/* q [m, heads * (latent + rope)] -> y [m, heads * latent]: softmax(scale * q . cache) . cache[:latent] over positions 0
 * to pos[m]; zeros for rows without a sequence. */
typedef struct pz_attention_params {
    pz_matrix q, y;
    const int32_t *pos, *seq;
    const pz_cuda_cache *cache;
    float scale;
    int m, heads, latent, rope, layer;
} pz_attention_params;
enum { PZ_ATTENTION_MAX_LATENT = 1024, PZ_ATTENTION_MAX_ENTRY = 1920 };
pz_status pz_cuda_launch_attention(const pz_cuda_run *r, const pz_attention_params *p, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
