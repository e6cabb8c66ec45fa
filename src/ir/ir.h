/* SPDX-License-Identifier: Apache-2.0 */
/* The graph in memory. A graph is a list of functions, a function a list of nodes in execution order, in SSA form.
 * Everything is owned by the graph: objects and names live in its arena and are never freed one by one, the vectors are
 * freed with it (those of a removed node at once). Names are indexed: objects get theirs through the functions below.
 */
#ifndef PZ_IR_H
#define PZ_IR_H

#include "base/base.h"
#include "ir/names.h"
#include "prezero/graph.h"

typedef enum pz_dtype {
    PZ_DT_NONE = 0,
#define DTYPE(id, text, bits, cls) PZ_DT_##id,
#include "ir/dtypes.def"
#undef DTYPE
    PZ_DT_COUNT
} pz_dtype;

typedef enum pz_op {
#define OP(id, text, operands, results, attrs, traits, infer, doc) PZ_OP_##id,
#include "ir/ops.def"
#undef OP
    PZ_OP_COUNT
} pz_op;

enum {
    PZ_TRAIT_NONE = 0,
    PZ_TRAIT_DONOR = 1 << 0,
    PZ_TRAIT_CONSUMER = 1 << 1,
    PZ_TRAIT_COLLECTIVE = 1 << 2,
    PZ_TRAIT_ROW_NORM = 1 << 3,
    PZ_TRAIT_VIEW = 1 << 4,
    PZ_TRAIT_EFFECT = 1 << 5,
    PZ_TRAIT_PURE = 1 << 6,
};

/* A dimension is a size > 0, or one of these. */
enum { PZ_DIM_M = -1 /* rows of the step, printed m */, PZ_DIM_UNKNOWN = -2 /* printed ? */ };
enum { PZ_MAX_RANK = 4 };

/* Limits, so that no text can make tables or messages grow without bound. */
enum {
    PZ_MAX_NAME = 255,   /* bytes of a name */
    PZ_MAX_RETURNS = 64, /* results of a function */
    PZ_MAX_SLOTS = 256,  /* slots of a function, slices of a buffer */
};

typedef struct pz_type {
    pz_dtype dt;
    int rank;
    int64_t dim[PZ_MAX_RANK];
} pz_type;

struct pz_node;
struct pz_func;

typedef struct pz_value {
    const char *name; /* without %; unique in its function */
    pz_type type;
    struct pz_node *def; /* NULL: a parameter */
    int index;           /* result number of def, or parameter number */
} pz_value;

typedef struct pz_weight {
    const char *name; /* without @; unique in the graph */
    pz_type type;     /* logical shape, e.g. mxfp4[8,256,256] */
    int index;        /* position in pz_graph.weights */
    int line, col;    /* 0 unless parsed */
} pz_weight;

typedef enum pz_arg_kind { PZ_ARG_NONE = 0, PZ_ARG_VALUE, PZ_ARG_WEIGHT } pz_arg_kind;
typedef struct pz_arg {
    pz_arg_kind kind;
    const char *name;  /* operand name; for a call: NULL for a positional argument, else the slot */
    pz_value *value;   /* PZ_ARG_VALUE */
    pz_weight *weight; /* PZ_ARG_WEIGHT */
    const char *slice; /* %z:slice, else NULL */
} pz_arg;

typedef enum pz_attr_type { PZ_ATTR_INT, PZ_ATTR_FLOAT, PZ_ATTR_STR, PZ_ATTR_STRS, PZ_ATTR_DTYPE } pz_attr_type;
typedef struct pz_attr {
    const char *name;
    pz_attr_type type;
    int64_t i;
    double f;
    const char *s;
    const char **strs; /* n_strs of them */
    int n_strs;
    pz_dtype dt;
} pz_attr;

typedef struct pz_node {
    pz_op op;
    struct pz_func *func;
    struct pz_func *callee; /* PZ_OP_CALL */
    PZ_VEC(pz_arg) args;    /* in the order of the op's operand list, absent optional ones left out */
    PZ_VEC(pz_value *) results;
    PZ_VEC(pz_attr) attrs; /* only those written; defaults come from the op table */
    int line, col;         /* where it was parsed, else 0 */
} pz_node;

typedef struct pz_slot {
    const char *name;
    pz_type type; /* dtype of the accumulator, [m, n] */
} pz_slot;

typedef struct pz_func {
    const char *name; /* without @ */
    struct pz_graph *graph;
    bool opaque;   /* passes treat it as one op: they neither look inside nor change it */
    bool external; /* opaque and without a body: result_types say what it gives */
    PZ_VEC(pz_value *) params;
    PZ_VEC(pz_slot) slots;
    PZ_VEC(pz_node *) nodes;
    PZ_VEC(pz_value *) returns;
    PZ_VEC(pz_type) result_types; /* external functions only */
    int index;                    /* position in pz_graph.funcs */
    int line, col;
    pz_names values; /* by name */
} pz_func;

struct pz_graph {
    pz_arena arena;
    const char *name; /* for messages */
    PZ_VEC(pz_weight *) weights;
    PZ_VEC(pz_func *) funcs; /* funcs.at[0] is the entry */
    int next_id;             /* fresh value names */
    pz_names weight_names, func_names;
};

