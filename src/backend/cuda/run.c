/* SPDX-License-Identifier: Apache-2.0 */
/* Running a plan: checking it once, sending the inputs, launching. */
#include "backend/cuda/comm/group.h"
#include "backend/cuda/state.h"

#ifdef PZ_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#define RANGE_BEGIN(r, text) ((r)->b->ranges ? (void)nvtxRangePushA(text) : (void)0)
#define RANGE_END(r) ((r)->b->ranges ? (void)nvtxRangePop() : (void)0)
#else
#define RANGE_BEGIN(r, text) ((void)(r))
#define RANGE_END(r) ((void)(r))
#endif

/* ---- kernels ---- */
typedef struct kernel {
    pz_cuda_check_fn check;
    pz_cuda_run_fn run;
} kernel;

static const kernel kernels[PZ_OP_COUNT] = {
#define KERNEL(op, name) [PZ_OP_##op] = {pz_cuda_check_##name, pz_cuda_run_##name},
#include "backend/cuda/kernels.def"
#undef KERNEL
};
enum {
    N_KERNELS = 0
#define KERNEL(op, name) +1
#include "backend/cuda/kernels.def"
#undef KERNEL
};
_Static_assert((int)N_KERNELS == (int)PZ_OP_COUNT, "kernels.def needs one row for each op");

/* ---- what is kept for a plan ---- */
void pz_cuda_plan_free(pz_backend *b, pz_cuda_plan *s) {
    if (!s) return;
    if (s->graph) cudaGraphExecDestroy(s->graph);
    for (int i = 0; s->events && i <= s->plan->launches.n; i++)
        if (s->events[i]) cudaEventDestroy(s->events[i]);
    pz_cuda_memory_free(b, &s->scratch);
    pz_free(s->events);
    pz_free(s->parts);
    pz_free(s);
}

static pz_status check_launches(pz_cuda_run *r, pz_error *err) {
    for (int i = 0; i < r->plan->launches.n; i++) {
        const pz_launch *l = &r->plan->launches.at[i];
        if ((unsigned)l->op >= PZ_OP_COUNT)
            return pz_fail(err, PZ_E_INTERNAL, "cuda, launch %d: unknown op %d", i, (int)l->op);
        PZ_TRY(kernels[l->op].check(r, l, err));
    }
    return PZ_OK;
}

static pz_status reserve_scratch(pz_backend *b, pz_cuda_plan *s, pz_error *err) {
    size_t total = 0;
    for (int i = 0; i < s->plan->launches.n; i++) {
        pz_cuda_scratch_part *part = &s->parts[i];
        part->offset = total;
        if (!pz_add_ok(total, part->bytes, &total) || total > INT64_MAX / 2) return PZ_NOMEM(err);
        total = pz_align_up(total, 256);
    }
    return total ? pz_cuda_memory(b, "workspaces", (int64_t)total, &s->scratch, err) : PZ_OK;
}

static pz_status prepare(pz_backend *b, const pz_plan *plan, pz_cuda_plan *s, pz_error *err) {
    s->plan = plan;
    s->parts = pz_calloc((size_t)plan->launches.n + 1, sizeof *s->parts);
    if (!s->parts) return PZ_NOMEM(err);
    pz_cuda_run r = {.b = b, .plan = plan, .state = s, .m = plan->m};
    PZ_TRY(check_launches(&r, err));
    if (b->group) PZ_TRY(pz_cuda_group_reserve(b, s->hidden, s->one_shot, err));
    PZ_TRY(reserve_scratch(b, s, err));
    return pz_push(&b->plans, s, err);
}

pz_status pz_cuda_plan_get(pz_backend *b, const pz_plan *plan, pz_cuda_plan **out, pz_error *err) {
    for (int i = 0; i < b->plans.n; i++)
        if ((*out = b->plans.at[i])->plan == plan) return PZ_OK;
    if (plan->m < 1) return pz_fail(err, PZ_E_INVAL, "cuda: a plan of %d rows", plan->m);
    pz_cuda_plan *s = pz_calloc(1, sizeof *s);
    if (!s) return PZ_NOMEM(err);
    pz_status st = prepare(b, plan, s, err);
    if (st != PZ_OK)
        pz_cuda_plan_free(b, s);
    else
        *out = s;
    return st;
}

