/* SPDX-License-Identifier: Apache-2.0 */
/* Shape and dtype rules: one function a rule, named by the op table's column `infer`. A rule reads operands and
 * attributes, which are there and of the right class when it is called, and sets the types of the activation and i32
 * results. A dimension ? matches anything. */
#include <math.h>
#include <stdio.h>

#include "ir/ir_internal.h"

typedef struct infer {
    const pz_node *n;
    const pz_op_schema *op;
    pz_type *out; /* by the table's result index */
    int *count;   /* set here by call alone, whose results are not in the table */
    pz_error *err;
} infer;

enum { DT_F32 = 1 << PZ_DT_F32, DT_PLAIN = DT_F32 | 1 << PZ_DT_BF16 };
enum { DT_ANY = DT_PLAIN | 1 << PZ_DT_MXFP4 | 1 << PZ_DT_FP8 };
/* Sizes in attributes; products of a few of them stay within int64_t. */
#define ATTR_MAX (INT64_C(1) << 30)

static bool dim_match(int64_t a, int64_t b) {
    return a == b || a == PZ_DIM_UNKNOWN || b == PZ_DIM_UNKNOWN;
}

static int64_t dim_merge(int64_t a, int64_t b) {
    return a == PZ_DIM_UNKNOWN ? b : a;
}

static const pz_type *arg_type(const infer *c, const char *operand) {
    const pz_arg *a = pz_node_arg(c->n, operand);
    return a->kind == PZ_ARG_WEIGHT ? &a->weight->type : &a->value->type;
}

static pz_status bad_operand(const infer *c, const char *operand, const char *expected) {
    const pz_arg *a = pz_node_arg(c->n, operand);
    bool weight = a->kind == PZ_ARG_WEIGHT;
    char is[PZ_TYPE_TEXT];
    return pz_node_fail(c->n, PZ_E_TYPE, c->err, "operand %s is %c%.80s: %s, expected %s", operand, weight ? '@' : '%',
                        weight ? a->weight->name : a->value->name, pz_type_text(arg_type(c, operand), is), expected);
}

/* ---- what a rule asks of its operands ---- */
static pz_status expect_cols(const infer *c, const char *operand, int64_t cols) {
    const pz_type *t = arg_type(c, operand);
    if (dim_match(t->dim[1], cols)) return PZ_OK;
    pz_type want = pz_type_rows(t->dt, cols);
    char text[PZ_TYPE_TEXT];
    return bad_operand(c, operand, pz_type_text(&want, text));
}

static pz_status expect_ids(const infer *c, const char *operand, int64_t cols) {
    const pz_type *t = arg_type(c, operand);
    if (cols == 0 ? t->rank == 1 : t->rank == 2 && dim_match(t->dim[1], cols)) return PZ_OK;
    pz_type want = pz_type_make(PZ_DT_I32, cols == 0 ? 1 : 2, PZ_DIM_M, cols, 0);
    char text[PZ_TYPE_TEXT];
    return bad_operand(c, operand, pz_type_text(&want, text));
}

static pz_status expect_weight(const infer *c, const char *operand, unsigned dtypes, int rank, int64_t d0, int64_t d1,
                               int64_t d2) {
    const pz_type *t = arg_type(c, operand);
    const int64_t want[3] = {d0, d1, d2};
    bool ok = t->rank == rank && ((1u << t->dt) & dtypes);
    for (int i = 0; ok && i < rank; i++) ok = dim_match(t->dim[i], want[i]);
    if (ok) return PZ_OK;
    char text[128], dims[PZ_TYPE_TEXT];
    pz_type shape = pz_type_make(PZ_DT_NONE, rank, d0, d1, d2);
    const char *brackets = strchr(pz_type_text(&shape, dims), '[');
    snprintf(text, sizeof text, "%s%s",
             dtypes == DT_F32     ? "f32"
             : dtypes == DT_PLAIN ? "bf16 or f32 (not quantized) "
                                  : "bf16, f32, mxfp4 or fp8 ",
             brackets);
    return bad_operand(c, operand, text);
}

static pz_status attr_range(const infer *c, const char *name, int64_t lo, int64_t hi, int64_t *out) {
    *out = pz_node_int(c->n, name);
    if (*out >= lo && *out <= hi) return PZ_OK;
    return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute %s is %lld, expected %lld..%lld", name, (long long)*out,
                        (long long)lo, (long long)hi);
}

