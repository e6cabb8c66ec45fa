/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: the launch is given to a twin on the CPU, over the same memory. Weights are loaded into both, and the forms
 * that the backend has made are compared with the host's values at once. */
#include "fake.h"

#include "backend/cuda/check.h"
#include "backend/cuda/comm/group.h"
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/norm/norm.h"
#include "backend/cuda/state.h"
#include "backend/host_rows.h"
#include "base/fixed.h"

/* ---- twins ---- */
typedef struct twin {
    pz_backend *cuda, *cpu;
} twin;
static PZ_VEC(twin) twins;

static pz_backend *twin_of(const pz_backend *b) {
    for (int i = 0; i < twins.n; i++)
        if (twins.at[i].cuda == b) return twins.at[i].cpu;
    return NULL;
}

static pz_status fake_open(const pz_backend_options *opts, pz_backend **out, pz_error *err) {
    twin t = {0};
    PZ_TRY(pz_cuda_backend.open(opts, &t.cuda, err));
    pz_status st = pz_backend_cpu()->open(&(pz_backend_options){.threads = 1}, &t.cpu, err);
    if (st == PZ_OK) st = pz_push(&twins, t, err);
    if (st != PZ_OK) {
        pz_cuda_backend.close(t.cuda);
        pz_backend_cpu()->close(t.cpu);
        return st;
    }
    *out = t.cuda;
    return PZ_OK;
}

static void fake_close(pz_backend *b) {
    if (!b) return;
    for (int i = 0; i < twins.n; i++) {
        if (twins.at[i].cuda != b) continue;
        pz_backend_cpu()->close(twins.at[i].cpu);
        twins.at[i] = twins.at[--twins.n];
    }
    if (twins.n == 0) pz_vec_free(&twins);
    pz_cuda_backend.close(b);
}

/* Plans as for the CPU, which has to run them. */
static void fake_device(const pz_backend *b, pz_device *out) {
    pz_device_find("cpu", b->units, out, NULL);
}

/* ---- weights ---- */
static float stored(const pz_cuda_weight *e, int64_t row, int64_t col) {
    if (e->vector) return e->vector[col];
    if (e->bf16) return pz_bf16_to_f32(((const uint16_t *)e->bf16)[row * e->cols + col]);
    static const float values[8] = {0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};
    int code = e->fp4[(row * e->cols + col) / 2] >> (col % 2 * 4) & 15;
    float v = ldexpf(values[code & 7], e->scale[(row * e->cols + col) / 32] - 127);
    return code & 8 ? -v : v;
}

static pz_status compare_forms(const pz_backend *b, const pz_weight *w, const pz_host_weight *h, pz_error *err) {
    const pz_cuda_weight *e = pz_cuda_weight_of(b, w);
    float *row = pz_calloc((size_t)h->cols, sizeof *row);
    if (!row) return PZ_NOMEM(err);
    pz_host_hint hint = {0};
    pz_status st = PZ_OK;
    for (int64_t r = 0; r < h->rows && st == PZ_OK; r++) {
        pz_host_row_values(h, pz_host_find_row(h, &hint, r), row);
        for (int64_t c = 0; c < h->cols && st == PZ_OK; c++) {
            float v = stored(e, r, c);
            if (memcmp(&v, &row[c], sizeof v) != 0 && !(v != v && row[c] != row[c]))
                st = pz_fail(err, PZ_E_INTERNAL, "weight %s (%lld, %lld): %g on the device, %g in the file", w->name,
                             (long long)r, (long long)c, (double)v, (double)row[c]);
        }
    }
    pz_free(row);
    return st;
}

static pz_status fake_load(pz_backend *b, const pz_weight *w, pz_op use, const pz_host_weight *h, pz_error *err) {
    PZ_TRY(pz_cuda_backend.load(b, w, use, h, err));
    PZ_TRY(compare_forms(b, w, h, err));
    return pz_backend_cpu()->load(twin_of(b), w, use, h, err);
}

pz_status pz_cuda_weight_norms(const void *w, int64_t ldw, int n, int k, float *w_norm, void *stream, pz_error *err) {
    (void)stream, (void)err;
    const uint16_t *at = w;
    for (int i = 0; i < n; i++, at += ldw) {
        double sum = 0;
        for (int c = 0; c < k; c++) sum += (double)pz_bf16_to_f32(at[c]) * (double)pz_bf16_to_f32(at[c]);
        w_norm[i] = pz_fixed_norm(sum);
    }
    return PZ_OK;
}

/* ---- launches ---- */
static pz_error launch_error;
static bool launch_failed;

