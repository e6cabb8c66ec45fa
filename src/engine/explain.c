/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/explain.h"

#include "base/knobs.h"

static const int default_batches[] = {1, 2, 4, 8, 16, 32, 64, 128};

const char *pz_explain_donor(const pz_plan *p, const pz_fill *f) {
    const pz_launch *la = &p->launches.at[f->donor];
    for (int i = 0; i < PZ_MAX_OPERANDS; i++)
        if (la->in[i].weight) return la->in[i].weight->name;
    return "";
}

/* Which launches are explained, and which of them together. */
typedef struct grouping {
    bool (*belongs)(const pz_launch *la);
    bool (*same)(const pz_plan *p, const pz_launch *a, const pz_launch *b);
} grouping;

static pz_status group(const pz_plan *p, const grouping *by, pz_explained_launches *out, pz_error *err) {
    for (int i = 0; i < p->launches.n; i++) {
        const pz_launch *la = &p->launches.at[i];
        if (!by->belongs(la)) continue;
        int g = 0;
        while (g < out->n && !by->same(p, out->at[g].first, la)) g++;
        if (g == out->n) PZ_TRY(pz_push(out, ((pz_explained_launch){la, 0}), err));
        out->at[g].count++;
    }
    return PZ_OK;
}

static bool is_gemm(const pz_launch *la) {
    return la->op == PZ_OP_GEMM;
}

static bool same_gemm(const pz_plan *p, const pz_launch *a, const pz_launch *b) {
    pz_gemm_shape s = pz_launch_shape(p, a), t = pz_launch_shape(p, b);
    const pz_gemm_config *c = &a->gemm, *d = &b->gemm;
    return pz_streq(a->role, b->role) && s.n == t.n && s.k == t.k && s.weight == t.weight && s.accum == t.accum &&
           a->strategy == b->strategy && c->family == d->family && c->tile_n == d->tile_n && c->split == d->split &&
           c->warps == d->warps && c->stages == d->stages && c->depth == d->depth;
}

pz_status pz_explain_gemms(const pz_plan *p, pz_explained_launches *out, pz_error *err) {
    return group(p, &(grouping){is_gemm, same_gemm}, out, err);
}

int64_t pz_explain_columns(const pz_plan *p, const pz_launch *la) {
    return p->places.at[la->out[0]].type.dim[1];
}

static bool is_collective(const pz_launch *la) {
    return la->donor.kind != PZ_COLLECTIVE_NONE;
}

static bool same_collective(const pz_plan *p, const pz_launch *a, const pz_launch *b) {
    return a->op == b->op && a->donor.kind == b->donor.kind && a->donor.blocks == b->donor.blocks &&
           a->donor.one_shot == b->donor.one_shot && pz_explain_columns(p, a) == pz_explain_columns(p, b);
}

pz_status pz_explain_collectives(const pz_plan *p, pz_explained_launches *out, pz_error *err) {
    return group(p, &(grouping){is_collective, same_collective}, out, err);
}

void pz_explain_source(const pz_explained *x, pz_str *b) {
    const pz_tuned *t = x->tuned;
    if (!t || t->stale) pz_str_addf(b, "the model of %s", x->device.name);
    if (!t) {
        pz_str_add(b, ", as there is no tuned table");
        return;
    }
    if (t->stale)
        pz_str_addf(b,
                    ", as all %d rows of the tuned table (%s) are stale: measured on %s (%d units) with kernels %s, "
                    "here are %d units and kernels %s",
                    t->stale, t->source, t->device, t->units, t->kernels, x->device.units, PZ_GEMM_KERNEL_VERSION);
    else
        pz_str_addf(b, "tuned table of %s (%s, %s, kernels %s, %d rows)", t->device, t->source, t->date, t->kernels,
                    t->rows.n);
}

