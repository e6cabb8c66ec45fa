/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a graph well formed (docs/ir.md, "Rules"). It recomputes everything and trusts no cached state: passes may
 * have edited the graph by hand. */
#include "ir/ir_internal.h"

/* ---- calls form a DAG ---- */
typedef struct frame {
    int func, node;
} frame;

static pz_status visit(const pz_graph *g, unsigned char *state, frame *stack, int root, int *order, int *n_order,
                       pz_error *err) {
    int depth = 0;
    stack[0] = (frame){root, 0};
    state[root] = 1;
    while (depth >= 0) {
        frame *top = &stack[depth];
        const pz_func *f = g->funcs.at[top->func];
        const pz_func *callee = NULL;
        while (top->node < f->nodes.n && !(callee = f->nodes.at[top->node++]->callee)) {
        }
        if (!callee) {
            state[top->func] = 2;
            order[(*n_order)++] = top->func;
            depth--;
            continue;
        }
        const pz_node *call = f->nodes.at[top->node - 1];
        if (callee->index < 0 || callee->index >= g->funcs.n || g->funcs.at[callee->index] != callee)
            return pz_node_fail(call, PZ_E_VERIFY, err, "the function called is not in this graph");
        if (state[callee->index] == 1)
            return pz_node_fail(call, PZ_E_VERIFY, err,
                                "recursive call: @%.80s is still being called here; calls form no cycle", callee->name);
        if (state[callee->index] == 2) continue;
        state[callee->index] = 1;
        stack[++depth] = (frame){callee->index, 0};
    }
    return PZ_OK;
}

pz_status pz_graph_call_order(const pz_graph *g, int **order, pz_error *err) {
    size_t n = (size_t)g->funcs.n;
    unsigned char *state = pz_calloc(n, 1);
    frame *stack = pz_calloc(n, sizeof *stack);
    int n_order = 0;
    *order = pz_calloc(n, sizeof **order);
    pz_status st = state && stack && *order ? PZ_OK : PZ_NOMEM(err);
    for (int i = 0; st == PZ_OK && i < g->funcs.n; i++)
        if (!state[i]) st = visit(g, state, stack, i, *order, &n_order, err);
    pz_free(state);
    pz_free(stack);
    if (st != PZ_OK) {
        pz_free(*order);
        *order = NULL;
    }
    return st;
}

/* ---- one function ---- */
/* What is known of a value while its function is walked. */
typedef struct seen {
    const pz_value *value;
    const pz_node *buffer; /* for z of a donor: the buffer it zeroed */
    int uses;              /* of a buffer value */
} seen;

/* What callers need to know of a function: the GEMM behind each slot. */
typedef struct slot_gemms {
    const pz_node **gemm;
} slot_gemms;

typedef struct checker {
    const pz_graph *g;
    pz_arena arena;
    slot_gemms *funcs; /* by function index */
    const pz_func *f;
    pz_names seen;
    pz_error *err;
} checker;

static pz_status see(checker *c, const pz_value *v, const pz_node *def, int index) {
    pz_error why;
    if (pz_name_check(v->name, true, "value", &why) != PZ_OK)
        return pz_func_fail(c->f, PZ_E_VERIFY, c->err, "%.300s", why.msg);
    if (v->def != def || v->index != index)
        return pz_func_fail(c->f, PZ_E_VERIFY, c->err, "value %%%.80s does not know its definition", v->name);
    if (pz_names_find(&c->seen, v->name))
        return pz_func_fail(c->f, PZ_E_VERIFY, c->err, "value %%%.80s is defined twice; each is defined once", v->name);
    seen *s = pz_arena_alloc(&c->arena, sizeof *s);
    if (!s || !pz_names_put(&c->seen, &c->arena, v->name, s)) return PZ_NOMEM(c->err);
    s->value = v;
    return PZ_OK;
}

static seen *find_seen(const checker *c, const pz_value *v) {
    seen *s = v ? pz_names_find(&c->seen, v->name) : NULL;
    return s && s->value == v ? s : NULL;
}

static bool quantized(const pz_node *gemm) {
    const pz_weight *w = pz_node_arg_weight(gemm, "w");
    return w && !pz_dtype_is_act(w->type.dt);
}

