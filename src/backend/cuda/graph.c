/* SPDX-License-Identifier: Apache-2.0 */
/* Captured graphs. Launches with programmatic stream serialization become programmatic edges. */
#include "backend/cuda/state.h"

static pz_status capture(pz_cuda_run *r, cudaGraph_t *graph, pz_error *err) {
    PZ_CUDA_TRY(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), err);
    pz_status st = pz_cuda_launch_all(r, err);
    cudaError_t code = cudaStreamEndCapture(r->stream, graph); /* also after a failure: it ends the capture */
    if (st != PZ_OK) {
        cudaGetLastError();
        return st;
    }
    return pz_cuda_check(code, "cudaStreamEndCapture", err);
}

pz_status pz_cuda_capture(pz_cuda_run *r, pz_error *err) {
    cudaGraph_t graph = NULL;
    pz_status st = capture(r, &graph, err);
    if (st == PZ_OK) st = pz_cuda_check(cudaGraphInstantiate(&r->state->graph, graph, 0), "cudaGraphInstantiate", err);
    if (st == PZ_OK) st = pz_cuda_check(cudaGraphUpload(r->state->graph, r->stream), "cudaGraphUpload", err);
    if (graph) cudaGraphDestroy(graph);
    if (st == PZ_OK) return PZ_OK;
    if (r->state->graph) cudaGraphExecDestroy(r->state->graph);
    r->state->graph = NULL;
    return pz_fail_context(err, st, "capturing the plan of %d rows (PREZERO_EAGER=1 runs it without)", r->m);
}
