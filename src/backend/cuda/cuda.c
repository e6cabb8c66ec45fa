/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend: opening, memory, reading results. */
#include <stdio.h>

#include "backend/cuda/comm/group.h"
#include "backend/cuda/rows/argmax.h"
#include "backend/cuda/state.h"
#include "base/fixed.h"

pz_status pz_cuda_check(cudaError_t code, const char *what, pz_error *err) {
    if (code == cudaSuccess) return PZ_OK;
    cudaGetLastError(); /* so that the next call does not report this one's failure */
    return pz_fail(err, code == cudaErrorMemoryAllocation ? PZ_E_NOMEM : PZ_E_INTERNAL, "%s: %s (%s)", what,
                   cudaGetErrorName(code), cudaGetErrorString(code));
}

/* ---- devices ---- */
/* Whether code for one architecture ("80", "90a") runs on compute capability `sm` (90 for 9.0): with a suffix on this
 * one alone, else on later ones of the same generation too. */
static bool runs_on(const char *arch, int sm) {
    char *suffix;
    long built = strtol(arch, &suffix, 10);
    if (*suffix == 'a') return sm == built;
    return sm >= built && sm / 10 == built / 10;
}

static bool is_built_for(int sm) {
    const char *list = PZ_CUDA_ARCHITECTURES;
    for (const char *arch = list; arch; arch = strchr(arch, ',')) {
        if (*arch == ',') arch++;
        if (runs_on(arch, sm)) return true;
    }
    return false;
}

static pz_status count_devices(int *n, pz_error *err) {
    cudaError_t code = cudaGetDeviceCount(n);
    if (code == cudaSuccess && *n > 0) return PZ_OK;
    cudaGetLastError();
    int driver = 0;
    if (code == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        return pz_fail(err, PZ_E_UNSUPPORTED, "no GPU: NVIDIA's driver is not installed here");
    return pz_fail(err, PZ_E_UNSUPPORTED, "no GPU: %s",
                   code == cudaSuccess ? "the driver shows no device" : cudaGetErrorString(code));
}

static pz_status compute_capability(int device, int *sm, pz_error *err) {
    int major, minor;
    PZ_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), err);
    PZ_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), err);
    *sm = major * 10 + minor;
    return PZ_OK;
}

static pz_status refuse_architecture(int device, int sm, pz_error *err) {
    return pz_fail(err, PZ_E_UNSUPPORTED,
                   "GPU %d is of architecture sm_%d; this build has kernels for %s (PZ_CUDA_ARCHITECTURES)", device, sm,
                   PZ_CUDA_ARCHITECTURES);
}

pz_status pz_cuda_probe(pz_error *err) {
    int n, sm = 0;
    PZ_TRY(count_devices(&n, err));
    for (int i = 0; i < n; i++) {
        PZ_TRY(compute_capability(i, &sm, err));
        if (is_built_for(sm)) return PZ_OK;
    }
    return refuse_architecture(n - 1, sm, err);
}

/* ---- memory ---- */
pz_status pz_cuda_enter(const pz_backend *b, pz_error *err) {
    return pz_cuda_check(cudaSetDevice(b->device), "cudaSetDevice", err);
}

pz_status pz_cuda_pinned_grow(pz_cuda_pinned *p, size_t bytes, pz_error *err) {
    if (bytes <= p->bytes) return PZ_OK;
    void *data = NULL;
    if (cudaMallocHost(&data, bytes) != cudaSuccess) {
        cudaGetLastError();
        return pz_fail(err, PZ_E_NOMEM, "out of memory: %zu bytes of page-locked host memory", bytes);
    }
    memset(data, 0, bytes);
    if (p->data) memcpy(data, p->data, p->bytes);
    pz_cuda_pinned_free(p);
    *p = (pz_cuda_pinned){data, bytes};
    return PZ_OK;
}

void pz_cuda_pinned_free(pz_cuda_pinned *p) {
    if (p->data) cudaFreeHost(p->data);
    *p = (pz_cuda_pinned){0};
}

