/* SPDX-License-Identifier: Apache-2.0 */
/* Containers, building, reading and editing. Objects live in the graph's arena, their vectors on the heap. */
#include <math.h>
#include <stdio.h>

#include "ir/ir_internal.h"

/* ---- names ---- */
static bool is_name(const char *s, bool value) {
    if (value && pz_is_digit(*s)) return strspn(s, "0123456789") == strlen(s);
    if (!pz_is_name_start(*s)) return false;
    while (pz_is_name_char(*s)) s++;
    return *s == 0;
}

pz_status pz_name_check(const char *name, bool value, const char *what, pz_error *err) {
    if (strlen(name) > PZ_MAX_NAME)
        return pz_fail(err, PZ_E_INVAL, "%s '%.40s...' is longer than %d bytes", what, name, PZ_MAX_NAME);
    if (!is_name(name, value))
        return pz_fail(err, PZ_E_INVAL, "%s '%.80s' is not a name: a letter or _, then letters, digits, _ and .%s",
                       what, name, value ? ", or digits alone" : "");
    return PZ_OK;
}

/* ---- graph ---- */
pz_status pz_graph_new(const char *name, pz_graph **out, pz_error *err) {
    *out = NULL;
    pz_graph *g = pz_calloc(1, sizeof *g);
    if (!g) return PZ_NOMEM(err);
    g->name = pz_arena_strdup(&g->arena, name ? name : "graph");
    if (!g->name) {
        pz_graph_free(g);
        return PZ_NOMEM(err);
    }
    *out = g;
    return PZ_OK;
}

static void free_node_vectors(pz_node *n) {
    pz_vec_free(&n->args);
    pz_vec_free(&n->results);
    pz_vec_free(&n->attrs);
}

static void free_contents(pz_graph *g) {
    for (int i = 0; i < g->funcs.n; i++) {
        pz_func *f = g->funcs.at[i];
        for (int j = 0; j < f->nodes.n; j++) free_node_vectors(f->nodes.at[j]);
        pz_vec_free(&f->params);
        pz_vec_free(&f->slots);
        pz_vec_free(&f->nodes);
        pz_vec_free(&f->returns);
        pz_vec_free(&f->result_types);
    }
    pz_vec_free(&g->weights);
    pz_vec_free(&g->funcs);
    pz_arena_free(&g->arena);
}

void pz_graph_free(pz_graph *g) {
    if (!g) return;
    free_contents(g);
    pz_free(g);
}

void pz_graph_replace(pz_graph *g, pz_graph *tmp) {
    free_contents(g);
    *g = *tmp;
    for (int i = 0; i < g->funcs.n; i++) g->funcs.at[i]->graph = g;
    pz_free(tmp);
}

pz_status pz_graph_declare_weight(pz_graph *g, pz_weight *w, const char *name, pz_type type, pz_error *err) {
    PZ_TRY(pz_name_check(name, false, "weight", err));
    PZ_TRY(pz_type_check(&type, PZ_TYPE_WEIGHT, err));
    if (pz_graph_find_weight(g, name))
        return pz_fail(err, PZ_E_VERIFY, "weight @%s is declared twice; names are unique", name);
    w->name = pz_arena_strdup(&g->arena, name);
    if (!w->name || !pz_names_put(&g->weight_names, &g->arena, w->name, w)) return PZ_NOMEM(err);
    w->type = type;
    w->index = g->weights.n;
    return pz_push(&g->weights, w, err);
}

pz_status pz_graph_add_weight(pz_graph *g, const char *name, pz_type type, pz_weight **out, pz_error *err) {
    pz_weight *w = pz_arena_alloc(&g->arena, sizeof *w);
    if (!w) return PZ_NOMEM(err);
    PZ_TRY(pz_graph_declare_weight(g, w, name, type, err));
    if (out) *out = w;
    return PZ_OK;
}

pz_weight *pz_graph_find_weight(const pz_graph *g, const char *name) {
    return pz_names_find(&g->weight_names, name);
}

