/* SPDX-License-Identifier: Apache-2.0 */
/* GraphViz text. A cluster is a function. What prezero changes stands out: donors that carry a fill, buffers with their
 * slices, GEMMs and calls whose output comes zeroed, and the edges along which the zeroed memory travels.
 * Names hold letters, digits, _ and . alone, so nothing needs an escape. */
#include "ir/ir_internal.h"

#define COLOR_RIDER "#f5a742"    /* donor with a fill */
#define COLOR_DONOR "#fde7c4"    /* donor without */
#define COLOR_ZEROED "#8fd19e"   /* consumer, or call, whose output comes zeroed */
#define COLOR_CONSUMER "#dcecf9" /* consumer, or call with slots, that zeroes its own output */
#define COLOR_BUFFER "#fff3a3"
#define ZERO_EDGE "style=\"dashed,bold\", color=\"#c0392b\", fontcolor=\"#c0392b\""

static bool has_buffer_arg(const pz_node *n) {
    for (int i = 0; i < n->args.n; i++)
        if (n->args.at[i].value && n->args.at[i].value->type.dt == PZ_DT_BUFFER) return true;
    return false;
}

static const char *color_of(const pz_node *n) {
    bool buffer = has_buffer_arg(n);
    if (pz_node_has(n, PZ_TRAIT_DONOR)) return buffer ? COLOR_RIDER : COLOR_DONOR;
    if (buffer) return COLOR_ZEROED;
    return pz_node_has(n, PZ_TRAIT_CONSUMER) || (n->callee && n->callee->slots.n) ? COLOR_CONSUMER : "white";
}

/* A node is identified by its first result, or by its position if it has none. */
static void node_id(pz_str *s, const pz_node *n, int position) {
    if (n->results.n)
        pz_str_addf(s, "\"@%s %%%s\"", n->func->name, n->results.at[0]->name);
    else
        pz_str_addf(s, "\"@%s %d.\"", n->func->name, position);
}

static void value_id(pz_str *s, const pz_func *f, const pz_value *v) {
    if (v->def)
        node_id(s, v->def, 0);
    else
        pz_str_addf(s, "\"@%s %%%s\"", f->name, v->name);
}

static void buffer_line(pz_str *s, const pz_node *n) {
    const pz_attr *list = pz_node_attr(n, "slices");
    pz_str_addf(s, " [shape=record, fillcolor=\"%s\", label=\"{buffer %%%s|{", COLOR_BUFFER, n->results.at[0]->name);
    for (int i = 0; list && i < list->n_strs; i++) pz_str_addf(s, "%s%s", i ? "|" : "", list->strs[i]);
    pz_str_add(s, "}}\"];\n");
}

static void node_line(pz_str *s, const pz_node *n, int position) {
    pz_str_add(s, "    ");
    node_id(s, n, position);
    if (n->op == PZ_OP_BUFFER) {
        buffer_line(s, n);
        return;
    }
    pz_str_addf(s, " [fillcolor=\"%s\", label=\"%s", color_of(n), pz_op_text(n->op));
    if (n->callee) pz_str_addf(s, " @%s", n->callee->name);
    for (int i = 0; i < n->args.n; i++)
        if (n->args.at[i].weight) pz_str_addf(s, "\\n@%s", n->args.at[i].weight->name);
    pz_str_add(s, "\"];\n");
}

static void node_edges(pz_str *s, const pz_node *n, int position) {
    char type[PZ_TYPE_TEXT];
    for (int i = 0; i < n->args.n; i++) {
        const pz_arg *a = &n->args.at[i];
        if (!a->value) continue;
        pz_str_add(s, "    ");
        value_id(s, n->func, a->value);
        pz_str_add(s, " -> ");
        node_id(s, n, position);
        if (a->value->type.dt == PZ_DT_BUFFER)
            pz_str_addf(s, " [label=\"%s\", " ZERO_EDGE "];\n", a->slice ? a->slice : "zero_fill");
        else
            pz_str_addf(s, " [label=\"%%%s: %s\"];\n", a->value->name, pz_type_text(&a->value->type, type));
    }
}

static void func_cluster(pz_str *s, const pz_func *f) {
    pz_str_addf(s, "  subgraph \"cluster_%s\" {\n    label=\"func @%s%s", f->name, f->name,
                f->external ? " (external)"
                : f->opaque ? " (opaque)"
                            : "");
    for (int i = 0; i < f->slots.n; i++) pz_str_addf(s, "%s%s", i ? ", " : "\\nslots: ", f->slots.at[i].name);
    pz_str_addf(s, "\";\n    \"@%s\" [shape=plaintext, fillcolor=\"white\", label=\"@%s\"];\n", f->name, f->name);
    for (int i = 0; i < f->params.n; i++)
        pz_str_addf(s, "    \"@%s %%%s\" [shape=ellipse, fillcolor=\"white\", label=\"%%%s\"];\n", f->name,
                    f->params.at[i]->name, f->params.at[i]->name);
    for (int i = 0; i < f->nodes.n; i++) node_line(s, f->nodes.at[i], i);
    for (int i = 0; i < f->nodes.n; i++) node_edges(s, f->nodes.at[i], i);
    if (!f->external)
        pz_str_addf(s, "    \"@%s return\" [shape=ellipse, fillcolor=\"white\", label=\"return\"];\n", f->name);
    for (int i = 0; i < f->returns.n; i++) {
        pz_str_add(s, "    ");
        value_id(s, f, f->returns.at[i]);
        pz_str_addf(s, " -> \"@%s return\" [label=\"%%%s\"];\n", f->name, f->returns.at[i]->name);
    }
    pz_str_add(s, "  }\n");
}

pz_status pz_graph_dot(const pz_graph *g, char **out, pz_error *err) {
    PZ_NEED(g && out, "a graph and a place for the result", err);
    pz_str s = {0};
    pz_str_add(&s, "digraph prezero {\n  node [shape=box, style=filled, fontname=\"Helvetica\"];\n"
                   "  edge [fontname=\"Helvetica\", fontsize=9];\n");
    for (int i = 0; i < g->funcs.n; i++) func_cluster(&s, g->funcs.at[i]);
    /* Calls point at the function called; these edges cross clusters and so stand outside. */
    for (int i = 0; i < g->funcs.n; i++)
        for (int j = 0; j < g->funcs.at[i]->nodes.n; j++) {
            const pz_node *n = g->funcs.at[i]->nodes.at[j];
            if (!n->callee) continue;
            pz_str_add(&s, "  ");
            node_id(&s, n, j);
            pz_str_addf(&s, " -> \"@%s\" [style=dotted, constraint=false];\n", n->callee->name);
        }
    pz_str_add(&s, "}\n");
    return pz_str_take(&s, out, err);
}
