/* SPDX-License-Identifier: Apache-2.0 */
/* Decode attention over the paged latent cache. A block has one row and up to four heads. Tokens come in tiles, two in
 * shared memory at a time: one is worked on while the next is copied. Softmax is taken online. The bits of a head
 * depend neither on the heads beside it nor on other rows: the tile depends on the entry's size alone. */
#include <math_constants.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/mla/mla.cuh"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, HEADS = 4, TOKENS = 2 * WARPS /* most tokens of a tile */ };
enum { SHARED = 46 * 1024, SMALL = (TOKENS + 2) * HEADS * 4 };

/* Floats from head to head of q, elements from token to token of a tile. */
__host__ __device__ __forceinline__ int padded(int entry) {
    return (entry + 7) & ~7;
}
/* Bytes of one tile: what HEADS heads of q leave of the shared memory, halved. */
__host__ __device__ __forceinline__ int tile_bytes(int ld) {
    return (SHARED - SMALL - HEADS * ld * 4) / 2 & ~15;
}
static_assert((SHARED - SMALL - HEADS * PZ_ATTENTION_MAX_ENTRY * 4) / 2 - 15 >= PZ_ATTENTION_MAX_ENTRY * 4,
              "a tile holds a token");

/* One block's work. */
struct work {
    pz_cuda_cache cache;
    const int32_t *pages;
    int layer, ld, n, tokens; /* n: positions of the row; tokens: of a full tile */
    int warp, lane;
    bool aligned;
};

__device__ __forceinline__ void load4(const uint16_t *p, float v[4]) {
    const uint2 w = *(const uint2 *)p;
    v[0] = pz_bf16_lo(w.x);
    v[1] = pz_bf16_hi(w.x);
    v[2] = pz_bf16_lo(w.y);
    v[3] = pz_bf16_hi(w.y);
}
__device__ __forceinline__ void load4(const float *p, float v[4]) {
    const float4 w = *(const float4 *)p;
    v[0] = w.x;
    v[1] = w.y;
    v[2] = w.z;
    v[3] = w.w;
}
__device__ __forceinline__ float2 load2(const uint16_t *p) {
    const uint32_t w = *(const uint32_t *)p;
    return make_float2(pz_bf16_lo(w), pz_bf16_hi(w));
}
__device__ __forceinline__ float2 load2(const float *p) {
    return *(const float2 *)p;
}
__device__ __forceinline__ uint16_t load_one(const uint16_t *p) {
    return pz_load_u16(p);
}
__device__ __forceinline__ float load_one(const float *p) {
    return pz_load_f32(p);
}

/* Pages of this warp's two tokens of the tile that begins at position t0. */
__device__ __forceinline__ void find_pages(const work &w, int t0, int page[2]) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const int t = w.warp + WARPS * s;
        page[s] = t < w.tokens && t0 + t < w.n ? max(pz_load_i32(w.pages + (t0 + t) / w.cache.page_tokens), 0) : 0;
    }
}

/* Starts copying a tile: a warp copies whole tokens. */
template <typename T> __device__ __forceinline__ void fetch(const work &w, T *tile, int t0, const int page[2]) {
    constexpr int WIDTH = 16 / sizeof(T);
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const int t = w.warp + WARPS * s;
        if (t >= w.tokens || t0 + t >= w.n) continue;
        const T *src = (const T *)pz_entry(w.cache, w.layer, page[s], (t0 + t) % w.cache.page_tokens);
        T *dst = tile + t * w.ld;
        if (!w.aligned) {
            for (int i = w.lane; i < w.cache.entry; i += 32) dst[i] = load_one(src + i);
            continue;
        }
        for (int i = w.lane * WIDTH; i < w.cache.entry; i += 32 * WIDTH)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(dst + i)),
                         "l"(src + i)
                         : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Sums N values over a warp at once: lane i ends up with value i * N / 32. Each is added up along the same tree,
 * whatever N. */
