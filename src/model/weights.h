/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of the decode graph: names, shapes, dtypes and the tensors behind them, from weights.def. */
#ifndef PZ_WEIGHTS_H
#define PZ_WEIGHTS_H

#include "base/json.h"
#include "model/model.h"

typedef enum pz_role {
#define ROLE(id, name, scope, kind, present, count, rows_a, rows_b, cols, module_a, module_b, leaf) PZ_ROLE_##id,
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
/* One rank of tp; what tp divides must be divisible. */
pz_role_shape pz_role_shape_of(const pz_hf_config *c, pz_role r, int64_t tp);
/* Type in the graph. */
pz_type pz_role_type(const pz_hf_config *c, pz_role r, int64_t layer, int64_t tp);
/* Finds the role of a graph weight's name; false if the model has no such weight. */
bool pz_role_find(const pz_hf_config *c, const char *name, pz_role *r, int64_t *layer);
/* Writes the module that holds part 0 or 1, without prefix ("model.layers.3.mlp.experts.5.up_proj"); false if the role
 * has no such part or it does not fit. */
bool pz_role_module(pz_role r, int part, int64_t layer, int64_t expert, char *buf, size_t cap);

/* Reads a quantization_config: sets quant, expert_quant, linear_quant, quantized and packed_names of a configuration
 * that is complete otherwise. E_UNSUPPORTED names the method or format and what is supported. */
pz_status pz_quant_configure(pz_hf_config *c, const json_t *quantization, const char *where, pz_error *err);

#endif
