/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for the module for GPUs: the backend's own host code over a CUDA runtime whose device is host memory, and
 * kernels that are the CPU backend's. So everything but the kernels can be tested without a GPU. */
#ifndef PZ_FAKE_CUDA_H
#define PZ_FAKE_CUDA_H

#include "backend/cuda_module.h"

/* Exported as pz_fake_cuda, for the test that has loaded the module. */
typedef struct fake_control {
    long fail_after; /* calls of the runtime that still succeed, negative: all */
    long calls;      /* made so far */
    int live;        /* streams, events, graphs and blocks of memory that exist */
    int captures, replays;
    int launches;                     /* executed one by one */
    int wrong_dependent;              /* launches whose programmatic dependence was not as it should be */
    int stray;                        /* launch that writes a word outside what the plan gives it, -1: none */
    void (*alloc_fail_after)(long n); /* pz_alloc_fail_after of the module's own copy of src/base */
    /* pz_cuda_attribute on that device: its minor version, or its number of SMs */
    pz_status (*attribute)(int device, bool minor, int *value, pz_error *err);
} fake_control;
extern PZ_API fake_control pz_fake_cuda;

/* ---- between cudart.c and kernels.c ---- */
typedef struct fake_launch {
    struct pz_backend *b;
    const pz_plan *plan;
    int launch;
    unsigned char *arena;
    const void *cache; /* pz_cuda_cache */
} fake_launch;
/* Executes a launch now, or records it if its stream is being captured. */
void fake_submit(const fake_launch *l);
void fake_execute(const fake_launch *l);

#endif
