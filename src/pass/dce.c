/* SPDX-License-Identifier: Apache-2.0 */
/* Dead code: PURE nodes whose results nobody uses, then slices and fills without consumer, then functions that the
 * entry does not reach, then weights that no node names. Opaque functions are not looked into, only removed whole. */
#include "pass/pass.h"

/* How often each value of a function is used, found by binary search. */
typedef struct use_count {
    const pz_value *value;
    int uses;
} use_count;
typedef PZ_VEC(use_count) use_table;

static int by_value(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const use_count *)a)->value, y = (uintptr_t)((const use_count *)b)->value;
    return (x > y) - (x < y);
}

static int *uses_of(use_table *t, const pz_value *v) {
    use_count key = {.value = v};
    use_count *hit = t->n ? bsearch(&key, t->at, (size_t)t->n, sizeof key, by_value) : NULL;
    return hit ? &hit->uses : NULL;
}

static void add_uses(use_table *t, const pz_value *v, int by) {
    int *uses = v ? uses_of(t, v) : NULL; /* NULL for a parameter: those are never removed */
    if (uses) *uses += by;
}

static void add_arg_uses(use_table *t, const pz_node *n, int by) {
    for (int i = 0; i < n->args.n; i++) add_uses(t, n->args.at[i].value, by);
}

static pz_status count_uses(const pz_func *f, use_table *t, pz_error *err) {
    for (int i = 0; i < f->nodes.n; i++)
        for (int j = 0; j < f->nodes.at[i]->results.n; j++)
            PZ_TRY(pz_push(t, ((use_count){f->nodes.at[i]->results.at[j], 0}), err));
    if (t->n) qsort(t->at, (size_t)t->n, sizeof *t->at, by_value);
    for (int i = 0; i < f->nodes.n; i++) add_arg_uses(t, f->nodes.at[i], 1);
    for (int i = 0; i < f->returns.n; i++) add_uses(t, f->returns.at[i], 1);
    return PZ_OK;
}

static bool is_dead(use_table *t, const pz_node *n) {
    /* what serves a slot belongs to the signature of its function */
    if (!pz_node_has(n, PZ_TRAIT_PURE) || pz_node_attr(n, "slot")) return false;
    for (int i = 0; i < n->results.n; i++)
        if (*uses_of(t, n->results.at[i]) > 0) return false;
    return true;
}

static pz_status remove_nodes(pz_func *f, int *changed, pz_error *err) {
    use_table t = {0};
    pz_status st = count_uses(f, &t, err);
    for (int i = f->nodes.n - 1; i >= 0 && st == PZ_OK; i--) {
        pz_node *n = f->nodes.at[i];
        if (!is_dead(&t, n)) continue;
        add_arg_uses(&t, n, -1);
        st = pz_node_remove(n, err);
        (*changed)++;
    }
    pz_vec_free(&t);
    return st;
}

/* The donor that fills a buffer; a well-formed graph has exactly one. */
static pz_node *donor_of(const pz_func *f, const pz_node *buffer) {
    int i = pz_node_position(buffer) + 1;
    while (pz_node_arg_value(f->nodes.at[i], "zero_fill") != buffer->results.at[0]) i++;
    return f->nodes.at[i];
}

static bool slice_used(const pz_func *f, const pz_value *z, const char *slice) {
    for (int i = 0; i < f->nodes.n; i++)
        for (int j = 0; j < f->nodes.at[i]->args.n; j++) {
            const pz_arg *a = &f->nodes.at[i]->args.at[j];
            if (a->value == z && pz_streq(a->slice, slice)) return true;
        }
    return false;
}

/* The donor goes back to what it was without a fill. */
static pz_status drop_fill(pz_node *donor, pz_node *buffer, pz_error *err) {
    pz_value *z = pz_node_result(donor, "z");
    int kept = 0;
    for (int i = 0; i < donor->args.n; i++)
        if (donor->args.at[i].value != buffer->results.at[0]) donor->args.at[kept++] = donor->args.at[i];
    donor->args.n = kept;
    donor->results.n = z->index; /* the last result, as the op table has it */
    pz_names_put(&donor->func->values, &donor->func->graph->arena, z->name, NULL); /* needs no memory */
    return pz_node_remove(buffer, err);
}

