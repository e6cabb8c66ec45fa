/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/explain.h"
#include "plan/cost.h"

/* Donors of one bucket that differ in nothing but their layer. */
typedef struct fill_group {
    const pz_fill *first;
    int count;
} fill_group;
typedef PZ_VEC(fill_group) fill_groups;

/* "input_layernorm" of "layers.3.input_layernorm" */
static const char *role(const char *weight) {
    const char *dot = strrchr(weight, '.');
    return dot ? dot + 1 : weight;
}

static bool alike(const pz_plan *p, const pz_fill *a, const pz_fill *b) {
    if (p->launches.at[a->donor].op != p->launches.at[b->donor].op || a->n_slices != b->n_slices ||
        a->n_active != b->n_active || !pz_streq(role(pz_explain_donor(p, a)), role(pz_explain_donor(p, b))))
        return false;
    for (int i = 0; i < a->n_slices; i++) {
        const pz_slice *s = &p->slices.at[a->first_slice + i], *t = &p->slices.at[b->first_slice + i];
        if (!pz_streq(s->name, t->name) || s->active != t->active || s->filled != t->filled || s->bytes != t->bytes)
            return false;
    }
    return true; /* the gate's numbers follow from op, rows and bytes */
}

static pz_status group_fills(const pz_plan *p, fill_groups *groups, pz_error *err) {
    for (int i = 0; i < p->fills.n; i++) {
        int g = 0;
        while (g < groups->n && !alike(p, groups->at[g].first, &p->fills.at[i])) g++;
        if (g == groups->n) PZ_TRY(pz_push(groups, ((fill_group){&p->fills.at[i], 0}), err));
        groups->at[g].count++;
    }
    return PZ_OK;
}

/* Names of the first `level` active slices. */
static void add_slices(pz_str *b, const pz_plan *p, const pz_fill *f, int level) {
    for (int s = f->first_slice, n = 0; n < level; s++)
        if (p->slices.at[s].active) pz_str_addf(b, "%s%s", n++ ? " | " : "", p->slices.at[s].name);
}

static void add_group(pz_str *b, const pz_plan *p, const fill_group *g) {
    const pz_fill *f = g->first;
    const char *weight = pz_explain_donor(p, f), *op = pz_op_text(p->launches.at[f->donor].op);
    pz_str_addf(b, "  %d x %s (%s)", g->count, role(weight), op);
    if (f->gates.n)
        pz_str_addf(b, ": %d of %d units idle, donor %.2f us", f->gates.at[0].idle_units, p->device.units,
                    f->gates.at[0].donor_us);
    pz_str_addf(b, "; level %d of %d, %lld bytes each\n", f->level, f->n_active, (long long)f->bytes);
    int64_t bytes = 0;
    for (int i = 0, s = f->first_slice; i < f->gates.n; s++) {
        if (!p->slices.at[s].active) continue;
        bytes += p->slices.at[s].bytes;
        const pz_gate_result *r = &f->gates.at[i++];
        pz_str_addf(b, "    %c %d  %10lld bytes  fill %7.3f us  adds %7.3f us  replaces %7.3f us  %-6s  ",
                    i == f->level ? '*' : ' ', i, (long long)bytes, r->fill_us, r->added_us, r->replaced_us,
                    pz_gate_text(r->verdict));
        add_slices(b, p, f, i);
        pz_str_add(b, "\n");
    }
    for (int s = f->first_slice; s < f->first_slice + f->n_slices; s++) {
        const pz_slice *sl = &p->slices.at[s];
        if (!sl->active) pz_str_addf(b, "      %s: %s\n", sl->name, pz_slice_inactive_reason(p, sl));
    }
}

static void add_gemm(pz_str *b, const pz_plan *p, const pz_explained_launch *g) {
    const pz_launch *la = g->first;
    pz_gemm_shape s = pz_launch_shape(p, la);
    bool on = la->strategy == PZ_ZERO_PREZERO;
    pz_str_addf(b, "  %d x %s %lldx%lld: %s, ", g->count, la->role, (long long)s.n, (long long)s.k,
                pz_strategy_text(la->strategy));
    if (la->gemm.family == PZ_GEMM_DEFAULT)
        pz_str_addf(b, "split %d", la->gemm.split);
    else
        pz_gemm_config_text(&la->gemm, b);
    if (la->choices.tuned)
        pz_str_addf(b, "; tuned, %.2f us with a zeroed output, %.2f us without%s", la->choices.on.us,
                    la->choices.off.us, on ? "" : " (taken)");
    pz_str_add(b, "\n");
}

