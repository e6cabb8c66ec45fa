/* SPDX-License-Identifier: Apache-2.0 */
/* Random graphs, planned in every mode and checked by three references that know nothing of the planner:
 *   - the graph is run twice with hashes for numbers, once as the IR says (calls and all, values by name), once as the
 *     plan says (launches over an arena of bytes, views, riders, accumulation): the outputs must agree;
 *   - lifetimes by brute force: no two places that live at the same time share a byte;
 *   - order by brute force: between two launches that conflict, every launch waits. */
#include "support_plan.h"

#include <stdio.h>

#include "base/rng.h"
#include "pass/pass.h"

/* ---- graph text ---- */
typedef struct gen_value {
    char name[24];
    const char *dt;
    int cols;
    bool norm; /* comes with x_norm */
} gen_value;

typedef struct gen_func {
    int n_params, n_results;
    gen_value params[4], results[2]; /* types */
    char slots[4][16];
    int n_slots;
} gen_func;

enum { MAX_FUNCS = 6, MAX_VALUES = 64 };
typedef struct gen {
    uint64_t seed;
    pz_str weights, funcs[MAX_FUNCS];
    gen_func sig[MAX_FUNCS];
    int n_funcs, n_weights;
} gen;

typedef struct body {
    gen *g;
    int func;
    pz_str text;
    gen_value v[MAX_VALUES];
    int n;
} body;

static int pick(gen *g, int n) {
    return (int)(pz_rng_next(&g->seed) % (uint64_t)n);
}

static gen_value *add_value(body *b, const char *dt, int cols, bool norm) {
    gen_value *v = &b->v[b->n];
    snprintf(v->name, sizeof v->name, "%%v%d", b->n++);
    v->dt = dt;
    v->cols = cols;
    v->norm = norm;
    return v;
}

static int add_weight(gen *g, const char *type) {
    pz_str_addf(&g->weights, "weight @layers.%d.w%d: %s\n", g->n_weights % 3, g->n_weights, type);
    return g->n_weights++;
}

static const char *out_type(const gen_value *x) {
    return pz_streq(x->dt, "fixed") ? "bf16" : x->dt;
}

static void gen_norm(body *b, const gen_value *x) {
    char type[48];
    snprintf(type, sizeof type, "bf16[%d]", x->cols);
    int w = add_weight(b->g, type);
    const gen_value *res = NULL;
    for (int i = 0; i < b->n; i++)
        if (&b->v[i] != x && b->v[i].cols == x->cols && pick(b->g, 2)) res = &b->v[i];
    const char *dt = out_type(x), *op = res ? (pick(b->g, 2) ? "add_rms_norm" : "fused_allreduce_rmsnorm") : "rms_norm";
    const gen_value *y = add_value(b, dt, x->cols, true);
    if (!res) {
        pz_str_addf(&b->text, "  %s = %s(%s, @layers.%d.w%d)\n", y->name, op, x->name, w % 3, w);
        return;
    }
    const gen_value *r = add_value(b, dt, x->cols, false);
    pz_str_addf(&b->text, "  %s, %s = %s(%s, %s, @layers.%d.w%d)\n", y->name, r->name, op, x->name, res->name, w % 3,
                w);
}

static void gen_gemm(body *b, const gen_value *x) {
    static const int widths[] = {8, 24, 64, 128, 256, 512};
    int n = widths[pick(b->g, 6)];
    bool mx = x->cols % 32 == 0 && pick(b->g, 10) == 0;
    char type[48];
    snprintf(type, sizeof type, "%s[%d,%d]", mx ? "mxfp4" : "bf16", n, x->cols);
    int w = add_weight(b->g, type);
    const char *accum = x->norm && pick(b->g, 4) ? "fixed" : pick(b->g, 2) ? "f32" : "bf16";
    const gen_value *y = add_value(b, accum, n, false);
    pz_str_addf(&b->text, "  %s = gemm(%s, @layers.%d.w%d) {accum=%s", y->name, x->name, w % 3, w, accum);
    gen_func *f = &b->g->sig[b->func];
    if (b->func && f->n_slots < 4 && pick(b->g, 2)) {
        snprintf(f->slots[f->n_slots], sizeof f->slots[0], "s%d", f->n_slots);
        pz_str_addf(&b->text, ", slot=s%d", f->n_slots++);
        pz_str_addf(&b->g->funcs[b->func], "%ss%d: %s[m,%d]", f->n_slots > 1 ? ", " : "", f->n_slots - 1, accum, n);
    }
    pz_str_add(&b->text, "}\n");
}