/* Changes the first word of the arena that the launch has nothing to do with. */
static void write_elsewhere(const fake_launch *l) {
    pz_access a[PZ_MAX_ACCESSES];
    int n = pz_launch_accesses(l->plan, l->launch, a);
    for (int64_t at = 0; at + 4 <= l->plan->arena_bytes; at += 4) {
        bool free = true;
        for (int i = 0; i < n; i++) free = free && (at + 4 <= a[i].offset || at >= a[i].offset + a[i].bytes);
        if (!free) continue;
        l->arena[at] ^= 1;
        return;
    }
}

void fake_execute(const fake_launch *l) {
    const pz_cuda_cache *c = l->cache;
    pz_plan one = *l->plan;
    one.launches.at += l->launch;
    one.launches.n = 1;
    pz_cache cache = {0};
    if (c) {
        cache = (pz_cache){.data = c->data,
                           .dt = c->bf16 ? PZ_DT_BF16 : PZ_DT_F32,
                           .page_tokens = c->page_tokens,
                           .entry = c->entry,
                           .n_pages = INT32_MAX,
                           .layer_stride = c->layer_stride,
                           .block_table = c->block_table,
                           .table_stride = c->table_stride};
    }
    pz_run_args args = {.arena = l->arena, .cache = c ? &cache : NULL};
    if (!launch_failed && pz_backend_cpu()->run(twin_of(l->b), &one, &args, &launch_error) != PZ_OK)
        launch_failed = true;
    if (l->launch == pz_fake_cuda.stray) write_elsewhere(l);
}

static pz_status submit(const pz_cuda_run *r, int launch, bool dependent, pz_error *err) {
    bool want = launch > 0 && !r->b->check && !r->state->events;
    if (dependent != want) pz_fake_cuda.wrong_dependent++;
    fake_submit(&(fake_launch){.b = r->b, .plan = r->plan, .launch = launch, .arena = r->arena, .cache = r->cache});
    if (!launch_failed) return PZ_OK;
    launch_failed = false;
    if (err) *err = launch_error;
    return launch_error.code;
}

/* GEMMs and norms come by their public arguments; the launch is the one whose addresses these are. */
static pz_cuda_run current;

static pz_status submit_by(const void *w, const void *out, bool dependent, pz_error *err) {
    for (int i = 0; i < current.plan->launches.n; i++) {
        const pz_launch *l = &current.plan->launches.at[i];
        const pz_cuda_weight *e = pz_op_operand_index(l->op, "w") < 0 ? NULL : pz_cuda_in_weight(&current, l, "w");
        if (!e || (e->bf16 != w && (const void *)e->vector != w)) continue;
        if (pz_cuda_matrix(&current, l->out[0]).data == out) return submit(&current, i, dependent, err);
    }
    return pz_fail(err, PZ_E_INTERNAL, "no launch of the plan has these addresses");
}

pz_status pz_cuda_gemm_workspace(const pz_gemm_args *a, size_t *bytes, pz_error *err) {
    (void)err;
    *bytes = a->size == sizeof *a ? 40 : 0;
    return PZ_OK;
}

pz_status pz_cuda_gemm(const pz_gemm_args *a, pz_error *err) {
    if (!a->workspace || (uintptr_t)a->workspace % 8 || a->ldw != a->k || a->ldx < a->k || a->ldy < a->n ||
        (a->accum == PZ_ACCUM_FIXED && (!a->x_norm || !a->w_norm)))
        return pz_fail(err, PZ_E_INTERNAL, "gemm: wrong arguments");
    return submit_by(a->w, a->y, a->dependent != 0, err);
}

pz_status pz_cuda_rms_norm(const pz_norm_args *a, pz_error *err) {
    if (!a->eps || a->zero_bytes % 16 || a->late || (a->res.data && !a->r.data))
        return pz_fail(err, PZ_E_INTERNAL, "rms_norm: wrong arguments");
    return submit_by(a->w, a->y.data, a->dependent != 0, err);
}

#define OWN_KERNEL(name)                                                                \
    pz_status pz_cuda_check_##name(pz_cuda_run *r, const pz_launch *l, pz_error *err) { \
        (void)r, (void)l, (void)err;                                                    \
        return PZ_OK;                                                                   \
    }                                                                                   \
    pz_status pz_cuda_run_##name(pz_cuda_run *r, const pz_launch *l, pz_error *err) {   \
        return submit(r, (int)(l - r->plan->launches.at), r->dependent, err);           \
    }
