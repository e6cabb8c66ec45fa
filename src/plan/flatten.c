/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "plan/build.h"

/* A function that calls others twice at each of 64 levels would never end. */
enum { PZ_MAX_DEPTH = 64, PZ_MAX_LAUNCHES = 1 << 17 };

/* What a value of one inlined instance of a function is: a place, or the zeroed buffer of a fill. */
typedef struct binding {
    const pz_value *value; /* NULL: a free row of the table */
    int frame;
    bool is_fill;
    int index;
} binding;

typedef struct slot_binding {
    const char *slot;
    int slice;
} slot_binding;

typedef struct frame {
    const pz_func *func;
    const char *prefix; /* "" or "callee/" */
    int id, depth;
    PZ_VEC(slot_binding) slots;
} frame;

typedef struct flattener {
    pz_plan *p;
    pz_error *err;
    binding *table; /* open addressing, never more than half full */
    int cap, used, frames, layer;
} flattener;

/* ---- bindings ---- */
static size_t binding_hash(const pz_value *value, int frame_id, int cap) {
    uint64_t x = (uint64_t)(uintptr_t)value ^ (uint64_t)frame_id * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
    return (size_t)(x ^ (x >> 32)) & (size_t)(cap - 1);
}

static binding *binding_at(const flattener *fl, const pz_value *value, int frame_id) {
    if (!fl->cap) return NULL;
    size_t i = binding_hash(value, frame_id, fl->cap);
    while (fl->table[i].value && (fl->table[i].value != value || fl->table[i].frame != frame_id))
        i = (i + 1) & (size_t)(fl->cap - 1);
    return &fl->table[i];
}

static pz_status bind_value(flattener *fl, const frame *fr, const pz_value *value, bool is_fill, int index) {
    if (fl->used >= fl->cap / 2) {
        flattener old = *fl;
        fl->cap = old.cap ? old.cap * 2 : 1024;
        fl->table = pz_calloc((size_t)fl->cap, sizeof *fl->table);
        if (!fl->table) {
            *fl = old;
            return PZ_NOMEM(fl->err);
        }
        for (int i = 0; i < old.cap; i++)
            if (old.table[i].value) *binding_at(fl, old.table[i].value, old.table[i].frame) = old.table[i];
        pz_free(old.table);
    }
    binding *b = binding_at(fl, value, fr->id);
    if (!b->value) fl->used++;
    *b = (binding){.value = value, .frame = fr->id, .is_fill = is_fill, .index = index};
    return PZ_OK;
}

static const binding *find_binding(const flattener *fl, const frame *fr, const pz_value *value) {
    const binding *b = value ? binding_at(fl, value, fr->id) : NULL;
    return b && b->value ? b : NULL;
}

static pz_status find_place(const flattener *fl, const frame *fr, const pz_node *n, const pz_value *value, int *out) {
    const binding *b = find_binding(fl, fr, value);
    if (b && !b->is_fill) {
        *out = b->index;
        return PZ_OK;
    }
    char buf[160];
    return pz_fail(fl->err, PZ_E_VERIFY, "%s: operand %%%s has no storage", pz_node_describe(n, buf, sizeof buf),
                   value ? value->name : "?");
}

/* The slice that an argument %z:name hands over; -1 if it is no zeroed slice (then its taker zeroes itself). */
static int find_slice(const flattener *fl, const frame *fr, const pz_arg *arg) {
    const binding *b = arg && arg->kind == PZ_ARG_VALUE ? find_binding(fl, fr, arg->value) : NULL;
    if (!b || !b->is_fill) return -1;
    const pz_fill *f = &fl->p->fills.at[b->index];
    for (int s = f->first_slice; s < f->first_slice + f->n_slices; s++)
        if (pz_streq(fl->p->slices.at[s].name, arg->slice)) return s;
    return -1;
}

/* ---- places ---- */
pz_status pz_plan_type_bytes(const pz_type *type, int m, const char *name, int64_t *out, pz_error *err) {
    int64_t bytes = pz_dtype_bits(type->dt) / 8;
    bool known = bytes > 0, fits = true;
    for (int i = 0; i < type->rank; i++) {
        int64_t d = type->dim[i] == PZ_DIM_M ? m : type->dim[i];
        known = known && d > 0;
        fits = fits && !__builtin_mul_overflow(bytes, d, &bytes);
    }
    if (!known) return pz_fail(err, PZ_E_UNSUPPORTED, "%s: its size is not known, so it cannot be planned", name);
    if (!fits || bytes > INT64_MAX / 4) return pz_fail(err, PZ_E_RANGE, "%s: too large with %d rows", name, m);
    *out = bytes;
    return PZ_OK;
}