static void gen_steps(body *b, int steps);

/* Calls a function that fits, or writes one for the values at hand. */
static void gen_call(body *b) {
    gen *g = b->g;
    int callee = -1, args[4];
    for (int f = 1; f < g->n_funcs && callee < 0; f++) {
        bool fits = f > b->func; /* later functions do not call earlier ones */
        for (int p = 0; fits && p < g->sig[f].n_params; p++) {
            args[p] = -1;
            for (int i = b->n - 1; i >= 0 && args[p] < 0; i--)
                if (b->v[i].cols == g->sig[f].params[p].cols && pz_streq(b->v[i].dt, g->sig[f].params[p].dt))
                    args[p] = i;
            fits = args[p] >= 0;
        }
        if (fits && pick(g, 2)) callee = f;
    }
    if (callee < 0) {
        if (g->n_funcs == MAX_FUNCS) return;
        callee = g->n_funcs++;
        gen_func *sig = &g->sig[callee];
        body inner = {.g = g, .func = callee};
        sig->n_params = 1 + pick(g, 3);
        pz_str params = {0}, slots = {0};
        for (int p = 0; p < sig->n_params; p++) {
            args[p] = pick(g, b->n);
            sig->params[p] = b->v[args[p]];
            const gen_value *v = add_value(&inner, b->v[args[p]].dt, b->v[args[p]].cols, false);
            pz_str_addf(&params, "%s%s: %s[m,%d]", p ? ", " : "", v->name, v->dt, v->cols);
        }
        /* A fixed parameter is one more way to carry a unit across a call. */
        gen_steps(&inner, 3 + pick(g, 6));
        slots = g->funcs[callee];
        g->funcs[callee] = (pz_str){0};
        sig->n_results = 1 + pick(g, 2);
        pz_str_addf(&g->funcs[callee], "func @f%d(%s)%s", callee, params.s,
                    sig->n_slots || pick(g, 2) ? " opaque" : "");
        if (sig->n_slots) pz_str_addf(&g->funcs[callee], " slots(%s)", slots.s);
        pz_str_addf(&g->funcs[callee], " {\n%s  return", inner.text.s);
        for (int r = 0; r < sig->n_results; r++) {
            sig->results[r] = inner.v[r ? pick(g, inner.n) : inner.n - 1];
            pz_str_addf(&g->funcs[callee], "%s %s", r ? "," : "", sig->results[r].name);
        }
        pz_str_add(&g->funcs[callee], "\n}\n");
        pz_str_free(&params);
        pz_str_free(&slots);
        pz_str_free(&inner.text);
    }
    const gen_func *sig = &g->sig[callee];
    if (b->n + 2 > MAX_VALUES) return;
    pz_str call = {0};
    for (int p = 0; p < sig->n_params; p++) pz_str_addf(&call, "%s%s", p ? ", " : "", b->v[args[p]].name);
    for (int r = 0; r < sig->n_results; r++)
        pz_str_addf(&b->text, "%s%s", r ? ", " : "  ",
                    add_value(b, sig->results[r].dt, sig->results[r].cols, false)->name);
    pz_str_addf(&b->text, " = call @f%d(%s)\n", callee, call.s);
    pz_str_free(&call);
}

