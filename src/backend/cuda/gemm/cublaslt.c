/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt as one more family. `stages` is the number of the heuristic. */
#include "backend/cuda/gemm/gemm.h"

#if PZ_HAVE_CUBLASLT
#include <pthread.h>

#include "backend/cuda/gemm/cublaslt.h"

enum { MAX_DEVICES = 64, SETS = 128, WAYS = 4, LEAST_ALIGN = 4 /* of y, as the public arguments say */ };

/* What a heuristic is a function of. No padding: keys are compared and hashed as bytes. */
typedef struct key {
    pz_cublaslt_shape shape;
    int32_t device, heuristic, y_align, workspace /* at most, bytes */;
} key;
_Static_assert(sizeof(key) == 3 * sizeof(int64_t) + 8 * sizeof(int32_t), "a key has no padding");

typedef struct choice {
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
} choice;

typedef struct slot {
    bool used;
    key key;
    choice choice;
} slot;

/* Asking for heuristics takes far longer than a launch, so the answers are kept; a full set forgets its oldest. */
static struct {
    cublasLtHandle_t handles[MAX_DEVICES];
    slot slots[SETS][WAYS];
    unsigned next[SETS];
} known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static pz_status check(cublasStatus_t code, const char *what, pz_error *err) {
    if (code == CUBLAS_STATUS_SUCCESS) return PZ_OK;
    pz_status status = code == CUBLAS_STATUS_ALLOC_FAILED    ? PZ_E_NOMEM
                       : code == CUBLAS_STATUS_NOT_SUPPORTED ? PZ_E_UNSUPPORTED
                                                             : PZ_E_INTERNAL;
    return pz_fail(err, status, "%s: %s", what, cublasLtGetStatusString(code));
}
#define LT_TRY(call, err) PZ_TRY(check(call, #call, err))

/* cuBLASLt makes its handle and loads its kernels at first use, with calls that would end a capture of this thread if
 * they were not declared harmless to it: they touch no stream. */
static pz_status relaxed(enum cudaStreamCaptureMode *before, pz_error *err) {
    *before = cudaStreamCaptureModeRelaxed;
    return pz_cuda_check(cudaThreadExchangeStreamCaptureMode(before), "cudaThreadExchangeStreamCaptureMode", err);
}

static pz_status restored(enum cudaStreamCaptureMode *before, pz_status st, pz_error *err) {
    cudaError_t code = cudaThreadExchangeStreamCaptureMode(before);
    return st != PZ_OK ? st : pz_cuda_check(code, "cudaThreadExchangeStreamCaptureMode", err);
}

static pz_status current_device(int *device, pz_error *err) {
    PZ_CUDA_TRY(cudaGetDevice(device), err);
    if (*device < MAX_DEVICES) return PZ_OK;
    return pz_fail(err, PZ_E_UNSUPPORTED, "cublaslt gemm: device %d: only the first %d can be used", *device,
                   (int)MAX_DEVICES);
}

static pz_status device_handle(cublasLtHandle_t *out, pz_error *err) {
    int device;
    enum cudaStreamCaptureMode mode;
    pz_status st = PZ_OK;
    PZ_TRY(current_device(&device, err));
    pthread_mutex_lock(&lock);
    if (!known.handles[device]) {
        cublasLtHandle_t made = NULL;
        st = relaxed(&mode, err);
        if (st == PZ_OK) st = restored(&mode, check(cublasLtCreate(&made), "cublasLtCreate", err), err);
        if (st == PZ_OK) known.handles[device] = made;
    }
    *out = known.handles[device];
    pthread_mutex_unlock(&lock);
    return st;
}

/* cuBLASLt counts by columns: y^T = w x^T, where a matrix by rows is its transpose by columns. */
pz_status pz_cublaslt_init(const pz_cublaslt_shape *s, pz_cublaslt *lt, pz_error *err) {
    const uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    PZ_TRY(device_handle(&lt->handle, err));
    LT_TRY(cublasLtMatmulDescInit(&lt->op, CUBLAS_COMPUTE_32F, CUDA_R_32F), err);
    LT_TRY(cublasLtMatmulDescSetAttribute(&lt->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), err);
    LT_TRY(cublasLtMatrixLayoutInit(&lt->w, CUDA_R_16BF, k, n, s->ldw), err);
    LT_TRY(cublasLtMatrixLayoutInit(&lt->x, CUDA_R_16BF, k, m, s->ldx), err);
    return check(cublasLtMatrixLayoutInit(&lt->y, s->bf16_out ? CUDA_R_16BF : CUDA_R_32F, n, m, s->ldy),
                 "cublasLtMatrixLayoutInit", err);
}

