/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy choice: a block has one part of one row. */
#include "backend/cuda/rows/argmax.h"

#include <math_constants.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/rows/row.cuh"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32 };

/* b, where it is better than a. */
__device__ __forceinline__ pz_argmax_part better(pz_argmax_part a, pz_argmax_part b) {
    const bool take =
        b.column >= 0 && (a.column < 0 || b.value > a.value || (b.value == a.value && b.column < a.column));
    if (take) {
        a.value = b.value;
        a.column = b.column;
    }
    a.finite |= b.finite;
    return a;
}

__global__ void __launch_bounds__(THREADS) argmax_kernel(const pz_argmax_params p) {
    __shared__ pz_argmax_part warps[WARPS];
    const int row = p.rows[blockIdx.y], first = blockIdx.x * PZ_ARGMAX_SPAN;
    const int end = p.cols - first < PZ_ARGMAX_SPAN ? p.cols : first + PZ_ARGMAX_SPAN;
    pz_wait();
    pz_argmax_part best = {-CUDART_INF_F, -1, 0};
    for (int col = first + threadIdx.x * 8; col < end; col += THREADS * 8) {
        const int n = end - col < 8 ? end - col : 8;
        float v[8];
        pz_get_some(p.x, row, col, n, v);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (j >= n) break;
            if (fabsf(v[j]) < CUDART_INF_F) best.finite = 1;
            if (!(v[j] > best.value)) continue;
            best.value = v[j];
            best.column = col + j;
        }
    }
#pragma unroll
    for (int off = 16; off; off /= 2) {
        pz_argmax_part other;
        other.value = __shfl_xor_sync(0xffffffffu, best.value, off);
        other.column = __shfl_xor_sync(0xffffffffu, best.column, off);
        other.finite = __shfl_xor_sync(0xffffffffu, best.finite, off);
        best = better(best, other);
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < WARPS; w++) best = better(best, warps[w]);
    p.out[blockIdx.y * p.parts + blockIdx.x] = best;
}

} // namespace

pz_status pz_cuda_launch_argmax(const pz_argmax_params *p, cudaStream_t stream, pz_error *err) {
    return pz_cuda_launch(argmax_kernel, dim3(p->parts, p->n), dim3(THREADS), 0, stream, false, "argmax", err, *p);
}
