/* SPDX-License-Identifier: Apache-2.0 */
/* pz_measure_get_device: what the device is, and how fast it copies. */
#include <stdio.h>

#include "backend/cuda/measure/kernels.h"
#include "backend/cuda/measure/lab.h"
#include "backend/cuda/measure/measure.h"
#include "backend/cuda/measure/rival.h"

enum { COPIES = 20 };
static const size_t copy_bytes = (size_t)1 << 30;

typedef struct copying {
    pz_lab *lab;
    void *dst, *src;
    bool driver; /* the driver's copy, else ours */
} copying;

static pz_status copy_once(const copying *c, pz_error *err) {
    if (!c->driver) return pz_lab_copy(c->dst, c->src, copy_bytes, c->lab->units, c->lab->stream, err);
    return pz_cuda_check(cudaMemcpyAsync(c->dst, c->src, copy_bytes, cudaMemcpyDeviceToDevice, c->lab->stream),
                         "cudaMemcpyAsync", err);
}

static pz_status measure_copy(pz_lab *lab, double *gbs, pz_error *err) {
    copying c = {.lab = lab};
    PZ_TRY(pz_lab_alloc(lab, "a copy", copy_bytes, &c.dst, err));
    PZ_TRY(pz_lab_alloc(lab, "a copy", copy_bytes, &c.src, err));
    *gbs = 0;
    for (int i = 0; i < 2 * COPIES; i++) {
        float ms;
        c.driver = i % 2;
        PZ_CUDA_TRY(cudaEventRecord(lab->begin, lab->stream), err);
        PZ_TRY(copy_once(&c, err));
        PZ_CUDA_TRY(cudaEventRecord(lab->end, lab->stream), err);
        PZ_TRY(pz_lab_wait(lab, err));
        PZ_CUDA_TRY(cudaEventElapsedTime(&ms, lab->begin, lab->end), err);
        double rate = ms > 0 ? 2 * (double)copy_bytes / ((double)ms * 1e6) : 0;
        if (rate > *gbs) *gbs = rate;
    }
    return PZ_OK;
}

static pz_status describe(pz_lab *lab, pz_measure_device *out, pz_error *err) {
    *out = (pz_measure_device){.units = lab->units,
                               .sm = lab->sm,
                               .cublaslt = pz_rival_version(),
                               .l2_bytes = lab->l2_bytes,
                               .memory_bytes = lab->memory_bytes};
    snprintf(out->product, sizeof out->product, "%s", lab->product);
    PZ_CUDA_TRY(cudaDriverGetVersion(&out->driver), err);
    PZ_CUDA_TRY(cudaRuntimeGetVersion(&out->runtime), err);
    return measure_copy(lab, &out->copy_gbs, err);
}

pz_status pz_cuda_measure_device(int device, pz_measure_device *out, pz_error *err) {
    pz_lab lab;
    pz_status st = pz_lab_open(&lab, device, err);
    if (st == PZ_OK) st = describe(&lab, out, err);
    pz_lab_close(&lab);
    return st;
}
