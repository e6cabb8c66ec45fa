/* SPDX-License-Identifier: Apache-2.0 */
/* GEMM with wgmma: weights are the 64 rows of the instruction, rows of x its columns, both read by the tensor cores
 * from rings of shared memory that bulk tensor copies fill, 64 of k at a time.
 *
 * A block has tile_n / 64 columns of warpgroups by `warps` of them that share the block's part of K unit by unit
 * (pz_gemm_unit), and one warp that copies. Before the wait for the kernel that makes x it asks for as many weights as
 * the ring holds; weights brought to L2 ahead of their copies would pass through it twice. After the wait a warpgroup
 * that has nothing else to do asks for x. The threads have no more registers, and the rings no more shared memory, than
 * leaves room for a block of the kernels before and after. */
#include "backend/cuda/gemm/bulk.cuh"
#include "backend/cuda/gemm/output.cuh"
#include "backend/cuda/gemm/round.h"
#include "backend/cuda/gemm/wgmma.cuh"
#include "backend/cuda/launch.cuh"

namespace {

/* BARRIERS: a block of 64 k has barrier number b % BARRIERS whatever its slot, so that groups that share the units may
 * meet at one. Rings are so short that a group that waits for block b knows block b - BARRIERS to be complete. */
enum { CHUNK = PZ_GEMM_CHUNK, BLOCK = 64, BLOCKS = CHUNK / BLOCK, ROWS = 64, BARRIERS = PZ_GEMM_BARRIERS };
struct wide_params {
    CUtensorMap w, x;
    pz_gemm_output out;
    int columns, shares, halves, depth;       /* halves: warpgroups with N rows each of a tile; 2 with one share */
    int chunks, unit;                         /* of K; chunks of a unit */
    int part, longer;                         /* units of a part, and how many parts have one more */
    int w_stages, x_stages, w_bytes, x_bytes; /* blocks of 64 k, bytes of one */
    int w_skip, x_skip;                       /* slots between a group's unit and its next */
    int head;                                 /* bytes of shared memory before shared_head */
};

struct shared_head {
    uint64_t w_full[BARRIERS], x_full[BARRIERS], done[BARRIERS / BLOCKS]; /* done: of a chunk, by warps */
    uint64_t norms;                                                       /* x_inv is there */
    alignas(16) float x_inv[128];
    int flag;
};

static_assert(sizeof(shared_head) <= PZ_GEMM_WIDE_HEAD, "what the layout leaves for it");
static_assert(2 * (PZ_GEMM_ALONE + 1024) > 228 * 1024, "more than an SM has, with what it keeps of each block");

/* The part of a tile's chunks that one block has. */
struct work {
    pz_tile tile;
    int chunk0, n, units;
};

/* Of the grid [tiles of m][parts of K][tiles of n]. */
template <int N> __device__ __forceinline__ work find_work(const wide_params &p) {
    const int tile = blockIdx.x, part = blockIdx.y, width = ROWS * p.columns;
    work w;
    w.tile.part = part;
    w.tile.index = blockIdx.z * gridDim.x + tile;
    w.tile.col0 = tile * width;
    w.tile.cols = min(width, p.out.n - w.tile.col0);
    w.tile.row0 = blockIdx.z * N * p.halves;
    w.tile.rows = min(N * p.halves, p.out.m - w.tile.row0);
    w.chunk0 = p.unit * (part * p.part + min(part, p.longer));
    w.units = p.part + (part < p.longer);
    w.n = min(p.unit * w.units, p.chunks - w.chunk0);
    return w;
}

[[maybe_unused]] __device__ __forceinline__ uint32_t at(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Loads the blocks of one operand in their order. */
struct loader {
    const CUtensorMap *map;
    uint32_t ring, full;
    int bytes, stages, row, k;
    int next, slot;
    __device__ __forceinline__ void load() {
        const uint32_t bar = full + next % BARRIERS * 8;
        pz_barrier_expect(bar, bytes);
        pz_bulk_load(ring + slot * bytes, map, k + next * BLOCK, row, bar);
        next++;
        if (++slot == stages) slot = 0;
    }
};
[[maybe_unused]] __device__ __forceinline__ loader load_w(const wide_params &p, const work &w, const shared_head *h,
                                                          uint32_t ring) {
    return {&p.w, ring, at(h->w_full), p.w_bytes, p.w_stages, w.tile.col0, w.chunk0 * CHUNK, 0, 0};
}
[[maybe_unused]] __device__ __forceinline__ loader load_x(const wide_params &p, const work &w, const shared_head *h,
                                                          uint32_t ring) {
    return {&p.x, ring + p.w_stages * p.w_bytes, at(h->x_full), p.x_bytes, p.x_stages, w.tile.row0, w.chunk0 * CHUNK, 0,
            0};
}

/* All weights, and those blocks of x for which no slot was free at first. */
[[maybe_unused]] __device__ __forceinline__ void copy(const wide_params &p, const work &w, const shared_head *h,
                                                      uint32_t ring) {
    const int n = BLOCKS * w.n, ahead = BLOCKS * p.depth;
    loader lw = load_w(p, w, h, ring), lx = load_x(p, w, h, ring);
    while (lw.next < min(p.w_stages, n)) {
        if (ahead && lw.next >= ahead) pz_barrier_wait(at(&h->w_full[lw.next - ahead]), 0);
        lw.load();
    }
    lx.next = min(p.x_stages, n);
    pz_wait();
    for (int c = 0; lw.next < n || lx.next < n; c++) {
        pz_barrier_wait(at(&h->done[c % (BARRIERS / BLOCKS)]), c / (BARRIERS / BLOCKS) & 1);
        const int free = BLOCKS * (c + 1);
        while (lw.next < min(n, free + p.w_stages)) lw.load();
        while (lx.next < min(n, free + p.x_stages)) lx.load();
    }
}

/* What a warpgroup needs to work through its units. */
struct consumer {
    shared_head *h;
    uint32_t w, x; /* slot 0 */
    int w_slot, x_slot;
    int running;        /* the chunk whose products may still run; -1: none */
    const float *x_inv; /* of its rows */
    float w_inv[2], x_norm;
    bool publishes; /* x_norm, which it has asked for */
};

[[maybe_unused]] __device__ __forceinline__ int wrap(int slot, int stages) {
    return slot >= stages ? slot - stages : slot;
}

/* Products of 64 k. */
template <int N> __device__ __forceinline__ void multiply(float (&acc)[N / 2], uint32_t w, uint32_t x, bool add) {
#pragma unroll
    for (int k = 0; k < BLOCK; k += 16) pz_wgmma<N>(acc, pz_wgmma_tile(w, k), pz_wgmma_tile(x, k), add || k);
}

/* Every second value is rounded by additions: conversions alone would take longer than all of these instructions. */
template <int N>
__device__ __forceinline__ void round_unit(int *sum, const float (&acc)[N / 2], const float *x_inv,
                                           const float (&w_inv)[2]) {
    const int c = 2 * (threadIdx.x & 3);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 inv = *(const float2 *)(x_inv + 8 * j + c);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float v = acc[4 * j + e] * (e & 1 ? inv.y : inv.x), other = w_inv[e >> 1];
            sum[4 * j + e] += (e & 1) ? pz_round_scaled(v, other) : __float2int_rn(v * other);
        }
    }
}

