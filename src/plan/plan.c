/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/build.h"
#include "plan/cost.h"

/* The largest level that the mode allows; gates are those of level 1..n_active. */
static int choose_level(const pz_fill *f, pz_gate_mode mode) {
    if (mode == PZ_GATE_SHUT) return 0;
    if (mode == PZ_GATE_OPEN) return f->n_active;
    int level = 0;
    for (int i = 0; i < f->gates.n; i++) {
        pz_gate_verdict v = f->gates.at[i].verdict;
        if (v == PZ_GATE_FREE || (v == PZ_GATE_PAYS && mode == PZ_GATE_AUTO)) level = i + 1;
    }
    return level;
}

pz_gemm_shape pz_launch_shape(const pz_plan *p, const pz_launch *la) {
    const pz_type *w = &la->in[1].weight->type;
    return (pz_gemm_shape){w->dim[0], w->dim[1], w->dt, la->accum, p->m};
}

static pz_status gate_fill(pz_plan *p, pz_fill *f, pz_error *err) {
    const pz_donor *donor = &p->launches.at[f->donor].donor, norm = pz_donor_of(&p->device, p->m, false, 0);
    int64_t bytes = 0, modelled_bytes = 0;
    int modelled = 0;
    double measured = 0; /* what zeroing takes by the tuned table; the rest by the gate's constants */
    for (int s = f->first_slice; s < f->first_slice + f->n_slices; s++) {
        pz_slice *sl = &p->slices.at[s];
        if (!sl->active) continue;
        sl->bytes = (int64_t)pz_align_up((size_t)p->places.at[p->launches.at[sl->consumer].out[0]].bytes, 64);
        if (__builtin_add_overflow(bytes, sl->bytes, &bytes))
            return pz_fail(err, PZ_E_RANGE, "the slices of launch %d are too large with %d rows", f->donor, p->m);
        f->n_active++;
        const pz_gemm_choices *c = &p->launches.at[sl->consumer].choices;
        if (c->tuned) /* the one with a zeroed output was measured with a rider of its own behind a norm */
            measured += c->off.us - c->on.us + pz_gate_weigh(&p->device, &norm, sl->bytes, 0).added_us;
        else
            modelled++, modelled_bytes += sl->bytes;
        double replaced = measured + pz_gate_replaced(&p->device, modelled_bytes, modelled);
        PZ_TRY(pz_push(&f->gates, pz_gate_weigh(&p->device, donor, bytes, replaced), err));
    }
    f->level = choose_level(f, p->gate_mode);
    return PZ_OK;
}

/* The buffer of a fill: its filled slices one after the other; each consumer's output becomes a view of it. Offsets
 * are relative to the buffer until the buffer has one. */
static pz_status make_buffer(pz_plan *p, int fill, pz_error *err) {
    pz_fill *f = &p->fills.at[fill];
    if (!f->level) return PZ_OK;
    const char *name = pz_arena_printf(&p->arena, "buffer %d", f->donor);
    PZ_TRY(pz_plan_add_place(p, name, (pz_type){.dt = PZ_DT_BUFFER}, f->donor, &f->place, err));
    int filled = 0;
    for (int s = f->first_slice; filled < f->level; s++) {
        pz_slice *sl = &p->slices.at[s];
        if (!sl->active) continue;
        filled++;
        sl->filled = true;
        sl->offset = f->bytes;
        f->bytes += sl->bytes;
        pz_launch *la = &p->launches.at[sl->consumer];
        la->strategy = PZ_ZERO_PREZERO;
        la->gemm = la->choices.on.config;
        la->slice = s;
        p->places.at[la->out[0]].root = f->place;
        p->places.at[la->out[0]].offset = sl->offset;
    }
    p->places.at[f->place].bytes = f->bytes;
    p->fill_bytes += f->bytes;
    return PZ_OK;
}

/* A GEMM whose output nothing zeroes: the choice without a zeroed output, or the strategy that was asked for. That one
 * takes the geometry that was chosen with it, else the one for a zeroed output, so that strategies can be compared with
 * all else equal; what is best not split stays so. */
