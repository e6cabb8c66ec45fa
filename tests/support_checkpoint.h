/* SPDX-License-Identifier: Apache-2.0 */
/* Small checkpoints in memory, tensor by tensor. */
#ifndef PZ_TEST_SUPPORT_CHECKPOINT_H
#define PZ_TEST_SUPPORT_CHECKPOINT_H

#include "support.h"

#include "model/model.h"

typedef struct support_item {
    char name[128];
    const char *dtype;
    int64_t shape[2]; /* rank 1 where [1] is 0 */
} support_item;

typedef struct support_maker {
    const char *prefix; /* of every name */
    support_item items[160];
    int n;
} support_maker;

/* Adds a tensor of dtype "F32", "BF16" or "U8". */
void support_put(support_maker *m, const char *dtype, int64_t rows, int64_t cols, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The checkpoint with all tensors zero; the file's bytes are in *data (free). `shift` puts a byte of another tensor in
 * front. */
pz_checkpoint *support_checkpoint(const support_maker *m, bool shift, unsigned char **data);

/* support_alloc_sweep over pz_weight_bind_shard. */
long support_bind_sweep(const pz_hf_config *c, pz_checkpoint *ck, const pz_weight *w, const pz_shard *shard);

#endif