/* The norms of the rows of x are waited for when the first sum is rounded, and not before products are asked for. */
[[maybe_unused]] __device__ __forceinline__ void share_norms(consumer &c) {
    if (c.publishes) {
        c.h->x_inv[threadIdx.x] = pz_fixed_inv(c.x_norm);
        pz_barrier_arrive(at(&c.h->norms));
        c.publishes = false;
    }
    pz_barrier_wait(at(&c.h->norms), 0);
}

/* Chunk i has been read. */
[[maybe_unused]] __device__ __forceinline__ void release(const consumer &c, int i) {
    if ((threadIdx.x & 31) == 0) pz_barrier_arrive(at(&c.h->done[i % (BARRIERS / BLOCKS)]));
}

/* Asks for the products of chunk i, and waits for those of the chunk before, whose slots are filled again while these
 * run. */
template <int N>
__device__ __forceinline__ void take_chunk(const wide_params &p, consumer &c, int i, bool add, float (&acc)[N / 2]) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const unsigned block = BLOCKS * i + b;
        pz_barrier_wait(at(&c.h->w_full[block % BARRIERS]), block / BARRIERS & 1);
        pz_barrier_wait(at(&c.h->x_full[block % BARRIERS]), block / BARRIERS & 1);
        pz_wgmma_fence();
        multiply<N>(acc, c.w + c.w_slot * p.w_bytes, c.x + c.x_slot * p.x_bytes, add || b);
        c.w_slot = wrap(c.w_slot + 1, p.w_stages);
        c.x_slot = wrap(c.x_slot + 1, p.x_stages);
    }
    pz_wgmma_commit();
    pz_wgmma_wait<1>();
    if (c.running >= 0) release(c, c.running);
    c.running = i;
}
/* Waits for all products. */
[[maybe_unused]] __device__ __forceinline__ void finish_chunks(consumer &c) {
    pz_wgmma_wait<0>();
    if (c.running >= 0) release(c, c.running);
    c.running = -1;
}
/* To the next unit of this group. */
[[maybe_unused]] __device__ __forceinline__ void skip(const wide_params &p, consumer &c) {
    c.w_slot = wrap(c.w_slot + p.w_skip, p.w_stages);
    c.x_slot = wrap(c.x_slot + p.x_skip, p.x_stages);
}

