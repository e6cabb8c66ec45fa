/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/measure/lab.h"

#include <math.h>
#include <stdio.h>

#include "base/rng.h"

enum { MAX_REPLAYS = 10000 };

/* ---- the lab ---- */
static pz_status look(pz_lab *lab, pz_error *err) {
    struct cudaDeviceProp prop;
    PZ_CUDA_TRY(cudaGetDeviceProperties(&prop, lab->device), err);
    lab->units = prop.multiProcessorCount;
    lab->sm = prop.major * 10 + prop.minor;
    lab->l2_bytes = prop.l2CacheSize;
    lab->memory_bytes = (int64_t)prop.totalGlobalMem;
    snprintf(lab->product, sizeof lab->product, "%.63s", prop.name);
    return PZ_OK;
}

pz_status pz_lab_open(pz_lab *lab, int device, pz_error *err) {
    int n;
    *lab = (pz_lab){.device = device, .before = -1};
    PZ_CUDA_TRY(cudaGetDeviceCount(&n), err);
    if (device >= n) return pz_fail(err, PZ_E_UNSUPPORTED, "no GPU %d: there are %d, numbered from 0", device, n);
    PZ_CUDA_TRY(cudaGetDevice(&lab->before), err);
    PZ_CUDA_TRY(cudaSetDevice(device), err);
    PZ_TRY(look(lab, err));
    PZ_CUDA_TRY(cudaStreamCreateWithFlags(&lab->stream, cudaStreamNonBlocking), err);
    PZ_CUDA_TRY(cudaEventCreate(&lab->begin), err);
    PZ_CUDA_TRY(cudaEventCreate(&lab->end), err);
    return PZ_OK;
}

void pz_lab_close(pz_lab *lab) {
    if (lab->stream) cudaStreamSynchronize(lab->stream);
    for (int i = 0; i < lab->memory.n; i++) cudaFree(lab->memory.at[i]);
    pz_vec_free(&lab->memory);
    if (lab->begin) cudaEventDestroy(lab->begin);
    if (lab->end) cudaEventDestroy(lab->end);
    if (lab->stream) cudaStreamDestroy(lab->stream);
    if (lab->before >= 0) cudaSetDevice(lab->before);
    cudaGetLastError();
}

pz_status pz_lab_alloc(pz_lab *lab, const char *what, size_t bytes, void **out, pz_error *err) {
    void *p = NULL;
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return pz_fail(err, PZ_E_NOMEM, "out of memory on the GPU: %zu bytes for %s", bytes, what);
    }
    pz_status st = pz_push(&lab->memory, p, err);
    if (st != PZ_OK) {
        cudaFree(p);
        return st;
    }
    *out = p;
    return pz_cuda_check(cudaMemsetAsync(p, 0, bytes, lab->stream), "cudaMemsetAsync", err);
}

pz_status pz_lab_wait(pz_lab *lab, pz_error *err) {
    if (lab->wait) return lab->wait(lab->wait_ctx, err);
    return pz_cuda_check(cudaStreamSynchronize(lab->stream), "a kernel", err);
}

/* ---- chains ---- */
pz_status pz_lab_capture(pz_lab *lab, int links, pz_lab_link_fn fn, void *ctx, pz_lab_chain *out, pz_error *err) {
    *out = (pz_lab_chain){.links = links, .replays = 1};
    PZ_TRY(fn(ctx, 0, err));
    PZ_TRY(pz_lab_wait(lab, err));
    PZ_CUDA_TRY(cudaStreamBeginCapture(lab->stream, cudaStreamCaptureModeThreadLocal), err);
    pz_status st = PZ_OK;
    for (int i = 0; i < links && st == PZ_OK; i++) st = fn(ctx, i, err);
    cudaGraph_t graph = NULL;
    cudaError_t code = cudaStreamEndCapture(lab->stream, &graph);
    if (st == PZ_OK) st = pz_cuda_check(code, "cudaStreamEndCapture", err);
    if (st == PZ_OK) st = pz_cuda_check(cudaGraphInstantiate(&out->graph, graph, 0), "cudaGraphInstantiate", err);
    if (st == PZ_OK) st = pz_cuda_check(cudaGraphUpload(out->graph, lab->stream), "cudaGraphUpload", err);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    return st;
}

void pz_lab_chain_free(pz_lab_chain *c) {
    if (c->graph) cudaGraphExecDestroy(c->graph);
    c->graph = NULL;
}

pz_status pz_lab_replay(pz_lab *lab, const pz_lab_chain *c, pz_error *err) {
    return pz_cuda_check(cudaGraphLaunch(c->graph, lab->stream), "cudaGraphLaunch", err);
}

pz_status pz_lab_sample(pz_lab *lab, const pz_lab_chain *c, double *us, pz_error *err) {
    float ms;
    PZ_TRY(pz_lab_replay(lab, c, err));
    PZ_CUDA_TRY(cudaEventRecord(lab->begin, lab->stream), err);
    for (int i = 0; i < c->replays; i++) PZ_TRY(pz_lab_replay(lab, c, err));
    PZ_CUDA_TRY(cudaEventRecord(lab->end, lab->stream), err);
    PZ_TRY(pz_lab_wait(lab, err));
    PZ_CUDA_TRY(cudaEventElapsedTime(&ms, lab->begin, lab->end), err);
    *us = (double)ms * 1e3 / c->replays / c->links;
    return PZ_OK;
}

pz_status pz_lab_calibrate(pz_lab *lab, pz_lab_chain *c, double sample_us, pz_error *err) {
    double us;
    c->replays = 2;
    PZ_TRY(pz_lab_sample(lab, c, &us, err));
    double replays = us > 0 ? ceil(sample_us / (us * c->links)) : 1;
    c->replays = replays < 1 ? 1 : replays > MAX_REPLAYS ? MAX_REPLAYS : (int)replays;
    return PZ_OK;
}

void pz_lab_shuffle(uint64_t *rng, int *order, int n) {
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(pz_rng_next(rng) % (uint64_t)(i + 1)), held = order[i];
        order[i] = order[j];
        order[j] = held;
    }
}
