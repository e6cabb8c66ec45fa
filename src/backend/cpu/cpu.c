/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend: opening, choice of instruction set, checking and running a plan. */
#include "backend/cpu/cpu.h"

#include <stdio.h>

#include "base/best.h"
#include "base/knobs.h"

/* ---- instruction sets, the best last ---- */
#define ISA_TABLES(isa)                           \
    extern const pz_simd_gemm pz_simd_gemm_##isa; \
    extern const pz_simd_rows pz_simd_rows_##isa; \
    extern const pz_simd_attention pz_simd_attention_##isa;
#define ISA_ROW(isa) \
    { #isa, &pz_simd_gemm_##isa, &pz_simd_rows_##isa, &pz_simd_attention_##isa }
ISA_TABLES(baseline)
#ifdef PZ_HAVE_ISA_avx2
ISA_TABLES(avx2)
#endif
#ifdef PZ_HAVE_ISA_avx512
ISA_TABLES(avx512)
#endif

static bool has_baseline(void) {
    return true;
}
#ifdef PZ_HAVE_ISA_avx2
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif
#ifdef PZ_HAVE_ISA_avx512
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static const struct {
    pz_simd simd;
    bool (*supported)(void);
} isas[] = {
    {ISA_ROW(baseline), has_baseline},
#ifdef PZ_HAVE_ISA_avx2
    {ISA_ROW(avx2), has_avx2},
#endif
#ifdef PZ_HAVE_ISA_avx512
    {ISA_ROW(avx512), has_avx512},
#endif
};
enum { N_ISAS = sizeof isas / sizeof isas[0] };

static pz_status choose_isa(const char *word, const pz_simd **out, pz_error *err) {
    int index;
    PZ_TRY(pz_knob_enum_index(PZ_KNOB_ISA, word, "isa", &index, err));
    for (int i = N_ISAS - 1; i >= 0; i--) {
        if ((index != 0 && !pz_streq(isas[i].simd.name, word)) || !isas[i].supported()) continue;
        *out = &isas[i].simd;
        return PZ_OK;
    }
    return pz_fail(err, PZ_E_UNSUPPORTED,
                   "instruction set %s: this processor or build does not have it; auto takes the best", word);
}

/* ---- open, close, small questions ---- */
enum { MAX_THREADS = 1024 };

static void cpu_close(pz_backend *b) {
    if (!b) return;
    for (int i = 0; i < b->weights.n; i++) pz_cpu_weight_free(&b->weights.at[i]);
    pz_vec_free(&b->weights);
    pz_free(b->scratch);
    pz_free(b->rope);
    pz_cpu_show_free(b);
    pz_free(b);
}

static pz_status cpu_open(const pz_backend_options *opts, pz_backend **out, pz_error *err) {
    int threads = opts && opts->threads ? opts->threads : pz_par_cpus();
    if (threads < 1 || threads > MAX_THREADS)
        return pz_fail(err, PZ_E_INVAL, "%d threads: must be 1 to %d, or 0 for the online processors", threads,
                       MAX_THREADS);
    const pz_simd *simd = NULL;
    PZ_TRY(choose_isa(opts && opts->isa ? opts->isa : "auto", &simd, err));
    pz_backend *b = pz_calloc(1, sizeof *b);
    if (!b) return PZ_NOMEM(err);
    b->threads = threads;
    b->simd = simd;
    b->comm = opts ? opts->comm : NULL;
    *out = b;
    return PZ_OK;
}

static void cpu_device(const pz_backend *b, pz_device *out) {
    pz_device_find("cpu", b->threads, out, NULL);
}

static const char *cpu_isa(const pz_backend *b) {
    return b->simd->name;
}

static const char *cpu_product(const pz_backend *b) {
    (void)b;
    return "";
}

/* ---- memory: the host's ---- */
static void cpu_memory(const pz_backend *b, int64_t *used, int64_t *total) {
    (void)b;
    *used = *total = 0;
}

static pz_status cpu_alloc(pz_backend *b, int64_t bytes, unsigned char **out, pz_error *err) {
    (void)b;
    unsigned char *p = bytes >= 0 ? pz_aligned_calloc((size_t)bytes) : NULL;
    if (!p) return pz_fail(err, PZ_E_NOMEM, "out of memory: %lld bytes", (long long)bytes);
    *out = p;
    return PZ_OK;
}

static void cpu_release(pz_backend *b, unsigned char *p) {
    (void)b;
    pz_free(p);
}

static pz_status cpu_copy(pz_backend *b, void *dst, const void *src, int64_t bytes, pz_copy kind, pz_error *err) {
    (void)b, (void)kind, (void)err;
    memcpy(dst, src, (size_t)bytes);
    return PZ_OK;
}

static int64_t cpu_weight_bytes(const pz_backend *b) {
    int64_t sum = 0;
    for (int i = 0; i < b->weights.n; i++) sum += pz_cpu_weight_bytes(&b->weights.at[i]);
    return sum;
}

/* ---- checks ---- */
pz_status(pz_cpu_refuse)(const pz_launch *l, pz_status code, pz_error *err, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return pz_fail(err, code, "cpu, %s: %s", l->role ? l->role : pz_op_text(l->op), text);
}

int pz_cpu_in(const pz_launch *l, const char *operand) {
    int i = pz_op_operand_index(l->op, operand);
    return i < 0 ? -1 : l->in[i].place;
}

const pz_weight *pz_cpu_in_weight(const pz_launch *l, const char *operand) {
    int i = pz_op_operand_index(l->op, operand);
    return i < 0 ? NULL : l->in[i].weight;
}

const pz_cpu_weight *pz_cpu_weight_of(const pz_cpu_run *r, const pz_weight *w) {
    const pz_backend *b = r->b;
    if (w->index >= 0 && w->index < b->weights.n && pz_streq(b->weights.at[w->index].name, w->name))
        return &b->weights.at[w->index];
    for (int i = 0; i < b->weights.n; i++)
        if (pz_streq(b->weights.at[i].name, w->name)) return &b->weights.at[i];
    return NULL;
}

static const pz_place *place_of(const pz_cpu_run *r, int place) {
    return place >= 0 && place < r->plan->places.n ? &r->plan->places.at[place] : NULL;
}

pz_status pz_cpu_check_act(const pz_cpu_run *r, const pz_launch *l, const char *operand, int64_t cols, pz_error *err) {
    const pz_place *p = place_of(r, pz_cpu_in(l, operand));
    if (!p) return pz_cpu_refuse(l, PZ_E_INTERNAL, err, "operand %s has no place", operand);
    if (!pz_dtype_is_act(p->type.dt) || p->type.rank != 2)
        return pz_cpu_refuse(l, PZ_E_UNSUPPORTED, err, "operand %s is %s of rank %d; an activation [m, n] is read",
                             operand, pz_dtype_text(p->type.dt), p->type.rank);
    if (cols > 0 && p->type.dim[1] != cols)
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "operand %s has %lld columns, expected %lld", operand,
                             (long long)p->type.dim[1], (long long)cols);
    if (p->type.dt != PZ_DT_FIXED) return PZ_OK;
    const pz_cpu_weight *w = p->scale_weight ? pz_cpu_weight_of(r, p->scale_weight) : NULL;
    if (!place_of(r, p->scale_norm) || !w || !w->w_norm || p->scale_col < 0 || p->scale_col + p->type.dim[1] > w->rows)
        return pz_cpu_refuse(l, PZ_E_INTERNAL, err, "operand %s is a fixed-point sum without its scale", operand);
    return PZ_OK;
}