/* Takes out the slices of one buffer that no consumer names, and the fill if none is left. */
static pz_status trim_buffer(pz_func *f, pz_node *buffer, int *changed, pz_error *err) {
    pz_node *donor = donor_of(f, buffer);
    const pz_attr *slices = pz_node_attr(buffer, "slices");
    const pz_value *z = pz_node_result(donor, "z");
    PZ_VEC(const char *) used = {0};
    pz_status st = PZ_OK;
    for (int i = 0; i < slices->n_strs && st == PZ_OK; i++)
        if (slice_used(f, z, slices->strs[i])) st = pz_push(&used, slices->strs[i], err);
    int gone = slices->n_strs - used.n;
    if (st == PZ_OK && used.n == 0)
        st = drop_fill(donor, buffer, err);
    else if (st == PZ_OK && gone)
        st = pz_node_set_strs(buffer, "slices", used.at, used.n, err);
    *changed += gone;
    pz_vec_free(&used);
    return st;
}

static pz_status trim_buffers(pz_func *f, int *changed, pz_error *err) {
    for (int i = f->nodes.n - 1; i >= 0; i--)
        if (f->nodes.at[i]->op == PZ_OP_BUFFER) PZ_TRY(trim_buffer(f, f->nodes.at[i], changed, err));
    return PZ_OK;
}

/* Marks what the entry reaches. todo has room for every function: calls may nest as deep as there are functions. */
static void mark_reached(const pz_graph *g, bool *reached, int *todo) {
    int n = 0;
    todo[n++] = 0;
    reached[0] = true;
    while (n > 0) {
        const pz_func *f = g->funcs.at[todo[--n]];
        for (int i = 0; i < f->nodes.n; i++) {
            const pz_func *callee = f->nodes.at[i]->callee;
            if (!callee || reached[callee->index]) continue;
            reached[callee->index] = true;
            todo[n++] = callee->index;
        }
    }
}

static void free_func(pz_func *f) {
    for (int i = 0; i < f->nodes.n; i++) {
        pz_vec_free(&f->nodes.at[i]->args);
        pz_vec_free(&f->nodes.at[i]->results);
        pz_vec_free(&f->nodes.at[i]->attrs);
    }
    pz_vec_free(&f->params);
    pz_vec_free(&f->slots);
    pz_vec_free(&f->nodes);
    pz_vec_free(&f->returns);
    pz_vec_free(&f->result_types);
}

static pz_status remove_funcs(pz_graph *g, int *changed, pz_error *err) {
    bool *reached = pz_calloc((size_t)g->funcs.n, sizeof *reached);
    int *todo = pz_calloc((size_t)g->funcs.n, sizeof *todo);
    int kept = 0;
    if (reached && todo) mark_reached(g, reached, todo);
    pz_free(todo);
    if (!reached || !todo) {
        pz_free(reached);
        return PZ_NOMEM(err);
    }
    for (int i = 0; i < g->funcs.n; i++) {
        pz_func *f = g->funcs.at[i];
        if (!reached[i]) {
            pz_names_put(&g->func_names, &g->arena, f->name, NULL); /* needs no memory */
            free_func(f);
            (*changed)++;
            continue;
        }
        g->funcs.at[kept] = f;
        f->index = kept++;
    }
    g->funcs.n = kept;
    pz_free(reached);
    return PZ_OK;
}

static void mark_weights(const pz_func *f, bool *used) {
    for (int i = 0; i < f->nodes.n; i++)
        for (int j = 0; j < f->nodes.at[i]->args.n; j++) {
            const pz_weight *w = f->nodes.at[i]->args.at[j].weight;
            if (w) used[w->index] = true;
        }
}

static pz_status remove_weights(pz_graph *g, int *changed, pz_error *err) {
    bool *used = pz_calloc((size_t)g->weights.n + 1, sizeof *used);
    if (!used) return PZ_NOMEM(err);
    for (int i = 0; i < g->funcs.n; i++) mark_weights(g->funcs.at[i], used);
    int kept = 0;
    for (int i = 0; i < g->weights.n; i++) {
        pz_weight *w = g->weights.at[i];
        if (!used[i]) {
            pz_names_put(&g->weight_names, &g->arena, w->name, NULL); /* needs no memory */
            (*changed)++;
            continue;
        }
        g->weights.at[kept] = w;
        w->index = kept++;
    }
    g->weights.n = kept;
    pz_free(used);
    return PZ_OK;
}

pz_status pz_pass_dce(pz_graph *g, pz_pass_report *report, int *changed, pz_error *err) {
    (void)report;
    for (int i = 0; i < g->funcs.n; i++) {
        if (g->funcs.at[i]->opaque) continue;
        PZ_TRY(remove_nodes(g->funcs.at[i], changed, err));
        PZ_TRY(trim_buffers(g->funcs.at[i], changed, err));
    }
    PZ_TRY(remove_funcs(g, changed, err));
    return remove_weights(g, changed, err);
}