/* ---- inputs ---- */
static pz_status send(const pz_backend *b, void *dst, const void *src, size_t bytes, pz_error *err) {
    return pz_cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, b->stream), "sending inputs", err);
}

/* The inputs lie in one piece of the arena, apart from padding that is nobody's, or each is sent on its own. */
static pz_status send_inputs(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    int64_t lo = INT64_MAX, hi = 0, sum = 0, row = (int64_t)pz_align_up((size_t)plan->m * sizeof(int32_t), 64);
    for (int i = 0; i < plan->inputs.n; i++) {
        int64_t offset = plan->places.at[plan->inputs.at[i]].offset;
        lo = offset < lo ? offset : lo;
        hi = offset + row > hi ? offset + row : hi;
        sum += row;
    }
    if (!args->inputs || !sum) return PZ_OK;
    bool one_piece = hi - lo == sum && hi <= plan->arena_bytes;
    PZ_TRY(pz_cuda_pinned_grow(&b->inputs, (size_t)sum, err));
    unsigned char *stage = b->inputs.data;
    for (int i = 0; i < plan->inputs.n; i++) {
        int64_t offset = plan->places.at[plan->inputs.at[i]].offset;
        unsigned char *at = stage + (one_piece ? offset - lo : i * row);
        memcpy(at, args->inputs[i], (size_t)plan->m * sizeof(int32_t));
        if (!one_piece) PZ_TRY(send(b, args->arena + offset, at, (size_t)plan->m * sizeof(int32_t), err));
    }
    return one_piece ? send(b, args->arena + lo, stage, (size_t)sum, err) : PZ_OK;
}

/* The part of the block table that differs from what the device has. */
static pz_status send_table(pz_backend *b, const pz_cache *cache, int n_sequences, pz_error *err) {
    size_t cells;
    if (!pz_mul_ok((size_t)n_sequences, (size_t)cache->table_stride, &cells) || cells > INT32_MAX)
        return pz_fail(err, PZ_E_RANGE, "cuda: a block table of %d x %d pages", n_sequences, cache->table_stride);
    size_t known = (size_t)b->table_memory.bytes / sizeof(int32_t), first = 0, end = cells;
    PZ_TRY(pz_cuda_pinned_grow(&b->table, cells * sizeof(int32_t), err));
    int32_t *have = b->table.data;
    if (cells > known) {
        PZ_CUDA_TRY(cudaStreamSynchronize(b->stream), err);
        pz_cuda_memory_free(b, &b->table_memory);
        PZ_TRY(pz_cuda_memory(b, "the block table", (int64_t)(cells * sizeof(int32_t)), &b->table_memory, err));
    } else {
        while (first < end && have[first] == cache->block_table[first]) first++;
        while (end > first && have[end - 1] == cache->block_table[end - 1]) end--;
    }
    if (first == end) return PZ_OK;
    memcpy(have + first, cache->block_table + first, (end - first) * sizeof *have);
    pz_status st = send(b, (int32_t *)b->table_memory.data + first, have + first, (end - first) * sizeof *have, err);
    if (st != PZ_OK) pz_cuda_memory_free(b, &b->table_memory); /* the next run sends all of it */
    return st;
}

