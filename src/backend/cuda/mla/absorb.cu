/* SPDX-License-Identifier: Apache-2.0 */
/* The two halves of kv_b: W_UK absorbed into the query, W_UV applied to what attention gives. A row's sums are taken in
 * the same order whatever rows share the block. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/mla/mla.cuh"

namespace {

enum { THREADS = 256, ROWS = PZ_ABSORB_ROWS };

/* ---- W_UK: y[col] = sum over k of q[k] * kv_b[k][col], per head ---- */
/* A thread has eight columns and every PARTS-th k. */
enum { COLUMNS = 128, GROUPS = COLUMNS / 8, PARTS = THREADS / GROUPS };

template <int R> __device__ __forceinline__ void rope_part(const pz_absorb_q_params &p, int head, int first, int rows) {
    const int half = p.rope / 2;
    for (int i = threadIdx.x; i < rows * half; i += THREADS) {
        const int row = first + i / half, pair = i % half;
        const int64_t from = (int64_t)head * (p.nope + p.rope) + p.nope + 2 * pair;
        const int64_t to = (int64_t)head * (p.latent + p.rope) + p.latent + 2 * pair;
        const float2 y = pz_rotate(pz_get(p.q, row, from), pz_get(p.q, row, from + 1), pz_load_i32(p.pos + row),
                                   __ldg(p.inv_freq + pair), p.rope_scale);
        pz_put(p.y, row, to, y.x);
        pz_put(p.y, row, to + 1, y.y);
    }
}

/* Dynamic shared memory: the rows' q_nope [R][nope]. */
template <int R> __global__ void __launch_bounds__(THREADS) absorb_q_kernel(const pz_absorb_q_params p) {
    extern __shared__ float x[];
    __shared__ float part[PARTS][COLUMNS];
    pz_trigger();
    const int head = blockIdx.y, first = blockIdx.z * R, rows = p.m - first < R ? p.m - first : R;
    const int tile = blockIdx.x * COLUMNS, group = threadIdx.x % GROUPS, k0 = threadIdx.x / GROUPS;
    const int col = tile + group * 8;
    const uint16_t *w = (const uint16_t *)p.kv_b + (int64_t)head * (p.nope + p.v) * p.latent + col;
    for (int k = k0; k < p.nope && col < p.latent; k += PARTS) pz_prefetch(w + (int64_t)k * p.latent);
    pz_wait();
    for (int i = threadIdx.x; i < R * p.nope; i += THREADS)
        x[i] =
            i / p.nope < rows ? pz_get(p.q, first + i / p.nope, (int64_t)head * (p.nope + p.rope) + i % p.nope) : 0.f;
    __syncthreads();
    float acc[R][8] = {};
    if (col < p.latent) {
#pragma unroll 8
        for (int k = k0; k < p.nope; k += PARTS) {
            float wk[8];
            pz_unpack_bf16(__ldg((const uint4 *)(w + (int64_t)k * p.latent)), wk);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int j = 0; j < 8; j++) acc[r][j] = fmaf(x[r * p.nope + k], wk[j], acc[r][j]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (r >= rows) break;
        __syncthreads();
        float4 *at = (float4 *)&part[k0][group * 8];
        at[0] = make_float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
        at[1] = make_float4(acc[r][4], acc[r][5], acc[r][6], acc[r][7]);
        __syncthreads();
        const int c = threadIdx.x;
        if (c >= COLUMNS || tile + c >= p.latent) continue;
        float sum = part[0][c];
#pragma unroll
        for (int i = 1; i < PARTS; i++) sum += part[i][c];
        pz_put(p.y, first + r, (int64_t)head * (p.latent + p.rope) + tile + c, sum);
    }
    if (blockIdx.x == 0) rope_part<R>(p, head, first, rows);
}

} // namespace

pz_status pz_cuda_launch_absorb_q(const pz_cuda_run *r, const pz_absorb_q_params *p, pz_error *err) {
    const int rows = p->m == 1 ? 1 : ROWS;
    const dim3 grid((p->latent + COLUMNS - 1) / COLUMNS, p->heads, (p->m + rows - 1) / rows);
    return pz_cuda_launch(rows == 1 ? absorb_q_kernel<1> : absorb_q_kernel<ROWS>, grid, dim3(THREADS),
                          (size_t)rows * p->nope * sizeof(float), r->stream, r->dependent, "mla_absorb_q", err, *p);
}