static void gen_steps(body *b, int steps) {
    gen *g = b->g;
    for (int i = 0; i < steps && b->n + 4 < MAX_VALUES; i++) {
        const gen_value *x = &b->v[pick(g, 3) ? b->n - 1 - pick(g, b->n < 4 ? b->n : 4) : pick(g, b->n)];
        switch (pick(g, 9)) {
        case 0:
        case 1: gen_norm(b, x); break;
        case 2:
        case 3:
        case 4: gen_gemm(b, x); break;
        case 5: {
            if (x->cols < 16) break;
            int start = pick(g, x->cols / 2), size = 1 + pick(g, x->cols / 2), cols = size < 8 ? size : size / 8 * 8;
            const gen_value *y = add_value(b, x->dt, cols, false);
            pz_str_addf(&b->text, "  %s = slice(%s) {start=%d, size=%d}\n", y->name, x->name, start, cols);
            break;
        }
        case 6: {
            if (x->cols % 2) break;
            const gen_value *y = add_value(b, out_type(x), x->cols / 2, true);
            pz_str_addf(&b->text, "  %s = silu_mul(%s)\n", y->name, x->name);
            break;
        }
        case 7: {
            const gen_value *y = add_value(b, out_type(x), x->cols, false);
            pz_str_addf(&b->text, "  %s = add(%s, %s)\n", y->name, x->name, x->name);
            break;
        }
        default: gen_call(b); break;
        }
    }
}

static char *gen_graph(uint64_t seed) {
    gen g = {.seed = seed, .n_funcs = 1};
    body b = {.g = &g};
    pz_str all = {0};
    char *text;
    pz_error err;
    static const int widths[] = {64, 128, 256};
    const gen_value *x = add_value(&b, pick(&g, 2) ? "bf16" : "f32", widths[pick(&g, 3)], false);
    const gen_value *y = add_value(&b, "bf16", widths[pick(&g, 3)], false);
    pz_str head = {0};
    pz_str_addf(&head, "func @main(%s: %s[m,%d], %s: %s[m,%d]) {\n", x->name, x->dt, x->cols, y->name, y->dt, y->cols);
    gen_steps(&b, 6 + pick(&g, 24));
    pz_str_addf(&all, "%s%s%s", g.weights.s ? g.weights.s : "", head.s, b.text.s ? b.text.s : "");
    pz_str_addf(&all, "  return %s, %s\n}\n", b.v[b.n - 1].name, b.v[pick(&g, b.n)].name);
    for (int f = 1; f < g.n_funcs; f++) pz_str_add(&all, g.funcs[f].s);
    for (int f = 0; f < MAX_FUNCS; f++) pz_str_free(&g.funcs[f]);
    pz_str_free(&g.weights);
    pz_str_free(&head);
    pz_str_free(&b.text);
    assert_ok(pz_str_take(&all, &text, &err), &err);
    return text;
}

/* ---- numbers are hashes ---- */
static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t s = a * 0x9E3779B97F4A7C15u ^ b;
    return pz_rng_next(&s);
}
static uint64_t element(uint64_t id, int64_t r, int64_t c) {
    return mix(id, (uint64_t)(r * 100003 + c + 1)) | 1; /* never 0 */
}
enum { NORM = 1000 };

/* A value by the IR: columns [start, start + cols) of the matrix `id`. */
typedef struct sym {
    const pz_value *value;
    uint64_t id, norm; /* norm: id of the accumulator's x_norm, if fixed */
    int64_t start, cols;
} sym;
typedef PZ_VEC(sym) syms;

static uint64_t fold_sym(const sym *s, int m) {
    uint64_t h = 7;
    for (int r = 0; r < m; r++)
        for (int64_t c = 0; c < s->cols; c++) h = mix(h, element(s->id, r, s->start + c));
    for (int r = 0; s->norm && r < m; r++) h = mix(h, element(s->norm, r, 0));
    return h;
}

static const sym *find_sym(const syms *all, const pz_value *v) {
    for (int i = all->n - 1; i >= 0; i--)
        if (all->at[i].value == v) return &all->at[i];
    fail_msg("no value %%%s", v->name);
    return NULL;
}

static void put_sym(syms *all, sym s, const pz_value *v) {
    pz_error err;
    s.value = v;
    s.cols = v->type.rank > 1 ? v->type.dim[1] : 1;
    assert_ok(pz_push(all, s, &err), &err);
}

static uint64_t start_hash(const pz_node *n) {
    return mix(99, (uint64_t)n->op);
}

