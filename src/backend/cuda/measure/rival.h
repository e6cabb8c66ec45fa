/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt by itself, as its own documentation has it used: what our kernels are compared with. None of our code is in
 * its way. */
#ifndef PZ_CUDA_RIVAL_H
#define PZ_CUDA_RIVAL_H

#include "backend/cuda/measure/lab.h"

typedef struct pz_rival pz_rival;

/* y[m, n] = x[m, k] w[n, k]^T, all dense, x and w bf16, y bf16 or f32, sums in f32, a workspace of 32 MiB in the lab's
 * memory. E_UNSUPPORTED without cuBLASLt. */
pz_status pz_rival_open(pz_lab *lab, int m, int n, int k, pz_elem y, pz_rival **out, pz_error *err);
void pz_rival_close(pz_rival *r);
/* How many heuristics it returned, the one it thinks fastest first. */
int pz_rival_heuristics(const pz_rival *r);
pz_status pz_rival_run(const pz_rival *r, int heuristic, const void *x, const void *w, void *y, pz_error *err);
/* "algo 66, tile 20, stages 35, split 4" */
void pz_rival_name(const pz_rival *r, int heuristic, char *buf, size_t size);
/* Version of the library, 0 if there is none. */
int64_t pz_rival_version(void);

#endif
