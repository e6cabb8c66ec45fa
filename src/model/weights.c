/* SPDX-License-Identifier: Apache-2.0 */
#include "model/weights.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct role_info {
    const char *name;
    pz_role_scope scope;
    pz_role_kind kind;
    const char *module[2], *leaf;
} role_info;

static const role_info roles[PZ_ROLE_COUNT] = {
#define ROLE(id, name, scope, kind, present, count, rows_a, rows_b, cols, module_a, module_b, leaf) \
    {name, PZ_SCOPE_##scope, PZ_KIND_##kind, {module_a, module_b}, leaf},
#include "model/weights.def"
#undef ROLE
};

const char *pz_role_name(pz_role r) {
    return roles[r].name;
}
pz_role_kind pz_role_kind_of(pz_role r) {
    return roles[r].kind;
}
pz_role_scope pz_role_scope_of(pz_role r) {
    return roles[r].scope;
}
const char *pz_role_leaf(pz_role r) {
    return roles[r].leaf;
}

bool pz_layer_is_moe(const pz_hf_config *c, int64_t layer) {
    return c->experts > 0 && layer >= c->first_dense && layer % c->moe_freq == 0;
}

bool pz_role_present(const pz_hf_config *c, pz_role r, int64_t layer) {
    bool moe = pz_layer_is_moe(c, layer);
    switch (r) {
#define ROLE(id, name, scope, kind, present, count, rows_a, rows_b, cols, module_a, module_b, leaf) \
    case PZ_ROLE_##id:                                                                              \
        return present;
#include "model/weights.def"
#undef ROLE
    case PZ_ROLE_COUNT: break;
    }
    return false;
}

pz_role_shape pz_role_shape_of(const pz_hf_config *c, pz_role r, int64_t tp) {
    int64_t heads = c->heads / tp, dense = c->intermediate / tp, expert = c->moe_intermediate / tp,
            shared = c->moe_intermediate * c->shared_experts / tp, vocab = c->vocab / tp;
    switch (r) {
#define ROLE(id, name, scope, kind, present, count, rows_a, rows_b, cols, module_a, module_b, leaf) \
    case PZ_ROLE_##id:                                                                              \
        return (pz_role_shape){count, {rows_a, rows_b}, cols};
#include "model/weights.def"
#undef ROLE
    case PZ_ROLE_COUNT: break;
    }
    return (pz_role_shape){0};
}

static pz_dtype quant_dtype(pz_quant q) {
    return q == PZ_QUANT_MXFP4 ? PZ_DT_MXFP4 : q == PZ_QUANT_FP8 ? PZ_DT_FP8 : PZ_DT_BF16;
}

pz_type pz_role_type(const pz_hf_config *c, pz_role r, int64_t layer, int64_t tp) {
    pz_role_shape s = pz_role_shape_of(c, r, tp);
    int64_t rows = s.rows[0] + s.rows[1];
    switch (roles[r].kind) {
    case PZ_KIND_VECTOR: return pz_type_make(PZ_DT_BF16, 1, s.cols, 0, 0);
    case PZ_KIND_BIAS:
    case PZ_KIND_COMPUTED: return pz_type_make(PZ_DT_F32, 1, s.cols, 0, 0);
    case PZ_KIND_MATRIX:
    case PZ_KIND_LINEAR: break;
    }
    int64_t place = roles[r].scope == PZ_SCOPE_MODEL ? c->layers : layer;
    bool quantized = c->quantized[place] >> r & 1;
    pz_dtype dt = quantized ? quant_dtype(c->quant) : PZ_DT_BF16;
    return s.count ? pz_type_make(dt, 3, s.count, rows, s.cols) : pz_type_make(dt, 2, rows, s.cols, 0);
}

bool pz_role_find(const pz_hf_config *c, const char *name, pz_role *r, int64_t *layer) {
    pz_role_scope scope = PZ_SCOPE_MODEL;
    *layer = 0;
    if (strncmp(name, "layers.", 7) == 0) {
        const char *p = name + 7;
        for (; *p >= '0' && *p <= '9' && *layer < c->layers; p++) *layer = *layer * 10 + (*p - '0');
        if (p == name + 7 || *p != '.' || *layer >= c->layers) return false;
        scope = PZ_SCOPE_LAYER;
        name = p + 1;
    }
    for (int i = 0; i < PZ_ROLE_COUNT; i++) {
        if (roles[i].scope == scope && strcmp(roles[i].name, name) == 0 && pz_role_present(c, (pz_role)i, *layer)) {
            *r = (pz_role)i;
            return true;
        }
    }
    return false;
}

bool pz_role_module(pz_role r, int part, int64_t layer, int64_t expert, char *buf, size_t cap) {
    const char *module = roles[r].module[part];
    if (!module) return false;
    int n = roles[r].scope == PZ_SCOPE_LAYER ? snprintf(buf, cap, "model.layers.%" PRId64 ".", layer) : 0;
    if (n < 0 || (size_t)n >= cap) return false;
    const char *mark = strstr(module, "%d");
    int k =
        mark ? snprintf(buf + n, cap - (size_t)n, "%.*s%" PRId64 "%s", (int)(mark - module), module, expert, mark + 2)
             : snprintf(buf + n, cap - (size_t)n, "%s", module);
    return k >= 0 && (size_t)k < cap - (size_t)n;
}