static void run_func(const pz_func *f, const sym *args, sym *results, int m) {
    syms all = {0};
    for (int i = 0; i < f->params.n; i++) put_sym(&all, args[i], f->params.at[i]);
    for (int i = 0; i < f->nodes.n; i++) {
        const pz_node *n = f->nodes.at[i];
        sym in[8], out[8];
        uint64_t h = start_hash(n);
        int n_in = 0;
        for (int k = 0; k < n->args.n; k++) {
            const pz_arg *a = &n->args.at[k];
            if (a->kind == PZ_ARG_WEIGHT) {
                h = mix(h, (uint64_t)a->weight->index);
            } else if (a->value->type.dt != PZ_DT_BUFFER) {
                in[n_in] = *find_sym(&all, a->value);
                h = mix(h, fold_sym(&in[n_in++], m));
            }
        }
        if (n->op == PZ_OP_CALL) {
            run_func(n->callee, in, out, m);
        } else if (n->op == PZ_OP_SLICE) {
            out[0] = in[0];
            out[0].start += pz_node_int(n, "start");
        } else if (n->op != PZ_OP_BUFFER) {
            for (int r = 0; r < n->results.n; r++) out[r] = (sym){.id = mix(h, (uint64_t)r)};
            if (n->results.n && n->results.at[0]->type.dt == PZ_DT_FIXED) {
                out[0].norm = mix(in[0].id, NORM);
                sym norm = {.id = out[0].norm, .cols = 1};
                out[0].id = mix(mix(h, fold_sym(&norm, m)), 0);
            }
        }
        for (int r = 0; r < n->results.n; r++)
            if (n->results.at[r]->type.dt != PZ_DT_BUFFER) put_sym(&all, out[r], n->results.at[r]);
    }
    for (int i = 0; i < f->returns.n; i++) results[i] = *find_sym(&all, f->returns.at[i]);
    pz_vec_free(&all);
}

/* The same over the plan's arena; one cell for every two bytes. */
typedef struct machine {
    const pz_plan *p;
    uint64_t *cells;
    uint64_t *ids; /* what was last written to each place, for the norms' ids */
} machine;

static int64_t cols_of(const pz_place *pl) {
    return pl->type.rank > 1 ? pl->type.dim[pl->type.rank - 1] : 1;
}

static uint64_t fold_place(const machine *k, int place, uint64_t h) {
    const pz_place *pl = &k->p->places.at[place];
    int width = pz_dtype_bits(pl->type.dt) / 16;
    for (int r = 0; r < k->p->m; r++)
        for (int64_t c = 0; c < cols_of(pl); c++) {
            const uint64_t *at = k->cells + pl->offset / 2 + (r * pl->ld + pl->col + c) * width;
            for (int w = 1; w < width; w++) assert_true(at[w] == at[0]);
            h = mix(h, at[0]);
        }
    return h;
}

static uint64_t read_place(const machine *k, int place) {
    uint64_t h = fold_place(k, place, 7);
    const pz_place *pl = &k->p->places.at[place];
    return pl->type.dt == PZ_DT_FIXED ? fold_place(k, pl->scale_norm, h) : h;
}

static void write_place(machine *k, int place, uint64_t id, bool adds) {
    const pz_place *pl = &k->p->places.at[place];
    int width = pz_dtype_bits(pl->type.dt) / 16;
    k->ids[place] = id;
    for (int r = 0; r < k->p->m; r++)
        for (int64_t c = 0; c < cols_of(pl); c++) {
            uint64_t *at = k->cells + pl->offset / 2 + (r * pl->ld + pl->col + c) * width;
            for (int w = 0; w < width; w++) at[w] = (adds ? at[w] : 0) + element(id, r, c);
        }
}

static void run_launch(machine *k, const pz_launch *la) {
    uint64_t h = start_hash(la->node);
    for (int i = 0; i < PZ_MAX_OPERANDS; i++) {
        if (la->in[i].weight)
            h = mix(h, (uint64_t)la->in[i].weight->index);
        else if (la->in[i].place >= 0)
            h = mix(h, read_place(k, la->in[i].place));
    }
    bool gemm = la->op == PZ_OP_GEMM;
    if (gemm && la->accum == PZ_ACCUM_FIXED) h = mix(h, fold_place(k, k->p->places.at[la->in[0].place].norm, 7));
    if (la->workspace >= 0)
        memset(k->cells + k->p->places.at[la->workspace].offset / 2, 0x5A,
               (size_t)k->p->places.at[la->workspace].bytes / 2 * sizeof *k->cells);
    for (int r = 0; r < PZ_MAX_RESULTS; r++) {
        if (la->out[r] < 0) continue;
        write_place(k, la->out[r], mix(h, (uint64_t)r), gemm && la->strategy == PZ_ZERO_PREZERO);
        int norm = k->p->places.at[la->out[r]].norm;
        if (norm >= 0) write_place(k, norm, mix(k->ids[la->out[r]], NORM), false);
    }
    if (la->fill >= 0 && k->p->fills.at[la->fill].bytes)
        memset(k->cells + k->p->fills.at[la->fill].offset / 2, 0,
               (size_t)k->p->fills.at[la->fill].bytes / 2 * sizeof *k->cells);
}

