/* SPDX-License-Identifier: Apache-2.0 */
/* What libprezero_cuda.so offers the library: one table, its only exported symbol. */
#ifndef PZ_CUDA_MODULE_H
#define PZ_CUDA_MODULE_H

#include "backend/backend.h"

typedef struct pz_cuda_module {
    int abi;             /* PZ_CUDA_ABI; read and compared before any other field */
    const char *version; /* pz_version of the build; another version's module is refused */
    /* E_UNSUPPORTED unless there are a driver and a device of an architecture that was built. */
    pz_status (*probe)(pz_error *err);
    const pz_backend_api *backend;
    /* The functions of kernels.h, with full-size arguments. */
    pz_status (*gemm)(const pz_gemm_args *args, pz_error *err);
    pz_status (*gemm_workspace)(const pz_gemm_args *args, size_t *bytes, pz_error *err);
    pz_status (*weight_norms)(const void *w, int64_t ldw, int n, int k, float *w_norm, void *stream, pz_error *err);
    pz_status (*rms_norm)(const pz_norm_args *args, pz_error *err);
    /* pz_measure_*: checked arguments without defaults left, results without statistics (samples alone). */
    pz_status (*measure_gemm)(const pz_measure_spec *spec, pz_measure_case *cases, int n_cases, pz_measure_times *norm,
                              pz_progress_fn progress, void *user, pz_error *err);
    pz_status (*measure_norm)(const pz_measure_norm_spec *spec, pz_measure_norm_case *cases, int n_cases,
                              pz_progress_fn progress, void *user, pz_error *err);
    pz_status (*measure_reduce)(const pz_measure_reduce_spec *spec, pz_measure_reduce_case *cases, int n_cases,
                                pz_progress_fn progress, void *user, pz_error *err);
    pz_status (*measure_device)(int device, pz_measure_device *out, pz_error *err);
} pz_cuda_module;

/* Made of the sizes of all that passes between the two, so that builds of different sources do not match. */
#define PZ_CUDA_ABI                                                                                             \
    ((int)(sizeof(pz_cuda_module) + 3 * sizeof(pz_backend_api) + 5 * sizeof(pz_backend_options) +               \
           7 * sizeof(pz_run_args) + 11 * sizeof(pz_cache) + 13 * sizeof(pz_plan) + 17 * sizeof(pz_launch) +    \
           19 * sizeof(pz_place) + 23 * sizeof(pz_fill) + 29 * sizeof(pz_slice) + 31 * sizeof(pz_host_weight) + \
           37 * sizeof(pz_device) + 41 * sizeof(pz_gemm_args) + 43 * sizeof(pz_norm_args) + 47 * (size_t)PZ_OP_COUNT))

#define PZ_CUDA_MODULE_FILE "libprezero_cuda.so"
#define PZ_CUDA_MODULE_SYMBOL "pz_cuda_module_table"
extern PZ_API const pz_cuda_module pz_cuda_module_table; /* in the module alone */

/* Loads the module at the first call; it then stays. Looked for as knob CUDA_MODULE says, else beside the library (or
 * the executable that holds it), in the library directory of the same installation, and where dlopen looks. A failure
 * is not remembered. Any thread. E_UNSUPPORTED says why there is none. */
pz_status pz_cuda_module_load(const pz_cuda_module **out, pz_error *err);

#endif
