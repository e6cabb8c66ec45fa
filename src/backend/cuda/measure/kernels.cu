/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/measure/kernels.h"

#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"

namespace {

enum { THREADS = 256, BLOCKS = 4096, REF_WARPS = 4, REF_ROWS = 8 };

/* ---- data ---- */
/* SplitMix64 (base/rng.h) of a counter. */
__device__ __forceinline__ float unit(uint64_t seed, int64_t i) {
    uint64_t z = seed + (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (float)((z ^ (z >> 31)) >> 40) * 0x1p-24f;
}

__device__ __forceinline__ void store(float *p, float v) {
    *p = v;
}
__device__ __forceinline__ void store(__nv_bfloat16 *p, float v) {
    *p = __float2bfloat16_rn(v);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) fill(T *p, int64_t n, float centre, float scale, uint64_t seed) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS)
        store(p + i, centre + scale * (2 * unit(seed, i) - 1));
}

/* ---- the reference: one warp a column and eight rows ---- */
__device__ __forceinline__ double bf16(const uint16_t *p) {
    return (double)__uint_as_float((uint32_t)*p << 16);
}

__global__ void __launch_bounds__(REF_WARPS * 32)
    reference(const uint16_t *x, const uint16_t *w, int m, int n, int k, double *out, double *squares) {
    const int column = blockIdx.x * REF_WARPS + threadIdx.x / 32, lane = threadIdx.x & 31;
    const int row = blockIdx.y * REF_ROWS;
    if (column >= n) return;
    const int rows = m - row < REF_ROWS ? m - row : REF_ROWS;
    double sum[REF_ROWS] = {}, square = 0;
    for (int i = lane; i < k; i += 32) {
        const double v = bf16(w + (int64_t)column * k + i);
#pragma unroll
        for (int r = 0; r < REF_ROWS; r++)
            if (r < rows) sum[r] += v * bf16(x + (int64_t)(row + r) * k + i);
    }
#pragma unroll
    for (int r = 0; r < REF_ROWS; r++) {
        for (int d = 16; d; d >>= 1) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], d);
        if (lane || r >= rows) continue;
        out[(int64_t)(row + r) * n + column] = sum[r];
        square += sum[r] * sum[r];
    }
    if (lane == 0) atomicAdd(squares, square);
}

__global__ void __launch_bounds__(THREADS)
    compare(const pz_matrix y, int m, int n, const double *expected, unsigned long long *worst) {
    const float infinity = __int_as_float(0x7f800000);
    unsigned long long mine = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < (int64_t)m * n;
         i += (int64_t)gridDim.x * THREADS) {
        float error = (float)fabs((double)pz_get(y, i / n, i % n) - expected[i]);
        if (!(error <= infinity)) error = infinity;
        unsigned long long key = (unsigned long long)__float_as_uint(error) << 32 | (uint32_t)i;
        if (key > mine) mine = key;
    }
    if (mine) atomicMax(worst, mine);
}

__global__ void __launch_bounds__(THREADS)
    count_other(const uint32_t *p, int64_t n, uint32_t value, unsigned long long *count) {
    unsigned long long mine = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS)
        mine += p[i] != value;
    if (mine) atomicAdd(count, mine);
}

__global__ void __launch_bounds__(THREADS) copy(uint4 *dst, const uint4 *src, int64_t n) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = __ldcs(src + i + j * step);
#pragma unroll
        for (int j = 0; j < 4; j++) __stcs(dst + i + j * step, v[j]);
    }
    for (; i < n; i += step) dst[i] = src[i];
}

unsigned blocks_for(int64_t n) {
    int64_t blocks = (n + THREADS - 1) / THREADS;
    return blocks < BLOCKS ? (unsigned)blocks : (unsigned)BLOCKS;
}

} // namespace

extern "C" pz_status pz_lab_fill_bf16(void *p, int64_t n, float centre, float scale, uint64_t seed, cudaStream_t stream,
                                      pz_error *err) {
    return pz_cuda_launch(fill<__nv_bfloat16>, dim3(blocks_for(n)), dim3(THREADS), 0, stream, false, "fill", err,
                          (__nv_bfloat16 *)p, n, centre, scale, seed);
}

extern "C" pz_status pz_lab_fill_f32(float *p, int64_t n, float centre, float scale, uint64_t seed, cudaStream_t stream,
                                     pz_error *err) {
    return pz_cuda_launch(fill<float>, dim3(blocks_for(n)), dim3(THREADS), 0, stream, false, "fill", err, p, n, centre,
                          scale, seed);
}

extern "C" pz_status pz_lab_reference(const void *x, const void *w, int m, int n, int k, double *out, double *squares,
                                      cudaStream_t stream, pz_error *err) {
    dim3 grid((unsigned)((n + REF_WARPS - 1) / REF_WARPS), (unsigned)((m + REF_ROWS - 1) / REF_ROWS));
    return pz_cuda_launch(reference, grid, dim3(REF_WARPS * 32), 0, stream, false, "reference", err,
                          (const uint16_t *)x, (const uint16_t *)w, m, n, k, out, squares);
}

extern "C" pz_status pz_lab_compare(const pz_matrix *y, int m, int n, const double *expected, unsigned long long *worst,
                                    cudaStream_t stream, pz_error *err) {
    return pz_cuda_launch(compare, dim3(blocks_for((int64_t)m * n)), dim3(THREADS), 0, stream, false, "compare", err,
                          *y, m, n, expected, worst);
}

extern "C" pz_status pz_lab_count_other(const void *p, size_t bytes, uint32_t value, unsigned long long *count,
                                        cudaStream_t stream, pz_error *err) {
    return pz_cuda_launch(count_other, dim3(blocks_for((int64_t)(bytes / 4))), dim3(THREADS), 0, stream, false,
                          "count_other", err, (const uint32_t *)p, (int64_t)(bytes / 4), value, count);
}

extern "C" pz_status pz_lab_copy(void *dst, const void *src, size_t bytes, int units, cudaStream_t stream,
                                 pz_error *err) {
    return pz_cuda_launch(copy, dim3((unsigned)units * 8), dim3(THREADS), 0, stream, false, "copy", err, (uint4 *)dst,
                          (const uint4 *)src, (int64_t)(bytes / 16));
}
