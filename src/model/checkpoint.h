/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a checkpoint, shared by the safetensors reader and the shard index. */
#ifndef PZ_CHECKPOINT_H
#define PZ_CHECKPOINT_H

#include "base/file.h"
#include "base/json.h"
#include "model/model.h"

struct pz_checkpoint {
    PZ_VEC(pz_tensor) tensors; /* in file order */
    PZ_VEC(pz_map) maps;
    pz_arena names;
    int *slots; /* open addressing: tensor number + 1, 0 empty; n_slots is a power of two */
    size_t n_slots;
};

/* Checks the file's header and adds its tensors, or, where weight_map is given, those that it assigns to `file`. */
pz_status pz_checkpoint_add(pz_checkpoint *ck, const unsigned char *data, size_t size, const json_t *weight_map,
                            const char *file, const char *where, pz_error *err);
/* Makes pz_checkpoint_find work; call once after the last add. */
pz_status pz_checkpoint_index(pz_checkpoint *ck, pz_error *err);

#endif
