/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/comm/group.h"

#include <stdio.h>

#include "backend/cuda/comm/nccl.h"
#include "backend/cuda/state.h"

/* What a rank shows the others: read by them after an exchange, written before. */
typedef struct shown {
    unsigned char *workspace;
    int device;
} shown;

struct pz_cuda_group {
    pz_comm *comm;
    pz_group_view view;
    int hidden, rows; /* there is room for, in one step; of `hidden` elements */
    int one_shot;     /* for all launches; 0: as each says */
    int groups;       /* of backends, whose collectives may run at the same time */
    pz_cuda_block memory;
    pz_cuda_pinned missing;
    shown mine;
    int device[PZ_MAX_RANKS];
    int64_t meetings; /* of the ranks, about new workspaces */
    bool met, want_nccl;
    pz_nccl *nccl; /* NULL: the ranks write to each other's memory */
};

pz_status pz_cuda_group_open(pz_backend *b, const pz_backend_options *opts, pz_error *err) {
    pz_comm *comm = opts->comm;
    if (!comm || pz_comm_ranks(comm) < 2) return PZ_OK;
    if (opts->one_shot < 0 || opts->one_shot > PZ_GROUP_ROWS)
        return pz_fail(err, PZ_E_RANGE, "one_shot %d: must be 1 to %d rows, or 0", opts->one_shot, PZ_GROUP_ROWS);
    pz_cuda_group *g = b->group = pz_calloc(1, sizeof *g);
    if (!g) return PZ_NOMEM(err);
    g->comm = comm;
    g->want_nccl = opts->nccl;
    g->mine.device = b->device;
    g->one_shot = opts->one_shot;
    g->groups = opts->groups > 1 ? opts->groups : 1;
    g->view = (pz_group_view){.rank = pz_comm_rank(comm), .ranks = pz_comm_ranks(comm), .share = 1};
    g->view.timeout_ms = pz_comm_timeout_ms(comm);
    PZ_TRY(pz_cuda_pinned_grow(&g->missing, sizeof *g->view.missing, err));
    g->view.missing = g->missing.data;
    return PZ_OK;
}

/* Kernels of NCCL that a failed group has left on other ranks never end by themselves; none of them writes here. */
static void wait_for_devices(const pz_cuda_group *g) {
    if (g->nccl && pz_comm_check(g->comm, NULL) != PZ_OK) return;
    for (int r = 0; g->met && r < g->view.ranks; r++)
        if (cudaSetDevice(g->device[r]) == cudaSuccess) cudaDeviceSynchronize();
}

/* NCCL gives nothing back while a graph has its kernels. One that runs goes when it has ended. */
static void drop_graphs(pz_backend *b) {
    for (int i = 0; i < b->plans.n; i++) {
        pz_cuda_plan *s = b->plans.at[i];
        if (s->graph) cudaGraphExecDestroy(s->graph);
        s->graph = NULL;
    }
}

void pz_cuda_group_close(pz_backend *b) {
    pz_cuda_group *g = b->group;
    if (!g) return;
    if (g->nccl) drop_graphs(b);
    wait_for_devices(g);
    pz_cuda_enter(b, NULL);
    pz_nccl_close(g->nccl);
    pz_cuda_memory_free(b, &g->memory);
    pz_cuda_pinned_free(&g->missing);
    pz_free(g);
    b->group = NULL;
}

/* ---- meeting ---- */
pz_status pz_cuda_group_meet(pz_backend *b, pz_error *err) {
    return pz_comm_barrier(b->group->comm, err);
}

/* Whether each rank can write to the memory of every other one: the same answer on all ranks. */
static pz_status all_reach_all(const int *device, int ranks, bool *out, pz_error *err) {
    *out = true;
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < ranks; b++) {
            int ok = 1;
            if (device[a] != device[b]) PZ_CUDA_TRY(cudaDeviceCanAccessPeer(&ok, device[a], device[b]), err);
            if (!ok) *out = false;
        }
    return PZ_OK;
}

bool pz_cuda_group_gathers(const pz_backend *b) {
    const pz_cuda_group *g = b->group;
    int device[PZ_MAX_RANKS], n = 0;
    bool near = true;
    if (!g || g->want_nccl) return g != NULL;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 1) return false;
    for (int r = 0; r < g->view.ranks; r++) device[r] = (b->device - g->view.rank + r + n) % n;
    if (all_reach_all(device, g->view.ranks, &near, NULL) != PZ_OK) cudaGetLastError();
    return !near;
}

