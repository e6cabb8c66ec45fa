/* SPDX-License-Identifier: Apache-2.0 */
/* The canonical text (docs/ir.md): weights, then functions, in the order of the graph. */
#include "ir/ir_internal.h"

static void print_values(pz_str *s, pz_value *const *v, int n) {
    for (int i = 0; i < n; i++) pz_str_addf(s, "%s%%%s", i ? ", " : "", v[i]->name);
}

static bool written_by_name(const pz_node *n, const pz_arg *a) {
    if (n->op == PZ_OP_CALL) return a->name != NULL;
    int index = a->name ? pz_op_operand_index(n->op, a->name) : -1;
    return index < 0 || pz_schema(n->op)->operands[index].optional;
}

static void print_args(pz_str *s, const pz_node *n) {
    pz_str_add(s, "(");
    for (int i = 0; i < n->args.n; i++) {
        const pz_arg *a = &n->args.at[i];
        if (i) pz_str_add(s, ", ");
        if (written_by_name(n, a)) pz_str_addf(s, "%s=", a->name ? a->name : "");
        if (a->kind == PZ_ARG_WEIGHT)
            pz_str_addf(s, "@%s", a->weight->name);
        else
            pz_str_addf(s, "%%%s", a->value->name);
        if (a->slice) pz_str_addf(s, ":%s", a->slice);
    }
    pz_str_add(s, ")");
}

static void print_attr(pz_str *s, const pz_attr *a) {
    char buf[PZ_FLOAT_TEXT];
    pz_str_addf(s, "%s=", a->name);
    switch (a->type) {
    case PZ_ATTR_INT: pz_str_addf(s, "%lld", (long long)a->i); break;
    case PZ_ATTR_FLOAT:
        pz_float_text(a->f, buf);
        pz_str_add(s, buf);
        break;
    case PZ_ATTR_STR: pz_str_add(s, a->s); break;
    case PZ_ATTR_DTYPE: pz_str_add(s, pz_dtype_text(a->dt)); break;
    case PZ_ATTR_STRS:
        pz_str_add(s, "[");
        for (int i = 0; i < a->n_strs; i++) pz_str_addf(s, "%s%s", i ? ", " : "", a->strs[i]);
        pz_str_add(s, "]");
        break;
    }
}

static void print_node(pz_str *s, const pz_node *n) {
    pz_str_add(s, "  ");
    print_values(s, n->results.at, n->results.n);
    if (n->results.n) pz_str_add(s, " = ");
    pz_str_add(s, pz_op_text(n->op));
    if (n->op == PZ_OP_CALL) pz_str_addf(s, " @%s", n->callee ? n->callee->name : "?");
    print_args(s, n);
    for (int i = 0; i < n->attrs.n; i++) {
        pz_str_add(s, i ? ", " : " {");
        print_attr(s, &n->attrs.at[i]);
    }
    pz_str_add(s, n->attrs.n ? "}\n" : "\n");
}

static void print_signature(pz_str *s, const pz_func *f) {
    pz_str_addf(s, "func @%s(", f->name);
    for (int i = 0; i < f->params.n; i++) {
        pz_str_addf(s, "%s%%%s: ", i ? ", " : "", f->params.at[i]->name);
        pz_type_print(&f->params.at[i]->type, s);
    }
    pz_str_add(s, f->opaque ? ") opaque" : ")");
    for (int i = 0; i < f->slots.n; i++) {
        pz_str_addf(s, "%s%s: ", i ? ", " : " slots(", f->slots.at[i].name);
        pz_type_print(&f->slots.at[i].type, s);
    }
    if (f->slots.n) pz_str_add(s, ")");
}

static void print_func(pz_str *s, const pz_func *f) {
    print_signature(s, f);
    if (f->external) {
        pz_str_add(s, " -> (");
        for (int i = 0; i < f->result_types.n; i++) {
            if (i) pz_str_add(s, ", ");
            pz_type_print(&f->result_types.at[i], s);
        }
        pz_str_add(s, ")\n");
        return;
    }
    pz_str_add(s, " {\n");
    for (int i = 0; i < f->nodes.n; i++) print_node(s, f->nodes.at[i]);
    pz_str_add(s, f->returns.n ? "  return " : "  return");
    print_values(s, f->returns.at, f->returns.n);
    pz_str_add(s, "\n}\n");
}

pz_status pz_graph_print(const pz_graph *g, char **out, pz_error *err) {
    PZ_NEED(g && out, "a graph and a place for the result", err);
    pz_str s = {0};
    for (int i = 0; i < g->weights.n; i++) {
        pz_str_addf(&s, "weight @%s: ", g->weights.at[i]->name);
        pz_type_print(&g->weights.at[i]->type, &s);
        pz_str_add(&s, "\n");
    }
    for (int i = 0; i < g->funcs.n; i++) {
        if (i || g->weights.n) pz_str_add(&s, "\n");
        print_func(&s, g->funcs.at[i]);
    }
    return pz_str_take(&s, out, err);
}
