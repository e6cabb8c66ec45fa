/* SPDX-License-Identifier: Apache-2.0 */
/* GEMM for few rows: the time is that of reading the weights, so every byte of them is asked for before the wait for
 * the kernel that makes x.
 *
 * A block has tile_n / 16 columns of warps by `warps` rows of them. A warp owns 16 rows of w and every warps-th unit of
 * the block's part of K. It reads its weights chunk by chunk, the first into registers, the others with background
 * copies into slots of shared memory that no other warp touches: there is no barrier between copy and use. x comes to
 * shared memory after the wait, by all threads: for each 8 values of k a piece of 16 bytes a row, rows one after the
 * other.
 *
 * Two families differ in how they multiply: skinny with mma.sync, a warp at a time, with x loaded for each 16 rows of
 * w; group with wgmma, four warps at a time (64 rows of w), which reads x from shared memory itself. */
#include "backend/cuda/gemm/mma.cuh"
#include "backend/cuda/gemm/output.cuh"
#include "backend/cuda/gemm/wgmma_rs.cuh"
#include "backend/cuda/launch.cuh"

namespace {

struct skinny_params {
    pz_gemm_output out;
    const __nv_bfloat16 *x, *w;
    int64_t ldx, ldw;
    int k, units, unit; /* of K; chunks of a unit */
    int tile_m;
    int columns, warps, slots /* chunks of a warp in shared memory */, piece /* bytes of one copy by all threads */,
        depth;
    int put_rows, put_cols;            /* threads of a block as rows and columns of the tile */
    int direct;                        /* sums go from registers to y: no other warp has a part of them */
    int x_piece, x_offset, sum_offset; /* bytes: rows of a piece of x; where x and the sums begin */
};

/* More threads than any launch has: the bound on registers that it gives leaves room for a block of the norm beside
 * this one (norm.cu). */
enum { MAX_THREADS = 640 };
enum { CHUNK = PZ_GEMM_CHUNK, STEPS = CHUNK / 32, SLOT = 2 * STEPS * 16 /* bytes a thread and chunk */ };

/* What a thread loads of w: 16 bytes of rows g and g + 8 of its warp's 16. */
struct weight_source {
    const __nv_bfloat16 *low, *high;
    bool low_valid, high_valid;
    int k; /* first k of this lane in chunk 0 */
};

/* A chunk of 16 rows of w, rows g and g + 8: as loaded, 8 neighbouring values of k a lane; as multiplied, of each 8 of
 * 32 values the two of a lane's place in its quad. */
struct fragments {
    uint4 low[STEPS], high[STEPS];
};

__device__ __forceinline__ void load_chunk(const skinny_params &p, const weight_source &s, int chunk, fragments &f) {
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        int k = chunk * CHUNK + j * 32 + s.k;
        bool inside = k < p.k;
        f.low[j] = inside && s.low_valid ? pz_load_weight(s.low + k) : make_uint4(0, 0, 0, 0);
        f.high[j] = inside && s.high_valid ? pz_load_weight(s.high + k) : make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ void transpose_chunk(fragments &f) {
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        pz_transpose_quad(f.low[j], threadIdx.x & 3);
        pz_transpose_quad(f.high[j], threadIdx.x & 3);
    }
}

/* Where 16 bytes of a warp's 512 lie in a slot: pieces of 8 rows one below the other meet no bank twice. */
__device__ __forceinline__ uint32_t slot_place(int row, int piece) {
    return (row * 4 + (piece ^ (row >> 1))) * 16;
}

__device__ __forceinline__ void copy_chunk(const skinny_params &p, const weight_source &s, int chunk, uint32_t slot) {
    const int lane = threadIdx.x & 31;
    const uint32_t to = slot + slot_place(lane >> 2, lane & 3);
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        int k = chunk * CHUNK + j * 32 + s.k;
        bool inside = k < p.k;
        pz_copy16(to + 2 * j * p.piece, s.low + (inside ? k : 0), inside && s.low_valid);
        pz_copy16(to + (2 * j + 1) * p.piece, s.high + (inside ? k : 0), inside && s.high_valid);
    }
}

/* 32 values of k of 16 rows of w, as multiplied. */
struct step {
    uint4 low, high;
};

/* A warp's chunks in their order. */
struct sequence {
    int first, n, warps, unit; /* chunk 0; how many; as in the parameters */
    __device__ __forceinline__ int operator[](int i) const {
        const int inside = i & (unit - 1);
        return first + (i - inside) * warps + inside;
    }
};

