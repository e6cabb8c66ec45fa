/* SPDX-License-Identifier: Apache-2.0 */
#include "support_checkpoint.h"

#include <stdio.h>

void support_put(support_maker *m, const char *dtype, int64_t rows, int64_t cols, const char *fmt, ...) {
    assert_true(m->n < (int)(sizeof m->items / sizeof *m->items));
    support_item *it = &m->items[m->n++];
    int n = snprintf(it->name, sizeof it->name, "%s", m->prefix);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(it->name + n, sizeof it->name - (size_t)n, fmt, ap);
    va_end(ap);
    it->dtype = dtype;
    it->shape[0] = rows;
    it->shape[1] = cols;
}

pz_checkpoint *support_checkpoint(const support_maker *m, bool shift, unsigned char **data) {
    pz_str h = {0};
    size_t at = 0;
    pz_str_add(&h, "{");
    if (shift) {
        pz_str_add(&h, "\"_\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},");
        at = 1;
    }
    for (int i = 0; i < m->n; i++) {
        const support_item *it = &m->items[i];
        size_t size = strcmp(it->dtype, "F32") == 0 ? 4 : strcmp(it->dtype, "U8") == 0 ? 1 : 2;
        size_t bytes = size * (size_t)it->shape[0] * (size_t)(it->shape[1] ? it->shape[1] : 1);
        pz_str_addf(&h, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", i ? "," : "", it->name, it->dtype,
                    (int)it->shape[0]);
        if (it->shape[1]) pz_str_addf(&h, ",%d", (int)it->shape[1]);
        pz_str_addf(&h, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    pz_str_add(&h, "}");
    while (h.n % 8) pz_str_add(&h, " ");
    *data = calloc(8 + h.n + at, 1);
    assert_non_null(*data);
    for (int i = 0; i < 8; i++) (*data)[i] = (unsigned char)(h.n >> (8 * i) & 0xff);
    memcpy(*data + 8, h.s, h.n);
    pz_checkpoint *ck;
    pz_error err;
    assert_ok(pz_safetensors_parse(*data, 8 + h.n + at, "made", &ck, &err), &err);
    pz_str_free(&h);
    return ck;
}

/* ---- memory ---- */
typedef struct binding {
    const pz_hf_config *c;
    pz_checkpoint *ck;
    const pz_weight *w;
    const pz_shard *shard;
} binding;

static pz_status bind(void *ctx) {
    const binding *b = ctx;
    pz_host_weight w;
    pz_error err;
    pz_status st = pz_weight_bind_shard(b->c, b->ck, b->w, b->shard, &w, &err);
    pz_host_weight_free(&w);
    return st;
}

long support_bind_sweep(const pz_hf_config *c, pz_checkpoint *ck, const pz_weight *w, const pz_shard *shard) {
    return support_alloc_sweep(bind, &(binding){c, ck, w, shard});
}
