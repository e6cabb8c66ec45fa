/* SPDX-License-Identifier: Apache-2.0 */
#include "model/weights.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct role_info {
    const char *name;
    pz_role_scope scope;
    pz_role_kind kind;
    pz_axis axis;
    pz_unit unit;
    const char *module[2], *leaf;
} role_info;

static const role_info roles[PZ_ROLE_COUNT] = {
#define ROLE(id, name, scope, kind, present, count, rows_a, rows_b, cols, axis, unit, module_a, module_b, leaf) \
    {name, PZ_SCOPE_##scope, PZ_KIND_##kind, PZ_AXIS_##axis, PZ_UNIT_##unit, {module_a, module_b}, leaf},
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
#define ROLE(id, name, scope, kind, present, count, rows_a, rows_b, cols, axis, unit, module_a, module_b, leaf) \
    case PZ_ROLE_##id:                                                                                          \
        return present;
#include "model/weights.def"
#undef ROLE
    case PZ_ROLE_COUNT: break;
    }
    return false;
}

/* ---- shapes ---- */
static pz_role_shape whole_shape(const pz_hf_config *c, pz_role r) {
    switch (r) {
#define ROLE(id, name, scope, kind, present, count, rows_a, rows_b, cols, axis, unit, module_a, module_b, leaf) \
    case PZ_ROLE_##id:                                                                                          \
        return (pz_role_shape){count, {rows_a, rows_b}, cols};
#include "model/weights.def"
#undef ROLE
    case PZ_ROLE_COUNT: break;
    }
    return (pz_role_shape){0};
}

static const pz_shard only_rank = {.tp = 1};

typedef struct split {
    pz_axis axis;
    pz_unit unit;
} split;

static split split_of(pz_role r, const pz_shard *s) {
    if (roles[r].unit == PZ_UNIT_WIDTH && s->experts == PZ_EXPERTS_BY_EXPERT)
        return (split){PZ_AXIS_COUNT, PZ_UNIT_EXPERTS};
    return (split){roles[r].axis, roles[r].unit};
}

static void share(int64_t *size, int64_t *first, const pz_shard *s) {
    *size /= s->tp;
    *first = *size * s->rank;
}

pz_role_shape pz_role_shape_of(const pz_hf_config *c, pz_role r, const pz_shard *s, pz_role_shape *first) {
    pz_role_shape size = whole_shape(c, r), begin = {0};
    if (!s) s = &only_rank;
    switch (split_of(r, s).axis) {
    case PZ_AXIS_ALL: break;
    case PZ_AXIS_ROWS: share(&size.rows[1], &begin.rows[1], s); /* fall through */
    case PZ_AXIS_ROWS_A: share(&size.rows[0], &begin.rows[0], s); break;
    case PZ_AXIS_COLS: share(&size.cols, &begin.cols, s); break;
    case PZ_AXIS_COUNT: share(&size.count, &begin.count, s); break;
    }
    if (first) *first = begin;
    return size;
}

static pz_dtype quant_dtype(pz_quant q) {
    return q == PZ_QUANT_MXFP4 ? PZ_DT_MXFP4 : q == PZ_QUANT_FP8 ? PZ_DT_FP8 : PZ_DT_BF16;
}

pz_type pz_role_type(const pz_hf_config *c, pz_role r, int64_t layer, const pz_shard *shard) {
    pz_role_shape s = pz_role_shape_of(c, r, shard, NULL);
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

/* ---- which splits there are ---- */
static int64_t unit_number(const pz_hf_config *c, pz_unit u) {
    switch (u) {
#define UNIT(id, text, number) \
    case PZ_UNIT_##id: return number;
        PZ_UNIT_TABLE(UNIT)
#undef UNIT
    }
    return 0;
}

/* `advice` ends the message. */
static pz_status check_role(const pz_hf_config *c, pz_role r, int64_t layer, const pz_shard *s, const char *advice,
                            pz_error *err) {
    static const char *const texts[] = {
#define UNIT(id, text, number) text,
        PZ_UNIT_TABLE(UNIT)
#undef UNIT
    };
    char name[64];
    split by = split_of(r, s);
    int64_t number = unit_number(c, by.unit);
    pz_role_weight_name(r, layer, name, sizeof name);
    if (number % s->tp)
        return pz_fail(err, PZ_E_INVAL, "weight @%s: tp %" PRId64 " does not divide %s %" PRId64 "%s", name, s->tp,
                       texts[by.unit], number, advice);
    pz_type t = pz_role_type(c, r, layer, s);
    int64_t cols = t.dim[t.rank - 1];
    if (t.dt == PZ_DT_MXFP4 && cols % PZ_MX_GROUP)
        return pz_fail(err, PZ_E_INVAL,
                       "weight @%s of %" PRId64 " columns has %" PRId64 " columns on each of %" PRId64
                       " ranks; mxfp4 needs a multiple of %d, the columns of one scale%s",
                       name, whole_shape(c, r).cols, cols, s->tp, PZ_MX_GROUP, advice);
    return PZ_OK;
}

/* The first weight that cannot be split. */
static bool find_bad(const pz_hf_config *c, const pz_shard *s, pz_role *r, int64_t *layer) {
    for (*layer = 0; *layer < c->layers; ++*layer)
        for (int i = 0; i < PZ_ROLE_COUNT; i++) {
            *r = (pz_role)i;
            if ((roles[i].scope == PZ_SCOPE_LAYER || *layer == 0) && pz_role_present(c, *r, *layer) &&
                check_role(c, *r, *layer, s, "", NULL) != PZ_OK)
                return true;
        }
    return false;
}

/* "; tp 1, 2 would do" */
static void advise(const pz_hf_config *c, pz_expert_split experts, char *buf, size_t cap) {
    pz_role r;
    int64_t layer;
    size_t n = 0;
    for (int64_t tp = 1; tp <= c->heads && n + 24 < cap; tp++)
        if (!find_bad(c, &(pz_shard){.tp = tp, .experts = experts}, &r, &layer))
            n += (size_t)snprintf(buf + n, cap - n, "%s%" PRId64, n ? ", " : "; tp ", tp);
    snprintf(buf + n, cap - n, n ? " would do" : "; no number of ranks would do");
}

pz_status pz_role_check(const pz_hf_config *c, pz_role r, int64_t layer, const pz_shard *s, pz_error *err) {
    char advice[128];
    if (!s) s = &only_rank;
    if (s->tp < 1 || s->rank < 0 || s->rank >= s->tp)
        return pz_fail(err, PZ_E_INVAL, "rank %" PRId64 " of tp %" PRId64 ": expected tp 1 or more and a rank below it",
                       s->rank, s->tp);
    if (check_role(c, r, layer, s, "", NULL) == PZ_OK) return PZ_OK;
    advise(c, s->experts, advice, sizeof advice);
    return check_role(c, r, layer, s, advice, err);
}

pz_status pz_shard_check(const pz_hf_config *c, const pz_shard *s, pz_error *err) {
    pz_role r = PZ_ROLE_EMBED;
    int64_t layer = 0;
    PZ_TRY(pz_role_check(c, r, layer, s, err)); /* the rank itself */
    return find_bad(c, s ? s : &only_rank, &r, &layer) ? pz_role_check(c, r, layer, s, err) : PZ_OK;
}

/* ---- names ---- */
void pz_role_weight_name(pz_role r, int64_t layer, char *buf, size_t cap) {
    if (roles[r].scope == PZ_SCOPE_LAYER)
        snprintf(buf, cap, "layers.%" PRId64 ".%s", layer, roles[r].name);
    else
        snprintf(buf, cap, "%s", roles[r].name);
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
