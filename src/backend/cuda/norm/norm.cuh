/* SPDX-License-Identifier: Apache-2.0 */
/* What the norm and the collectives that end in one share: elements, sums, x_norm, rows that need more than one pass,
 * and the rider. `Row`: how a row lies on its threads (norm.cu, comm/cluster.cuh). */
#ifndef PZ_NORM_CUH
#define PZ_NORM_CUH

#include "backend/cuda/launch.cuh"
#include "backend/cuda/rows/row.cuh"

namespace {

struct norm_params {
    pz_matrix x, res, y, r;
    const float *w;
    float *x_norm;
    uint4 *zero;
    int64_t zero_words; /* of 16 bytes */
    float eps, share;   /* share: 1 / hidden */
    int m, hidden, late;
};

/* Eight neighbouring elements as they lie in memory. */
template <int Elem> struct words8 { uint4 at[Elem == PZ_ELEM_BF16 ? 1 : 2]; };

template <int Elem> __device__ __forceinline__ words8<Elem> load8(const pz_matrix &a, int row, int col) {
    words8<Elem> w;
    if constexpr (Elem == PZ_ELEM_BF16) {
        w.at[0] = pz_load16((const uint16_t *)a.data + row * a.ld + col);
    } else {
        const uint32_t *p = (const uint32_t *)a.data + row * a.ld + col;
        w.at[0] = pz_load16(p);
        w.at[1] = pz_load16(p + 4);
    }
    return w;
}

__device__ __forceinline__ void weights8(float (&w)[8], const float *p) {
    const float4 lo = __ldg((const float4 *)p), hi = __ldg((const float4 *)p + 1);
    w[0] = lo.x, w[1] = lo.y, w[2] = lo.z, w[3] = lo.w;
    w[4] = hi.x, w[5] = hi.y, w[6] = hi.z, w[7] = hi.w;
}

/* Eight elements as f32. x_norm: of the row, FIXED only. */
template <int Elem>
__device__ __forceinline__ void value8(float (&v)[8], const words8<Elem> &w, const pz_matrix &a, float x_norm,
                                       int col) {
    if constexpr (Elem == PZ_ELEM_BF16) {
        pz_unpack_bf16(w.at[0], v);
    } else {
        const uint32_t u[8] = {w.at[0].x, w.at[0].y, w.at[0].z, w.at[0].w, w.at[1].x, w.at[1].y, w.at[1].z, w.at[1].w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = Elem == PZ_ELEM_FIXED ? pz_fixed_value((int)u[i], x_norm, __ldg(a.w_norm + col + i))
                                         : __uint_as_float(u[i]);
    }
}

/* Stores eight elements and leaves in v what was stored. */
template <int Elem> __device__ __forceinline__ void store8(float (&v)[8], const pz_matrix &a, int row, int col) {
    if constexpr (Elem == PZ_ELEM_F32) {
        uint4 *p = (uint4 *)((float *)a.data + row * a.ld + col);
        p[0] = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
        p[1] = make_uint4(__float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]), __float_as_uint(v[7]));
    } else {
        *(uint4 *)((uint16_t *)a.data + row * a.ld + col) = pz_pack_bf16(v);
    }
}

template <int Elem> __device__ __forceinline__ float row_norm(const pz_matrix &a, int row) {
    return Elem == PZ_ELEM_FIXED ? pz_load_f32(a.x_norm + row) : 0;
}

