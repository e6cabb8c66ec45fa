/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma m64nNk16 for bf16 with the 64 rows in registers (the fragments of mma.sync, 16 rows a warp) and the N rows in
 * shared memory, K contiguous in pieces of 16 bytes without a swizzle; one function a width. */
#ifndef PZ_WGMMA_RS_CUH
#define PZ_WGMMA_RS_CUH

#include "backend/cuda/gemm/wgmma.cuh"

/* Descriptor of N rows of 16 bytes, one after the other, for each 8 values of k; piece: bytes from those to the next.
 */
__device__ __forceinline__ uint64_t pz_wgmma_pieces(uint32_t shared, uint32_t piece) {
    return (uint64_t)((shared & 0x3ffff) >> 4) | (uint64_t)(piece >> 4) << 16 | (uint64_t)8 << 32;
}

/* d[64, N] = a[64, 16] b[N, 16]^T, added to what d holds if `add`. */
template <int N> __device__ void pz_wgmma_rs(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, bool add);

template <>
__device__ __forceinline__ void pz_wgmma_rs<8>(float (&d)[1][4], const uint32_t (&a)[4], uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %9, 0; "
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3"
                 "}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

template <>
__device__ __forceinline__ void pz_wgmma_rs<16>(float (&d)[2][4], const uint32_t (&a)[4], uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %13, 0; "
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7"
                 "}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

template <>
__device__ __forceinline__ void pz_wgmma_rs<32>(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; "
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

#endif