pz_status pz_plan_add_place(pz_plan *p, const char *name, pz_type type, int first, int *out, pz_error *err) {
    if (!name) return PZ_NOMEM(err);
    pz_place pl = {.name = name, .type = type, .root = p->places.n, .norm = -1, .scale_norm = -1};
    pl.first = pl.last = first;
    if (type.dt != PZ_DT_BUFFER) PZ_TRY(pz_plan_type_bytes(&type, p->m, name, &pl.bytes, err));
    pl.ld = type.rank >= 2 ? type.dim[type.rank - 1] : 1;
    *out = p->places.n;
    return pz_push(&p->places, pl, err);
}

void pz_plan_use(pz_plan *p, int place, int launch) {
    if (place >= 0 && p->places.at[place].last < launch) p->places.at[place].last = launch;
}

static void use_with_scale(pz_plan *p, int place, int launch) {
    pz_plan_use(p, place, launch);
    if (p->places.at[place].type.dt == PZ_DT_FIXED) pz_plan_use(p, p->places.at[place].scale_norm, launch);
}

static pz_status add_value(flattener *fl, const frame *fr, const pz_value *v, int first, int *out) {
    const char *name = pz_arena_printf(&fl->p->arena, "%s%%%s", fr->prefix, v->name);
    if (name && v->type.dt == PZ_DT_FIXED &&
        !(v->def && (v->def->op == PZ_OP_GEMM || pz_node_has(v->def, PZ_TRAIT_VIEW))))
        return pz_fail(fl->err, PZ_E_UNSUPPORTED, "%s: a fixed value must come from a gemm, which gives it its unit",
                       name);
    PZ_TRY(pz_plan_add_place(fl->p, name, v->type, first, out, fl->err));
    fl->p->places.at[*out].ir = v;
    return bind_value(fl, fr, v, false, *out);
}

static pz_status add_view(flattener *fl, const frame *fr, const pz_node *n) {
    int base, place;
    PZ_TRY(find_place(fl, fr, n, pz_node_arg_value(n, "x"), &base));
    PZ_TRY(add_value(fl, fr, n->results.at[0], fl->p->launches.n, &place));
    int64_t start = pz_node_int(n, "start");
    pz_place *v = &fl->p->places.at[place];
    const pz_place *b = &fl->p->places.at[base];
    v->root = b->root;
    v->bytes = b->bytes;
    v->ld = b->ld;
    v->col = b->col + start;
    v->first = v->last = b->first;
    v->scale_norm = b->scale_norm;
    v->scale_weight = b->scale_weight;
    v->scale_col = b->scale_col + start;
    return PZ_OK;
}

/* ---- launches ---- */
/* "layers.12.qkv_a" -> 12 and "qkv_a"; -1 and the name itself where no layer is in it. */
static int split_layer(const char *name, const char **rest) {
    int layer = -1, used = 0;
    *rest = name;
    const char *s = strstr(name, "layers.");
    if (s && (s == name || s[-1] == '.') && sscanf(s, "layers.%d.%n", &layer, &used) == 1 && used > 0)
        *rest = s + used;
    else
        layer = -1;
    return layer;
}

static pz_status name_launch(flattener *fl, pz_launch *la) {
    const pz_node *n = la->node;
    const char *rest = NULL;
    bool weight = false;
    la->layer = -1;
    for (int i = 0; i < n->args.n && la->layer < 0; i++) {
        if (n->args.at[i].kind != PZ_ARG_WEIGHT) continue;
        const char *r;
        la->layer = split_layer(n->args.at[i].weight->name, &r);
        if (!weight || la->layer >= 0) rest = r;
        weight = true;
    }
    const pz_attr *layer = pz_node_attr(n, "layer");
    if (layer)
        la->layer = (int)layer->i;
    else if (!weight)
        la->layer = fl->layer;
    fl->layer = la->layer;
    la->role = pz_op_text(la->op);
    if (la->op == PZ_OP_GEMM) la->role = pz_arena_printf(&fl->p->arena, "gemm %s", rest ? rest : "?");
    if (la->op == PZ_OP_CALL) la->role = pz_arena_printf(&fl->p->arena, "call %s", n->callee->name);
    return la->role ? PZ_OK : PZ_NOMEM(fl->err);
}

