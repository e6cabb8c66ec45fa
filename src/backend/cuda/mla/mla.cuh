/* SPDX-License-Identifier: Apache-2.0 */
/* The cache as kernels find it, and rope. */
#ifndef PZ_MLA_CUH
#define PZ_MLA_CUH

#include "backend/cuda/mla/mla.h"
#include "backend/cuda/rows/row.cuh"

__device__ __forceinline__ int64_t pz_load_i64(const void *p) {
    int64_t v;
    asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ pz_cuda_cache pz_load_cache(const pz_cuda_cache *c) {
    pz_cuda_cache v;
    v.data = (unsigned char *)pz_load_i64(&c->data);
    v.layer_stride = pz_load_i64(&c->layer_stride);
    v.block_table = (const int32_t *)pz_load_i64(&c->block_table);
    v.table_stride = pz_load_i32(&c->table_stride);
    v.page_tokens = pz_load_i32(&c->page_tokens);
    v.entry = pz_load_i32(&c->entry);
    v.bf16 = pz_load_i32(&c->bf16);
    return v;
}

/* Byte address of a token's entry. */
__device__ __forceinline__ unsigned char *pz_entry(const pz_cuda_cache &c, int layer, int page, int token) {
    return c.data + layer * c.layer_stride + ((int64_t)page * c.page_tokens + token) * c.entry * (c.bf16 ? 2 : 4);
}

/* Pair i of the rope: (a, b) turned by pos * inv_freq[i]. The angle is rounded to f32, as in every implementation of
 * these models; sine and cosine are exact for any size of it. */
__device__ __forceinline__ float2 pz_rotate(float a, float b, int pos, float inv_freq, float scale) {
    float s, c;
    sincosf(__fmul_rn((float)pos, inv_freq), &s, &c);
    s *= scale;
    c *= scale;
    return make_float2(fmaf(a, c, -(b * s)), fmaf(b, c, a * s));
}

#endif
