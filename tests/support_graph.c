/* SPDX-License-Identifier: Apache-2.0 */
#include "support_graph.h"

#include "support.h"

#include <math.h>
#include <stdio.h>

#include "base/fixed.h"
#include "base/rng.h"

/* ---- random graphs ---- */
enum { WIDTHS = 2, WEIGHTS = 12, FUNCS = 3 };
static const int64_t widths[WIDTHS] = {32, 64};

typedef struct gen {
    uint64_t rng;
    pz_graph *g;
    pz_func *f;
    pz_weight *norm[WIDTHS], *weights[WEIGHTS];
    pz_func *callees[FUNCS];
    PZ_VEC(pz_value *) pool; /* values of known width */
    pz_error err;
} gen;

#define MUST(g, expr) assert_ok((expr), &(g)->err)

static int pick(gen *g, int n) {
    return (int)(pz_rng_next(&g->rng) % (uint64_t)n);
}

static pz_value *any(gen *g) {
    return g->pool.at[pick(g, g->pool.n)];
}

/* A value as wide as v: v itself in the worst case. */
static pz_value *as_wide_as(gen *g, pz_value *v) {
    for (int i = 0; i < 16; i++) {
        pz_value *other = any(g);
        if (other->type.dim[1] == v->type.dim[1]) return other;
    }
    return v;
}

static pz_node *node(gen *g, pz_op op) {
    pz_node *n;
    MUST(g, pz_node_new(g->f, -1, op, &n, &g->err));
    return n;
}

static void finish(gen *g, pz_node *n) {
    MUST(g, pz_node_infer(n, NULL, &g->err));
    for (int i = 0; i < n->results.n; i++)
        if (n->results.at[i]->type.dim[1] > 0) MUST(g, pz_push(&g->pool, n->results.at[i], &g->err));
}

static void maybe_out(gen *g, pz_node *n) {
    static const pz_dtype out[] = {PZ_DT_BF16, PZ_DT_F32};
    if (pick(g, 3) == 0) MUST(g, pz_node_set_dtype(n, "out", out[pick(g, 2)], &g->err));
}

static void make_norm(gen *g, pz_op op) {
    pz_value *x = any(g);
    pz_node *n = node(g, op);
    MUST(g, pz_node_add_value(n, "x", x, NULL, &g->err));
    MUST(g, pz_node_add_weight(n, "w", g->norm[x->type.dim[1] == widths[1]], &g->err));
    if (pick(g, 2)) MUST(g, pz_node_set_float(n, "eps", 0.125 * (1 + pick(g, 3)), &g->err));
    maybe_out(g, n);
    finish(g, n);
}

static void make_add(gen *g, pz_value *a, pz_value *b) {
    pz_node *n = node(g, PZ_OP_ADD);
    MUST(g, pz_node_add_value(n, "a", a, NULL, &g->err));
    MUST(g, pz_node_add_value(n, "b", b, NULL, &g->err));
    maybe_out(g, n);
    finish(g, n);
}

static void make_all_reduce(gen *g) {
    pz_node *n = node(g, PZ_OP_ALL_REDUCE);
    MUST(g, pz_node_add_value(n, "x", any(g), NULL, &g->err));
    maybe_out(g, n);
    finish(g, n);
}

/* What the fusion looks for, often complete: all_reduce, add, norm. */
static void make_pattern(gen *g) {
    if (pick(g, 3)) make_all_reduce(g);
    pz_value *s = g->pool.at[g->pool.n - 1], *res = as_wide_as(g, s);
    if (pick(g, 2))
        make_add(g, s, res);
    else
        make_add(g, res, s);
    pz_node *n = node(g, PZ_OP_RMS_NORM);
    pz_value *r = g->pool.at[g->pool.n - 1];
    MUST(g, pz_node_add_value(n, "x", r, NULL, &g->err));
    MUST(g, pz_node_add_weight(n, "w", g->norm[r->type.dim[1] == widths[1]], &g->err));
    finish(g, n);
}

