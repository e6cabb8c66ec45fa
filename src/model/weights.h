/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of the decode graph: names, shapes, dtypes and the tensors behind them, from weights.def. */
#ifndef PZ_WEIGHTS_H
#define PZ_WEIGHTS_H

#include "base/json.h"
#include "model/model.h"

typedef enum pz_role {
#define ROLE(id, name, scope, kind, present, count, rows_a, rows_b, cols, axis, unit, module_a, module_b, leaf) \
    PZ_ROLE_##id,
#include "model/weights.def"
#undef ROLE
    PZ_ROLE_COUNT
} pz_role;
_Static_assert(PZ_ROLE_COUNT <= 32, "pz_hf_config.quantized has one bit a role");

typedef enum pz_role_scope { PZ_SCOPE_MODEL, PZ_SCOPE_LAYER } pz_role_scope;
typedef enum pz_role_kind {
    PZ_KIND_LINEAR,
    PZ_KIND_MATRIX,
    PZ_KIND_VECTOR,
    PZ_KIND_BIAS,
    PZ_KIND_COMPUTED
} pz_role_kind;

/* What of a weight the ranks share out. */
typedef enum pz_axis { PZ_AXIS_ALL, PZ_AXIS_ROWS, PZ_AXIS_ROWS_A, PZ_AXIS_COLS, PZ_AXIS_COUNT } pz_axis;

/* What may not be cut: a rank holds units / tp of them. Enum suffix, the configuration's name for their number, their
 * number. */
#define PZ_UNIT_TABLE(X)                                                                                \
    X(NONE, "", 0)                                                                                      \
    X(HEADS, "num_attention_heads", c->heads)                                                           \
    X(VOCAB, "vocab_size", c->vocab)                                                                    \
    X(DENSE, "intermediate_size", c->intermediate)                                                      \
    X(WIDTH, "moe_intermediate_size", c->moe_intermediate)                                              \
    X(SHARED, "moe_intermediate_size times n_shared_experts,", c->moe_intermediate * c->shared_experts) \
    X(EXPERTS, "n_routed_experts", c->experts)
typedef enum pz_unit {
#define PZ_UNIT_ENUM(id, text, number) PZ_UNIT_##id,
    PZ_UNIT_TABLE(PZ_UNIT_ENUM)
#undef PZ_UNIT_ENUM
} pz_unit;

enum { PZ_MX_GROUP = 32 /* columns that share an mxfp4 scale */ };

/* `count` (0: one) matrices of rows[0] + rows[1] rows. */
typedef struct pz_role_shape {
    int64_t count, rows[2], cols;
} pz_role_shape;

const char *pz_role_name(pz_role r);
pz_role_kind pz_role_kind_of(pz_role r);
pz_role_scope pz_role_scope_of(pz_role r);
const char *pz_role_leaf(pz_role r);

/* Whether a layer has routed experts. */
bool pz_layer_is_moe(const pz_hf_config *c, int64_t layer);
/* A MODEL role ignores `layer`. */
bool pz_role_present(const pz_hf_config *c, pz_role r, int64_t layer);
/* A rank's share, of a split that pz_shard_check allows; *first (may be NULL): where in the whole it begins. */
pz_role_shape pz_role_shape_of(const pz_hf_config *c, pz_role r, const pz_shard *s, pz_role_shape *first);
/* Type in a rank's graph. */
pz_type pz_role_type(const pz_hf_config *c, pz_role r, int64_t layer, const pz_shard *s);
/* pz_shard_check of one weight. */
pz_status pz_role_check(const pz_hf_config *c, pz_role r, int64_t layer, const pz_shard *s, pz_error *err);
/* Writes the weight's name in the graph. */
void pz_role_weight_name(pz_role r, int64_t layer, char *buf, size_t cap);
/* Finds the role of a graph weight's name; false if the model has no such weight. */
bool pz_role_find(const pz_hf_config *c, const char *name, pz_role *r, int64_t *layer);
/* Writes the module that holds part 0 or 1, without prefix ("model.layers.3.mlp.experts.5.up_proj"); false if the role
 * has no such part or it does not fit. */
bool pz_role_module(pz_role r, int part, int64_t layer, int64_t expert, char *buf, size_t cap);

/* Reads a quantization_config: sets quant, expert_quant, linear_quant, quantized and packed_names of a configuration
 * that is complete otherwise. E_UNSUPPORTED names the method or format and what is supported. */
pz_status pz_quant_configure(pz_hf_config *c, const json_t *quantization, const char *where, pz_error *err);

#endif