/* zero_fill=%z: a buffer goes to one donor, and the donor's z stands for it from then on. */
static pz_status check_fill(checker *c, const pz_node *n, const pz_arg *a, seen *s) {
    const pz_node *def = a->value->def;
    if (def->op != PZ_OP_BUFFER)
        return pz_node_fail(n, PZ_E_VERIFY, c->err,
                            "%s=%%%.80s is zeroed already; expected the result of a buffer node", a->name,
                            a->value->name);
    if (s->uses++)
        return pz_node_fail(n, PZ_E_VERIFY, c->err,
                            "buffer %%%.80s is filled a second time; exactly one donor fills it", a->value->name);
    return PZ_OK;
}

/* into=%z:slice or slot=%z:slice: the slices of a zeroed buffer are used once each, in the order of its list. */
static pz_status check_slice_use(checker *c, const pz_node *n, const pz_arg *a, seen *s) {
    if (!s->buffer)
        return pz_node_fail(n, PZ_E_VERIFY, c->err,
                            "%s=%%%.80s:%.80s is not zeroed yet; expected the z result of its donor", a->name,
                            a->value->name, a->slice);
    const pz_attr *list = pz_node_attr(s->buffer, "slices");
    const pz_value *z = s->buffer->results.at[0];
    int at = pz_strs_find(list, a->slice);
    if (at < 0)
        return pz_node_fail(n, PZ_E_VERIFY, c->err, "%s=%%%.80s:%.80s: buffer %%%.80s has no such slice", a->name,
                            a->value->name, a->slice, z->name);
    if (at < s->uses)
        return pz_node_fail(n, PZ_E_VERIFY, c->err, "%s=%%%.80s:%.80s: the slice has a consumer already; each has one",
                            a->name, a->value->name, a->slice);
    if (at > s->uses)
        return pz_node_fail(n, PZ_E_VERIFY, c->err,
                            "%s=%%%.80s:%.80s: slices are used in the order of the list, expected %.80s", a->name,
                            a->value->name, a->slice, list->strs[s->uses]);
    s->uses++;
    if (n->op == PZ_OP_CALL) {
        const pz_slot *slot = pz_func_find_slot(n->callee, a->name);
        const pz_node **gemms = c->funcs[n->callee->index].gemm;
        const pz_node *gemm = gemms ? gemms[slot - n->callee->slots.at] : NULL;
        if (!gemm || !quantized(gemm)) return PZ_OK;
    } else if (!quantized(n)) {
        return PZ_OK;
    }
    return pz_node_fail(n, PZ_E_VERIFY, c->err,
                        "%s=%%%.80s:%.80s: a GEMM with quantized weights takes no zeroed output", a->name,
                        a->value->name, a->slice);
}

static pz_status check_args(checker *c, const pz_node *n) {
    for (int i = 0; i < n->args.n; i++) {
        const pz_arg *a = &n->args.at[i];
        if (a->kind == PZ_ARG_WEIGHT) {
            const pz_weight *w = a->weight;
            if (!w || w->index < 0 || w->index >= c->g->weights.n || c->g->weights.at[w->index] != w)
                return pz_node_fail(n, PZ_E_VERIFY, c->err, "operand %s is not a weight of this graph",
                                    a->name ? a->name : "");
        } else if (!find_seen(c, a->value)) {
            return pz_node_fail(n, PZ_E_VERIFY, c->err, "%%%.80s is not defined before this use in this function",
                                a->value ? a->value->name : "");
        }
    }
    return PZ_OK;
}

static pz_status check_buffers(checker *c, const pz_node *n) {
    const pz_node *filled = NULL;
    for (int i = 0; i < n->args.n; i++) {
        const pz_arg *a = &n->args.at[i];
        if (a->kind != PZ_ARG_VALUE || a->value->type.dt != PZ_DT_BUFFER) continue;
        seen *s = find_seen(c, a->value);
        if (a->slice) {
            PZ_TRY(check_slice_use(c, n, a, s));
        } else {
            PZ_TRY(check_fill(c, n, a, s));
            filled = a->value->def;
        }
    }
    for (int i = 0; filled && i < n->results.n; i++)
        if (n->results.at[i]->type.dt == PZ_DT_BUFFER) find_seen(c, n->results.at[i])->buffer = filled;
    return PZ_OK;
}

static pz_status check_types(checker *c, const pz_node *n) {
    pz_type types[PZ_MAX_RETURNS];
    char is[PZ_TYPE_TEXT], want[PZ_TYPE_TEXT];
    int count;
    PZ_TRY(pz_node_types(n, types, &count, c->err));
    if (count != n->results.n)
        return pz_node_fail(n, PZ_E_VERIFY, c->err, "%d results, expected %d", n->results.n, count);
    for (int i = 0; i < count; i++)
        if (!pz_type_equal(&types[i], &n->results.at[i]->type))
            return pz_node_fail(n, PZ_E_VERIFY, c->err, "result %%%.80s has type %s, expected %s",
                                n->results.at[i]->name, pz_type_text(&n->results.at[i]->type, is),
                                pz_type_text(&types[i], want));
    return PZ_OK;
}