static void check_results(const pz_graph *g, const pz_plan *p) {
    machine k = {.p = p};
    k.cells = malloc((size_t)p->arena_bytes / 2 * sizeof *k.cells);
    k.ids = calloc((size_t)p->places.n, sizeof *k.ids);
    for (int64_t i = 0; i < p->arena_bytes / 2; i++) k.cells[i] = 0xDEAD0000u + (uint64_t)i;
    const pz_func *f = g->funcs.at[0];
    sym args[8], results[8];
    for (int i = 0; i < p->inputs.n; i++) {
        args[i] = (sym){.id = mix(5, (uint64_t)i)};
        write_place(&k, p->inputs.at[i], args[i].id, false);
    }
    for (int i = 0; i < p->launches.n; i++) run_launch(&k, &p->launches.at[i]);
    run_func(f, args, results, p->m);
    for (int i = 0; i < p->outputs.n; i++) assert_true(read_place(&k, p->outputs.at[i]) == fold_sym(&results[i], p->m));
    free(k.cells);
    free(k.ids);
}

/* ---- brute force ---- */
typedef struct lives {
    const pz_plan *p;
    int *first, *last;
} lives;

static void live(lives *l, int place, int launch) {
    const pz_place *pl = &l->p->places.at[place];
    if (launch < l->first[pl->root]) l->first[pl->root] = launch;
    if (launch > l->last[pl->root]) l->last[pl->root] = launch;
}
static void live_with_scale(lives *l, int place, int launch) {
    live(l, place, launch);
    if (l->p->places.at[place].type.dt == PZ_DT_FIXED) live(l, l->p->places.at[place].scale_norm, launch);
}

static void live_launch(lives *l, int i) {
    const pz_plan *p = l->p;
    const pz_launch *la = &p->launches.at[i];
    for (int k = 0; k < PZ_MAX_OPERANDS; k++)
        if (la->in[k].place >= 0) live_with_scale(l, la->in[k].place, i);
    if (la->op == PZ_OP_GEMM && la->accum == PZ_ACCUM_FIXED) live(l, p->places.at[la->in[0].place].norm, i);
    for (int k = 0; k < PZ_MAX_RESULTS; k++) {
        if (la->out[k] < 0) continue;
        live(l, la->out[k], i);
        if (p->places.at[la->out[k]].norm >= 0) live(l, p->places.at[la->out[k]].norm, i);
    }
    if (la->workspace >= 0) live(l, la->workspace, i);
    if (la->fill >= 0 && p->fills.at[la->fill].place >= 0) live(l, p->fills.at[la->fill].place, i);
}

/* Lifetimes of memory owners from the operands of the launches; a buffer's from its donor. */
static void check_overlap(const pz_plan *p) {
    int n = p->places.n;
    lives l = {p, malloc((size_t)n * sizeof(int)), malloc((size_t)n * sizeof(int))};
    for (int i = 0; i < n; i++) l.first[i] = INT32_MAX, l.last[i] = -1;
    for (int i = 0; i < p->inputs.n; i++) live(&l, p->inputs.at[i], -1);
    for (int i = 0; i < p->launches.n; i++) live_launch(&l, i);
    for (int i = 0; i < p->outputs.n; i++) live_with_scale(&l, p->outputs.at[i], p->launches.n);
    for (int i = 0; i < n; i++) {
        const pz_place *a = &p->places.at[i];
        assert_true(a->offset % 64 == 0 && a->offset >= 0 && a->offset + a->bytes <= p->arena_bytes);
        if (a->root != i || l.first[i] > l.last[i]) continue;
        for (int j = 0; j < i; j++) {
            const pz_place *b = &p->places.at[j];
            if (b->root != j || l.first[i] > l.last[j] || l.first[j] > l.last[i]) continue;
            if (a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes)
                fail_msg("%s and %s live at the same time in the same bytes", a->name, b->name);
        }
    }
    free(l.first);
    free(l.last);
}

