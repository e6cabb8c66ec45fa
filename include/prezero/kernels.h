/* SPDX-License-Identifier: Apache-2.0 */
/* The gate, usable alone: for authors of engines who carry a zero fill in a kernel of their own and want to know, per
 * batch size, whether it is worth it.
 *
 * A donor (a norm, or an all-reduce fused with one) works with one row per execution unit. Units without a row can zero
 * `bytes` bytes for GEMMs that run later and add into them (the rider), so that those need not zero their output
 * themselves. Example, the widest prefix of three slices that is worth its time:
 *
 *     pz_gate_query q = {.size = sizeof q, .device = "h200", .rows = 16, .collective = 1};
 *     int level = 0;
 *     for (int i = 0; i < 3; i++) {
 *         pz_gate_result r;
 *         q.bytes += slice_bytes[i];
 *         q.slices = i + 1;
 *         if (pz_gate(&q, &r, NULL) == PZ_OK && r.verdict != PZ_GATE_CLOSED) level = i + 1;
 *     }
 *
 * Threads: every function here may be called from any thread. */
#ifndef PREZERO_KERNELS_H
#define PREZERO_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "prezero/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Verdicts: enum suffix, text. */
#define PZ_GATE_TABLE(X)                                                                             \
    X(FREE, "free")     /* the donor takes no longer: the fill ends on idle units within its time */ \
    X(PAYS, "pays")     /* it lengthens the donor, by less than the zeroing that it replaces */      \
    X(CLOSED, "closed") /* it would cost as much as it saves, or more */
typedef enum pz_gate_verdict {
#define PZ_GATE_ENUM(id, text) PZ_GATE_##id,
    PZ_GATE_TABLE(PZ_GATE_ENUM)
#undef PZ_GATE_ENUM
} pz_gate_verdict;

/* Numbers behind a verdict; times in microseconds, from the constants in the tuned table of the device (knob
 * PREZERO_TUNED), else from a model of it. */
typedef struct pz_gate_result {
    int idle_units;     /* units without a block of the donor in its last wave (a wave is one row per unit; on a GPU a
                           collective may have several blocks a row, or fewer than rows) */
    double donor_us;    /* the donor without rider */
    double fill_us;     /* the fill: on a GPU by blocks beside the rows, one a unit at most, or by a collective's blocks
                           where those have no room; on the CPU on the idle units, or after the rows on all units,
                           whichever adds less */
    double added_us;    /* how much longer the donor takes with the rider */
    double replaced_us; /* what zeroing inside the GEMMs would take: a handshake each, and the same fill */
    pz_gate_verdict verdict;
} pz_gate_result;

/* Zero-initialise, then set `size`. */
typedef struct pz_gate_query {
    size_t size;        /* sizeof(pz_gate_query) */
    const char *device; /* row of the device table: "h200", "cpu"; NULL means "h200" */
    int units;          /* execution units the donor is launched on (SMs, threads); 0: as graph.h's explain options */
    int rows;           /* rows of the step, >= 1 */
    int collective;     /* 1: the donor is an all-reduce fused with the norm; 0: a norm alone */
    int ranks, hidden;  /* of the all-reduce: its ranks, columns of its rows; 0: 2 and 7168 */
    int64_t bytes;      /* what the rider zeroes, >= 0 */
    int slices;         /* GEMM outputs in those bytes, >= 0 */
} pz_gate_query;

/* Evaluates one query, which takes about a millisecond where there is a tuned table to read. E_NOTFOUND lists the
 * devices; E_INVAL names the field that is out of range; E_FORMAT, E_IO: the table that the knob names. */
PZ_API pz_status pz_gate(const pz_gate_query *query, pz_gate_result *result, pz_error *err);

/* "free", "pays", "closed"; static strings, "unknown" for other values. */
PZ_API const char *pz_gate_text(pz_gate_verdict verdict);

/* ---- kernels for a GPU ---- */
/* Version of the GEMM kernels: text, raised whenever their speed or what a configuration means changes. A tuned table
 * holds the version that it was measured with and serves no other. */
#define PZ_GEMM_KERNEL_VERSION "4"
/* Of the fused all-reduce. */
#define PZ_REDUCE_KERNEL_VERSION "2"