pz_status pz_cpu_check_out(const pz_cpu_run *r, const pz_launch *l, int index, int64_t cols, pz_error *err) {
    const pz_place *p = place_of(r, l->out[index]);
    if (!p) return pz_cpu_refuse(l, PZ_E_INTERNAL, err, "result %d has no place", index);
    if (p->type.dt != PZ_DT_F32 && p->type.dt != PZ_DT_BF16)
        return pz_cpu_refuse(l, PZ_E_UNSUPPORTED, err, "result %d is %s; f32 and bf16 are written", index,
                             pz_dtype_text(p->type.dt));
    if (cols > 0 && p->type.dim[p->type.rank - 1] != cols)
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "result %d has %lld columns, expected %lld", index,
                             (long long)p->type.dim[p->type.rank - 1], (long long)cols);
    return PZ_OK;
}

pz_status pz_cpu_check_i32(const pz_cpu_run *r, const pz_launch *l, const char *operand, int64_t count, pz_error *err) {
    const pz_place *p = place_of(r, pz_cpu_in(l, operand));
    if (!p || p->type.dt != PZ_DT_I32 ||
        (count > 0 && (p->type.rank != 2 || p->type.dim[1] != count || p->ld != count)))
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "operand %s must be i32, %lld a row", operand,
                             (long long)(count ? count : 1));
    return PZ_OK;
}

