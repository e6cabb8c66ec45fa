/* SPDX-License-Identifier: Apache-2.0 */
/* Graph weight -> the checkpoint's tensors behind it, without copying. */
#include <inttypes.h>
#include <stdio.h>

#include "model/weights.h"

enum { NAME_CAP = 192 };

static const char other_prefix[] = "language_model.";

/* "BF16 [8, 256]" */
static void describe_tensor(const pz_tensor *t, char *buf, size_t cap) {
    size_t n = (size_t)snprintf(buf, cap, "%s [", t->dtype);
    for (int i = 0; i < t->rank && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (n < cap) snprintf(buf + n, cap - n, "]");
}

static const pz_tensor *find_tensor(const pz_hf_config *c, const pz_checkpoint *ck, const char *module,
                                    const char *leaf) {
    char name[NAME_CAP];
    snprintf(name, sizeof name, "%s%s.%s", c->prefix, module, leaf);
    const pz_tensor *t = pz_checkpoint_find(ck, name);
    if (t) return t;
    snprintf(name, sizeof name, "%s%s.%s", c->prefix[0] ? "" : other_prefix, module, leaf);
    return pz_checkpoint_find(ck, name);
}

static pz_status missing(const pz_hf_config *c, const char *module, const char *leaf, pz_error *err) {
    return pz_fail(err, PZ_E_NOTFOUND, "the checkpoint has no tensor \"%s%s.%s\" (nor \"%s%s.%s\")", c->prefix, module,
                   leaf, c->prefix[0] ? "" : other_prefix, module, leaf);
}

/* `expected` says which dtypes would be right; rank 1 tensors have rows 1. `note` is "" or a reason. */
static pz_status wrong_type(const pz_tensor *t, const char *expected, bool vector, int64_t rows, int64_t cols,
                            const char *note, pz_error *err) {
    char have[128], want[64];
    describe_tensor(t, have, sizeof have);
    if (vector)
        snprintf(want, sizeof want, "[%" PRId64 "]", cols);
    else
        snprintf(want, sizeof want, "[%" PRId64 ", %" PRId64 "]", rows, cols);
    return pz_fail(err, PZ_E_TYPE, "tensor \"%s\" is %s, expected %s %s%s", t->name, have, expected, want, note);
}

static bool is_matrix(const pz_tensor *t, int64_t rows, int64_t cols) {
    return t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

/* One byte tensor of an MXFP4 weight. */
static pz_status check_bytes(const pz_tensor *t, int64_t rows, int64_t cols, const char *note, pz_error *err) {
    if (strcmp(t->dtype, "U8") == 0 && is_matrix(t, rows, cols)) return PZ_OK;
    return wrong_type(t, "U8", false, rows, cols, note, err);
}

static pz_status bind_mxfp4(const pz_hf_config *c, const pz_checkpoint *ck, const char *module, int64_t rows,
                            int64_t cols, pz_host_part *part, pz_error *err) {
    static const char *const leaves[] = {"weight", "weight_packed"}; /* quark, compressed-tensors */
    static const char note[] = " (mxfp4: the configuration's quantization_config includes it)";
    const pz_tensor *t = find_tensor(c, ck, module, leaves[c->packed_names]);
    if (!t) t = find_tensor(c, ck, module, leaves[!c->packed_names]);
    if (!t) return missing(c, module, leaves[c->packed_names], err);
    PZ_TRY(check_bytes(t, rows, cols / 2, note, err));
    const pz_tensor *scale = find_tensor(c, ck, module, "weight_scale");
    if (!scale) return missing(c, module, "weight_scale", err);
    PZ_TRY(check_bytes(scale, rows, cols / PZ_MX_GROUP, " (one e8m0 scale for 32 columns)", err));
    *part = (pz_host_part){.data = t->data,
                           .rows = rows,
                           .row_stride = cols / 2,
                           .scale = scale->data,
                           .scale_stride = cols / PZ_MX_GROUP};
    return PZ_OK;
}

static pz_status bind_plain(const pz_hf_config *c, const pz_checkpoint *ck, pz_role r, const char *module, int64_t rows,
                            int64_t cols, pz_host_part *part, pz_dtype *dt, pz_error *err) {
    pz_role_kind kind = pz_role_kind_of(r);
    bool vector = kind == PZ_KIND_VECTOR || kind == PZ_KIND_BIAS;
    const pz_tensor *t = find_tensor(c, ck, module, pz_role_leaf(r));
    const char *note = "";
    if (!t || strcmp(t->dtype, "U8") == 0) {
        note = " (it is quantized, but by the configuration this weight is not)";
        if (!t) t = find_tensor(c, ck, module, "weight_packed");
        if (!t) return missing(c, module, pz_role_leaf(r), err);
    }
    bool f32 = strcmp(t->dtype, "F32") == 0, bf16 = strcmp(t->dtype, "BF16") == 0;
    bool shaped = vector ? t->rank == 1 && t->shape[0] == cols : is_matrix(t, rows, cols);
    if (!(f32 || bf16) || !shaped) return wrong_type(t, "BF16 or F32", vector, rows, cols, note, err);
    int64_t size = f32 ? 4 : 2;
    if ((uintptr_t)t->data % (uintptr_t)size)
        return pz_fail(err, PZ_E_FORMAT,
                       "tensor \"%s\" does not start at a multiple of %" PRId64
                       " bytes in its file; save the checkpoint again with a current safetensors",
                       t->name, size);
    *dt = f32 ? PZ_DT_F32 : PZ_DT_BF16;
    *part = (pz_host_part){.data = t->data, .rows = rows, .row_stride = cols * size};
    return PZ_OK;
}

/* ---- one weight ---- */
typedef struct binding {
    const pz_hf_config *c;
    const pz_checkpoint *ck;
    const pz_weight *w;
    pz_role r;
    int64_t layer;
    pz_role_shape whole, size, first; /* the weight, the rank's share, and where that begins */
} binding;

/* Narrows a whole tensor to `rows` rows from `row` on, and to the columns from `col` on. */
static void cut(pz_host_part *p, pz_dtype dt, int64_t row, int64_t rows, int64_t col) {
    p->data += row * p->row_stride + col * pz_dtype_bits(dt) / 8;
    if (p->scale) p->scale += row * p->scale_stride + col / PZ_MX_GROUP;
    p->rows = rows;
}

static pz_status bind_part(const binding *b, int which, const char *module, pz_host_weight *out, pz_error *err) {
    int64_t rows = b->whole.rows[which], cols = b->whole.cols;
    pz_host_part part;
    pz_dtype dt = PZ_DT_MXFP4;
    if (b->w->type.dt == PZ_DT_MXFP4)
        PZ_TRY(bind_mxfp4(b->c, b->ck, module, rows, cols, &part, err));
    else
        PZ_TRY(bind_plain(b->c, b->ck, b->r, module, rows, cols, &part, &dt, err));
    if (out->parts.n && dt != out->dt)
        return pz_fail(err, PZ_E_TYPE, "\"%s.%s\" is %s, but the other tensors of weight @%s are %s; all must be one",
                       module, pz_role_leaf(b->r), pz_dtype_text(dt), b->w->name, pz_dtype_text(out->dt));
    out->dt = dt;
    cut(&part, dt, b->first.rows[which], b->size.rows[which], b->first.cols);
    return pz_push(&out->parts, part, err);
}

static pz_status bind_computed(const binding *b, pz_host_weight *out, pz_error *err) {
    out->owned = pz_aligned_calloc((size_t)out->cols * sizeof(float));
    if (!out->owned) return PZ_NOMEM(err);
    pz_rope_frequencies(b->c, out->owned);
    pz_host_part part = {.data = out->owned, .rows = 1, .row_stride = out->cols * (int64_t)sizeof(float)};
    out->dt = PZ_DT_F32;
    return pz_push(&out->parts, part, err);
}

static pz_status bind_tensors(const binding *b, pz_host_weight *out, pz_error *err) {
    for (int64_t e = 0; e < (b->size.count ? b->size.count : 1); e++) {
        for (int p = 0; p < 2; p++) {
            char module[NAME_CAP / 2];
            if (!pz_role_module(b->r, p, b->layer, b->first.count + e, module, sizeof module)) continue;
            PZ_TRY(bind_part(b, p, module, out, err));
        }
    }
    return PZ_OK;
}

static pz_status check_type(const binding *b, const pz_shard *s, pz_error *err) {
    pz_type want = pz_role_type(b->c, b->r, b->layer, s);
    if (!pz_type_equal(&b->w->type, &want)) {
        pz_str have = {0}, should = {0};
        pz_type_print(&b->w->type, &have);
        pz_type_print(&want, &should);
        if (s && s->tp > 1) pz_str_addf(&should, " on rank %" PRId64 " of %" PRId64, s->rank, s->tp);
        pz_status st = have.failed || should.failed
                           ? PZ_NOMEM(err)
                           : pz_fail(err, PZ_E_TYPE, "weight @%.100s is %s in the graph, this model's is %s",
                                     b->w->name, have.s, should.s);
        pz_str_free(&have);
        pz_str_free(&should);
        return st;
    }
    if (want.dt == PZ_DT_FP8)
        return pz_fail(
            err, PZ_E_UNSUPPORTED,
            "weight @%.100s: fp8 weights cannot be loaded (graphs of such models can be built and explained); "
            "supported: bf16, f32, mxfp4",
            b->w->name);
    return PZ_OK;
}

pz_status pz_weight_bind_shard(const pz_hf_config *c, const pz_checkpoint *ck, const pz_weight *w, const pz_shard *s,
                               pz_host_weight *out, pz_error *err) {
    binding b = {.c = c, .ck = ck, .w = w};
    *out = (pz_host_weight){0};
    if (!pz_role_find(c, w->name, &b.r, &b.layer))
        return pz_fail(err, PZ_E_NOTFOUND, "weight @%.100s: this model has no weight of that name", w->name);
    PZ_TRY(pz_role_check(c, b.r, b.layer, s, err));
    PZ_TRY(check_type(&b, s, err));
    b.whole = pz_role_shape_of(c, b.r, NULL, NULL);
    b.size = pz_role_shape_of(c, b.r, s, &b.first);
    out->rows = (b.size.rows[0] + b.size.rows[1]) * (b.size.count ? b.size.count : 1);
    out->cols = b.size.cols;
    pz_status st = pz_role_kind_of(b.r) == PZ_KIND_COMPUTED ? bind_computed(&b, out, err) : bind_tensors(&b, out, err);
    if (st != PZ_OK) pz_host_weight_free(out);
    return st;
}

void pz_host_weight_free(pz_host_weight *w) {
    pz_vec_free(&w->parts);
    pz_free(w->owned);
    *w = (pz_host_weight){0};
}

/* ---- what nobody reads ---- */
static void mark(const pz_hf_config *c, const pz_checkpoint *ck, const char *module, const char *leaf, bool *used) {
    const pz_tensor *t = find_tensor(c, ck, module, leaf);
    if (t) used[t - pz_checkpoint_at(ck, 0)] = true;
}

static void mark_role(const pz_hf_config *c, const pz_checkpoint *ck, pz_role r, int64_t layer, bool *used) {
    pz_role_shape s = pz_role_shape_of(c, r, NULL, NULL);
    for (int64_t e = 0; e < (s.count ? s.count : 1); e++)
        for (int p = 0; p < 2; p++) {
            char module[NAME_CAP / 2];
            if (!pz_role_module(r, p, layer, e, module, sizeof module)) continue;
            mark(c, ck, module, pz_role_leaf(r), used);
            mark(c, ck, module, "weight_packed", used);
        }
}

/* A parameter of one of the model's layers. Not those of layers behind the last (they predict further tokens), of other
 * towers, scales (the binder asks for those it needs) or buffers such as inv_freq. */
static bool is_layer_parameter(const pz_hf_config *c, const char *name) {
    static const char *const leaves[] = {"weight", "weight_packed", "bias", "e_score_correction_bias"};
    static const char layers[] = "model.layers.";
    if (strncmp(name, other_prefix, sizeof other_prefix - 1) == 0) name += sizeof other_prefix - 1;
    if (strncmp(name, layers, sizeof layers - 1) != 0) return false;
    const char *p = name + sizeof layers - 1, *leaf = strrchr(name, '.') + 1;
    int64_t layer = 0;
    for (; *p >= '0' && *p <= '9' && layer < c->layers; p++) layer = layer * 10 + (*p - '0');
    if (layer >= c->layers) return false;
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++)
        if (strcmp(leaf, leaves[i]) == 0) return true;
    return false;
}

pz_status pz_weights_check_unused(const pz_hf_config *c, const pz_checkpoint *ck, pz_error *err) {
    int n = pz_checkpoint_count(ck);
    bool *used = pz_calloc((size_t)n + 1, sizeof *used);
    if (!used) return PZ_NOMEM(err);
    for (int64_t layer = 0; layer < c->layers; layer++)
        for (int i = 0; i < PZ_ROLE_COUNT; i++)
            if (pz_role_scope_of((pz_role)i) == PZ_SCOPE_LAYER && pz_role_present(c, (pz_role)i, layer))
                mark_role(c, ck, (pz_role)i, layer, used);
    pz_status st = PZ_OK;
    for (int i = 0; i < n && st == PZ_OK; i++) {
        const char *name = pz_checkpoint_at(ck, i)->name;
        if (!used[i] && is_layer_parameter(c, name))
            st = pz_fail(err, PZ_E_FORMAT,
                         "the checkpoint has a tensor \"%s\", but by config.json this layer has none; without it the "
                         "results would be wrong",
                         name);
    }
    pz_free(used);
    return st;
}
