/* SPDX-License-Identifier: Apache-2.0 */
/* The op table, parsed. Filled once, at the first use, by whichever thread comes first; constant afterwards. */
#ifndef PZ_SCHEMA_H
#define PZ_SCHEMA_H

#include "ir/ir.h"

typedef enum pz_operand_class { PZ_CLASS_ACT, PZ_CLASS_I32, PZ_CLASS_WEIGHT, PZ_CLASS_BUFFER } pz_operand_class;

typedef struct pz_operand_spec {
    char name[16];
    pz_operand_class cls;
    bool optional;
} pz_operand_spec;

typedef struct pz_attr_spec {
    char name[16];
    pz_attr_type type;
    bool required;
    int64_t i; /* the default */
    double f;
    char s[16];
    pz_dtype dt; /* NONE: the first operand's dtype, or bf16 if that is fixed */
} pz_attr_spec;

enum { PZ_SCHEMA_MAX_OPERANDS = 8, PZ_SCHEMA_MAX_RESULTS = 4, PZ_SCHEMA_MAX_ATTRS = 8 };

typedef struct pz_op_schema {
    const char *text, *operand_text, *result_text, *attr_text, *doc;
    unsigned traits;
    int n_operands, n_results, n_attrs;
    pz_operand_spec operands[PZ_SCHEMA_MAX_OPERANDS];
    pz_operand_spec results[PZ_SCHEMA_MAX_RESULTS];
    pz_attr_spec attrs[PZ_SCHEMA_MAX_ATTRS];
} pz_op_schema;

/* E_INTERNAL names the row and the word of ops.def that is wrong. */
pz_status pz_schema_check(pz_error *err);
/* For tests: parses the three lists of one row into `out`. */
pz_status pz_schema_parse_row(pz_op_schema *out, pz_error *err);
const pz_op_schema *pz_schema(pz_op op);
const pz_attr_spec *pz_schema_attr(pz_op op, const char *name); /* NULL if the op has none of that name */
bool pz_op_from_text(const char *s, pz_op *out);
const char *pz_attr_type_text(pz_attr_type t);
const char *pz_class_text(pz_operand_class c);
/* Words of a trait set, "PURE DONOR"; at most cap bytes. */
void pz_traits_text(unsigned traits, char *buf, size_t cap);

#endif
