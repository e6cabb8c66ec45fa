/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm with residual add, x_norm and a rider. One block a row, then the rider's blocks. Threads and registers are
 * few enough for a block to live beside one of the GEMM before it, so that it is already there when that one ends. */
#include "backend/cuda/norm/norm.cuh"

#include "backend/cuda/norm/norm.h"

namespace {

enum { THREADS = 512, STRIDE = THREADS * 8 };

/* A row on one block of T threads. */
template <int T> struct block_row {
    /* First of the eight columns of a thread's vector i. */
    __device__ __forceinline__ int column(int i) const {
        return (threadIdx.x + i * T) * 8;
    }
    /* Whether this thread writes what a row has one of. */
    __device__ __forceinline__ bool leads() const {
        return threadIdx.x == 0;
    }
    /* Sums over the row, the same in every thread, from those of each vector. */
    template <int NV> __device__ __forceinline__ float2 sums(const float (&a)[NV], const float (&b)[NV]) const {
        __shared__ __align__(16) float part[2][T / 32];
        float of_a = 0, of_b = 0;
#pragma unroll
        for (int i = 0; i < NV; i++) of_a += a[i], of_b += b[i];
        const float v = half_sums(of_a, of_b);
        if ((threadIdx.x & 15) == 0) part[threadIdx.x >> 4 & 1][threadIdx.x >> 5] = v;
        __syncthreads();
        return add_warps(part);
    }
    template <int NV> __device__ __forceinline__ double sum(const double (&v)[NV]) const {
        double all = 0;
#pragma unroll
        for (int i = 0; i < NV; i++) all += v[i];
        return pz_block_sum(all);
    }
};

/* r, y and x_norm of a row from source(v, i, col), which puts x + res at columns [col, col + 8) into v. One sum over
 * the row gives the scale and x_norm. */
template <int NV, int XElem, int Elem, typename Source>
__device__ __forceinline__ void norm_row(const norm_params &p, int row, const Source &source) {
    const block_row<THREADS> at;
    float v[NV][8], squares[NV], products[NV];
#pragma unroll
    for (int i = 0; i < NV; i++) {
        const int col = at.column(i);
        squares[i] = products[i] = 0;
        if (col >= p.hidden) continue;
        float w[8];
        source(v[i], i, col);
        if (p.r.data) store8<Elem>(v[i], p.r, row, col);
        weights8(w, p.w + col);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            squares[i] += v[i][e] * v[i][e];
            v[i][e] *= w[e];
            products[i] += v[i][e] * v[i][e];
        }
    }
    const float2 sum = at.sums(squares, products);
    const float scale = rsqrtf(sum.x * p.share + p.eps);
    float up = 0;
    if (is_narrow(sum, scale)) {
#pragma unroll
        for (int i = 0; i < NV; i++) {
            if (at.column(i) >= p.hidden) continue;
#pragma unroll
            for (int e = 0; e < 8; e++) v[i][e] *= scale;
            store8<Elem>(v[i], p.y, row, at.column(i));
        }
        up = norm_before<Elem>(sum.y, scale);
    } else {
        wide_row<NV, XElem, Elem>(p, row, at);
    }
    if (!p.x_norm) return;
    if (up == 0) up = norm_after<NV, Elem>(p, row, at);
    if (at.leads()) p.x_norm[row] = up;
}

/* NV: vectors of eight a thread. XElem: of x; Elem: of res, r and y. Everything is loaded before anything is used, and
 * one pass over the block gives the scale and x_norm. */
