/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL (2.14 or later), loaded when it is asked for: nothing of ours needs it to be built or to start. No call waits
 * longer than the group's time-out, and one that waits ends when the group fails. */
#ifndef PZ_CUDA_NCCL_H
#define PZ_CUDA_NCCL_H

#include "backend/cuda/cuda.h"

typedef struct pz_nccl pz_nccl;

/* Meets the other ranks, on the calling thread's device. E_UNSUPPORTED where ranks share a device, there is no
 * libnccl.so.2 or it refuses these devices; then on all ranks, and the group has not failed. */
pz_status pz_nccl_open(pz_comm *comm, pz_nccl **out, pz_error *err);
/* What still runs is given up if the group has failed. No captured graph of this rank may hold collectives any more:
 * the last rank that closes or aborts waits for those of all. NULL is allowed. */
void pz_nccl_close(pz_nccl *n);
/* y = sum of all ranks' x, `count` elements of bf16. May be captured, as the next one, if the capture is one of the
 * calling thread alone. */
pz_status pz_nccl_all_reduce(pz_nccl *n, const void *x, void *y, size_t count, cudaStream_t stream, pz_error *err);
/* Rank r's `bytes` bytes at x lie at y + r * bytes afterwards, on every rank. */
pz_status pz_nccl_all_gather(pz_nccl *n, const void *x, void *y, size_t bytes, cudaStream_t stream, pz_error *err);
/* Waits for the stream: NCCL's kernels themselves wait for ever. After an error they still do, until abort. */
pz_status pz_nccl_wait(pz_nccl *n, cudaStream_t stream, pz_error *err);
/* Ends what runs. Graphs as for close, which alone may follow; may be called again. */
void pz_nccl_abort(pz_nccl *n);

#endif
