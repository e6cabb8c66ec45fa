/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce -> add -> rms_norm becomes fused_allreduce_rmsnorm, add -> rms_norm becomes add_rms_norm.
 *
 * Both give the normalised y and the sum r, which replaces the add's result. They read x and res as f32, round the sum
 * to r's dtype, and normalise the rounded r. So the bits stay the same, but for one case, if a match has
 *   - the sum in the residual's dtype: the residual stream keeps its dtype;
 *   - the norm's result in the same dtype: the fused ops have one dtype for both results;
 *   - an all_reduce whose result is f32, or has its operand's dtype, and that only the add reads.
 * The case is an all_reduce from bf16 to bf16 over several ranks: it rounds the sum over them, and the fused op, which
 * adds it to the residual in f32, does not. Both pipelines fuse, so that prezero changes no bit there either. */
#include "pass/pass.h"

typedef struct match {
    pz_node *norm, *add, *all_reduce; /* all_reduce may be NULL */
    pz_value *sum, *x, *res;
} match;

static pz_node *def_of(const pz_value *v, pz_op op) {
    return v && v->def && v->def->op == op ? v->def : NULL;
}

static bool same_shape(const pz_type *a, const pz_type *b) {
    pz_type t = *b;
    t.dt = a->dt;
    return pz_type_equal(a, &t);
}

/* May `res` be the residual that makes `sum`? */
static bool is_residual(const pz_value *res, const pz_value *x, const pz_value *sum) {
    return pz_type_equal(&res->type, &sum->type) && same_shape(&x->type, &sum->type);
}

static bool match_all_reduce(pz_value *term, pz_value *res, match *m) {
    pz_node *ar = def_of(term, PZ_OP_ALL_REDUCE);
    if (!ar || term == res || pz_value_use_count(ar->func, term) != 1) return false;
    pz_value *x = pz_node_arg_value(ar, "x");
    bool rounds = term->type.dt != PZ_DT_F32 && term->type.dt != x->type.dt;
    if (rounds || !is_residual(res, x, m->sum)) return false;
    m->all_reduce = ar;
    m->x = x;
    m->res = res;
    return true;
}

/* The first operand is x and the second the residual, unless only the other order fits. */
static bool match_add(pz_value *a, pz_value *b, match *m) {
    bool in_order = is_residual(b, a, m->sum);
    if (!in_order && !is_residual(a, b, m->sum)) return false;
    m->x = in_order ? a : b;
    m->res = in_order ? b : a;
    return true;
}

static bool match_norm(pz_node *norm, match *m) {
    *m = (match){.norm = norm, .sum = pz_node_arg_value(norm, "x")};
    m->add = def_of(m->sum, PZ_OP_ADD);
    /* a norm that already carries a fill must not move before its buffer */
    if (!m->add || pz_node_arg(norm, "zero_fill")) return false;
    if (pz_node_result(norm, "y")->type.dt != m->sum->type.dt) return false;
    pz_value *a = pz_node_arg_value(m->add, "a"), *b = pz_node_arg_value(m->add, "b");
    return match_all_reduce(a, b, m) || match_all_reduce(b, a, m) || match_add(a, b, m);
}

/* Where the norm stands, or where the add stands if the sum is read before the norm. */
static int position_for(const match *m, int norm_at) {
    const pz_func *f = m->norm->func;
    int add_at = pz_node_position(m->add);
    for (int i = add_at + 1; i < norm_at; i++)
        for (int j = 0; j < f->nodes.at[i]->args.n; j++)
            if (f->nodes.at[i]->args.at[j].value == m->sum) return add_at;
    return norm_at;
}

/* The only result of `from` becomes the next result of `to`: its users and its name stay. */
static pz_status move_result(pz_node *from, pz_node *to, pz_error *err) {
    pz_value *v = from->results.at[0];
    PZ_TRY(pz_push(&to->results, v, err));
    from->results.n = 0;
    v->def = to;
    v->index = to->results.n - 1;
    return PZ_OK;
}

static pz_status fuse(const match *m, int norm_at, pz_error *err) {
    pz_dtype y = pz_node_result(m->norm, "y")->type.dt;
    const pz_attr *eps = pz_node_attr(m->norm, "eps");
    pz_node *n;
    PZ_TRY(pz_node_new(m->norm->func, position_for(m, norm_at),
                       m->all_reduce ? PZ_OP_FUSED_ALLREDUCE_RMSNORM : PZ_OP_ADD_RMS_NORM, &n, err));
    PZ_TRY(pz_node_add_value(n, "x", m->x, NULL, err));
    PZ_TRY(pz_node_add_value(n, "res", m->res, NULL, err));
    PZ_TRY(pz_node_add_weight(n, "w", pz_node_arg_weight(m->norm, "w"), err));
    if (eps) PZ_TRY(pz_node_set_float(n, "eps", eps->f, err));
    PZ_TRY(move_result(m->norm, n, err));
    PZ_TRY(move_result(m->add, n, err));
    PZ_TRY(pz_node_infer(n, NULL, err));
    if (pz_node_result(n, "y")->type.dt != y) { /* not the default of the new operands */
        PZ_TRY(pz_node_set_dtype(n, "out", y, err));
        PZ_TRY(pz_node_infer(n, NULL, err));
    }
    PZ_TRY(pz_node_remove(m->norm, err));
    PZ_TRY(pz_node_remove(m->add, err));
    return m->all_reduce ? pz_node_remove(m->all_reduce, err) : PZ_OK;
}

static pz_status fuse_in(pz_func *f, int *changed, pz_error *err) {
    for (int i = 0; i < f->nodes.n; i++) {
        match m;
        if (f->nodes.at[i]->op != PZ_OP_RMS_NORM || !match_norm(f->nodes.at[i], &m)) continue;
        PZ_TRY(fuse(&m, i, err));
        /* one node came, two or three went, all at or before i */
        i -= m.all_reduce ? 2 : 1;
        (*changed)++;
    }
    return PZ_OK;
}

pz_status pz_pass_fuse_allreduce_rmsnorm(pz_graph *g, pz_pass_report *report, int *changed, pz_error *err) {
    (void)report;
    for (int i = 0; i < g->funcs.n; i++)
        if (!g->funcs.at[i]->opaque) PZ_TRY(fuse_in(g->funcs.at[i], changed, err));
    return PZ_OK;
}
