/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm with residual add, x_norm and a rider. One block a row, then the rider's blocks. Threads and registers are
 * few enough for a block to live beside one of the GEMM before it, so that it is already there when that one ends. */
#include "backend/cuda/norm/norm.cuh"

#include "backend/cuda/norm/norm.h"

namespace {

enum { THREADS = 512, STRIDE = THREADS * 8 };

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
    block_row<THREADS> at;
    const auto sum = [&](float(&v)[8], int i, int col) {
        value8<XElem>(v, x[i], p.x, of_x, col);
        if (!p.res.data) return;
        float add[8];
        value8<Elem>(add, res[i], p.res, 0, col);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] += add[e];
    };
    norm_row<NV, XElem, Elem>(p, row, at, sum, [&](float(&w)[8], int, int col) { weights8(w, p.w + col); });
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