/* A chunk in registers, as steps. */
struct held_chunk {
    const fragments &f;
    __device__ __forceinline__ void begin() {
    }
    __device__ __forceinline__ step read(int j) const {
        return {f.low[j], f.high[j]};
    }
    __device__ __forceinline__ void end() {
    }
};
/* The chunks that pass through a warp's slots in shared memory. */
struct slot_chunk {
    const skinny_params &p;
    const weight_source &s;
    const sequence &chunks;
    uint32_t base, bytes; /* this warp's part of slot 0; from a slot to the next */
    int slot, i;          /* of this chunk; its place in the sequence */

    __device__ __forceinline__ void begin() {
        pz_copy_wait(p.slots - 1);
        __syncwarp();
    }
    __device__ __forceinline__ step read(int j) const {
        const int lane = threadIdx.x & 31;
        const uint32_t from =
            base + slot * bytes + slot_place(lane & 7, lane >> 4) + ((lane >> 3 & 1) + 2 * j) * p.piece;
        const uint4 a = pz_ldmatrix(from), b = pz_ldmatrix(from ^ 32);
        return {make_uint4(a.x, a.z, b.x, b.z), make_uint4(a.y, a.w, b.y, b.w)};
    }
    /* The slot has been read: it is filled again. */
    __device__ __forceinline__ void end() {
        __syncwarp();
        if (i + p.slots < chunks.n) copy_chunk(p, s, chunks[i + p.slots], base + slot * bytes);
        pz_copy_commit();
        if (++slot == p.slots) slot = 0;
        i++;
    }
};

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
            to[u] = xs + row * 16 + col * p.x_piece;
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

/* acc (+)= w x of one chunk; x: its first piece. */
template <int MT, bool Group, typename Chunk>
__device__ __forceinline__ void multiply(float (&acc)[MT][4], Chunk &w, uint32_t x, int piece, bool add) {
    if constexpr (Group) {
        step s[STEPS];
        w.begin();
#pragma unroll
        for (int j = 0; j < STEPS; j++) s[j] = w.read(j);
        pz_wgmma_fence();
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            const uint32_t a0[4] = {s[j].low.x, s[j].high.x, s[j].low.y, s[j].high.y};
            const uint32_t a1[4] = {s[j].low.z, s[j].high.z, s[j].low.w, s[j].high.w};
            pz_wgmma_rs<8 * MT>(acc, a0, pz_wgmma_pieces(x + 4 * j * piece, piece), add || j);
            pz_wgmma_rs<8 * MT>(acc, a1, pz_wgmma_pieces(x + (4 * j + 2) * piece, piece), true);
        }
        pz_wgmma_commit();
        w.end();
        pz_wgmma_wait<0>();
    } else {
        const uint32_t lane = threadIdx.x & 31, from = x + (lane >> 3) * piece + (lane & 7) * 16;
        if (!add) {
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) acc[i][e] = 0;
        }
        w.begin();
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            const step s = w.read(j);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                const uint4 b = pz_ldmatrix(from + 4 * j * piece + i * 128);
                pz_mma(acc[i], s.low.x, s.high.x, s.low.y, s.high.y, b.x, b.y);
                pz_mma(acc[i], s.low.z, s.high.z, s.low.w, s.high.w, b.z, b.w);
            }
        }
        w.end();
    }
}

/* A thread's sums: in f32, or f32 within a unit, then scaled, rounded and added as integers. */
template <int MT, typename Sum> struct thread_sums;
template <int MT> struct thread_sums<MT, float> {
    float sum[MT][4];
    __device__ __forceinline__ void begin(const skinny_params &, int, int) {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][e] = 0;
    }
    /* Chunk i of a warp's sequence. */
    template <bool Group, typename Chunk>
    __device__ __forceinline__ void add(const skinny_params &p, int, Chunk &w, uint32_t x, const float *) {
        multiply<MT, Group>(sum, w, x, p.x_piece, true);
    }
};
template <int MT> struct thread_sums<MT, int> {
    int sum[MT][4];
    float part[MT][4], w_norm[2];
    /* Before the weights are asked for: what is asked for after them comes after them. */
    __device__ __forceinline__ void begin(const skinny_params &p, int n, int lane) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            asm volatile("ld.global.nc.f32 %0, [%1];"
                         : "=f"(w_norm[h])
                         : "l"(p.out.w_norm + min(n + (lane >> 2) + 8 * h, p.out.n - 1)));
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][e] = 0;
    }
    template <bool Group, typename Chunk>
    __device__ __forceinline__ void add(const skinny_params &p, int i, Chunk &w, uint32_t x, const float *x_inv) {
        const int last = p.unit - 1;
        multiply<MT, Group>(part, w, x, p.x_piece, i & last);
        if ((i & last) != last) return;
        x_inv += 2 * (threadIdx.x & 3);
#pragma unroll
        for (int t = 0; t < MT; t++) {
            const float2 inv = *(const float2 *)(x_inv + 8 * t);
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[t][e] += __float2int_rn(part[t][e] * (e & 1 ? inv.y : inv.x) * pz_fixed_inv(w_norm[e >> 1]));
        }
    }
};

