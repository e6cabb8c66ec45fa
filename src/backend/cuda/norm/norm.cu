/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm with residual add, x_norm and a rider. One block a row, then the rider's blocks. Threads and registers are
 * few enough for a block to live beside one of the GEMM before it, so that it is already there when that one ends. */
#include "backend/cuda/norm/norm.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/rows/row.cuh"

namespace {

struct norm_params {
    pz_matrix x, res, y, r;
    const float *w;
    float *x_norm;
    uint4 *zero;
    int64_t zero_words; /* of 16 bytes */
    float eps;
    int m, hidden, late;
};

enum { THREADS = 512, WARPS = THREADS / 32 };

/* Eight neighbouring elements as f32. */
template <int Elem> __device__ __forceinline__ void load8(float (&v)[8], const pz_matrix &a, int row, int col) {
    if constexpr (Elem == PZ_ELEM_BF16) {
        pz_unpack_bf16(pz_load16((const uint16_t *)a.data + row * a.ld + col), v);
    } else {
        const uint32_t *p = (const uint32_t *)a.data + row * a.ld + col;
        uint4 lo = pz_load16(p), hi = pz_load16(p + 4);
        const uint32_t u[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
        float x_norm = Elem == PZ_ELEM_FIXED ? pz_load_f32(a.x_norm + row) : 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = Elem == PZ_ELEM_FIXED ? pz_fixed_value((int)u[i], x_norm, __ldg(a.w_norm + col + i))
                                         : __uint_as_float(u[i]);
    }
}

/* Stores eight elements and leaves in v what was stored. */
template <bool F32> __device__ __forceinline__ void store8(float (&v)[8], const pz_matrix &a, int row, int col) {
    if constexpr (F32) {
        uint4 *p = (uint4 *)((float *)a.data + row * a.ld + col);
        p[0] = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
        p[1] = make_uint4(__float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]), __float_as_uint(v[7]));
        return;
    } else {
        *(uint4 *)((uint16_t *)a.data + row * a.ld + col) = pz_pack_bf16(v);
    }
}

