/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's calls are made not to block: what takes time (the opening, connections of a first use) goes on in threads of
 * its own. Here their end is asked for, no longer than the group's time-out, so that a rank that does not come hangs
 * nobody. This holds while a stream is captured too: the launch is then its thread's, which may be, as captures are
 * thread-local, and nothing else is launched before it is there. */
#include "backend/cuda/comm/nccl.h"

#include <dlfcn.h>
#include <unistd.h>

#define LIBRARY "libnccl.so.2"

/* What its header says, as far as it is used here; the interface is stable over all of version 2. */
typedef struct unique_id {
    char internal[128];
} unique_id;
typedef struct ncclComm *nccl_comm;
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_INT8 = 0, NCCL_BFLOAT16 = 9, NCCL_SUM = 0 };

/* As in 2.14, the first that has it: later ones take what they do not find here as not given. */
typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
} config;

/* result is NCCL_SUCCESS, NCCL_IN_PROGRESS or an error */
#define FUNCTIONS(X)                                                                                            \
    X(GetUniqueId, (unique_id * id))                                                                            \
    X(CommInitRankConfig, (nccl_comm * comm, int ranks, unique_id id, int rank, config *c))                     \
    X(CommGetAsyncError, (nccl_comm comm, int *result))                                                         \
    X(CommDestroy, (nccl_comm comm))                                                                            \
    X(CommAbort, (nccl_comm comm))                                                                              \
    X(AllReduce, (const void *x, void *y, size_t count, int type, int op, nccl_comm comm, cudaStream_t stream)) \
    X(AllGather, (const void *x, void *y, size_t count, int type, nccl_comm comm, cudaStream_t stream))
typedef struct library {
#define FIELD(name, params) int(*name) params;
    FUNCTIONS(FIELD)
#undef FIELD
    const char *(*GetErrorString)(int result);
} library;

struct pz_nccl {
    library lib;
    pz_comm *comm;
    nccl_comm nccl;
    unique_id id;
    int device;
};

static pz_status find(void *handle, const char *name, void *function, pz_error *err) {
    void *found = dlsym(handle, name);
    if (!found) return pz_fail(err, PZ_E_UNSUPPORTED, "no NCCL: " LIBRARY " has no %s", name);
    memcpy(function, &found, sizeof found);
    return PZ_OK;
}

/* It stays loaded, as CUDA's libraries do. */
static pz_status load(library *lib, pz_error *err) {
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        const char *why = dlerror();
        return pz_fail(err, PZ_E_UNSUPPORTED, "no NCCL: %s", why ? why : LIBRARY);
    }
#define FIND(name, params) PZ_TRY(find(handle, "nccl" #name, &lib->name, err));
    FUNCTIONS(FIND)
#undef FIND
    return find(handle, "ncclGetErrorString", &lib->GetErrorString, err);
}

/* ---- waiting ---- */
static pz_status check(const pz_nccl *n, int result, const char *what, pz_error *err) {
    if (result == NCCL_SUCCESS) return PZ_OK;
    return pz_fail(err, PZ_E_UNSUPPORTED, "NCCL, %s: %s", what, n->lib.GetErrorString(result));
}

static int64_t deadline(const pz_nccl *n) {
    return pz_now_ns() + (int64_t)pz_comm_timeout_ms(n->comm) * 1000000;
}

static pz_status wait_a_little(const pz_nccl *n, int64_t end, const char *what, pz_error *err) {
    PZ_TRY(pz_comm_check(n->comm, err));
    if (pz_now_ns() >= end)
        return pz_fail(err, PZ_E_TIMEOUT, "NCCL, %s: a rank of %d did not arrive within %d ms", what,
                       pz_comm_ranks(n->comm), pz_comm_timeout_ms(n->comm));
    usleep(20);
    return PZ_OK;
}

static pz_status wait_for_call(pz_nccl *n, int result, const char *what, pz_error *err) {
    int64_t end = deadline(n);
    while (result == NCCL_IN_PROGRESS) {
        PZ_TRY(wait_a_little(n, end, what, err));
        int state = NCCL_SUCCESS;
        result = n->lib.CommGetAsyncError(n->nccl, &state);
        if (result == NCCL_SUCCESS) result = state;
    }
    return check(n, result, what, err);
}

pz_status pz_nccl_wait(pz_nccl *n, cudaStream_t stream, pz_error *err) {
    int64_t end = deadline(n);
    cudaError_t code;
    while ((code = cudaStreamQuery(stream)) == cudaErrorNotReady) PZ_TRY(wait_a_little(n, end, "running", err));
    return pz_cuda_check(code, "running it", err);
}