/* How the output of a GEMM whose K is split over blocks comes to hold the sum: enum suffix, text, whether the kernel
 * adds into its output. */
#define PZ_STRATEGY_TABLE(X)                                                                      \
    X(NONE, "none", 0)       /* K is not split over blocks: the output is stored */               \
    X(PREZERO, "prezero", 1) /* the caller has zeroed the output: a rider of an earlier kernel */ \
    X(SELF, "self", 1)       /* the first block of a tile to start zeroes it, the others wait */  \
    X(MEMSET, "memset", 1)   /* a memset before the kernel */                                     \
    X(REDUCE, "reduce", 0)   /* partial sums into a workspace, a second kernel adds them */       \
    X(TICKET, "ticket", 0)   /* partial sums into a workspace, the last block of a tile adds them */
typedef enum pz_strategy {
#define PZ_STRATEGY_ENUM(id, text, adds) PZ_ZERO_##id,
    PZ_STRATEGY_TABLE(PZ_STRATEGY_ENUM)
#undef PZ_STRATEGY_ENUM
} pz_strategy;

/* Families of GEMM kernels: enum suffix, text. */
#define PZ_GEMM_FAMILY_TABLE(X)                                                                          \
    X(DEFAULT, "default") /* what the tuned table of the device or the cost model says; the CPU's one */ \
    X(SKINNY, "skinny")   /* mma.sync, weights in registers and warp-private shared memory */            \
    X(GROUP, "group")     /* the same weights, multiplied with wgmma */                                  \
    X(WIDE, "wide")       /* wgmma, tiles by bulk tensor copies */                                       \
    X(CUBLASLT, "cublaslt")
typedef enum pz_gemm_family {
#define PZ_GEMM_FAMILY_ENUM(id, text) PZ_GEMM_##id,
    PZ_GEMM_FAMILY_TABLE(PZ_GEMM_FAMILY_ENUM)
#undef PZ_GEMM_FAMILY_ENUM
} pz_gemm_family;

/* Geometry of one GEMM launch. */
typedef struct pz_gemm_config {
    int tile_n; /* outputs (rows of w) of one block: a multiple of 16 (skinny), 64 (group, wide) */
    int split;  /* blocks that share the K of one tile; 1: not split */
    int family; /* pz_gemm_family */
    int warps;  /* warps (wide: warpgroups) of a block that share its part of K */
    int stages; /* chunks of 128 of K in shared memory at most (of a warp; wide: of a block, at least two), 0: as many
                   as fit; cublaslt: number of the heuristic */
    int depth;  /* of them, in flight before the oldest is waited for; 0: all */
} pz_gemm_config;

/* Element types that kernels read and write. FIXED is an int32 sum whose unit is x_norm[m] * w_norm[n] * 2^-30. */
typedef enum pz_elem { PZ_ELEM_BF16 = 0, PZ_ELEM_F32 = 1, PZ_ELEM_FIXED = 2 } pz_elem;

/* A matrix [rows, cols] in device memory, row r at data + r * ld elements. */
typedef struct pz_matrix {
    void *data;
    int64_t ld; /* elements */
    pz_elem elem;
    const float *x_norm, *w_norm; /* FIXED: [rows] and [cols] */
} pz_matrix;

/* y[m, n] = sum_k x[m, k] w[n, k]. Zero-initialise, then set `size`. All pointers are device memory and 16-byte aligned
 * but for y, x_norm and w_norm (4). Nothing is allocated, synchronised or read from the environment, so a launch may be
 * captured into a graph. */
typedef struct pz_gemm_args {
    size_t size;
    const void *x, *w; /* bf16 [m, k] and [n, k] */
    int64_t ldx, ldw;  /* elements, multiples of 8 */
    void *y;           /* [m, n] of the accumulator's type: int32, f32, bf16 */
    int64_t ldy;       /* elements */
    int m, n, k;       /* m, n >= 1; k a multiple of 16 */
    pz_accum accum;
    const float *x_norm, *w_norm; /* FIXED: [m] by the kernel that makes x, [n] by pz_weight_norms; powers of two */
    pz_strategy strategy;
    pz_gemm_config config; /* family DEFAULT: chosen */
    void *workspace;       /* as pz_gemm_workspace says */
    int dependent;         /* 1: launched with programmatic stream serialization; the kernel before may still run */
    void *stream;          /* cudaStream_t */
} pz_gemm_args;