static pz_value *make_gemm(gen *g, pz_value *x, const char *slot) {
    pz_weight *w = g->weights[pick(g, WEIGHTS)];
    while (w->type.dim[1] != x->type.dim[1]) w = g->weights[pick(g, WEIGHTS)];
    pz_node *n = node(g, PZ_OP_GEMM);
    MUST(g, pz_node_add_value(n, "x", x, NULL, &g->err));
    MUST(g, pz_node_add_weight(n, "w", w, &g->err));
    bool normed = x->def && x->index == 0 && pz_node_has(x->def, PZ_TRAIT_ROW_NORM);
    pz_accum accum = (pz_accum)pick(g, 3);
    if (accum == PZ_ACCUM_FIXED && !normed) accum = PZ_ACCUM_F32;
    MUST(g, pz_node_set_str(n, "accum", pz_accum_text(accum), &g->err));
    if (slot) MUST(g, pz_node_set_str(n, "slot", slot, &g->err));
    finish(g, n);
    return n->results.at[0];
}

static void make_call(gen *g) {
    pz_func *callee = g->callees[pick(g, FUNCS)];
    pz_node *n = node(g, PZ_OP_CALL);
    n->callee = callee;
    for (int i = 0; i < callee->params.n; i++) {
        pz_value *v = NULL;
        for (int j = 0; j < g->pool.n && !v; j++)
            if (pz_type_equal(&g->pool.at[j]->type, &callee->params.at[i]->type)) v = g->pool.at[j];
        MUST(g, pz_node_add_value(n, NULL, v, NULL, &g->err)); /* the entry's parameters fit */
    }
    finish(g, n);
}

static void make_slice(gen *g) {
    pz_node *n = node(g, PZ_OP_SLICE);
    MUST(g, pz_node_add_value(n, "x", any(g), NULL, &g->err));
    MUST(g, pz_node_set_int(n, "start", 0, &g->err));
    MUST(g, pz_node_set_int(n, "size", 32, &g->err));
    finish(g, n);
}

static void make_nodes(gen *g, int count, bool calls) {
    for (int i = 0; i < count; i++) {
        switch (pick(g, calls ? 11 : 10)) {
        case 0: make_norm(g, PZ_OP_RMS_NORM); break;
        case 1: make_norm(g, PZ_OP_LATENT_RMS_NORM); break;
        case 2: make_add(g, g->pool.at[g->pool.n - 1], as_wide_as(g, g->pool.at[g->pool.n - 1])); break;
        case 3: make_all_reduce(g); break;
        case 4:
        case 5:
        case 6: make_pattern(g); break;
        case 7: make_slice(g); break;
        case 10: make_call(g); break;
        default: make_gemm(g, any(g), NULL); break;
        }
    }
}

static void start_func(gen *g, const char *name, bool opaque, int params) {
    static const char *const names[] = {"a", "b", "c"};
    MUST(g, pz_graph_add_func(g->g, name, opaque, &g->f, &g->err));
    g->pool.n = 0;
    for (int i = 0; i < params; i++) {
        pz_value *v;
        MUST(g, pz_func_add_param(g->f, names[i], pz_type_rows(i == 2 ? PZ_DT_F32 : PZ_DT_BF16, widths[i > 0]), &v,
                                  &g->err));
        MUST(g, pz_push(&g->pool, v, &g->err));
    }
}

static void give_back(gen *g, pz_value *v) {
    MUST(g, pz_push(&g->f->returns, v, &g->err));
}

/* A function whose last GEMM is served through a slot. */
static void make_callee(gen *g, int index, const char *name, bool opaque) {
    start_func(g, name, opaque, 2);
    make_nodes(g, pick(g, 4), false);
    pz_value *v = make_gemm(g, any(g), "s");
    MUST(g, pz_func_add_slot(g->f, "s", v->type, &g->err));
    give_back(g, pick(g, 4) ? v : any(g));
    g->callees[index] = g->f;
}

static void make_external(gen *g, int index) {
    start_func(g, "external", true, 1);
    g->f->external = true;
    MUST(g, pz_push(&g->f->result_types, pz_type_rows(PZ_DT_BF16, 64), &g->err));
    MUST(g, pz_func_add_slot(g->f, "p", pz_type_rows(PZ_DT_F32, 32), &g->err));
    MUST(g, pz_func_add_slot(g->f, "q", pz_type_rows(PZ_DT_F32, PZ_DIM_UNKNOWN), &g->err));
    g->callees[index] = g->f;
}

