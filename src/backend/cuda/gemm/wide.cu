/* SPDX-License-Identifier: Apache-2.0 */
/* GEMM with wgmma: weights are the 64 rows of the instruction, rows of x its columns, both read by the tensor cores
 * from a ring of shared memory that bulk tensor copies fill.
 *
 * A block has tile_n / 64 columns of warpgroups by `warps` of them that share the block's part of K chunk by chunk, and
 * one warp that copies. Before the wait for the kernel that makes x it asks for the weights of as many chunks as the
 * ring holds and has the others brought to L2; after it, for x. */
#include "backend/cuda/gemm/bulk.cuh"
#include "backend/cuda/gemm/output.cuh"
#include "backend/cuda/gemm/wgmma.cuh"
#include "backend/cuda/launch.cuh"

namespace {

enum { CHUNK = PZ_GEMM_CHUNK, BLOCKS = CHUNK / 64, ROWS = 64, MAX_STAGES = 16 };

struct wide_params {
    CUtensorMap w, x;
    pz_gemm_output out;
    int chunks, columns, shares, stages, depth;
    int w_bytes, x_bytes; /* of a stage */
};

struct shared_head {
    uint64_t w_full[MAX_STAGES], x_full[MAX_STAGES], empty[MAX_STAGES];
    float x_inv[128];
    int flag;
};

/* The part of a tile's chunks that one block has. */
struct work {
    pz_tile tile;
    int chunk0, n;
};

template <int N> __device__ __forceinline__ work find_work(const wide_params &p) {
    work w;
    w.tile = pz_output_tile(p.out, ROWS * p.columns, N);
    w.chunk0 = p.chunks * w.tile.part / p.out.split;
    w.n = p.chunks * (w.tile.part + 1) / p.out.split - w.chunk0;
    return w;
}

[[maybe_unused]] __device__ __forceinline__ uint32_t at(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

[[maybe_unused]] __device__ __forceinline__ void copy(const wide_params &p, const work &w, shared_head *h,
                                                      uint32_t ring) {
    const int first = min(p.stages, w.n), x_at = p.stages * p.w_bytes;
    for (int i = 0; i < first; i++) {
        if (p.depth && i >= p.depth) pz_barrier_wait(at(&h->w_full[i - p.depth]), 0);
        pz_barrier_expect(at(&h->w_full[i]), p.w_bytes);
        pz_bulk_load(ring + i * p.w_bytes, &p.w, w.tile.col0, BLOCKS * (w.chunk0 + i), at(&h->w_full[i]));
    }
    for (int i = first; i < w.n; i++) pz_bulk_prefetch(&p.w, w.tile.col0, BLOCKS * (w.chunk0 + i));
    pz_wait();
    for (int i = 0; i < first; i++) {
        pz_barrier_expect(at(&h->x_full[i]), p.x_bytes);
        pz_bulk_load(ring + x_at + i * p.x_bytes, &p.x, w.tile.row0, BLOCKS * (w.chunk0 + i), at(&h->x_full[i]));
    }
    for (int i = first, s = 0, round = 0; i < w.n; i++) {
        pz_barrier_wait(at(&h->empty[s]), round & 1);
        pz_barrier_expect(at(&h->w_full[s]), p.w_bytes);
        pz_bulk_load(ring + s * p.w_bytes, &p.w, w.tile.col0, BLOCKS * (w.chunk0 + i), at(&h->w_full[s]));
        pz_barrier_expect(at(&h->x_full[s]), p.x_bytes);
        pz_bulk_load(ring + x_at + s * p.x_bytes, &p.x, w.tile.row0, BLOCKS * (w.chunk0 + i), at(&h->x_full[s]));
        if (++s == p.stages) s = 0, round++;
    }
}

/* Products of one chunk. */
template <int N>
__device__ __forceinline__ void multiply(float (&acc)[N / 2], uint32_t w, uint32_t w_block, uint32_t x, bool add) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const uint64_t wd = pz_wgmma_tile(w + b * w_block), xd = pz_wgmma_tile(x + b * N * 128);
#pragma unroll
        for (int k = 0; k < 4; k++) pz_wgmma<N>(acc, wd + 2 * k, xd + 2 * k, add || b || k);
    }
    pz_wgmma_commit();
}