static pz_status add_operands(flattener *fl, const frame *fr, const pz_node *n, pz_launch *la) {
    for (int i = 0; i < PZ_MAX_OPERANDS; i++) la->in[i].place = -1;
    for (int i = 0, positional = 0; i < n->args.n; i++) {
        const pz_arg *a = &n->args.at[i];
        if (la->op == PZ_OP_CALL && a->name) continue; /* a slot */
        if (a->kind == PZ_ARG_VALUE && a->value->type.dt == PZ_DT_BUFFER) continue;
        int at = la->op == PZ_OP_CALL ? positional++ : pz_op_operand_index(la->op, a->name);
        if (at < 0 || at >= PZ_MAX_OPERANDS) {
            char buf[160];
            return pz_fail(fl->err, PZ_E_UNSUPPORTED, "%s: more than %d operands", pz_node_describe(n, buf, sizeof buf),
                           PZ_MAX_OPERANDS);
        }
        if (a->kind == PZ_ARG_WEIGHT) {
            la->in[at].weight = a->weight;
            continue;
        }
        PZ_TRY(find_place(fl, fr, n, a->value, &la->in[at].place));
        use_with_scale(fl->p, la->in[at].place, fl->p->launches.n);
    }
    return PZ_OK;
}

/* The donor's rider: one slice of the buffer for each of its names, taken by GEMMs as they come. */
static pz_status add_fill(flattener *fl, const frame *fr, const pz_node *n, pz_launch *la) {
    const pz_value *z = pz_node_arg_value(n, "zero_fill"), *zeroed = pz_node_result(n, "z");
    if (!z || !zeroed || fl->p->prefill) return PZ_OK;
    const pz_attr *names = z->def && z->def->op == PZ_OP_BUFFER ? pz_node_attr(z->def, "slices") : NULL;
    if (!names) {
        char buf[160];
        return pz_fail(fl->err, PZ_E_VERIFY, "%s: zero_fill must be the result of a buffer op",
                       pz_node_describe(n, buf, sizeof buf));
    }
    pz_plan *p = fl->p;
    pz_fill f = {.donor = p->launches.n, .place = -1, .first_slice = p->slices.n, .n_slices = names->n_strs};
    for (int i = 0; i < names->n_strs; i++) {
        pz_slice s = {.name = names->strs[i], .fill = p->fills.n, .consumer = -1};
        PZ_TRY(pz_push(&p->slices, s, fl->err));
    }
    la->fill = p->fills.n;
    PZ_TRY(pz_push(&p->fills, f, fl->err));
    return bind_value(fl, fr, zeroed, true, la->fill);
}

static pz_status add_results(flattener *fl, const frame *fr, const pz_node *n, pz_launch *la) {
    for (int i = 0; i < PZ_MAX_RESULTS; i++) la->out[i] = -1;
    for (int i = 0; i < n->results.n; i++) {
        const pz_value *v = n->results.at[i];
        if (v->type.dt == PZ_DT_BUFFER) continue;
        if (i >= PZ_MAX_RESULTS) {
            char buf[160];
            return pz_fail(fl->err, PZ_E_UNSUPPORTED, "%s: more than %d results", pz_node_describe(n, buf, sizeof buf),
                           PZ_MAX_RESULTS);
        }
        PZ_TRY(add_value(fl, fr, v, fl->p->launches.n, &la->out[i]));
    }
    return PZ_OK;
}

/* x_norm of a GEMM's x: made on first demand, written by the launch that makes x. */
static pz_status norm_of(flattener *fl, const pz_node *n, int x, int *out) {
    pz_plan *p = fl->p;
    const pz_place *pl = &p->places.at[x];
    bool made_here = pl->root == x && pl->first >= 0;
    const pz_launch *maker = made_here ? &p->launches.at[pl->first] : NULL;
    if (!maker || maker->out[0] != x || !pz_node_has(maker->node, PZ_TRAIT_ROW_NORM)) {
        char buf[160];
        return pz_fail(
            fl->err, PZ_E_UNSUPPORTED,
            "%s: accum=fixed needs an x that comes with its norm, the first result of a norm op; %s does not",
            pz_node_describe(n, buf, sizeof buf), pl->name);
    }
    if (pl->norm < 0) {
        int norm = -1;
        const char *name = pz_arena_printf(&p->arena, "%s.norm", pl->name);
        PZ_TRY(pz_plan_add_place(p, name, pz_type_make(PZ_DT_F32, 1, PZ_DIM_M, 0, 0), pl->first, &norm, fl->err));
        p->places.at[x].norm = norm;
    }
    *out = p->places.at[x].norm;
    return PZ_OK;
}