/* f32: units share, share + p.shares, ... are added up in acc. Where others share the part, no slot is held between two
 * units: it may be one that they wait for. */
template <int N>
__device__ __forceinline__ void consume_units(const wide_params &p, const work &w, consumer &c, int share,
                                              float (&acc)[N / 2]) {
    const int between = p.unit * (p.shares - 1);
    int i = p.unit * share;
    const auto next = [&](bool add) {
        take_chunk<N>(p, c, i, add, acc);
        if ((++i & (p.unit - 1)) == 0) {
            if (p.shares > 1) finish_chunks(c);
            i += between;
            skip(p, c);
        }
    };
    if (i >= w.n) {
#pragma unroll
        for (int e = 0; e < N / 2; e++) acc[e] = 0;
        return;
    }
    next(false);
    while (i < w.n) next(true);
    finish_chunks(c);
}

/* fixed: each unit is rounded and added to `sum`. */
template <int N>
__device__ __forceinline__ void consume_units(const wide_params &p, const work &w, consumer &c, int share,
                                              float (&acc)[N / 2], int (&sum)[N / 2]) {
    for (int j = share; j < w.units; j += p.shares) {
        const int first = p.unit * j, end = min(first + p.unit, w.n);
        take_chunk<N>(p, c, first, false, acc);
        for (int i = first + 1; i < end; i++) take_chunk<N>(p, c, i, true, acc);
        skip(p, c);
        finish_chunks(c);
        share_norms(c);
        round_unit<N>(sum, acc, c.x_inv, c.w_inv);
    }
}

/* A thread's elements of a product [row of x][row of w], as wgmma lays them out: N / 8 times two rows and the columns
 * 0 and 8, from `d` on; rows and cols are what the tile has from there. */
template <int N, typename Sum>
__device__ __forceinline__ void put_own(pz_destination d, int rows, int cols, const Sum (&sum)[N / 2]) {
    const int64_t step = 8 * d.ld * (d.bf16 ? 2 : 4);
#pragma unroll
    for (int j = 0; j < N / 8; j++, d.data += step)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * j + (e & 1) < rows && 8 * (e >> 1) < cols) pz_output_put(d, e & 1, 8 * (e >> 1), sum[4 * j + e]);
}