static pz_status read_options(const pz_explain_options *opts, pz_explain_options *o, pz_error *err) {
    *o = (pz_explain_options){0};
    if (opts) {
        if (opts->size != sizeof *o)
            return pz_fail(err, PZ_E_INVAL, "pz_explain: options.size must be sizeof(pz_explain_options), %zu",
                           sizeof *o);
        *o = *opts;
    }
    if (!o->device) o->device = "h200";
    if (!o->batches) {
        o->batches = default_batches;
        o->n_batches = sizeof default_batches / sizeof default_batches[0];
    }
    if (o->ranks < 0) return pz_fail(err, PZ_E_INVAL, "pz_explain: ranks is %d, must be 0 or more", o->ranks);
    if (o->n_batches < 1)
        return pz_fail(err, PZ_E_INVAL, "pz_explain: n_batches is %d, must be 1 or more", o->n_batches);
    for (int i = 0; i < o->n_batches; i++)
        if (o->batches[i] < 1 || (i && o->batches[i] <= o->batches[i - 1]))
            return pz_fail(err, PZ_E_INVAL,
                           "pz_explain: batch %d (number %d) must be 1 or more and larger than the one before",
                           o->batches[i], i + 1);
    if (o->batches[o->n_batches - 1] > INT32_MAX / 2)
        return pz_fail(err, PZ_E_RANGE, "pz_explain: batch %d is too large", o->batches[o->n_batches - 1]);
    return PZ_OK;
}

/* Gate and strategy as the environment sets them for the engine. */
static pz_status plan_options(pz_plan_options *po, pz_error *err) {
    const char *word;
    int index;
    PZ_TRY(pz_knob_text(PZ_KNOB_GATE, &word, err));
    PZ_TRY(pz_knob_enum_index(PZ_KNOB_GATE, word, pz_knob_info(PZ_KNOB_GATE)->env, &index, err));
    po->gate = (pz_gate_mode)index;
    PZ_TRY(pz_knob_text(PZ_KNOB_STRATEGY, &word, err));
    return pz_strategy_option(word, &po->strategy)
               ? PZ_OK
               : pz_fail(err, PZ_E_INTERNAL, "knob %s allows '%s', which is no strategy",
                         pz_knob_info(PZ_KNOB_STRATEGY)->env, word);
}

static pz_status gather(pz_explained *x, const pz_explain_options *o, pz_error *err) {
    pz_plan_options po = {0};
    PZ_TRY(plan_options(&po, err));
    PZ_TRY(pz_device_find(o->device, o->units, &x->device, err));
    PZ_TRY(pz_tuned_open(&x->device, &x->tuned, err));
    pz_device_tune(&x->device, x->tuned);
    PZ_TRY(pz_device_group(&x->device, o->ranks, err));
    po.device = x->device;
    PZ_TRY(pz_graph_clone(x->before, &x->after, err));
    PZ_TRY(pz_passes_run(x->after, NULL, &x->report, err));
    for (int i = 0; i < o->n_batches; i++) {
        PZ_TRY(pz_push(&x->plans, NULL, err));
        po.m = o->batches[i];
        PZ_TRY(pz_plan_create(x->after, &po, &x->plans.at[i], err));
    }
    po.m = 2 * o->batches[o->n_batches - 1];
    po.prefill = true;
    return pz_plan_create(x->after, &po, &x->above, err);
}

pz_status pz_explain(const pz_graph *graph, const pz_explain_options *opts, char **out, pz_error *err) {
    PZ_NEED(graph && out, "a graph and a place for the result", err);
    *out = NULL;
    pz_explain_options o;
    PZ_TRY(read_options(opts, &o, err));
    pz_explained x = {.before = graph};
    pz_status st;
    PZ_TRY_GOTO(st, gather(&x, &o, err), done);
    st = o.json ? pz_explain_json(&x, out, err) : pz_explain_text(&x, &o, out, err);
done:
    for (int i = 0; i < x.plans.n; i++) pz_plan_free(x.plans.at[i]);
    pz_vec_free(&x.plans);
    pz_plan_free(x.above);
    pz_tuned_free(x.tuned);
    pz_pass_report_free(&x.report);
    pz_graph_free(x.after);
    return st;
}