static pz_status send_cache(pz_backend *b, const pz_run_args *args, pz_error *err) {
    const pz_cache *c = args->cache;
    if (!c) return PZ_OK;
    if (c->dt != PZ_DT_BF16 && c->dt != PZ_DT_F32)
        return pz_fail(err, PZ_E_UNSUPPORTED, "cuda: a latent cache of %s; bf16 and f32 are supported",
                       pz_dtype_text(c->dt));
    if (c->block_table && args->n_sequences > 0) PZ_TRY(send_table(b, c, args->n_sequences, err));
    pz_cuda_cache now, *have = b->descriptor.data;
    memset(&now, 0, sizeof now); /* the padding is compared too */
    now.data = c->data;
    now.layer_stride = c->layer_stride;
    now.block_table = b->table_memory.data;
    now.table_stride = c->table_stride;
    now.page_tokens = c->page_tokens;
    now.entry = c->entry;
    now.bf16 = c->dt == PZ_DT_BF16;
    if (memcmp(&now, have, sizeof now) == 0) return PZ_OK;
    memcpy(have, &now, sizeof now);
    pz_status st = send(b, b->cache.data, have, sizeof now, err);
    if (st != PZ_OK) memset(have, 0, sizeof now);
    return st;
}

static pz_status send_all(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    PZ_CUDA_TRY(cudaEventSynchronize(b->uploaded), err);
    if ((args->poison || b->check) && args->inputs)
        PZ_CUDA_TRY(cudaMemsetAsync(args->arena, 0xFF, (size_t)plan->arena_bytes, b->stream), err);
    PZ_TRY(send_inputs(b, plan, args, err));
    PZ_TRY(send_cache(b, args, err));
    return pz_cuda_check(cudaEventRecord(b->uploaded, b->stream), "cudaEventRecord", err);
}

/* ---- launching ---- */
pz_status pz_cuda_launch_one(pz_cuda_run *r, int launch, pz_error *err) {
    const pz_launch *l = &r->plan->launches.at[launch];
    RANGE_BEGIN(r, l->role);
    pz_status st = kernels[l->op].run(r, l, err);
    RANGE_END(r);
    r->dependent = true;
    return st == PZ_OK ? PZ_OK : pz_fail_context(err, st, "launch %d, %s", launch, l->role);
}

pz_status pz_cuda_launch_all(pz_cuda_run *r, pz_error *err) {
    r->dependent = false;
    for (int i = 0; i < r->plan->launches.n; i++) PZ_TRY(pz_cuda_launch_one(r, i, err));
    return PZ_OK;
}

static pz_status make_events(pz_cuda_plan *s, pz_error *err) {
    if (s->events) return PZ_OK;
    s->events = pz_calloc((size_t)s->plan->launches.n + 1, sizeof *s->events);
    if (!s->events) return PZ_NOMEM(err);
    for (int i = 0; i <= s->plan->launches.n; i++) PZ_CUDA_TRY(cudaEventCreate(&s->events[i]), err);
    return PZ_OK;
}

/* An event between launches ends their overlap: the times are those of kernels that run alone. */
static pz_status launch_timed(pz_cuda_run *r, int64_t *launch_ns, pz_error *err) {
    PZ_TRY(make_events(r->state, err));
    cudaEvent_t *events = r->state->events;
    int n = r->plan->launches.n;
    PZ_CUDA_TRY(cudaEventRecord(events[0], r->stream), err);
    for (int i = 0; i < n; i++) {
        r->dependent = false;
        PZ_TRY(pz_cuda_launch_one(r, i, err));
        PZ_CUDA_TRY(cudaEventRecord(events[i + 1], r->stream), err);
    }
    if (r->b->group)
        PZ_TRY(pz_cuda_group_wait(r->b, err));
    else
        PZ_CUDA_TRY(cudaStreamSynchronize(r->stream), err);
    for (int i = 0; i < n; i++) {
        float ms;
        PZ_CUDA_TRY(cudaEventElapsedTime(&ms, events[i], events[i + 1]), err);
        launch_ns[i] += (int64_t)((double)ms * 1e6);
    }
    return PZ_OK;
}

/* The first run is eager: it loads the kernels, which a capture must not. The second and later ones replay. */
static pz_status launch_graph(pz_cuda_run *r, pz_error *err) {
    if (r->state->graph) return pz_cuda_check(cudaGraphLaunch(r->state->graph, r->stream), "cudaGraphLaunch", err);
    PZ_TRY(pz_cuda_launch_all(r, err));
    return pz_cuda_capture(r, err);
}