static void add_collective(pz_str *b, const pz_plan *p, const pz_explained_launch *g) {
    const pz_donor *d = &g->first->donor;
    pz_str_addf(b, "  %d x %s of %lld columns: %s", g->count, pz_op_text(g->first->op),
                (long long)pz_explain_columns(p, g->first), pz_collective_text(d->kind));
    if (d->kind != PZ_COLLECTIVE_NCCL) pz_str_addf(b, " (one step up to %d rows)", d->one_shot);
    pz_str_addf(b, ", %d block%s", d->blocks, d->blocks == 1 ? "" : "s");
    if (d->blocks != d->m) pz_str_addf(b, " for %d row%s", d->m, d->m == 1 ? "" : "s");
    pz_str_add(b, "\n");
}

typedef void (*add_fn)(pz_str *b, const pz_plan *p, const pz_explained_launch *g);
static pz_status add_launches(pz_str *b, const pz_plan *p, pz_explain_fn find, add_fn add, pz_error *err) {
    pz_explained_launches all = {0};
    pz_status st = find(p, &all, err);
    for (int i = 0; i < all.n && st == PZ_OK; i++) add(b, p, &all.at[i]);
    pz_vec_free(&all);
    return st;
}

static pz_status add_bucket(pz_str *b, const pz_plan *p, bool with_plan, pz_error *err) {
    int riders = 0;
    for (int i = 0; i < p->fills.n; i++) riders += p->fills.at[i].level > 0;
    pz_str_addf(b, "m = %d: %d launches, arena %lld bytes; %d rider%s zero%s %lld bytes; proven: %d obligations\n",
                p->m, p->launches.n, (long long)p->arena_bytes, riders, riders == 1 ? "" : "s", riders == 1 ? "s" : "",
                (long long)p->fill_bytes, p->proven);
    fill_groups groups = {0};
    pz_status st = group_fills(p, &groups, err);
    for (int i = 0; i < groups.n && st == PZ_OK; i++) add_group(b, p, &groups.at[i]);
    pz_vec_free(&groups);
    if (st == PZ_OK) st = add_launches(b, p, pz_explain_collectives, add_collective, err);
    if (st == PZ_OK) st = add_launches(b, p, pz_explain_gemms, add_gemm, err);
    if (st != PZ_OK || !with_plan) return st;
    char *text;
    PZ_TRY(pz_plan_text(p, &text, err));
    pz_str_addf(b, "\n%s\n", text);
    pz_free(text);
    return PZ_OK;
}

static pz_status add_graph(pz_str *b, const char *title, const pz_graph *g, pz_error *err) {
    char *text;
    PZ_TRY(pz_graph_print(g, &text, err));
    pz_str_addf(b, "---- %s ----\n%s\n", title, text);
    pz_free(text);
    return PZ_OK;
}

static int count_nodes(const pz_graph *g) {
    int n = 0;
    for (int i = 0; i < g->funcs.n; i++) n += g->funcs.at[i]->nodes.n;
    return n;
}

static pz_status add_all(pz_str *b, const pz_explained *x, const pz_explain_options *opts, pz_error *err) {
    if (opts->with_graph) PZ_TRY(add_graph(b, "graph before", x->before, err));
    if (opts->with_graph) PZ_TRY(add_graph(b, "graph after", x->after, err));
    pz_str_addf(b, "%s: %d functions, %d weights, %d nodes; after the passes %d nodes\n", x->before->name,
                x->before->funcs.n, x->before->weights.n, count_nodes(x->before), count_nodes(x->after));
    char *report;
    PZ_TRY(pz_pass_report_text(&x->report, &report, err));
    pz_str_addf(b, "%s\n", report);
    pz_free(report);
    pz_str_addf(b, "buckets on %s (%d units); * is the level that is filled; times by ", x->device.name,
                x->device.units);
    pz_explain_source(x, b);
    pz_str_add(b, "\n");
    for (int i = 0; i < x->plans.n; i++) PZ_TRY(add_bucket(b, x->plans.at[i], opts->with_plan, err));
    pz_str_addf(
        b,
        "m > %d, and prompt processing: no rider and no buffer; at m = %d arena %lld bytes; proven: %d obligations\n",
        x->plans.at[x->plans.n - 1]->m, x->above->m, (long long)x->above->arena_bytes, x->above->proven);
    return add_launches(b, x->above, pz_explain_collectives, add_collective, err);
}

pz_status pz_explain_text(const pz_explained *x, const pz_explain_options *opts, char **out, pz_error *err) {
    pz_str b = {0};
    pz_status st = add_all(&b, x, opts, err);
    if (st == PZ_OK) st = pz_str_take(&b, out, err);
    pz_str_free(&b);
    return st;
}
