/* SPDX-License-Identifier: Apache-2.0 */
/* Eight columns of a row at a time, and sums over a block. */
#ifndef PZ_ROW_CUH
#define PZ_ROW_CUH

#include "backend/cuda/device.cuh"

__device__ __forceinline__ float pz_bf16_lo(uint32_t v) {
    return __uint_as_float(v << 16);
}
__device__ __forceinline__ float pz_bf16_hi(uint32_t v) {
    return __uint_as_float(v & 0xffff0000u);
}
__device__ __forceinline__ void pz_unpack_bf16(uint4 v, float out[8]) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = pz_bf16_lo(word[i]);
        out[2 * i + 1] = pz_bf16_hi(word[i]);
    }
}
/* Rounds to bf16 and leaves in v what they hold then. */
__device__ __forceinline__ uint4 pz_pack_bf16(float v[8]) {
    uint32_t word[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(v[2 * j], v[2 * j + 1]);
        word[j] = *(const uint32_t *)&h;
        v[2 * j] = pz_bf16_lo(word[j]);
        v[2 * j + 1] = pz_bf16_hi(word[j]);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}
__device__ __forceinline__ bool pz_aligned16(const void *p) {
    return ((uintptr_t)p & 15) == 0;
}

/* Brings a weight's line into L2; may be called before pz_wait. */
__device__ __forceinline__ void pz_prefetch(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Where value k of a row lies in shared memory: lanes that read 16 bytes each, from neighbouring chunks of 8 or of 32
 * values, meet no bank twice. */
__host__ __device__ __forceinline__ int pz_spread(int k) {
    return k + (k >> 5) * 4;
}

/* Columns [col, col + n) as f32, n <= 8; the rest of out is 0. */
__device__ __forceinline__ void pz_get_some(const pz_matrix &a, int64_t row, int64_t col, int n, float out[8]) {
    const int64_t i = row * a.ld + col;
    const char *p = (const char *)a.data + i * (a.elem == PZ_ELEM_BF16 ? 2 : 4);
    if (n < 8 || !pz_aligned16(p)) {
#pragma unroll
        for (int j = 0; j < 8; j++) out[j] = j < n ? pz_get(a, row, col + j) : 0.f;
        return;
    }
    const uint4 lo = pz_load16(p);
    if (a.elem == PZ_ELEM_BF16) {
        pz_unpack_bf16(lo, out);
        return;
    }
    const uint4 hi = pz_load16(p + 16);
    const uint32_t word[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    if (a.elem == PZ_ELEM_F32) {
#pragma unroll
        for (int j = 0; j < 8; j++) out[j] = __uint_as_float(word[j]);
        return;
    }
    const float x_norm = pz_load_f32(a.x_norm + row);
#pragma unroll
    for (int j = 0; j < 8; j++) out[j] = pz_fixed_value((int)word[j], x_norm, __ldg(a.w_norm + col + j));
}

/* Rounds to the matrix' element, stores n <= 8 columns, and leaves in v what was stored. */
__device__ __forceinline__ void pz_put_some(const pz_matrix &a, int64_t row, int64_t col, int n, float v[8]) {
    const int64_t i = row * a.ld + col;
    char *p = (char *)a.data + i * (a.elem == PZ_ELEM_BF16 ? 2 : 4);
    if (n < 8 || !pz_aligned16(p)) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j < n) v[j] = pz_put(a, row, col + j, v[j]);
        return;
    }
    if (a.elem == PZ_ELEM_F32) {
        *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(p + 16) = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
    *(uint4 *)p = pz_pack_bf16(v);
}

/* Sum over all threads of the block, the same value in each; the order depends on the size of the block alone. */
__device__ __forceinline__ double pz_block_sum(double v) {
    __shared__ double part[32];
    const int lane = threadIdx.x & 31, warps = (blockDim.x + 31) >> 5;
#pragma unroll
    for (int off = 16; off; off >>= 1) v += __shfl_xor_sync(0xffffffffu, v, off);
    __syncthreads(); /* readers of the sum before */
    if (lane == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    double sum = part[0];
    for (int w = 1; w < warps; w++) sum += part[w];
    return sum;
}

__device__ __forceinline__ double pz_squares(const float v[8]) {
    double sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) sum += (double)v[j] * (double)v[j];
    return sum;
}

#endif
