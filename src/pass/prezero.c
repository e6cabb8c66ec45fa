/* SPDX-License-Identifier: Apache-2.0 */
/* Moves the zeroing of consumers' outputs into the nearest donor before them.
 *
 * Consumers are nodes with the trait CONSUMER and the slots of calls. In execution order, each takes the nearest donor
 * before it in its function; what a donor's consumers need becomes one buffer, a slice for each:
 *
 *   %y, %r = add_rms_norm(%x, %res, @w)          %b = buffer() {slices=[qkv]}
 *   %q = gemm(%y, @qkv)                    ->    %y, %r, %z = add_rms_norm(%x, %res, @w, zero_fill=%b)
 *                                                %q = gemm(%y, @qkv, into=%z:qkv)
 *
 * The edge %z proves the order, so no later change can break it unseen. Driven by traits and operand names alone. */
#include <stdio.h>

#include "pass/pass.h"

typedef struct donor {
    pz_node *node;
    int at;             /* position when found */
    bool taken;         /* it carried a fill already */
    const char *buffer; /* name of the buffer it got or had */
} donor;

typedef struct consumer {
    pz_node *node;       /* a gemm, or a call */
    const pz_slot *slot; /* of the call's function; NULL: node is a gemm */
    const pz_node *gemm; /* the node, or the gemm behind the slot; NULL: the callee does not show it */
    int donor;           /* nearest donor before it, -1 */
    pz_reason reason;
    const char *detail; /* "" or more */
    const char *slice;  /* its name in the buffer */
} consumer;

typedef PZ_VEC(consumer *) consumer_list;

enum { MAX_RESULTS = 8 }; /* more than any op has */

typedef struct state {
    pz_graph *g;
    PZ_VEC(donor) donors;
    PZ_VEC(consumer) consumers;
    bool *called; /* by function index: some call names it */
    int next_z;   /* number of the next fresh value name */
} state;

static const pz_weight *weight_of(const pz_node *n) {
    for (int i = 0; n && i < n->args.n; i++)
        if (n->args.at[i].weight) return n->args.at[i].weight;
    return NULL;
}

/* The slot through which a gemm is served, NULL if none. */
static const char *slot_of(const pz_node *n) {
    const pz_attr *slot = pz_node_attr(n, "slot");
    return slot && *slot->s ? slot->s : NULL;
}

static bool is_consumer(const pz_node *n) {
    return pz_node_has(n, PZ_TRAIT_CONSUMER);
}

/* ---- finding ---- */
/* Where a consumer takes its slice. */
static const char *operand_of(const consumer *c) {
    return c->slot ? c->slot->name : "into";
}

/* The slice that it takes already, NULL if none. */
static const pz_arg *given(const consumer *c) {
    return pz_node_arg(c->node, operand_of(c));
}

static int donor_with_node(const state *s, const pz_node *n) {
    for (int i = s->donors.n - 1; i >= 0; i--)
        if (s->donors.at[i].node == n) return i;
    return -1;
}

/* Sets the reason, unless the one that was given stands. */
static void judge(const state *s, consumer *c) {
    const pz_weight *w = weight_of(c->gemm);
    const pz_arg *have = given(c);
    const pz_type *out = c->gemm ? &c->gemm->results.at[0]->type : &c->slot->type;
    if (have) {
        c->reason = PZ_REASON_ALREADY;
        c->donor = donor_with_node(s, have->value->def);
        c->slice = have->slice;
    } else if (c->reason != PZ_REASON_NONE) {
        return;
    } else if (w && pz_dtype_is_quantized(w->type.dt)) {
        c->reason = PZ_REASON_QUANTIZED;
        c->detail = pz_dtype_text(w->type.dt);
    } else if (out->dim[1] == PZ_DIM_UNKNOWN) {
        c->reason = PZ_REASON_WIDTH_UNKNOWN;
    } else if (c->donor < 0) {
        c->reason = PZ_REASON_NO_DONOR;
    } else if (s->donors.at[c->donor].taken) {
        c->reason = PZ_REASON_DONOR_TAKEN;
    }
}

static pz_status add_consumer(state *s, consumer c, pz_error *err) {
    c.detail = "";
    judge(s, &c);
    return pz_push(&s->consumers, c, err);
}

static pz_status add_donor(state *s, pz_node *n, int at, pz_error *err) {
    const pz_value *fill = pz_node_arg_value(n, "zero_fill");
    donor d = {.node = n, .at = at, .taken = fill != NULL, .buffer = fill ? fill->name : NULL};
    return pz_push(&s->donors, d, err);
}

/* The slots of a call: in the order of the gemms behind them, each of which has one; those of an external function in
 * the order of its list. */
