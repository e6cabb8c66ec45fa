/* SPDX-License-Identifier: Apache-2.0 */
/* GEMM for few rows: the time is that of reading the weights, so every byte of them is asked for before the wait for
 * the kernel that makes x.
 *
 * A block has tile_n / 16 columns of warps by `warps` rows of them. A warp owns 16 rows of w and every warps-th chunk
 * of 128 of the block's part of K. Each thread reads its own fragments of w, first into registers, then with background
 * copies into slots of shared memory that no other thread touches: there is no barrier between copy and use, and no
 * bank conflict. A lane's 16 bytes are 8 neighbouring values of k, which two mma instructions take as 4 and 4: the
 * order of k within 32 is permuted the same way in w and x, so the sum is of the same products. x comes to shared
 * memory after the wait, by all threads. */
#include "backend/cuda/gemm/mma.cuh"
#include "backend/cuda/gemm/output.cuh"
#include "backend/cuda/launch.cuh"

namespace {

struct skinny_params {
    pz_gemm_output out;
    const __nv_bfloat16 *x, *w;
    int64_t ldx, ldw;
    int k, chunks; /* of K */
    int tile_m;
    int columns, warps, slots, piece /* bytes of one copy by all threads */, depth;
    int put_rows, put_cols;             /* threads of a block as rows and columns of the tile */
    int x_stride, x_offset, sum_offset; /* bytes: row of x in shared memory; where x and the sums begin */
};

/* More threads than any launch has: the bound on registers that it gives leaves room for a block of the norm beside
 * this one (norm.cu). */
enum { MAX_THREADS = 640 };
enum { CHUNK = PZ_GEMM_CHUNK, STEPS = CHUNK / 32, SLOT = 2 * STEPS * 16 /* bytes a thread and chunk */ };

/* Where a thread's fragments of w lie: rows g and g + 8 of its warp's 16. */
struct weight_source {
    const __nv_bfloat16 *low, *high;
    bool low_valid, high_valid;
    int k; /* first k of this lane in chunk 0 */
};

template <int N> struct fragments { uint4 low[N], high[N]; };

__device__ __forceinline__ void load_chunk(const skinny_params &p, const weight_source &s, int chunk,
                                           fragments<STEPS> &f) {
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        int k = chunk * CHUNK + j * 32 + s.k;
        bool inside = k < p.k;
        f.low[j] = inside && s.low_valid ? pz_load_weight(s.low + k) : make_uint4(0, 0, 0, 0);
        f.high[j] = inside && s.high_valid ? pz_load_weight(s.high + k) : make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ void copy_chunk(const skinny_params &p, const weight_source &s, int chunk, uint32_t slot) {
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        int k = chunk * CHUNK + j * 32 + s.k;
        bool inside = k < p.k;
        pz_copy16(slot + 2 * j * p.piece, s.low + (inside ? k : 0), inside && s.low_valid);
        pz_copy16(slot + (2 * j + 1) * p.piece, s.high + (inside ? k : 0), inside && s.high_valid);
    }
}

/* Division by a number of pieces, the slow part of it before the wait. */
struct divider {
    uint32_t by, inverse;
    __device__ __forceinline__ explicit divider(uint32_t d) : by(d), inverse(0xffffffffu / d + 1) {
        asm volatile("" : "+r"(inverse));
    }
    __device__ __forceinline__ uint32_t divide(uint32_t n) const { /* exact for n * by < 2^32 */
        return by == 1 ? n : __umulhi(n, inverse);
    }
};

/* Rows of x of this tile and the block's part of K into shared memory; Flight loads in flight a thread. */
template <int Flight>
__device__ __forceinline__ void load_x(const skinny_params &p, const pz_tile &t, int k0, const divider &pieces,
                                       uint32_t xs) {
    const uint32_t total = pieces.by * t.rows;
    for (uint32_t base = threadIdx.x; base < total; base += Flight * blockDim.x) {
        uint4 v[Flight];
        uint32_t to[Flight];
#pragma unroll
        for (int u = 0; u < Flight; u++) {
            uint32_t i = base + u * blockDim.x;
            if (i >= total) break;
            uint32_t row = pieces.divide(i), col = i - row * pieces.by, k = k0 + col * 8;
            to[u] = xs + row * p.x_stride + col * 16;
            v[u] = k < p.k ? pz_load16(p.x + (t.row0 + row) * p.ldx + k) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int u = 0; u < Flight; u++) {
            if (base + u * blockDim.x >= total) break;
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to[u]), "r"(v[u].x), "r"(v[u].y), "r"(v[u].z),
                         "r"(v[u].w)
                         : "memory");
        }
    }
}

