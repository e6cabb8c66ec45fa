/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/measure/bench.h"

#include <math.h>

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/measure/kernels.h"
#include "backend/cuda/norm/norm.h"
#include "plan/tuned.h"

enum { MIN_COPIES = 24, MAX_COPIES = 4096, ALIGN = 256, POISON = 0x7f };
static const float eps = 1e-6f;

/* A store of bf16 is off by at most 2^-9 of the value, and no element is much beyond six times the root mean square. */
static const double bf16_error = 6.0 / 512, sum_error = 1e-3;
enum { RIVAL_SPLIT = 8 }; /* cuBLASLt may add several parts in bf16 too */

static size_t elem_bytes(pz_accum accum) {
    return accum == PZ_ACCUM_BF16 ? 2 : 4;
}

static pz_elem elem_of(pz_accum accum) {
    return accum == PZ_ACCUM_BF16 ? PZ_ELEM_BF16 : accum == PZ_ACCUM_F32 ? PZ_ELEM_F32 : PZ_ELEM_FIXED;
}

/* ---- launches ---- */
typedef struct norm_options {
    void *zero;
    size_t zero_bytes;
    bool x_norm, late, dependent;
} norm_options;

static pz_status launch_norm(pz_bench *b, int link, const norm_options *o, pz_error *err) {
    const pz_measure_spec *s = b->spec;
    pz_norm_args a = {.size = sizeof a,
                      .x = {.data = b->x + (size_t)link * b->x_stride, .ld = s->k, .elem = PZ_ELEM_BF16},
                      .res = {.data = b->res, .ld = s->k, .elem = PZ_ELEM_BF16},
                      .w = b->norm_w,
                      .eps = eps,
                      .y = {.data = b->y, .ld = s->k, .elem = PZ_ELEM_BF16},
                      .r = {.data = b->r, .ld = s->k, .elem = PZ_ELEM_BF16},
                      .x_norm = o->x_norm ? b->x_norm : NULL,
                      .m = s->m,
                      .hidden = s->k,
                      .zero = o->zero,
                      .zero_bytes = o->zero_bytes,
                      .late = o->late,
                      .dependent = o->dependent,
                      .stream = b->lab.stream};
    return pz_cuda_rms_norm(&a, err);
}

static pz_status plain_link(void *ctx, int link, pz_error *err) {
    return launch_norm(ctx, link, &(norm_options){0}, err);
}

static pz_gemm_args gemm_args(const pz_bench_entry *e, int link) {
    const pz_bench *b = e->bench;
    const pz_measure_spec *s = b->spec;
    return (pz_gemm_args){.size = sizeof(pz_gemm_args),
                          .x = b->y,
                          .w = b->w + (size_t)link * b->w_stride,
                          .ldx = s->k,
                          .ldw = s->k,
                          .y = b->out + (size_t)link * b->y_stride,
                          .ldy = s->n,
                          .m = s->m,
                          .n = s->n,
                          .k = s->k,
                          .accum = e->c->accum,
                          .x_norm = b->x_norm,
                          .w_norm = b->w_norm + (size_t)link * (size_t)s->n,
                          .strategy = e->c->strategy,
                          .config = e->used,
                          .workspace = e->workspace,
                          .dependent = !e->c->serial,
                          .stream = b->lab.stream};
}

static pz_status entry_link(void *ctx, int link, pz_error *err) {
    pz_bench_entry *e = ctx;
    pz_bench *b = e->bench;
    pz_gemm_args a = gemm_args(e, link);
    if (e->used.family == PZ_GEMM_CUBLASLT) {
        pz_rival *rival;
        PZ_TRY(pz_bench_rival(b, e->c->accum, &rival, err));
        PZ_TRY(launch_norm(b, link, &(norm_options){0}, err));
        return pz_rival_run(rival, e->used.stages, a.x, a.w, a.y, err);
    }
    norm_options o = {.x_norm = a.accum == PZ_ACCUM_FIXED, .late = e->c->late, .dependent = a.dependent && link > 0};
    if (a.strategy == PZ_ZERO_PREZERO) {
        o.zero = a.y;
        o.zero_bytes = pz_align_up((size_t)a.m * (size_t)a.n * elem_bytes(a.accum), 16);
    }
    PZ_TRY(launch_norm(b, link, &o, err));
    return pz_cuda_gemm(&a, err);
}

/* ---- data ---- */
static int count_links(const pz_bench *b) {
    const pz_measure_spec *s = b->spec;
    if (s->copies) return s->copies;
    int64_t bytes = (int64_t)s->n * s->k * 2, links = 4 * b->lab.l2_bytes / bytes + 1;
    return links < MIN_COPIES ? MIN_COPIES : links > MAX_COPIES ? MAX_COPIES : (int)links;
}