static pz_status check_slot(checker *c, const pz_node *n) {
    const char *name = n->op == PZ_OP_GEMM ? pz_node_str(n, "slot") : "";
    char is[PZ_TYPE_TEXT], want[PZ_TYPE_TEXT];
    if (!*name) return PZ_OK;
    const pz_slot *slot = pz_func_find_slot(c->f, name);
    if (!slot) return pz_node_fail(n, PZ_E_VERIFY, c->err, "slot=%.80s: the function has no such slot", name);
    const pz_node **gemm = &c->funcs[c->f->index].gemm[slot - c->f->slots.at];
    if (*gemm)
        return pz_node_fail(n, PZ_E_VERIFY, c->err, "slot=%.80s: the slot has a GEMM already; each has one", name);
    if (pz_node_arg(n, "into"))
        return pz_node_fail(n, PZ_E_VERIFY, c->err, "slot=%.80s: the GEMM has into= too; expected one of them", name);
    if (!pz_type_equal(&slot->type, &n->results.at[0]->type))
        return pz_node_fail(n, PZ_E_VERIFY, c->err, "slot=%.80s: the slot has type %s, expected the result's, %s", name,
                            pz_type_text(&slot->type, is), pz_type_text(&n->results.at[0]->type, want));
    *gemm = n;
    return PZ_OK;
}

static pz_status check_node(checker *c, const pz_node *n) {
    if ((unsigned)n->op >= PZ_OP_COUNT || n->func != c->f)
        return pz_func_fail(c->f, PZ_E_VERIFY, c->err, "a node has no op, or belongs to another function");
    PZ_TRY(check_args(c, n));
    PZ_TRY(check_types(c, n));
    for (int i = 0; i < n->results.n; i++) PZ_TRY(see(c, n->results.at[i], n, i));
    PZ_TRY(check_buffers(c, n));
    return check_slot(c, n);
}

static pz_status check_signature(checker *c) {
    const pz_func *f = c->f;
    pz_error why = {0};
    pz_status st = pz_name_check(f->name, false, "function", &why);
    for (int i = 0; st == PZ_OK && i < f->params.n; i++)
        st = pz_type_check(&f->params.at[i]->type, PZ_TYPE_PARAM, &why);
    for (int i = 0; st == PZ_OK && i < f->slots.n; i++) {
        st = pz_type_check(&f->slots.at[i].type, PZ_TYPE_SLOT, &why);
        if (st == PZ_OK) st = pz_name_check(f->slots.at[i].name, false, "slot", &why);
        if (st == PZ_OK && pz_func_find_slot(f, f->slots.at[i].name) != &f->slots.at[i])
            st = pz_fail(&why, PZ_E_VERIFY, "slot %.80s is declared twice", f->slots.at[i].name);
    }
    for (int i = 0; st == PZ_OK && i < f->result_types.n; i++)
        st = pz_type_check(&f->result_types.at[i], PZ_TYPE_PARAM, &why);
    if (st != PZ_OK) return pz_func_fail(f, PZ_E_VERIFY, c->err, "%.300s", why.msg);
    if (f->slots.n > PZ_MAX_SLOTS) return pz_func_fail(f, PZ_E_VERIFY, c->err, "more than %d slots", PZ_MAX_SLOTS);
    if (f->external && (!f->opaque || f->nodes.n || f->returns.n))
        return pz_func_fail(f, PZ_E_VERIFY, c->err, "an external function is opaque and has no body");
    if (!f->external && f->result_types.n)
        return pz_func_fail(f, PZ_E_VERIFY, c->err, "only an external function declares result types");
    return PZ_OK;
}

