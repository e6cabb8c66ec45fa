/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives' kernel, and the memory through which the ranks' kernels meet. */
#ifndef PZ_CUDA_COLLECTIVE_H
#define PZ_CUDA_COLLECTIVE_H

#include "backend/cuda/cuda.h"
#include "plan/donor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PZ_GROUP_HEADER = 256, /* bytes of a workspace before its buffers */
    PZ_GROUP_BUFFERS = 3,
    PZ_GATHERED_ROWS = 128,
    PZ_GROUP_EMPTY = 0xff /* every byte of a buffer that nothing has been written to */
};

/* In pz_group_header.missing: the ranks do not arrive because one has failed, and its host has said so. */
#define PZ_GROUP_FAILED 0x80000000u

/* The beginning of a workspace. The rest of it is EMPTY, this is 0, before the first launch. */
typedef struct pz_group_header {
    uint32_t buffer;  /* that the next launch uses */
    uint32_t used;    /* units of 16 bytes that the launch before it has used of the buffer before */
    uint32_t missing; /* ranks that did not arrive in time, a bit each; 0: nothing has failed */
    uint32_t arrived; /* blocks of the running launch */
} pz_group_header;

/* A group as the kernel of one rank sees it. */
typedef struct pz_group_view {
    unsigned char *workspace[PZ_MAX_RANKS]; /* of every rank, in device memory that this rank can write */
    int64_t buffer_bytes;
    uint32_t *missing; /* page-locked host memory: becomes what the header says when that is not 0 */
    int rank, ranks, timeout_ms;
    int one_shot; /* rows up to which every rank sends its rows to all; above, a row's owner sends the sum */
    int share;    /* ranks and groups whose kernels may be on the device at the same time, 1 or more */
    /* Nothing is sent or waited for: the partial sums of all ranks have been gathered in this rank's workspace, rank
     * 0's rows first, then rank 1's, and so on; at most PZ_GATHERED_ROWS. */
    bool gathered;
    bool alone; /* nothing is sent or waited for, and the result is that of one rank */
} pz_group_view;

/* What partial sums are sent as. */
static inline pz_elem pz_group_payload(pz_elem x) {
    return x == PZ_ELEM_BF16 ? PZ_ELEM_BF16 : PZ_ELEM_F32;
}

/* Rows from `first` on. */
static inline pz_matrix pz_matrix_from_row(pz_matrix a, int first) {
    if (a.data) a.data = (char *)a.data + first * a.ld * pz_elem_bytes(a.elem);
    if (a.x_norm) a.x_norm += first;
    return a;
}

/* Bytes of a buffer that serves rows of `hidden` elements. */
int64_t pz_group_buffer_bytes(const pz_group_view *g, int hidden);

/* As pz_rms_norm, with the sum over all ranks in place of x. r must be given; y.data NULL: all_reduce, r is the sum
 * plus res, if there is one, and that is all. res has the same bits on all ranks. All ranks launch the same, with
 * arguments that may differ in addresses and in `zero`. */
pz_status pz_cuda_reduce_norm(const pz_norm_args *args, const pz_group_view *g, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