static pz_status alloc_data(pz_bench *b, pz_error *err) {
    const pz_measure_spec *s = b->spec;
    size_t m = (size_t)s->m, n = (size_t)s->n, k = (size_t)s->k, links = (size_t)b->links;
    pz_lab *lab = &b->lab;
    b->w_stride = pz_align_up(n * k * 2, ALIGN);
    b->x_stride = pz_align_up(m * k * 2, ALIGN);
    b->y_stride = pz_align_up(m * n * 4, ALIGN);
    PZ_TRY(pz_lab_alloc(lab, "the weights", links * b->w_stride, (void **)&b->w, err));
    PZ_TRY(pz_lab_alloc(lab, "the inputs", links * b->x_stride, (void **)&b->x, err));
    PZ_TRY(pz_lab_alloc(lab, "the outputs", links * b->y_stride, (void **)&b->out, err));
    PZ_TRY(pz_lab_alloc(lab, "the norms of the weights", links * n * 4, (void **)&b->w_norm, err));
    PZ_TRY(pz_lab_alloc(lab, "the weight of the norm", k * 4, (void **)&b->norm_w, err));
    PZ_TRY(pz_lab_alloc(lab, "the norms of the rows", m * 4, (void **)&b->x_norm, err));
    PZ_TRY(pz_lab_alloc(lab, "the residual", b->x_stride, &b->res, err));
    PZ_TRY(pz_lab_alloc(lab, "the residual", b->x_stride, &b->r, err));
    PZ_TRY(pz_lab_alloc(lab, "the norm's output", b->x_stride, &b->y, err));
    return pz_lab_alloc(lab, "the comparison", 2 * sizeof *b->worst, (void **)&b->worst, err);
}

static pz_status fill_data(pz_bench *b, pz_error *err) {
    const pz_measure_spec *s = b->spec;
    cudaStream_t stream = b->lab.stream;
    float scale = sqrtf(3.0f / (float)s->k); /* outputs of about 1 */
    int64_t all = (int64_t)b->links;
    PZ_TRY(pz_lab_fill_bf16(b->w, all * (int64_t)b->w_stride / 2, 0, scale, s->seed + 1, stream, err));
    PZ_TRY(pz_lab_fill_bf16(b->x, all * (int64_t)b->x_stride / 2, 0, 1, s->seed + 2, stream, err));
    PZ_TRY(pz_lab_fill_bf16(b->res, (int64_t)b->x_stride / 2, 0, 1, s->seed + 3, stream, err));
    PZ_TRY(pz_lab_fill_f32(b->norm_w, s->k, 1, 0.5f, s->seed + 4, stream, err));
    for (int i = 0; i < b->links; i++)
        PZ_TRY(pz_cuda_weight_norms(b->w + (size_t)i * b->w_stride, s->k, s->n, s->k,
                                    b->w_norm + (size_t)i * (size_t)s->n, stream, err));
    return PZ_OK;
}

static pz_status make_reference(pz_bench *b, pz_bench_reference *r, int link, pz_error *err) {
    const pz_measure_spec *s = b->spec;
    size_t elements = (size_t)s->m * (size_t)s->n, rows = (size_t)s->m * sizeof(float);
    double squares;
    r->link = link;
    PZ_TRY(pz_lab_alloc(&b->lab, "the reference", elements * sizeof(double), (void **)&r->expected, err));
    PZ_TRY(pz_lab_alloc(&b->lab, "the reference", rows, (void **)&r->x_norm, err));
    PZ_TRY(launch_norm(b, link, &(norm_options){.x_norm = true}, err));
    PZ_CUDA_TRY(cudaMemcpyAsync(r->x_norm, b->x_norm, rows, cudaMemcpyDeviceToDevice, b->lab.stream), err);
    PZ_CUDA_TRY(cudaMemsetAsync(b->worst, 0, sizeof(double), b->lab.stream), err);
    PZ_TRY(pz_lab_reference(b->y, b->w + (size_t)link * b->w_stride, s->m, s->n, s->k, r->expected, (double *)b->worst,
                            b->lab.stream, err));
    PZ_CUDA_TRY(cudaMemcpyAsync(&squares, b->worst, sizeof squares, cudaMemcpyDeviceToHost, b->lab.stream), err);
    PZ_TRY(pz_lab_wait(&b->lab, err));
    r->rms = sqrt(squares / (double)elements);
    if (r->rms > 0 && isfinite(r->rms)) return PZ_OK;
    return pz_fail(err, PZ_E_VERIFY, "the norm's output makes a reference of root mean square %g", r->rms);
}

pz_status pz_bench_open(pz_bench *b, const pz_measure_spec *spec, pz_error *err) {
    *b = (pz_bench){.spec = spec};
    PZ_TRY(pz_lab_open(&b->lab, spec->device, err));
    b->links = count_links(b);
    pz_device_gpu(b->lab.product, b->lab.sm, b->lab.units, &b->device);
    PZ_TRY(pz_tuned_open(&b->device, &b->tuned, err));
    pz_device_tune(&b->device, b->tuned);
    PZ_TRY(alloc_data(b, err));
    PZ_TRY(fill_data(b, err));
    for (int i = 0; i < PZ_BENCH_CHECKED && !spec->unchecked; i++)
        PZ_TRY(make_reference(b, &b->references[i], (b->links - 1) * i / (PZ_BENCH_CHECKED - 1), err));
    PZ_TRY(pz_lab_capture(&b->lab, b->links, plain_link, b, &b->plain, err));
    return pz_lab_calibrate(&b->lab, &b->plain, spec->sample_us, err);
}