static pz_status add_slots(state *s, pz_node *call, int nearest, pz_reason reason, pz_error *err) {
    const pz_func *callee = call->callee;
    consumer c = {.node = call, .donor = nearest, .reason = reason};
    for (int i = 0; callee->external && i < callee->slots.n; i++) {
        c.slot = &callee->slots.at[i];
        PZ_TRY(add_consumer(s, c, err));
    }
    for (int i = 0; i < callee->nodes.n; i++) {
        c.gemm = callee->nodes.at[i];
        c.slot = is_consumer(c.gemm) && slot_of(c.gemm) ? pz_func_find_slot(callee, slot_of(c.gemm)) : NULL;
        if (c.slot) PZ_TRY(add_consumer(s, c, err));
    }
    return PZ_OK;
}

static pz_status find_called(state *s, pz_error *err) {
    s->called = pz_calloc((size_t)s->g->funcs.n, sizeof *s->called);
    if (!s->called) return PZ_NOMEM(err);
    for (int i = 0; i < s->g->funcs.n; i++) {
        const pz_func *f = s->g->funcs.at[i];
        for (int j = 0; j < f->nodes.n; j++)
            if (f->nodes.at[j]->callee) s->called[f->nodes.at[j]->callee->index] = true;
    }
    return PZ_OK;
}

/* Nobody looks inside an opaque function: its gemms are reached through slots of calls or not at all. Elsewhere, too, a
 * gemm with a slot is for the callers to serve. */
static pz_status scan(state *s, const pz_func *f, pz_error *err) {
    pz_reason hidden = f->opaque ? PZ_REASON_OPAQUE : PZ_REASON_NONE;
    int nearest = -1;
    for (int i = 0; i < f->nodes.n; i++) {
        pz_node *n = f->nodes.at[i];
        consumer c = {.node = n, .gemm = n, .donor = nearest, .reason = hidden};
        if (slot_of(n) && !f->opaque) c.reason = PZ_REASON_UNCALLED;
        if (n->callee) PZ_TRY(add_slots(s, n, nearest, hidden, err));
        if (is_consumer(n) && !(s->called[f->index] && slot_of(n))) PZ_TRY(add_consumer(s, c, err));
        if (f->opaque || !pz_node_has(n, PZ_TRAIT_DONOR)) continue;
        nearest = s->donors.n;
        PZ_TRY(add_donor(s, n, i, err));
    }
    return PZ_OK;
}

/* ---- names of slices ---- */
static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* "layers.3.qkv_a" -> "qkv_a", "model.layers.3.self_attn.q_a_proj.weight" -> "self_attn.q_a_proj": what follows the
 * first number, without ".weight", of that the last two components (more if the name would start with a digit). */
static const char *role_of(pz_arena *a, const char *weight) {
    static const char suffix[] = ".weight";
    enum { SUFFIX = sizeof suffix - 1, MAX_ROLE = 200 };
    const char *from = weight;
    for (const char *p = strchr(weight, '.'); p && from == weight; p = strchr(p + 1, '.')) {
        const char *end = p + 1;
        while (is_digit(*end)) end++;
        if (end > p + 1 && *end == '.' && end[1]) from = end + 1;
    }
    size_t n = strlen(from);
    if (n > SUFFIX && memcmp(from + n - SUFFIX, suffix, SUFFIX) == 0) n -= SUFFIX;
    const char *start = from + n;
    for (int parts = 0; start > from; start--) {
        if (start[-1] != '.' || ++parts < 2) continue;
        if (!is_digit(*start) && *start != '.') break;
    }
    n -= (size_t)(start - from);
    if (n > MAX_ROLE) n = MAX_ROLE;
    return pz_arena_printf(a, "%s%.*s", is_digit(*start) || *start == '.' ? "w" : "", (int)n, start);
}

static bool name_taken(const consumer_list *slices, int before, const char *name) {
    for (int i = 0; i < before; i++)
        if (pz_streq(slices->at[i]->slice, name)) return true;
    return false;
}

/* Names the slices of one buffer; a name that is there already gets _2, _3, ... */
static pz_status name_slices(pz_graph *g, const consumer_list *slices, pz_error *err) {
    for (int i = 0; i < slices->n; i++) {
        consumer *c = slices->at[i];
        const char *name = c->slot ? c->slot->name : role_of(&g->arena, weight_of(c->gemm)->name), *unique = name;
        for (int k = 2; unique && name_taken(slices, i, unique); k++)
            unique = pz_arena_printf(&g->arena, "%.200s_%d", name, k);
        if (!unique) return PZ_NOMEM(err);
        c->slice = unique;
    }
    return PZ_OK;
}

/* ---- changing ---- */
/* The next free of z0, z1, ... in f. */
static const char *next_name(state *s, const pz_func *f, char buf[16]) {
    do snprintf(buf, 16, "z%d", s->next_z++);
    while (pz_func_find_value(f, buf));
    return buf;
}