template <int N> __device__ __forceinline__ float sum_over_warp(float v[N], int lane) {
    int off = 16;
#pragma unroll
    for (int n = N; n > 1; n /= 2, off /= 2) {
#pragma unroll
        for (int i = 0; i < n / 2; i++) {
            const bool upper = lane & off;
            const float send = upper ? v[i] : v[i + n / 2], keep = upper ? v[i + n / 2] : v[i];
            v[i] = keep + __shfl_xor_sync(0xffffffffu, send, off);
        }
    }
#pragma unroll
    for (; off; off /= 2) v[0] += __shfl_xor_sync(0xffffffffu, v[0], off);
    return v[0];
}

/* score[t][h] of this warp's tokens of a tile of `count`. */
template <int H, typename T>
__device__ __forceinline__ void scores(const work &w, const T *tile, int count, const float *q, float scale,
                                       float *score) {
    if (w.warp >= count) return;
    const bool both = w.warp + WARPS < count;
    const T *c0 = tile + w.warp * w.ld, *c1 = both ? c0 + WARPS * w.ld : c0;
    float acc[2 * H] = {};
    for (int i = w.lane * 4; i < w.ld; i += 128) {
        float a[4], b[4];
        load4(c0 + i, a);
        load4(c1 + i, b);
#pragma unroll
        for (int h = 0; h < H; h++) {
            float x[4];
            load4(q + h * w.ld + i, x);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                acc[h] = fmaf(x[j], a[j], acc[h]);
                acc[H + h] = fmaf(x[j], b[j], acc[H + h]);
            }
        }
    }
    const float sum = sum_over_warp<2 * H>(acc, w.lane);
    const int index = w.lane * 2 * H / 32, t = w.warp + index / H * WARPS;
    if (w.lane % (16 / H) == 0 && t < count) score[t * H + index % H] = sum * scale;
}

/* Softmax of one head, a warp: the maximum and the sum so far are m and l. Turns scores into weights and gives the
 * factor for what was added up before. A NaN or +Inf among the scores makes everything NaN, -Inf weighs nothing. */
template <int H>
__device__ __forceinline__ void weigh(int lane, int h, int count, float *score, float *factor, float &m, float &l) {
    const float s = lane < count ? score[lane * H + h] : -CUDART_INF_F;
    float most = s;
#pragma unroll
    for (int off = 16; off; off /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, off));
    most = fmaxf(most, m);
    const float base = most == -CUDART_INF_F ? 0.f : most, f = expf(m - base);
    const float weight = lane < count ? expf(s - base) : 0.f;
    float sum = weight;
#pragma unroll
    for (int off = 16; off; off /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, off);
    l = fmaf(l, f, sum);
    m = most;
    if (lane < count) score[lane * H + h] = weight;
    if (lane == 0) factor[h] = f;
}