void pz_bench_close(pz_bench *b) {
    pz_lab_chain_free(&b->plain);
    for (int i = 0; i < 2; i++) pz_rival_close(b->rivals[i]);
    pz_lab_close(&b->lab);
    pz_tuned_free(b->tuned);
}

pz_status pz_bench_rival(pz_bench *b, pz_accum accum, pz_rival **out, pz_error *err) {
    const pz_measure_spec *s = b->spec;
    if (accum == PZ_ACCUM_FIXED)
        return pz_fail(err, PZ_E_UNSUPPORTED, "cuBLASLt has no fixed accumulator; bf16 or f32 name its output");
    pz_rival **rival = &b->rivals[accum == PZ_ACCUM_F32];
    if (!*rival) PZ_TRY(pz_rival_open(&b->lab, s->m, s->n, s->k, elem_of(accum), rival, err));
    *out = *rival;
    return PZ_OK;
}

/* ---- entries ---- */
pz_status pz_bench_poison(pz_bench *b, pz_error *err) {
    return pz_cuda_check(cudaMemsetAsync(b->out, POISON, (size_t)b->links * b->y_stride, b->lab.stream),
                         "cudaMemsetAsync", err);
}

static double tolerance(const pz_bench_entry *e) {
    if (e->c->accum != PZ_ACCUM_BF16) return sum_error;
    return bf16_error * (1 + (e->used.family == PZ_GEMM_CUBLASLT ? RIVAL_SPLIT : e->used.split));
}

static pz_status compare_link(pz_bench_entry *e, const pz_bench_reference *r, pz_error *err) {
    pz_bench *b = e->bench;
    const pz_measure_spec *s = b->spec;
    unsigned long long worst;
    pz_matrix y = {.data = b->out + (size_t)r->link * b->y_stride,
                   .ld = s->n,
                   .elem = elem_of(e->c->accum),
                   .x_norm = r->x_norm,
                   .w_norm = b->w_norm + (size_t)r->link * (size_t)s->n};
    PZ_CUDA_TRY(cudaMemsetAsync(b->worst, 0, sizeof *b->worst, b->lab.stream), err);
    PZ_TRY(pz_lab_compare(&y, s->m, s->n, r->expected, b->worst, b->lab.stream, err));
    PZ_CUDA_TRY(cudaMemcpyAsync(&worst, b->worst, sizeof worst, cudaMemcpyDeviceToHost, b->lab.stream), err);
    PZ_TRY(pz_lab_wait(&b->lab, err));
    uint32_t bits = (uint32_t)(worst >> 32), index = (uint32_t)worst;
    float error;
    memcpy(&error, &bits, sizeof error);
    double relative = (double)error / r->rms;
    if (relative > e->max_error) e->max_error = relative;
    if (relative <= tolerance(e)) return PZ_OK;
    return pz_fail(err, PZ_E_VERIFY,
                   "wrong result: element [%u, %u] of link %d is off by %.3g of the root mean square, at most %.3g is "
                   "rounding",
                   index / (uint32_t)s->n, index % (uint32_t)s->n, r->link, relative, tolerance(e));
}

pz_status pz_bench_compare(pz_bench_entry *e, pz_error *err) {
    for (int i = 0; i < PZ_BENCH_CHECKED && !e->bench->spec->unchecked; i++)
        PZ_TRY(compare_link(e, &e->bench->references[i], err));
    return PZ_OK;
}

static pz_status alloc_workspace(pz_bench_entry *e, pz_error *err) {
    pz_gemm_args a = gemm_args(e, 0);
    size_t bytes;
    PZ_TRY(pz_cuda_gemm_workspace(&a, &bytes, err));
    if (bytes == 0) return PZ_OK;
    if (cudaMalloc(&e->workspace, bytes) != cudaSuccess) {
        cudaGetLastError();
        e->workspace = NULL;
        return pz_fail(err, PZ_E_NOMEM, "out of memory on the GPU: %zu bytes of workspace", bytes);
    }
    return pz_cuda_check(cudaMemsetAsync(e->workspace, 0, bytes, e->bench->lab.stream), "cudaMemsetAsync", err);
}

pz_status pz_bench_prepare(pz_bench *b, const pz_measure_case *c, const pz_gemm_config *used, pz_bench_entry *out,
                           pz_error *err) {
    *out = (pz_bench_entry){.bench = b, .c = c, .used = *used};
    if (used->family != PZ_GEMM_CUBLASLT) PZ_TRY(alloc_workspace(out, err));
    PZ_TRY(pz_lab_capture(&b->lab, b->links, entry_link, out, &out->chain, err));
    PZ_TRY(pz_bench_poison(b, err));
    for (int i = 0; i < 2; i++) PZ_TRY(pz_lab_replay(&b->lab, &out->chain, err));
    return pz_bench_compare(out, err);
}

void pz_bench_entry_free(pz_bench_entry *e) {
    pz_lab_chain_free(&e->chain);
    if (e->workspace) cudaFree(e->workspace);
    e->workspace = NULL;
}