pz_status pz_cpu_check_vector(const pz_cpu_run *r, const pz_launch *l, const char *operand, int64_t n, pz_error *err) {
    const pz_weight *w = pz_cpu_in_weight(l, operand);
    const pz_cpu_weight *e = w ? pz_cpu_weight_of(r, w) : NULL;
    if (!e || !e->vector)
        return pz_cpu_refuse(l, PZ_E_INVAL, err, "weight %s (%s) is not loaded", w ? w->name : "?", operand);
    if (e->cols != n)
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "weight %s has %lld values, expected %lld", w->name, (long long)e->cols,
                             (long long)n);
    return PZ_OK;
}

pz_status pz_cpu_check_none(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    (void)r;
    return pz_cpu_refuse(l, PZ_E_UNSUPPORTED, err, "op %s is no kernel and cannot be launched", pz_op_text(l->op));
}

pz_status pz_cpu_run_none(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    return pz_cpu_check_none(r, l, err);
}

/* ---- running ---- */
typedef struct kernel {
    pz_cpu_check_fn check;
    pz_cpu_run_fn run;
} kernel;

static const kernel kernels[PZ_OP_COUNT] = {
#define KERNEL(op, name) [PZ_OP_##op] = {pz_cpu_check_##name, pz_cpu_run_##name},
#include "backend/cpu/kernels.def"
#undef KERNEL
};
enum {
    N_KERNELS = 0
#define KERNEL(op, name) +1
#include "backend/cpu/kernels.def"
#undef KERNEL
};
_Static_assert((int)N_KERNELS == (int)PZ_OP_COUNT, "kernels.def needs one row for each op");

/* Sharing work costs about 2 us; below this many multiply-adds one thread is as fast. */
enum { PARALLEL_WORK = 1 << 16 };

void pz_cpu_par(const pz_cpu_run *r, int64_t work, pz_par_fn fn, void *arg) {
    pz_par_run(work < PARALLEL_WORK ? 1 : r->b->threads, fn, arg);
}

size_t pz_floats(int64_t a, int64_t b) {
    size_t n;
    if (a < 0 || b < 0 || !pz_mul_ok((size_t)a, (size_t)b, &n) || !pz_mul_ok(n, sizeof(float), &n) || n > SIZE_MAX / 2)
        return SIZE_MAX / 2;
    return pz_align_up(n, 64);
}

void pz_cpu_want(pz_cpu_run *r, size_t thread_bytes, size_t shared_bytes) {
    if (thread_bytes > r->thread_need) r->thread_need = thread_bytes;
    if (shared_bytes > r->shared_need) r->shared_need = shared_bytes;
}

static pz_status grow_scratch(pz_cpu_run *r, pz_error *err) {
    pz_backend *b = r->b;
    if (r->thread_need <= b->thread_bytes && r->shared_need <= b->shared_bytes) return PZ_OK;
    size_t thread_bytes = r->thread_need > b->thread_bytes ? pz_align_up(r->thread_need, 4096) : b->thread_bytes;
    size_t shared_bytes = r->shared_need > b->shared_bytes ? r->shared_need : b->shared_bytes, total;
    unsigned char *scratch = NULL;
    if (pz_mul_ok((size_t)b->threads, thread_bytes, &total) && pz_add_ok(total, shared_bytes, &total))
        scratch = pz_aligned_calloc(total);
    if (!scratch)
        return pz_fail(err, PZ_E_NOMEM, "out of memory: scratch of %zu bytes a thread and %zu shared", thread_bytes,
                       shared_bytes);
    pz_free(b->scratch);
    b->scratch = scratch;
    b->thread_bytes = thread_bytes;
    b->shared_bytes = shared_bytes;
    return PZ_OK;
}

