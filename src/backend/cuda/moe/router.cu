/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of experts: one block a row; all warps score, then one chooses. The choice is that of the CPU backend: largest
 * first, the lowest index of equals; NaN counts as the largest, so that it shows. */
#include <math_constants.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/rows/row.cuh"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32, MOST = PZ_ROUTER_MAX_EXPERTS };

/* So that -Inf can stand for what is struck out. */
__device__ __forceinline__ float comparable(float v) {
    if (v != v) return CUDART_INF_F;
    return v < -CUDART_MAX_NORMAL_F ? -CUDART_MAX_NORMAL_F : v;
}

/* A warp strikes the largest of v[0..n) out, the lowest index of equals. Returns its index, *value is what it was. */
__device__ __forceinline__ int take_largest(float *v, int n, float *value) {
    const int lane = threadIdx.x & 31;
    int best = lane < n ? lane : n;
    float most = lane < n ? v[lane] : -CUDART_INF_F;
    for (int i = lane + 32; i < n; i += 32) {
        if (!(v[i] > most)) continue;
        most = v[i];
        best = i;
    }
#pragma unroll
    for (int off = 16; off; off /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, off);
        const int index = __shfl_xor_sync(0xffffffffu, best, off);
        if (!(other > most || (other == most && index < best))) continue;
        most = other;
        best = index;
    }
    __syncwarp();
    if (lane == 0) v[best] = -CUDART_INF_F;
    __syncwarp();
    *value = most;
    return best;
}

/* Scores in place of the logits. exp is taken in f64, so that both backends round to the same f32 and choose the same
 * expert. */
__device__ __forceinline__ void score_row(const pz_router_params &p, float *score) {
    __shared__ float part[WARPS];
    const int tid = threadIdx.x;
    if (p.sigmoid) {
        for (int e = tid; e < p.experts; e += THREADS) score[e] = 1.f / (1.f + (float)exp(-(double)score[e]));
        return;
    }
    float most = -CUDART_INF_F;
    for (int e = tid; e < p.experts; e += THREADS) most = fmaxf(most, score[e]);
#pragma unroll
    for (int off = 16; off; off /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, off));
    if (tid % 32 == 0) part[tid / 32] = most;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, part[w]);
    double sum = 0;
    for (int e = tid; e < p.experts; e += THREADS) {
        score[e] = (float)exp((double)(score[e] - most));
        sum += score[e];
    }
    const float total = (float)pz_block_sum(sum);
    for (int e = tid; e < p.experts; e += THREADS) score[e] /= total;
}

/* Strikes the experts of all but the best groups out. group: [n_group] sums, then 1 for those that are kept. */
__device__ __forceinline__ void keep_groups(const pz_router_params &p, float *choice, float *group, float *work) {
    const int size = p.experts / p.n_group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __shared__ bool keep[MOST];
    float value;
    for (int e = threadIdx.x; e < p.experts; e += THREADS) work[e] = choice[e];
    __syncthreads();
    for (int g = warp; g < p.n_group; g += WARPS) {
        float sum = 0;
        for (int t = 0; t < p.group_top; t++) {
            take_largest(work + g * size, size, &value);
            sum += value;
        }
        if (lane == 0) {
            group[g] = comparable(sum);
            keep[g] = false;
        }
    }
    __syncthreads();
    if (warp == 0)
        for (int t = 0; t < p.topk_group; t++) {
            const int g = take_largest(group, p.n_group, &value);
            if (lane == 0) keep[g] = true;
        }
    __syncthreads();
    for (int e = threadIdx.x; e < p.experts; e += THREADS)
        if (!keep[e / size]) choice[e] = -CUDART_INF_F;
}

__global__ void __launch_bounds__(THREADS) router_kernel(const pz_router_params p) {
    __shared__ float score[MOST], choice[MOST], group[MOST], work[MOST];
    pz_trigger();
    pz_wait();
    const int row = blockIdx.x, tid = threadIdx.x;
    for (int e = tid; e < p.experts; e += THREADS) score[e] = pz_get(p.logits, row, e);
    score_row(p, score); /* each thread has the elements that it read */
    for (int e = tid; e < p.experts; e += THREADS)
        choice[e] = comparable(p.bias ? score[e] + __ldg(p.bias + e) : score[e]);
    if (p.topk_group < p.n_group) keep_groups(p, choice, group, work);
    __syncthreads();
    if (tid >= 32) return;
    float *weight = work, sum = 0, value;
    for (int t = 0; t < p.top_k; t++) {
        const int e = take_largest(choice, p.experts, &value);
        sum += score[e];
        if (tid != 0) continue;
        p.ids[(int64_t)row * p.top_k + t] = e;
        weight[t] = score[e];
    }
    __syncwarp();
    for (int t = tid; t < p.top_k; t += 32)
        pz_put(p.weights, row, t, (p.norm ? weight[t] / (sum + 1e-20f) : weight[t]) * p.scale);
}

} // namespace

pz_status pz_cuda_launch_router(const pz_cuda_run *r, const pz_router_params *p, pz_error *err) {
    return pz_cuda_launch(router_kernel, dim3(p->m), dim3(THREADS), 0, r->stream, r->dependent, "router", err, *p);
}