/* ---- tables ---- */
const char *pz_dtype_text(pz_dtype dt);
int pz_dtype_bits(pz_dtype dt);
bool pz_dtype_is_act(pz_dtype dt);
bool pz_dtype_is_quantized(pz_dtype dt);              /* only weights have it: mxfp4, fp8 */
pz_dtype pz_dtype_from_text(const char *s, size_t n); /* PZ_DT_NONE if unknown */
/* Accumulator <-> dtype <-> text; one table. */
pz_dtype pz_accum_dtype(pz_accum a);
const char *pz_accum_text(pz_accum a);
bool pz_accum_from_text(const char *s, pz_accum *out);

const char *pz_op_text(pz_op op);
unsigned pz_op_traits(pz_op op);
const char *pz_op_doc(pz_op op);
/* Position of an operand in the op's list, by name; -1. Whether it is optional. */
int pz_op_operand_index(pz_op op, const char *name);

/* ---- building: all return NULL / PZ_E_NOMEM when out of memory; names are copied ---- */
pz_status pz_graph_new(const char *name, pz_graph **out, pz_error *err);
pz_status pz_graph_add_weight(pz_graph *g, const char *name, pz_type type, pz_weight **out,
                              pz_error *err); /* E_VERIFY if the name exists */
pz_weight *pz_graph_find_weight(const pz_graph *g, const char *name);
pz_status pz_graph_add_func(pz_graph *g, const char *name, bool opaque, pz_func **out, pz_error *err);
pz_func *pz_graph_find_func(const pz_graph *g, const char *name);
pz_status pz_func_add_param(pz_func *f, const char *name, pz_type type, pz_value **out, pz_error *err);
pz_status pz_func_add_slot(pz_func *f, const char *name, pz_type type, pz_error *err);
pz_value *pz_func_find_value(const pz_func *f, const char *name);
const pz_slot *pz_func_find_slot(const pz_func *f, const char *name);
/* Inserts an empty node before position `at` (-1: at the end). Give it arguments and attributes, then infer. */
pz_status pz_node_new(pz_func *f, int at, pz_op op, pz_node **out, pz_error *err);
pz_status pz_node_add_value(pz_node *n, const char *operand, pz_value *v, const char *slice, pz_error *err);
pz_status pz_node_add_weight(pz_node *n, const char *operand, pz_weight *w, pz_error *err);
pz_status pz_node_set_int(pz_node *n, const char *name, int64_t v, pz_error *err);
pz_status pz_node_set_float(pz_node *n, const char *name, double v, pz_error *err);
pz_status pz_node_set_str(pz_node *n, const char *name, const char *v, pz_error *err);
pz_status pz_node_set_strs(pz_node *n, const char *name, const char *const *v, int count, pz_error *err);
pz_status pz_node_set_dtype(pz_node *n, const char *name, pz_dtype v, pz_error *err);
/* Checks operands and attributes against the op table and the shape rule, creates the results that are missing and sets
 * the types of all. names[i] (may be NULL, as may an entry) names result i; others get a fresh name. E_TYPE says node,
 * operand, what it is and what it should be. */
pz_status pz_node_infer(pz_node *n, const char *const *names, pz_error *err);

/* ---- reading ---- */
const pz_arg *pz_node_arg(const pz_node *n, const char *operand); /* NULL if absent */
pz_value *pz_node_arg_value(const pz_node *n, const char *operand);
pz_weight *pz_node_arg_weight(const pz_node *n, const char *operand);
/* Attribute with the table's default applied. Asking for a name the table lacks is a programming error and gives 0 /
 * "". */
int64_t pz_node_int(const pz_node *n, const char *name);
double pz_node_float(const pz_node *n, const char *name);
const char *pz_node_str(const pz_node *n, const char *name);
const pz_attr *pz_node_attr(const pz_node *n, const char *name); /* NULL if not written */
pz_value *pz_node_result(const pz_node *n, const char *result);  /* by the table's result name; NULL if absent */
bool pz_node_has(const pz_node *n, unsigned traits);
int pz_node_position(const pz_node *n); /* index in its function */
/* "gemm %qkv (layer.pz:12:3)" for messages; writes at most cap bytes, returns buf. */
const char *pz_node_describe(const pz_node *n, char *buf, size_t cap);

/* ---- changing ---- */
pz_status pz_node_remove(pz_node *n, pz_error *err);                 /* E_VERIFY if a result is still used */
void pz_func_replace_uses(pz_func *f, pz_value *from, pz_value *to); /* in arguments and returns */
int pz_value_use_count(const pz_func *f, const pz_value *v);         /* returns count too */
/* Takes `tmp`'s contents into `g` and frees the rest: the commit of a change made on a clone. */
void pz_graph_replace(pz_graph *g, pz_graph *tmp);

static inline pz_type pz_type_make(pz_dtype dt, int rank, int64_t d0, int64_t d1, int64_t d2) {
    return (pz_type){.dt = dt, .rank = rank, .dim = {d0, d1, d2, 0}};
}
static inline pz_type pz_type_rows(pz_dtype dt, int64_t cols) { /* [m, cols] */
    return pz_type_make(dt, 2, PZ_DIM_M, cols, 0);
}
bool pz_type_equal(const pz_type *a, const pz_type *b);
void pz_type_print(const pz_type *t, pz_str *out);

#endif