/* The same, with the cases apart that are most frequent: nothing is left to be asked for an element. */
template <int N, typename Sum>
__device__ __forceinline__ void put_unshared(pz_destination d, int rows, int cols, const Sum (&sum)[N / 2]) {
    if (d.adds && !d.bf16) {
        d.adds = true, d.bf16 = false;
        if (rows > N - 7 && cols > 8)
            put_own<N>(d, N, ROWS, sum);
        else
            put_own<N>(d, rows, cols, sum);
    } else {
        put_own<N>(d, rows, cols, sum);
    }
}

/* The sums of the warpgroups that share a tile, added in their order and put out. */
template <int N, typename Sum>
__device__ __forceinline__ void put(const wide_params &p, const work &w, const pz_group &g, const Sum (&sum)[N / 2],
                                    Sum *shared, int half, int column, int share) {
    const int row = half * N + 2 * (threadIdx.x & 3), width = ROWS * p.columns, pitch = width + 4,
              col = column * ROWS + 16 * ((threadIdx.x >> 5) & 3) + (threadIdx.x >> 2 & 7);
    pz_destination d = pz_output_destination<Sum>(p.out, w.tile);
    pz_output_ready(p.out, w.tile, g);
    if (p.shares == 1) {
        d.data += (row * d.ld + col) * (d.bf16 ? 2 : 4);
        put_unshared<N>(d, w.tile.rows - row, w.tile.cols - col, sum);
        return;
    }
    g.sync(); /* the ring has been read by all */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        shared[(share * N + row + 8 * (i / 4) + (i & 1)) * pitch + col + 8 * ((i >> 1) & 1)] = sum[i];
    g.sync();
    const int at_col = g.thread % width;
    if (at_col >= w.tile.cols) return;
    for (int r = g.thread / width; r < w.tile.rows; r += g.threads / width) {
        Sum v = 0;
        for (int s = 0; s < p.shares; s++) v += shared[(s * N + r) * pitch + at_col];
        pz_output_put(d, r, at_col, v);
    }
}

template <int N, typename Sum>
__device__ __forceinline__ void consume(const wide_params &p, const work &w, shared_head *h, uint32_t ring, Sum *sums) {
    const int groups = p.columns * p.shares * p.halves, index = __shfl_sync(~0u, threadIdx.x / 128, 0),
              half = index % p.halves, column = index / p.halves % p.columns, share = index / (p.halves * p.columns);
    const pz_group g = {(int)threadIdx.x, 128 * groups, 1};
    constexpr bool fixed = !((Sum)0.5f);
    float acc[N / 2];
    Sum sum[N / 2];
    consumer c;
    c.h = h, c.running = -1, c.publishes = false;
    c.w = ring + column * ROWS * BLOCK * 2;
    c.x = ring + p.w_stages * p.w_bytes + half * N * BLOCK * 2;
    c.x_inv = h->x_inv + half * N;
    for (c.w_slot = BLOCKS * p.unit * share; c.w_slot >= p.w_stages;) c.w_slot -= p.w_stages;
    for (c.x_slot = BLOCKS * p.unit * share; c.x_slot >= p.x_stages;) c.x_slot -= p.x_stages;
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i] = 0;
    if constexpr (fixed) {
        int n = w.tile.col0 + column * ROWS + 16 * ((threadIdx.x >> 5) & 3) + ((threadIdx.x & 31) >> 2);
        for (int e = 0; e < 2; e++) c.w_inv[e] = pz_fixed_inv(__ldg(p.out.w_norm + min(n + 8 * e, p.out.n - 1)));
    }
    pz_wait();
    if (threadIdx.x == 0)
        for (loader lx = load_x(p, w, h, ring); lx.next < min(p.x_stages, BLOCKS * w.n);) lx.load();
    if constexpr (fixed) {
        c.publishes = (int)threadIdx.x < N * p.halves;
        if (c.publishes) c.x_norm = pz_load_f32(p.out.x_norm + w.tile.row0 + min((int)threadIdx.x, w.tile.rows - 1));
    }
    pz_output_begin(p.out, w.tile, g, &h->flag);
    if constexpr (fixed)
        consume_units<N>(p, w, c, share, acc, sum);
    else
        consume_units<N>(p, w, c, share, acc);
    if constexpr (fixed)
        put<N, Sum>(p, w, g, sum, sums, half, column, share);
    else
        put<N, Sum>(p, w, g, acc, sums, half, column, share);
    pz_output_end<Sum>(p.out, w.tile, g, &h->flag);
}

