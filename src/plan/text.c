/* SPDX-License-Identifier: Apache-2.0 */
#include "base/knobs.h"
#include "plan/cost.h"

/* The mode's word in the knob that sets it. */
static void add_mode(pz_str *b, pz_gate_mode mode) {
    const char *word = pz_knob_info(PZ_KNOB_GATE)->allowed;
    for (int i = 0; i < (int)mode && word; i++) {
        word = strchr(word, '|');
        if (word) word++;
    }
    if (word) pz_str_addn(b, word, strcspn(word, "|"));
}

/* "%x@1024" or, for a view of some columns, "%x@1024[512:1024 of 2112]". */
static void add_place(pz_str *b, const pz_plan *p, int place) {
    const pz_place *pl = &p->places.at[place];
    pz_str_addf(b, "%s@%lld", pl->name, (long long)pl->offset);
    if (pl->type.rank != 2 || pl->ld == pl->type.dim[1]) return;
    pz_str_addf(b, "[%lld:%lld of %lld]", (long long)pl->col, (long long)(pl->col + pl->type.dim[1]),
                (long long)pl->ld);
}

static void add_result(pz_str *b, const pz_plan *p, int place) {
    const pz_place *pl = &p->places.at[place];
    add_place(b, p, place);
    pz_str_add(b, " ");
    pz_type_print(&pl->type, b);
    if (pl->norm >= 0) pz_str_addf(b, " norm@%lld", (long long)p->places.at[pl->norm].offset);
}

static void add_gemm(pz_str *b, const pz_plan *p, const pz_launch *la) {
    pz_str_addf(b, " {%s, ", pz_accum_text(la->accum));
    if (la->gemm.family == PZ_GEMM_DEFAULT)
        pz_str_addf(b, "split %d", la->gemm.split);
    else
        pz_gemm_config_text(&la->gemm, b);
    pz_str_addf(b, ", %s", pz_strategy_text(la->strategy));
    if (la->slice >= 0)
        pz_str_addf(b, " by launch %d: %s", p->fills.at[p->slices.at[la->slice].fill].donor,
                    p->slices.at[la->slice].name);
    if (la->workspace >= 0) pz_str_addf(b, " @%lld", (long long)p->places.at[la->workspace].offset);
    pz_str_add(b, "}");
}

static void add_donor(pz_str *b, const pz_donor *d) {
    pz_str_addf(b, " {%s, %d block%s", pz_collective_text(d->kind), d->blocks, d->blocks == 1 ? "" : "s");
    if (d->blocks < d->m) pz_str_addf(b, " of %d rows", d->m);
    pz_str_add(b, "}");
}

const char *pz_slice_inactive_reason(const pz_plan *p, const pz_slice *s) {
    if (s->active) return "";
    if (s->consumer < 0) return "nobody takes it";
    return p->launches.at[s->consumer].op == PZ_OP_GEMM ? "not split, so nothing to zero"
                                                        : "the kernel behind the call is not known";
}

/* One line for the rider, one for each of its slices in the order of the levels. */
static void add_fill(pz_str *b, const pz_plan *p, const pz_fill *f) {
    pz_str_addf(b, "       rider: level %d of %d", f->level, f->n_active);
    if (f->level) pz_str_addf(b, ", zeroes [%lld, %lld)", (long long)f->offset, (long long)(f->offset + f->bytes));
    pz_str_add(b, "\n");
    int level = 0;
    for (int s = f->first_slice; s < f->first_slice + f->n_slices; s++) {
        const pz_slice *sl = &p->slices.at[s];
        pz_str_addf(b, "         %s: ", sl->name);
        if (!sl->active) {
            pz_str_addf(b, "%s\n", pz_slice_inactive_reason(p, sl));
            continue;
        }
        const pz_gate_result *g = &f->gates.at[level++];
        if (sl->filled)
            pz_str_addf(b, "[%lld, +%lld)", (long long)sl->offset, (long long)sl->bytes);
        else
            pz_str_addf(b, "%lld bytes, not filled", (long long)sl->bytes);
        pz_str_addf(
            b, " for launch %d; level %d: %s, donor %.3f us, idle %d, fill %.3f us, adds %.3f us, replaces %.3f us\n",
            sl->consumer, level, pz_gate_text(g->verdict), g->donor_us, g->idle_units, g->fill_us, g->added_us,
            g->replaced_us);
    }
}

static void add_launch(pz_str *b, const pz_plan *p, int i) {
    const pz_launch *la = &p->launches.at[i];
    pz_str_addf(b, "%5d  %c ", i, la->waits ? 'w' : '-');
    int results = 0;
    for (int k = 0; k < PZ_MAX_RESULTS; k++) {
        if (la->out[k] < 0) continue;
        pz_str_add(b, results++ ? ", " : "");
        add_result(b, p, la->out[k]);
    }
    pz_str_addf(b, "%s%s(", results ? " = " : "", la->role);
    for (int k = 0, n = 0; k < PZ_MAX_OPERANDS; k++) {
        if (la->in[k].place < 0 && !la->in[k].weight) continue;
        pz_str_add(b, n++ ? ", " : "");
        if (la->in[k].weight)
            pz_str_addf(b, "@%s", la->in[k].weight->name);
        else
            add_place(b, p, la->in[k].place);
    }
    pz_str_add(b, ")");
    if (la->op == PZ_OP_GEMM) add_gemm(b, p, la);
    if (la->donor.kind != PZ_COLLECTIVE_NONE) add_donor(b, &la->donor);
    pz_str_add(b, "\n");
    if (la->fill >= 0) add_fill(b, p, &p->fills.at[la->fill]);
}

static void add_places(pz_str *b, const pz_plan *p, const char *what, const int *places, int n) {
    pz_str_addf(b, "%s:", what);
    for (int i = 0; i < n; i++) {
        pz_str_add(b, i ? ", " : " ");
        add_result(b, p, places[i]);
    }
    pz_str_add(b, "\n");
}

pz_status pz_plan_text(const pz_plan *p, char **out, pz_error *err) {
    pz_str b = {0};
    pz_str_addf(&b, "plan of %s: %d row%s%s, device %s (%d unit%s), gate ", p->graph->name, p->m, p->m == 1 ? "" : "s",
                p->prefill ? ", no riders" : "", p->device.name, p->device.units, p->device.units == 1 ? "" : "s");
    add_mode(&b, p->gate_mode);
    pz_str_add(&b, "\n");
    pz_str_addf(&b, "%d launches, arena %lld bytes, zeroed by riders %lld bytes\n", p->launches.n,
                (long long)p->arena_bytes, (long long)p->fill_bytes);
    pz_str_add(&b, "w: waits for the launches before it; @: byte in the arena\n");
    add_places(&b, p, "inputs", p->inputs.at, p->inputs.n);
    for (int i = 0; i < p->launches.n; i++) add_launch(&b, p, i);
    add_places(&b, p, "outputs", p->outputs.at, p->outputs.n);
    if (p->proven)
        pz_str_addf(&b, "proven: %d obligations\n", p->proven);
    else
        pz_str_add(&b, "not proven\n");
    return pz_str_take(&b, out, err);
}