static pz_status preference(cublasLtMatmulPreferenceOpaque_t *p, int y_align, size_t workspace, pz_error *err) {
    const uint64_t room = workspace;
    const struct {
        cublasLtMatmulPreferenceAttributes_t operand;
        uint32_t bytes;
    } aligned[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, PZ_CUBLASLT_ALIGN},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, PZ_CUBLASLT_ALIGN},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)y_align},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)y_align}};
    LT_TRY(cublasLtMatmulPreferenceInit(p), err);
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room), err);
    for (size_t i = 0; i < sizeof aligned / sizeof *aligned; i++)
        LT_TRY(cublasLtMatmulPreferenceSetAttribute(p, aligned[i].operand, &aligned[i].bytes, sizeof aligned[i].bytes),
               err);
    return PZ_OK;
}

pz_status pz_cublaslt_heuristics(pz_cublaslt *lt, int y_align, size_t workspace,
                                 cublasLtMatmulHeuristicResult_t *results, int *n, pz_error *err) {
    cublasLtMatmulPreferenceOpaque_t p;
    enum cudaStreamCaptureMode mode;
    PZ_TRY(preference(&p, y_align, workspace, err));
    PZ_TRY(relaxed(&mode, err));
    *n = 0;
    pz_status st = check(cublasLtMatmulAlgoGetHeuristic(lt->handle, &lt->op, &lt->w, &lt->x, &lt->y, &lt->y, &p,
                                                        PZ_CUBLASLT_HEURISTICS, results, n),
                         "cublasLtMatmulAlgoGetHeuristic", err);
    PZ_TRY(restored(&mode, st, err));
    if (*n < 1) return pz_fail(err, PZ_E_UNSUPPORTED, "cuBLASLt has no algorithm for this shape");
    return PZ_OK;
}

pz_status pz_cublaslt_launch(const pz_cublaslt *lt, const cublasLtMatmulAlgo_t *algo, const void *x, const void *w,
                             void *y, void *workspace, size_t workspace_bytes, cudaStream_t stream, pz_error *err) {
    const float one = 1, zero = 0;
    enum cudaStreamCaptureMode mode;
    pz_cublaslt c = *lt; /* cuBLASLt's descriptors are pointers to what is not const, though it only reads them */
    PZ_TRY(relaxed(&mode, err));
    pz_status st = check(cublasLtMatmul(c.handle, &c.op, &one, w, &c.w, x, &c.x, &zero, y, &c.y, y, &c.y, algo,
                                        workspace, workspace_bytes, stream),
                         "cublasLtMatmul", err);
    return restored(&mode, st, err);
}

/* ---- the family ---- */
/* FNV-1a */
static unsigned set_of(const key *k) {
    const unsigned char *bytes = (const unsigned char *)k;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof *k; i++) h = (h ^ bytes[i]) * 16777619u;
    return (h ^ h >> 16) % SETS;
}