/* The sums of the warps that share a tile, added in the order of the warps and put out. */
template <int MT, typename Sum>
__device__ __forceinline__ void put_tile(const skinny_params &p, const pz_tile &t, const pz_destination &d,
                                         Sum (&sum)[MT][4], Sum *shared, int column, int share, int lane) {
    const int pitch = 16 * p.columns + 4, g = lane >> 2, c = 2 * (lane & 3);
    pz_output_ready(p.out, t, {(int)threadIdx.x, (int)blockDim.x, 0});
    if (p.direct) {
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

/* MT: groups of 8 rows of x. Group: with wgmma. */
template <int MT, bool Group, typename Sum>
__global__ void __launch_bounds__(MAX_THREADS, 1) skinny(const __grid_constant__ skinny_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
    constexpr bool has_body = true;
#else
    constexpr bool has_body = !Group;
#endif
    if constexpr (has_body) {
        extern __shared__ __align__(128) unsigned char smem[];
        __shared__ int flag;
        __shared__ __align__(8) float x_inv[MT * 8];
        const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem);
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const int column = warp % p.columns, share = warp / p.columns;
        const pz_tile t = pz_output_tile(p.out, 16 * p.columns, p.tile_m);
        const int unit0 = p.units * t.part / p.out.split, unit1 = p.units * (t.part + 1) / p.out.split;
        const int mine = unit0 + share < unit1 ? (unit1 - unit0 - share + p.warps - 1) / p.warps : 0;
        const int n0 = t.col0 + column * 16, g = lane >> 2;
        const sequence chunks = {(unit0 + share) * p.unit, mine * p.unit, p.warps, p.unit};

        weight_source s;
        s.k = 8 * (lane & 3);
        s.low_valid = n0 + g < p.out.n;
        s.high_valid = n0 + g + 8 < p.out.n;
        s.low = p.w + (s.low_valid ? n0 + g : 0) * p.ldw;
        s.high = p.w + (s.high_valid ? n0 + g + 8 : 0) * p.ldw;
        pz_trigger();

        thread_sums<MT, Sum> sums;
        sums.begin(p, n0, lane);
        fragments held;
        if (mine) load_chunk(p, s, chunks[0], held);
        slot_chunk slots = {p, s, chunks, base + warp * 512, 2u * STEPS * p.piece, 0, 1};
        for (int i = 0; i < p.slots; i++) {
            if (p.depth && i >= p.depth) pz_copy_wait(p.depth - 1);
            if (1 + i < chunks.n) copy_chunk(p, s, chunks[1 + i], slots.base + i * slots.bytes);
            pz_copy_commit();
        }
        if (mine) transpose_chunk(held);
        const pz_destination d = pz_output_destination<Sum>(p.out, t);
        const uint32_t xs = base + p.x_offset;
        const divider pieces((unit1 - unit0) * p.unit * (CHUNK / 8));
        pz_wait();
        const pz_group group = {(int)threadIdx.x, (int)blockDim.x, 0};
        constexpr bool fixed = !((Sum)0.5f);
        const bool has_norm = fixed && (int)threadIdx.x < t.rows;
        float norm = 0;
        if (has_norm) norm = pz_load_f32(p.out.x_norm + t.row0 + threadIdx.x);
        load_x<(MT == 4 ? 8 : 4)>(p, t, unit0 * p.unit * CHUNK, pieces, xs);
        if (Group) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        if (has_norm) x_inv[threadIdx.x] = pz_fixed_inv(norm);
        pz_output_begin(p.out, t, group, &flag);
        __syncthreads();

        const uint32_t x_chunk = (CHUNK / 8) * p.x_piece;
        const uint32_t x_own = xs - unit0 * p.unit * x_chunk; /* of chunk 0 of K */
        if (mine) {
            held_chunk h = {held};
            sums.template add<Group>(p, 0, h, x_own + chunks[0] * x_chunk, x_inv);
        }
        while (slots.i < chunks.n) {
            const int i = slots.i;
            sums.template add<Group>(p, i, slots, x_own + chunks[i] * x_chunk, x_inv);
        }
        put_tile<MT, Sum>(p, t, d, sums.sum, (Sum *)(smem + p.sum_offset), column, share, lane);
        pz_output_end<Sum>(p.out, t, group, &flag);
    }
}

typedef void (*skinny_kernel)(const skinny_params);
template <bool Group, typename Sum> skinny_kernel choose(int mt) {
    return mt == 1 ? skinny<1, Group, Sum> : mt == 2 ? skinny<2, Group, Sum> : skinny<4, Group, Sum>;
}
template <typename Sum> skinny_kernel choose(int mt, bool group) {
    return group ? choose<true, Sum>(mt) : choose<false, Sum>(mt);
}

} // namespace

