/* SPDX-License-Identifier: Apache-2.0 */
/* Routed experts, straight from their quantized weights. A pair is one row with one of its experts. The first kernel
 * makes every pair's silu(gate) * up, the second a row's weighted sum of the down projections. Eight lanes share an
 * output: together they read 128 bytes of a weight's row at a time. What a lane adds up, and the tree over the lanes,
 * depend on the shape alone, so a row's bits depend on its own ids alone. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/rows/row.cuh"

#include <cuda_fp16.h>

namespace {

enum { THREADS = 256, LANES = 8, OUTPUTS = THREADS / LANES, STAGE = 4096 /* values of x in shared memory at a time */ };

/* Values that 16 bytes of weights hold. */
template <bool FP4> struct chunk { static constexpr int SIZE = FP4 ? 32 : 8; };

/* e8m0: 2^(e - 127), 255 is NaN. */
__device__ __forceinline__ float e8m0(int e) {
    return __uint_as_float(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : (uint32_t)e << 23);
}

/* Two e2m1 codes, in bits 12 to 15 and 28 to 31, as f16 and then f32: sign, two bits of exponent, one of mantissa,
 * which stand for 2^-14 times their value. Exact, 0.5 too. */
__device__ __forceinline__ float2 e2m1_pair(uint32_t t) {
    const uint32_t h = (t & 0x80008000u) | (t >> 3 & 0x0e000e00u);
    return __half22float2(*(const __half2 *)&h);
}

/* Eight codes, the lowest nibble first, times x[0..8). */
__device__ __forceinline__ float dot_codes(uint32_t w, const float *x) {
    const float4 lo = *(const float4 *)x, hi = *(const float4 *)(x + 4);
    const float2 a = e2m1_pair(w << 12), b = e2m1_pair(w << 8), c = e2m1_pair(w << 4), d = e2m1_pair(w);
    float sum = lo.x * a.x;
    sum = fmaf(lo.y, b.x, sum);
    sum = fmaf(lo.z, c.x, sum);
    sum = fmaf(lo.w, d.x, sum);
    sum = fmaf(hi.x, a.y, sum);
    sum = fmaf(hi.y, b.y, sum);
    sum = fmaf(hi.z, c.y, sum);
    return fmaf(hi.w, d.y, sum);
}

/* Chunk `at` of the weights times x, which points to the chunk's first value in shared memory. */
template <bool FP4> __device__ __forceinline__ float dot_chunk(const pz_expert_weight &w, int64_t at, const float *x) {
    const uint4 v = __ldg((const uint4 *)w.data + at);
    if constexpr (FP4) {
        const float scale = e8m0(__ldg(w.scale + at));
        const float a = dot_codes(v.x, x), b = dot_codes(v.y, x + 8);
        const float c = dot_codes(v.z, x + 16), d = dot_codes(v.w, x + 24);
        return ((a + b) + (c + d)) * 0x1p14f * scale;
    } else {
        float y[8];
        pz_unpack_bf16(v, y);
        const float4 lo = *(const float4 *)x, hi = *(const float4 *)(x + 4);
        float sum = lo.x * y[0];
        sum = fmaf(lo.y, y[1], sum);
        sum = fmaf(lo.z, y[2], sum);
        sum = fmaf(lo.w, y[3], sum);
        sum = fmaf(hi.x, y[4], sum);
        sum = fmaf(hi.y, y[5], sum);
        sum = fmaf(hi.z, y[6], sum);
        return fmaf(hi.w, y[7], sum);
    }
}