template <int NV, int XElem, int Elem>
__global__ void __launch_bounds__(THREADS, NV <= 2 && Elem == PZ_ELEM_BF16 ? 4 : 2)
    norm(const __grid_constant__ norm_params p) {
    const bool rides = (int)blockIdx.x >= p.m;
    if (!(rides && p.late)) pz_trigger();
    if (rides) {
        pz_wait();
        ride(p, p.m);
        if (p.late) pz_trigger();
        return;
    }
    const int row = blockIdx.x, first = threadIdx.x * 8;
#pragma unroll
    for (int i = 0; i < NV; i++) {
        if (first + i * STRIDE >= p.hidden) continue;
        fetch(p.w + first + i * STRIDE);
        if (XElem == PZ_ELEM_FIXED) fetch(p.x.w_norm + first + i * STRIDE);
    }
    pz_wait();
    /* Beyond the row the last vector is loaded and not used: branches would cost registers. */
    words8<XElem> x[NV];
    words8<Elem> res[NV];
#pragma unroll
    for (int i = 0; i < NV; i++) x[i] = load8<XElem>(p.x, row, min(first + i * STRIDE, p.hidden - 8));
    if (p.res.data)
#pragma unroll
        for (int i = 0; i < NV; i++) res[i] = load8<Elem>(p.res, row, min(first + i * STRIDE, p.hidden - 8));
    const float of_x = row_norm<XElem>(p.x, row);
    const auto sum = [&](float(&v)[8], int i, int col) {
        value8<XElem>(v, x[i], p.x, of_x, col);
        if (!p.res.data) return;
        float add[8];
        value8<Elem>(add, res[i], p.res, 0, col);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] += add[e];
    };
    norm_row<NV, XElem, Elem>(p, row, sum);
}

typedef void (*norm_kernel)(const norm_params);
template <int NV, int XElem> norm_kernel choose(bool f32) {
    return f32 ? norm<NV, XElem, PZ_ELEM_F32> : norm<NV, XElem, PZ_ELEM_BF16>;
}
template <int NV> norm_kernel choose(pz_elem x, bool f32) {
    return x == PZ_ELEM_F32    ? choose<NV, PZ_ELEM_F32>(f32)
           : x == PZ_ELEM_BF16 ? choose<NV, PZ_ELEM_BF16>(f32)
                               : choose<NV, PZ_ELEM_FIXED>(f32);
}

} // namespace

static bool aligned(const pz_matrix *a, int bytes) {
    return !a->data || (((uintptr_t)a->data & 15) == 0 && a->ld * bytes % 16 == 0);
}

extern "C" pz_status pz_cuda_norm_check(const pz_norm_args *a, pz_error *err) {
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
    if (!aligned(&a->x, pz_elem_bytes(a->x.elem)) || !aligned(&a->res, pz_elem_bytes(a->y.elem)) ||
        !aligned(&a->y, pz_elem_bytes(a->y.elem)) || !aligned(&a->r, pz_elem_bytes(a->y.elem)) ||
        ((uintptr_t)a->w & 15))
        return pz_fail(err, PZ_E_INVAL, "rms_norm: rows must begin at multiples of 16 bytes");
    if (a->zero && (((uintptr_t)a->zero & 15) || a->zero_bytes % 16))
        return pz_fail(err, PZ_E_INVAL, "rms_norm: the rider's memory must begin and end at multiples of 16 bytes");
    return PZ_OK;
}

extern "C" pz_status pz_cuda_rms_norm(const pz_norm_args *a, pz_error *err) {
    PZ_TRY(pz_cuda_norm_check(a, err));
    int units;
    PZ_TRY(pz_cuda_attribute(cudaDevAttrMultiProcessorCount, &units, err));
    norm_params p = {};
    p.x = a->x, p.res = a->res, p.y = a->y, p.r = a->r, p.w = a->w, p.x_norm = a->x_norm;
    p.zero = (uint4 *)a->zero, p.zero_words = a->zero ? (int64_t)(a->zero_bytes / 16) : 0;
    p.eps = a->eps, p.share = 1.0f / (float)a->hidden, p.m = a->m, p.hidden = a->hidden, p.late = a->late;
    bool f32 = a->y.elem == PZ_ELEM_F32;
    int vectors = (a->hidden / 8 + THREADS - 1) / THREADS;
    norm_kernel kernel = vectors == 1   ? choose<1>(a->x.elem, f32)
                         : vectors == 2 ? choose<2>(a->x.elem, f32)
                                        : choose<4>(a->x.elem, f32);
    int rider = p.zero_words ? pz_rider_of(a->m, (int64_t)a->zero_bytes, units).blocks : 0;
    return pz_cuda_launch(kernel, dim3(a->m + rider), dim3(THREADS), 0, (cudaStream_t)a->stream, a->dependent != 0,
                          "rms_norm", err, p);
}