static pz_status attr_word(const infer *c, const char *name, const char *const *words, int n) {
    const char *s = pz_node_str(c->n, name);
    char list[96] = "";
    for (int i = 0, len = 0; i < n; i++) {
        if (strcmp(s, words[i]) == 0) return PZ_OK;
        len += snprintf(list + len, sizeof list - (size_t)len, "%s%s", i ? ", " : "", words[i]);
    }
    return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute %s is %.80s, expected one of %s", name, s, list);
}

/* ---- results ---- */
static pz_status out_dtype(const infer *c, pz_dtype *out) {
    const pz_attr *a = pz_node_attr(c->n, "out");
    const pz_attr_spec *spec = pz_schema_attr(c->n->op, "out");
    pz_dtype dt = a ? a->dt : spec->dt;
    if (!a && dt == PZ_DT_NONE) {
        dt = arg_type(c, c->op->operands[0].name)->dt;
        if (dt == PZ_DT_FIXED) dt = PZ_DT_BF16;
    }
    *out = dt;
    if (dt == PZ_DT_F32 || dt == PZ_DT_BF16) return PZ_OK;
    return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute out is %s, expected f32 or bf16", pz_dtype_text(dt));
}

/* All activation results are [m, cols] of the dtype `out`. */
static pz_status give_rows(infer *c, int64_t cols) {
    pz_dtype dt;
    PZ_TRY(out_dtype(c, &dt));
    if (cols > PZ_MAX_DIM)
        return pz_node_fail(c->n, PZ_E_TYPE, c->err, "result would have %lld columns, at most %lld are possible",
                            (long long)cols, (long long)PZ_MAX_DIM);
    for (int i = 0; i < c->op->n_results; i++)
        if (c->op->results[i].cls == PZ_CLASS_ACT) c->out[i] = pz_type_rows(dt, cols);
    return PZ_OK;
}

static int64_t cols_of(const infer *c, const char *operand) {
    return arg_type(c, operand)->dim[1];
}

/* ---- the rules ---- */
static pz_status pz_infer_embed(infer *c) {
    PZ_TRY(expect_ids(c, "ids", 0));
    PZ_TRY(expect_weight(c, "w", DT_PLAIN, 2, PZ_DIM_UNKNOWN, PZ_DIM_UNKNOWN, 0));
    return give_rows(c, arg_type(c, "w")->dim[1]);
}

static pz_status check_eps(const infer *c) {
    double eps = pz_node_float(c->n, "eps");
    if (eps >= 0) return PZ_OK;
    return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute eps is %g, expected 0 or more", eps);
}

static pz_status pz_infer_norm(infer *c) {
    int64_t cols = cols_of(c, "x");
    if (pz_node_arg(c->n, "res")) {
        PZ_TRY(expect_cols(c, "res", cols));
        cols = dim_merge(cols, cols_of(c, "res"));
    }
    PZ_TRY(expect_weight(c, "w", DT_PLAIN, 1, cols, 0, 0));
    PZ_TRY(check_eps(c));
    return give_rows(c, dim_merge(cols, arg_type(c, "w")->dim[0]));
}

static pz_status pz_infer_same(infer *c) {
    int64_t cols = cols_of(c, c->op->operands[0].name);
    for (int i = 1; i < c->op->n_operands; i++) {
        PZ_TRY(expect_cols(c, c->op->operands[i].name, cols));
        cols = dim_merge(cols, cols_of(c, c->op->operands[i].name));
    }
    return give_rows(c, cols);
}

static pz_status pz_infer_gemm(infer *c) {
    PZ_TRY(expect_weight(c, "w", DT_ANY, 2, PZ_DIM_UNKNOWN, cols_of(c, "x"), 0));
    const char *text = pz_node_str(c->n, "accum");
    pz_accum accum;
    if (!pz_accum_from_text(text, &accum))
        return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute accum is %.80s, expected fixed, f32 or bf16", text);
    const pz_value *x = pz_node_arg_value(c->n, "x");
    if (accum == PZ_ACCUM_FIXED && !(x->def && x->index == 0 && pz_node_has(x->def, PZ_TRAIT_ROW_NORM)))
        return pz_node_fail(
            c->n, PZ_E_TYPE, c->err,
            "accum=fixed needs the row norms of x, but %%%.80s is %s; expected the first result of an op "
            "with ROW_NORM (such as rms_norm), or accum=f32",
            x->name, x->def ? pz_op_text(x->def->op) : "a parameter");
    c->out[0] = pz_type_rows(pz_accum_dtype(accum), arg_type(c, "w")->dim[0]);
    return PZ_OK;
}