template <int N>
__device__ __forceinline__ void round_chunk(int (&sum)[N / 2], const float (&acc)[N / 2], const float *x_inv,
                                            const float (&w_inv)[2]) {
    const int c = 2 * (threadIdx.x & 3);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 inv = *(const float2 *)(x_inv + 8 * j + c);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[4 * j + e] += __float2int_rn(acc[4 * j + e] * (e & 1 ? inv.y : inv.x) * w_inv[e >> 1]);
    }
}

/* The sums of the warpgroups that share a tile, added in their order and put out. */
template <int N, typename Sum>
__device__ __forceinline__ void put(const wide_params &p, const work &w, const pz_destination &d, const pz_group &g,
                                    const Sum (&sum)[N / 2], Sum *shared, int column, int share) {
    const int lane = threadIdx.x & 31, c = 2 * (lane & 3);
    const int col0 = column * ROWS + 16 * ((threadIdx.x >> 5) & 3) + (lane >> 2), pitch = ROWS * p.columns + 4;
    pz_output_ready(p.out, w.tile, g);
    if (p.shares == 1) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            int row = 8 * (i / 4) + c + (i & 1), col = col0 + 8 * ((i >> 1) & 1);
            if (row < w.tile.rows && col < w.tile.cols) pz_output_put(d, row, col, sum[i]);
        }
        return;
    }
    g.sync(); /* the ring has been read by all */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        shared[(share * N + 8 * (i / 4) + c + (i & 1)) * pitch + col0 + 8 * ((i >> 1) & 1)] = sum[i];
    g.sync();
    const int width = ROWS * p.columns, col = g.thread % width;
    if (col >= w.tile.cols) return;
    for (int row = g.thread / width; row < w.tile.rows; row += g.threads / width) {
        Sum v = 0;
        for (int s = 0; s < p.shares; s++) v += shared[(s * N + row) * pitch + col];
        pz_output_put(d, row, col, v);
    }
}

/* What a warpgroup needs to work through its chunks. */
struct consumer {
    shared_head *h;
    uint32_t w, x, w_block; /* of stage 0 */
    float w_inv[2];
};

/* Chunks first, first + shares, ... (Count of them) at once: all products are asked for before the first sum is
 * rounded. */
template <int N, int Count, typename Sum>
__device__ __forceinline__ void consume_chunks(const wide_params &p, const consumer &c, int first, bool add,
                                               float (&acc)[Count][N / 2], Sum (&sum)[N / 2]) {
    constexpr bool fixed = !((Sum)0.5f);
    int stage[Count];
#pragma unroll
    for (int u = 0; u < Count; u++) {
        const int j = first + u * p.shares, parity = (j / p.stages) & 1;
        stage[u] = j % p.stages;
        pz_barrier_wait(at(&c.h->w_full[stage[u]]), parity);
        pz_barrier_wait(at(&c.h->x_full[stage[u]]), parity);
    }
    pz_wgmma_fence();
#pragma unroll
    for (int u = 0; u < Count; u++)
        multiply<N>(acc[fixed ? u : 0], c.w + stage[u] * p.w_bytes, c.w_block, c.x + stage[u] * p.x_bytes,
                    !fixed && (add || u));
#pragma unroll
    for (int u = 0; u < Count; u++) {
        if (u == 0) pz_wgmma_wait<Count - 1>();
        if (u == 1) pz_wgmma_wait<(Count > 1 ? Count - 2 : 0)>();
        if (u == 2) pz_wgmma_wait<(Count > 2 ? Count - 3 : 0)>();
        if (u == 3) pz_wgmma_wait<0>();
        if ((threadIdx.x & 31) == 0) pz_barrier_arrive(at(&c.h->empty[stage[u]]));
        if constexpr (fixed) round_chunk<N>(sum, acc[u], c.h->x_inv, c.w_inv);
    }
}

