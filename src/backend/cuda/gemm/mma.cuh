/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions of the GEMM kernels that CUDA C++ has no name for. */
#ifndef PZ_MMA_CUH
#define PZ_MMA_CUH

#include "backend/cuda/device.cuh"

/* A weight read once: ordered before pz_wait, not kept in L1. */
__device__ __forceinline__ uint4 pz_load_weight(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Copies 16 bytes to shared memory in the background, zeros where `valid` is false. */
__device__ __forceinline__ void pz_copy16(uint32_t dst, const void *src, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void pz_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending> __device__ __forceinline__ void pz_copy_wait_at_most() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
/* Waits until at most `pending` of this thread's groups are in flight; more than 8 count as 8. */
__device__ __forceinline__ void pz_copy_wait(int pending) {
    switch (pending) {
    case 0: pz_copy_wait_at_most<0>(); break;
    case 1: pz_copy_wait_at_most<1>(); break;
    case 2: pz_copy_wait_at_most<2>(); break;
    case 3: pz_copy_wait_at_most<3>(); break;
    case 4: pz_copy_wait_at_most<4>(); break;
    case 5: pz_copy_wait_at_most<5>(); break;
    case 6: pz_copy_wait_at_most<6>(); break;
    case 7: pz_copy_wait_at_most<7>(); break;
    default: pz_copy_wait_at_most<8>();
    }
}

/* Four 8 x 8 matrices of 16 bits whose rows of 16 bytes begin at p, matrix i's in lanes 8 i .. 8 i + 7; a lane gets
 * elements (lane / 4, 2 (lane % 4) ..) of each. */
__device__ __forceinline__ uint4 pz_ldmatrix(uint32_t p) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(p)
                 : "memory");
    return v;
}

/* Among the four lanes of a quad: word i of lane t becomes word t of lane i. */
__device__ __forceinline__ void pz_transpose_quad(uint4 &v, int t) {
    const bool odd = t & 1, high = t & 2;
    uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? v.x : v.y, 1), b = __shfl_xor_sync(0xffffffffu, odd ? v.z : v.w, 1);
    v.x = odd ? a : v.x, v.y = odd ? v.y : a, v.z = odd ? b : v.z, v.w = odd ? v.w : b;
    a = __shfl_xor_sync(0xffffffffu, high ? v.x : v.z, 2), b = __shfl_xor_sync(0xffffffffu, high ? v.y : v.w, 2);
    v.x = high ? a : v.x, v.z = high ? v.z : a, v.y = high ? b : v.y, v.w = high ? v.w : b;
}

/* d[16, 8] += a[16, 16] b[16, 8], bf16 with f32 sums. */
__device__ __forceinline__ void pz_mma(float d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                       uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#endif