namespace {

/* ---- W_UV: y[e] = sum over k of o[k] * kv_b[nope + e][k], per head ---- */
/* Eight lanes share an output. */
enum { LANES = 8, OUTPUTS = THREADS / LANES };

/* x_norm of the rows, by whichever block is the last of them to end. */
__device__ __forceinline__ void norm_rows(const pz_absorb_v_params &p, int first, int rows) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(p.tickets + blockIdx.z, 1u) == gridDim.x * gridDim.y - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) p.tickets[blockIdx.z] = 0;
    const int cols = p.heads * p.v;
    for (int r = 0; r < rows; r++) {
        double squares = 0;
        for (int col = threadIdx.x * 8; col < cols; col += THREADS * 8) {
            float v[8];
            pz_get_some(p.y, first + r, col, cols - col < 8 ? cols - col : 8, v);
            squares += pz_squares(v);
        }
        squares = pz_block_sum(squares);
        if (threadIdx.x == 0) p.x_norm[first + r] = pz_norm_of_squares(squares);
    }
}

/* Dynamic shared memory: the rows' o [R][pz_spread(latent)]. */
template <int R> __global__ void __launch_bounds__(THREADS) absorb_v_kernel(const pz_absorb_v_params p) {
    extern __shared__ float x[];
    pz_trigger();
    const int head = blockIdx.y, first = blockIdx.z * PZ_ABSORB_ROWS;
    const int rows = p.m - first < R ? p.m - first : R, stride = pz_spread((p.latent + 31) & ~31);
    const int lane = threadIdx.x % LANES, e = blockIdx.x * OUTPUTS + threadIdx.x / LANES;
    const uint16_t *w = (const uint16_t *)p.kv_b + ((int64_t)head * (p.nope + p.v) + p.nope + e) * p.latent;
    for (int k = lane * 8; k < p.latent && e < p.v; k += LANES * 8) pz_prefetch(w + k);
    pz_wait();
    for (int i = threadIdx.x; i < R * (p.latent / 8); i += THREADS) {
        const int r = i / (p.latent / 8), k = i % (p.latent / 8) * 8;
        float v[8] = {};
        if (r < rows) pz_get_some(p.o, first + r, (int64_t)head * p.latent + k, 8, v);
        float4 *at = (float4 *)(x + r * stride + pz_spread(k));
        at[0] = make_float4(v[0], v[1], v[2], v[3]);
        at[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
    __syncthreads();
    float acc[R] = {};
    if (e < p.v) {
#pragma unroll 4
        for (int k = lane * 8; k < p.latent; k += LANES * 8) {
            float wk[8];
            pz_unpack_bf16(__ldg((const uint4 *)(w + k)), wk);
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float4 *at = (const float4 *)(x + r * stride + pz_spread(k));
                const float4 a = at[0], b = at[1];
                acc[r] = fmaf(a.x, wk[0], acc[r]);
                acc[r] = fmaf(a.y, wk[1], acc[r]);
                acc[r] = fmaf(a.z, wk[2], acc[r]);
                acc[r] = fmaf(a.w, wk[3], acc[r]);
                acc[r] = fmaf(b.x, wk[4], acc[r]);
                acc[r] = fmaf(b.y, wk[5], acc[r]);
                acc[r] = fmaf(b.z, wk[6], acc[r]);
                acc[r] = fmaf(b.w, wk[7], acc[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int off = LANES / 2; off; off >>= 1) acc[r] += __shfl_xor_sync(0xffffffffu, acc[r], off);
        if (lane == 0 && e < p.v && r < rows) pz_put(p.y, first + r, (int64_t)head * p.v + e, acc[r]);
    }
    if (p.x_norm) norm_rows(p, first, rows);
}

} // namespace

pz_status pz_cuda_launch_absorb_v(const pz_cuda_run *r, const pz_absorb_v_params *p, pz_error *err) {
    const int rows = p->m == 1 ? 1 : ROWS, k = (p->latent + 31) / 32 * 36;
    const dim3 grid((p->v + OUTPUTS - 1) / OUTPUTS, p->heads, PZ_ABSORB_TICKETS(p->m));
    return pz_cuda_launch(rows == 1 ? absorb_v_kernel<1> : absorb_v_kernel<ROWS>, grid, dim3(THREADS),
                          (size_t)rows * k * sizeof(float), r->stream, r->dependent, "mla_absorb_v", err, *p);
}
