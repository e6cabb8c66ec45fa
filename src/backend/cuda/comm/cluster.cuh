/* SPDX-License-Identifier: Apache-2.0 */
/* A row of a collective on a cluster of blocks, or on one: its sums, as norm.cuh asks for them.
 *
 * The order of sums over a row must not depend on how many blocks share it, nor on how many vectors a thread has. So
 * there is a sum for each 32 neighbouring vectors, of which a warp has one or more, and these are added up alike. */
#ifndef PZ_CLUSTER_CUH
#define PZ_CLUSTER_CUH

#include "backend/cuda/norm/norm.cuh"
#include "plan/donor.h"

namespace {

/* What the blocks of a row tell each other, in the shared memory of each: the sums, for two rows in turn. */
struct shared_sums {
    float part[2][2][PZ_GROUP_SUMS];
    double squares[PZ_GROUP_SUMS];
    uint64_t full[2]; /* barriers: part has come from all */
};

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t address_in(int block, const void *p) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(block));
    return there;
}
__device__ __forceinline__ void send_sum(int block, float *p, uint64_t *full, float v) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address_in(block, p)), "f"(v),
        "r"(address_in(block, full))
        : "memory");
}
__device__ __forceinline__ void expect_sums(uint64_t *full, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void await_sums(uint64_t *full, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(shared_address(full)), "r"(parity)
                     : "memory");
}
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ double square_of(int block, const double *p) {
    double v;
    asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(v) : "r"(address_in(block, p)) : "memory");
    return v;
}
#endif

/* As add_warps where only the first 32 sums are not 0. Adding up zeros changes nothing. */
__device__ __forceinline__ float2 add_few(const float (&part)[2][PZ_GROUP_SUMS]) {
    const float4 a = ((const float4 *)part[0])[threadIdx.x & 7], b = ((const float4 *)part[1])[threadIdx.x & 7];
    float2 v = make_float2((a.x + a.y) + (a.z + a.w), (b.x + b.y) + (b.z + b.w));
#pragma unroll
    for (int d = 1; d < 8; d <<= 1)
        v = make_float2(v.x + __shfl_xor_sync(0xffffffffu, v.x, d), v.y + __shfl_xor_sync(0xffffffffu, v.y, d));
    return v;
}

/* A row on a cluster of blocks, or on one, with NV vectors a thread. */
template <int NV> struct cluster_row {
    shared_sums *shared;
    int parts, part, warps; /* blocks of the row, this one's number, warps of a block */
    uint32_t count;         /* sums made */

    /* Before pz_wait, by all threads: the blocks of a row must be there before one sends to another. */
    __device__ __forceinline__ void begin(shared_sums *sums, int blocks) {
        shared = sums, parts = blocks, warps = blockDim.x / 32, count = 0;
        part = parts > 1 ? blockIdx.x % parts : 0;
        /* what no warp writes */
        for (int i = threadIdx.x; i < 4 * PZ_GROUP_SUMS; i += blockDim.x)
            if (i % PZ_GROUP_SUMS >= parts * warps * NV) (&shared->part[0][0][0])[i] = 0;
#if __CUDA_ARCH__ >= 900
        if (parts == 1) return;
        if (threadIdx.x == 0) {
            for (int i = 0; i < 2; i++)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&shared->full[i])));
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            for (int i = 0; i < 2; i++) expect_sums(&shared->full[i], bytes());
        }
        __syncthreads();
        asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
#endif
    }
    __device__ __forceinline__ int bytes() const {
        return 8 * parts * warps * NV;
    }
    __device__ __forceinline__ int column(int i) const {
        return ((part * NV + i) * (int)blockDim.x + (int)threadIdx.x) * 8;
    }
    __device__ __forceinline__ int number(int i) const {
        return (part * NV + i) * warps + (threadIdx.x >> 5);
    }
    __device__ __forceinline__ bool leads() const {
        return part == 0 && threadIdx.x == 0;
    }

    /* A warp is at most one row ahead of another one, whose sums it needs: two places are enough. */
    __device__ __forceinline__ float2 sums(const float (&a)[NV], const float (&b)[NV]) {
        const int lane = threadIdx.x & 15, turn = count & 1;
#pragma unroll
        for (int i = 0; i < NV; i++) {
            const float v = half_sums(a[i], b[i]);
            float *mine = &shared->part[turn][threadIdx.x >> 4 & 1][number(i)];
#if __CUDA_ARCH__ >= 900
            if (parts > 1) {
                if (lane < parts) send_sum(lane, mine, &shared->full[turn], v);
                continue;
            }
#endif
            if (lane == 0) *mine = v;
        }
        if (parts == 1) __syncthreads();
#if __CUDA_ARCH__ >= 900
        if (parts > 1) {
            await_sums(&shared->full[turn], count >> 1 & 1);
            if (threadIdx.x == 0) expect_sums(&shared->full[turn], bytes());
        }
#endif
        count++;
        if (parts * warps * NV <= 32) return add_few(shared->part[turn]);
        return add_warps(shared->part[turn]);
    }
    __device__ __forceinline__ void meet() const {
#if __CUDA_ARCH__ >= 900
        if (parts > 1) {
            meet_cluster();
            return;
        }
#endif
        __syncthreads();
    }
    __device__ __forceinline__ double square(int i) const {
#if __CUDA_ARCH__ >= 900
        if (parts > 1) return square_of(i / (NV * warps), &shared->squares[i]);
#endif
        return shared->squares[i];
    }
    __device__ __forceinline__ double sum(const double (&v)[NV]) const {
        meet(); /* all have read the sums before */
#pragma unroll
        for (int i = 0; i < NV; i++) {
            double of = v[i];
#pragma unroll
            for (int off = 16; off; off >>= 1) of += __shfl_xor_sync(0xffffffffu, of, off);
            if ((threadIdx.x & 31) == 0) shared->squares[number(i)] = of;
        }
        meet();
        double all = 0;
        for (int i = 0; i < parts * warps * NV; i++) all += square(i);
        meet(); /* no block ends while another one reads */
        return all;
    }
};

} // namespace

#endif