/* Brings the sector of a weight as near as it gets without a register to hold it. */
__device__ __forceinline__ void fetch(const void *p) {
    pz_prefetch(p);
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

/* Sums of a and of b over a warp: the upper half of the lanes has that of b, the lower that of a. */
__device__ __forceinline__ float half_sums(float a, float b) {
    const bool upper = threadIdx.x & 16;
    float v = (upper ? b : a) + __shfl_xor_sync(0xffffffffu, upper ? a : b, 16);
#pragma unroll
    for (int d = 8; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
/* Sums of a and of b over all warps, from those of each. */
template <int WARPS> __device__ __forceinline__ float2 add_warps(const float (&part)[2][WARPS]) {
    constexpr int QUADS = WARPS / 4;
    const int lane = threadIdx.x & 31;
    const float4 four = ((const float4 *)part)[lane & (2 * QUADS - 1)];
    float v = (four.x + four.y) + (four.z + four.w);
#pragma unroll
    for (int d = 1; d < QUADS; d <<= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    const float other = __shfl_xor_sync(0xffffffffu, v, QUADS);
    return lane & QUADS ? make_float2(other, v) : make_float2(v, other);
}

/* The least power of two that is not below the root of s. s: normal and positive. */
__device__ __forceinline__ float power_of_root(float s) {
    const int least = (int)((__float_as_uint(s) - 1) >> 23) - 126; /* s <= 2^least */
    return __uint_as_float((uint32_t)(((least + 1) >> 1) + 127) << 23);
}

/* x_norm of a row whose values before they are rounded to y have the sum of squares `sum` * scale^2; 0 if that does not
 * tell it. The stored values differ from these by half a unit of bf16 each, 2^-8 of the value; what is below the normal
 * range of bf16, or of squares in f32, is nothing against sums from 2^-80 on. The sum and the products err by less than
 * 2^-17, and the head room of pz_norm_of_squares is 2^-20. So in all but one of about a hundred rows the norm lies
 * between the same two powers of two before and after. */
template <int Elem> __device__ __forceinline__ float norm_before(float sum, float scale) {
    const float slack = Elem == PZ_ELEM_BF16 ? 0x1p-7f + 0x1p-14f : 0x1p-16f, square = sum * scale * scale;
    const float least = power_of_root(square * (1 - slack)), most = power_of_root(square * (1 + slack));
    return least == most && sum > 0x1p-80f && square > 0x1p-80f && square < 0x1p120f ? most : 0;
}

/* x_norm from y as stored. Every thread reads what it has written itself. */
template <int NV, int Elem, typename Row>
__device__ __noinline__ float norm_after(const norm_params &p, int row, const Row at) {
    double sum[NV];
#pragma unroll
    for (int i = 0; i < NV; i++) {
        float v[8] = {};
        if (at.column(i) < p.hidden) value8<Elem>(v, load8<Elem>(p.y, row, at.column(i)), p.y, 0, at.column(i));
        sum[i] = pz_squares(v);
    }
    return pz_norm_of_squares(at.sum(sum));
}

/* What is normalised: x + res, in v. It was stored to r if there is one, which may have overwritten res. */
template <int XElem, int Elem>
__device__ __forceinline__ void sum8(float (&v)[8], const norm_params &p, int row, int col) {
    if (p.r.data) {
        value8<Elem>(v, load8<Elem>(p.r, row, col), p.r, 0, col);
        return;
    }
    value8<XElem>(v, load8<XElem>(p.x, row, col), p.x, row_norm<XElem>(p.x, row), col);
    if (!p.res.data) return;
    float res[8];
    value8<Elem>(res, load8<Elem>(p.res, row, col), p.res, 0, col);
#pragma unroll
    for (int e = 0; e < 8; e++) v[e] += res[e];
}

/* y of a row whose squares leave the range of f32, or its products with w may. */
template <int NV, int XElem, int Elem, typename Row>
__device__ __noinline__ void wide_row(const norm_params &p, int row, const Row at) {
    double sum[NV];
#pragma unroll
    for (int i = 0; i < NV; i++) {
        float v[8] = {};
        if (at.column(i) < p.hidden) sum8<XElem, Elem>(v, p, row, at.column(i));
        sum[i] = pz_squares(v);
    }
    const float scale = (float)(1.0 / sqrt(at.sum(sum) / p.hidden + p.eps));
#pragma unroll
    for (int i = 0; i < NV; i++) {
        const int col = at.column(i);
        if (col >= p.hidden) continue;
        float v[8], w[8];
        sum8<XElem, Elem>(v, p, row, col);
        weights8(w, p.w + col);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] *= scale * w[e];
        store8<Elem>(v, p.y, row, col);
    }
}

/* Whether y of a row may be had in one pass from the sums of squares of v and of v * w. Below this scale what products
 * below the normal range of f32 have lost is below that of y too. False for NaN. */
__device__ __forceinline__ bool is_narrow(float2 sum, float scale) {
    return scale < 0x1p20f && sum.x < 0x1p120f && sum.y < 0x1p120f;
}

/* The rider, on the blocks from number `first` on. */
__device__ __forceinline__ void ride(const norm_params &p, int first) {
    const int blocks = gridDim.x - first;
    int64_t i = (int64_t)(blockIdx.x - first) * blockDim.x + threadIdx.x;
    for (; i < p.zero_words; i += (int64_t)blocks * blockDim.x) p.zero[i] = make_uint4(0, 0, 0, 0);
}

} // namespace

#endif
