/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/check.h"

#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int64_t MAX_BLOCKS = 1024;

__device__ void report(pz_cuda_finding *out, int64_t offset) {
    atomicAdd(&out->count, 1ull);
    atomicMin(&out->first, (unsigned long long)offset);
}

__device__ bool allowed_at(const pz_cuda_ranges &ranges, int64_t byte) {
    for (int i = 0; i < ranges.n; i++)
        if (byte >= ranges.begin[i] && byte < ranges.end[i]) return true;
    return false;
}

__global__ void nonzero(const uint32_t *p, int64_t words, pz_cuda_finding *out) {
    pz_wait();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < words; i += (int64_t)gridDim.x * THREADS)
        if (pz_load_i32((const int32_t *)p + i) != 0) report(out, i * 4);
}

__global__ void changed(const uint32_t *now, const uint32_t *before, int64_t words, pz_cuda_ranges allowed,
                        pz_cuda_finding *out) {
    pz_wait();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < words; i += (int64_t)gridDim.x * THREADS) {
        uint32_t diff =
            (uint32_t)pz_load_i32((const int32_t *)now + i) ^ (uint32_t)pz_load_i32((const int32_t *)before + i);
        bool bad = false;
        for (int b = 0; b < 4; b++) bad |= (diff >> 8 * b & 255) && !allowed_at(allowed, i * 4 + b);
        if (bad) report(out, i * 4);
    }
}

dim3 grid_for(int64_t words) {
    int64_t blocks = (words + THREADS - 1) / THREADS;
    return dim3((unsigned)(blocks < 1 ? 1 : blocks > MAX_BLOCKS ? MAX_BLOCKS : blocks));
}

} // namespace

extern "C" pz_status pz_cuda_find_nonzero(const unsigned char *p, int64_t bytes, pz_cuda_finding *out,
                                          cudaStream_t stream, pz_error *err) {
    return pz_cuda_launch(nonzero, grid_for(bytes / 4), dim3(THREADS), 0, stream, false, "find_nonzero", err,
                          (const uint32_t *)p, bytes / 4, out);
}

extern "C" pz_status pz_cuda_find_changed(const unsigned char *now, const unsigned char *before, int64_t bytes,
                                          const pz_cuda_ranges *allowed, pz_cuda_finding *out, cudaStream_t stream,
                                          pz_error *err) {
    return pz_cuda_launch(changed, grid_for(bytes / 4), dim3(THREADS), 0, stream, false, "find_changed", err,
                          (const uint32_t *)now, (const uint32_t *)before, bytes / 4, *allowed, out);
}
