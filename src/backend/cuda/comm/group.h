/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of a group: the workspace that the others write to, and what has gone wrong. Its functions that say so
 * meet the other ranks, which call them at the same point. */
#ifndef PZ_CUDA_GROUP_H
#define PZ_CUDA_GROUP_H

#include "backend/cuda/comm/collective.h"

typedef struct pz_cuda_group pz_cuda_group;

/* b->group for opts->comm, if that has several ranks; E_RANGE for opts->one_shot. */
pz_status pz_cuda_group_open(pz_backend *b, const pz_backend_options *opts, pz_error *err);
/* Whether NCCL will gather the parts, as it is asked for or as the ranks' devices, this rank's and those beside it by
 * their numbers, cannot all write to each other's memory. Before they have met: what plans are made for. */
bool pz_cuda_group_gathers(const pz_backend *b);
/* Waits for the devices of all ranks, as a rank that is late may still write here. Does nothing without a group. */
void pz_cuda_group_close(pz_backend *b);
/* Meets. Room for rows of `hidden`, up to `one_shot` of them in one step; hidden 0: none. May give the workspaces new
 * addresses. */
pz_status pz_cuda_group_reserve(pz_backend *b, int hidden, int one_shot, pz_error *err);
/* Where ranks cannot write to each other's memory: what gathers their parts. NULL: they can. */
struct pz_nccl *pz_cuda_group_nccl(const pz_backend *b);
/* Waits for the stream no longer than the time-out, then as pz_cuda_group_check. */
pz_status pz_cuda_group_wait(pz_backend *b, pz_error *err);
/* Meets: no rank goes on before all are here. */
pz_status pz_cuda_group_meet(pz_backend *b, pz_error *err);
/* After the stream has been waited for: E_TIMEOUT if a kernel has waited in vain, E_PEER if it did not wait to the end
 * because a rank has failed. PZ_OK without a group. */
pz_status pz_cuda_group_check(pz_backend *b, pz_error *err);
/* Before launches: the same, and E_PEER or E_TIMEOUT if the group has failed. */
pz_status pz_cuda_group_ready(pz_backend *b, pz_error *err);
/* This rank will not launch what the others wait for: their kernels end. Returns `st`. */
pz_status pz_cuda_group_fail(pz_backend *b, pz_status st, const pz_error *why);
/* Counts the times that workspaces were reserved anew, 0 without a group: captured graphs hold the addresses of all of
 * them and their layout, and this one's address may be the same as before. */
int64_t pz_cuda_group_meetings(const pz_backend *b);
/* For a launch; alone and one_shot as in the view, where opts->one_shot was 0. */
pz_group_view pz_cuda_group_view(const pz_backend *b, bool alone, int one_shot);

#endif