/* ---- functions ---- */
pz_status pz_graph_declare_func(pz_graph *g, pz_func *f, const char *name, bool opaque, pz_error *err) {
    PZ_TRY(pz_name_check(name, false, "function", err));
    if (pz_graph_find_func(g, name))
        return pz_fail(err, PZ_E_VERIFY, "function @%s is defined twice; names are unique", name);
    f->name = pz_arena_strdup(&g->arena, name);
    if (!f->name || !pz_names_put(&g->func_names, &g->arena, f->name, f)) return PZ_NOMEM(err);
    f->graph = g;
    f->opaque = opaque;
    f->index = g->funcs.n;
    return pz_push(&g->funcs, f, err);
}

pz_status pz_graph_add_func(pz_graph *g, const char *name, bool opaque, pz_func **out, pz_error *err) {
    pz_func *f = pz_arena_alloc(&g->arena, sizeof *f);
    if (!f) return PZ_NOMEM(err);
    PZ_TRY(pz_graph_declare_func(g, f, name, opaque, err));
    if (out) *out = f;
    return PZ_OK;
}

pz_func *pz_graph_find_func(const pz_graph *g, const char *name) {
    return pz_names_find(&g->func_names, name);
}

static pz_status new_value(pz_func *f, const char *name, pz_value **out, pz_error *err) {
    pz_graph *g = f->graph;
    char fresh[24];
    if (!name) {
        do snprintf(fresh, sizeof fresh, "%d", g->next_id++);
        while (pz_func_find_value(f, fresh));
        name = fresh;
    }
    PZ_TRY(pz_name_check(name, true, "value", err));
    if (pz_func_find_value(f, name))
        return pz_fail(err, PZ_E_VERIFY, "value %%%s is defined twice in @%s; names are unique", name, f->name);
    pz_value *v = pz_arena_alloc(&g->arena, sizeof *v);
    if (!v || !(v->name = pz_arena_strdup(&g->arena, name)) || !pz_names_put(&f->values, &g->arena, v->name, v))
        return PZ_NOMEM(err);
    *out = v;
    return PZ_OK;
}

pz_status pz_func_add_param(pz_func *f, const char *name, pz_type type, pz_value **out, pz_error *err) {
    pz_value *v;
    PZ_TRY(pz_type_check(&type, PZ_TYPE_PARAM, err));
    PZ_TRY(new_value(f, name, &v, err));
    v->type = type;
    v->index = f->params.n;
    if (out) *out = v;
    return pz_push(&f->params, v, err);
}

pz_status pz_func_add_slot(pz_func *f, const char *name, pz_type type, pz_error *err) {
    PZ_TRY(pz_name_check(name, false, "slot", err));
    PZ_TRY(pz_type_check(&type, PZ_TYPE_SLOT, err));
    if (pz_func_find_slot(f, name))
        return pz_fail(err, PZ_E_VERIFY, "slot %s is declared twice in @%s; names are unique", name, f->name);
    if (f->slots.n == PZ_MAX_SLOTS)
        return pz_fail(err, PZ_E_VERIFY, "function @%s has more than %d slots", f->name, PZ_MAX_SLOTS);
    pz_slot slot = {pz_arena_strdup(&f->graph->arena, name), type};
    if (!slot.name) return PZ_NOMEM(err);
    return pz_push(&f->slots, slot, err);
}

pz_status pz_func_add_result_type(pz_func *f, pz_type type, pz_error *err) {
    PZ_TRY(pz_type_check(&type, PZ_TYPE_PARAM, err));
    if (f->result_types.n == PZ_MAX_RETURNS)
        return pz_fail(err, PZ_E_VERIFY, "function @%s has more than %d results", f->name, PZ_MAX_RETURNS);
    return pz_push(&f->result_types, type, err);
}

pz_value *pz_func_find_value(const pz_func *f, const char *name) {
    return pz_names_find(&f->values, name);
}

const pz_slot *pz_func_find_slot(const pz_func *f, const char *name) {
    for (int i = 0; i < f->slots.n; i++)
        if (strcmp(f->slots.at[i].name, name) == 0) return &f->slots.at[i];
    return NULL;
}

