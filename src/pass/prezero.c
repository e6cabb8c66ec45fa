/* SPDX-License-Identifier: Apache-2.0 */
/* Moves the zeroing of consumers' outputs into the nearest donor before them.
 *
 * Consumers are nodes with the trait CONSUMER and the slots of calls. In execution order, each takes the nearest donor
 * before it in its function; what a donor's consumers need becomes one buffer, a slice for each:
 *
 *   %y, %r = add_rms_norm(%x, %res, @w)          %b = buffer {slices=[qkv]}
 *   %q = gemm(%y, @qkv)                    ->    %y, %r, %z = add_rms_norm(%x, %res, @w, zero_fill=%b)
 *                                                %q = gemm(%y, @qkv, into=%z:qkv)
 *
 * The edge %z proves the order, so no later change can break it unseen. Driven by traits and operand names alone. */
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

typedef struct state {
    pz_graph *g;
    PZ_VEC(donor) donors;
    PZ_VEC(consumer) consumers;
} state;

static bool dtype_is_quantized(pz_dtype dt) {
    enum { ACT, INT, WEIGHT, NONE };
    static const unsigned char cls[PZ_DT_COUNT] = {
        [PZ_DT_NONE] = NONE,
#define DTYPE(id, text, bits, class) [PZ_DT_##id] = class,
#include "ir/dtypes.def"
#undef DTYPE
    };
    return cls[dt] == WEIGHT;
}

static const pz_weight *weight_of(const pz_node *n) {
    for (int i = 0; n && i < n->args.n; i++)
        if (n->args.at[i].weight) return n->args.at[i].weight;
    return NULL;
}

static const char *slot_of(const pz_node *n) {
    const pz_attr *slot = pz_node_attr(n, "slot");
    return slot && *slot->s ? slot->s : NULL;
}

/* ---- finding ---- */
static bool width_known(const pz_type *t) {
    return t->rank == 2 && t->dim[0] != PZ_DIM_UNKNOWN && t->dim[1] > 0;
}

/* Why a slot can not hand a slice to the gemm behind it. */
static pz_status judge_slot(state *s, consumer *c, pz_error *err) {
    if (!c->gemm) {
        if (!c->node->callee->external) {
            c->reason = PZ_REASON_SLOT_MISMATCH;
            c->detail = "no gemm takes it";
        } else if (!width_known(&c->slot->type)) {
            c->reason = PZ_REASON_WIDTH_UNKNOWN;
        }
        return PZ_OK;
    }
    const pz_type *is = &c->gemm->results.at[0]->type;
    if (pz_type_equal(&c->slot->type, is)) return PZ_OK;
    pz_str b = {0};
    char *text;
    pz_str_add(&b, "slot ");
    pz_type_print(&c->slot->type, &b);
    pz_str_add(&b, ", gemm ");
    pz_type_print(is, &b);
    PZ_TRY(pz_str_take(&b, &text, err));
    c->reason = PZ_REASON_SLOT_MISMATCH;
    c->detail = pz_arena_strdup(&s->g->arena, text);
    pz_free(text);
    return c->detail ? PZ_OK : PZ_NOMEM(err);
}

/* The buffer version that the consumer already takes, NULL if none. */
static const pz_arg *given(const consumer *c) {
    return pz_node_arg(c->node, c->slot ? c->slot->name : "into");
}

static int donor_with_node(const state *s, const pz_node *n) {
    for (int i = s->donors.n - 1; i >= 0; i--)
        if (s->donors.at[i].node == n) return i;
    return -1;
}

static pz_status judge(state *s, consumer *c, pz_error *err) {
    const pz_weight *w = weight_of(c->gemm);
    const pz_arg *have = given(c);
    if (have) {
        c->reason = PZ_REASON_ALREADY;
        c->donor = donor_with_node(s, have->value->def);
        c->slice = have->slice;
    } else if (c->slot && c->gemm && pz_node_arg(c->gemm, "into")) {
        c->reason = PZ_REASON_ALREADY;
    } else if (w && dtype_is_quantized(w->type.dt)) {
        c->reason = PZ_REASON_QUANTIZED;
        c->detail = pz_dtype_text(w->type.dt);
    } else if (c->gemm && !width_known(&c->gemm->results.at[0]->type)) {
        c->reason = PZ_REASON_WIDTH_UNKNOWN;
    } else if (c->slot) {
        PZ_TRY(judge_slot(s, c, err));
    }
    if (c->reason != PZ_REASON_NONE) return PZ_OK;
    if (c->donor < 0)
        c->reason = PZ_REASON_NO_DONOR;
    else if (s->donors.at[c->donor].taken)
        c->reason = PZ_REASON_DONOR_TAKEN;
    return PZ_OK;
}

static pz_status add_consumer(state *s, consumer c, pz_error *err) {
    c.detail = "";
    if (c.reason == PZ_REASON_NONE) PZ_TRY(judge(s, &c, err));
    return pz_push(&s->consumers, c, err);
}

