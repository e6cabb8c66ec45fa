/* SPDX-License-Identifier: Apache-2.0 */
#include "lab.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "lab_kernels.h"

#define MUST(call) must((call), #call, __LINE__)
static void must(cudaError_t code, const char *what, int line) {
    if (code == cudaSuccess) return;
    print_error("%s: %s (%s)\n", what, cudaGetErrorName(code), cudaGetErrorString(code));
    _fail(__FILE__, line);
}

/* ---- the lab ---- */
static void *gpu_alloc(lab *l, size_t bytes) {
    (void)l;
    void *p = NULL;
    MUST(cudaMalloc(&p, bytes));
    return p;
}

static void gpu_release(lab *l, void *p) {
    (void)l;
    MUST(cudaFree(p));
}

/* A copy from memory that is not page-locked may return early, and streams of their own do not wait for it. */
static void gpu_put(lab *l, void *dst, const void *src, size_t bytes) {
    (void)l;
    MUST(cudaMemcpy(dst, src, bytes, cudaMemcpyHostToDevice));
    MUST(cudaDeviceSynchronize());
}

static void gpu_get(lab *l, void *dst, const void *src, size_t bytes) {
    (void)l;
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(dst, src, bytes, cudaMemcpyDeviceToHost));
}

static void gpu_each(lab *l, lab_work work, const void *params, int64_t n, void *stream) {
    (void)l;
    MUST(lab_kernel_each(work, params, n, stream));
}

static void gpu_sync(lab *l, void *stream, const char *what) {
    (void)l;
    must(cudaStreamSynchronize(stream), what, __LINE__);
}

static void *gpu_stream(lab *l) {
    (void)l;
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void gpu_stream_end(lab *l, void *stream) {
    (void)l;
    MUST(cudaStreamDestroy(stream));
}

struct lab_graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

static lab_graph *gpu_capture(lab *l, lab_record_fn record, void *arg, void *stream) {
    (void)l;
    lab_graph *g = pz_calloc(1, sizeof *g);
    assert_non_null(g);
    MUST(cudaDeviceSynchronize());
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    record(arg, stream);
    MUST(cudaStreamEndCapture(stream, &g->graph));
    MUST(cudaGraphInstantiate(&g->exec, g->graph, 0));
    return g;
}

static void gpu_replay(lab *l, lab_graph *g, void *stream) {
    (void)l;
    MUST(cudaGraphLaunch(g->exec, stream));
}

static void gpu_graph_end(lab *l, lab_graph *g) {
    (void)l;
    MUST(cudaGraphExecDestroy(g->exec));
    MUST(cudaGraphDestroy(g->graph));
    pz_free(g);
}

static void gpu_occupy(lab *l, int microseconds, void *stream) {
    (void)l;
    int n;
    MUST(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
    MUST(lab_kernel_occupy(n, 6, microseconds, stream));
}

static bool small;
static int patience = 1;

bool lab_small(void) {
    return small;
}

int lab_timeout_ms(int ms) {
    return ms * patience;
}

void lab_gpu(lab *l) {
    *l = (lab){.small = small,
               .few = small,
               .alloc = gpu_alloc,
               .release = gpu_release,
               .put = gpu_put,
               .get = gpu_get,
               .each = gpu_each,
               .sync = gpu_sync,
               .stream = gpu_stream,
               .stream_end = gpu_stream_end,
               .capture = gpu_capture,
               .replay = gpu_replay,
               .graph_end = gpu_graph_end,
               .occupy = gpu_occupy,
               .gemm_workspace = pz_gemm_workspace,
               .gemm = pz_gemm,
               .weight_norms = pz_weight_norms,
               .rms_norm = pz_rms_norm};
}

/* ---- programs ---- */
enum { LIMIT_S = 150 };
static int64_t began;

static void on_alarm(int signal_number) {
    static const char text[] = "HANG: a test took longer than its limit\n";
    (void)signal_number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(4);
    _exit(3);
}

int lab_begin(void **state) {
    (void)state;
    began = pz_now_ns();
    alarm(LIMIT_S);
    return 0;
}

int lab_end(void **state) {
    (void)state;
    alarm(0);
    print_message("  %.2f s\n", (double)(pz_now_ns() - began) * 1e-9);
    return 0;
}

/* Whether the kernels can be used. The message of a machine without a GPU is CUDA's own, not the module's. */
static int probe(void) {
    int n = 0;
    pz_error err = {0};
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code != cudaSuccess || n == 0) {
        print_message("skipped: no GPU (%s)\n", cudaGetErrorString(code));
        return LAB_SKIPPED;
    }
    pz_gemm_args a = {.size = sizeof a, .ldx = 16, .ldw = 16, .ldy = 8, .m = 1, .n = 8, .k = 16};
    size_t bytes;
    if (pz_gemm_workspace(&a, &bytes, &err) == PZ_OK) return 0;
    print_error("there is a GPU, but its kernels cannot be used: %s\n", err.msg);
    return 1;
}

int lab_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) {
            small = true;
        } else if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc) {
            cmocka_set_test_filter(argv[++i]);
        } else if (strcmp(argv[i], "--patience") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) {
            patience = atoi(argv[++i]);
        } else {
            print_error("usage: %s [--small] [--filter PATTERN] [--patience N]\n", argv[0]);
            return 2;
        }
    }
    signal(SIGALRM, on_alarm);
    int st = probe();
    return st ? st : _cmocka_run_group_tests(argv[0], tests, n, NULL, NULL);
}
