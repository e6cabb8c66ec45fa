/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/measure/follower.h"

#include <math.h>

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/measure/kernels.h"

enum { ALIGN = 256 };

static pz_gemm_args args_of(const pz_follower *f, int link, const void *x, const float *x_norm) {
    const pz_gemm_shape *s = &f->shape;
    return (pz_gemm_args){.size = sizeof(pz_gemm_args),
                          .x = x,
                          .w = f->w + (size_t)link * f->w_stride,
                          .ldx = s->k,
                          .ldw = s->k,
                          .y = f->y + (size_t)link * f->y_stride,
                          .ldy = s->n,
                          .m = s->m,
                          .n = (int)s->n,
                          .k = (int)s->k,
                          .accum = s->accum,
                          .x_norm = x_norm,
                          .w_norm = f->w_norm + link * s->n,
                          .strategy = f->choice.strategy,
                          .config = f->choice.config,
                          .workspace = f->workspace,
                          .stream = f->lab->stream};
}

static pz_status fill(pz_follower *f, uint64_t seed, pz_error *err) {
    const pz_gemm_shape *s = &f->shape;
    cudaStream_t stream = f->lab->stream;
    float scale = sqrtf(3.0f / (float)s->k); /* outputs of about 1 */
    PZ_TRY(pz_lab_fill_bf16(f->w, f->links * (int64_t)f->w_stride / 2, 0, scale, seed, stream, err));
    for (int i = 0; i < f->links; i++)
        PZ_TRY(pz_cuda_weight_norms(f->w + (size_t)i * f->w_stride, s->k, (int)s->n, (int)s->k, f->w_norm + i * s->n,
                                    stream, err));
    return PZ_OK;
}

pz_status pz_follower_open(pz_lab *lab, const pz_device *device, int m, int n, int k, int links, size_t stride,
                           uint64_t seed, pz_follower *out, pz_error *err) {
    if (k % 16) return pz_fail(err, PZ_E_INVAL, "a GEMM with K of %d: must be a multiple of 16", k);
    *out = (pz_follower){.lab = lab, .shape = {n, k, PZ_DT_BF16, PZ_ACCUM_FIXED, m}, .links = links};
    out->choice = pz_gemm_choose(device, &out->shape).on;
    out->w_stride = pz_align_up((size_t)n * (size_t)k * 2, ALIGN);
    size_t all = (size_t)links, bytes = (size_t)m * (size_t)n * 4, workspace;
    out->y_stride = pz_align_up(bytes > stride ? bytes : stride, ALIGN);
    PZ_TRY(pz_lab_alloc(lab, "the weights", all * out->w_stride, (void **)&out->w, err));
    PZ_TRY(pz_lab_alloc(lab, "the outputs", all * out->y_stride, (void **)&out->y, err));
    PZ_TRY(pz_lab_alloc(lab, "the norms of the weights", all * (size_t)n * 4, (void **)&out->w_norm, err));
    PZ_TRY(pz_lab_alloc(lab, "the comparison", bytes, &out->again, err));
    pz_gemm_args a = args_of(out, 0, out->w, out->w_norm);
    PZ_TRY(pz_cuda_gemm_workspace(&a, &workspace, err));
    PZ_TRY(pz_lab_alloc(lab, "the workspace", workspace, &out->workspace, err));
    return fill(out, seed, err);
}

void *pz_follower_zero(const pz_follower *f, int link, size_t *bytes) {
    *bytes = f->choice.strategy == PZ_ZERO_PREZERO ? pz_align_up((size_t)(f->shape.m * f->shape.n * 4), 16) : 0;
    return *bytes ? f->y + (size_t)link * f->y_stride : NULL;
}

pz_status pz_follower_run(const pz_follower *f, int link, const void *x, const float *x_norm, bool dependent,
                          pz_error *err) {
    pz_gemm_args a = args_of(f, link, x, x_norm);
    a.dependent = dependent;
    return pz_cuda_gemm(&a, err);
}

pz_status pz_follower_check(const pz_follower *f, int link, const void *x, const float *x_norm, pz_error *err) {
    size_t bytes = (size_t)(f->shape.m * f->shape.n * 4);
    pz_gemm_args a = args_of(f, link, x, x_norm);
    const void *chained = a.y;
    char *both = pz_calloc(2, bytes);
    if (!both) return PZ_NOMEM(err);
    a.y = f->again;
    pz_status st = pz_cuda_check(cudaMemsetAsync(f->again, 0, bytes, f->lab->stream), "cudaMemsetAsync", err);
    if (st == PZ_OK) st = pz_cuda_gemm(&a, err);
    const void *from[] = {chained, f->again};
    for (size_t i = 0; i < 2 && st == PZ_OK; i++)
        st = pz_cuda_check(cudaMemcpyAsync(both + i * bytes, from[i], bytes, cudaMemcpyDeviceToHost, f->lab->stream),
                           "a GEMM", err);
    if (st == PZ_OK) st = pz_lab_wait(f->lab, err);
    if (st == PZ_OK && memcmp(both, both + bytes, bytes) != 0)
        st = pz_fail(err, PZ_E_VERIFY, "the GEMM of link %d has other bits than by itself", link);
    pz_free(both);
    return st;
}