pz_status pz_cuda_memory(pz_backend *b, const char *what, int64_t bytes, pz_cuda_block *out, pz_error *err) {
    void *data = NULL;
    cudaError_t code = bytes < 0 ? cudaErrorMemoryAllocation : cudaMalloc(&data, bytes ? (size_t)bytes : 1);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return pz_fail(err, PZ_E_NOMEM, "out of GPU memory: %lld bytes for %s; %lld of %lld are this engine's",
                       (long long)bytes, what, (long long)b->used, (long long)b->total);
    }
    PZ_TRY(pz_cuda_check(code, "cudaMalloc", err));
    pz_status st = pz_cuda_check(cudaMemsetAsync(data, 0, (size_t)bytes, b->stream), "cudaMemsetAsync", err);
    if (st != PZ_OK) {
        cudaFree(data);
        return st;
    }
    *out = (pz_cuda_block){data, bytes};
    b->used += bytes;
    return PZ_OK;
}

void pz_cuda_memory_free(pz_backend *b, pz_cuda_block *block) {
    if (block->data) {
        cudaFree(block->data);
        b->used -= block->bytes;
    }
    *block = (pz_cuda_block){0};
}

static pz_status cuda_alloc(pz_backend *b, int64_t bytes, unsigned char **out, pz_error *err) {
    pz_cuda_block block;
    PZ_TRY(pz_cuda_enter(b, err));
    PZ_TRY(pz_cuda_memory(b, "activations or the latent cache", bytes, &block, err));
    pz_status st = pz_push(&b->blocks, block, err);
    if (st != PZ_OK)
        pz_cuda_memory_free(b, &block);
    else
        *out = block.data;
    return st;
}

/* As a rank's kernels may wait for others for ever, through NCCL. */
static void wait_for_stream(pz_backend *b) {
    if (!b->group || pz_cuda_group_wait(b, NULL) != PZ_OK) cudaStreamSynchronize(b->stream);
}

static void cuda_release(pz_backend *b, unsigned char *p) {
    if (!p) return;
    pz_cuda_enter(b, NULL);
    wait_for_stream(b);
    for (int i = 0; i < b->blocks.n; i++) {
        if (b->blocks.at[i].data != p) continue;
        pz_cuda_memory_free(b, &b->blocks.at[i]);
        b->blocks.at[i] = b->blocks.at[--b->blocks.n];
        return;
    }
}

static pz_status cuda_copy(pz_backend *b, void *dst, const void *src, int64_t bytes, pz_copy kind, pz_error *err) {
    static const enum cudaMemcpyKind kinds[] = {[PZ_COPY_TO] = cudaMemcpyHostToDevice,
                                                [PZ_COPY_WITHIN] = cudaMemcpyDeviceToDevice,
                                                [PZ_COPY_FROM] = cudaMemcpyDeviceToHost};
    PZ_TRY(pz_cuda_enter(b, err));
    if (b->group) PZ_TRY(pz_cuda_group_wait(b, err));
    PZ_CUDA_TRY(cudaMemcpyAsync(dst, src, (size_t)bytes, kinds[kind], b->stream), err);
    return pz_cuda_check(cudaStreamSynchronize(b->stream), "copy", err);
}

/* ---- open, close, small questions ---- */
static void cuda_close(pz_backend *b) {
    if (!b) return;
    pz_cuda_enter(b, NULL); /* what follows is right without it too */
    if (b->stream) wait_for_stream(b);
    pz_cuda_group_close(b);
    for (int i = 0; i < b->plans.n; i++) pz_cuda_plan_free(b, b->plans.at[i]);
    for (int i = 0; i < b->weights.n; i++) pz_cuda_weight_free(b, &b->weights.at[i]);
    for (int i = 0; i < b->blocks.n; i++) pz_cuda_memory_free(b, &b->blocks.at[i]);
    pz_cuda_block *blocks[] = {&b->table_memory, &b->cache, &b->snapshot, &b->counts};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) pz_cuda_memory_free(b, blocks[i]);
    pz_cuda_pinned *pinned[] = {&b->inputs, &b->table, &b->descriptor, &b->results};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++) pz_cuda_pinned_free(pinned[i]);
    if (b->uploaded) cudaEventDestroy(b->uploaded);
    if (b->stream) cudaStreamDestroy(b->stream);
    cudaGetLastError();
    pz_vec_free(&b->plans);
    pz_vec_free(&b->weights);
    pz_vec_free(&b->blocks);
    pz_free(b);
}