/* ---- nodes ---- */
pz_status pz_node_new(pz_func *f, int at, pz_op op, pz_node **out, pz_error *err) {
    if (at < -1 || at > f->nodes.n || (unsigned)op >= PZ_OP_COUNT)
        return pz_fail(err, PZ_E_INVAL, "@%s: no position %d among %d nodes, or no op %d", f->name, at, f->nodes.n,
                       (int)op);
    pz_node *n = pz_arena_alloc(&f->graph->arena, sizeof *n);
    if (!n) return PZ_NOMEM(err);
    n->op = op;
    n->func = f;
    PZ_TRY(pz_push(&f->nodes, n, err));
    if (at >= 0) {
        memmove(f->nodes.at + at + 1, f->nodes.at + at, (size_t)(f->nodes.n - 1 - at) * sizeof *f->nodes.at);
        f->nodes.at[at] = n;
    }
    *out = n;
    return PZ_OK;
}

pz_status pz_node_add_result(pz_node *n, const char *name, pz_error *err) {
    pz_value *v;
    PZ_TRY(new_value(n->func, name, &v, err));
    v->def = n;
    v->index = n->results.n;
    return pz_push(&n->results, v, err);
}

/* Puts an argument at its place: operands in the table's order; of a call, positional ones, then slots as they come. */
static pz_status add_arg(pz_node *n, pz_arg arg, const char *operand, pz_error *err) {
    int at = n->args.n;
    if (n->op == PZ_OP_CALL) {
        if (operand) {
            PZ_TRY(pz_name_check(operand, false, "slot", err));
            if (pz_node_arg(n, operand)) return pz_node_fail(n, PZ_E_VERIFY, err, "slot %s is given twice", operand);
            if (at > PZ_MAX_SLOTS && n->args.at[at - 1 - PZ_MAX_SLOTS].name)
                return pz_node_fail(n, PZ_E_VERIFY, err, "more than %d slots are given", PZ_MAX_SLOTS);
            arg.name = pz_arena_strdup(&n->func->graph->arena, operand);
            if (!arg.name) return PZ_NOMEM(err);
        } else {
            while (at > 0 && n->args.at[at - 1].name) at--;
        }
    } else {
        int index = operand ? pz_op_operand_index(n->op, operand) : -1;
        if (index < 0)
            return pz_node_fail(n, PZ_E_TYPE, err, "no operand '%s'; %s has %s", operand ? operand : "",
                                pz_op_text(n->op), pz_schema(n->op)->operand_text);
        if (pz_node_arg(n, operand)) return pz_node_fail(n, PZ_E_VERIFY, err, "operand %s is given twice", operand);
        arg.name = pz_schema(n->op)->operands[index].name;
        while (at > 0 && pz_op_operand_index(n->op, n->args.at[at - 1].name) > index) at--;
    }
    PZ_TRY(pz_push(&n->args, arg, err));
    memmove(n->args.at + at + 1, n->args.at + at, (size_t)(n->args.n - 1 - at) * sizeof *n->args.at);
    n->args.at[at] = arg;
    return PZ_OK;
}

pz_status pz_node_add_value(pz_node *n, const char *operand, pz_value *v, const char *slice, pz_error *err) {
    pz_arg arg = {.kind = PZ_ARG_VALUE, .value = v};
    if (slice) {
        PZ_TRY(pz_name_check(slice, false, "slice", err));
        arg.slice = pz_arena_strdup(&n->func->graph->arena, slice);
        if (!arg.slice) return PZ_NOMEM(err);
    }
    return add_arg(n, arg, operand, err);
}

pz_status pz_node_add_weight(pz_node *n, const char *operand, pz_weight *w, pz_error *err) {
    return add_arg(n, (pz_arg){.kind = PZ_ARG_WEIGHT, .weight = w}, operand, err);
}

