/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of the two small models, and the reference logits of transformers. */
#ifndef PZ_TEST_SUPPORT_ENGINE_H
#define PZ_TEST_SUPPORT_ENGINE_H

#include "support.h"

#include "base/file.h"
#include "engine/session.h"

#define SUPPORT_MXFP4 PZ_SOURCE_DIR "/models/kimi-tiny"
#define SUPPORT_BF16 PZ_SOURCE_DIR "/tests/data/kimi-tiny-bf16"

/* Asserts that the engine opens; o.size is set here, and threads 0 means 1: test programs run side by side, and threads
 * that wait for each other on too few processors only burn them. */
pz_engine *support_engine(const char *dir, pz_engine_options o);
int support_seq(pz_engine *e);
/* n token ids below `vocab`, made of the seed. */
void support_ids(uint64_t seed, int vocab, int32_t *ids, int n);

enum { SUPPORT_REFERENCES = 6, SUPPORT_VOCAB = 1024 };
typedef struct support_reference {
    pz_map map;
    pz_checkpoint *file;
    const int32_t *ids[SUPPORT_REFERENCES];
    const float *logits[SUPPORT_REFERENCES]; /* [n, SUPPORT_VOCAB] */
    int n[SUPPORT_REFERENCES];
} support_reference;
/* tests/data/reference/<name>.safetensors */
void support_reference_open(const char *name, support_reference *r);
void support_reference_close(support_reference *r);

#endif