template <int H, typename T>
__device__ __forceinline__ void attend(const pz_attention_params &p, work w, int row, int first, int heads,
                                       unsigned char *shared) {
    const int tile = tile_bytes(w.ld);
    float *q = (float *)shared, *score = (float *)(shared + HEADS * w.ld * 4), *factor = score + TOKENS * HEADS;
    T *const tiles = (T *)(shared + HEADS * w.ld * 4 + SMALL);
    const int next = tile / (int)sizeof(T); /* from one tile to the other */
    w.tokens = min((int)TOKENS, tile / (w.ld * (int)sizeof(T)));
    int page[2];
    find_pages(w, 0, page);
    for (int i = threadIdx.x; i < H * w.ld; i += THREADS) {
        const int h = i / w.ld, k = i % w.ld;
        q[i] = h < heads && k < w.cache.entry ? pz_get(p.q, row, (int64_t)(first + h) * w.cache.entry + k) : 0.f;
    }
    const int pad = w.ld - w.cache.entry; /* columns that no copy writes */
    for (int i = threadIdx.x; i < 2 * w.tokens * pad; i += THREADS)
        tiles[i / (w.tokens * pad) * next + i / pad % w.tokens * w.ld + w.cache.entry + i % pad] = 0;
    fetch(w, tiles, 0, page);
    find_pages(w, w.tokens, page);
    float acc[2][2][H] = {}, m = -CUDART_INF_F, l = 0.f;
    for (int t0 = 0, stage = 0; t0 < w.n; t0 += w.tokens, stage ^= 1) {
        const int count = min(w.tokens, w.n - t0);
        const T *const now = tiles + stage * next;
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        if (t0 + w.tokens < w.n) {
            fetch(w, tiles + (stage ^ 1) * next, t0 + w.tokens, page);
            find_pages(w, t0 + 2 * w.tokens, page);
        }
        scores<H>(w, now, count, q, p.scale, score);
        __syncthreads();
        if (w.warp < H) weigh<H>(w.lane, w.warp, count, score, factor, m, l);
        __syncthreads();
#pragma unroll
        for (int pass = 0; pass < 2; pass++) {
            const int col = 2 * (int)threadIdx.x + pass * 2 * THREADS;
            if (col >= p.latent) break;
#pragma unroll
            for (int h = 0; h < H; h++) {
                acc[pass][0][h] *= factor[h];
                acc[pass][1][h] *= factor[h];
            }
#pragma unroll 4
            for (int t = 0; t < count; t++) {
                const float2 c = load2(now + t * w.ld + col);
#pragma unroll
                for (int h = 0; h < H; h++) {
                    acc[pass][0][h] = fmaf(score[t * H + h], c.x, acc[pass][0][h]);
                    acc[pass][1][h] = fmaf(score[t * H + h], c.y, acc[pass][1][h]);
                }
            }
        }
    }
    __syncthreads();
    if (w.warp < H && w.lane == 0) factor[w.warp] = l;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4 * H; i++) {
        const int pass = i / (2 * H), j = i / H % 2, h = i % H;
        const int col = 2 * (int)threadIdx.x + pass * 2 * THREADS + j;
        if (col < p.latent && h < heads)
            pz_put(p.y, row, (int64_t)(first + h) * p.latent + col, acc[pass][j][h] / factor[h]);
    }
}

template <int H> __global__ void __launch_bounds__(THREADS) attention_kernel(const pz_attention_params p) {
    extern __shared__ __align__(16) unsigned char shared[];
    pz_trigger();
    pz_wait();
    const int row = blockIdx.x, first = blockIdx.y * H, heads = min(H, p.heads - first);
    const int seq = pz_load_i32(p.seq + row), pos = pz_load_i32(p.pos + row);
    work w;
    w.cache = pz_load_cache(p.cache);
    if (seq < 0 || w.cache.entry != p.latent + p.rope) {
        for (int i = threadIdx.x; i < heads * p.latent; i += THREADS)
            pz_put(p.y, row, (int64_t)first * p.latent + i, seq < 0 ? 0.f : PZ_NAN_F);
        return;
    }
    w.pages = w.cache.block_table + (int64_t)seq * w.cache.table_stride;
    w.layer = p.layer;
    w.ld = padded(w.cache.entry);
    w.n = min(pos, w.cache.table_stride * w.cache.page_tokens - 1) + 1;
    w.warp = threadIdx.x / 32;
    w.lane = threadIdx.x % 32;
    const int size = w.cache.bf16 ? 2 : 4;
    w.aligned = w.cache.entry * size % 16 == 0 && pz_aligned16(w.cache.data + w.layer * w.cache.layer_stride);
    if (w.cache.bf16)
        attend<H, uint16_t>(p, w, row, first, heads, shared);
    else
        attend<H, float>(p, w, row, first, heads, shared);
}

} // namespace

/* Few rows: fewer heads a block, so that there are blocks for many SMs. */
pz_status pz_cuda_launch_attention(const pz_cuda_run *r, const pz_attention_params *p, pz_error *err) {
    static void (*const kernels[])(pz_attention_params) = {attention_kernel<1>, attention_kernel<2>,
                                                           attention_kernel<4>};
    int choice = 2;
    while (choice > 0 && (int64_t)p->m * ((p->heads + (1 << choice) - 1) >> choice) < 128) choice--;
    const dim3 grid(p->m, (p->heads + (1 << choice) - 1) >> choice);
    const int ld = padded(p->latent + p->rope);
    return pz_cuda_launch(kernels[choice], grid, dim3(THREADS), (size_t)HEADS * ld * 4 + SMALL + 2 * tile_bytes(ld),
                          r->stream, r->dependent, "mla_attention", err, *p);
}
