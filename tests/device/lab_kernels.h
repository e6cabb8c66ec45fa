/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the GPU's lab. */
#ifndef PZ_TEST_DEVICE_LAB_KERNELS_H
#define PZ_TEST_DEVICE_LAB_KERNELS_H

#include <cuda_runtime_api.h>

#include "support_elem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* elem_NAME_at(params, i) for every i below n. */
cudaError_t lab_kernel_each(lab_work work, const void *params, int64_t n, cudaStream_t stream);
/* Blocks that take so much shared memory that one fits a multiprocessor, on all but `spare` of them, for that long. */
cudaError_t lab_kernel_occupy(int multiprocessors, int spare, int microseconds, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
