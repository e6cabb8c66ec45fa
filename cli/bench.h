/* SPDX-License-Identifier: Apache-2.0 */
/* `prezero bench`: what is measured, and the results as text, JSON and pages. */
#ifndef PZ_CLI_BENCH_H
#define PZ_CLI_BENCH_H

#include "cli.h"
#include "prezero/kernels.h"

enum { BENCH_MAX_SHAPES = 64, BENCH_STRATEGIES = PZ_ZERO_TICKET + 1, BENCH_ACCUMS = PZ_ACCUM_BF16 + 1 };

/* What an H200 reads from its memory in a us, in bytes: the floor of a GEMM's time is that of its weight. */
#define BENCH_FLOOR_BYTES_PER_US 4.3e6

/* ---- bench_shapes.c ---- */
typedef struct bench_shape {
    char name[40]; /* "qkv_a", or "2112x7168" */
    int n, k;
} bench_shape;

/* "kimi-tp4" or "2112,7168;384,7168". Returns CLI_OK, or CLI_USAGE with one line on standard error. */
int bench_read_shapes(const char *text, bench_shape out[BENCH_MAX_SHAPES], int *n);
/* "fixed,f32" or "prezero,self": positions among n names, each once, in the order given. */
int bench_read_names(const char *option, const char *text, const char *const *names, int n, int *out, int *count);
extern const char *const bench_accums[BENCH_ACCUMS], *const bench_strategies[BENCH_STRATEGIES];

/* ---- results ---- */
typedef struct bench_gemm {
    const char *command;
    bool quick, search, serial, late;
    pz_measure_device device;
    bench_shape shapes[BENCH_MAX_SHAPES];
    int n_shapes, measured; /* shapes with results: the first ones */
    cli_ints batches;
    int accums[BENCH_ACCUMS], n_accums, strategies[BENCH_STRATEGIES], n_strategies;
    pz_measure_case *cases;  /* [shapes][batches][accums * strategies + 1], the last of them cuBLASLt */
    pz_measure_times *norms; /* [shapes][batches] */
} bench_gemm;

int bench_cases(const bench_gemm *b); /* of one shape and batch */
pz_measure_case *bench_case(const bench_gemm *b, int shape, int batch, int accum, int strategy);
pz_measure_case *bench_cublaslt(const bench_gemm *b, int shape, int batch);
/* The fastest of the strategies, NULL if none was measured; *second, if not NULL, the next. */
const pz_measure_case *bench_best(const bench_gemm *b, int shape, int batch, int accum, const pz_measure_case **second);
bool bench_measured(const pz_measure_case *c);
double bench_floor_us(const bench_shape *s);
/* Half of the interval, the larger half of both. */
double bench_half(const pz_measure_times *t);
/* Cases whose result was wrong. */
int bench_wrong(const bench_gemm *b);

/* All shapes together, one batch and accumulator; measured is false if a shape lacks a result. */
typedef struct bench_sum {
    bool measured, rival;
    double best_us, rival_us, floor_us;
} bench_sum;
bench_sum bench_sum_of(const bench_gemm *b, int batch, int accum);

void bench_text_head(FILE *f, const bench_gemm *b);
void bench_text_shape(FILE *f, const bench_gemm *b, int shape);
void bench_text_sums(FILE *f, const bench_gemm *b);
json_t *bench_json(const bench_gemm *b); /* NULL: out of memory */
char *bench_html(const bench_gemm *b);   /* free with free; NULL: out of memory */

/* ---- norms ---- */
/* What is measured at every batch: label, rider, late, serial, x_norm, gemm, shared. */
#define BENCH_NORM_TABLE(X)                             \
    X("alone, serial", 0, 0, 1, 0, 0, 0)                \
    X("alone", 0, 0, 0, 0, 0, 0)                        \
    X("with x_norm", 0, 0, 0, 1, 0, 0)                  \
    X("rider, dependents at once", 1, 0, 0, 0, 0, 0)    \
    X("rider, dependents after it", 1, 1, 0, 0, 0, 0)   \
    X("rider, the same memory", 1, 0, 0, 0, 0, 1)       \
    X("rider, serial", 1, 0, 1, 0, 0, 0)                \
    X("norm + GEMM", 0, 0, 0, 1, 1, 0)                  \
    X("norm + GEMM, rider", 1, 0, 0, 1, 1, 0)           \
    X("norm + GEMM, the same memory", 0, 0, 0, 1, 1, 1) \
    X("norm + GEMM, rider, the same", 1, 0, 0, 1, 1, 1)
#define BENCH_NORM_COUNT(...) +1
enum { BENCH_NORMS = 0 BENCH_NORM_TABLE(BENCH_NORM_COUNT) };
extern const char *const bench_norm_names[BENCH_NORMS];

typedef struct bench_norm {
    const char *command;
    bool quick;
    pz_measure_device device;
    int hidden, gemm_n, rider; /* rider: bytes per row */
    cli_ints batches;
    pz_measure_norm_case *cases; /* [batches][BENCH_NORMS] */
} bench_norm;

void bench_norm_cases(const bench_norm *b, int batch, pz_measure_norm_case *out);
int bench_norm_wrong(const bench_norm *b);
void bench_norm_text(FILE *f, const bench_norm *b);
json_t *bench_norm_json(const bench_norm *b);
char *bench_norm_html(const bench_norm *b);

/* ---- all-reduces ---- */
/* What is measured at every batch: label, kind, rider, serial. */
#define BENCH_REDUCE_TABLE(X)                \
    X("fused", FUSED, 0, 0)                  \
    X("fused, rider", FUSED, 1, 0)           \
    X("fused, serial", FUSED, 0, 1)          \
    X("NCCL + norm", NCCL_NORM, 0, 0)        \
    X("NCCL + norm, rider", NCCL_NORM, 1, 0) \
    X("NCCL all-reduce alone", NCCL, 0, 0)   \
    X("all_reduce alone", ALL_REDUCE, 0, 0)  \
    X("fused + GEMM", FUSED_GEMM, 0, 0)      \
    X("fused + GEMM, serial", FUSED_GEMM, 0, 1)
enum { BENCH_REDUCES = 0 BENCH_REDUCE_TABLE(BENCH_NORM_COUNT) };

typedef struct bench_reduce {
    const char *command;
    bool quick;
    pz_measure_device device;
    int ranks, hidden, gemm_n, rider; /* rider: bytes per row */
    cli_ints batches;
    pz_measure_reduce_case *cases; /* [batches][BENCH_REDUCES] */
} bench_reduce;

void bench_reduce_cases(const bench_reduce *b, int batch, pz_measure_reduce_case *out);
int bench_reduce_wrong(const bench_reduce *b);
void bench_reduce_text(FILE *f, const bench_reduce *b);
json_t *bench_reduce_json(const bench_reduce *b);

/* ---- shared by the pages and the JSON ---- */
json_t *bench_times_json(const pz_measure_times *t, bool samples);
json_t *bench_device_json(const pz_measure_device *d);
void bench_device_text(FILE *f, const pz_measure_device *d);

#endif