/* For the rest of the process, and asked for once: a second time would be an error of CUDA's. */
static pz_status reach(const pz_backend *b, int rank, pz_error *err) {
    static _Atomic uint64_t reached[64]; /* by each device, a bit each */
    int other = b->group->device[rank];
    bool known = b->device < 64 && other < 64;
    if (other == b->device || (known && reached[b->device] >> other & 1)) return PZ_OK;
    cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        code = cudaSuccess;
    }
    PZ_TRY(pz_cuda_check(code, "cudaDeviceEnablePeerAccess", err));
    if (known) reached[b->device] |= (uint64_t)1 << other;
    return PZ_OK;
}

static pz_status use_nccl(pz_backend *b, pz_error *err) {
    pz_cuda_group *g = b->group;
    if (!g->nccl) {
        pz_status st = pz_nccl_open(g->comm, &g->nccl, err);
        if (st != PZ_OK)
            return pz_fail_context(err, st, "these GPUs cannot write to each other's memory, or NCCL is asked for");
    }
    g->view.gathered = true;
    snprintf(b->isa, sizeof b->isa, "sm_%d+nccl", b->sm);
    /* its kernels are loaded and its connections made before anything is captured */
    PZ_TRY(pz_nccl_all_gather(g->nccl, (char *)g->memory.data + 16 * g->view.rank, g->memory.data, 16, b->stream, err));
    return pz_cuda_group_wait(b, err);
}

static pz_status meet_others(pz_backend *b, pz_error *err) {
    pz_cuda_group *g = b->group;
    void *all[PZ_MAX_RANKS];
    int here = 0;
    g->mine.workspace = g->memory.data;
    PZ_TRY(pz_comm_exchange(g->comm, &g->mine, all, err));
    for (int r = 0; r < g->view.ranks; r++) {
        const shown *other = all[r];
        g->view.workspace[r] = other->workspace;
        g->device[r] = other->device;
        here += other->device == b->device;
    }
    g->met = true;
    bool near;
    PZ_TRY(all_reach_all(g->device, g->view.ranks, &near, err));
    if (g->want_nccl || !near) return use_nccl(b, err);
    for (int r = 0; r < g->view.ranks; r++) PZ_TRY(reach(b, r, err));
    g->view.share = here * g->groups;
    return pz_comm_barrier(g->comm, err); /* all have read what is shown, and can reach each other */
}

static pz_status new_memory(pz_backend *b, int hidden, int rows, pz_error *err) {
    pz_cuda_group *g = b->group;
    g->view.one_shot = rows;
    int64_t buffer = pz_group_buffer_bytes(&g->view, hidden), bytes = PZ_GROUP_HEADER + PZ_GROUP_BUFFERS * buffer;
    if (bytes > UINT32_MAX)
        return pz_fail(err, PZ_E_UNSUPPORTED, "collectives over %d ranks of rows of %d: their buffers exceed 4 GiB",
                       g->view.ranks, hidden);
    pz_cuda_memory_free(b, &g->memory);
    PZ_TRY(pz_cuda_memory(b, "the buffers of collectives", bytes, &g->memory, err));
    PZ_CUDA_TRY(cudaMemsetAsync((unsigned char *)g->memory.data + PZ_GROUP_HEADER, PZ_GROUP_EMPTY,
                                (size_t)(bytes - PZ_GROUP_HEADER), b->stream),
                err);
    PZ_CUDA_TRY(cudaStreamSynchronize(b->stream), err);
    g->view.buffer_bytes = buffer;
    g->hidden = hidden;
    g->rows = rows;
    return PZ_OK;
}

pz_status pz_cuda_group_reserve(pz_backend *b, int hidden, int one_shot, pz_error *err) {
    pz_cuda_group *g = b->group;
    int rows = g->one_shot ? g->one_shot : one_shot;
    if (hidden == 0 || (hidden <= g->hidden && rows <= g->rows)) return PZ_OK;
    if (rows < g->rows) rows = g->rows;
    if (hidden < g->hidden) hidden = g->hidden;
    PZ_CUDA_TRY(cudaStreamSynchronize(b->stream), err);
    PZ_TRY(pz_comm_barrier(g->comm, err)); /* nobody writes to the old buffers any more */
    g->met = false;                        /* nor does this rank, should it fail: the others free theirs */
    g->meetings++;
    PZ_TRY(new_memory(b, hidden, rows, err));
    return meet_others(b, err);
}