/* N: rows of x of a warpgroup. */
template <int N, typename Sum>
__global__ void __maxnreg__(PZ_GEMM_WIDE_REGISTERS(N, !((Sum)0.5f))) wide(const __grid_constant__ wide_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
    extern __shared__ __align__(1024) unsigned char smem[];
    shared_head *h = (shared_head *)(smem + p.head);
    const int groups = p.columns * p.shares * p.halves;
    pz_trigger();
    if (threadIdx.x < BARRIERS) {
        pz_barrier_init(at(&h->w_full[threadIdx.x]), 1);
        pz_barrier_init(at(&h->x_full[threadIdx.x]), 1);
        if (threadIdx.x < BARRIERS / BLOCKS) /* warps of the share that has the chunk */
            pz_barrier_init(at(&h->done[threadIdx.x]), 4 * p.columns * p.halves);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    } else if ((int)threadIdx.x == 128 * groups) {
        pz_barrier_init(at(&h->norms), N * p.halves);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        pz_bulk_prepare(&p.w);
        pz_bulk_prepare(&p.x);
    }
    __syncthreads();
    const work w = find_work<N>(p);
    if ((int)threadIdx.x >= 128 * groups) {
        if ((int)threadIdx.x == 128 * groups) copy(p, w, h, at(smem));
        pz_wait();
        return;
    }
    consume<N, Sum>(p, w, h, at(smem), (Sum *)smem);
#endif
}

typedef void (*wide_kernel)(const wide_params);
template <typename Sum> wide_kernel choose(int rows) {
    return rows == 8    ? wide<8, Sum>
           : rows == 16 ? wide<16, Sum>
           : rows == 32 ? wide<32, Sum>
           : rows == 64 ? wide<64, Sum>
                        : wide<128, Sum>;
}

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Map of a matrix [rows][k], read in boxes of 64 k by `box` rows; what lies beyond it reads as zeros. */
pz_status make_map(CUtensorMap *map, const void *data, int64_t ld, int rows, int k, int box, pz_error *err) {
    static encode_fn known; /* threads that ask at the same time store the same */
    encode_fn encode = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!encode) {
        void *fn = NULL;
        cudaDriverEntryPointQueryResult found;
        PZ_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault, &found),
                    err);
        if (!fn) return pz_fail(err, PZ_E_UNSUPPORTED, "wide gemm: the driver has no bulk tensor copies");
        encode = (encode_fn)fn;
        __atomic_store_n(&known, encode, __ATOMIC_RELAXED);
    }
    const cuuint64_t dims[2] = {(cuuint64_t)k, (cuuint64_t)rows}, strides[1] = {(cuuint64_t)ld * 2};
    const cuuint32_t shape[2] = {BLOCK, (cuuint32_t)box}, steps[2] = {1, 1};
    CUresult r = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)data, dims, strides, shape, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS)
        return pz_fail(err, PZ_E_INTERNAL, "wide gemm: cuTensorMapEncodeTiled gives %d for %d rows of %d", (int)r, rows,
                       k);
    return PZ_OK;
}

