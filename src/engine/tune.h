/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner without its clock: which launches are measured, in which order, and what is taken from the times. */
#ifndef PZ_TUNE_H
#define PZ_TUNE_H

#include "engine/fit.h"
#include "plan/cost.h"
#include "plan/tuned.h"
#include "prezero/engine.h"

/* How long each launch is measured: all candidates, those that may win, those between which is decided. */
typedef enum pz_effort { PZ_EFFORT_QUICK, PZ_EFFORT_LONGER, PZ_EFFORT_FINAL } pz_effort;

/* One launch of a shape, and what came out. */
typedef struct pz_tune_case {
    pz_accum accum;        /* cuBLASLt as a mere reference: F32 where the shape has FIXED */
    pz_gemm_choice choice; /* cuBLASLt with stages PZ_MEASURE_BEST: of all heuristics the fastest, whose number replaces
                              it; us and ci are set where status is OK */
    pz_status status; /* E_UNSUPPORTED, E_INVAL: does not fit; E_VERIFY: wrong result, refused however fast it is */
} pz_tune_case;

/* One all-reduce fused with a norm, and what came out. */
typedef struct pz_tune_reduce {
    int steps;     /* 1 or 2 */
    int64_t bytes; /* that its rider zeroes */
    double us, ci; /* median, half of its 95 % confidence interval */
} pz_tune_reduce;

/* The clock. E_UNSUPPORTED and E_INVAL of a call: the shape cannot be measured; any other error ends the run; what goes
 * wrong with one case is its status. */
typedef struct pz_tune_clock {
    void *ctx;
    pz_status (*gemm)(void *ctx, const pz_gemm_shape *shape, pz_effort effort, pz_tune_case *cases, int n,
                      pz_progress_fn progress, void *user, pz_error *err);
    /* us[i]: a norm of [m, hidden] whose rider zeroes bytes[i]; NaN where that could not be measured. */
    pz_status (*norm)(void *ctx, int m, int hidden, const int64_t *bytes, int n, double *us, pz_error *err);
    /* [m, hidden] over so many GPUs. E_UNSUPPORTED and E_INVAL: they are not there, or it is too many; E_VERIFY: wrong
     * sums. */
    pz_status (*reduce)(void *ctx, int ranks, int m, int hidden, pz_tune_reduce *cases, int n, pz_error *err);
} pz_tune_clock;

typedef PZ_VEC(pz_gemm_shape) pz_gemm_shapes;

typedef struct pz_tune_plan {
    const pz_device *dev;
    const pz_tune_clock *clock;
    const pz_gemm_shapes *shapes; /* m of each is set by the tuner */
    const int *batches;
    int n_batches;
    int hidden;              /* of the norms that the gate's constants are fitted to; 0: not fitted */
    int ranks, ranks_hidden; /* collectives to tune: ranks, columns of their rows; ranks 1: none */
    bool quick;              /* fewer candidates */
    bool resume;             /* rows that the table has are not measured again */
    const char *path;        /* the table is written here after every row; NULL: nowhere */
    pz_progress_fn progress; /* done and total are hundredths of rows */
    void *user;
} pz_tune_plan;

typedef struct pz_tune_tally {
    int rows, kept;      /* measured now; already in the table */
    int failed;          /* shapes and buckets for which no launch fits */
    int measured, unfit; /* launches */
    pz_error no_ranks;   /* why collectives were not tuned; code PZ_OK: they were, are there, or were not asked for */
    pz_error failure;    /* why a shape could not be measured at all: the first time */
    int wrong;           /* launches with a wrong result */
    pz_gemm_shape wrong_shape;
    pz_tune_case wrong_case; /* the first of them */
} pz_tune_tally;

/* Fills the table; rows of other shapes and batches stay. Whatever ends the run, the file is whole, and a later run can
 * go on from there. */
pz_status pz_tune_run(const pz_tune_plan *plan, pz_tuned *table, pz_tune_tally *tally, pz_error *err);

/* The collectives of the plan's ranks. progress: 0 to the number of calls of the clock. */
pz_status pz_tune_collective(const pz_tune_plan *plan, pz_progress_fn progress, void *user, pz_tuned_collective *out,
                             pz_error *err);

/* The table that a run starts from: what the file has for this device and these kernels, under a header of this run;
 * the rest of its rows are counted. A file that is no table is an error, as it would be written over. */
pz_status pz_tune_open_table(const pz_device *dev, const char *path, const char *command, pz_tuned **out, int *stale,
                             pz_error *err);

/* The distinct GEMMs of a graph (after the standard passes), ascending by n and k; hidden: the width of its first norm.
 */
pz_status pz_tune_shapes(const pz_graph *g, pz_gemm_shapes *out, int *hidden, pz_error *err);
/* "2112,7168;384,7168" */
pz_status pz_tune_parse_shapes(const char *text, pz_accum accum, pz_gemm_shapes *out, pz_error *err);
/* Adds a shape that is not yet there. */
pz_status pz_tune_add_shape(pz_gemm_shapes *shapes, const pz_gemm_shape *shape, pz_error *err);

/* The clock of GPU `device`, and of those after it: pz_measure_gemm, pz_measure_norm, pz_measure_reduce. */
typedef struct pz_gpu_clock {
    int device;
    bool quick;
} pz_gpu_clock;
pz_tune_clock pz_tune_gpu_clock(pz_gpu_clock *gpu);

/* What was chosen for the plan's shapes and batches, one line a row (pz_free). */
pz_status pz_tune_summary(const pz_tune_plan *plan, const pz_tuned *table, const pz_tune_tally *tally, char **out,
                          pz_error *err);

#endif