static pz_status pz_infer_slice(infer *c) {
    const pz_type *x = arg_type(c, "x");
    int64_t start, size, cols = x->dim[1];
    PZ_TRY(attr_range(c, "start", 0, PZ_MAX_DIM, &start));
    PZ_TRY(attr_range(c, "size", 1, PZ_MAX_DIM, &size));
    if (cols != PZ_DIM_UNKNOWN && start + size > cols)
        return pz_node_fail(c->n, PZ_E_TYPE, c->err, "columns [%lld, %lld) lie outside x, which has %lld columns",
                            (long long)start, (long long)(start + size), (long long)cols);
    c->out[0] = pz_type_rows(x->dt, size);
    return PZ_OK;
}

static pz_status pz_infer_silu_mul(infer *c) {
    int64_t cols = cols_of(c, "x");
    if (cols != PZ_DIM_UNKNOWN && cols % 2) return bad_operand(c, "x", "an even number of columns");
    return give_rows(c, cols == PZ_DIM_UNKNOWN ? cols : cols / 2);
}

static pz_status expect_sequences(const infer *c) {
    PZ_TRY(expect_ids(c, "pos", 0));
    return pz_node_arg(c->n, "seq") ? expect_ids(c, "seq", 0) : PZ_OK;
}

static pz_status pz_infer_cache_write(infer *c) {
    int64_t layer;
    PZ_TRY(expect_sequences(c));
    PZ_TRY(expect_weight(c, "w", DT_PLAIN, 1, PZ_DIM_UNKNOWN, 0, 0));
    PZ_TRY(expect_weight(c, "inv_freq", DT_F32, 1, PZ_DIM_UNKNOWN, 0, 0));
    PZ_TRY(attr_range(c, "layer", 0, ATTR_MAX, &layer));
    PZ_TRY(check_eps(c));
    int64_t latent = arg_type(c, "w")->dim[0], half = arg_type(c, "inv_freq")->dim[0];
    bool known = latent != PZ_DIM_UNKNOWN && half != PZ_DIM_UNKNOWN;
    return expect_cols(c, "kv", known ? latent + 2 * half : PZ_DIM_UNKNOWN);
}

/* kv_b [heads * (nope + v), latent] */
static pz_status expect_kv_b(const infer *c, int64_t heads, int64_t latent) {
    int64_t nope, v;
    PZ_TRY(attr_range(c, "nope", 1, ATTR_MAX, &nope));
    PZ_TRY(attr_range(c, "v", 1, ATTR_MAX, &v));
    return expect_weight(c, "kv_b", DT_PLAIN, 2, heads * (nope + v), latent, 0);
}

static pz_status pz_infer_absorb_q(infer *c) {
    int64_t heads, nope, rope;
    PZ_TRY(expect_sequences(c));
    PZ_TRY(attr_range(c, "heads", 1, ATTR_MAX, &heads));
    PZ_TRY(attr_range(c, "nope", 1, ATTR_MAX, &nope));
    PZ_TRY(attr_range(c, "rope", 2, ATTR_MAX, &rope));
    if (rope % 2)
        return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute rope is %lld, expected an even number",
                            (long long)rope);
    PZ_TRY(expect_cols(c, "q", heads * (nope + rope)));
    PZ_TRY(expect_kv_b(c, heads, PZ_DIM_UNKNOWN));
    PZ_TRY(expect_weight(c, "inv_freq", DT_F32, 1, rope / 2, 0, 0));
    int64_t latent = arg_type(c, "kv_b")->dim[1];
    return give_rows(c, latent == PZ_DIM_UNKNOWN ? latent : heads * (latent + rope));
}

static pz_status pz_infer_mla_attention(infer *c) {
    int64_t layer, heads, latent, rope;
    PZ_TRY(expect_sequences(c));
    PZ_TRY(attr_range(c, "layer", 0, ATTR_MAX, &layer));
    PZ_TRY(attr_range(c, "heads", 1, ATTR_MAX, &heads));
    PZ_TRY(attr_range(c, "latent", 1, ATTR_MAX, &latent));
    PZ_TRY(attr_range(c, "rope", 1, ATTR_MAX, &rope));
    PZ_TRY(expect_cols(c, "ql", heads * (latent + rope)));
    return give_rows(c, heads * latent);
}

