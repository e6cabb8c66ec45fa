/* SPDX-License-Identifier: Apache-2.0 */
/* A group of tensor-parallel ranks: how they meet, see each other's memory, and learn that one of them is gone.
 *
 * The ranks are threads of one process, each with a backend, an arena and a cache of its own, all running the same
 * launches in the same order. What they share is this group; what a collective needs of it is small:
 *   - a barrier, which all ranks leave with success or none does,
 *   - an exchange, by which each rank shows all others one pointer: host memory on the CPU, memory of a device with
 * peer access on GPUs (there once, when buffers are made, not in each step: kernels then meet in device memory),
 *   - one failure, the first, which ends every call of every rank from then on.
 *
 * Double buffering by epochs. A rank's epoch counts its exchanges. Memory shown in exchange e may be written again once
 * exchange e + 1 has returned: whoever enters that has done with e. So two buffers taken in turn (epoch & 1) need one
 * meeting per collective, where one buffer would need a second barrier after the reading.
 *
 * Failure. No call waits longer than the group's time-out. A rank that cannot go on says so by pz_comm_fail; one that
 * does not arrive is missed by whoever waits longest. Either way the group has failed: each call, running or later, of
 * each rank returns an error at once, with the code and the rank that it began with. A failed group stays failed, for
 * nothing is known of how far its ranks came; a new one is made in its place. Its memory, and what was shown through
 * it, may be released when all ranks have returned.
 *
 * Ranks in several processes fit behind the same calls: a launcher (MPI or one like it) tells each its number, barrier
 * and failure go over its channel, and exchange, the only place where another rank's address comes from, passes an IPC
 * handle and returns where that is mapped. Who reads and writes the addresses need not know. Bulk transfers without
 * peer access are NCCL's, whose unique id travels in an exchange. */
#ifndef PZ_COMM_H
#define PZ_COMM_H

#include "base/base.h"

enum { PZ_MAX_RANKS = 8, PZ_COMM_TIMEOUT_MS = 30000 };

typedef struct pz_group pz_group;
typedef struct pz_comm pz_comm; /* one rank of a group; used by one thread at a time */

/* ranks 1..PZ_MAX_RANKS; timeout_ms 1 or more, 0: PZ_COMM_TIMEOUT_MS. E_RANGE says which is wrong. */
pz_status pz_group_new(int ranks, int timeout_ms, pz_group **out, pz_error *err);
/* No rank may be in a call. NULL is allowed. */
void pz_group_free(pz_group *g);
/* The handle of a rank; the group's, valid until it is freed. */
pz_comm *pz_group_comm(pz_group *g, int rank);
/* PZ_OK while nothing has failed, else the error that every call returns. Any thread. */
pz_status pz_group_check(pz_group *g, pz_error *err);

/* The same, asked by a rank. */
pz_status pz_comm_check(const pz_comm *c, pz_error *err);

int pz_comm_rank(const pz_comm *c);
int pz_comm_ranks(const pz_comm *c);
int pz_comm_timeout_ms(const pz_comm *c); /* for kernels that wait in device memory */
/* Exchanges that this rank has made. */
uint32_t pz_comm_epoch(const pz_comm *c);

/* Waits until all ranks are here; what they wrote before is visible after. E_TIMEOUT names the ranks that did not
 * arrive; E_PEER the rank that failed, and why. */
pz_status pz_comm_barrier(pz_comm *c, pz_error *err);
/* A barrier that hands out one pointer a rank: all[r] is the `mine` of rank r. See above for how long they are good. */
pz_status pz_comm_exchange(pz_comm *c, void *mine, void *all[PZ_MAX_RANKS], pz_error *err);
/* This rank gives up, for the reason in *why. Does nothing if the group has failed already. Any thread. */
void pz_comm_fail(pz_comm *c, const pz_error *why);

#endif