static void make_weights(gen *g) {
    static const pz_dtype dtypes[] = {PZ_DT_BF16, PZ_DT_BF16, PZ_DT_F32, PZ_DT_MXFP4, PZ_DT_FP8};
    char name[32];
    for (int i = 0; i < WIDTHS; i++) {
        snprintf(name, sizeof name, "layers.%d.norm", i);
        MUST(g, pz_graph_add_weight(g->g, name, pz_type_make(PZ_DT_BF16, 1, widths[i], 0, 0), &g->norm[i], &g->err));
    }
    for (int i = 0; i < WEIGHTS; i++) {
        snprintf(name, sizeof name, i % 4 ? "layers.%d.w%d" : "layers.%d.w", i / 4, i % 3);
        int64_t rows = pick(g, 8) ? widths[pick(g, 2)] : PZ_DIM_UNKNOWN;
        pz_type t = pz_type_make(dtypes[pick(g, 5)], 2, rows, widths[i % 2], 0);
        if (t.dt == PZ_DT_MXFP4 && rows == PZ_DIM_UNKNOWN) t.dt = PZ_DT_BF16;
        MUST(g, pz_graph_add_weight(g->g, name, t, &g->weights[i], &g->err));
    }
}

pz_graph *support_random_graph(uint64_t seed) {
    gen g = {.rng = seed};
    MUST(&g, pz_graph_new("random", &g.g, &g.err));
    make_weights(&g);
    /* the entry comes first and calls what comes after it */
    start_func(&g, "entry", false, 3);
    pz_func *entry = g.f;
    make_callee(&g, 0, "opaque", true);
    make_callee(&g, 1, "open", false);
    make_external(&g, 2);
    g.f = entry;
    g.pool.n = 0;
    for (int i = 0; i < entry->params.n; i++) MUST(&g, pz_push(&g.pool, entry->params.at[i], &g.err));
    make_nodes(&g, 4 + pick(&g, 24), true);
    int returns = 1 + pick(&g, 4);
    for (int i = 0; i < returns; i++) give_back(&g, any(&g));
    if (pick(&g, 4) == 0)
        for (int i = 0; i < entry->nodes.n && entry->returns.n < 32; i++)
            if (entry->nodes.at[i]->results.n) give_back(&g, entry->nodes.at[i]->results.at[0]);
    pz_vec_free(&g.pool);
    MUST(&g, pz_graph_verify(g.g, &g.err));
    return g.g;
}

/* ---- interpreter ---- */
enum { ROWS = 2, COLS = 64, UNKNOWN_COLS = 16 };

typedef struct cell {
    const pz_value *value;
    int cols;
    float x[ROWS][COLS];
} cell;

typedef struct frame {
    PZ_VEC(cell *) cells;
} frame;

/* A small number that depends on the name and the position. */
static float number_of(const char *name, int row, int col) {
    uint64_t h = 14695981039346656037u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    h += (uint64_t)(row * 1000 + col) * 0x9E3779B97F4A7C15u;
    return (float)((int)(pz_rng_next(&h) % 255) - 127) / 64;
}

static float rounded(float v, pz_dtype dt) {
    return dt == PZ_DT_BF16 ? pz_bf16_to_f32(pz_f32_to_bf16(v)) : v;
}

static cell *find(const frame *f, const pz_value *v) {
    for (int i = 0; i < f->cells.n; i++)
        if (f->cells.at[i]->value == v) return f->cells.at[i];
    fail_msg("%%%s has no value", v->name);
    return NULL;
}

static cell *new_cell(frame *f, const pz_value *v) {
    cell *c = pz_calloc(1, sizeof *c);
    assert_non_null(c);
    c->value = v;
    c->cols = v->type.dim[1] > 0 ? (int)v->type.dim[1] : UNKNOWN_COLS;
    assert_ok(pz_push(&f->cells, c, NULL), NULL);
    return c;
}

static void free_frame(frame *f) {
    for (int i = 0; i < f->cells.n; i++) pz_free(f->cells.at[i]);
    pz_vec_free(&f->cells);
}

