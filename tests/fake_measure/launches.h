/* SPDX-License-Identifier: Apache-2.0 */
/* Between cudart.c and kernels.c. */
#ifndef PZ_FAKE_LAUNCHES_H
#define PZ_FAKE_LAUNCHES_H

#include "fake_measure/fake.h"

typedef struct fake_launch {
    enum { FAKE_NORM, FAKE_GEMM, FAKE_RIVAL } kind;
    pz_norm_args norm;
    pz_gemm_args gemm;
    double us; /* RIVAL */
} fake_launch;

typedef struct fake_launches {
    fake_launch *at;
    int n, cap;
} fake_launches;

void fake_submit(const fake_launch *l);
void fake_execute(const fake_launch *l);
void fake_advance(double us);
char fake_letter(const fake_launches *l);

#endif