static pz_status look_at_device(pz_backend *b, pz_error *err) {
    struct cudaDeviceProp prop;
    PZ_CUDA_TRY(cudaGetDeviceProperties(&prop, b->device), err);
    b->units = prop.multiProcessorCount;
    b->total = (int64_t)prop.totalGlobalMem;
    snprintf(b->product, sizeof b->product, "%.63s", prop.name);
    snprintf(b->isa, sizeof b->isa, "sm_%d", b->sm);
    return PZ_OK;
}

static pz_status make_objects(pz_backend *b, pz_error *err) {
    PZ_TRY(pz_cuda_enter(b, err));
    PZ_TRY(look_at_device(b, err));
    PZ_CUDA_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), err);
    PZ_CUDA_TRY(cudaEventCreateWithFlags(&b->uploaded, cudaEventDisableTiming), err);
    PZ_TRY(pz_cuda_memory(b, "the cache descriptor", sizeof(pz_cuda_cache), &b->cache, err));
    return pz_cuda_pinned_grow(&b->descriptor, sizeof(pz_cuda_cache), err);
}

static pz_status cuda_open(const pz_backend_options *opts, pz_backend **out, pz_error *err) {
    static const pz_backend_options defaults;
    if (!opts) opts = &defaults;
    int n, sm, device = opts->device;
    PZ_TRY(count_devices(&n, err));
    if (opts->share_device && device >= n) device %= n;
    if (device < 0 || device >= n)
        return pz_fail(err, PZ_E_UNSUPPORTED, "no GPU %d: there are %d, numbered from 0", device, n);
    PZ_TRY(compute_capability(device, &sm, err));
    if (!is_built_for(sm)) return refuse_architecture(device, sm, err);
    pz_backend *b = pz_calloc(1, sizeof *b);
    if (!b) return PZ_NOMEM(err);
    b->device = device;
    b->sm = sm;
    b->check = opts->check;
    b->ranges = opts->ranges;
    b->eager = opts->eager || opts->ranges;
    pz_status st = make_objects(b, err);
    if (st == PZ_OK) st = pz_cuda_group_open(b, opts, err);
    if (st != PZ_OK) {
        cuda_close(b);
        return st;
    }
    *out = b;
    return PZ_OK;
}

static void cuda_device(const pz_backend *b, pz_device *out) {
    pz_device_gpu(b->product, b->sm, b->units, out);
    out->nccl = pz_cuda_group_gathers(b);
}

static const char *cuda_isa(const pz_backend *b) {
    return b->isa;
}

static const char *cuda_product(const pz_backend *b) {
    return b->product;
}

static void cuda_memory(const pz_backend *b, int64_t *used, int64_t *total) {
    *used = b->used;
    *total = b->total;
}

static int64_t cuda_weight_bytes(const pz_backend *b) {
    return b->weight_bytes;
}

static void cuda_forget(pz_backend *b, const pz_plan *plan) {
    pz_cuda_enter(b, NULL);
    for (int i = 0; i < b->plans.n; i++) {
        if (b->plans.at[i]->plan != plan) continue;
        wait_for_stream(b);
        pz_cuda_plan_free(b, b->plans.at[i]);
        b->plans.at[i] = b->plans.at[--b->plans.n];
        return;
    }
}

/* ---- reading ---- */
/* What the host needs to turn stored elements into f32. */
typedef struct reading {
    pz_matrix m; /* data on the device */
    int64_t cols, bytes;
    float *x_norm, *w_norm; /* FIXED: on the host */
} reading;