static pz_status pz_infer_absorb_v(infer *c) {
    int64_t heads, v, cols = cols_of(c, "o");
    PZ_TRY(attr_range(c, "heads", 1, ATTR_MAX, &heads));
    PZ_TRY(attr_range(c, "v", 1, ATTR_MAX, &v));
    if (cols != PZ_DIM_UNKNOWN && cols % heads)
        return bad_operand(c, "o", "heads * latent columns, a multiple of heads");
    PZ_TRY(expect_kv_b(c, heads, cols == PZ_DIM_UNKNOWN ? cols : cols / heads));
    return give_rows(c, heads * v);
}

static pz_status pz_infer_router(infer *c) {
    static const char *const scorings[] = {"sigmoid", "softmax"};
    int64_t experts = cols_of(c, "logits"), top_k, n_group, topk_group, group_top, norm;
    if (pz_node_arg(c->n, "bias")) {
        PZ_TRY(expect_weight(c, "bias", DT_PLAIN, 1, experts, 0, 0));
        experts = dim_merge(experts, arg_type(c, "bias")->dim[0]);
    }
    int64_t most = experts == PZ_DIM_UNKNOWN ? ATTR_MAX : experts;
    PZ_TRY(attr_range(c, "top_k", 1, most, &top_k));
    PZ_TRY(attr_range(c, "n_group", 1, most, &n_group));
    PZ_TRY(attr_range(c, "topk_group", 1, n_group, &topk_group));
    PZ_TRY(attr_range(c, "group_top", 1, ATTR_MAX, &group_top));
    PZ_TRY(attr_range(c, "norm", 0, 1, &norm));
    PZ_TRY(attr_word(c, "scoring", scorings, 2));
    if (experts != PZ_DIM_UNKNOWN && n_group > 1) {
        int64_t group = experts / n_group;
        if (experts % n_group)
            return pz_node_fail(c->n, PZ_E_TYPE, c->err,
                                "%lld experts cannot be divided into n_group=%lld equal groups", (long long)experts,
                                (long long)n_group);
        if (group_top > group || top_k > topk_group * group)
            return pz_node_fail(
                c->n, PZ_E_TYPE, c->err,
                "top_k=%lld from topk_group=%lld groups of %lld experts, scored by group_top=%lld; expected "
                "top_k <= topk_group * %lld and group_top <= %lld",
                (long long)top_k, (long long)topk_group, (long long)group, (long long)group_top, (long long)group,
                (long long)group);
    }
    c->out[0] = pz_type_make(PZ_DT_I32, 2, PZ_DIM_M, top_k, 0);
    c->out[1] = pz_type_rows(PZ_DT_F32, top_k);
    return PZ_OK;
}

static pz_status pz_infer_moe_experts(infer *c) {
    int64_t hidden = cols_of(c, "x");
    const pz_type *ids = arg_type(c, "ids");
    if (ids->rank != 2) return bad_operand(c, "ids", "i32[m,top_k]");
    PZ_TRY(expect_cols(c, "weights", ids->dim[1]));
    PZ_TRY(expect_weight(c, "gate_up", DT_ANY, 3, PZ_DIM_UNKNOWN, PZ_DIM_UNKNOWN, hidden));
    const pz_type *up = arg_type(c, "gate_up");
    if (up->dim[1] != PZ_DIM_UNKNOWN && up->dim[1] % 2)
        return bad_operand(c, "gate_up", "an even second dimension (gate and up rows)");
    hidden = dim_merge(hidden, up->dim[2]);
    int64_t inner = up->dim[1] == PZ_DIM_UNKNOWN ? PZ_DIM_UNKNOWN : up->dim[1] / 2;
    PZ_TRY(expect_weight(c, "down", DT_ANY, 3, up->dim[0], hidden, inner));
    int64_t experts = dim_merge(up->dim[0], arg_type(c, "down")->dim[0]);
    int64_t total, first, here = experts == PZ_DIM_UNKNOWN ? 1 : experts;
    PZ_TRY(attr_range(c, "total", 0, ATTR_MAX, &total));
    PZ_TRY(attr_range(c, "first", 0, total ? ATTR_MAX : 0, &first));
    if (total && (first > total || here > total - first))
        return pz_node_fail(c->n, PZ_E_TYPE, c->err, "first=%lld and %lld experts here, but total=%lld",
                            (long long)first, (long long)here, (long long)total);
    if (total) experts = total;
    if (experts != PZ_DIM_UNKNOWN && ids->dim[1] > experts)
        return pz_node_fail(c->n, PZ_E_TYPE, c->err, "operand ids chooses %lld of %lld experts", (long long)ids->dim[1],
                            (long long)experts);
    return give_rows(c, dim_merge(hidden, arg_type(c, "down")->dim[1]));
}