static pz_status new_buffer(state *s, pz_func *f, int at, const consumer_list *slices, pz_value **out, pz_error *err) {
    PZ_VEC(const char *) words = {0};
    pz_status st = PZ_OK;
    pz_node *n;
    char name[16];
    for (int i = 0; i < slices->n && st == PZ_OK; i++) st = pz_push(&words, slices->at[i]->slice, err);
    if (st == PZ_OK) st = pz_node_new(f, at, PZ_OP_BUFFER, &n, err);
    if (st == PZ_OK) st = pz_node_set_strs(n, "slices", words.at, words.n, err);
    pz_vec_free(&words);
    PZ_TRY(st);
    PZ_TRY(pz_node_infer(n, (const char *const[]){next_name(s, f, name)}, err));
    *out = n->results.at[0];
    return PZ_OK;
}

/* Puts the buffer before the donor at position `at` and hands its slices to the consumers. */
static pz_status convert(state *s, donor *d, int at, const consumer_list *slices, pz_error *err) {
    pz_func *f = d->node->func;
    pz_value *buffer;
    char name[16];
    const char *names[MAX_RESULTS] = {0};
    PZ_TRY(name_slices(s->g, slices, err));
    PZ_TRY(new_buffer(s, f, at, slices, &buffer, err));
    PZ_TRY(pz_node_add_value(d->node, "zero_fill", buffer, NULL, err));
    names[d->node->results.n] = next_name(s, f, name); /* z comes after the results that are there */
    PZ_TRY(pz_node_infer(d->node, names, err));
    d->buffer = buffer->name;
    for (int i = 0; i < slices->n; i++) {
        const consumer *c = slices->at[i];
        PZ_TRY(pz_node_add_value(c->node, operand_of(c), pz_node_result(d->node, "z"), c->slice, err));
        PZ_TRY(pz_node_infer(c->node, NULL, err));
    }
    return PZ_OK;
}

static pz_status convert_all(state *s, int *changed, pz_error *err) {
    consumer_list mine = {0};
    pz_status st = PZ_OK;
    const pz_func *f = NULL;
    int inserted = 0, next = 0; /* buffers put into f so far; first consumer not looked at */
    for (int i = 0; i < s->donors.n && st == PZ_OK; i++) {
        donor *d = &s->donors.at[i];
        if (d->node->func != f) inserted = 0;
        f = d->node->func;
        mine.n = 0;
        for (; next < s->consumers.n && st == PZ_OK; next++) {
            consumer *c = &s->consumers.at[next];
            if (c->reason != PZ_REASON_NONE) continue;
            if (c->donor != i) break;
            st = pz_push(&mine, c, err);
        }
        if (mine.n == 0 || st != PZ_OK) continue;
        if (mine.n > PZ_MAX_SLOTS) {
            for (int j = 0; j < mine.n; j++) mine.at[j]->reason = PZ_REASON_DONOR_FULL;
            continue;
        }
        st = convert(s, d, d->at + inserted++, &mine, err);
        *changed += mine.n;
    }
    pz_vec_free(&mine);
    return st;
}

/* ---- report ---- */
static pz_status note_all(const state *s, pz_pass_report *report, pz_error *err) {
    report->donors.n = report->consumers.n = 0;
    for (int i = 0; i < s->donors.n; i++) {
        const donor *d = &s->donors.at[i];
        const pz_weight *w = weight_of(d->node);
        pz_donor_note note = {.func = d->node->func->name,
                              .op = pz_op_text(d->node->op),
                              .weight = w ? w->name : "",
                              .buffer = d->buffer};
        PZ_TRY(pz_report_add_donor(report, &note, err));
    }
    for (int i = 0; i < s->consumers.n; i++) {
        const consumer *c = &s->consumers.at[i];
        const pz_weight *w = weight_of(c->gemm);
        bool sliced = c->reason == PZ_REASON_NONE || c->reason == PZ_REASON_ALREADY;
        const char *name = sliced && c->slice ? c->slice : w ? w->name : c->slot ? c->slot->name : "";
        pz_consumer_note note = {.func = c->node->func->name,
                                 .name = name,
                                 .weight = w ? w->name : "",
                                 .via = c->slot ? c->node->callee->name : "",
                                 .donor = sliced ? c->donor : -1,
                                 .reason = c->reason,
                                 .detail = c->detail};
        PZ_TRY(pz_report_add_consumer(report, &note, err));
    }
    return PZ_OK;
}

pz_status pz_pass_prezero(pz_graph *g, pz_pass_report *report, int *changed, pz_error *err) {
    state s = {.g = g};
    pz_status st = find_called(&s, err);
    for (int i = 0; i < g->funcs.n && st == PZ_OK; i++) st = scan(&s, g->funcs.at[i], err);
    if (st == PZ_OK) st = convert_all(&s, changed, err);
    if (st == PZ_OK) st = note_all(&s, report, err);
    pz_vec_free(&s.donors);
    pz_vec_free(&s.consumers);
    pz_free(s.called);
    return st;
}
