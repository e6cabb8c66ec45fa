/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the CPU backend. A kernel is a check, which runs before anything else of the plan does and also says how
 * much scratch memory the kernel wants, and a run. */
#ifndef PZ_CPU_H
#define PZ_CPU_H

#include "backend/backend.h"
#include "backend/cpu/simd/simd.h"
#include "base/fixed.h"
#include "base/par.h"

/* ---- weights ---- */
/* `blocks` matrices of n outputs and k inputs, each packed into panels of its own. */
typedef struct pz_panels {
    pz_panel_kind kind;
    int64_t blocks, n, k;
    size_t panel_bytes, block_bytes;
    unsigned char *data; /* NULL: not packed */
} pz_panels;

typedef struct pz_cpu_weight {
    char *name; /* NULL: not loaded */
    int64_t rows, cols;
    float *vector;              /* norms, biases, frequencies: rows * cols values */
    pz_panels panels;           /* [rows, cols], a 3-D weight in one or two blocks an expert */
    pz_panels transposed;       /* kv_b only: its rows as inputs, its columns as outputs */
    float *w_norm, *inv_w_norm; /* [rows], GEMM weights */
    PZ_VEC(pz_host_part) parts; /* 2-D weights in place, for embed */
    pz_dtype dt;                /* of the host's data */
} pz_cpu_weight;

struct pz_backend {
    int threads;
    const pz_simd *simd;
    PZ_VEC(pz_cpu_weight) weights; /* by pz_weight.index */
    unsigned char *scratch;        /* threads * thread_bytes, then shared_bytes */
    size_t thread_bytes, shared_bytes;
    float *rope; /* see pz_cpu_rope_table */
    size_t rope_floats;
    pz_comm *comm;
    float *shown[2]; /* partial sums of this rank that the others read, by epoch & 1 */
    size_t shown_bytes;
};

pz_status pz_cpu_load(pz_backend *b, const pz_weight *w, pz_op use, const pz_host_weight *host, pz_error *err);
void pz_cpu_weight_free(pz_cpu_weight *w);
int64_t pz_cpu_weight_bytes(const pz_cpu_weight *w);
/* Address of panel p of a block at input k. */
static inline const unsigned char *pz_panel_at(const pz_panels *p, int64_t block, int64_t panel, int64_t k) {
    return p->data + (size_t)block * p->block_bytes + (size_t)panel * p->panel_bytes +
           pz_panel_bytes(p->kind, (size_t)k);
}
static inline int64_t pz_panel_count(int64_t n) {
    return (n + PZ_PANEL - 1) / PZ_PANEL;
}
static inline int64_t pz_panel_align(int64_t n) {
    return pz_panel_count(n) * PZ_PANEL;
}

/* ---- a run ---- */
typedef struct pz_cpu_run {
    pz_backend *b;
    const pz_simd *simd;
    const pz_plan *plan;
    unsigned char *arena;
    const pz_cache *cache;
    int m;
    size_t thread_need, shared_need, shown_need; /* scratch bytes that the checks asked for */
    int rope_place;                              /* whose positions the table in the backend holds, -1 */
    const pz_cpu_weight *rope_weight;
} pz_cpu_run;

typedef pz_status (*pz_cpu_check_fn)(pz_cpu_run *r, const pz_launch *l, pz_error *err);
typedef pz_status (*pz_cpu_run_fn)(pz_cpu_run *r, const pz_launch *l, pz_error *err);

#define KERNEL(op, name)                                                             \
    pz_status pz_cpu_check_##name(pz_cpu_run *r, const pz_launch *l, pz_error *err); \
    pz_status pz_cpu_run_##name(pz_cpu_run *r, const pz_launch *l, pz_error *err);
#include "backend/cpu/kernels.def"
#undef KERNEL