static pz_status check_plan(pz_cpu_run *r, pz_error *err) {
    for (int i = 0; i < r->plan->launches.n; i++) {
        const pz_launch *l = &r->plan->launches.at[i];
        if ((unsigned)l->op >= PZ_OP_COUNT)
            return pz_fail(err, PZ_E_INTERNAL, "cpu, launch %d: unknown op %d", i, (int)l->op);
        PZ_TRY(kernels[l->op].check(r, l, err));
    }
    PZ_TRY(grow_scratch(r, err));
    return pz_cpu_show_grow(r, err);
}

static void write_inputs(const pz_plan *plan, const pz_run_args *args) {
    if (!args->inputs) return;
    if (args->poison) memset(args->arena, 0xFF, (size_t)plan->arena_bytes);
    for (int i = 0; i < plan->inputs.n; i++)
        memcpy(args->arena + plan->places.at[plan->inputs.at[i]].offset, args->inputs[i],
               (size_t)plan->m * sizeof(int32_t));
}

static void cpu_forget(pz_backend *b, const pz_plan *plan) {
    (void)b, (void)plan;
}

static pz_status cpu_run(pz_backend *b, const pz_plan *plan, const pz_run_args *args, pz_error *err) {
    pz_cpu_run r = {.b = b, .simd = b->simd, .plan = plan, .arena = args->arena, .cache = args->cache, .m = plan->m};
    r.rope_place = -1;
    if (plan->m < 1) return pz_fail(err, PZ_E_INVAL, "cpu: a plan of %d rows", plan->m);
    PZ_TRY(check_plan(&r, err));
    write_inputs(plan, args);
    for (int i = 0; i < plan->launches.n; i++) {
        const pz_launch *l = &plan->launches.at[i];
        int64_t start = args->launch_ns ? pz_now_ns() : 0;
        PZ_TRY(kernels[l->op].run(&r, l, err));
        if (args->launch_ns) args->launch_ns[i] += pz_now_ns() - start;
    }
    return PZ_OK;
}

static pz_status check_reading(const pz_cpu_run *r, int place, const int *rows, int n, pz_error *err) {
    const pz_place *p = place_of(r, place);
    bool scaled = p && p->scale_weight && pz_cpu_weight_of(r, p->scale_weight);
    return pz_backend_check_reading("cpu", r->plan, place, scaled, rows, n, err);
}

static pz_status cpu_read(pz_backend *b, const pz_plan *plan, const pz_run_args *args, int place, const int *rows,
                          int n, float *dst, pz_error *err) {
    pz_cpu_run r = {.b = b, .simd = b->simd, .plan = plan, .arena = args->arena, .m = plan->m};
    PZ_TRY(check_reading(&r, place, rows, n, err));
    pz_rows v = pz_cpu_rows(&r, place);
    for (int i = 0; i < n; i++) pz_rows_copy(b->simd, &v, rows[i], 0, v.cols, dst + i * v.cols);
    return PZ_OK;
}

static pz_status cpu_argmax(pz_backend *b, const pz_plan *plan, const pz_run_args *args, int place, const int *rows,
                            int n, int32_t *ids, pz_error *err) {
    pz_cpu_run r = {.b = b, .simd = b->simd, .plan = plan, .arena = args->arena, .m = plan->m};
    PZ_TRY(check_reading(&r, place, rows, n, err));
    pz_rows v = pz_cpu_rows(&r, place);
    float *scratch = pz_calloc((size_t)v.cols, sizeof *scratch);
    if (!scratch) return PZ_NOMEM(err);
    for (int i = 0; i < n; i++) ids[i] = pz_best(pz_rows_get(b->simd, &v, rows[i], 0, v.cols, scratch), v.cols);
    pz_free(scratch);
    return PZ_OK;
}

const pz_backend_api *pz_backend_cpu(void) {
    static const pz_backend_api api = {
        .name = "cpu",
        .max_ranks = PZ_MAX_RANKS,
        .open = cpu_open,
        .close = cpu_close,
        .device = cpu_device,
        .isa = cpu_isa,
        .product = cpu_product,
        .memory = cpu_memory,
        .load = pz_cpu_load,
        .weight_bytes = cpu_weight_bytes,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .copy = cpu_copy,
        .run = cpu_run,
        .forget = cpu_forget,
        .read = cpu_read,
        .argmax = cpu_argmax,
    };
    return &api;
}