/* Fills in all of `p` but the maps. */
pz_status geometry(const pz_gemm_launch *l, wide_params *p, size_t *smem, pz_error *err) {
    const pz_gemm_args *a = &l->args;
    const pz_gemm_config *c = &l->config;
    int columns = c->tile_n / ROWS;
    if (c->tile_n < ROWS || c->tile_n % ROWS || c->warps < 1 || c->warps > PZ_GEMM_MAX_GROUPS / columns ||
        c->split < 1 || c->stages < 0 || c->depth < 0)
        return pz_fail(
            err, PZ_E_INVAL,
            "wide gemm: tile_n %d, warps %d, split %d, stages %d, depth %d: tile_n a multiple of %d, tile_n / "
            "%d * warps at most %d, none negative",
            c->tile_n, c->warps, c->split, c->stages, c->depth, (int)ROWS, (int)ROWS, (int)PZ_GEMM_MAX_GROUPS);
    if (a->k % BLOCK) return pz_fail(err, PZ_E_UNSUPPORTED, "wide gemm: k %d is not a multiple of 64", a->k);
    const int chunks = (a->k + CHUNK - 1) / CHUNK, unit = pz_gemm_unit(a->n, a->k), units = (chunks + unit - 1) / unit;
    if (c->split > units)
        return pz_fail(err, PZ_E_INVAL, "wide gemm: split %d of K = %d: at most %d units of %d", c->split, a->k, units,
                       unit * CHUNK);
    p->columns = columns, p->shares = c->warps;
    p->halves = pz_gemm_wide_halves(l->tile_m, a->accum, columns * c->warps);
    p->depth = c->depth < PZ_GEMM_MAX_RING ? c->depth : 0; /* no ring has as many */
    p->chunks = chunks, p->unit = unit, p->part = units / c->split, p->longer = units % c->split;
    pz_gemm_rings at;
    if (!pz_gemm_lay_out_rings(c, l->tile_m, a->n, a->k, &at))
        return pz_fail(err, PZ_E_UNSUPPORTED, "wide gemm: tile_n %d with %d rows of x does not fit into shared memory",
                       c->tile_n, l->tile_m);
    p->w_stages = at.w_slots, p->x_stages = at.x_slots, p->w_bytes = at.w_bytes, p->x_bytes = at.x_bytes;
    const int between = unit * (p->shares - 1);
    p->w_skip = BLOCKS * between % p->w_stages, p->x_skip = BLOCKS * between % p->x_stages;
    p->out = l->out;
    p->head = (int)at.head;
    *smem = (size_t)at.smem;
    return PZ_OK;
}

} // namespace

extern "C" pz_status pz_gemm_wide_plan(pz_gemm_launch *l, pz_error *err) {
    wide_params p;
    size_t smem;
    PZ_TRY(pz_gemm_need_wgmma("wide", err));
    int m = l->args.m;
    l->tile_m = pz_gemm_wide_rows(m, l->args.accum, (int64_t)l->config.tile_n / ROWS * l->config.warps);
    PZ_TRY(geometry(l, &p, &smem, err));
    l->tiles_n = (l->args.n + l->config.tile_n - 1) / l->config.tile_n;
    l->tiles_m = (m + l->tile_m - 1) / l->tile_m;
    return PZ_OK;
}

extern "C" pz_status pz_gemm_wide_run(const pz_gemm_launch *l, pz_error *err) {
    wide_params p;
    size_t smem = 0;
    const pz_gemm_args *a = &l->args;
    PZ_TRY(geometry(l, &p, &smem, err));
    PZ_TRY(make_map(&p.w, a->w, a->ldw, a->n, a->k, l->config.tile_n, err));
    PZ_TRY(make_map(&p.x, a->x, a->ldx, a->m, a->k, l->tile_m, err));
    const int rows = l->tile_m / p.halves;
    wide_kernel kernel = a->accum == PZ_ACCUM_FIXED ? choose<int>(rows) : choose<float>(rows);
    PZ_CUDA_TRY(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, PZ_GEMM_SMEM),
                err);
    dim3 grid(l->tiles_n, l->config.split, l->tiles_m),
        block(pz_gemm_wide_threads((int64_t)p.columns * p.shares, p.halves));
    int sms;
    PZ_TRY(pz_cuda_attribute(cudaDevAttrMultiProcessorCount, &sms, err));
    /* beside a block of this GEMM there would be one of the next, before the norm that it waits for */
    if ((int64_t)grid.x * grid.y * grid.z <= sms && smem < PZ_GEMM_ALONE) smem = PZ_GEMM_ALONE;
    return pz_cuda_launch(kernel, grid, block, smem, (cudaStream_t)a->stream, a->dependent != 0, "gemm", err, p);
}
