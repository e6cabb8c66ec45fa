/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA runtime, as far as the backend uses it. Streams do what they are told at once; what is captured is a list of
 * launches. Every call can be made to fail. */
#include <cuda_runtime_api.h>
#include <stdio.h>

#include "backend/cuda/cuda.h"
#include "fake.h"

static _Thread_local int current;

static pz_status attribute(int device, bool minor, int *value, pz_error *err) {
    current = device;
    return pz_cuda_attribute(minor ? cudaDevAttrComputeCapabilityMinor : cudaDevAttrMultiProcessorCount, value, err);
}

fake_control pz_fake_cuda = {
    .fail_after = -1, .stray = -1, .alloc_fail_after = pz_alloc_fail_after, .attribute = attribute};

typedef struct launch_list {
    PZ_VEC(fake_launch) at;
} launch_list;

static launch_list *capturing;
static cudaError_t last;

static cudaError_t step(cudaError_t failure) {
    pz_fake_cuda.calls++;
    if (pz_fake_cuda.fail_after == 0) return last = failure;
    if (pz_fake_cuda.fail_after > 0) pz_fake_cuda.fail_after--;
    return cudaSuccess;
}

#define STEP(failure)                           \
    do {                                        \
        cudaError_t step_ = step(failure);      \
        if (step_ != cudaSuccess) return step_; \
    } while (0)

/* ---- errors and devices: 0 is of architecture 9.0, 1 of 8.0 ---- */
cudaError_t cudaGetLastError(void) {
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
const char *cudaGetErrorName(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}
const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory" : "made to fail";
}
cudaError_t cudaGetDeviceCount(int *n) {
    STEP(cudaErrorUnknown);
    *n = 2;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) {
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
    STEP(cudaErrorUnknown);
    *value = attr == cudaDevAttrComputeCapabilityMajor ? 9 - device
             : attr == cudaDevAttrMultiProcessorCount  ? 132 - device
                                                       : 0;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    STEP(cudaErrorUnknown);
    *device = current;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    STEP(cudaErrorUnknown);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Fake %d", device);
    p->multiProcessorCount = 132;
    p->totalGlobalMem = (size_t)64 << 30;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    STEP(cudaErrorUnknown);
    current = device;
    return cudaSuccess;
}

/* ---- memory: filled with rubbish, as the device's is ---- */
static cudaError_t allocate(void **p, size_t bytes) {
    STEP(cudaErrorMemoryAllocation);
    *p = malloc(bytes);
    if (!*p) return last = cudaErrorMemoryAllocation;
    memset(*p, 0xA5, bytes);
    pz_fake_cuda.live++;
    return cudaSuccess;
}
static cudaError_t discard(void *p) {
    pz_fake_cuda.live -= p != NULL;
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t bytes) {
    return allocate(p, bytes);
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    return allocate(p, bytes);
}
cudaError_t cudaFree(void *p) {
    return discard(p);
}
cudaError_t cudaFreeHost(void *p) {
    return discard(p);
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    (void)s;
    STEP(cudaErrorUnknown);
    memset(p, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s) {
    (void)s, (void)kind;
    STEP(cudaErrorUnknown);
    memcpy(dst, src, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t s) {
    (void)s, (void)kind;
    STEP(cudaErrorUnknown);
    for (size_t i = 0; i < height; i++) memcpy((char *)dst + i * dpitch, (const char *)src + i * spitch, width);
    return cudaSuccess;
}

/* ---- streams and events ---- */
static cudaError_t make(void **out) {
    STEP(cudaErrorUnknown);
    *out = malloc(1);
    pz_fake_cuda.live++;
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    (void)flags;
    return make((void **)s);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    return discard(s);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    (void)s;
    STEP(cudaErrorUnknown);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) {
    return make((void **)e);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    (void)flags;
    return make((void **)e);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    return discard(e);
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)e, (void)s;
    STEP(cudaErrorUnknown);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    (void)e;
    STEP(cudaErrorUnknown);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    (void)from, (void)to;
    STEP(cudaErrorUnknown);
    *ms = 0.002f;
    return cudaSuccess;
}

/* ---- graphs ---- */
static launch_list *new_list(void) {
    pz_fake_cuda.live++;
    return calloc(1, sizeof(launch_list));
}
static cudaError_t free_list(void *p) {
    launch_list *l = p;
    if (l) pz_vec_free(&l->at);
    return discard(p);
}
void fake_submit(const fake_launch *l) {
    if (capturing) {
        if (pz_push(&capturing->at, *l, NULL) != PZ_OK) capturing->at.n = 0;
        return;
    }
    pz_fake_cuda.launches++;
    fake_execute(l);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    (void)s, (void)mode;
    STEP(cudaErrorUnknown);
    capturing = new_list();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    (void)s;
    launch_list *l = capturing;
    capturing = NULL;
    cudaError_t e = step(cudaErrorUnknown);
    if (e != cudaSuccess) {
        free_list(l);
        *graph = NULL;
        return e;
    }
    *graph = (cudaGraph_t)(void *)l;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    return free_list(g);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags) {
    (void)flags;
    STEP(cudaErrorUnknown);
    launch_list *from = (launch_list *)(void *)g, *to = new_list();
    for (int i = 0; i < from->at.n; i++)
        if (pz_push(&to->at, from->at.at[i], NULL) != PZ_OK) to->at.n = 0;
    *exec = (cudaGraphExec_t)(void *)to;
    pz_fake_cuda.captures++;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) {
    return free_list(g);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t g, cudaStream_t s) {
    (void)g, (void)s;
    STEP(cudaErrorUnknown);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) {
    (void)s;
    STEP(cudaErrorUnknown);
    launch_list *l = (launch_list *)(void *)g;
    for (int i = 0; i < l->at.n; i++) fake_execute(&l->at.at[i]);
    pz_fake_cuda.replays++;
    return cudaSuccess;
}
