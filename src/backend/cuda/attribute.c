/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/cuda.h"

/* What is beyond these is asked for each time. */
enum { DEVICES = 64, ATTRIBUTES = 128 };

pz_status pz_cuda_attribute(enum cudaDeviceAttr attribute, int *value, pz_error *err) {
    static int known[DEVICES][ATTRIBUTES]; /* value + 1; threads that ask at the same time store the same */
    int device;
    PZ_CUDA_TRY(cudaGetDevice(&device), err);
    int *kept = device < DEVICES && (int)attribute < ATTRIBUTES ? &known[device][attribute] : NULL;
    *value = kept ? __atomic_load_n(kept, __ATOMIC_RELAXED) - 1 : -1;
    if (*value >= 0) return PZ_OK;
    PZ_CUDA_TRY(cudaDeviceGetAttribute(value, attribute, device), err);
    if (kept) __atomic_store_n(kept, *value + 1, __ATOMIC_RELAXED);
    return PZ_OK;
}