/* Checks the arguments (but for pointers) and says how many bytes of device memory the launch needs: zeroed once by the
 * caller before the first use, left clean by every launch, and used by no other launch that may run at the same time.
 * E_INVAL, E_UNSUPPORTED. */
PZ_API pz_status pz_gemm_workspace(const pz_gemm_args *args, size_t *bytes, pz_error *err);
/* Launches. E_INVAL, E_UNSUPPORTED (no GPU, an architecture that was not built, a configuration that does not fit). */
PZ_API pz_status pz_gemm(const pz_gemm_args *args, pz_error *err);

/* w_norm[n] for FIXED: the smallest power of two >= |w[n, :]|, NaN where w has NaN or Inf. w bf16 [n, k]. */
PZ_API pz_status pz_weight_norms(const void *w, int64_t ldw, int n, int k, float *w_norm, void *stream, pz_error *err);

/* r = x + res; y = r / sqrt(mean(r^2) + eps) * w, and on blocks of its own the rider: zero_bytes bytes at zero are set
 * to 0. Without res: r is x. Zero-initialise, then set `size`. */
typedef struct pz_norm_args {
    size_t size;
    pz_matrix x;    /* [m, hidden] */
    pz_matrix res;  /* [m, hidden] bf16 or f32; data NULL: none */
    const float *w; /* [hidden] */
    float eps;
    pz_matrix y;       /* [m, hidden] bf16 or f32 */
    pz_matrix r;       /* [m, hidden] bf16 or f32, may be res; data NULL: not written */
    float *x_norm;     /* [m] of y as stored, for pz_gemm with FIXED; NULL: not written */
    int m, hidden;     /* hidden a multiple of 8, at most 16384 */
    void *zero;        /* 16-byte aligned; NULL: no rider */
    size_t zero_bytes; /* a multiple of 16 */
    int late;          /* 1: kernels that depend on this one may start only after the rider's stores, else at once; both
                          are correct, as they wait for the whole of this kernel before they read */
    int dependent;     /* as in pz_gemm_args */
    void *stream;
} pz_norm_args;
PZ_API pz_status pz_rms_norm(const pz_norm_args *args, pz_error *err);

/* ---- measuring ---- */
/* GEMMs and norms as they run in a decode step. One graph is captured of a chain [norm, GEMM], [norm, GEMM], ... in
 * which every GEMM has a weight of its own, so that no weight is found in the L2 cache, and every norm has an input of
 * its own. The time of a pair is that of the graph over the number of pairs; the time of a GEMM is that of the pair
 * minus the time of a plain norm (no rider, no x_norm, launched normally) in a chain of norms alone. So a GEMM pays for
 * the rider that it needs, for x_norm, and for its launch, and is credited with what it hides under the norm.
 *
 * The cases of one call take turns: in each round every case is sampled once, in an order that changes from round to
 * round, and its samples are paired with the others of that round. Before it is timed, a case starts from outputs that
 * are poisoned and is replayed, and its outputs are compared with a GEMM in f64.
 *
 * These functions allocate device memory, take seconds, and want the device for themselves. Threads: one at a time per
 * device. Errors of the call: E_INVAL names the field; E_UNSUPPORTED says why there is no GPU; E_NOMEM how much was
 * asked for. What goes wrong with one case is said in that case, and the others are measured. */
enum { PZ_MEASURE_MAX_ROUNDS = 64, PZ_MEASURE_MAX_CASES = 256, PZ_MEASURE_BEST = -1 };

/* A sample per round and what follows from them: the median and its 95 % confidence interval, from order statistics.
 * With fewer than 6 samples there is no such interval: lo and hi are then the smallest and the largest sample. */
typedef struct pz_measure_times {
    int n;
    double us, lo, hi;
    double samples[PZ_MEASURE_MAX_ROUNDS]; /* by round */
} pz_measure_times;