/* Columns [col, col + n) of a row, n a multiple of 8, to shared memory. */
__device__ __forceinline__ void stage_row(const pz_matrix &a, int64_t row, int col, int n, float *x) {
    for (int k = threadIdx.x * 8; k < n; k += THREADS * 8) {
        float v[8];
        pz_get_some(a, row, col + k, 8, v);
        float4 *to = (float4 *)(x + pz_spread(k));
        to[0] = make_float4(v[0], v[1], v[2], v[3]);
        to[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
}

__device__ __forceinline__ float sum_lanes(float v) {
#pragma unroll
    for (int off = LANES / 2; off; off /= 2) v += __shfl_xor_sync(0xffffffffu, v, off);
    return v;
}

/* The expert of an id, counted from the first that is here; ELSEWHERE, on another rank, or UNKNOWN. */
enum { ELSEWHERE = -1, UNKNOWN = -2 };
__device__ __forceinline__ int expert_of(const pz_experts_params &p, int id) {
    if (id < 0 || id >= p.total) return UNKNOWN;
    return id >= p.first && id < p.first + p.experts ? id - p.first : ELSEWHERE;
}

/* ---- gate and up ---- */
template <bool FP4> __global__ void __launch_bounds__(THREADS) gate_up_kernel(const pz_experts_params p) {
    constexpr int C = chunk<FP4>::SIZE;
    __shared__ __align__(16) float x[STAGE + STAGE / 8];
    pz_trigger();
    pz_wait();
    const int pair = blockIdx.x, row = pair / p.top_k, e = expert_of(p, pz_load_i32(p.ids + pair));
    if (e == ELSEWHERE) return; /* nobody reads its part of the middle */
    const int lane = threadIdx.x % LANES, col = blockIdx.y * OUTPUTS + threadIdx.x / LANES;
    const bool known = e != UNKNOWN, mine = known && col < p.inner;
    const int64_t gate_at = ((int64_t)e * 2 * p.inner + col) * (p.hidden / C);
    const int64_t up_at = gate_at + (int64_t)p.inner * (p.hidden / C);
    float gate = 0, up = 0;
    for (int k0 = 0; k0 < p.hidden; k0 += STAGE) {
        const int n = p.hidden - k0 < STAGE ? p.hidden - k0 : STAGE;
        __syncthreads();
        stage_row(p.x, row, k0, n, x);
        __syncthreads();
        if (!mine) continue;
#pragma unroll 2
        for (int c = lane; c < n / C; c += LANES) {
            gate += dot_chunk<FP4>(p.gate_up, gate_at + k0 / C + c, x + pz_spread(c * C));
            up += dot_chunk<FP4>(p.gate_up, up_at + k0 / C + c, x + pz_spread(c * C));
        }
    }
    gate = sum_lanes(gate);
    up = sum_lanes(up);
    if (lane == 0 && col < p.inner) pz_put(p.middle, pair, col, known ? gate / (1.f + expf(-gate)) * up : PZ_NAN_F);
}

/* ---- down ---- */
/* Up to `group` experts' rows of the middle lie in shared memory at a time; a row longer than STAGE comes in parts. */
template <bool FP4> __global__ void __launch_bounds__(THREADS) down_kernel(const pz_experts_params p, const int group) {
    constexpr int C = chunk<FP4>::SIZE;
    extern __shared__ __align__(16) float x[];
    const int part = p.inner < STAGE ? p.inner : STAGE, stride = pz_spread((part + 31) & ~31);
    float *const weight = x + group * stride;
    int *const expert = (int *)(weight + p.top_k);
    pz_trigger();
    pz_wait();
    const int row = blockIdx.x, lane = threadIdx.x % LANES, col = blockIdx.y * OUTPUTS + threadIdx.x / LANES;
    for (int t = threadIdx.x; t < p.top_k; t += THREADS) {
        const int e = expert_of(p, pz_load_i32(p.ids + (int64_t)row * p.top_k + t));
        expert[t] = e == UNKNOWN ? 0 : e;
        weight[t] = e == UNKNOWN ? PZ_NAN_F : pz_get(p.weights, row, t);
    }
    const int row_chunks = p.inner / C;
    float sum = 0;
    for (int t0 = 0; t0 < p.top_k; t0 += group) {
        const int rows = p.top_k - t0 < group ? p.top_k - t0 : group;
        for (int k0 = 0; k0 < p.inner; k0 += STAGE) {
            const int n = p.inner - k0 < STAGE ? p.inner - k0 : STAGE, chunks = n / C;
            __syncthreads();
            for (int t = 0; t < rows; t++)
                if (expert[t0 + t] != ELSEWHERE)
                    stage_row(p.middle, (int64_t)row * p.top_k + t0 + t, k0, n, x + t * stride);
            __syncthreads();
            if (col >= p.hidden) continue;
                /* the chunks of all rows in one sequence, so that no lane is idle between rows */
#pragma unroll 2
            for (int i = lane; i < rows * chunks; i += LANES) {
                const int t = i / chunks, c = i % chunks;
                if (expert[t0 + t] == ELSEWHERE) continue;
                const int64_t at = ((int64_t)expert[t0 + t] * p.hidden + col) * row_chunks + k0 / C + c;
                sum = fmaf(weight[t0 + t], dot_chunk<FP4>(p.down, at, x + t * stride + pz_spread(c * C)), sum);
            }
        }
    }
    sum = sum_lanes(sum);
    if (lane == 0 && col < p.hidden) pz_put(p.y, row, col, sum);
}

} // namespace

pz_status pz_cuda_launch_experts(const pz_cuda_run *r, const pz_experts_params *p, pz_error *err) {
    const dim3 pairs(p->m * p->top_k, (p->inner + OUTPUTS - 1) / OUTPUTS);
    PZ_TRY(pz_cuda_launch(p->gate_up.scale ? gate_up_kernel<true> : gate_up_kernel<false>, pairs, dim3(THREADS), 0,
                          r->stream, r->dependent, "moe_experts gate_up", err, *p));
    const int part = p->inner < STAGE ? p->inner : STAGE, fit = STAGE / part;
    const int group = fit < p->top_k ? fit : p->top_k;
    const size_t floats = (size_t)group * pz_spread((part + 31) & ~31) + 2 * (size_t)p->top_k;
    return pz_cuda_launch(p->down.scale ? down_kernel<true> : down_kernel<false>,
                          dim3(p->m, (p->hidden + OUTPUTS - 1) / OUTPUTS), dim3(THREADS), floats * sizeof(float),
                          r->stream, r->dependent, "moe_experts down", err, *p, group);
}
