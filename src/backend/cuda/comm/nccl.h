/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, loaded when it is asked for: nothing of ours needs it to be built or to start. */
#ifndef PZ_CUDA_NCCL_H
#define PZ_CUDA_NCCL_H

#include "backend/cuda/cuda.h"

typedef struct pz_nccl pz_nccl;

/* Meets the other ranks, on the calling thread's device. E_UNSUPPORTED where there is no libnccl.so.2 or it refuses
 * these devices; then on all ranks. */
pz_status pz_nccl_open(pz_comm *comm, pz_nccl **out, pz_error *err);
/* What still runs is given up if the group has failed. NULL is allowed. */
void pz_nccl_close(pz_nccl *n);
/* y = sum of all ranks' x, `count` elements of bf16. */
pz_status pz_nccl_all_reduce(pz_nccl *n, const void *x, void *y, size_t count, cudaStream_t stream, pz_error *err);
/* Rank r's `bytes` bytes at x lie at y + r * bytes afterwards, on every rank. */
pz_status pz_nccl_all_gather(pz_nccl *n, const void *x, void *y, size_t bytes, cudaStream_t stream, pz_error *err);
/* Ends what runs. Only close may follow. */
void pz_nccl_abort(pz_nccl *n);

#endif