static pz_status pz_infer_buffer(infer *c) {
    const pz_attr *list = pz_node_attr(c->n, "slices");
    if (!list->n_strs)
        return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute slices is empty; a buffer has a slice or more");
    for (int i = 0; i < list->n_strs; i++)
        if (pz_strs_find(list, list->strs[i]) != i)
            return pz_node_fail(c->n, PZ_E_TYPE, c->err, "slice %.80s is listed twice; slice names are unique",
                                list->strs[i]);
    return PZ_OK;
}

/* ---- calls ---- */
static pz_status check_call_args(const pz_node *n, pz_error *err) {
    const pz_func *f = n->callee;
    int positional = 0;
    char is[PZ_TYPE_TEXT], want[PZ_TYPE_TEXT];
    for (int i = 0; i < n->args.n; i++) {
        const pz_arg *a = &n->args.at[i];
        if (a->kind != PZ_ARG_VALUE)
            return pz_node_fail(n, PZ_E_TYPE, err, "argument %d is a weight; a call takes values", i + 1);
        if (a->name) {
            if (!pz_func_find_slot(f, a->name))
                return pz_node_fail(n, PZ_E_TYPE, err, "@%.80s has no slot '%.80s'", f->name, a->name);
            if (a->value->type.dt != PZ_DT_BUFFER || !a->slice)
                return pz_node_fail(n, PZ_E_TYPE, err,
                                    "slot %.80s is given %%%.80s%s, expected a slice of a zeroed buffer, %%z:slice",
                                    a->name, a->value->name, a->slice ? ", which is no buffer" : "");
            continue;
        }
        if (a->slice || a->value->type.dt == PZ_DT_BUFFER)
            return pz_node_fail(n, PZ_E_TYPE, err, "argument %d is a buffer; buffers go to slots, by name", i + 1);
        if (positional < f->params.n && !pz_type_match(&a->value->type, &f->params.at[positional]->type))
            return pz_node_fail(n, PZ_E_TYPE, err, "argument %d is %%%.80s: %s, expected %s for parameter %%%.80s",
                                i + 1, a->value->name, pz_type_text(&a->value->type, is),
                                pz_type_text(&f->params.at[positional]->type, want), f->params.at[positional]->name);
        positional++;
    }
    if (positional == f->params.n) return PZ_OK;
    return pz_node_fail(n, PZ_E_TYPE, err, "%d arguments, but @%.80s takes %d", positional, f->name, f->params.n);
}

static pz_status pz_infer_call(infer *c) {
    const pz_func *f = c->n->callee;
    if (!f) return pz_node_fail(c->n, PZ_E_TYPE, c->err, "call without a function");
    PZ_TRY(check_call_args(c->n, c->err));
    int count = f->external ? f->result_types.n : f->returns.n;
    if (count > PZ_MAX_RETURNS)
        return pz_node_fail(c->n, PZ_E_TYPE, c->err, "@%.80s returns %d values, at most %d are possible", f->name,
                            count, PZ_MAX_RETURNS);
    for (int i = 0; i < count; i++) c->out[i] = f->external ? f->result_types.at[i] : f->returns.at[i]->type;
    *c->count = count;
    return PZ_OK;
}

/* ---- the table's own rules: presence, class, attribute types ---- */
static pz_status check_class(const infer *c, const pz_operand_spec *spec, const pz_arg *a) {
    static const char *const expected[] = {"f32, bf16 or fixed [m,columns]", "i32[m] or i32[m,k]", "a weight",
                                           "a buffer"};
    bool weight = spec->cls == PZ_CLASS_WEIGHT;
    if (a->kind != (weight ? PZ_ARG_WEIGHT : PZ_ARG_VALUE) || (weight ? !a->weight : !a->value))
        return pz_node_fail(c->n, PZ_E_TYPE, c->err, "operand %s is a %s, expected %s", spec->name,
                            weight ? "value" : "weight", expected[spec->cls]);
    const pz_type *t = arg_type(c, spec->name);
    bool rows = t->rank >= 1 && t->dim[0] == PZ_DIM_M, ok = true;
    if (spec->cls == PZ_CLASS_ACT) ok = pz_dtype_is_act(t->dt) && t->rank == 2 && rows;
    if (spec->cls == PZ_CLASS_I32) ok = t->dt == PZ_DT_I32 && t->rank <= 2 && rows;
    if (spec->cls == PZ_CLASS_BUFFER) ok = t->dt == PZ_DT_BUFFER;
    if (!ok) return bad_operand(c, spec->name, expected[spec->cls]);
    /* A consumer takes one slice of a buffer, a donor the whole of it. */
    bool sliced = spec->cls == PZ_CLASS_BUFFER && (c->op->traits & PZ_TRAIT_CONSUMER);
    if (sliced == (a->slice != NULL)) return PZ_OK;
    return pz_node_fail(c->n, PZ_E_TYPE, c->err, "operand %s is %%%.80s %s", spec->name, a->value ? a->value->name : "",
                        sliced ? "without a slice, expected %z:slice" : "with a slice, expected the value alone");
}

