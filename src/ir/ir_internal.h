/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of src/ir share. */
#ifndef PZ_IR_INTERNAL_H
#define PZ_IR_INTERNAL_H

#include "ir/ir.h"
#include "ir/schema.h"

/* Limits of types; the others are in ir.h. */
#define PZ_MAX_DIM INT64_C(0x7fffffff)
#define PZ_MAX_ELEMENTS (INT64_C(1) << 48)

static inline bool pz_is_digit(char c) {
    return c >= '0' && c <= '9';
}
static inline bool pz_is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static inline bool pz_is_name_char(char c) {
    return pz_is_name_start(c) || pz_is_digit(c) || c == '.';
}

/* [A-Za-z_][A-Za-z0-9_.]*, for values also digits alone. E_INVAL with `what` in the message. */
pz_status pz_name_check(const char *name, bool value, const char *what, pz_error *err);

typedef enum pz_type_use { PZ_TYPE_PARAM, PZ_TYPE_WEIGHT, PZ_TYPE_SLOT } pz_type_use;
pz_status pz_type_check(const pz_type *t, pz_type_use use, pz_error *err);
enum { PZ_TYPE_TEXT = 128 };
const char *pz_type_text(const pz_type *t, char buf[PZ_TYPE_TEXT]);
/* Equal, where a ? matches anything. */
bool pz_type_match(const pz_type *a, const pz_type *b);

/* Registers an object that the parser may have made earlier, at a forward reference. */
pz_status pz_graph_declare_weight(pz_graph *g, pz_weight *w, const char *name, pz_type type, pz_error *err);
pz_status pz_graph_declare_func(pz_graph *g, pz_func *f, const char *name, bool opaque, pz_error *err);
/* Appends a result; name NULL: a fresh one. The type is set later. */
pz_status pz_node_add_result(pz_node *n, const char *name, pz_error *err);
pz_status pz_func_add_result_type(pz_func *f, pz_type type, pz_error *err);

/* "name:line:col: @func: gemm %y: " before the message; the position only if the node was parsed. */
pz_status pz_node_fail(const pz_node *n, pz_status code, pz_error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
pz_status pz_func_fail(const pz_func *f, pz_status code, pz_error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Types of the results, from operands and attributes alone; out has room for PZ_MAX_RETURNS. */
pz_status pz_node_types(const pz_node *n, pz_type *out, int *count, pz_error *err);
/* Function indices, callees before callers (heap, pz_free). E_VERIFY if calls form a cycle. */
pz_status pz_graph_call_order(const pz_graph *g, int **order, pz_error *err);
/* `slice` as a word of a buffer's list: its position, -1 if absent. */
int pz_strs_find(const pz_attr *list, const char *s);

/* Numbers as text, in the C locale whatever the process has set: the shortest form that reads back as the same value.
 */
enum { PZ_FLOAT_TEXT = 40 };
void pz_float_text(double v, char buf[PZ_FLOAT_TEXT]);
/* The whole of s must be a finite number. */
bool pz_float_parse(const char *s, double *out);

#endif
