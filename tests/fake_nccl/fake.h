/* SPDX-License-Identifier: Apache-2.0 */
/* A libnccl.so.2 that computes nothing: ranks meet in its opening, and calls go on in the background or do not end, as
 * a test says. */
#ifndef PZ_FAKE_NCCL_H
#define PZ_FAKE_NCCL_H

typedef struct fake_nccl {
    /* set by tests */
    int refused;    /* ranks whose opening fails, a bit each */
    int never;      /* what is called does not end */
    int polls;      /* of a call's state before it has ended */
    int call_error; /* what collectives end with */
    /* what happened */
    int ids, opened, live, destroyed, aborted, calls;
} fake_nccl;

#endif