int64_t pz_cuda_group_meetings(const pz_backend *b) {
    return b->group ? b->group->meetings : 0;
}

pz_nccl *pz_cuda_group_nccl(const pz_backend *b) {
    return b->group ? b->group->nccl : NULL;
}

pz_group_view pz_cuda_group_view(const pz_backend *b, bool alone, int one_shot) {
    pz_group_view view = b->group->view;
    view.alone = alone;
    view.one_shot = b->group->one_shot ? b->group->one_shot : one_shot;
    return view;
}

/* ---- failure ---- */
static void name_missing(const pz_cuda_group *g, uint32_t missing, pz_error *out) {
    char list[4 * PZ_MAX_RANKS] = "";
    int n = 0, count = 0;
    for (int r = 0; r < g->view.ranks; r++)
        if (missing >> r & 1) n += snprintf(list + n, sizeof list - (size_t)n, count++ ? ", %d" : "%d", r);
    pz_fail(out, PZ_E_TIMEOUT, "rank%s %s of %d did not arrive within %d ms", count > 1 ? "s" : "", list, g->view.ranks,
            g->view.timeout_ms);
}

pz_status pz_cuda_group_check(pz_backend *b, pz_error *err) {
    pz_cuda_group *g = b->group;
    if (!g || !g->view.missing) return PZ_OK;
    uint32_t missing = __atomic_load_n(g->view.missing, __ATOMIC_ACQUIRE);
    if (!missing) return PZ_OK;
    if (missing & PZ_GROUP_FAILED) PZ_TRY(pz_comm_check(g->comm, err));
    pz_error why;
    name_missing(g, missing, &why);
    pz_comm_fail(g->comm, &why);
    return pz_fail(err, PZ_E_TIMEOUT, "%s", why.msg);
}

static pz_status wait_for_nccl(pz_backend *b, pz_error *err) {
    pz_cuda_group *g = b->group;
    pz_error why;
    PZ_TRY(pz_comm_check(g->comm, err)); /* an aborted stream looks done */
    pz_status st = pz_nccl_wait(g->nccl, b->stream, &why);
    if (st == PZ_OK) return PZ_OK;
    pz_comm_fail(g->comm, &why);
    drop_graphs(b);
    pz_nccl_abort(g->nccl);
    cudaStreamSynchronize(b->stream);
    return pz_fail(err, st, "%s", why.msg);
}

pz_status pz_cuda_group_wait(pz_backend *b, pz_error *err) {
    if (b->group->nccl) return wait_for_nccl(b, err);
    PZ_TRY(pz_cuda_check(cudaStreamSynchronize(b->stream), "running it", err));
    return pz_cuda_group_check(b, err);
}

pz_status pz_cuda_group_ready(pz_backend *b, pz_error *err) {
    PZ_TRY(pz_cuda_group_check(b, err));
    if (pz_cuda_group_nccl(b)) PZ_TRY(pz_cuda_group_wait(b, err));
    return b->group ? pz_comm_check(b->group->comm, err) : PZ_OK;
}

/* In a stream of its own: what is in the backend's may wait for other ranks. It is made here and not before, as streams
 * beyond the device's few queues wait for each other. */
static void tell_all(const pz_cuda_group *g) {
    uint32_t me = PZ_GROUP_FAILED | 1u << g->view.rank;
    cudaStream_t aside = NULL;
    if (cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking) == cudaSuccess) {
        for (int r = 0; r < g->view.ranks; r++)
            cudaMemcpyAsync(&((pz_group_header *)(void *)g->view.workspace[r])->missing, &me, sizeof me,
                            cudaMemcpyDefault, aside);
        cudaStreamSynchronize(aside);
        cudaStreamDestroy(aside);
    }
    cudaGetLastError();
}

pz_status pz_cuda_group_fail(pz_backend *b, pz_status st, const pz_error *why) {
    pz_cuda_group *g = b->group;
    if (!g || st == PZ_OK || pz_comm_check(g->comm, NULL) != PZ_OK) return st;
    pz_comm_fail(g->comm, why);
    if (g->met && !g->nccl) tell_all(g);
    return st;
}
