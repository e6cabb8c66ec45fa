/* SPDX-License-Identifier: Apache-2.0 */
/* The geometry of a GEMM whose caller leaves it open: the tuned table of the device, else the cost model. */
#include <pthread.h>

#include "backend/cuda/gemm/gemm.h"
#include "plan/cost.h"
#include "plan/tuned.h"

enum { MAX_DEVICES = 64 };

/* Made once a device and kept: a launch must not read files. */
static struct {
    bool ready;
    pz_device device;
} known[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static pz_status make_device(int number, pz_error *err) {
    struct cudaDeviceProp prop;
    pz_tuned *tuned = NULL;
    PZ_CUDA_TRY(cudaGetDeviceProperties(&prop, number), err);
    pz_device_gpu(prop.name, prop.major * 10 + prop.minor, prop.multiProcessorCount, &known[number].device);
    PZ_TRY(pz_tuned_open(&known[number].device, &tuned, err));
    pz_device_tune(&known[number].device, tuned);
    known[number].ready = true;
    return PZ_OK;
}

pz_status pz_gemm_geometry(const pz_gemm_args *a, pz_gemm_config *out, pz_error *err) {
    int number;
    PZ_CUDA_TRY(cudaGetDevice(&number), err);
    if (number >= MAX_DEVICES)
        return pz_fail(err, PZ_E_UNSUPPORTED, "gemm: device %d: give the geometry, it is known for the first %d only",
                       number, (int)MAX_DEVICES);
    pthread_mutex_lock(&lock);
    pz_status st = known[number].ready ? PZ_OK : make_device(number, err);
    pthread_mutex_unlock(&lock);
    if (st != PZ_OK) return st;
    pz_gemm_shape shape = {.n = a->n, .k = a->k, .weight = PZ_DT_BF16, .accum = a->accum, .m = a->m};
    pz_gemm_choices c = pz_gemm_choose(&known[number].device, &shape);
    if (c.tuned && c.on.strategy == a->strategy)
        *out = c.on.config;
    else if (c.tuned && c.off.strategy == a->strategy)
        *out = c.off.config;
    else
        *out = pz_gemm_model_for(&known[number].device, &shape, a->strategy);
    return PZ_OK;
}
