/* SPDX-License-Identifier: Apache-2.0 */
/* The door of the GEMM kernels: checks, choice of family, workspace; and the small kernels around them. */
#include "backend/cuda/gemm/output.cuh"
#include "backend/cuda/launch.cuh"

namespace {

enum { REDUCE_THREADS = 256 };

/* REDUCE: adds the parts of each element in their order. */
template <typename Sum> __global__ void __launch_bounds__(REDUCE_THREADS) reduce(const pz_gemm_output o) {
    pz_trigger();
    pz_wait();
    int64_t i = (int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x, total = (int64_t)o.m * o.n;
    if (i >= total) return;
    const Sum *p = (const Sum *)o.partial + i;
    Sum sum = 0;
    for (int s = 0; s < o.split; s++) sum += pz_load_partial(p + s * total);
    pz_store_global(o, i / o.n * o.ldy + i % o.n, sum);
}

/* w_norm of base/fixed.h; one warp a row, sums in double as there. */
__global__ void weight_norms(const uint16_t *w, int64_t ldw, int n, int k, float *w_norm) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31;
    if (row >= n) return;
    double sum = 0;
    for (int i = lane; i < k; i += 32) {
        double v = __uint_as_float((uint32_t)w[row * ldw + i] << 16);
        sum += v * v;
    }
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane) return;
    w_norm[row] = pz_norm_of_squares(sum);
}

struct family {
    pz_status (*plan)(pz_gemm_launch *, pz_error *);
    pz_status (*run)(const pz_gemm_launch *, pz_error *);
};
const family families[] = {
    {NULL, NULL},                              /* DEFAULT */
    {pz_gemm_skinny_plan, pz_gemm_skinny_run}, /* SKINNY */
    {pz_gemm_skinny_plan, pz_gemm_skinny_run}, /* GROUP */
    {pz_gemm_wide_plan, pz_gemm_wide_run},
    {pz_gemm_cublaslt_plan, pz_gemm_cublaslt_run},
};

} // namespace

extern "C" pz_status pz_gemm_need_wgmma(const char *family, pz_error *err) {
    int major, minor;
    PZ_TRY(pz_cuda_attribute(cudaDevAttrComputeCapabilityMajor, &major, err));
    PZ_TRY(pz_cuda_attribute(cudaDevAttrComputeCapabilityMinor, &minor, err));
    if (major == 9 && minor == 0) return PZ_OK;
    return pz_fail(err, PZ_E_UNSUPPORTED,
                   "%s gemm: compute capability %d.%d; wgmma needs 9.0, the skinny family does not", family, major,
                   minor);
}

static pz_status check(const pz_gemm_args *a, pz_error *err) {
    if (a->m < 1 || a->n < 1 || a->k < 16 || a->k % 16)
        return pz_fail(err, PZ_E_INVAL, "gemm: m %d, n %d, k %d: m and n at least 1, k a multiple of 16", a->m, a->n,
                       a->k);
    if (a->ldx < a->k || a->ldw < a->k || a->ldx % 8 || a->ldw % 8 || a->ldy < a->n)
        return pz_fail(err, PZ_E_INVAL,
                       "gemm: ldx %lld, ldw %lld, ldy %lld: at least k, k and n, and the first two multiples of 8",
                       (long long)a->ldx, (long long)a->ldw, (long long)a->ldy);
    if ((unsigned)a->accum > PZ_ACCUM_BF16 || (unsigned)a->strategy > PZ_ZERO_TICKET)
        return pz_fail(err, PZ_E_INVAL, "gemm: accumulator %d, strategy %d: not a value of its enum", (int)a->accum,
                       (int)a->strategy);
    if ((unsigned)a->config.family >= sizeof families / sizeof *families)
        return pz_fail(err, PZ_E_INVAL, "gemm: family %d is not a value of pz_gemm_family", a->config.family);
    return PZ_OK;
}

