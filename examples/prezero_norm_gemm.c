/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels in an engine that exists already: an add + RMSNorm with a rider, then the split-K GEMM whose output the
 * rider has zeroed. Both go into the engine's stream, here captured into a graph and replayed; nothing else of the
 * library is used.
 *
 *   cc prezero_norm_gemm.c $(pkg-config --cflags --libs prezero) -lcudart
 *
 * The step is that of Kimi-K2 and DeepSeek-V3 before attention: x [m, 7168] is normed and multiplied with w [2112,
 * 7168]. */
#include <cuda_runtime_api.h>
#include <prezero/kernels.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 4, N = 2112, K = 7168, REPLAYS = 3 };

/* ---- what the engine has anyway ---- */
typedef struct engine {
    cudaStream_t stream;
    cudaGraphExec_t graph;
    uint16_t *x, *residual, *normed; /* bf16 [M, K] */
    uint16_t *w;                     /* bf16 [N, K] */
    float *norm_w;                   /* [K] */
} engine;

/* ---- what prezero adds ---- */
typedef struct prezero_step {
    float *w_norm;      /* [N], once per weight */
    float *x_norm;      /* [M], written by the norm for the GEMM */
    int32_t *sum;       /* [M, N], the GEMM's output in fixed point, zeroed by the rider */
    pz_strategy zeroed; /* PREZERO where the rider pays, else SELF */
    void *workspace;    /* of SELF; NULL with PREZERO */
} prezero_step;

static int cuda_failed(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return 0;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    return 1;
}

static int prezero_failed(pz_status status, const pz_error *err) {
    if (status == PZ_OK) return 0;
    fprintf(stderr, "%s\n", err->msg);
    return 1;
}

/* -- begin step -- */
/* Arguments of the GEMM. `config` is left out: the library chooses the geometry for the strategy. */
static pz_gemm_args gemm_arguments(const engine *e, const prezero_step *p) {
    return (pz_gemm_args){.size = sizeof(pz_gemm_args),
                          .x = e->normed,
                          .w = e->w,
                          .ldx = K,
                          .ldw = K,
                          .y = p->sum,
                          .ldy = N,
                          .m = M,
                          .n = N,
                          .k = K,
                          .accum = PZ_ACCUM_FIXED,
                          .x_norm = p->x_norm,
                          .w_norm = p->w_norm,
                          .strategy = p->zeroed,
                          .workspace = p->workspace,
                          .dependent = 1,
                          .stream = e->stream};
}

/* Once: is the rider worth its time at this number of rows? The answer depends on nothing that changes later, so norm
 * and GEMM cannot disagree. Then what the GEMM needs: norms of the weight's rows, and a workspace if it zeroes by
 * itself. */
static int prepare(const engine *e, prezero_step *p) {
    pz_error err;
    pz_gate_result gate;
    size_t bytes = 0;
    pz_gate_query q = {.size = sizeof q, .device = "h200", .rows = M, .bytes = (int64_t)sizeof(int32_t) * M * N};
    q.slices = 1;
    if (prezero_failed(pz_gate(&q, &gate, &err), &err)) return 1;
    p->zeroed = gate.verdict == PZ_GATE_CLOSED ? PZ_ZERO_SELF : PZ_ZERO_PREZERO;
    printf("rider of %lld bytes at %d rows: %s\n", (long long)q.bytes, M, pz_gate_text(gate.verdict));

    if (prezero_failed(pz_weight_norms(e->w, K, N, K, p->w_norm, e->stream, &err), &err)) return 1;
    pz_gemm_args a = gemm_arguments(e, p);
    if (prezero_failed(pz_gemm_workspace(&a, &bytes, &err), &err)) return 1;
    if (bytes == 0) return 0;
    return cuda_failed(cudaMalloc(&p->workspace, bytes), "cudaMalloc") ||
           cuda_failed(cudaMemsetAsync(p->workspace, 0, bytes, e->stream), "cudaMemsetAsync");
}

/* Each step: the norm with its rider, then the GEMM that adds into what the rider has zeroed. Both may start before the
 * kernel in front of them has ended (dependent); they wait for it themselves. */
static int launch(const engine *e, const prezero_step *p) {
    pz_error err;
    pz_norm_args norm = {.size = sizeof norm,
                         .x = {.data = e->x, .ld = K, .elem = PZ_ELEM_BF16},
                         .res = {.data = e->residual, .ld = K, .elem = PZ_ELEM_BF16},
                         .w = e->norm_w,
                         .eps = 1e-6f,
                         .y = {.data = e->normed, .ld = K, .elem = PZ_ELEM_BF16},
                         .r = {.data = e->residual, .ld = K, .elem = PZ_ELEM_BF16},
                         .x_norm = p->x_norm,
                         .m = M,
                         .hidden = K,
                         .dependent = 1,
                         .stream = e->stream};
    if (p->zeroed == PZ_ZERO_PREZERO) {
        norm.zero = p->sum;
        norm.zero_bytes = sizeof(int32_t) * M * N;
    }
    pz_gemm_args gemm = gemm_arguments(e, p);
    return prezero_failed(pz_rms_norm(&norm, &err), &err) || prezero_failed(pz_gemm(&gemm, &err), &err);
}
/* -- end step -- */

