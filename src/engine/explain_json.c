/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/explain.h"

#include "base/json.h"

/* Every builder returns NULL when out of memory. jansson's ..._new functions take NULL as an error and own their value
 * whatever comes. */
static json_t *keep(json_t *value, bool ok) {
    if (ok) return value;
    json_decref(value);
    return NULL;
}

static json_t *donor_slices(const pz_explained *x, int donor) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int c = 0; ok && c < x->report.consumers.n; c++)
        if (x->report.consumers.at[c].donor == donor)
            ok = json_array_append_new(list, json_string(x->report.consumers.at[c].name)) == 0;
    return keep(list, ok);
}

static json_t *donors(const pz_explained *x) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int i = 0; ok && i < x->report.donors.n; i++) {
        const pz_donor_note *d = &x->report.donors.at[i];
        json_t *row = json_pack("{s:s, s:s, s:s}", "func", d->func, "op", d->op, "weight", d->weight);
        ok = json_object_set_new(row, "slices", donor_slices(x, i)) == 0;
        ok = json_array_append_new(list, keep(row, ok)) == 0;
    }
    return keep(list, ok);
}

static json_t *consumers(const pz_explained *x) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int i = 0; ok && i < x->report.consumers.n; i++) {
        const pz_consumer_note *c = &x->report.consumers.at[i];
        ok = json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:i, s:b, s:s, s:s}", "func", c->func, "name",
                                                   c->name, "weight", c->weight, "via", c->via, "donor", c->donor,
                                                   "converted", c->reason == PZ_REASON_NONE, "reason",
                                                   pz_reason_text(c->reason), "detail", c->detail)) == 0;
    }
    return keep(list, ok);
}

static json_t *levels(const pz_plan *p, const pz_fill *f) {
    json_t *list = json_array();
    bool ok = list != NULL;
    int64_t bytes = 0;
    for (int i = 0, s = f->first_slice; ok && i < f->gates.n; s++) {
        if (!p->slices.at[s].active) continue;
        bytes += p->slices.at[s].bytes;
        const pz_gate_result *r = &f->gates.at[i++];
        ok = json_array_append_new(list, json_pack("{s:i, s:I, s:s, s:f, s:f, s:f, s:f, s:i}", "slices", i, "bytes",
                                                   (json_int_t)bytes, "verdict", pz_gate_text(r->verdict), "fill_us",
                                                   r->fill_us, "donor_us", r->donor_us, "added_us", r->added_us,
                                                   "replaced_us", r->replaced_us, "idle_units", r->idle_units)) == 0;
    }
    return keep(list, ok);
}

static json_t *slices(const pz_plan *p, const pz_fill *f) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int s = f->first_slice; ok && s < f->first_slice + f->n_slices; s++) {
        const pz_slice *sl = &p->slices.at[s];
        ok = json_array_append_new(list, json_pack("{s:s, s:b, s:b, s:I, s:s}", "name", sl->name, "active", sl->active,
                                                   "filled", sl->filled, "bytes", (json_int_t)sl->bytes, "detail",
                                                   pz_slice_inactive_reason(p, sl))) == 0;
    }
    return keep(list, ok);
}

static json_t *fill(const pz_plan *p, const pz_fill *f) {
    json_t *row = json_pack("{s:s, s:i, s:i, s:I}", "donor", pz_explain_donor(p, f), "launch", f->donor, "level",
                            f->level, "bytes", (json_int_t)f->bytes);
    bool ok = row != NULL;
    ok = ok && json_object_set_new(row, "levels", levels(p, f)) == 0;
    ok = ok && json_object_set_new(row, "slices", slices(p, f)) == 0;
    return keep(row, ok);
}

static json_t *gemm(const pz_plan *p, const pz_explained_launch *g) {
    const pz_launch *la = g->first;
    const pz_gemm_config *c = &la->gemm;
    pz_gemm_shape s = pz_launch_shape(p, la);
    json_t *row =
        json_pack("{s:s, s:i, s:I, s:I, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:b}", "role", la->role, "count", g->count,
                  "n", (json_int_t)s.n, "k", (json_int_t)s.k, "strategy", pz_strategy_text(la->strategy), "family",
                  pz_gemm_family_text(c->family), "tile_n", c->tile_n, "split", c->split, "warps", c->warps, "stages",
                  c->stages, "depth", c->depth, "tuned", la->choices.tuned);
    bool ok = row != NULL;
    if (ok && la->choices.tuned)
        ok = json_object_set_new(row, "on_us", json_real(la->choices.on.us)) == 0 &&
             json_object_set_new(row, "off_us", json_real(la->choices.off.us)) == 0;
    return keep(row, ok);
}