/* Queues the copies of the rows and of the scales; everything lies in b->results afterwards. */
static pz_status queue_rows(pz_backend *b, reading *v, int m, const int *rows, int n, pz_error *err) {
    bool fixed = v->m.elem == PZ_ELEM_FIXED;
    size_t row = (size_t)(v->cols * v->bytes), norms = fixed ? (size_t)(m + v->cols) * sizeof(float) : 0, total;
    if (!pz_mul_ok(row, (size_t)n, &total) || !pz_add_ok(total, norms + 16, &total)) return PZ_NOMEM(err);
    PZ_TRY(pz_cuda_pinned_grow(&b->results, total, err));
    unsigned char *dst = b->results.data;
    const unsigned char *src = v->m.data;
    for (int i = 0, run; i < n; i += run) { /* rows that follow each other in one copy */
        for (run = 1; i + run < n && rows[i + run] == rows[i] + run; run++) {
        }
        PZ_CUDA_TRY(cudaMemcpy2DAsync(dst + (size_t)i * row, row, src + rows[i] * v->m.ld * v->bytes,
                                      (size_t)(v->m.ld * v->bytes), row, (size_t)run, cudaMemcpyDeviceToHost,
                                      b->stream),
                    err);
    }
    if (!fixed) return PZ_OK;
    v->x_norm = (float *)(void *)(dst + pz_align_up(row * (size_t)n, 16));
    v->w_norm = v->x_norm + m;
    PZ_CUDA_TRY(cudaMemcpyAsync(v->x_norm, v->m.x_norm, (size_t)m * sizeof(float), cudaMemcpyDeviceToHost, b->stream),
                err);
    PZ_CUDA_TRY(
        cudaMemcpyAsync(v->w_norm, v->m.w_norm, (size_t)v->cols * sizeof(float), cudaMemcpyDeviceToHost, b->stream),
        err);
    return PZ_OK;
}

static void convert_row(const reading *v, const unsigned char *src, int row, float *dst) {
    const uint16_t *half = (const uint16_t *)(const void *)src;
    const int32_t *sum = (const int32_t *)(const void *)src;
    if (v->m.elem == PZ_ELEM_F32) {
        memcpy(dst, src, (size_t)v->cols * sizeof *dst);
        return;
    }
    for (int64_t c = 0; c < v->cols; c++)
        dst[c] =
            v->m.elem == PZ_ELEM_FIXED ? pz_fixed_value(sum[c], v->x_norm[row], v->w_norm[c]) : pz_bf16_to_f32(half[c]);
}

pz_status pz_cuda_check_reading(const pz_backend *b, const pz_plan *plan, int place, const int *rows, int n,
                                pz_error *err) {
    const pz_place *p = place >= 0 && place < plan->places.n ? &plan->places.at[place] : NULL;
    const pz_cuda_weight *w = p && p->scale_weight ? pz_cuda_weight_of(b, p->scale_weight) : NULL;
    return pz_backend_check_reading("cuda", plan, place, w && w->w_norm, rows, n, err);
}

static pz_status cuda_read(pz_backend *b, const pz_plan *plan, const pz_run_args *args, int place, const int *rows,
                           int n, float *dst, pz_error *err) {
    PZ_TRY(pz_cuda_check_reading(b, plan, place, rows, n, err));
    PZ_TRY(pz_cuda_enter(b, err));
    pz_cuda_run r = {.b = b, .plan = plan, .arena = args->arena, .m = plan->m};
    const pz_place *p = &plan->places.at[place];
    /* Memory is made when no kernel of this rank waits for another's. */
    if (b->group) PZ_TRY(pz_cuda_group_wait(b, err));
    reading v = {.m = pz_cuda_matrix(&r, place), .cols = p->type.dim[1], .bytes = pz_dtype_bits(p->type.dt) / 8};
    PZ_TRY(queue_rows(b, &v, plan->m, rows, n, err));
    PZ_TRY(pz_cuda_check(cudaStreamSynchronize(b->stream), "reading results", err));
    for (int i = 0; i < n; i++)
        convert_row(&v, (unsigned char *)b->results.data + i * v.cols * v.bytes, rows[i], dst + i * v.cols);
    return PZ_OK;
}

const pz_backend_api pz_cuda_backend = {
    .name = "cuda",
    .max_ranks = PZ_MAX_RANKS,
    .open = cuda_open,
    .close = cuda_close,
    .device = cuda_device,
    .isa = cuda_isa,
    .product = cuda_product,
    .memory = cuda_memory,
    .load = pz_cuda_load,
    .weight_bytes = cuda_weight_bytes,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .copy = cuda_copy,
    .run = pz_cuda_run_plan,
    .forget = cuda_forget,
    .read = cuda_read,
    .argmax = pz_cuda_argmax,
};
