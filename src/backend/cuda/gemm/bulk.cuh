/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk tensor copies and the barriers they complete on. */
#ifndef PZ_BULK_CUH
#define PZ_BULK_CUH

#include <cuda.h>
#include <stdint.h>

__device__ __forceinline__ void pz_barrier_init(uint32_t bar, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void pz_barrier_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void pz_barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void pz_barrier_wait(uint32_t bar, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Has the description of a matrix at hand before its first copy. */
__device__ __forceinline__ void pz_bulk_prepare(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Box at (k, row) of a map [rows][k] to shared memory. */
__device__ __forceinline__ void pz_bulk_load(uint32_t dst, const CUtensorMap *map, int k, int row, uint32_t bar) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(dst),
        "l"(map), "r"(bar), "r"(k), "r"(row)
        : "memory");
}

#endif