template <int N, typename Sum>
__device__ __forceinline__ void consume(const wide_params &p, const work &w, shared_head *h, uint32_t ring, Sum *sums) {
    const int groups = p.columns * p.shares, index = threadIdx.x / 128, column = index % p.columns,
              share = index / p.columns;
    const pz_group g = {(int)threadIdx.x, 128 * groups, 1};
    constexpr bool fixed = !((Sum)0.5f);
    constexpr int IN_FLIGHT = N <= 16 ? 4 : N <= 64 ? 2 : 1;
    consumer c;
    c.h = h;
    c.w = ring + column * ROWS * 128;
    c.x = ring + p.stages * p.w_bytes;
    c.w_block = 64 * p.columns * 128;
    float acc[IN_FLIGHT][N / 2];
    Sum sum[N / 2];
    const pz_destination d = pz_output_destination<Sum>(p.out, w.tile);
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i] = 0, acc[0][i] = 0;
    if constexpr (fixed) {
        int n = w.tile.col0 + column * ROWS + 16 * ((threadIdx.x >> 5) & 3) + ((threadIdx.x & 31) >> 2);
        for (int e = 0; e < 2; e++) c.w_inv[e] = pz_fixed_inv(__ldg(p.out.w_norm + min(n + 8 * e, p.out.n - 1)));
    }
    pz_wait();
    if constexpr (fixed) {
        for (int i = g.thread; i < N; i += g.threads)
            h->x_inv[i] = pz_fixed_inv(pz_load_f32(p.out.x_norm + w.tile.row0 + min(i, w.tile.rows - 1)));
    }
    pz_output_begin(p.out, w.tile, g, &h->flag);
    g.sync();
    int i = share;
    const bool fits =
        IN_FLIGHT * p.shares <= p.stages; /* else a stage would be waited for that this group has to empty */
    for (; fits && i + (IN_FLIGHT - 1) * p.shares < w.n; i += IN_FLIGHT * p.shares)
        consume_chunks<N, IN_FLIGHT, Sum>(p, c, i, i != share, acc, sum);
    for (; i < w.n; i += p.shares) {
        float(&one)[1][N / 2] = *(float(*)[1][N / 2]) & acc;
        consume_chunks<N, 1, Sum>(p, c, i, i != share, one, sum);
    }
    if constexpr (fixed)
        put<N, Sum>(p, w, d, g, sum, sums, column, share);
    else
        put<N, Sum>(p, w, d, g, acc[0], sums, column, share);
    pz_output_end<Sum>(p.out, w.tile, g, &h->flag);
}