static bool conflict(const pz_plan *p, int a, int b) {
    pz_access x[PZ_MAX_ACCESSES], y[PZ_MAX_ACCESSES];
    int nx = pz_launch_accesses(p, a, x), ny = pz_launch_accesses(p, b, y);
    for (int i = 0; i < nx; i++)
        for (int j = 0; j < ny; j++)
            if (!(x[i].kind == PZ_READ && y[j].kind == PZ_READ) && x[i].offset < y[j].offset + y[j].bytes &&
                y[j].offset < x[i].offset + x[i].bytes)
                return true;
    return false;
}

static void check_waits(const pz_plan *p) {
    for (int c = 0; c < p->launches.n; c++)
        for (int a = 0; a < c; a++) {
            if (!conflict(p, a, c)) continue;
            for (int i = a + 1; i <= c; i++) assert_true(p->launches.at[i].waits);
            break;
        }
}

/* ---- all of it ---- */
typedef struct tally {
    int graphs, plans, prezeroed, slots, calls, fixed_views, self, reduce;
} tally;

static void check_plan(const pz_graph *g, const pz_plan_options *o, tally *t) {
    pz_plan *p = support_plan(g, o);
    check_overlap(p);
    check_waits(p);
    check_results(g, p);
    for (int i = 0; i < p->launches.n; i++) {
        const pz_launch *la = &p->launches.at[i];
        t->prezeroed += la->strategy == PZ_ZERO_PREZERO;
        t->slots += la->strategy == PZ_ZERO_PREZERO && *pz_node_str(la->node, "slot");
        t->self += la->strategy == PZ_ZERO_SELF;
        t->reduce += la->strategy == PZ_ZERO_REDUCE;
    }
    for (int i = 0; i < p->places.n; i++) t->fixed_views += p->places.at[i].scale_col > 0;
    if (o->gate == PZ_GATE_SHUT || o->prefill) assert_int_equal(p->fill_bytes, 0);
    t->plans++;
    pz_plan_free(p);
}

static void test_random(void **state) {
    (void)state;
    tally t = {0};
    for (uint64_t seed = 1; seed <= 250; seed++) {
        char *text = gen_graph(seed);
        pz_graph *g;
        pz_error err = {0};
        if (pz_graph_parse(text, strlen(text), "random", &g, &err) != PZ_OK)
            fail_msg("%s\nseed %d: %s", text, (int)seed, err.msg);
        assert_ok(pz_passes_run(g, "fuse_allreduce_rmsnorm,prezero", NULL, &err), &err);
        t.graphs++;
        for (int i = 0; i < g->funcs.n; i++)
            for (int k = 0; k < g->funcs.at[i]->nodes.n; k++) t.calls += g->funcs.at[i]->nodes.at[k]->op == PZ_OP_CALL;
        for (int mode = PZ_GATE_AUTO; mode <= PZ_GATE_SHUT; mode++) {
            pz_plan_options o =
                support_plan_options(seed % 2 ? "cpu" : "h200", 1 + (int)(seed % 7), 1 + (int)(seed % 5));
            o.device.min_k = 64; /* or nothing this small is split */
            o.gate = (pz_gate_mode)mode;
            static const pz_strategy strategies[] = {PZ_ZERO_SELF, PZ_ZERO_REDUCE, PZ_ZERO_NONE};
            o.strategy = strategies[(seed + (uint64_t)mode) % 3];
            check_plan(g, &o, &t);
        }
        pz_plan_options o = support_plan_options("cpu", 2, 6);
        o.prefill = true;
        check_plan(g, &o, &t);
        pz_graph_free(g);
        pz_free(text);
    }
    /* the generator still makes what it is for */
    assert_true(t.prezeroed > 1000 && t.slots > 100 && t.calls > 100 && t.fixed_views > 100 && t.self > 500 &&
                t.reduce > 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
