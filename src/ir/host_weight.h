/* SPDX-License-Identifier: Apache-2.0 */
/* A graph weight as the checkpoint holds it: parts of memory-mapped tensors, stacked along the rows. Nothing is copied:
 * a slice of a tensor's columns is a part whose stride is the tensor's. */
#ifndef PZ_HOST_WEIGHT_H
#define PZ_HOST_WEIGHT_H

#include "ir/ir.h"

/* `rows` rows of `cols` elements of the weight's dtype. For mxfp4, data holds two elements a byte, low nibble the even
 * column, and scale one e8m0 byte per 32 columns. */
typedef struct pz_host_part {
    const unsigned char *data;
    int64_t rows, row_stride;   /* bytes from row to row, at least a row's */
    const unsigned char *scale; /* mxfp4 only */
    int64_t scale_stride;       /* bytes from row to row */
} pz_host_part;

/* The logical weight [rows, cols]; a 3-D weight [e, n, k] is [e * n, k], a vector [n] is [1, n]. dt is F32, BF16 or
 * MXFP4 and may differ from the graph's dtype only as F32 for BF16 and back (norms, biases). */
typedef struct pz_host_weight {
    pz_dtype dt;
    int64_t rows, cols;
    PZ_VEC(pz_host_part) parts;
    void *owned; /* memory of a computed weight (rope frequencies), else NULL */
} pz_host_weight;

#endif