static pz_status add_donor(state *s, pz_node *n, int at, pz_error *err) {
    const pz_value *fill = pz_node_arg_value(n, "zero_fill");
    donor d = {.node = n, .at = at, .taken = fill != NULL, .buffer = fill ? fill->name : NULL};
    return pz_push(&s->donors, d, err);
}

/* The slots of a call, in the order of the gemms behind them, then those without one in the order of the slot list. */
static pz_status add_slots(state *s, pz_node *call, int nearest, pz_error *err) {
    const pz_func *callee = call->callee;
    for (int i = 0; i < callee->nodes.n; i++) {
        const pz_node *n = callee->nodes.at[i];
        const char *slot = pz_node_has(n, PZ_TRAIT_CONSUMER) ? slot_of(n) : NULL;
        if (!slot) continue;
        consumer c = {.node = call, .slot = pz_func_find_slot(callee, slot), .gemm = n, .donor = nearest};
        if (c.slot) PZ_TRY(add_consumer(s, c, err));
    }
    for (int i = 0; i < callee->slots.n; i++) {
        consumer c = {.node = call, .slot = &callee->slots.at[i], .donor = nearest};
        bool seen = false;
        for (int j = 0; j < callee->nodes.n; j++)
            seen = seen || (pz_node_has(callee->nodes.at[j], PZ_TRAIT_CONSUMER) &&
                            pz_streq(slot_of(callee->nodes.at[j]), c.slot->name));
        if (!seen) PZ_TRY(add_consumer(s, c, err));
    }
    return PZ_OK;
}

static bool is_called(const pz_graph *g, const pz_func *f) {
    for (int i = 0; i < g->funcs.n; i++)
        for (int j = 0; j < g->funcs.at[i]->nodes.n; j++)
            if (g->funcs.at[i]->nodes.at[j]->callee == f) return true;
    return false;
}

/* Nobody looks inside an opaque function: its gemms are reached through slots of calls or not at all. */
static pz_status scan_opaque(state *s, pz_func *f, pz_error *err) {
    bool called = is_called(s->g, f);
    for (int i = 0; i < f->nodes.n; i++) {
        pz_node *n = f->nodes.at[i];
        consumer c = {.node = n, .gemm = n, .donor = -1, .reason = PZ_REASON_OPAQUE};
        if (pz_node_has(n, PZ_TRAIT_CONSUMER) && !(called && slot_of(n))) PZ_TRY(add_consumer(s, c, err));
    }
    return PZ_OK;
}

static pz_status scan(state *s, pz_func *f, pz_error *err) {
    bool called = is_called(s->g, f);
    int nearest = -1;
    for (int i = 0; i < f->nodes.n; i++) {
        pz_node *n = f->nodes.at[i];
        consumer c = {.node = n, .gemm = n, .donor = nearest};
        if (n->callee) PZ_TRY(add_slots(s, n, nearest, err));
        /* a gemm with a slot is its callers' to serve */
        if (pz_node_has(n, PZ_TRAIT_CONSUMER) && !(called && slot_of(n))) PZ_TRY(add_consumer(s, c, err));
        if (!pz_node_has(n, PZ_TRAIT_DONOR)) continue;
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
        if (start[-1] == '.') parts++;
        if (parts >= 2 && !is_digit(*start) && *start != '.') break;
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
/* Puts the buffer before the donor at position `at` and hands its slices to the consumers. */
static pz_status convert(pz_graph *g, donor *d, int at, const consumer_list *slices, pz_error *err) {
    pz_func *f = d->node->func;
    pz_node *buffer;
    PZ_TRY(name_slices(g, slices, err));
    PZ_VEC(const char *) names = {0};
    pz_status st = PZ_OK;
    for (int i = 0; i < slices->n && st == PZ_OK; i++) st = pz_push(&names, slices->at[i]->slice, err);
    if (st == PZ_OK) st = pz_node_new(f, at, PZ_OP_BUFFER, &buffer, err);
    if (st == PZ_OK) st = pz_node_set_strs(buffer, "slices", names.at, names.n, err);
    pz_vec_free(&names);
    PZ_TRY(st);
    PZ_TRY(pz_node_infer(buffer, NULL, err));
    d->buffer = buffer->results.at[0]->name;
    PZ_TRY(pz_node_add_value(d->node, "zero_fill", buffer->results.at[0], NULL, err));
    PZ_TRY(pz_node_infer(d->node, NULL, err));
    pz_value *z = pz_node_result(d->node, "z");
    for (int i = 0; i < slices->n; i++) {
        consumer *c = slices->at[i];
        PZ_TRY(pz_node_add_value(c->node, c->slot ? c->slot->name : "into", z, c->slice, err));
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
        st = convert(s->g, d, d->at + inserted++, &mine, err);
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
    pz_status st = PZ_OK;
    for (int i = 0; i < g->funcs.n && st == PZ_OK; i++)
        st = g->funcs.at[i]->opaque ? scan_opaque(&s, g->funcs.at[i], err) : scan(&s, g->funcs.at[i], err);
    if (st == PZ_OK) st = convert_all(&s, changed, err);
    if (st == PZ_OK) st = note_all(&s, report, err);
    pz_vec_free(&s.donors);
    pz_vec_free(&s.consumers);
    return st;
}
