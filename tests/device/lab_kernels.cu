/* SPDX-License-Identifier: Apache-2.0 */
#include "lab_kernels.h"

namespace {

enum { THREADS = 256, OCCUPIED_BYTES = 180 * 1024 };

#define LAB_KERNEL(name, params)                                                          \
    __global__ void __launch_bounds__(THREADS) kernel_##name(const params p, int64_t n) { \
        int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;                          \
        if (i < n) elem_##name##_at(&p, i);                                               \
    }
ELEM_WORKS(LAB_KERNEL)
#undef LAB_KERNEL

__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__global__ void occupy(int microseconds) {
    unsigned long long end = nanoseconds() + 1000ull * microseconds;
    while (nanoseconds() < end) __nanosleep(1000);
}

} // namespace

extern "C" cudaError_t lab_kernel_each(lab_work work, const void *params, int64_t n, cudaStream_t stream) {
    unsigned blocks = (unsigned)((n + THREADS - 1) / THREADS);
    if (n <= 0) return cudaSuccess;
    switch (work) {
#define LAB_LAUNCH(name, type) \
    case LAB_##name: kernel_##name<<<blocks, THREADS, 0, stream>>>(*(const type *)params, n); break;
        ELEM_WORKS(LAB_LAUNCH)
#undef LAB_LAUNCH
    }
    return cudaGetLastError();
}

extern "C" cudaError_t lab_kernel_occupy(int multiprocessors, int spare, int microseconds, cudaStream_t stream) {
    cudaError_t code = cudaFuncSetAttribute(occupy, cudaFuncAttributeMaxDynamicSharedMemorySize, OCCUPIED_BYTES);
    if (code != cudaSuccess) return code;
    occupy<<<multiprocessors - spare, THREADS, OCCUPIED_BYTES, stream>>>(microseconds);
    return cudaGetLastError();
}
