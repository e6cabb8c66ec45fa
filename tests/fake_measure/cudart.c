/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the CUDA runtime that measurements call. Everything is executed when it is submitted; between begin and
 * end of a capture launches are recorded instead. */
#include "fake_measure/launches.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"

fake_state fake;
enum { LARGE = 1 << 28 }; /* bytes: what only a bandwidth is measured with is neither set nor copied */
static fake_launches *capturing;
static double now_us;

void fake_reset(void) {
    int live = fake.live;
    fake = (fake_state){.malloc_fail_after = -1, .wrong_after = -1, .live = live, .l2_bytes = 1000};
}

void fake_advance(double us) {
    now_us += us;
}

/* ---- launches ---- */
void fake_submit(const fake_launch *l) {
    if (!capturing) {
        fake_execute(l);
        return;
    }
    if (capturing->n == capturing->cap) {
        capturing->cap = capturing->cap ? 2 * capturing->cap : 64;
        capturing->at = realloc(capturing->at, (size_t)capturing->cap * sizeof *capturing->at);
    }
    capturing->at[capturing->n++] = *l;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    (void)s, (void)mode;
    capturing = calloc(1, sizeof *capturing);
    fake.live++;
    fake.captures++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    (void)s;
    *graph = (cudaGraph_t)(void *)capturing;
    capturing = NULL;
    return cudaSuccess;
}

/* The executable graph takes the launches, the graph keeps an empty list. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    fake_launches *from = (fake_launches *)(void *)graph, *to = calloc(1, sizeof *to);
    *to = *from;
    *from = (fake_launches){0};
    fake.live++;
    *exec = (cudaGraphExec_t)(void *)to;
    return cudaSuccess;
}

static cudaError_t drop(fake_launches *l) {
    free(l->at);
    free(l);
    fake.live--;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return drop((fake_launches *)(void *)graph);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return drop((fake_launches *)(void *)exec);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s) {
    (void)exec, (void)s;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    (void)s;
    const fake_launches *l = (const fake_launches *)(const void *)exec;
    size_t at = strlen(fake.order);
    if (at + 1 < sizeof fake.order) fake.order[at] = fake_letter(l);
    for (int i = 0; i < l->n; i++) fake_execute(&l->at[i]);
    return cudaSuccess;
}

/* ---- streams, events, memory ---- */
static void *object(void) {
    fake.live++;
    return calloc(1, sizeof(double));
}
static cudaError_t drop_object(void *p) {
    fake.live -= p != NULL;
    free(p);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    (void)flags;
    *s = object();
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    return drop_object(s);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    (void)s;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) {
    *e = object();
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    return drop_object(e);
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)s;
    *(double *)(void *)e = now_us;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    *ms = (float)((*(double *)(void *)end - *(double *)(void *)begin) * 1e-3);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    if (fake.malloc_fail_after == 0) return cudaErrorMemoryAllocation;
    if (fake.malloc_fail_after > 0) fake.malloc_fail_after--;
    *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    fake.live++;
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p) {
    return drop_object(p);
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    (void)s;
    if (bytes < LARGE) memset(p, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s) {
    (void)s;
    if (kind == cudaMemcpyDeviceToDevice) fake_advance((double)bytes * 2 / 4e6); /* 4000 GB/s */
    if (bytes < LARGE) memcpy(dst, src, bytes);
    return cudaSuccess;
}

/* ---- the device ---- */
cudaError_t cudaGetDeviceCount(int *n) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    (void)device;
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "NVIDIA H200");
    prop->multiProcessorCount = 132;
    prop->major = 9;
    prop->l2CacheSize = (int)fake.l2_bytes;
    prop->totalGlobalMem = (size_t)1 << 37;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) {
    *v = 13010;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v) {
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}

pz_status pz_cuda_check(cudaError_t code, const char *what, pz_error *err) {
    return code == cudaSuccess ? PZ_OK : pz_fail(err, PZ_E_INTERNAL, "%s: CUDA error %d", what, (int)code);
}