static bool same_addresses(const pz_cuda_addresses *a, const pz_cuda_addresses *b) {
    return a->arena == b->arena && a->cache == b->cache && a->scratch == b->scratch && a->weights == b->weights &&
           a->meetings == b->meetings;
}

/* A graph holds addresses. Where one has changed it is dropped and captured anew; debug mode says that whoever changed
 * it did not forget the plan first. The workspaces of the ranks are the backend's to move. */
static pz_status compare_addresses(pz_cuda_run *r, pz_error *err) {
    pz_cuda_plan *s = r->state;
    pz_cuda_addresses now = {r->arena, r->cache, s->scratch.data, r->b->loads, pz_cuda_group_meetings(r->b)};
    if (!s->used.arena || same_addresses(&now, &s->used)) {
        s->used = now;
        return PZ_OK;
    }
    pz_cuda_addresses given = now;
    given.meetings = s->used.meetings;
    if (r->b->check && !same_addresses(&given, &s->used))
        return pz_fail(
            err, PZ_E_INTERNAL,
            "cuda, plan of %d rows: run before with arena %p, workspaces %p and %lld weights, now with %p, %p "
            "and %lld: a captured graph would replay the old addresses; forget the plan first",
            s->plan->m, s->used.arena, s->used.scratch, (long long)s->used.weights, now.arena, now.scratch,
            (long long)now.weights);
    PZ_CUDA_TRY(cudaStreamSynchronize(r->stream), err);
    if (s->graph) cudaGraphExecDestroy(s->graph);
    s->graph = NULL;
    s->loaded = false;
    s->used = now;
    return PZ_OK;
}

/* Several ranks, before a plan's first run: one that waits for nobody, whose results nobody sees. It loads the kernels,
 * and then the graph is captured. While a kernel waits for other ranks, none of these may have to do either: the driver
 * may let it wait for the kernels that run. */
static pz_status load_all(pz_cuda_run *r, const pz_run_args *args, pz_error *err) {
    pz_backend *b = r->b;
    r->alone = true;
    PZ_TRY(pz_cuda_launch_all(r, err));
    r->alone = false;
    PZ_CUDA_TRY(cudaStreamSynchronize(r->stream), err);
    if (args->launch_ns) PZ_TRY(make_events(r->state, err));
    if (!b->check && !b->eager) PZ_TRY(pz_cuda_capture(r, err));
    PZ_TRY(send_all(b, r->plan, args, err));
    PZ_CUDA_TRY(cudaStreamSynchronize(r->stream), err);
    PZ_TRY(pz_cuda_group_meet(b, err));
    r->state->loaded = true;
    return PZ_OK;
}

static pz_status run_plan(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    pz_cuda_run r = {.b = b, .plan = plan, .arena = args->arena, .m = plan->m, .stream = b->stream};
    PZ_TRY(pz_cuda_enter(b, err));
    PZ_TRY(pz_cuda_group_ready(b, err));
    PZ_TRY(pz_cuda_plan_get(b, plan, &r.state, err));
    PZ_TRY(send_all(b, plan, args, err));
    r.cache = args->cache ? b->cache.data : NULL;
    PZ_TRY(compare_addresses(&r, err));
    if (b->group && !r.state->loaded) PZ_TRY(load_all(&r, args, err));
    if (args->launch_ns) return launch_timed(&r, args->launch_ns, err);
    if (b->check) return pz_cuda_launch_checked(&r, err);
    if (b->eager) return pz_cuda_launch_all(&r, err);
    return launch_graph(&r, err);
}

/* A rank that fails takes the others with it: their kernels would wait for its own. */
pz_status pz_cuda_run_plan(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    if (!b->group) return run_plan(b, plan, args, err);
    pz_error why;
    pz_status st = pz_cuda_group_fail(b, run_plan(b, plan, args, &why), &why);
    return st == PZ_OK ? PZ_OK : pz_fail(err, st, "%s", why.msg);
}
