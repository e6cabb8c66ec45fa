/* SPDX-License-Identifier: Apache-2.0 */
/* The gate's constants from measurements, by least squares. */
#ifndef PZ_FIT_H
#define PZ_FIT_H

#include "plan/plan.h"

/* A norm of m rows whose rider zeroes that many bytes. */
typedef struct pz_norm_sample {
    int m;
    int64_t bytes;
    double us;
} pz_norm_sample;

/* A GEMM that zeroes its own output of that many bytes, and the same one with a zeroed output. */
typedef struct pz_zero_sample {
    int64_t bytes;
    double self_us, zeroed_us;
} pz_zero_sample;

/* y = base + slope x. False, and nothing written, unless there are two different x. */
bool pz_fit_line(const double *x, const double *y, int n, double *base, double *slope);
/* us = base + row * rows, neither negative. Times that fall with the rows are noise: then it takes the mean of them.
 * False, and nothing written, without any. */
bool pz_fit_times(const double *rows, const double *us, int n, double *base, double *row);
/* The mean of what something adds, 0 where that is noise. */
double pz_fit_extra(const double *us, int n);

/* Sets what the samples of a GPU with `units` SMs can tell and leaves the rest of *out: norm_base and norm_row from
 * norms without a rider, fill from riders that lengthen the donor, rider from those that it hides. */
pz_status pz_fit_norm(const pz_norm_sample *s, int n, int units, pz_gate_constants *out, pz_error *err);
/* Sets handshake to the median of what zeroing takes beyond the fill, by the fill rate in *out. */
pz_status pz_fit_handshake(const pz_zero_sample *s, int n, int units, pz_gate_constants *out, pz_error *err);

#endif
