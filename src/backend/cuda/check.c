/* SPDX-License-Identifier: Apache-2.0 */
/* Debug mode: the plan's promises, checked on the device around every launch. The arena was poisoned before, so that
 * memory which nobody has written is not zero by chance. */
#include "backend/cuda/check.h"

#include "backend/cuda/comm/group.h"
#include "backend/cuda/state.h"

static pz_status begin(const pz_backend *b, pz_error *err) {
    static const pz_cuda_finding none = {0, ~0ull};
    return pz_cuda_check(cudaMemcpyAsync(b->counts.data, &none, sizeof none, cudaMemcpyHostToDevice, b->stream),
                         "debug mode", err);
}

static pz_status end(const pz_backend *b, pz_cuda_finding *out, pz_error *err) {
    PZ_CUDA_TRY(cudaMemcpyAsync(out, b->counts.data, sizeof *out, cudaMemcpyDeviceToHost, b->stream), err);
    return pz_cuda_check(cudaStreamSynchronize(b->stream), "debug mode", err);
}

static pz_status find_nonzero(const pz_cuda_run *r, int64_t offset, int64_t bytes, pz_cuda_finding *out,
                              pz_error *err) {
    PZ_TRY(begin(r->b, err));
    PZ_TRY(pz_cuda_find_nonzero(r->arena + offset, bytes, r->b->counts.data, r->stream, err));
    return end(r->b, out, err);
}

/* Just before a GEMM adds: its slice must be what the rider left. */
static pz_status check_consumer(const pz_cuda_run *r, int launch, pz_error *err) {
    const pz_launch *l = &r->plan->launches.at[launch];
    if (l->op != PZ_OP_GEMM || l->strategy != PZ_ZERO_PREZERO) return PZ_OK;
    if (l->slice < 0 || l->slice >= r->plan->slices.n)
        return pz_fail(err, PZ_E_INTERNAL, "launch %d, %s: adds without zeroing and has no slice", launch, l->role);
    const pz_slice *s = &r->plan->slices.at[l->slice];
    pz_cuda_finding f;
    PZ_TRY(find_nonzero(r, s->offset, s->bytes, &f, err));
    if (f.count == 0) return PZ_OK;
    return pz_fail(err, PZ_E_INTERNAL,
                   "launch %d, %s: %llu of the %lld words that it adds to are not zero, the first at byte %llu; the "
                   "rider of launch %d should have zeroed them",
                   launch, l->role, f.count, (long long)s->bytes / 4, f.first, r->plan->fills.at[s->fill].donor);
}

/* Just after a donor: all of its fill is zero. */
static pz_status check_donor(const pz_cuda_run *r, int launch, pz_error *err) {
    const pz_launch *l = &r->plan->launches.at[launch];
    const pz_fill *fill = l->fill >= 0 ? &r->plan->fills.at[l->fill] : NULL;
    if (!fill || fill->bytes == 0) return PZ_OK;
    pz_cuda_finding f;
    PZ_TRY(find_nonzero(r, fill->offset, fill->bytes, &f, err));
    if (f.count == 0) return PZ_OK;
    return pz_fail(err, PZ_E_INTERNAL, "launch %d, %s: its rider left %llu of %lld words, the first at byte %llu",
                   launch, l->role, f.count, (long long)fill->bytes / 4, f.first);
}

/* A launch writes what the plan says, and nothing else of the arena: so a rider zeroes exactly its fill. */
static pz_status check_writes(const pz_cuda_run *r, int launch, pz_error *err) {
    pz_access accesses[PZ_MAX_ACCESSES];
    pz_cuda_ranges allowed = {0};
    int n = pz_launch_accesses(r->plan, launch, accesses);
    for (int i = 0; i < n; i++) {
        if (accesses[i].kind == PZ_READ) continue;
        allowed.begin[allowed.n] = accesses[i].offset;
        allowed.end[allowed.n++] = accesses[i].offset + accesses[i].bytes;
    }
    pz_cuda_finding f;
    PZ_TRY(begin(r->b, err));
    PZ_TRY(pz_cuda_find_changed(r->arena, r->b->snapshot.data, r->plan->arena_bytes / 4 * 4, &allowed,
                                r->b->counts.data, r->stream, err));
    PZ_TRY(end(r->b, &f, err));
    if (f.count == 0) return PZ_OK;
    return pz_fail(
        err, PZ_E_INTERNAL,
        "launch %d, %s: changed %llu words of the arena that the plan does not give it, the first at byte %llu", launch,
        r->plan->launches.at[launch].role, f.count, f.first);
}

static pz_status make_room(pz_backend *b, int64_t bytes, pz_error *err) {
    if (!b->counts.data) PZ_TRY(pz_cuda_memory(b, "debug mode", (int64_t)sizeof(pz_cuda_finding), &b->counts, err));
    if (b->snapshot.bytes >= bytes) return PZ_OK;
    PZ_CUDA_TRY(cudaStreamSynchronize(b->stream), err);
    pz_cuda_memory_free(b, &b->snapshot);
    return pz_cuda_memory(b, "debug mode: a copy of the arena", bytes, &b->snapshot, err);
}

pz_status pz_cuda_launch_checked(pz_cuda_run *r, pz_error *err) {
    PZ_TRY(make_room(r->b, r->plan->arena_bytes, err));
    for (int i = 0; i < r->plan->launches.n; i++) {
        PZ_TRY(check_consumer(r, i, err));
        PZ_CUDA_TRY(cudaMemcpyAsync(r->b->snapshot.data, r->arena, (size_t)r->plan->arena_bytes,
                                    cudaMemcpyDeviceToDevice, r->stream),
                    err);
        r->dependent = false;
        PZ_TRY(pz_cuda_launch_one(r, i, err));
        pz_status st = r->b->group ? pz_cuda_group_wait(r->b, err)
                                   : pz_cuda_check(cudaStreamSynchronize(r->stream), "running it", err);
        if (st != PZ_OK) return pz_fail_context(err, st, "launch %d, %s", i, r->plan->launches.at[i].role);
        PZ_TRY(check_donor(r, i, err));
        PZ_TRY(check_writes(r, i, err));
    }
    return PZ_OK;
}