OWN_KERNEL(embed)
OWN_KERNEL(latent_norm)
OWN_KERNEL(add)
OWN_KERNEL(all_reduce)
OWN_KERNEL(silu_mul)
OWN_KERNEL(cache_write)
OWN_KERNEL(absorb_q)
OWN_KERNEL(attention)
OWN_KERNEL(absorb_v)
OWN_KERNEL(router)
OWN_KERNEL(experts)

/* ---- one rank alone ---- */
pz_status pz_cuda_check_reduce_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    return pz_cuda_check_norm(r, l, err);
}
pz_status pz_cuda_run_reduce_norm(pz_cuda_run *r, const pz_launch *l, pz_error *err) {
    return pz_cuda_run_norm(r, l, err);
}
pz_status pz_cuda_group_open(pz_backend *b, const pz_backend_options *opts, pz_error *err) {
    (void)b;
    if (!opts->comm || pz_comm_rank(opts->comm) == 0) return PZ_OK;
    return pz_fail(err, PZ_E_UNSUPPORTED, "this module runs rank 0 alone");
}
void pz_cuda_group_close(pz_backend *b) {
    (void)b;
}
pz_status pz_cuda_group_reserve(pz_backend *b, int hidden, int one_shot, pz_error *err) {
    (void)b, (void)hidden, (void)one_shot, (void)err;
    return PZ_OK;
}
pz_status pz_cuda_group_meet(pz_backend *b, pz_error *err) {
    (void)b, (void)err;
    return PZ_OK;
}
pz_status pz_cuda_group_check(pz_backend *b, pz_error *err) {
    (void)b, (void)err;
    return PZ_OK;
}
pz_status pz_cuda_group_wait(pz_backend *b, pz_error *err) {
    (void)b, (void)err;
    return PZ_OK;
}
pz_status pz_cuda_group_ready(pz_backend *b, pz_error *err) {
    (void)b, (void)err;
    return PZ_OK;
}
pz_status pz_cuda_group_fail(pz_backend *b, pz_status st, const pz_error *why) {
    (void)b, (void)why;
    return st;
}
bool pz_cuda_group_gathers(const pz_backend *b) {
    (void)b;
    return false;
}
int64_t pz_cuda_group_meetings(const pz_backend *b) {
    (void)b;
    return 0;
}

/* ---- debug mode ---- */
static void find(pz_cuda_finding *out, int64_t offset) {
    if (out->count++ == 0) out->first = (unsigned long long)offset;
}

pz_status pz_cuda_find_nonzero(const unsigned char *p, int64_t bytes, pz_cuda_finding *out, cudaStream_t stream,
                               pz_error *err) {
    (void)stream, (void)err;
    for (int64_t i = 0; i < bytes; i += 4)
        if (p[i] | p[i + 1] | p[i + 2] | p[i + 3]) find(out, i);
    return PZ_OK;
}

pz_status pz_cuda_find_changed(const unsigned char *now, const unsigned char *before, int64_t bytes,
                               const pz_cuda_ranges *allowed, pz_cuda_finding *out, cudaStream_t stream,
                               pz_error *err) {
    (void)stream, (void)err;
    for (int64_t i = 0; i < bytes; i++) {
        bool ok = now[i] == before[i];
        for (int a = 0; a < allowed->n; a++) ok |= i >= allowed->begin[a] && i < allowed->end[a];
        if (!ok) find(out, i / 4 * 4);
    }
    return PZ_OK;
}

/* ---- the table ---- */
static pz_backend_api fake_backend;

static pz_status fake_run(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    current = (pz_cuda_run){.b = b, .plan = plan, .arena = args->arena, .m = plan->m};
    PZ_TRY(pz_cuda_plan_get(b, plan, &current.state, err));
    current.cache = args->cache ? b->cache.data : NULL;
    return pz_cuda_backend.run(b, plan, args, err);
}

static pz_status fake_probe(pz_error *err) {
    fake_backend = pz_cuda_backend;
    fake_backend.open = fake_open;
    fake_backend.close = fake_close;
    fake_backend.device = fake_device;
    fake_backend.load = fake_load;
    fake_backend.run = fake_run;
    return pz_cuda_probe(err);
}

const pz_cuda_module pz_cuda_module_table = {
    .abi = PZ_CUDA_ABI,
    .version = PZ_VERSION,
    .probe = fake_probe,
    .backend = &fake_backend,
    .gemm = pz_cuda_gemm,
    .gemm_workspace = pz_cuda_gemm_workspace,
    .weight_norms = pz_cuda_weight_norms,
    .rms_norm = pz_cuda_rms_norm,
};