/* The consumer reads the sum as sum * 2^-30 * x_norm[row] * w_norm[column]; the library's own norms and element-wise
 * kernels do so themselves (PZ_ELEM_FIXED in pz_matrix). */
static float value(int32_t sum, float x_norm, float w_norm) {
    return (float)sum * 0x1p-30f * x_norm * w_norm;
}

static int capture(engine *e, const prezero_step *p) {
    cudaGraph_t graph = NULL;
    if (cuda_failed(cudaStreamBeginCapture(e->stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"))
        return 1;
    int failed = launch(e, p);
    failed |= cuda_failed(cudaStreamEndCapture(e->stream, &graph), "cudaStreamEndCapture");
    if (!failed) failed = cuda_failed(cudaGraphInstantiate(&e->graph, graph, 0), "cudaGraphInstantiate");
    if (graph) cudaGraphDestroy(graph);
    return failed;
}

/* ---- the rest: memory, inputs, output ---- */
static int allocate(engine *e, prezero_step *p) {
    return cuda_failed(cudaStreamCreateWithFlags(&e->stream, cudaStreamNonBlocking), "cudaStreamCreate") ||
           cuda_failed(cudaMalloc((void **)&e->x, sizeof(uint16_t) * M * K), "cudaMalloc") ||
           cuda_failed(cudaMalloc((void **)&e->residual, sizeof(uint16_t) * M * K), "cudaMalloc") ||
           cuda_failed(cudaMalloc((void **)&e->normed, sizeof(uint16_t) * M * K), "cudaMalloc") ||
           cuda_failed(cudaMalloc((void **)&e->w, sizeof(uint16_t) * N * K), "cudaMalloc") ||
           cuda_failed(cudaMalloc((void **)&e->norm_w, sizeof(float) * K), "cudaMalloc") ||
           cuda_failed(cudaMalloc((void **)&p->w_norm, sizeof(float) * N), "cudaMalloc") ||
           cuda_failed(cudaMalloc((void **)&p->x_norm, sizeof(float) * M), "cudaMalloc") ||
           cuda_failed(cudaMalloc((void **)&p->sum, sizeof(int32_t) * M * N), "cudaMalloc");
}

static void release(engine *e, prezero_step *p) {
    void *memory[] = {e->x, e->residual, e->normed, e->w, e->norm_w, p->w_norm, p->x_norm, p->sum, p->workspace};
    if (e->stream) cudaStreamSynchronize(e->stream);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) cudaFree(memory[i]);
    if (e->graph) cudaGraphExecDestroy(e->graph);
    if (e->stream) cudaStreamDestroy(e->stream);
}

static uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Numbers in [-scale, scale]. */
static int fill_bf16(uint16_t *device, size_t n, float scale) {
    uint16_t *host = malloc(n * sizeof *host);
    if (!host) return cuda_failed(cudaErrorMemoryAllocation, "malloc");
    for (size_t i = 0; i < n; i++) host[i] = to_bf16(scale * (2.0f * (float)rand() / (float)RAND_MAX - 1.0f));
    int failed = cuda_failed(cudaMemcpy(device, host, n * sizeof *host, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(host);
    return failed;
}

static int fill_inputs(const engine *e) {
    float ones[K];
    for (int i = 0; i < K; i++) ones[i] = 1;
    return fill_bf16(e->x, (size_t)M * K, 1) || fill_bf16(e->residual, (size_t)M * K, 1) ||
           fill_bf16(e->w, (size_t)N * K, 0.02f) ||
           cuda_failed(cudaMemcpy(e->norm_w, ones, sizeof ones, cudaMemcpyHostToDevice), "cudaMemcpy") ||
           cuda_failed(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); /* the stream does not wait for the copies */
}

static int show(const prezero_step *p) {
    static int32_t sum[M * N];
    static float x_norm[M], w_norm[N];
    if (cuda_failed(cudaMemcpy(sum, p->sum, sizeof sum, cudaMemcpyDeviceToHost), "cudaMemcpy") ||
        cuda_failed(cudaMemcpy(x_norm, p->x_norm, sizeof x_norm, cudaMemcpyDeviceToHost), "cudaMemcpy") ||
        cuda_failed(cudaMemcpy(w_norm, p->w_norm, sizeof w_norm, cudaMemcpyDeviceToHost), "cudaMemcpy"))
        return 1;
    for (int row = 0; row < M; row++)
        printf("y[%d, 0] = %g\n", row, (double)value(sum[row * N], x_norm[row], w_norm[0]));
    return 0;
}

static int run(engine *e, prezero_step *p) {
    if (allocate(e, p) || fill_inputs(e) || prepare(e, p)) return 1;
    if (launch(e, p)) return 1; /* once before capturing, as kernels are loaded at their first launch */
    if (capture(e, p)) return 1;
    for (int i = 0; i < REPLAYS; i++)
        if (cuda_failed(cudaGraphLaunch(e->graph, e->stream), "cudaGraphLaunch")) return 1;
    return cuda_failed(cudaStreamSynchronize(e->stream), "cudaStreamSynchronize") || show(p);
}

int main(void) {
    engine e = {0};
    prezero_step p = {0};
    int failed = run(&e, &p);
    release(&e, &p);
    return failed;
}