/* Nothing is left half done: every buffer filled, every slice consumed, every slot served. */
static pz_status check_leftovers(checker *c) {
    const pz_func *f = c->f;
    for (int i = 0; i < f->nodes.n; i++)
        for (int j = 0; j < f->nodes.at[i]->results.n; j++) {
            const pz_value *v = f->nodes.at[i]->results.at[j];
            if (v->type.dt != PZ_DT_BUFFER) continue;
            const seen *s = find_seen(c, v);
            const pz_attr *list = s->buffer ? pz_node_attr(s->buffer, "slices") : NULL;
            if (list && s->uses < list->n_strs)
                return pz_node_fail(f->nodes.at[i], PZ_E_VERIFY, c->err,
                                    "slice %.80s of %%%.80s has no consumer; each slice that is filled has one",
                                    list->strs[s->uses], v->name);
            if (!list && !s->uses)
                return pz_node_fail(f->nodes.at[i], PZ_E_VERIFY, c->err, "buffer %%%.80s is filled by no donor",
                                    v->name);
        }
    for (int i = 0; !f->external && i < f->slots.n; i++)
        if (!c->funcs[f->index].gemm[i])
            return pz_func_fail(f, PZ_E_VERIFY, c->err, "slot %.80s has no GEMM; expected one with slot=%.80s",
                                f->slots.at[i].name, f->slots.at[i].name);
    return PZ_OK;
}

static pz_status check_func(checker *c, const pz_func *f) {
    c->f = f;
    c->seen = (pz_names){0};
    PZ_TRY(check_signature(c));
    if (!f->external && f->slots.n) {
        const pz_node **gemm = pz_arena_alloc(&c->arena, (size_t)f->slots.n * sizeof *gemm);
        if (!gemm) return PZ_NOMEM(c->err);
        c->funcs[f->index].gemm = gemm;
    }
    for (int i = 0; i < f->params.n; i++) PZ_TRY(see(c, f->params.at[i], NULL, i));
    for (int i = 0; i < f->nodes.n; i++) PZ_TRY(check_node(c, f->nodes.at[i]));
    for (int i = 0; i < f->returns.n; i++) {
        const pz_value *v = f->returns.at[i];
        if (!find_seen(c, v))
            return pz_func_fail(f, PZ_E_VERIFY, c->err, "returned value %d is not defined in it", i + 1);
        if (v->type.dt == PZ_DT_BUFFER)
            return pz_func_fail(f, PZ_E_VERIFY, c->err, "returns buffer %%%.80s; a buffer stays in its function",
                                v->name);
    }
    return check_leftovers(c);
}

/* ---- the graph ---- */
static pz_status check_names(checker *c) {
    const pz_graph *g = c->g;
    pz_names names = {0};
    for (int i = 0; i < g->weights.n; i++) {
        pz_weight *w = g->weights.at[i];
        pz_error why = {0};
        pz_status st = pz_name_check(w->name, false, "weight", &why);
        if (st == PZ_OK) st = pz_type_check(&w->type, PZ_TYPE_WEIGHT, &why);
        if (st != PZ_OK) return pz_fail(c->err, PZ_E_VERIFY, "weight @%.80s: %.300s", w->name, why.msg);
        if (w->index != i || pz_names_find(&names, w->name))
            return pz_fail(c->err, PZ_E_VERIFY, "weight @%.80s is declared twice; names are unique", w->name);
        if (!pz_names_put(&names, &c->arena, w->name, w)) return PZ_NOMEM(c->err);
    }
    names = (pz_names){0};
    for (int i = 0; i < g->funcs.n; i++) {
        pz_func *f = g->funcs.at[i];
        if (f->graph != g || f->index != i || pz_names_find(&names, f->name))
            return pz_fail(c->err, PZ_E_VERIFY, "function @%.80s is defined twice; names are unique", f->name);
        if (!pz_names_put(&names, &c->arena, f->name, f)) return PZ_NOMEM(c->err);
    }
    return PZ_OK;
}

static pz_status check_graph(checker *c) {
    const pz_graph *g = c->g;
    if (!g->funcs.n) return pz_fail(c->err, PZ_E_VERIFY, "%.80s: no function; the first is the entry", g->name);
    PZ_TRY(check_names(c));
    if (g->funcs.at[0]->opaque)
        return pz_func_fail(g->funcs.at[0], PZ_E_VERIFY, c->err,
                            "the first function is the entry, which cannot be opaque");
    c->funcs = pz_arena_alloc(&c->arena, (size_t)g->funcs.n * sizeof *c->funcs);
    if (!c->funcs) return PZ_NOMEM(c->err);
    int *order;
    PZ_TRY(pz_graph_call_order(g, &order, c->err));
    pz_status st = PZ_OK;
    for (int i = 0; st == PZ_OK && i < g->funcs.n; i++) st = check_func(c, g->funcs.at[order[i]]);
    pz_free(order);
    return st;
}

pz_status pz_graph_verify(const pz_graph *graph, pz_error *err) {
    PZ_NEED(graph, "a graph", err);
    checker c = {.g = graph, .err = err};
    pz_status st = check_graph(&c);
    pz_arena_free(&c.arena);
    return st;
}