static void choose_off(const pz_plan *p, pz_launch *la, int strategy) {
    const pz_gemm_choices *c = &la->choices;
    la->gemm = c->off.config;
    la->strategy = c->off.strategy;
    if (strategy == PZ_STRATEGY_AUTO || (int)la->strategy == strategy) return;
    bool split = c->on.config.split > 1 || c->off.config.split > 1;
    if (strategy == PZ_ZERO_NONE) {
        if (p->device.gpu) {
            pz_gemm_shape shape = pz_launch_shape(p, la);
            la->gemm = pz_gemm_model_for(&p->device, &shape, PZ_ZERO_NONE);
        }
        la->gemm.split = 1;
    } else if (split) {
        if (c->on.config.split > 1) la->gemm = c->on.config;
        la->strategy = (pz_strategy)strategy;
        return;
    }
    la->strategy = PZ_ZERO_NONE;
}

static pz_status choose_strategy(pz_plan *p, int launch, int strategy, pz_error *err) {
    pz_launch *la = &p->launches.at[launch];
    if (la->op != PZ_OP_GEMM || la->strategy == PZ_ZERO_PREZERO) return PZ_OK;
    choose_off(p, la, strategy);
    if (la->strategy != PZ_ZERO_REDUCE || p->device.gpu) return PZ_OK;
    const char *name = pz_arena_printf(&p->arena, "workspace %d", launch);
    int64_t n = la->in[1].weight->type.dim[0];
    return pz_plan_add_place(p, name, pz_type_make(PZ_DT_F32, 3, la->gemm.split, PZ_DIM_M, n), launch, &la->workspace,
                             err);
}

static pz_status build(pz_plan *p, int strategy, pz_error *err) {
    PZ_TRY(pz_plan_flatten(p, err));
    for (int i = 0; i < p->fills.n; i++) {
        PZ_TRY(gate_fill(p, &p->fills.at[i], err));
        PZ_TRY(make_buffer(p, i, err));
    }
    for (int i = 0; i < p->launches.n; i++) PZ_TRY(choose_strategy(p, i, strategy, err));
    PZ_TRY(pz_plan_assign_offsets(p, err));
    return pz_plan_prove(p, err);
}

pz_status pz_plan_create(const pz_graph *g, const pz_plan_options *opts, pz_plan **out, pz_error *err) {
    *out = NULL;
    if (opts->m < 1) return pz_fail(err, PZ_E_INVAL, "a plan for %d rows: must be 1 or more", opts->m);
    if (opts->device.units < 1)
        return pz_fail(err, PZ_E_INVAL, "a plan for a device with %d units: must be 1 or more", opts->device.units);
    bool any = opts->strategy == PZ_STRATEGY_AUTO || opts->strategy == PZ_ZERO_SELF ||
               opts->strategy == PZ_ZERO_REDUCE || opts->strategy == PZ_ZERO_NONE;
    bool gpu = opts->strategy == PZ_ZERO_TICKET || opts->strategy == PZ_ZERO_MEMSET;
    if (!any && !(gpu && opts->device.gpu))
        return pz_fail(err, PZ_E_INVAL, "strategy %s cannot be chosen for a plan on %s: auto, self, reduce%s or none",
                       pz_strategy_text((pz_strategy)opts->strategy), opts->device.name,
                       opts->device.gpu ? ", ticket, memset" : "");
    pz_plan *p = pz_calloc(1, sizeof *p);
    if (!p) return PZ_NOMEM(err);
    p->graph = g;
    p->device = opts->device;
    p->m = opts->m;
    p->prefill = opts->prefill;
    p->gate_mode = opts->gate;
    pz_status st = build(p, opts->strategy, err);
    if (st != PZ_OK) {
        pz_plan_free(p);
        return st;
    }
    *out = p;
    return PZ_OK;
}

void pz_plan_free(pz_plan *p) {
    if (!p) return;
    for (int i = 0; i < p->fills.n; i++) pz_vec_free(&p->fills.at[i].gates);
    pz_vec_free(&p->places);
    pz_vec_free(&p->launches);
    pz_vec_free(&p->slices);
    pz_vec_free(&p->fills);
    pz_vec_free(&p->inputs);
    pz_vec_free(&p->outputs);
    pz_arena_free(&p->arena);
    pz_free(p);
}
