/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that measurements need beside those that are measured. All are launched into `stream` and return at once. */
#ifndef PZ_CUDA_MEASURE_KERNELS_H
#define PZ_CUDA_MEASURE_KERNELS_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Random numbers, uniform in [centre - scale, centre + scale); element i depends on seed and i alone. */
pz_status pz_lab_fill_bf16(void *p, int64_t n, float centre, float scale, uint64_t seed, cudaStream_t stream,
                           pz_error *err);
pz_status pz_lab_fill_f32(float *p, int64_t n, float centre, float scale, uint64_t seed, cudaStream_t stream,
                          pz_error *err);

/* out[m, n] = x[m, :] . w[n, :] in f64; squares, zeroed before, receives the sum of out's squares. x, w bf16. */
pz_status pz_lab_reference(const void *x, const void *w, int m, int n, int k, double *out, double *squares,
                           cudaStream_t stream, pz_error *err);
/* *worst, zeroed before, becomes the larger of itself and the largest |y - reference|: its f32 bits in the upper half,
 * the index of the element in the lower. What is no number counts as infinite. y is [m, n], dense. */
pz_status pz_lab_compare(const pz_matrix *y, int m, int n, const double *reference, unsigned long long *worst,
                         cudaStream_t stream, pz_error *err);
/* *count, zeroed before: words of [p, p + bytes) that are not `value`. bytes: a multiple of 4. */
pz_status pz_lab_count_other(const void *p, size_t bytes, uint32_t value, unsigned long long *count,
                             cudaStream_t stream, pz_error *err);
/* bytes: a multiple of 16. */
pz_status pz_lab_copy(void *dst, const void *src, size_t bytes, int units, cudaStream_t stream, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