static pz_status finish_gemm(flattener *fl, const frame *fr, const pz_node *n, pz_launch *la) {
    pz_plan *p = fl->p;
    int here = p->launches.n;
    const pz_weight *w = la->in[1].weight;
    if (!pz_accum_from_text(pz_node_str(n, "accum"), &la->accum) || !w || la->in[0].place < 0 || la->out[0] < 0) {
        char buf[160];
        return pz_fail(fl->err, PZ_E_VERIFY, "%s: not a complete gemm", pz_node_describe(n, buf, sizeof buf));
    }
    pz_gemm_shape shape = pz_launch_shape(p, la);
    la->choices = pz_gemm_choose(&p->device, &shape);
    if (la->accum == PZ_ACCUM_FIXED) {
        int norm = -1;
        PZ_TRY(norm_of(fl, n, la->in[0].place, &norm));
        pz_plan_use(p, norm, here);
        pz_place *y = &p->places.at[la->out[0]];
        y->scale_norm = norm;
        y->scale_weight = w;
    }
    int slice = find_slice(fl, fr, pz_node_arg(n, "into"));
    const char *slot = pz_node_str(n, "slot");
    for (int i = 0; slice < 0 && *slot && i < fr->slots.n; i++)
        if (pz_streq(fr->slots.at[i].slot, slot)) slice = fr->slots.at[i].slice;
    if (slice >= 0 && p->slices.at[slice].consumer < 0) {
        pz_slice *s = &p->slices.at[slice];
        s->consumer = here;
        s->active = la->choices.on.strategy == PZ_ZERO_PREZERO;
    }
    return PZ_OK;
}

/* Slots of an external function end here: nothing is known about the kernel behind them, so they stay inactive. */
static void take_external_slots(flattener *fl, const frame *fr, const pz_node *n) {
    for (int i = 0; i < n->args.n; i++) {
        int s = n->args.at[i].name ? find_slice(fl, fr, &n->args.at[i]) : -1;
        if (s >= 0 && fl->p->slices.at[s].consumer < 0) fl->p->slices.at[s].consumer = fl->p->launches.n;
    }
}

static pz_status add_launch(flattener *fl, const frame *fr, const pz_node *n) {
    if (fl->p->launches.n >= PZ_MAX_LAUNCHES)
        return pz_fail(fl->err, PZ_E_RANGE, "more than %d launches after inlining", PZ_MAX_LAUNCHES);
    pz_launch la = {.node = n, .op = n->op, .strategy = PZ_ZERO_NONE, .slice = -1, .fill = -1, .workspace = -1};
    PZ_TRY(name_launch(fl, &la));
    PZ_TRY(add_operands(fl, fr, n, &la));
    PZ_TRY(add_results(fl, fr, n, &la));
    bool collective = pz_node_has(n, PZ_TRAIT_COLLECTIVE);
    if ((collective || pz_node_has(n, PZ_TRAIT_DONOR)) && la.out[0] >= 0)
        la.donor = pz_donor_of(&fl->p->device, fl->p->m, collective, fl->p->places.at[la.out[0]].type.dim[1]);
    if (pz_node_has(n, PZ_TRAIT_DONOR)) PZ_TRY(add_fill(fl, fr, n, &la));
    if (n->op == PZ_OP_GEMM) PZ_TRY(finish_gemm(fl, fr, n, &la));
    if (n->op == PZ_OP_CALL) take_external_slots(fl, fr, n);
    return pz_push(&fl->p->launches, la, fl->err);
}

/* ---- functions ---- */
static pz_status flatten_func(flattener *fl, const frame *fr);