/* The paired difference b - a of two cases of one call. E_INVAL unless both have the same number of samples, 1 or more.
 */
PZ_API pz_status pz_measure_difference(const pz_measure_times *a, const pz_measure_times *b, pz_measure_times *out,
                                       pz_error *err);

/* Zero-initialise, then set `size`. */
typedef struct pz_measure_spec {
    size_t size;
    int device;       /* number of the GPU */
    int m, n, k;      /* k: a multiple of 16, at most 16384, the width of the norm */
    int copies;       /* weights; 0: at least 24, and more than four times the L2 cache */
    int rounds;       /* samples a case, at most PZ_MEASURE_MAX_ROUNDS; 0: 7 */
    double sample_us; /* a sample is the mean over as many replays as last this long; 0: 1000 */
    uint64_t seed;    /* of the data and of the order of the cases */
    int unchecked;    /* 1: results are not compared with the reference (for profilers) */
} pz_measure_spec;

/* One case: what is launched (zero-initialise, then set), and what came out. */
typedef struct pz_measure_case {
    pz_accum accum; /* family CUBLASLT: the type of the output, BF16 or F32 */
    pz_strategy strategy;
    /* Family DEFAULT: as the library would choose; with stages PZ_MEASURE_BEST the fastest in a short run of the
     * geometries that the cost model ranks first and of neighbours of the fastest. CUBLASLT: stages is the number of
     * the heuristic, PZ_MEASURE_BEST the fastest of all heuristics in a short run. */
    pz_gemm_config config;
    int serial; /* 1: norm and GEMM start when the kernel before has ended; 0: programmatic dependent launch. cuBLASLt
                   is always serial */
    int late;   /* PREZERO: as in pz_norm_args */

    /* Results. */
    pz_status status;      /* OK; E_UNSUPPORTED and E_INVAL: does not fit; E_VERIFY: wrong result, so not timed */
    char message[200];     /* of a status that is not OK, else "" */
    pz_gemm_config used;   /* config, with what was chosen */
    int tried;             /* geometries or heuristics of the short run, 0 if there was none */
    char name[80];         /* "skinny tile_n 64, split 4, ...", the algorithm of cuBLASLt */
    pz_measure_times gemm; /* us of the pair minus the plain norm */
    pz_measure_times pair; /* us of the pair */
    double bytes;          /* x, w and y, once each */
    double gbs;            /* bytes / gemm.us, in 10^9 bytes a second */
    double max_error;      /* largest |y - reference| over the root mean square of the reference; unchecked: 0 */
} pz_measure_case;

/* Measures n_cases cases. norm, if not NULL, receives the times of the plain norm. */
PZ_API pz_status pz_measure_gemm(const pz_measure_spec *spec, pz_measure_case *cases, int n_cases,
                                 pz_measure_times *norm, pz_progress_fn progress, void *user, pz_error *err);

/* Zero-initialise, then set `size`. */
typedef struct pz_measure_norm_spec {
    size_t size;
    int device, m, hidden;
    int gemm_n; /* the GEMM behind a norm is [gemm_n, hidden], FIXED, launched as plans on this device do; 0: 2112 */
    int copies; /* links of the chain, 0: 32; each GEMM has a weight of its own */
    int rounds; /* as in pz_measure_spec */
    double sample_us;
    uint64_t seed;
} pz_measure_norm_spec;

/* A chain of add + RMSNorm with a rider, alone or each with a GEMM behind it. */
typedef struct pz_measure_norm_case {
    size_t zero_bytes; /* a multiple of 16; 0: no rider */
    int late;          /* as in pz_norm_args */
    int serial;        /* as in pz_measure_case */
    int x_norm;        /* 1: written; with gemm it always is */
    int shared;        /* 1: all links zero the same memory, as all layers of a plan do, and the GEMMs without a rider
                          add into it; 0: each its own, which the L2 cache has to write out */
    int gemm;          /* 1: a GEMM follows. Its output is the first that the rider zeroes; without a rider it adds into
                          what it added before, which takes as long, and its sums are not checked */

    pz_status status; /* E_VERIFY: the rider left bytes that are not zero, or wrote beyond its range, or the GEMM has
                         other bits than by itself; E_INVAL: the rider is smaller than the GEMM's output, or hidden is
                         no multiple of 16; E_NOMEM: the GEMM's memory */
    char message[200];
    pz_measure_times norm;  /* us of one norm, or of norm and GEMM */
    pz_measure_times added; /* minus the same of the same `serial`, `gemm` and, with a GEMM, `shared`, without rider,
                               late and x_norm */
} pz_measure_norm_case;