/* sum += w x of one step of 32 k. xs: this lane's 16 bytes of row g of each group of 8 rows of x. */
template <int MT>
__device__ __forceinline__ void multiply(float (&acc)[MT][4], const uint4 &low, const uint4 &high,
                                         const uint32_t (&xs)[MT], int offset) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
        uint4 b = pz_lds16(xs[i] + offset);
        pz_mma(acc[i], low.x, high.x, low.y, high.y, b.x, b.y);
        pz_mma(acc[i], low.z, high.z, low.w, high.w, b.z, b.w);
    }
}

/* What a chunk's f32 sums are added to: as they are, or scaled and rounded to integers. */
template <int MT, typename Sum> struct chunk_sums;
template <int MT> struct chunk_sums<MT, float> {
    float sum[MT][4];
    __device__ __forceinline__ void begin(const skinny_params &, const float *, int, int, int) {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][e] = 0;
    }
    __device__ __forceinline__ float (&chunk())[MT][4] {
        return sum;
    }
    __device__ __forceinline__ void end_chunk() {
    }
};
template <int MT> struct chunk_sums<MT, int> {
    int sum[MT][4];
    float part[MT][4], x_inv[MT][2], w_inv[2];
    __device__ __forceinline__ void begin(const skinny_params &p, const float *x, int rows, int n, int lane) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            w_inv[h] = pz_fixed_inv(__ldg(p.out.w_norm + min(n + (lane >> 2) + 8 * h, p.out.n - 1)));
#pragma unroll
        for (int i = 0; i < MT; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) x_inv[i][h] = x[min(8 * i + 2 * (lane & 3) + h, rows - 1)];
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][e] = 0, part[i][e] = 0;
        }
    }
    __device__ __forceinline__ float (&chunk())[MT][4] {
        return part;
    }
    __device__ __forceinline__ void end_chunk() {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sum[i][e] += __float2int_rn(part[i][e] * x_inv[i][e & 1] * w_inv[e >> 1]);
                part[i][e] = 0;
            }
    }
};

/* The sums of the warps that share a tile, added in the order of the warps and put out. */
template <int MT, typename Sum>
__device__ __forceinline__ void put_tile(const skinny_params &p, const pz_tile &t, const pz_destination &d,
                                         Sum (&sum)[MT][4], Sum *shared, int column, int share, int lane) {
    const int pitch = 16 * p.columns + 4, g = lane >> 2, c = 2 * (lane & 3);
    pz_output_ready(p.out, t, {(int)threadIdx.x, (int)blockDim.x, 0});
    if (p.warps == 1 && t.rows > 4) { /* no other warp has a part, and there are rows enough to fill a request */
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = 8 * i + c + (e & 1), col = column * 16 + g + 8 * (e >> 1);
                if (row < t.rows && col < t.cols) pz_output_put(d, row, col, sum[i][e]);
            }
        return;
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            shared[(share * MT * 8 + 8 * i + c + (e & 1)) * pitch + column * 16 + g + 8 * (e >> 1)] = sum[i][e];
    __syncthreads();
    const int col = threadIdx.x % p.put_cols;
    if (col >= t.cols || threadIdx.x >= p.put_rows * p.put_cols) return;
    for (int row = threadIdx.x / p.put_cols; row < t.rows; row += p.put_rows) {
        Sum v = 0;
#pragma unroll 4
        for (int s = 0; s < p.warps; s++) v += shared[(s * MT * 8 + row) * pitch + col];
        pz_output_put(d, row, col, v);
    }
}

/* MT: groups of 8 rows of x. RC: chunks of w in registers. */
template <int MT, int RC, typename Sum>
__global__ void __launch_bounds__(MAX_THREADS, 1) skinny(const skinny_params p) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ int flag;
    __shared__ float x_inv[MT * 8];
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int column = warp % p.columns, share = warp / p.columns;
    const pz_tile t = pz_output_tile(p.out, 16 * p.columns, p.tile_m);
    const int chunk0 = p.chunks * t.part / p.out.split, chunk1 = p.chunks * (t.part + 1) / p.out.split;
    const int mine = chunk0 + share < chunk1 ? (chunk1 - chunk0 - share + p.warps - 1) / p.warps : 0;
    const int n0 = t.col0 + column * 16, g = lane >> 2, first = chunk0 + share;

    weight_source s;
    s.k = 8 * (lane & 3);
    s.low_valid = n0 + g < p.out.n;
    s.high_valid = n0 + g + 8 < p.out.n;
    s.low = p.w + (s.low_valid ? n0 + g : 0) * p.ldw;
    s.high = p.w + (s.high_valid ? n0 + g + 8 : 0) * p.ldw;
    pz_trigger();

    fragments<STEPS> held[RC];