/* N: rows of x in a tile. */
template <int N, typename Sum>
__global__ void __launch_bounds__(N == 128 ? 288 : 416, 1) wide(const __grid_constant__ wide_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char *ring = (unsigned char *)(((uintptr_t)smem + 1023) & ~(uintptr_t)1023);
    shared_head *h = (shared_head *)(ring + p.stages * (p.w_bytes + p.x_bytes));
    const int groups = p.columns * p.shares;
    pz_trigger();
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.stages; i++) {
            pz_barrier_init(at(&h->w_full[i]), 1);
            pz_barrier_init(at(&h->x_full[i]), 1);
            pz_barrier_init(at(&h->empty[i]), 4 * p.columns); /* warps of the share that has this stage */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const work w = find_work<N>(p);
    if ((int)threadIdx.x >= 128 * groups) {
        if ((int)threadIdx.x == 128 * groups) copy(p, w, h, at(ring));
        pz_wait();
        return;
    }
    consume<N, Sum>(p, w, h, at(ring), (Sum *)ring);
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

/* Map [k / 64][rows][64] of a matrix, read in boxes of 128 k by `box` rows; rows beyond the matrix read as zeros. */
pz_status make_map(CUtensorMap *map, const void *data, int64_t ld, int rows, int k, int box, pz_error *err) {
    static encode_fn encode;
    if (!encode) {
        void *fn = NULL;
        cudaDriverEntryPointQueryResult found;
        PZ_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault, &found),
                    err);
        if (!fn) return pz_fail(err, PZ_E_UNSUPPORTED, "wide gemm: the driver has no bulk tensor copies");
        encode = (encode_fn)fn;
    }
    const cuuint64_t dims[3] = {64, (cuuint64_t)rows, (cuuint64_t)k / 64}, strides[2] = {(cuuint64_t)ld * 2, 128};
    const cuuint32_t shape[3] = {64, (cuuint32_t)box, BLOCKS}, steps[3] = {1, 1, 1};
    CUresult r = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)data, dims, strides, shape, steps,
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
    int columns = c->tile_n / ROWS, most = l->tile_m == 128 ? 2 : 3;
    if (c->tile_n < ROWS || c->tile_n % ROWS || c->warps < 1 || columns * c->warps > most || c->split < 1 ||
        c->depth < 0)
        return pz_fail(
            err, PZ_E_INVAL,
            "wide gemm: tile_n %d, warps %d, split %d: tile_n a multiple of %d, tile_n / %d * warps at most %d",
            c->tile_n, c->warps, c->split, (int)ROWS, (int)ROWS, most);
    if (a->k % 64) return pz_fail(err, PZ_E_UNSUPPORTED, "wide gemm: k %d is not a multiple of 64", a->k);
    int chunks = (a->k + CHUNK - 1) / CHUNK;
    if (c->split > chunks)
        return pz_fail(err, PZ_E_INVAL, "wide gemm: split %d of K = %d: at most %d chunks of %d", c->split, a->k,
                       chunks, (int)CHUNK);
    p->columns = columns, p->shares = c->warps, p->chunks = chunks, p->depth = c->depth;
    p->w_bytes = c->tile_n * CHUNK * 2, p->x_bytes = l->tile_m * CHUNK * 2;
    int part = (chunks + c->split - 1) / c->split, room = PZ_GEMM_SMEM - 1024 - (int)sizeof(shared_head);
    int stages = room / (p->w_bytes + p->x_bytes);
    if (c->stages && stages > c->stages) stages = c->stages;
    if (stages > part) stages = part;
    if (stages > MAX_STAGES) stages = MAX_STAGES;
    if (stages > c->warps) stages = stages / c->warps * c->warps; /* a stage is always the same share's */
    size_t sums = c->warps > 1 ? (size_t)c->warps * l->tile_m * (c->tile_n + 4) * 4 : 0;
    size_t ring = (size_t)stages * (p->w_bytes + p->x_bytes);
    if (stages < 1 || (stages < c->warps && part >= c->warps) || sums > (size_t)room)
        return pz_fail(err, PZ_E_UNSUPPORTED, "wide gemm: tile_n %d with %d rows of x does not fit into shared memory",
                       c->tile_n, l->tile_m);
    p->stages = stages;
    p->out = l->out;
    *smem = 1024 + (ring > sums ? ring : sums) + sizeof(shared_head);
    return PZ_OK;
}

} // namespace

/* wgmma is in compute capability 9.0 alone; elsewhere the kernel has no body. */
static pz_status check_device(pz_error *err) {
    int device, major, minor;
    PZ_CUDA_TRY(cudaGetDevice(&device), err);
    PZ_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), err);
    PZ_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), err);
    if (major == 9 && minor == 0) return PZ_OK;
    return pz_fail(err, PZ_E_UNSUPPORTED,
                   "wide gemm: compute capability %d.%d; wgmma needs 9.0, the skinny family does not", major, minor);
}

extern "C" pz_status pz_gemm_wide_plan(pz_gemm_launch *l, pz_error *err) {
    wide_params p;
    size_t smem;
    PZ_TRY(check_device(err));
    int m = l->args.m;
    l->tile_m = m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128;
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
    wide_kernel kernel = a->accum == PZ_ACCUM_FIXED ? choose<int>(l->tile_m) : choose<float>(l->tile_m);
    PZ_CUDA_TRY(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, PZ_GEMM_SMEM),
                err);
    dim3 grid(l->tiles_n * l->config.split, l->tiles_m), block(128 * p.columns * p.shares + 32);
    return pz_cuda_launch(kernel, grid, block, smem, (cudaStream_t)a->stream, a->dependent != 0, "gemm", err, p);
}
