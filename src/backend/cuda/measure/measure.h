/* SPDX-License-Identifier: Apache-2.0 */
/* The module's side of pz_measure_*: arguments are checked and complete, results are samples without statistics. */
#ifndef PZ_CUDA_MEASURE_H
#define PZ_CUDA_MEASURE_H

#include "prezero/kernels.h"

pz_status pz_cuda_measure_gemm(const pz_measure_spec *spec, pz_measure_case *cases, int n_cases, pz_measure_times *norm,
                               pz_progress_fn progress, void *user, pz_error *err);
pz_status pz_cuda_measure_norm(const pz_measure_norm_spec *spec, pz_measure_norm_case *cases, int n_cases,
                               pz_progress_fn progress, void *user, pz_error *err);
pz_status pz_cuda_measure_reduce(const pz_measure_reduce_spec *spec, pz_measure_reduce_case *cases, int n_cases,
                                 pz_progress_fn progress, void *user, pz_error *err);
pz_status pz_cuda_measure_device(int device, pz_measure_device *out, pz_error *err);

#endif
