/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID = 4, IN_PROGRESS = 7 };

EXPORT fake_nccl pz_fake_nccl;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct unique_id {
    char internal[128];
} unique_id;

/* The header's of 2.14. */
typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
} config;

struct ncclComm {
    int ranks, rank, polls, opening;
};

int ncclGetUniqueId(unique_id *id);
int ncclCommInitRankConfig(struct ncclComm **out, int ranks, unique_id id, int rank, const config *c);
int ncclCommGetAsyncError(struct ncclComm *c, int *state);
int ncclCommDestroy(struct ncclComm *c);
int ncclCommAbort(struct ncclComm *c);
int ncclAllReduce(const void *x, void *y, size_t n, int type, int op, struct ncclComm *c, void *stream);
int ncclAllGather(const void *x, void *y, size_t n, int type, struct ncclComm *c, void *stream);
const char *ncclGetErrorString(int result);

EXPORT int ncclGetUniqueId(unique_id *id) {
    *id = (unique_id){"the id"};
    pz_fake_nccl.ids++;
    return SUCCESS;
}

EXPORT int ncclCommInitRankConfig(struct ncclComm **out, int ranks, unique_id id, int rank, const config *c) {
    if (id.internal[4] != 'i' || c->size != 24 || c->magic != 0xcafebeef || c->version != 21400 || c->blocking)
        return INVALID;
    if (pz_fake_nccl.refused >> rank & 1) return SYSTEM_ERROR;
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm) return SYSTEM_ERROR;
    *comm = (struct ncclComm){.ranks = ranks, .rank = rank, .opening = 1};
    pthread_mutex_lock(&lock);
    pz_fake_nccl.opened++;
    pz_fake_nccl.live++;
    pthread_mutex_unlock(&lock);
    *out = comm;
    return IN_PROGRESS;
}

EXPORT int ncclCommGetAsyncError(struct ncclComm *c, int *state) {
    pthread_mutex_lock(&lock);
    int waits = pz_fake_nccl.never || (c->opening && pz_fake_nccl.opened < c->ranks) || c->polls-- > 0;
    pthread_mutex_unlock(&lock);
    *state = waits ? IN_PROGRESS : c->opening ? SUCCESS : pz_fake_nccl.call_error;
    if (!waits) c->opening = 0;
    return SUCCESS;
}

static int end(struct ncclComm *c, int *count) {
    pthread_mutex_lock(&lock);
    pz_fake_nccl.live--;
    ++*count;
    pthread_mutex_unlock(&lock);
    free(c);
    return SUCCESS;
}

EXPORT int ncclCommDestroy(struct ncclComm *c) {
    return end(c, &pz_fake_nccl.destroyed);
}

EXPORT int ncclCommAbort(struct ncclComm *c) {
    return end(c, &pz_fake_nccl.aborted);
}

static int call(struct ncclComm *c) {
    pthread_mutex_lock(&lock);
    pz_fake_nccl.calls++;
    c->polls = pz_fake_nccl.polls;
    pthread_mutex_unlock(&lock);
    return c->polls || pz_fake_nccl.never ? IN_PROGRESS : pz_fake_nccl.call_error;
}

EXPORT int ncclAllReduce(const void *x, void *y, size_t n, int type, int op, struct ncclComm *c, void *stream) {
    (void)x, (void)y, (void)n, (void)stream;
    return type == 9 && op == 0 ? call(c) : INVALID;
}

EXPORT int ncclAllGather(const void *x, void *y, size_t n, int type, struct ncclComm *c, void *stream) {
    (void)x, (void)y, (void)n, (void)stream;
    return type == 0 ? call(c) : INVALID;
}

EXPORT const char *ncclGetErrorString(int result) {
    return result == SYSTEM_ERROR ? "a fault of the system" : "another fault";
}
