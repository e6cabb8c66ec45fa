/* SPDX-License-Identifier: Apache-2.0 */
/* How a tile of partial sums becomes a part of y: every zero-init strategy, once, for all GEMM kernels. */
#ifndef PZ_OUTPUT_CUH
#define PZ_OUTPUT_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/gemm/gemm.h"

/* ---- one element ---- */
/* Where a tile's sums go: into y or into the workspace, added or stored. */
typedef struct pz_destination {
    char *data; /* element (0, 0) of the tile */
    int64_t ld; /* elements */
    bool adds, bf16;
} pz_destination;

__device__ __forceinline__ void pz_output_put(const pz_destination &d, int row, int col, int v) {
    int *p = (int *)d.data + row * d.ld + col;
    if (d.adds)
        asm volatile("red.global.add.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
    else
        *p = v;
}
__device__ __forceinline__ void pz_output_put(const pz_destination &d, int row, int col, float v) {
    if (d.bf16) {
        __nv_bfloat16 *p = (__nv_bfloat16 *)d.data + row * d.ld + col, h = __float2bfloat16_rn(v);
        if (d.adds)
            atomicAdd(p, h);
        else
            *p = h;
        return;
    }
    float *p = (float *)d.data + row * d.ld + col;
    if (d.adds)
        asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
    else
        *p = v;
}
__device__ __forceinline__ void pz_store_global(const pz_gemm_output &o, int64_t i, int v) {
    ((int *)o.y)[i] = v;
}
__device__ __forceinline__ void pz_store_global(const pz_gemm_output &o, int64_t i, float v) {
    if (o.bf16)
        ((__nv_bfloat16 *)o.y)[i] = __float2bfloat16_rn(v);
    else
        ((float *)o.y)[i] = v;
}
__device__ __forceinline__ int pz_load_partial(const int *p) {
    return pz_load_i32(p);
}
__device__ __forceinline__ float pz_load_partial(const float *p) {
    return pz_load_f32(p);
}
__device__ __forceinline__ void pz_clear_global(const pz_gemm_output &o, int64_t i) {
    if (o.bf16)
        ((uint16_t *)o.y)[i] = 0;
    else
        ((int *)o.y)[i] = 0;
}

/* ---- one tile ---- */
/* The threads that put a tile out: all of a block, or those that multiply. */
typedef struct pz_group {
    int thread, threads, barrier;
    __device__ __forceinline__ void sync() const {
        asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
    }
} pz_group;
/* Rows [row0, row0 + rows) and columns [col0, col0 + cols) of y, already within m and n. */
typedef struct pz_tile {
    int row0, rows, col0, cols, index, part; /* index: of the tile; part: of its split */
} pz_tile;

/* The tile and the part of K of this block, for tiles of `width` columns and `height` rows. */
__device__ __forceinline__ pz_tile pz_output_tile(const pz_gemm_output &o, int width, int height) {
    const int tiles_n = (o.n + width - 1) / width;
    pz_tile t;
    t.part = blockIdx.x / tiles_n;
    const int tile_n = blockIdx.x - t.part * tiles_n;
    t.index = blockIdx.y * tiles_n + tile_n;
    t.col0 = tile_n * width;
    t.cols = min(width, o.n - t.col0);
    t.row0 = blockIdx.y * height;
    t.rows = min(height, o.m - t.row0);
    return t;
}

/* SELF, right after pz_wait: the first block of the tile to come here zeroes it. Nobody waits here, and whoever waits
 * later waits for a block that is already running, so no number of blocks has to be resident. `first` is shared. */
__device__ __forceinline__ void pz_output_begin(const pz_gemm_output &o, const pz_tile &t, const pz_group &g,
                                                int *first) {
    if (o.strategy != PZ_ZERO_SELF) return;
    uint32_t *counter = o.counters + 3 * t.index;
    if (g.thread == 0) *first = atomicInc(counter, (unsigned)o.split - 1) == 0;
    g.sync();
    if (!*first) return;
    for (int i = g.thread; i < t.rows * t.cols; i += g.threads)
        pz_clear_global(o, (t.row0 + i / t.cols) * o.ldy + t.col0 + i % t.cols);
    __threadfence();
    g.sync();
    if (g.thread == 0) asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(counter + 1) : "memory");
}

/* SELF, before the first add: the tile is zero. All threads of the group. */
__device__ __forceinline__ void pz_output_ready(const pz_gemm_output &o, const pz_tile &t, const pz_group &g) {
    if (o.strategy != PZ_ZERO_SELF) return;
    if (g.thread == 0) {
        uint32_t ready;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(ready)
                         : "l"(o.counters + 3 * t.index + 1)
                         : "memory");
        while (!ready);
    }
    g.sync();
}

template <typename Sum>
__device__ __forceinline__ pz_destination pz_output_destination(const pz_gemm_output &o, const pz_tile &t) {
    pz_destination d;
    const bool parts = o.strategy == PZ_ZERO_REDUCE || o.strategy == PZ_ZERO_TICKET;
    d.adds = !parts && o.strategy != PZ_ZERO_NONE;
    d.bf16 = !parts && o.bf16;
    d.ld = parts ? o.n : o.ldy;
    int64_t at = t.row0 * d.ld + t.col0;
    d.data =
        parts ? (char *)((Sum *)o.partial + (int64_t)t.part * o.m * o.n + at) : (char *)o.y + at * (o.bf16 ? 2 : 4);
    return d;
}

/* After the last put, all threads of the group: SELF leaves its counters clean; TICKET's last block adds the parts in
 * their order.
 */
template <typename Sum>
__device__ __forceinline__ void pz_output_end(const pz_gemm_output &o, const pz_tile &t, const pz_group &g, int *last) {
    if (o.strategy != PZ_ZERO_SELF && o.strategy != PZ_ZERO_TICKET) return;
    uint32_t *counter = o.counters + 3 * t.index;
    if (o.strategy == PZ_ZERO_SELF) {
        if (g.thread == 0 && atomicInc(counter + 2, (unsigned)o.split - 1) == (unsigned)o.split - 1) counter[1] = 0;
        return;
    }
    __threadfence();
    g.sync();
    if (g.thread == 0) *last = atomicInc(counter, (unsigned)o.split - 1) == (unsigned)o.split - 1;
    g.sync();
    if (!*last) return;
    __threadfence();
    for (int i = g.thread; i < t.rows * t.cols; i += g.threads) {
        int row = t.row0 + i / t.cols, col = t.col0 + i % t.cols;
        const Sum *p = (const Sum *)o.partial + (int64_t)row * o.n + col;
        Sum sum = 0;
        for (int s = 0; s < o.split; s++) sum += pz_load_partial(p + (int64_t)s * o.m * o.n);
        pz_store_global(o, row * o.ldy + col, sum);
    }
}

#endif