/* ---- attributes ---- */
static pz_status set_attr(pz_node *n, const char *name, pz_attr attr, pz_error *err) {
    const pz_attr_spec *spec = pz_schema_attr(n->op, name);
    if (!spec)
        return pz_node_fail(n, PZ_E_TYPE, err, "no attribute '%s'; %s has %s", name, pz_op_text(n->op),
                            pz_schema(n->op)->n_attrs ? pz_schema(n->op)->attr_text : "none");
    if (spec->type != attr.type)
        return pz_node_fail(n, PZ_E_TYPE, err, "attribute %s is of type %s, not %s", name,
                            pz_attr_type_text(spec->type), pz_attr_type_text(attr.type));
    attr.name = spec->name;
    for (int i = 0; i < n->attrs.n; i++)
        if (strcmp(n->attrs.at[i].name, name) == 0) {
            n->attrs.at[i] = attr;
            return PZ_OK;
        }
    return pz_push(&n->attrs, attr, err);
}

static void drop_attr(pz_node *n, const char *name) {
    for (int i = 0; i < n->attrs.n; i++)
        if (strcmp(n->attrs.at[i].name, name) == 0) {
            memmove(n->attrs.at + i, n->attrs.at + i + 1, (size_t)(n->attrs.n - 1 - i) * sizeof *n->attrs.at);
            n->attrs.n--;
            return;
        }
}

pz_status pz_node_set_int(pz_node *n, const char *name, int64_t v, pz_error *err) {
    return set_attr(n, name, (pz_attr){.type = PZ_ATTR_INT, .i = v}, err);
}

pz_status pz_node_set_float(pz_node *n, const char *name, double v, pz_error *err) {
    if (!isfinite(v)) return pz_node_fail(n, PZ_E_INVAL, err, "attribute %s must be finite", name);
    return set_attr(n, name, (pz_attr){.type = PZ_ATTR_FLOAT, .f = v}, err);
}

pz_status pz_node_set_str(pz_node *n, const char *name, const char *v, pz_error *err) {
    const pz_attr_spec *spec = pz_schema_attr(n->op, name);
    if (!*v && spec && spec->type == PZ_ATTR_STR && !spec->required && !*spec->s) {
        drop_attr(n, name);
        return PZ_OK;
    }
    PZ_TRY(pz_name_check(v, false, name, err));
    char *copy = pz_arena_strdup(&n->func->graph->arena, v);
    if (!copy) return PZ_NOMEM(err);
    return set_attr(n, name, (pz_attr){.type = PZ_ATTR_STR, .s = copy}, err);
}

pz_status pz_node_set_strs(pz_node *n, const char *name, const char *const *v, int count, pz_error *err) {
    if (count < 0 || count > PZ_MAX_SLOTS)
        return pz_node_fail(n, PZ_E_INVAL, err, "attribute %s has more than %d words", name, PZ_MAX_SLOTS);
    pz_arena *a = &n->func->graph->arena;
    const char **copy = pz_arena_alloc(a, (size_t)count * sizeof *copy);
    if (!copy) return PZ_NOMEM(err);
    for (int i = 0; i < count; i++) {
        PZ_TRY(pz_name_check(v[i], false, name, err));
        if (!(copy[i] = pz_arena_strdup(a, v[i]))) return PZ_NOMEM(err);
    }
    return set_attr(n, name, (pz_attr){.type = PZ_ATTR_STRS, .strs = copy, .n_strs = count}, err);
}

pz_status pz_node_set_dtype(pz_node *n, const char *name, pz_dtype v, pz_error *err) {
    return set_attr(n, name, (pz_attr){.type = PZ_ATTR_DTYPE, .dt = v}, err);
}

/* ---- reading ---- */
const pz_arg *pz_node_arg(const pz_node *n, const char *operand) {
    for (int i = 0; i < n->args.n; i++)
        if (n->args.at[i].name && strcmp(n->args.at[i].name, operand) == 0) return &n->args.at[i];
    return NULL;
}

pz_value *pz_node_arg_value(const pz_node *n, const char *operand) {
    const pz_arg *a = pz_node_arg(n, operand);
    return a ? a->value : NULL;
}

