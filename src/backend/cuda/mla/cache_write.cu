/* SPDX-License-Identifier: Apache-2.0 */
/* Writing the latent cache: one block a row. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/mla/mla.cuh"

namespace {

enum { THREADS = 128 };

__global__ void __launch_bounds__(THREADS) cache_write_kernel(const pz_cache_write_params p) {
    pz_trigger();
    pz_wait();
    const int row = blockIdx.x, seq = pz_load_i32(p.seq + row), pos = pz_load_i32(p.pos + row);
    const pz_cuda_cache c = pz_load_cache(p.cache);
    if (seq < 0 || pos < 0 || pos / c.page_tokens >= c.table_stride || c.entry != p.latent + p.rope) return;
    const int page = pz_load_i32(c.block_table + (int64_t)seq * c.table_stride + pos / c.page_tokens);
    if (page < 0) return;
    pz_matrix to = {pz_entry(c, p.layer, page, pos % c.page_tokens), c.entry, c.bf16 ? PZ_ELEM_BF16 : PZ_ELEM_F32,
                    nullptr, nullptr};
    double squares = 0;
    float v[8];
    for (int col = threadIdx.x * 8; col < p.latent; col += THREADS * 8) {
        pz_get_some(p.kv, row, col, p.latent - col < 8 ? p.latent - col : 8, v);
        squares += pz_squares(v);
    }
    const float factor = (float)(1.0 / sqrt(pz_block_sum(squares) / p.latent + p.eps));
    for (int col = threadIdx.x * 8; col < p.latent; col += THREADS * 8) {
        const int n = p.latent - col < 8 ? p.latent - col : 8;
        if (p.latent > THREADS * 8) pz_get_some(p.kv, row, col, n, v); /* else it is still there */
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = j < n ? v[j] * factor * __ldg(p.w + col + j) : 0.f;
        pz_put_some(to, 0, col, n, v);
    }
    for (int i = threadIdx.x; i < p.rope / 2; i += THREADS) {
        const int col = p.latent + 2 * i;
        const float2 y =
            pz_rotate(pz_get(p.kv, row, col), pz_get(p.kv, row, col + 1), pos, __ldg(p.inv_freq + i), p.rope_scale);
        pz_put(to, 0, col, y.x);
        pz_put(to, 0, col + 1, y.y);
    }
}

} // namespace

pz_status pz_cuda_launch_cache_write(const pz_cuda_run *r, const pz_cache_write_params *p, pz_error *err) {
    return pz_cuda_launch(cache_write_kernel, dim3(p->m), dim3(THREADS), 0, r->stream, r->dependent, "mla_cache_write",
                          err, *p);
}