/* PZ_E_UNSUPPORTED or PZ_E_TYPE with the launch's name in front. */
pz_status pz_cpu_refuse(const pz_launch *l, pz_status code, pz_error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#ifdef __clang_analyzer__ /* as for pz_fail */
#define pz_cpu_refuse(l, code, err, ...) ((void)(pz_cpu_refuse)((l), (code), (err), __VA_ARGS__), (code))
#endif
/* Operand by name: its place, -1 if absent; its weight, NULL if absent. */
int pz_cpu_in(const pz_launch *l, const char *operand);
const pz_weight *pz_cpu_in_weight(const pz_launch *l, const char *operand);
/* The loaded weight of an operand; NULL after a failed check only. */
const pz_cpu_weight *pz_cpu_weight_of(const pz_cpu_run *r, const pz_weight *w);
/* Checks that an operand is an activation of `cols` columns (0: any) that can be read as f32. */
pz_status pz_cpu_check_act(const pz_cpu_run *r, const pz_launch *l, const char *operand, int64_t cols, pz_error *err);
/* Checks that result `index` can be written from f32 (f32 or bf16) and has `cols` columns (0: any). */
pz_status pz_cpu_check_out(const pz_cpu_run *r, const pz_launch *l, int index, int64_t cols, pz_error *err);
/* Checks an i32 operand of `count` values a row (0 for i32[m]). */
pz_status pz_cpu_check_i32(const pz_cpu_run *r, const pz_launch *l, const char *operand, int64_t count, pz_error *err);
/* Checks that a weight operand was loaded as a vector of `n` values. */
pz_status pz_cpu_check_vector(const pz_cpu_run *r, const pz_launch *l, const char *operand, int64_t n, pz_error *err);

/* Asks for scratch memory for this launch. */
void pz_cpu_want(pz_cpu_run *r, size_t thread_bytes, size_t shared_bytes);
static inline void *pz_cpu_thread_scratch(const pz_cpu_run *r, int tid) {
    return r->b->scratch + (size_t)tid * r->b->thread_bytes;
}
static inline void *pz_cpu_shared_scratch(const pz_cpu_run *r) {
    return r->b->scratch + (size_t)r->b->threads * r->b->thread_bytes;
}
/* Runs fn on all threads, or on this one if the work (about multiply-adds) is too small to share. */
void pz_cpu_par(const pz_cpu_run *r, int64_t work, pz_par_fn fn, void *arg);
/* Thread tid's part [*begin, *end) of n things. */
static inline void pz_cpu_share(int64_t n, int tid, int nthreads, int64_t *begin, int64_t *end) {
    *begin = n * tid / nthreads;
    *end = n * (tid + 1) / nthreads;
}

/* ---- rows of a place ---- */
typedef struct pz_rows {
    unsigned char *data; /* element (0, 0) */
    pz_dtype dt;
    int64_t cols, ld;
    float *norm;                  /* x_norm to be written with the rows, or NULL */
    const float *x_norm, *w_norm; /* FIXED: scale of row and column */
} pz_rows;

pz_rows pz_cpu_rows(const pz_cpu_run *r, int place);
static inline pz_rows pz_cpu_in_rows(const pz_cpu_run *r, const pz_launch *l, const char *operand) {
    return pz_cpu_rows(r, pz_cpu_in(l, operand));
}
const int32_t *pz_cpu_in_i32(const pz_cpu_run *r, const pz_launch *l, const char *operand);
/* n columns from col on of one row as f32: the memory itself if it is f32, else converted into scratch. */
const float *pz_rows_get(const pz_simd *simd, const pz_rows *v, int64_t row, int64_t col, int64_t n, float *scratch);
/* The same, always copied to dst. */
void pz_rows_copy(const pz_simd *simd, const pz_rows *v, int64_t row, int64_t col, int64_t n, float *dst);
/* Stores n columns from col on, rounded to the rows' dtype (f32 or bf16). */
void pz_rows_put(const pz_simd *simd, const pz_rows *v, int64_t row, int64_t col, int64_t n, const float *src);
/* Rounds x as storing it in `dt` would. */
void pz_round_row(const pz_simd *simd, pz_dtype dt, float *x, int64_t n);
/* Writes x_norm of a row from the values stored, if the place has one. scratch: cols floats. */
void pz_rows_put_norm(const pz_simd *simd, const pz_rows *v, int64_t row, float *scratch);

/* ---- collectives ---- */
static inline int pz_cpu_ranks(const pz_cpu_run *r) {
    return r->b->comm ? pz_comm_ranks(r->b->comm) : 1;
}
/* Asks for the memory that pz_cpu_gather needs for rows of `cols` columns. */
void pz_cpu_want_gather(pz_cpu_run *r, int64_t cols);
/* Gets it, before the first launch of a run. */
pz_status pz_cpu_show_grow(pz_cpu_run *r, pz_error *err);
void pz_cpu_show_free(pz_backend *b);
/* Shows this rank's rows to the others, as f32, and finds theirs: parts[rank] is f32 [m][x->cols], readable until the
 * run ends or the gather after the next begins. */
pz_status pz_cpu_gather(const pz_cpu_run *r, const pz_rows *x, const float *parts[PZ_MAX_RANKS], pz_error *err);

/* Bytes of n floats, rounded up so that what follows is aligned; SIZE_MAX never fits and is refused as out of memory.
 */
size_t pz_floats(int64_t a, int64_t b);
/* Cosines and sines [m][pairs][2] of pos * inv_freq, made once a run and used by all layers. */
pz_status pz_cpu_rope_table(pz_cpu_run *r, const pz_launch *l, const float **table, pz_error *err);
/* Rotates interleaved pairs by one row of the table; cos and sin are multiplied by scale. y may be x. */
void pz_rope(float *y, const float *x, int64_t pairs, const float *table, float scale);

#endif