static bool recall(const key *k, choice *out) {
    slot *set = known.slots[set_of(k)];
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < WAYS && !found; i++)
        if (set[i].used && memcmp(&set[i].key, k, sizeof *k) == 0) {
            *out = set[i].choice;
            found = true;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Two threads that ask at once keep the same answer twice, which is harmless. */
static void keep(const key *k, const choice *c) {
    unsigned set = set_of(k);
    pthread_mutex_lock(&lock);
    known.slots[set][known.next[set]++ % WAYS] = (slot){.used = true, .key = *k, .choice = *c};
    pthread_mutex_unlock(&lock);
}

static pz_status ask(const key *k, choice *out, pz_error *err) {
    cublasLtMatmulHeuristicResult_t results[PZ_CUBLASLT_HEURISTICS];
    pz_cublaslt lt;
    int n, at = k->heuristic;
    PZ_TRY(pz_cublaslt_init(&k->shape, &lt, err));
    PZ_TRY(pz_cublaslt_heuristics(&lt, k->y_align, (size_t)k->workspace, results, &n, err));
    if (at >= n && k->y_align < PZ_CUBLASLT_ALIGN) at = n - 1; /* numbers are those of an aligned y */
    if (at >= n)
        return pz_fail(err, PZ_E_INVAL,
                       "cublaslt gemm: %d heuristics for m %d, n %d, k %d, numbered from 0; stages %d is none", n,
                       k->shape.m, k->shape.n, k->shape.k, at);
    PZ_TRY(check(results[at].state, "cublasLtMatmulAlgoGetHeuristic", err));
    *out = (choice){.algo = results[at].algo, .workspace = results[at].workspaceSize};
    keep(k, out);
    return PZ_OK;
}

static pz_cublaslt_shape shape_of(const pz_gemm_args *a) {
    return (pz_cublaslt_shape){.ldx = a->ldx,
                               .ldw = a->ldw,
                               .ldy = a->ldy,
                               .m = a->m,
                               .n = a->n,
                               .k = a->k,
                               .bf16_out = a->accum == PZ_ACCUM_BF16};
}

static pz_status known_or_asked(const key *k, choice *out, pz_error *err) {
    return recall(k, out) ? PZ_OK : ask(k, out, err);
}

/* The workspace follows from an aligned y, as it is asked for before y is known: another y makes do with it. */
static pz_status choose(const pz_gemm_launch *l, bool y_aligned, choice *out, pz_error *err) {
    key k = {.shape = shape_of(&l->args),
             .heuristic = l->config.stages,
             .y_align = PZ_CUBLASLT_ALIGN,
             .workspace = PZ_CUBLASLT_WORKSPACE};
    PZ_TRY(current_device(&k.device, err));
    PZ_TRY(known_or_asked(&k, out, err));
    if (y_aligned) return PZ_OK;
    k.y_align = LEAST_ALIGN;
    k.workspace = (int32_t)out->workspace;
    return known_or_asked(&k, out, err);
}

pz_status pz_gemm_cublaslt_plan(pz_gemm_launch *l, pz_error *err) {
    choice c;
    if (l->args.accum == PZ_ACCUM_FIXED)
        return pz_fail(err, PZ_E_UNSUPPORTED,
                       "cublaslt gemm: accumulator fixed: fixed sums are made by the own kernels (skinny, wide)");
    if (l->args.strategy != PZ_ZERO_NONE)
        return pz_fail(err, PZ_E_UNSUPPORTED,
                       "cublaslt gemm: strategy %s: only none, as cuBLASLt splits K by itself and stores its output",
                       pz_strategy_text(l->args.strategy));
    if (l->config.split != 1 || l->config.stages < 0)
        return pz_fail(err, PZ_E_INVAL,
                       "cublaslt gemm: split %d, stages %d: split must be 1, stages the number of a heuristic from 0",
                       l->config.split, l->config.stages);
    PZ_TRY(choose(l, true, &c, err));
    l->workspace_bytes = c.workspace;
    return PZ_OK;
}

/* Never launched early: without the attribute a kernel starts when the one before has ended, which is always right. */
pz_status pz_gemm_cublaslt_run(const pz_gemm_launch *l, pz_error *err) {
    const pz_gemm_args *a = &l->args;
    const pz_cublaslt_shape shape = shape_of(a);
    pz_cublaslt lt;
    choice c;
    if ((uintptr_t)a->workspace % PZ_CUBLASLT_ALIGN)
        return pz_fail(err, PZ_E_INVAL, "cublaslt gemm: the workspace must be aligned to %d bytes",
                       (int)PZ_CUBLASLT_ALIGN);
    PZ_TRY(choose(l, (uintptr_t)a->y % PZ_CUBLASLT_ALIGN == 0, &c, err));
    PZ_TRY(pz_cublaslt_init(&shape, &lt, err));
    return pz_cublaslt_launch(&lt, &c.algo, a->x, a->w, a->y, c.workspace ? a->workspace : NULL, c.workspace,
                              (cudaStream_t)a->stream, err);
}

#else

pz_status pz_gemm_cublaslt_plan(pz_gemm_launch *l, pz_error *err) {
    (void)l;
    return pz_fail(err, PZ_E_UNSUPPORTED, "gemm: this module was built without cuBLASLt");
}

pz_status pz_gemm_cublaslt_run(const pz_gemm_launch *l, pz_error *err) {
    (void)l;
    return pz_fail(err, PZ_E_UNSUPPORTED, "gemm: this module was built without cuBLASLt");
}

#endif
