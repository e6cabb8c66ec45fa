/* SPDX-License-Identifier: Apache-2.0 */
/* The GEMM that follows a donor in a chain, as a plan would launch it: each with a weight and an output of its own. */
#ifndef PZ_CUDA_FOLLOWER_H
#define PZ_CUDA_FOLLOWER_H

#include "backend/cuda/measure/lab.h"
#include "plan/plan.h"

typedef struct pz_follower {
    pz_lab *lab;
    pz_gemm_shape shape;
    pz_gemm_choice choice;
    int links;
    size_t w_stride, y_stride; /* bytes between the links' matrices */
    unsigned char *w, *y;      /* [links]: bf16 [n, k], int32 [m, n] */
    float *w_norm;             /* [links][n] */
    void *workspace, *again;   /* again: int32 [m, n] */
} pz_follower;

/* stride: bytes from an output to the next at least, for donors that zero more than the output. Memory is the lab's.
 * E_INVAL: k is no multiple of 16. */
pz_status pz_follower_open(pz_lab *lab, const pz_device *device, int m, int n, int k, int links, size_t stride,
                           uint64_t seed, pz_follower *out, pz_error *err);
/* What the donor of this link has to zero; bytes 0: nothing. */
void *pz_follower_zero(const pz_follower *f, int link, size_t *bytes);
/* Launches the GEMM of a link: x bf16 [m, k] with its norms. */
pz_status pz_follower_run(const pz_follower *f, int link, const void *x, const float *x_norm, bool dependent,
                          pz_error *err);
/* After the chain: multiplies once more, with nothing beside it, and compares bit by bit. E_VERIFY. */
pz_status pz_follower_check(const pz_follower *f, int link, const void *x, const float *x_norm, pz_error *err);

#endif
