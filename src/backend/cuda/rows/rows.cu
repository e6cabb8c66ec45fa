/* SPDX-License-Identifier: Apache-2.0 */
/* Row by row kernels. A block never works for two rows and its size depends on the columns alone, so a row's bits do
 * not depend on the batch. */
#include "backend/cuda/rows/rows.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/rows/row.cuh"

namespace {

enum { THREADS = 128, SPAN = THREADS * 8 /* columns of a block */ };

/* Threads of a block that has a whole row, eight columns each. */
static int row_threads(int cols) {
    const int wanted = (cols + 255) / 256 * 32;
    return wanted < 1024 ? wanted : 1024;
}

/* Columns from col on that one thread takes. */
__device__ __forceinline__ int some(int cols, int col) {
    return cols - col < 8 ? cols - col : 8;
}

/* ---- embed ---- */
__global__ void __launch_bounds__(THREADS) embed_kernel(const pz_embed_params p) {
    pz_trigger();
    pz_wait();
    const int row = blockIdx.x, id = pz_load_i32(p.ids + row);
    const bool known = id >= 0 && id < p.vocab;
    const pz_matrix table = {(void *)p.w, p.cols, PZ_ELEM_BF16, nullptr, nullptr};
    const int col = blockIdx.y * SPAN + threadIdx.x * 8;
    if (col >= p.cols) return;
    float v[8];
    if (known) {
        pz_get_some(table, id, col, some(p.cols, col), v);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = PZ_NAN_F;
    }
    pz_put_some(p.y, row, col, some(p.cols, col), v);
}

} // namespace

pz_status pz_cuda_launch_embed(const pz_cuda_run *r, const pz_embed_params *p, pz_error *err) {
    const dim3 grid(p->m, (p->cols + SPAN - 1) / SPAN);
    return pz_cuda_launch(embed_kernel, grid, dim3(THREADS), 0, r->stream, r->dependent, "embed", err, *p);
}

namespace {

/* ---- add; all_reduce, which on one rank hands its operand on ---- */
__global__ void __launch_bounds__(THREADS) add_kernel(const pz_add_params p) {
    pz_trigger();
    pz_wait();
    const int row = blockIdx.x, col = blockIdx.y * SPAN + threadIdx.x * 8;
    if (col >= p.cols) return;
    const int n = some(p.cols, col);
    float a[8];
    pz_get_some(p.a, row, col, n, a);
    if (p.b.data) {
        float b[8];
        pz_get_some(p.b, row, col, n, b);
#pragma unroll
        for (int j = 0; j < 8; j++) a[j] += b[j];
    }
    pz_put_some(p.y, row, col, n, a);
}

} // namespace

pz_status pz_cuda_launch_add(const pz_cuda_run *r, const pz_add_params *p, pz_error *err) {
    const dim3 grid(p->m, (p->cols + SPAN - 1) / SPAN);
    return pz_cuda_launch(add_kernel, grid, dim3(THREADS), 0, r->stream, r->dependent, "add", err, *p);
}

namespace {

/* ---- silu_mul ---- */
__global__ void __launch_bounds__(1024) silu_mul_kernel(const pz_silu_params p) {
    pz_trigger();
    pz_wait();
    const int row = blockIdx.x;
    double squares = 0;
    for (int col = threadIdx.x * 8; col < p.cols; col += blockDim.x * 8) {
        const int n = some(p.cols, col);
        float gate[8], up[8];
        pz_get_some(p.x, row, col, n, gate);
        pz_get_some(p.x, row, (int64_t)p.cols + col, n, up);
#pragma unroll
        for (int j = 0; j < 8; j++) gate[j] = gate[j] / (1.f + expf(-gate[j])) * up[j];
        pz_put_some(p.y, row, col, n, gate);
        squares += pz_squares(gate);
    }
    if (!p.x_norm) return;
    squares = pz_block_sum(squares);
    if (threadIdx.x == 0) p.x_norm[row] = pz_norm_of_squares(squares);
}

} // namespace

pz_status pz_cuda_launch_silu_mul(const pz_cuda_run *r, const pz_silu_params *p, pz_error *err) {
    return pz_cuda_launch(silu_mul_kernel, dim3(p->m), dim3(row_threads(p->cols)), 0, r->stream, r->dependent,
                          "silu_mul", err, *p);
}

namespace {

/* ---- norm of a compressed latent ---- */
__global__ void __launch_bounds__(1024) latent_norm_kernel(const pz_latent_norm_params p) {
    pz_trigger();
    pz_wait();
    const int row = blockIdx.x, step = blockDim.x * 8;
    float v[8];
    double squares = 0, stored = 0;
    for (int col = threadIdx.x * 8; col < p.cols; col += step) {
        pz_get_some(p.x, row, col, some(p.cols, col), v);
        squares += pz_squares(v);
    }
    const float factor = (float)(1.0 / sqrt(pz_block_sum(squares) / p.cols + p.eps));
    for (int col = threadIdx.x * 8; col < p.cols; col += step) {
        const int n = some(p.cols, col);
        if (p.cols > step) pz_get_some(p.x, row, col, n, v); /* else it is still there */
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = j < n ? v[j] * factor * __ldg(p.w + col + j) : 0.f;
        pz_put_some(p.y, row, col, n, v);
        stored += pz_squares(v);
    }
    if (!p.x_norm) return;
    stored = pz_block_sum(stored);
    if (threadIdx.x == 0) p.x_norm[row] = pz_norm_of_squares(stored);
}

} // namespace

pz_status pz_cuda_launch_latent_norm(const pz_cuda_run *r, const pz_latent_norm_params *p, pz_error *err) {
    return pz_cuda_launch(latent_norm_kernel, dim3(p->m), dim3(row_threads(p->cols)), 0, r->stream, r->dependent,
                          "latent_norm", err, *p);
}