/* Parameters, shared memory and grid of a launch: the one place where its geometry is worked out. */
static pz_status skinny_geometry(const pz_gemm_launch *l, skinny_params *p, size_t *smem, pz_error *err) {
    const pz_gemm_args *a = &l->args;
    const pz_gemm_config *c = &l->config;
    const char *name = c->family == PZ_GEMM_GROUP ? "group" : "skinny";
    int step = c->family == PZ_GEMM_GROUP ? 64 : 16, columns = c->tile_n / 16;
    if (c->tile_n < step || c->tile_n % step || c->warps < 1 || c->warps > PZ_GEMM_MAX_WARPS / columns ||
        c->split < 1 || c->stages < 0 || c->depth < 0)
        return pz_fail(
            err, PZ_E_INVAL,
            "%s gemm: tile_n %d, warps %d, split %d, stages %d, depth %d: tile_n a multiple of %d, at most %d "
            "warps in all, none negative",
            name, c->tile_n, c->warps, c->split, c->stages, c->depth, step, PZ_GEMM_MAX_WARPS);
    int unit = pz_gemm_unit(a->n, a->k), units = (a->k + unit * CHUNK - 1) / (unit * CHUNK);
    if (c->split > units)
        return pz_fail(err, PZ_E_INVAL, "%s gemm: split %d of K = %d: at most %d units of %d", name, c->split, a->k,
                       units, unit * CHUNK);
    const int warps = columns * c->warps, threads = 32 * warps;
    pz_gemm_slots at;
    if (!pz_gemm_lay_out_slots(c, a->m, l->tile_m, a->n, a->k, &at))
        return pz_fail(err, PZ_E_UNSUPPORTED,
                       "%s gemm: %d rows of x and %d of K do not fit into shared memory; split more or use fewer rows "
                       "of a tile",
                       name, a->m < l->tile_m ? a->m : l->tile_m,
                       (int)pz_gemm_longest(a->n, a->k, c->split) * unit * CHUNK);
    p->x_piece = at.x_piece, p->direct = at.direct;
    p->x_offset = at.slots * at.slot;
    p->sum_offset = p->x_offset + (int)at.x_bytes;
    *smem = (size_t)(p->sum_offset + at.sum_bytes);
    p->out = l->out;
    p->x = (const __nv_bfloat16 *)a->x;
    p->w = (const __nv_bfloat16 *)a->w;
    p->ldx = a->ldx, p->ldw = a->ldw, p->k = a->k, p->units = units, p->unit = unit, p->tile_m = l->tile_m;
    p->columns = columns, p->warps = c->warps, p->slots = at.slots, p->piece = 16 * 32 * warps, p->depth = c->depth;
    p->put_cols = c->tile_n < threads ? c->tile_n : threads, p->put_rows = threads / p->put_cols;
    return PZ_OK;
}

extern "C" pz_status pz_gemm_skinny_plan(pz_gemm_launch *l, pz_error *err) {
    skinny_params p;
    size_t smem;
    pz_status st;
    if (l->config.family == PZ_GEMM_GROUP) PZ_TRY(pz_gemm_need_wgmma("group", err));
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
    const int mt = (l->tile_m + 7) / 8;
    const bool group = l->config.family == PZ_GEMM_GROUP;
    skinny_kernel kernel = l->args.accum == PZ_ACCUM_FIXED ? choose<int>(mt, group) : choose<float>(mt, group);
    PZ_CUDA_TRY(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, PZ_GEMM_SMEM),
                err);
    dim3 grid(l->tiles_n * l->config.split, l->tiles_m), block(32 * p.columns * p.warps);
    return pz_cuda_launch(kernel, grid, block, smem, (cudaStream_t)l->args.stream, l->args.dependent != 0, "gemm", err,
                          p);
}