/* Checks everything but pointers, chooses, and lays the workspace out: counters, then partial sums. */
static pz_status resolve(const pz_gemm_args *a, pz_gemm_launch *l, pz_error *err) {
    PZ_TRY(check(a, err));
    l->args = *a;
    l->config = a->config;
    if (l->config.family == PZ_GEMM_DEFAULT) PZ_TRY(pz_gemm_geometry(a, &l->config, err));
    if (a->strategy == PZ_ZERO_NONE && l->config.split != 1)
        return pz_fail(err, PZ_E_INVAL, "gemm: strategy none with split %d: the output of an unsplit GEMM is stored",
                       l->config.split);
    PZ_TRY(families[l->config.family].plan(l, err));
    pz_gemm_output *o = &l->out;
    *o = pz_gemm_output{};
    o->y = a->y, o->ldy = a->ldy, o->x_norm = a->x_norm, o->w_norm = a->w_norm, o->m = a->m, o->n = a->n;
    o->strategy = a->strategy, o->bf16 = a->accum == PZ_ACCUM_BF16, o->split = l->config.split;
    if (l->config.family == PZ_GEMM_CUBLASLT) return PZ_OK;
    size_t counters = a->strategy == PZ_ZERO_SELF || a->strategy == PZ_ZERO_TICKET
                          ? pz_align_up((size_t)l->tiles_n * l->tiles_m * 3 * sizeof(uint32_t), 256)
                          : 0;
    size_t partial =
        a->strategy == PZ_ZERO_REDUCE || a->strategy == PZ_ZERO_TICKET ? (size_t)l->config.split * a->m * a->n * 4 : 0;
    o->counters = (uint32_t *)a->workspace;
    o->partial = a->workspace ? (char *)a->workspace + counters : NULL;
    l->workspace_bytes = counters + partial;
    return PZ_OK;
}

extern "C" pz_status pz_cuda_gemm_workspace(const pz_gemm_args *a, size_t *bytes, pz_error *err) {
    pz_gemm_launch l = {};
    PZ_TRY(resolve(a, &l, err));
    *bytes = l.workspace_bytes;
    return PZ_OK;
}

static pz_status check_pointers(const pz_gemm_launch *l, pz_error *err) {
    const pz_gemm_args *a = &l->args;
    if (!a->x || !a->w || !a->y) return pz_fail(err, PZ_E_INVAL, "gemm: x, w and y must not be NULL");
    if (((uintptr_t)a->x & 15) || ((uintptr_t)a->w & 15) || ((uintptr_t)a->y & 3))
        return pz_fail(err, PZ_E_INVAL, "gemm: x and w must be aligned to 16 bytes, y to 4");
    if (a->accum == PZ_ACCUM_FIXED && (!a->x_norm || !a->w_norm))
        return pz_fail(err, PZ_E_INVAL, "gemm: the fixed accumulator needs x_norm and w_norm");
    if (l->workspace_bytes && !a->workspace)
        return pz_fail(err, PZ_E_INVAL, "gemm: strategy needs a workspace of %zu bytes (pz_gemm_workspace)",
                       l->workspace_bytes);
    return PZ_OK;
}

extern "C" pz_status pz_cuda_gemm(const pz_gemm_args *a, pz_error *err) {
    pz_gemm_launch l = {};
    PZ_TRY(resolve(a, &l, err));
    PZ_TRY(check_pointers(&l, err));
    if (a->strategy == PZ_ZERO_MEMSET) {
        size_t elem = a->accum == PZ_ACCUM_BF16 ? 2 : 4;
        PZ_CUDA_TRY(cudaMemset2DAsync(a->y, a->ldy * elem, 0, a->n * elem, a->m, (cudaStream_t)a->stream), err);
        l.args.dependent = 0;
    }
    PZ_TRY(families[l.config.family].run(&l, err));
    return a->strategy == PZ_ZERO_REDUCE ? pz_gemm_reduce_run(&l, err) : PZ_OK;
}

extern "C" pz_status pz_gemm_reduce_run(const pz_gemm_launch *l, pz_error *err) {
    int64_t total = (int64_t)l->args.m * l->args.n;
    dim3 grid((unsigned)((total + REDUCE_THREADS - 1) / REDUCE_THREADS));
    return pz_cuda_launch(l->args.accum == PZ_ACCUM_FIXED ? reduce<int> : reduce<float>, grid, dim3(REDUCE_THREADS), 0,
                          (cudaStream_t)l->args.stream, l->args.dependent != 0, "reduce", err, l->out);
}

extern "C" pz_status pz_cuda_weight_norms(const void *w, int64_t ldw, int n, int k, float *w_norm, void *stream,
                                          pz_error *err) {
    if (!w || !w_norm || n < 1 || k < 1 || ldw < k)
        return pz_fail(err, PZ_E_INVAL, "weight_norms: n %d, k %d, ldw %lld: positive, ldw at least k, no NULL", n, k,
                       (long long)ldw);
    return pz_cuda_launch(weight_norms, dim3((n + 7) / 8), dim3(256), 0, (cudaStream_t)stream, false, "weight_norms",
                          err, (const uint16_t *)w, ldw, n, k, w_norm);
}