#pragma unroll
    for (int i = 0; i < RC; i++)
        if (i < mine) load_chunk(p, s, first + i * p.warps, held[i]);
    const uint32_t slot_bytes = 2 * STEPS * p.piece, my = base + threadIdx.x * 16;
    for (int i = 0; i < p.slots; i++) {
        if (p.depth && i >= p.depth) pz_copy_wait(p.depth - 1);
        if (RC + i < mine) copy_chunk(p, s, first + (RC + i) * p.warps, my + i * slot_bytes);
        pz_copy_commit();
    }
    const pz_destination d = pz_output_destination<Sum>(p.out, t);
    const uint32_t xs = base + p.x_offset;
    chunk_sums<MT, Sum> sums;
    const divider pieces((chunk1 - chunk0) * (CHUNK / 8));
    pz_wait();
    const pz_group group = {(int)threadIdx.x, (int)blockDim.x, 0};
    /* one load a row and block: all blocks ask for the same few bytes */
    const bool has_norm = !((Sum)0.5f) && (int)threadIdx.x < t.rows;
    const float x_norm = has_norm ? pz_load_f32(p.out.x_norm + t.row0 + threadIdx.x) : 0;
    load_x<(MT == 4 ? 8 : 4)>(p, t, chunk0 * CHUNK, pieces, xs);
    if (has_norm) x_inv[threadIdx.x] = pz_fixed_inv(x_norm);
    pz_output_begin(p.out, t, group, &flag);
    __syncthreads();
    sums.begin(p, x_inv, t.rows, n0, lane);

    uint32_t x_at[MT];
#pragma unroll
    for (int i = 0; i < MT; i++) x_at[i] = xs + min(8 * i + g, t.rows - 1) * p.x_stride + share * CHUNK * 2 + s.k * 2;
#pragma unroll
    for (int i = 0; i < RC; i++)
        if (i < mine) {
#pragma unroll
            for (int j = 0; j < STEPS; j++)
                multiply<MT>(sums.chunk(), held[i].low[j], held[i].high[j], x_at, i * p.warps * CHUNK * 2 + j * 64);
            sums.end_chunk();
        }
    for (int i = RC, slot = 0; i < mine; i++) {
        const uint32_t from = my + slot * slot_bytes;
        pz_copy_wait(p.slots - 1);
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            uint4 low = pz_lds16(from + 2 * j * p.piece), high = pz_lds16(from + (2 * j + 1) * p.piece);
            multiply<MT>(sums.chunk(), low, high, x_at, i * p.warps * CHUNK * 2 + j * 64);
        }
        sums.end_chunk();
        if (i + p.slots < mine) copy_chunk(p, s, first + (i + p.slots) * p.warps, from);
        pz_copy_commit();
        if (++slot == p.slots) slot = 0;
    }
    put_tile<MT, Sum>(p, t, d, sums.sum, (Sum *)(smem + p.sum_offset), column, share, lane);
    pz_output_end<Sum>(p.out, t, group, &flag);
}

typedef void (*skinny_kernel)(const skinny_params);
template <typename Sum> skinny_kernel choose(int mt, int rc) {
    if (rc == 1) return mt == 1 ? skinny<1, 1, Sum> : mt == 2 ? skinny<2, 1, Sum> : skinny<4, 1, Sum>;
    return mt == 1 ? skinny<1, 2, Sum> : mt == 2 ? skinny<2, 2, Sum> : skinny<4, 2, Sum>;
}

enum { MAX_WARPS = 16 };

} // namespace

