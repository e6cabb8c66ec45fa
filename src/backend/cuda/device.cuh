/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels share: programmatic dependent launch, loads and stores of matrices, fixed point. */
#ifndef PZ_DEVICE_CUH
#define PZ_DEVICE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "prezero/kernels.h"

/* Waits until every kernel before this one has ended and its stores are visible. Every warp that reads or writes memory
 * that another kernel touches calls it first. */
__device__ __forceinline__ void pz_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Every launch has parameters of its own, which the constant cache does not have yet: whoever touches them before
 * pz_wait does not wait for each line of them behind it. Some are not 0, so that the trap is never taken. */
template <typename Params> __device__ __forceinline__ void pz_touch(const Params &p) {
    const uint32_t *words = (const uint32_t *)&p;
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(Params) / 4); i += 16) any |= words[i];
    if (any == 0) asm volatile("trap;");
}

/* Lets the kernels after this one start; their own pz_wait still waits for the end of this one. */
__device__ __forceinline__ void pz_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Loads below are volatile and bypass L1: they are never moved above pz_wait, and never see a line that an earlier
 * kernel of this SM has left there. */
__device__ __forceinline__ uint4 pz_load16(const void *p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ float pz_load_f32(const float *p) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ int pz_load_i32(const int32_t *p) {
    int v;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint16_t pz_load_u16(const void *p) {
    uint16_t v;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
    return v;
}

#define PZ_NAN_F __int_as_float(0x7fc00000)

/* base/fixed.h, in the same arithmetic. */
__device__ __forceinline__ float pz_norm_of_squares(double sum_of_squares) {
    if (!(sum_of_squares < __longlong_as_double(0x7ff0000000000000))) return PZ_NAN_F;
    const double norm = sqrt(sum_of_squares) * (1.0 + 0x1p-20);
    if (norm <= 0x1p-100) return 0x1p-100f;
    if (norm > 0x1p112) return PZ_NAN_F;
    /* the smallest power of two >= norm: no bit of the mantissa may stay set */
    const long long bits = __double_as_longlong(norm), mantissa = 0xfffffffffffffll;
    return (float)__longlong_as_double((bits & ~mantissa) + (bits & mantissa ? mantissa + 1 : 0));
}

/* 2^15 / norm for a norm that is a power of two in the range of base/fixed.h; NaN stays NaN. */
__device__ __forceinline__ float pz_fixed_inv(float norm) {
    return norm == norm ? __uint_as_float(((127u + 127u + 15u) << 23) - __float_as_uint(norm)) : norm;
}
__device__ __forceinline__ float pz_fixed_value(int acc, float x_norm, float w_norm) {
    float bound = x_norm * w_norm;
    return fabsf(bound) < __int_as_float(0x7f800000) ? (float)acc * 0x1p-30f * bound : PZ_NAN_F;
}

/* Element (row, col) as f32. */
__device__ __forceinline__ float pz_get(const pz_matrix &a, int64_t row, int64_t col) {
    int64_t i = row * a.ld + col;
    if (a.elem == PZ_ELEM_F32) return pz_load_f32((const float *)a.data + i);
    if (a.elem == PZ_ELEM_BF16) return __int_as_float((int)pz_load_u16((const uint16_t *)a.data + i) << 16);
    return pz_fixed_value(pz_load_i32((const int32_t *)a.data + i), pz_load_f32(a.x_norm + row),
                          pz_load_f32(a.w_norm + col));
}
/* Rounds to the matrix' element (F32 or BF16), stores, and returns the value as stored. */
__device__ __forceinline__ float pz_put(const pz_matrix &a, int64_t row, int64_t col, float v) {
    int64_t i = row * a.ld + col;
    if (a.elem == PZ_ELEM_F32) {
        ((float *)a.data)[i] = v;
        return v;
    }
    __nv_bfloat16 h = __float2bfloat16_rn(v);
    ((__nv_bfloat16 *)a.data)[i] = h;
    return __bfloat162float(h);
}

#endif