/* Sum over the block, the same in every thread. `shared`: a place for each warp, used by one call. */
__device__ __forceinline__ float block_sum(float v, float *shared) {
#pragma unroll
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    v = shared[threadIdx.x & (WARPS - 1)];
#pragma unroll
    for (int d = WARPS / 2; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

/* The same in f64, for rows whose squares leave the range of f32. */
__device__ __noinline__ double block_sum_wide(double v, double *shared) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    v = shared[threadIdx.x & (WARPS - 1)];
    for (int d = WARPS / 2; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

/* Whether a sum of squares in f32 may have lost what it should hold; the same for all threads. */
__device__ __forceinline__ bool lost(float sum) {
    return !(sum > 0x1p-80f && sum < 0x1p120f);
}

/* Smallest power of two >= sqrt(sum), for sums that are not lost. `sum` lies below the true one by at
 * most 2^-18 of it: 16 rounded adds a thread, 10 of the tree. */
__device__ __forceinline__ float norm_up(float sum) {
    uint32_t bits = __float_as_uint(sqrtf(sum) * (1.0f + 0x1p-18f));
    return __uint_as_float((bits + 0x7fffffu) & 0xff800000u);
}

template <int NV> __device__ __forceinline__ double squares(const float (&v)[NV][8], int hidden) {
    double sum = 0;
    for (int i = 0; i < NV; i++)
        if ((int)(i * THREADS + threadIdx.x) * 8 < hidden) sum += pz_squares(v[i]);
    return sum;
}

__device__ __forceinline__ void ride(const norm_params &p, int blocks) {
    int64_t i = (int64_t)(blockIdx.x - p.m) * THREADS + threadIdx.x;
    for (; i < p.zero_words; i += (int64_t)blocks * THREADS) p.zero[i] = make_uint4(0, 0, 0, 0);
}

/* NV: vectors of eight a thread. XElem: of x; F32: res, r and y are f32, else bf16. */
template <int NV, int XElem, bool F32>
__global__ void __launch_bounds__(THREADS, NV <= 2 ? 4 : 2) norm(const norm_params p) {
    __shared__ float sums[2][WARPS];
    __shared__ double wide_sums[2][WARPS];
    const bool rides = (int)blockIdx.x >= p.m;
    if (!(rides && p.late)) pz_trigger();
    pz_wait();
    if (rides) {
        ride(p, gridDim.x - p.m);
        if (p.late) pz_trigger();
        return;
    }
    const int row = blockIdx.x;
    float v[NV][8], sum = 0;
#pragma unroll
    for (int i = 0; i < NV; i++) {
        int col = (i * THREADS + threadIdx.x) * 8;
        if (col < p.hidden) load8<XElem>(v[i], p.x, row, col);
    }
#pragma unroll
    for (int i = 0; i < NV; i++) {
        int col = (i * THREADS + threadIdx.x) * 8;
        if (col >= p.hidden) continue;
        if (p.res.data) {
            float res[8];
            load8<F32 ? PZ_ELEM_F32 : PZ_ELEM_BF16>(res, p.res, row, col);
#pragma unroll
            for (int e = 0; e < 8; e++) v[i][e] += res[e];
        }
        if (p.r.data) store8<F32>(v[i], p.r, row, col);
#pragma unroll
        for (int e = 0; e < 8; e++) sum += v[i][e] * v[i][e];
    }
    sum = block_sum(sum, sums[0]);
    float scale = 1.0f / sqrtf(sum / p.hidden + p.eps);
    if (lost(sum)) scale = (float)(1.0 / sqrt(block_sum_wide(squares(v, p.hidden), wide_sums[0]) / p.hidden + p.eps));
    sum = 0;
#pragma unroll
    for (int i = 0; i < NV; i++) {
        int col = (i * THREADS + threadIdx.x) * 8;
        if (col >= p.hidden) continue;
        const float4 w0 = __ldg((const float4 *)(p.w + col)), w1 = __ldg((const float4 *)(p.w + col) + 1);
        const float w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
        for (int e = 0; e < 8; e++) v[i][e] *= scale * w[e];
        store8<F32>(v[i], p.y, row, col);
#pragma unroll
        for (int e = 0; e < 8; e++) sum += v[i][e] * v[i][e];
    }
    if (!p.x_norm) return;
    sum = block_sum(sum, sums[1]);
    float up = norm_up(sum);
    if (lost(sum)) up = pz_norm_of_squares(block_sum_wide(squares(v, p.hidden), wide_sums[1]));
    if (threadIdx.x == 0) p.x_norm[row] = up;
}

typedef void (*norm_kernel)(const norm_params);
template <int NV, int XElem> norm_kernel choose(bool f32) {
    return f32 ? norm<NV, XElem, true> : norm<NV, XElem, false>;
}
template <int NV> norm_kernel choose(pz_elem x, bool f32) {
    return x == PZ_ELEM_F32    ? choose<NV, PZ_ELEM_F32>(f32)
           : x == PZ_ELEM_BF16 ? choose<NV, PZ_ELEM_BF16>(f32)
                               : choose<NV, PZ_ELEM_FIXED>(f32);
}

} // namespace

/* Blocks of the rider, after one a row: on SMs that have no row, as many as have something to store at once. */
static int rider_blocks(int m, size_t zero_bytes, int units) {
    size_t most = (zero_bytes + THREADS * 16 - 1) / (THREADS * 16);
    int idle = units - m % units;
    return most < (size_t)idle ? (int)most : idle;
}

static bool aligned(const pz_matrix *a, int bytes) {
    return !a->data || (((uintptr_t)a->data & 15) == 0 && a->ld * bytes % 16 == 0);
}

static int elem_bytes(pz_elem e) {
    return e == PZ_ELEM_BF16 ? 2 : 4;
}

static pz_status check(const pz_norm_args *a, pz_error *err) {
    const pz_matrix *of_y[] = {&a->res, &a->r};
    if (!a->x.data || !a->y.data || !a->w) return pz_fail(err, PZ_E_INVAL, "rms_norm: x, y and w must not be NULL");
    if (a->m < 1 || a->hidden < 8 || a->hidden % 8 || a->hidden > 32 * THREADS)
        return pz_fail(err, PZ_E_INVAL, "rms_norm: m %d, hidden %d: m at least 1, hidden a multiple of 8 up to %d",
                       a->m, a->hidden, 32 * THREADS);
    if (a->y.elem == PZ_ELEM_FIXED)
        return pz_fail(err, PZ_E_UNSUPPORTED, "rms_norm: y is fixed; bf16 and f32 are written");
    for (int i = 0; i < 2; i++)
        if (of_y[i]->data && of_y[i]->elem != a->y.elem)
            return pz_fail(err, PZ_E_UNSUPPORTED, "rms_norm: res, r and y must have the same element");
    if (a->x.elem == PZ_ELEM_FIXED && (!a->x.x_norm || !a->x.w_norm))
        return pz_fail(err, PZ_E_INVAL, "rms_norm: x is fixed and comes without x_norm or w_norm");
    if (!aligned(&a->x, elem_bytes(a->x.elem)) || !aligned(&a->res, elem_bytes(a->y.elem)) ||
        !aligned(&a->y, elem_bytes(a->y.elem)) || !aligned(&a->r, elem_bytes(a->y.elem)) || ((uintptr_t)a->w & 15))
        return pz_fail(err, PZ_E_INVAL, "rms_norm: rows must begin at multiples of 16 bytes");
    if (a->zero && (((uintptr_t)a->zero & 15) || a->zero_bytes % 16))
        return pz_fail(err, PZ_E_INVAL, "rms_norm: the rider's memory must begin and end at multiples of 16 bytes");
    return PZ_OK;
}

extern "C" pz_status pz_cuda_rms_norm(const pz_norm_args *a, pz_error *err) {
    PZ_TRY(check(a, err));
    int device, units;
    PZ_CUDA_TRY(cudaGetDevice(&device), err);
    PZ_CUDA_TRY(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device), err);
    norm_params p = {};
    p.x = a->x, p.res = a->res, p.y = a->y, p.r = a->r, p.w = a->w, p.x_norm = a->x_norm;
    p.zero = (uint4 *)a->zero, p.zero_words = a->zero ? (int64_t)(a->zero_bytes / 16) : 0;
    p.eps = a->eps, p.m = a->m, p.hidden = a->hidden, p.late = a->late;
    bool f32 = a->y.elem == PZ_ELEM_F32;
    int vectors = (a->hidden / 8 + THREADS - 1) / THREADS;
    norm_kernel kernel = vectors == 1   ? choose<1>(a->x.elem, f32)
                         : vectors == 2 ? choose<2>(a->x.elem, f32)
                                        : choose<4>(a->x.elem, f32);
    int rider = p.zero_words ? rider_blocks(a->m, a->zero_bytes, units) : 0;
    return pz_cuda_launch(kernel, dim3(a->m + rider), dim3(THREADS), 0, (cudaStream_t)a->stream, a->dependent != 0,
                          "rms_norm", err, p);
}