/* Parameters become the caller's places, results the callee's. */
static pz_status bind_params(flattener *fl, const frame *caller, const pz_node *n, frame *callee) {
    int positional = 0;
    for (int i = 0; i < n->args.n; i++) {
        const pz_arg *a = &n->args.at[i];
        if (a->name) {
            slot_binding s = {a->name, find_slice(fl, caller, a)};
            PZ_TRY(pz_push(&callee->slots, s, fl->err));
            continue;
        }
        const binding *b = a->kind == PZ_ARG_VALUE ? find_binding(fl, caller, a->value) : NULL;
        if (!b || positional >= callee->func->params.n) {
            char buf[160];
            return pz_fail(fl->err, PZ_E_VERIFY, "%s: argument %d cannot be bound to a parameter of @%s",
                           pz_node_describe(n, buf, sizeof buf), i + 1, callee->func->name);
        }
        PZ_TRY(bind_value(fl, callee, callee->func->params.at[positional++], b->is_fill, b->index));
    }
    return PZ_OK;
}

static pz_status inline_call(flattener *fl, const frame *caller, const pz_node *n) {
    frame callee = {.func = n->callee, .id = ++fl->frames, .depth = caller->depth + 1};
    if (callee.depth > PZ_MAX_DEPTH)
        return pz_fail(fl->err, PZ_E_RANGE, "calls nest deeper than %d at @%s", PZ_MAX_DEPTH, n->callee->name);
    callee.prefix = pz_arena_printf(&fl->p->arena, "%s%s/", caller->prefix, n->callee->name);
    if (!callee.prefix) return PZ_NOMEM(fl->err);
    pz_status st;
    PZ_TRY_GOTO(st, bind_params(fl, caller, n, &callee), done);
    PZ_TRY_GOTO(st, flatten_func(fl, &callee), done);
    for (int i = 0; i < n->results.n && st == PZ_OK; i++) {
        const binding *b = i < n->callee->returns.n ? find_binding(fl, &callee, n->callee->returns.at[i]) : NULL;
        if (b)
            st = bind_value(fl, caller, n->results.at[i], b->is_fill, b->index);
        else
            st = pz_fail(fl->err, PZ_E_VERIFY, "@%s: result %d of the call has no storage", n->callee->name, i);
    }
done:
    pz_vec_free(&callee.slots);
    return st;
}

static pz_status flatten_func(flattener *fl, const frame *fr) {
    for (int i = 0; i < fr->func->nodes.n; i++) {
        const pz_node *n = fr->func->nodes.at[i];
        if (n->op == PZ_OP_BUFFER) continue;
        if (pz_node_has(n, PZ_TRAIT_VIEW))
            PZ_TRY(add_view(fl, fr, n));
        else if (n->op == PZ_OP_CALL && !n->callee->external)
            PZ_TRY(inline_call(fl, fr, n));
        else
            PZ_TRY(add_launch(fl, fr, n));
    }
    return PZ_OK;
}

static pz_status flatten_entry(flattener *fl, const frame *fr) {
    pz_plan *p = fl->p;
    for (int i = 0; i < fr->func->params.n; i++) {
        int place;
        PZ_TRY(add_value(fl, fr, fr->func->params.at[i], -1, &place));
        PZ_TRY(pz_push(&p->inputs, place, fl->err));
    }
    PZ_TRY(flatten_func(fl, fr));
    for (int i = 0; i < fr->func->returns.n; i++) {
        const binding *b = find_binding(fl, fr, fr->func->returns.at[i]);
        if (!b || b->is_fill)
            return pz_fail(fl->err, PZ_E_VERIFY, "@%s: returned value %%%s has no storage", fr->func->name,
                           fr->func->returns.at[i]->name);
        int place = b->index;
        PZ_TRY(pz_push(&p->outputs, place, fl->err));
        use_with_scale(p, place, p->launches.n);
    }
    return PZ_OK;
}

pz_status pz_plan_flatten(pz_plan *p, pz_error *err) {
    if (!p->graph->funcs.n || p->graph->funcs.at[0]->external)
        return pz_fail(err, PZ_E_VERIFY, "%s: the graph has no entry function with a body", p->graph->name);
    flattener fl = {.p = p, .err = err, .layer = -1};
    frame entry = {.func = p->graph->funcs.at[0], .prefix = ""};
    pz_status st = flatten_entry(&fl, &entry);
    pz_free(fl.table);
    return st;
}