static pz_status check_operands(const infer *c) {
    for (int i = 0; i < c->n->args.n; i++) {
        const char *name = c->n->args.at[i].name;
        if (!name || pz_op_operand_index(c->n->op, name) < 0)
            return pz_node_fail(c->n, PZ_E_TYPE, c->err, "no operand '%.80s'; %s has %s", name ? name : "", c->op->text,
                                c->op->operand_text);
    }
    for (int i = 0; i < c->op->n_operands; i++) {
        const pz_operand_spec *spec = &c->op->operands[i];
        const pz_arg *a = pz_node_arg(c->n, spec->name);
        if (a)
            PZ_TRY(check_class(c, spec, a));
        else if (!spec->optional)
            return pz_node_fail(c->n, PZ_E_TYPE, c->err, "operand %s is missing; %s takes %s", spec->name, c->op->text,
                                c->op->operand_text);
    }
    return PZ_OK;
}

static pz_status check_attrs(const infer *c) {
    for (int i = 0; i < c->n->attrs.n; i++) {
        const pz_attr *a = &c->n->attrs.at[i];
        const pz_attr_spec *spec = pz_schema_attr(c->n->op, a->name);
        if (!spec || spec->type != a->type)
            return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute %.80s is not in the op table, or of another type",
                                a->name);
        if (a->type == PZ_ATTR_FLOAT && !isfinite(a->f))
            return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute %s must be finite", a->name);
    }
    for (int i = 0; i < c->op->n_attrs; i++)
        if (c->op->attrs[i].required && !pz_node_attr(c->n, c->op->attrs[i].name))
            return pz_node_fail(c->n, PZ_E_TYPE, c->err, "attribute %s is missing; %s has %s", c->op->attrs[i].name,
                                c->op->text, c->op->attr_text);
    return PZ_OK;
}

/* A result marked ? exists only with the optional operand of its class. */
static bool result_present(const infer *c, const pz_operand_spec *result) {
    if (!result->optional) return true;
    for (int i = 0; i < c->op->n_operands; i++)
        if (c->op->operands[i].optional && c->op->operands[i].cls == result->cls &&
            pz_node_arg(c->n, c->op->operands[i].name))
            return true;
    return false;
}

typedef pz_status (*infer_fn)(infer *c);
static const infer_fn rules[PZ_OP_COUNT] = {
#define OP(id, text, operands, results, attrs, traits, rule, doc) [PZ_OP_##id] = pz_infer_##rule,
#include "ir/ops.def"
#undef OP
};

pz_status pz_node_types(const pz_node *n, pz_type *out, int *count, pz_error *err) {
    *count = 0;
    infer c = {n, pz_schema(n->op), out, count, err};
    if (n->op != PZ_OP_CALL) PZ_TRY(check_operands(&c));
    PZ_TRY(check_attrs(&c));
    PZ_TRY(rules[n->op](&c));
    for (int i = 0; i < c.op->n_results && result_present(&c, &c.op->results[i]); i++, (*count)++)
        if (c.op->results[i].cls == PZ_CLASS_BUFFER) out[i] = pz_type_make(PZ_DT_BUFFER, 0, 0, 0, 0);
    return PZ_OK;
}

pz_status pz_node_infer(pz_node *n, const char *const *names, pz_error *err) {
    pz_type types[PZ_MAX_RETURNS];
    int count;
    PZ_TRY(pz_node_types(n, types, &count, err));
    if (n->results.n > count)
        return pz_node_fail(n, PZ_E_TYPE, err, "%d results are named, %s gives %d", n->results.n, pz_op_text(n->op),
                            count);
    for (int i = n->results.n; i < count; i++) PZ_TRY(pz_node_add_result(n, names ? names[i] : NULL, err));
    for (int i = 0; i < count; i++) n->results.at[i]->type = types[i];
    return PZ_OK;
}