pz_weight *pz_node_arg_weight(const pz_node *n, const char *operand) {
    const pz_arg *a = pz_node_arg(n, operand);
    return a ? a->weight : NULL;
}

const pz_attr *pz_node_attr(const pz_node *n, const char *name) {
    for (int i = 0; i < n->attrs.n; i++)
        if (strcmp(n->attrs.at[i].name, name) == 0) return &n->attrs.at[i];
    return NULL;
}

int64_t pz_node_int(const pz_node *n, const char *name) {
    const pz_attr *a = pz_node_attr(n, name);
    if (a) return a->i;
    const pz_attr_spec *spec = pz_schema_attr(n->op, name);
    return spec ? spec->i : 0;
}

double pz_node_float(const pz_node *n, const char *name) {
    const pz_attr *a = pz_node_attr(n, name);
    if (a) return a->f;
    const pz_attr_spec *spec = pz_schema_attr(n->op, name);
    return spec ? spec->f : 0;
}

const char *pz_node_str(const pz_node *n, const char *name) {
    const pz_attr *a = pz_node_attr(n, name);
    if (a) return a->s ? a->s : "";
    const pz_attr_spec *spec = pz_schema_attr(n->op, name);
    return spec ? spec->s : "";
}

int pz_strs_find(const pz_attr *list, const char *s) {
    for (int i = 0; list && i < list->n_strs; i++)
        if (strcmp(list->strs[i], s) == 0) return i;
    return -1;
}

pz_value *pz_node_result(const pz_node *n, const char *result) {
    const pz_op_schema *s = pz_schema(n->op);
    for (int i = 0; i < s->n_results; i++)
        if (strcmp(s->results[i].name, result) == 0) return i < n->results.n ? n->results.at[i] : NULL;
    return NULL;
}

bool pz_node_has(const pz_node *n, unsigned traits) {
    return (pz_op_traits(n->op) & traits) == traits;
}

int pz_node_position(const pz_node *n) {
    for (int i = 0; i < n->func->nodes.n; i++)
        if (n->func->nodes.at[i] == n) return i;
    return -1;
}

/* ---- changing ---- */
int pz_value_use_count(const pz_func *f, const pz_value *v) {
    int uses = 0;
    for (int i = 0; i < f->nodes.n; i++)
        for (int j = 0; j < f->nodes.at[i]->args.n; j++) uses += f->nodes.at[i]->args.at[j].value == v;
    for (int i = 0; i < f->returns.n; i++) uses += f->returns.at[i] == v;
    return uses;
}

void pz_func_replace_uses(pz_func *f, pz_value *from, pz_value *to) {
    for (int i = 0; i < f->nodes.n; i++)
        for (int j = 0; j < f->nodes.at[i]->args.n; j++)
            if (f->nodes.at[i]->args.at[j].value == from) f->nodes.at[i]->args.at[j].value = to;
    for (int i = 0; i < f->returns.n; i++)
        if (f->returns.at[i] == from) f->returns.at[i] = to;
}

pz_status pz_node_remove(pz_node *n, pz_error *err) {
    pz_func *f = n->func;
    for (int i = 0; i < n->results.n; i++) {
        const pz_value *v = n->results.at[i];
        int uses = pz_value_use_count(f, v);
        if (uses) return pz_node_fail(n, PZ_E_VERIFY, err, "cannot be removed: %%%s still has %d uses", v->name, uses);
    }
    int at = pz_node_position(n);
    if (at < 0) return pz_node_fail(n, PZ_E_VERIFY, err, "cannot be removed: not in its function");
    /* Replacing the object of a name that is there needs no memory. */
    for (int i = 0; i < n->results.n; i++)
        if (pz_func_find_value(f, n->results.at[i]->name) == n->results.at[i])
            pz_names_put(&f->values, &f->graph->arena, n->results.at[i]->name, NULL);
    memmove(f->nodes.at + at, f->nodes.at + at + 1, (size_t)(f->nodes.n - 1 - at) * sizeof *f->nodes.at);
    f->nodes.n--;
    free_node_vectors(n);
    return PZ_OK;
}