/* Parameters, shared memory and grid of a launch: the one place where its geometry is worked out. */
static pz_status skinny_geometry(const pz_gemm_launch *l, skinny_params *p, size_t *smem, pz_error *err) {
    const pz_gemm_args *a = &l->args;
    const pz_gemm_config *c = &l->config;
    int columns = c->tile_n / 16, warps = columns * c->warps;
    if (c->tile_n < 16 || c->tile_n % 16 || c->warps < 1 || warps > MAX_WARPS || c->stages < 1 || c->stages > 2 ||
        c->split < 1 || c->depth < 0)
        return pz_fail(
            err, PZ_E_INVAL,
            "skinny gemm: tile_n %d, warps %d, stages %d, split %d: tile_n a multiple of 16, at most %d warps "
            "in all, 1 or 2 stages",
            c->tile_n, c->warps, c->stages, c->split, MAX_WARPS);
    int chunks = (a->k + CHUNK - 1) / CHUNK;
    if (c->split > chunks)
        return pz_fail(err, PZ_E_INVAL, "skinny gemm: split %d of K = %d: at most %d chunks of %d", c->split, a->k,
                       chunks, (int)CHUNK);
    int rows = a->m < l->tile_m ? a->m : l->tile_m, part = (chunks + c->split - 1) / c->split;
    int threads = 32 * warps;
    int most = (part + c->warps - 1) / c->warps - c->stages; /* chunks of a warp that are not in registers */
    p->x_stride = part * CHUNK * 2 + 64;
    size_t x_bytes = (size_t)rows * p->x_stride,
           sum_bytes = (size_t)c->warps * (l->tile_m < 8 ? 8 : l->tile_m) * (c->tile_n + 4) * 4;
    int slot = SLOT * 32 * warps, room = PZ_GEMM_SMEM - (int)(x_bytes + sum_bytes);
    int slots = most < 1 ? 1 : most > 9 ? 9 : most;
    if (x_bytes + sum_bytes < PZ_GEMM_SMEM && slots > room / slot) slots = room / slot;
    if (x_bytes + sum_bytes >= PZ_GEMM_SMEM || slots < 1)
        return pz_fail(
            err, PZ_E_UNSUPPORTED,
            "skinny gemm: %d rows of x and %d of K do not fit into shared memory; split more or use fewer rows "
            "of a tile",
            rows, part * CHUNK);
    p->x_offset = slots * slot;
    p->sum_offset = p->x_offset + (int)x_bytes;
    *smem = (size_t)p->sum_offset + sum_bytes;
    p->out = l->out;
    p->x = (const __nv_bfloat16 *)a->x;
    p->w = (const __nv_bfloat16 *)a->w;
    p->ldx = a->ldx, p->ldw = a->ldw, p->k = a->k, p->chunks = chunks, p->tile_m = l->tile_m;
    p->columns = columns, p->warps = c->warps, p->slots = slots, p->piece = 16 * 32 * warps, p->depth = c->depth;
    p->put_cols = c->tile_n < threads ? c->tile_n : threads, p->put_rows = threads / p->put_cols;
    return PZ_OK;
}

extern "C" pz_status pz_gemm_skinny_plan(pz_gemm_launch *l, pz_error *err) {
    skinny_params p;
    size_t smem;
    pz_status st;
    /* as many rows as fit into shared memory: their number changes no bit */
    for (l->tile_m = l->args.m <= 8 ? 8 : l->args.m <= 16 ? 16 : 32;; l->tile_m /= 2) {
        st = skinny_geometry(l, &p, &smem, NULL);
        if (st != PZ_E_UNSUPPORTED || l->tile_m == 1) break;
    }
    if (st != PZ_OK) return skinny_geometry(l, &p, &smem, err);
    l->tiles_n = (l->args.n + l->config.tile_n - 1) / l->config.tile_n;
    l->tiles_m = (l->args.m + l->tile_m - 1) / l->tile_m;
    return PZ_OK;
}

extern "C" pz_status pz_gemm_skinny_run(const pz_gemm_launch *l, pz_error *err) {
    skinny_params p;
    size_t smem = 0;
    PZ_TRY(skinny_geometry(l, &p, &smem, err));
    int mt = (l->tile_m + 7) / 8, rc = l->config.stages;
    skinny_kernel kernel = l->args.accum == PZ_ACCUM_FIXED ? choose<int>(mt, rc) : choose<float>(mt, rc);
    PZ_CUDA_TRY(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, PZ_GEMM_SMEM),
                err);
    dim3 grid(l->tiles_n * l->config.split, l->tiles_m), block(32 * p.columns * p.warps);
    return pz_cuda_launch(kernel, grid, block, smem, (cudaStream_t)l->args.stream, l->args.dependent != 0, "gemm", err,
                          p);
}
