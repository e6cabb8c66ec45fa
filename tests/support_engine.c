/* SPDX-License-Identifier: Apache-2.0 */
#include "support_engine.h"

#include <stdio.h>

#include "base/rng.h"

pz_engine *support_engine(const char *dir, pz_engine_options o) {
    pz_engine *e = NULL;
    pz_error err;
    o.size = sizeof o;
    if (o.threads == 0) o.threads = 1;
    assert_ok(pz_engine_open(dir, &o, &e, &err), &err);
    assert_non_null(e);
    return e;
}

int support_seq(pz_engine *e) {
    int seq = -1;
    pz_error err;
    assert_ok(pz_seq_open(e, &seq, &err), &err);
    return seq;
}

void support_ids(uint64_t seed, int vocab, int32_t *ids, int n) {
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(pz_rng_next(&seed) % (uint64_t)vocab);
}

static const pz_tensor *tensor(const support_reference *r, const char *what, int i, const char *dtype) {
    char name[32];
    snprintf(name, sizeof name, "%s.%d", what, i);
    const pz_tensor *t = pz_checkpoint_find(r->file, name);
    assert_non_null(t);
    assert_string_equal(t->dtype, dtype);
    return t;
}

void support_reference_open(const char *name, support_reference *r) {
    char path[512];
    pz_error err;
    snprintf(path, sizeof path, PZ_SOURCE_DIR "/tests/data/reference/%s.safetensors", name);
    *r = (support_reference){0};
    assert_ok(pz_map_open(path, &r->map, &err), &err);
    assert_ok(pz_safetensors_parse(r->map.data, r->map.size, path, &r->file, &err), &err);
    for (int i = 0; i < SUPPORT_REFERENCES; i++) {
        const pz_tensor *ids = tensor(r, "ids", i, "I32"), *logits = tensor(r, "logits", i, "F32");
        r->n[i] = (int)ids->shape[0];
        assert_int_equal(logits->shape[0], r->n[i]);
        assert_int_equal(logits->shape[1], SUPPORT_VOCAB);
        r->ids[i] = (const int32_t *)(const void *)ids->data;
        r->logits[i] = (const float *)(const void *)logits->data;
    }
}

void support_reference_close(support_reference *r) {
    pz_checkpoint_close(r->file);
    pz_map_close(&r->map);
    *r = (support_reference){0};
}