/* ---- opening ---- */
/* Two ranks on one device would wait for each other in NCCL's opening for ever. */
static pz_status refuse_shared_device(const pz_nccl *n, void *const *all, pz_error *err) {
    for (int b = 1; b < pz_comm_ranks(n->comm); b++)
        for (int a = 0; a < b; a++) {
            int device = ((const pz_nccl *)all[a])->device;
            if (device == ((const pz_nccl *)all[b])->device)
                return pz_fail(err, PZ_E_UNSUPPORTED,
                               "NCCL needs a GPU per rank: rank %d and %d both are on GPU %d; PREZERO_SHARE_DEVICE "
                               "works only with peer writes",
                               a, b, device);
        }
    return PZ_OK;
}

static pz_status look_at_ranks(pz_nccl *n, void *const *all, pz_error *err) {
    PZ_TRY(refuse_shared_device(n, all, err));
    PZ_TRY(load(&n->lib, err));
    return pz_comm_rank(n->comm) ? PZ_OK : check(n, n->lib.GetUniqueId(&n->id), "id", err);
}

/* All ranks go on from here, with rank 0's id, or none does. */
static pz_status agree(pz_nccl *n, unique_id *id, pz_error *err) {
    void *all[PZ_MAX_RANKS];
    pz_error why;
    PZ_TRY(pz_comm_exchange(n->comm, n, all, err));
    pz_status st = look_at_ranks(n, all, err);
    pz_status met = pz_comm_exchange(n->comm, st == PZ_OK ? n : NULL, all, &why);
    if (st != PZ_OK) return st;
    if (met != PZ_OK) return pz_fail(err, met, "%s", why.msg);
    for (int r = 0; r < pz_comm_ranks(n->comm); r++)
        if (!all[r]) return pz_fail(err, PZ_E_UNSUPPORTED, "rank %d has no NCCL", r);
    *id = ((const pz_nccl *)all[0])->id;
    return pz_comm_barrier(n->comm, err);
}

static pz_status join(pz_nccl *n, pz_error *err) {
    config c = {.size = sizeof c, .magic = 0xcafebeef, .version = 21400, .blocking = 0};
    int ranks = pz_comm_ranks(n->comm), rank = pz_comm_rank(n->comm);
    void *all[PZ_MAX_RANKS];
    unique_id id;
    pz_error why;
    PZ_CUDA_TRY(cudaGetDevice(&n->device), err);
    PZ_TRY(agree(n, &id, err));
    pz_status st = wait_for_call(n, n->lib.CommInitRankConfig(&n->nccl, ranks, id, rank, &c), "opening", err);
    pz_status met = pz_comm_exchange(n->comm, st == PZ_OK ? n : NULL, all, &why);
    if (st != PZ_OK) return st;
    if (met != PZ_OK) return pz_fail(err, met, "%s", why.msg);
    for (int r = 0; r < ranks; r++)
        if (!all[r]) return pz_fail(err, PZ_E_UNSUPPORTED, "rank %d could not open NCCL", r);
    return PZ_OK;
}

void pz_nccl_abort(pz_nccl *n) {
    if (n->nccl) n->lib.CommAbort(n->nccl);
    n->nccl = NULL;
}

pz_status pz_nccl_open(pz_comm *comm, pz_nccl **out, pz_error *err) {
    pz_nccl *n = pz_calloc(1, sizeof *n);
    if (!n) return PZ_NOMEM(err);
    n->comm = comm;
    pz_status st = join(n, err);
    if (st == PZ_OK) {
        *out = n;
        return PZ_OK;
    }
    pz_nccl_abort(n);
    pz_free(n);
    return st;
}

void pz_nccl_close(pz_nccl *n) {
    if (!n) return;
    if (n->nccl && pz_comm_check(n->comm, NULL) == PZ_OK)
        n->lib.CommDestroy(n->nccl);
    else
        pz_nccl_abort(n);
    pz_free(n);
}

/* ---- collectives ---- */
pz_status pz_nccl_all_reduce(pz_nccl *n, const void *x, void *y, size_t count, cudaStream_t stream, pz_error *err) {
    return wait_for_call(n, n->lib.AllReduce(x, y, count, NCCL_BFLOAT16, NCCL_SUM, n->nccl, stream), "all-reduce", err);
}

pz_status pz_nccl_all_gather(pz_nccl *n, const void *x, void *y, size_t bytes, cudaStream_t stream, pz_error *err) {
    return wait_for_call(n, n->lib.AllGather(x, y, bytes, NCCL_INT8, n->nccl, stream), "all-gather", err);
}
