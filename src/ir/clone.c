/* SPDX-License-Identifier: Apache-2.0 */
/* Deep copy. Objects of the copy are found by index or name, so a graph that breaks the rules about those is refused.
 */
#include "ir/ir_internal.h"

static pz_status copy_arg(pz_func *f, pz_node *n, const pz_arg *a, pz_error *err) {
    pz_graph *g = f->graph;
    if (a->kind == PZ_ARG_WEIGHT) {
        if (!a->weight || a->weight->index >= g->weights.n)
            return pz_node_fail(n, PZ_E_VERIFY, err, "an operand is not a weight of this graph");
        return pz_node_add_weight(n, a->name, g->weights.at[a->weight->index], err);
    }
    pz_value *v = a->value ? pz_func_find_value(f, a->value->name) : NULL;
    if (!v) return pz_node_fail(n, PZ_E_VERIFY, err, "an operand is not defined before its use");
    return pz_node_add_value(n, a->name, v, a->slice, err);
}

static pz_status copy_attr(pz_node *n, const pz_attr *a, pz_error *err) {
    switch (a->type) {
    case PZ_ATTR_INT: return pz_node_set_int(n, a->name, a->i, err);
    case PZ_ATTR_FLOAT: return pz_node_set_float(n, a->name, a->f, err);
    case PZ_ATTR_STR: return pz_node_set_str(n, a->name, a->s, err);
    case PZ_ATTR_STRS: return pz_node_set_strs(n, a->name, a->strs, a->n_strs, err);
    case PZ_ATTR_DTYPE: return pz_node_set_dtype(n, a->name, a->dt, err);
    }
    return pz_node_fail(n, PZ_E_VERIFY, err, "attribute %.80s has no type", a->name);
}

static pz_status copy_node(pz_func *f, const pz_node *from, pz_error *err) {
    pz_node *n;
    PZ_TRY(pz_node_new(f, -1, from->op, &n, err));
    n->line = from->line;
    n->col = from->col;
    if (from->callee) {
        if (from->callee->index >= f->graph->funcs.n)
            return pz_node_fail(n, PZ_E_VERIFY, err, "calls a function that is not of this graph");
        n->callee = f->graph->funcs.at[from->callee->index];
    }
    for (int i = 0; i < from->args.n; i++) PZ_TRY(copy_arg(f, n, &from->args.at[i], err));
    for (int i = 0; i < from->attrs.n; i++) PZ_TRY(copy_attr(n, &from->attrs.at[i], err));
    for (int i = 0; i < from->results.n; i++) {
        PZ_TRY(pz_node_add_result(n, from->results.at[i]->name, err));
        n->results.at[i]->type = from->results.at[i]->type;
    }
    return PZ_OK;
}

static pz_status copy_signature(pz_graph *g, const pz_func *from, pz_error *err) {
    pz_func *f;
    PZ_TRY(pz_graph_add_func(g, from->name, from->opaque, &f, err));
    f->external = from->external;
    f->line = from->line;
    f->col = from->col;
    for (int i = 0; i < from->params.n; i++)
        PZ_TRY(pz_func_add_param(f, from->params.at[i]->name, from->params.at[i]->type, NULL, err));
    for (int i = 0; i < from->slots.n; i++)
        PZ_TRY(pz_func_add_slot(f, from->slots.at[i].name, from->slots.at[i].type, err));
    for (int i = 0; i < from->result_types.n; i++) PZ_TRY(pz_func_add_result_type(f, from->result_types.at[i], err));
    return PZ_OK;
}

static pz_status copy_body(pz_func *f, const pz_func *from, pz_error *err) {
    for (int i = 0; i < from->nodes.n; i++) PZ_TRY(copy_node(f, from->nodes.at[i], err));
    for (int i = 0; i < from->returns.n; i++) {
        pz_value *v = pz_func_find_value(f, from->returns.at[i]->name);
        if (!v) return pz_func_fail(f, PZ_E_VERIFY, err, "returned value %d is not defined", i + 1);
        PZ_TRY(pz_push(&f->returns, v, err));
    }
    return PZ_OK;
}

static pz_status copy_graph(pz_graph *g, const pz_graph *from, pz_error *err) {
    g->next_id = from->next_id;
    for (int i = 0; i < from->weights.n; i++) {
        const pz_weight *w = from->weights.at[i];
        pz_weight *copy;
        PZ_TRY(pz_graph_add_weight(g, w->name, w->type, &copy, err));
        copy->line = w->line;
        copy->col = w->col;
    }
    for (int i = 0; i < from->funcs.n; i++) PZ_TRY(copy_signature(g, from->funcs.at[i], err));
    for (int i = 0; i < from->funcs.n; i++) PZ_TRY(copy_body(g->funcs.at[i], from->funcs.at[i], err));
    return PZ_OK;
}

pz_status pz_graph_clone(const pz_graph *graph, pz_graph **out, pz_error *err) {
    PZ_NEED(graph && out, "a graph and a place for the result", err);
    pz_graph *g;
    *out = NULL;
    PZ_TRY(pz_graph_new(graph->name, &g, err));
    pz_status st = copy_graph(g, graph, err);
    if (st != PZ_OK) {
        pz_graph_free(g);
        return st;
    }
    *out = g;
    return PZ_OK;
}