PZ_API pz_status pz_measure_norm(const pz_measure_norm_spec *spec, pz_measure_norm_case *cases, int n_cases,
                                 pz_progress_fn progress, void *user, pz_error *err);

/* How the sum over the ranks and the norm are done: enum suffix, text. */
#define PZ_REDUCE_TABLE(X)                                                                         \
    X(FUSED, "fused")           /* one kernel of ours: sum, residual, norm, x_norm, rider */       \
    X(NCCL_NORM, "nccl+norm")   /* NCCL's all-reduce, then pz_rms_norm, which carries the rider */ \
    X(NCCL, "nccl")             /* NCCL's all-reduce alone */                                      \
    X(ALL_REDUCE, "allreduce")  /* one kernel of ours: the sum alone */                            \
    X(FUSED_GEMM, "fused+gemm") /* FUSED, which zeroes the output of the GEMM that follows it */
typedef enum pz_reduce_kind {
#define PZ_REDUCE_ENUM(id, text) PZ_REDUCE_##id,
    PZ_REDUCE_TABLE(PZ_REDUCE_ENUM)
#undef PZ_REDUCE_ENUM
} pz_reduce_kind;

/* Zero-initialise, then set `size`. */
typedef struct pz_measure_reduce_spec {
    size_t size;
    int device, ranks; /* ranks 2 to 8, on GPUs device, device + 1, ... */
    int share_device;  /* 1: where there are fewer GPUs than ranks, several ranks take turns on one; the times then say
                          nothing about several */
    int one_shot;      /* rows up to which every rank sends its rows to all, 1 to 256; 0: as plans on this device */
    int m, hidden;     /* bf16 */
    int gemm_n;        /* FUSED_GEMM: the GEMM is [gemm_n, hidden], in the tuned geometry, FIXED; 0: 2112 */
    int copies;        /* links of the chain, 0: 32; each GEMM has a weight of its own */
    int rounds;        /* as in pz_measure_spec */
    double sample_us;
    uint64_t seed;
} pz_measure_reduce_spec;

typedef struct pz_measure_reduce_case {
    pz_reduce_kind kind;
    int steps;         /* of ours: 1 or 2, 0: as the rows and one_shot say */
    size_t zero_bytes; /* of the rider, a multiple of 16; 0: none, but for FUSED_GEMM's output */
    int serial;        /* as in pz_measure_case; FUSED_GEMM: of the GEMM alone */

    pz_status status; /* E_UNSUPPORTED: no NCCL, or it refuses the devices; E_VERIFY: wrong sums, on any rank, or a GEMM
                         that has not waited */
    char message[200];
    pz_measure_times times; /* us of one link, on rank 0 */
} pz_measure_reduce_case;

/* All ranks replay a graph of `copies` links each, at the same time; all cases take turns. E_VERIFY is found before
 * anything is timed. */
PZ_API pz_status pz_measure_reduce(const pz_measure_reduce_spec *spec, pz_measure_reduce_case *cases, int n_cases,
                                   pz_progress_fn progress, void *user, pz_error *err);

/* The device, for reports. */
typedef struct pz_measure_device {
    char product[64];    /* "NVIDIA H200" */
    int units, sm;       /* SMs; 90 for compute capability 9.0 */
    int driver, runtime; /* 13000 for CUDA 13.0 */
    int64_t cublaslt;    /* version, 0: built without it */
    int64_t l2_bytes, memory_bytes;
    double copy_gbs; /* a copy within the device's memory, bytes read and written, 10^9 a second; the best of 20 */
} pz_measure_device;
PZ_API pz_status pz_measure_get_device(int device, pz_measure_device *out, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