static json_t *collective(const pz_plan *p, const pz_explained_launch *g) {
    const pz_donor *d = &g->first->donor;
    return json_pack("{s:s, s:i, s:I, s:s, s:i, s:i}", "op", pz_op_text(g->first->op), "count", g->count, "columns",
                     (json_int_t)pz_explain_columns(p, g->first), "kernel", pz_collective_text(d->kind), "one_shot",
                     d->one_shot, "blocks", d->blocks);
}

typedef json_t *(*launch_fn)(const pz_plan *p, const pz_explained_launch *g);
static json_t *launches(const pz_plan *p, pz_explain_fn find, launch_fn row) {
    pz_explained_launches groups = {0};
    json_t *list = json_array();
    bool ok = list && find(p, &groups, NULL) == PZ_OK;
    for (int i = 0; ok && i < groups.n; i++) ok = json_array_append_new(list, row(p, &groups.at[i])) == 0;
    pz_vec_free(&groups);
    return keep(list, ok);
}

static json_t *bucket(const pz_plan *p) {
    json_t *fills = json_array();
    bool ok = fills != NULL;
    for (int i = 0; ok && i < p->fills.n; i++) ok = json_array_append_new(fills, fill(p, &p->fills.at[i])) == 0;
    fills = keep(fills, ok);
    json_t *row = json_pack("{s:i, s:i, s:I, s:I, s:i}", "m", p->m, "launches", p->launches.n, "arena_bytes",
                            (json_int_t)p->arena_bytes, "fill_bytes", (json_int_t)p->fill_bytes, "proven", p->proven);
    if (!row) {
        json_decref(fills);
        return NULL;
    }
    ok = json_object_set_new(row, "fills", fills) == 0;
    ok = ok && json_object_set_new(row, "collectives", launches(p, pz_explain_collectives, collective)) == 0;
    ok = ok && json_object_set_new(row, "gemms", launches(p, pz_explain_gemms, gemm)) == 0;
    return keep(row, ok);
}

static json_t *source(const pz_explained *x) {
    pz_str b = {0};
    char *text;
    pz_explain_source(x, &b);
    if (pz_str_take(&b, &text, NULL) != PZ_OK) return NULL;
    json_t *value = pz_utf8_valid(text, strlen(text), NULL) ? json_string(text) : json_string("a tuned table");
    pz_free(text);
    return value;
}

static json_t *explanation(const pz_explained *x) {
    /* A graph is named after its file, whose name may be any bytes. */
    const char *name = pz_utf8_valid(x->before->name, strlen(x->before->name), NULL) ? x->before->name : "";
    json_t *root = json_pack("{s:s, s:{s:s, s:i, s:i}}", "graph", name, "device", "name", x->device.name, "units",
                             x->device.units, "ranks", x->device.ranks);
    json_t *buckets = json_array();
    bool ok = root && buckets && json_object_set_new(json_object_get(root, "device"), "times_by", source(x)) == 0;
    for (int i = 0; ok && i < x->plans.n; i++) ok = json_array_append_new(buckets, bucket(x->plans.at[i])) == 0;
    buckets = keep(buckets, ok);
    if (!root) return NULL; /* then buckets is NULL too */
    ok = json_object_set_new(root, "buckets", buckets) == 0;
    ok = ok && json_object_set_new(root, "above_largest", bucket(x->above)) == 0;
    ok = ok && json_object_set_new(root, "donors", donors(x)) == 0;
    ok = ok && json_object_set_new(root, "consumers", consumers(x)) == 0;
    return keep(root, ok);
}

pz_status pz_explain_json(const pz_explained *x, char **out, pz_error *err) {
    json_t *root = explanation(x);
    if (!root) return PZ_NOMEM(err);
    pz_status st = pz_json_dump(root, out, err);
    json_decref(root);
    return st;
}
