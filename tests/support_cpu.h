/* SPDX-License-Identifier: Apache-2.0 */
/* A rig runs launches of the CPU backend that a test writes by hand. Whatever a launch may not write keeps its bits:
 * the rig compares everything but the outputs with a copy taken before the run. */
#ifndef PZ_TEST_SUPPORT_CPU_H
#define PZ_TEST_SUPPORT_CPU_H

#include "support.h"

#include <math.h>

#include "backend/backend.h"
#include "base/fixed.h"
#include "base/rng.h"

enum { RIG_BYTES = 2 << 20, RIG_PLACES = 64 };

typedef struct rig {
    const pz_backend_api *api;
    pz_backend *b;
    pz_graph *graph;
    pz_func *func;
    pz_plan plan;
    pz_cache cache;
    unsigned char *arena, *before;
    size_t capacity;          /* bytes of each */
    bool written[RIG_PLACES]; /* outputs */
    int64_t *launch_ns;       /* as in pz_run_args */
    /* Called with every weight that is loaded, so that another backend can load it too; may be NULL. */
    void (*mirror)(void *user, const pz_weight *w, pz_op use, const pz_host_weight *host);
    void *mirror_user;
} rig;

/* The instruction sets that this machine can run; ends with NULL. */
const char *const *rig_isas(void);
rig *rig_open(const char *isa, int threads, int m);
rig *rig_open_sized(const char *isa, int threads, int m, size_t capacity);
/* A rank of a group. */
rig *rig_open_rank(pz_comm *comm, int threads, int m);
void rig_close(rig *r);

/* A place of its own, poisoned with NaN bits, with room around it that nobody may touch. rank 1 if cols is 0. */
int rig_place(rig *r, pz_dtype dt, int64_t cols);
/* Columns [col, col + cols) of a place. */
int rig_view(rig *r, int place, int64_t col, int64_t cols);
int rig_output(rig *r, pz_dtype dt, int64_t cols);
/* An output with an x_norm of its own. */
int rig_normed_output(rig *r, pz_dtype dt, int64_t cols);
void *rig_data(rig *r, int place);
/* An activation [m, cols] of dtype F32 or BF16; x is rounded to what is stored. */
int rig_act(rig *r, pz_dtype dt, int64_t cols, float *x);
int rig_i32(rig *r, int64_t cols, const int32_t *v);

/* Weight [dim...] made of `rows` x `cols` values, which are rounded to dt (F32, BF16); for MXFP4 they are replaced by
 * random ones that it can hold. Loaded in two parts for `use`. */
pz_weight *rig_weight(rig *r, const char *name, pz_dtype dt, int rank, const int64_t *dim, float *values, pz_op use);
static inline pz_weight *rig_matrix(rig *r, const char *name, pz_dtype dt, int64_t rows, int64_t cols, float *values,
                                    pz_op use) {
    return rig_weight(r, name, dt, 2, (int64_t[]){rows, cols}, values, use);
}
static inline pz_weight *rig_vector(rig *r, const char *name, pz_dtype dt, int64_t n, float *values, pz_op use) {
    return rig_weight(r, name, dt, 1, (int64_t[]){n}, values, use);
}

/* A launch with all operands and results absent. */
pz_launch *rig_launch(rig *r, pz_op op);
void rig_in(pz_launch *l, const char *operand, int place);
void rig_in_weight(pz_launch *l, const char *operand, const pz_weight *w);
void rig_attr_int(pz_launch *l, const char *name, int64_t v);
void rig_attr_float(pz_launch *l, const char *name, double v);
void rig_attr_str(pz_launch *l, const char *name, const char *v);

/* Runs all launches; asserts success and that nothing but outputs changed. */
void rig_run(rig *r);
/* Runs all launches and hands the status on; nothing at all may have changed if it fails. */
pz_status rig_try(rig *r, pz_error *err);
/* Runs the rigs of all ranks at the same time, each on a thread of its own. */
void rigs_run(rig *const *rigs, int n);
/* The same without rank `missing`, -1: with all; each rank's status and error. */
void rigs_try(rig *const *rigs, int n, int missing, pz_status *st, pz_error *err);
/* All rows of a place as f32 [m][cols], on the heap. */
float *rig_read(rig *r, int place);

/* ---- numbers ---- */
float rnd(uint64_t *state);                   /* in [-1, 1), with a spread of magnitudes */
float *rnd_array(uint64_t *state, int64_t n); /* on the heap */
int rnd_int(uint64_t *state, int lo, int hi);
float rig_round(pz_dtype dt, float v); /* as stored in dt */
/* x_norm of rows [m][n]. */
float norm_of(const float *x, int64_t n);

/* Asserts |got - want| <= tolerance for every element, NaN for NaN. */
#define assert_close(got, want, tolerance, n) support_assert_close((got), (want), (tolerance), (n), __FILE__, __LINE__)
void support_assert_close(const float *got, const double *want, const double *tolerance, int64_t n, const char *file,
                          int line);

#endif