static void norm_row(const pz_node *n, const float *x, int row, cell *y) {
    float sum = 0;
    for (int j = 0; j < y->cols; j++) sum += x[j] * x[j];
    float scale = 1 / sqrtf(sum / (float)y->cols + (float)pz_node_float(n, "eps"));
    for (int j = 0; j < y->cols; j++)
        y->x[row][j] = rounded(x[j] * scale * number_of(pz_node_arg_weight(n, "w")->name, 0, j), y->value->type.dt);
}

static void run_sum(const pz_node *n, const cell *a, const cell *b, cell *r) {
    (void)n;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < r->cols; j++) r->x[i][j] = rounded(a->x[i][j] + b->x[i][j], r->value->type.dt);
}

static void run_gemm(const pz_node *n, const cell *x, cell *y) {
    const char *w = pz_node_arg_weight(n, "w")->name;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < y->cols; j++) {
            float sum = 0;
            for (int k = 0; k < x->cols; k++) sum += x->x[i][k] * number_of(w, j, k);
            y->x[i][j] = rounded(sum / 64, y->value->type.dt);
        }
}

static void run_copy(const cell *x, cell *y) {
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < y->cols; j++) y->x[i][j] = rounded(x->x[i][j % x->cols], y->value->type.dt);
}

static void run_func(const pz_func *f, frame *fr);

static void run_call(const pz_node *n, const frame *caller, frame *fr) {
    const pz_func *f = n->callee;
    frame inner = {0};
    for (int i = 0; i < f->params.n; i++)
        memcpy(new_cell(&inner, f->params.at[i])->x, find(caller, n->args.at[i].value)->x, sizeof(float) * ROWS * COLS);
    if (!f->external) run_func(f, &inner);
    for (int i = 0; i < n->results.n; i++)
        run_copy(find(&inner, f->external ? f->params.at[0] : f->returns.at[i]), new_cell(fr, n->results.at[i]));
    free_frame(&inner);
}

static void run_node(const pz_node *n, frame *f) {
    if (n->op == PZ_OP_CALL) {
        run_call(n, f, f);
        return;
    }
    if (n->op == PZ_OP_BUFFER) return;
    const cell *x = find(f, n->args.at[0].value);
    cell *y = new_cell(f, n->results.at[0]), *r = NULL;
    switch (n->op) {
    case PZ_OP_ADD: run_sum(n, x, find(f, n->args.at[1].value), y); break;
    case PZ_OP_GEMM: run_gemm(n, x, y); break;
    case PZ_OP_SLICE:
    case PZ_OP_ALL_REDUCE: run_copy(x, y); break;
    case PZ_OP_ADD_RMS_NORM:
    case PZ_OP_FUSED_ALLREDUCE_RMSNORM:
        r = new_cell(f, pz_node_result(n, "r"));
        run_sum(n, x, find(f, pz_node_arg_value(n, "res")), r);
        x = r;
        /* fall through */
    case PZ_OP_RMS_NORM:
    case PZ_OP_LATENT_RMS_NORM:
        for (int i = 0; i < ROWS; i++) norm_row(n, x->x[i], i, y);
        break;
    default: fail_msg("the interpreter has no %s", pz_op_text(n->op));
    }
}

static void run_func(const pz_func *f, frame *fr) {
    for (int i = 0; i < f->nodes.n; i++) run_node(f->nodes.at[i], fr);
}

uint64_t support_interpret(const pz_graph *g) {
    const pz_func *f = g->funcs.at[0];
    frame fr = {0};
    uint64_t hash = 0;
    for (int p = 0; p < f->params.n; p++) {
        cell *c = new_cell(&fr, f->params.at[p]);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < c->cols; j++) c->x[i][j] = rounded(number_of(c->value->name, i, j), c->value->type.dt);
    }
    run_func(f, &fr);
    for (int v = 0; v < f->returns.n; v++) {
        const cell *c = find(&fr, f->returns.at[v]);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < c->cols; j++) {
                uint32_t bits;
                memcpy(&bits, &c->x[i][j], sizeof bits);
                hash = hash * 0x9E3779B97F4A7C15u + bits + 1;
            }
    }
    free_frame(&fr);
    return hash;
}
