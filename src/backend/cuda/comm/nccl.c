/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/comm/nccl.h"

#include <dlfcn.h>

#define LIBRARY "libnccl.so.2"

/* What its header says, as far as it is used here; the interface is stable over all of version 2. */
typedef struct unique_id {
    char internal[128];
} unique_id;
typedef struct ncclComm *nccl_comm;
enum { NCCL_INT8 = 0, NCCL_BFLOAT16 = 9, NCCL_SUM = 0 };

/* result is 0 for success */
#define FUNCTIONS(X)                                                                                            \
    X(GetUniqueId, (unique_id * id))                                                                            \
    X(CommInitRank, (nccl_comm * comm, int ranks, unique_id id, int rank))                                      \
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

static pz_status check(const pz_nccl *n, int result, const char *what, pz_error *err) {
    if (result == 0) return PZ_OK;
    return pz_fail(err, PZ_E_UNSUPPORTED, "NCCL, %s: %s", what, n->lib.GetErrorString(result));
}

static pz_status make(pz_nccl *n, pz_error *err) {
    PZ_TRY(load(&n->lib, err));
    return pz_comm_rank(n->comm) ? PZ_OK : check(n, n->lib.GetUniqueId(&n->id), "id", err);
}

/* All ranks learn whether all have loaded it, and the id. */
static pz_status join(pz_nccl *n, bool ready, pz_error *err) {
    void *all[PZ_MAX_RANKS];
    unique_id id;
    PZ_TRY(pz_comm_exchange(n->comm, ready ? n : NULL, all, err));
    for (int r = 0; r < pz_comm_ranks(n->comm); r++)
        if (!all[r]) return ready ? pz_fail(err, PZ_E_UNSUPPORTED, "rank %d has no NCCL", r) : PZ_E_UNSUPPORTED;
    id = ((const pz_nccl *)all[0])->id;
    PZ_TRY(pz_comm_barrier(n->comm, err));
    return check(n, n->lib.CommInitRank(&n->nccl, pz_comm_ranks(n->comm), id, pz_comm_rank(n->comm)), "opening", err);
}

pz_status pz_nccl_open(pz_comm *comm, pz_nccl **out, pz_error *err) {
    pz_nccl *n = pz_calloc(1, sizeof *n);
    if (!n) return PZ_NOMEM(err);
    n->comm = comm;
    pz_status st = make(n, err);
    pz_error why;
    pz_status joined = join(n, st == PZ_OK, &why);
    if (st == PZ_OK && joined != PZ_OK) st = pz_fail(err, joined, "%s", why.msg);
    if (st != PZ_OK)
        pz_nccl_close(n);
    else
        *out = n;
    return st;
}

void pz_nccl_abort(pz_nccl *n) {
    if (n->nccl) n->lib.CommAbort(n->nccl);
    n->nccl = NULL;
}

void pz_nccl_close(pz_nccl *n) {
    if (!n) return;
    if (n->nccl && pz_comm_check(n->comm, NULL) == PZ_OK)
        n->lib.CommDestroy(n->nccl);
    else
        pz_nccl_abort(n);
    pz_free(n);
}

pz_status pz_nccl_all_reduce(pz_nccl *n, const void *x, void *y, size_t count, cudaStream_t stream, pz_error *err) {
    return check(n, n->lib.AllReduce(x, y, count, NCCL_BFLOAT16, NCCL_SUM, n->nccl, stream), "all-reduce", err);
}

pz_status pz_nccl_all_gather(pz_nccl *n, const void *x, void *y, size_t bytes, cudaStream_t stream, pz_error *err) {
    return check(n, n->lib.AllGather(x, y, bytes, NCCL_INT8, n->nccl, stream), "all-gather", err);
}
