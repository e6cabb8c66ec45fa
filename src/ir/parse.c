/* SPDX-License-Identifier: Apache-2.0 */
/* Text to graph, by recursive descent over docs/ir.md's grammar. Weights and functions may be used before they are
 * declared: the first use makes the object, the declaration fills it in. Types are inferred at the end, callees first.
 */
#include <errno.h>
#include <stdio.h>

#include "ir/ir_internal.h"
#include "ir/lex.h"

typedef struct forward {
    pz_token at; /* first use */
    void *object;
    bool func;
} forward;

typedef struct parser {
    pz_lexer lexer;
    pz_token tok; /* the next token, not yet consumed */
    pz_graph *g;
    pz_func *f; /* whose body is being read */
    pz_names early_weights, early_funcs;
    PZ_VEC(forward) early;
    PZ_VEC(pz_token) names; /* results of the statement being read, then words of the list being read */
    pz_error *err;
} parser;

typedef char name_buf[PZ_MAX_NAME + 1];

/* ---- messages ---- */
static pz_status fail_at(parser *p, const pz_token *t, pz_status code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static pz_status fail_at(parser *p, const pz_token *t, pz_status code, const char *fmt, ...) {
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return pz_fail(p->err, code, "%.100s:%d:%d: %s", p->g->name, t->line, t->col, msg);
}

/* The next token is not what the grammar wants. */
static pz_status expected(parser *p, const char *what) {
    char found[PZ_TOKEN_TEXT];
    pz_token_text(&p->tok, found);
    if (p->tok.kind == PZ_TOK_BAD) return fail_at(p, &p->tok, PZ_E_PARSE, "%s: %s", p->tok.problem, found);
    return fail_at(p, &p->tok, PZ_E_PARSE, "expected %s, found %s", what, found);
}

/* Puts the position before the message of a builder function. */
static pz_status located(parser *p, const pz_token *t, pz_status st) {
    if (st == PZ_OK || st == PZ_E_NOMEM) return st;
    return pz_fail_context(p->err, st, "%.100s:%d:%d", p->g->name, t->line, t->col);
}

/* ---- tokens ---- */
static void advance(parser *p) {
    pz_lexer_next(&p->lexer, &p->tok);
}

static bool is_punct(const parser *p, char c) {
    return p->tok.kind == PZ_TOK_PUNCT && *p->tok.s == c;
}

static bool is_word(const parser *p, const char *word) {
    return p->tok.kind == PZ_TOK_WORD && p->tok.n == strlen(word) && memcmp(p->tok.s, word, p->tok.n) == 0;
}

static bool accept_punct(parser *p, char c) {
    if (!is_punct(p, c)) return false;
    advance(p);
    return true;
}

static bool accept_word(parser *p, const char *word) {
    if (!is_word(p, word)) return false;
    advance(p);
    return true;
}

static pz_status expect_punct(parser *p, char c, const char *what) {
    return accept_punct(p, c) ? PZ_OK : expected(p, what);
}

/* Consumes a token of `kind` into *out. */
static pz_status expect_kind(parser *p, pz_token_kind kind, const char *what, pz_token *out) {
    *out = p->tok;
    if (p->tok.kind != kind) return expected(p, what);
    advance(p);
    return PZ_OK;
}

/* After an element of a list: a comma goes on, `close` ends it. */
static pz_status more(parser *p, char close, const char *what, bool *again) {
    *again = accept_punct(p, ',');
    return *again ? PZ_OK : expect_punct(p, close, what);
}

static const char *token_name(const pz_token *t, name_buf buf) {
    memcpy(buf, t->s, t->n);
    buf[t->n] = 0;
    return buf;
}

static bool token_int(const pz_token *t, int64_t *out) {
    name_buf buf;
    char *end;
    errno = 0;
    *out = strtoll(token_name(t, buf), &end, 10);
    return !*end && !errno;
}

/* ---- types ---- */
static pz_status parse_dim(parser *p, int64_t *out) {
    static const char what[] = "a dimension: a positive number, m or ?";
    pz_token t = p->tok;
    if (accept_punct(p, '?')) {
        *out = PZ_DIM_UNKNOWN;
    } else if (accept_word(p, "m")) {
        *out = PZ_DIM_M;
    } else {
        PZ_TRY(expect_kind(p, PZ_TOK_NUMBER, what, &t));
        if (!token_int(&t, out) || *out < 1 || *out > PZ_MAX_DIM)
            return fail_at(p, &t, PZ_E_PARSE, "dimension '%.*s' is not a number in 1..%lld", (int)t.n, t.s,
                           (long long)PZ_MAX_DIM);
    }
    return PZ_OK;
}

static pz_status parse_dtype(parser *p, pz_dtype *out) {
    *out = p->tok.kind == PZ_TOK_WORD ? pz_dtype_from_text(p->tok.s, p->tok.n) : PZ_DT_NONE;
    if (*out == PZ_DT_NONE) return expected(p, "a data type");
    advance(p);
    return PZ_OK;
}

static pz_status parse_type(parser *p, pz_type *out) {
    *out = (pz_type){0};
    PZ_TRY(parse_dtype(p, &out->dt));
    PZ_TRY(expect_punct(p, '[', "'[' after the data type"));
    for (bool again = true; again;) {
        if (out->rank == PZ_MAX_RANK) return fail_at(p, &p->tok, PZ_E_PARSE, "more than %d dimensions", PZ_MAX_RANK);
        PZ_TRY(parse_dim(p, &out->dim[out->rank++]));
        PZ_TRY(more(p, ']', "',' or ']' after dimension", &again));
    }
    return PZ_OK;
}

/* ---- references ---- */
static pz_status find_early(parser *p, const pz_token *t, bool func, void **out) {
    name_buf buf;
    pz_graph *g = p->g;
    const char *name = token_name(t, buf);
    void *object = func ? (void *)pz_graph_find_func(g, name) : (void *)pz_graph_find_weight(g, name);
    pz_names *early = func ? &p->early_funcs : &p->early_weights;
    if (!object) object = pz_names_find(early, name);
    if (!object) {
        char *key = pz_arena_strdup(&g->arena, name);
        object = pz_arena_alloc(&g->arena, func ? sizeof(pz_func) : sizeof(pz_weight));
        if (!key || !object || !pz_names_put(early, &g->arena, key, object)) return PZ_NOMEM(p->err);
        if (func)
            ((pz_func *)object)->name = key;
        else
            ((pz_weight *)object)->name = key;
        PZ_TRY(pz_push(&p->early, ((forward){*t, object, func}), p->err));
    }
    *out = object;
    return PZ_OK;
}

/* The object that uses before its declaration have made, or a new one. */
static void *declared_object(parser *p, const pz_token *t, bool func) {
    name_buf buf;
    void *object = pz_names_find(func ? &p->early_funcs : &p->early_weights, token_name(t, buf));
    return object ? object : pz_arena_alloc(&p->g->arena, func ? sizeof(pz_func) : sizeof(pz_weight));
}

static pz_status check_declared(parser *p) {
    for (int i = 0; i < p->early.n; i++) {
        const forward *e = &p->early.at[i];
        name_buf buf;
        const char *name = token_name(&e->at, buf);
        if (e->func ? !pz_graph_find_func(p->g, name) : !pz_graph_find_weight(p->g, name))
            return fail_at(p, &e->at, PZ_E_PARSE, "%s @%s is %s nowhere", e->func ? "function" : "weight", name,
                           e->func ? "defined" : "declared");
    }
    return PZ_OK;
}

static pz_status find_value(parser *p, const pz_token *t, pz_value **out) {
    name_buf buf;
    *out = pz_func_find_value(p->f, token_name(t, buf));
    return *out ? PZ_OK : fail_at(p, t, PZ_E_PARSE, "value %%%s is not defined before this use", buf);
}

/* ---- statements ---- */
static pz_status add_value_arg(parser *p, pz_node *n, const char *operand, const pz_token *t, bool may_slice) {
    pz_value *v;
    pz_token slice;
    name_buf buf;
    PZ_TRY(find_value(p, t, &v));
    bool sliced = may_slice && accept_punct(p, ':');
    if (sliced) PZ_TRY(expect_kind(p, PZ_TOK_WORD, "a slice name after ':'", &slice));
    return located(p, t, pz_node_add_value(n, operand, v, sliced ? token_name(&slice, buf) : NULL, p->err));
}

static pz_status add_global_arg(parser *p, pz_node *n, const char *operand, const pz_token *t) {
    void *w;
    if (n->op == PZ_OP_CALL) return fail_at(p, t, PZ_E_PARSE, "a call takes values, not weights");
    PZ_TRY(find_early(p, t, false, &w));
    return located(p, t, pz_node_add_weight(n, operand, w, p->err));
}

/* NAME '=' argument: an optional operand, or a slot of a call. */
static pz_status parse_named_arg(parser *p, pz_node *n) {
    pz_token name, t = {0};
    name_buf buf;
    PZ_TRY(expect_kind(p, PZ_TOK_WORD, "an operand", &name));
    const char *operand = token_name(&name, buf);
    int index = n->op == PZ_OP_CALL ? 0 : pz_op_operand_index(n->op, operand);
    if (index < 0)
        return fail_at(p, &name, PZ_E_PARSE, "%s has no operand '%s'; it takes: %s", pz_op_text(n->op), operand,
                       pz_schema(n->op)->operand_text);
    if (n->op != PZ_OP_CALL && !pz_schema(n->op)->operands[index].optional)
        return fail_at(p, &name, PZ_E_PARSE, "operand %s is not optional: it is given by its place, without name",
                       operand);
    if (pz_node_arg(n, operand)) return fail_at(p, &name, PZ_E_PARSE, "%s is given twice", operand);
    PZ_TRY(expect_punct(p, '=', "'=' after operand name"));
    t = p->tok;
    if (t.kind == PZ_TOK_VALUE) {
        advance(p);
        return add_value_arg(p, n, operand, &t, true);
    }
    if (t.kind != PZ_TOK_GLOBAL) return expected(p, "%value or @weight");
    advance(p);
    return add_global_arg(p, n, operand, &t);
}

static pz_status parse_positional_arg(parser *p, pz_node *n, int index) {
    pz_token t = p->tok;
    const char *operand = NULL;
    if (n->op != PZ_OP_CALL) {
        const pz_op_schema *s = pz_schema(n->op);
        if (index >= s->n_operands || s->operands[index].optional)
            return fail_at(p, &t, PZ_E_PARSE, "%s takes %d operands without name; it takes: %s", s->text, index,
                           s->operand_text);
        operand = s->operands[index].name;
    }
    advance(p);
    return t.kind == PZ_TOK_VALUE ? add_value_arg(p, n, operand, &t, false) : add_global_arg(p, n, operand, &t);
}

static pz_status parse_args(parser *p, pz_node *n) {
    PZ_TRY(expect_punct(p, '(', "'(' after the operation"));
    if (accept_punct(p, ')')) return PZ_OK;
    int positional = 0;
    bool named = false;
    for (bool again = true; again;) {
        if (p->tok.kind == PZ_TOK_VALUE || p->tok.kind == PZ_TOK_GLOBAL) {
            if (named) return fail_at(p, &p->tok, PZ_E_PARSE, "an operand without name comes after one with name");
            PZ_TRY(parse_positional_arg(p, n, positional++));
        } else {
            named = true;
            PZ_TRY(parse_named_arg(p, n));
        }
        PZ_TRY(more(p, ')', "',' or ')' after operand", &again));
    }
    return PZ_OK;
}

/* The words read last, from names.at[first] on, become the list. */
static pz_status set_words(parser *p, pz_node *n, const char *name, int first) {
    size_t count = (size_t)(p->names.n - first);
    name_buf *words = pz_calloc(count, sizeof *words);
    const char **list = pz_calloc(count, sizeof *list);
    pz_status st = words && list ? PZ_OK : PZ_NOMEM(p->err);
    for (size_t i = 0; st == PZ_OK && i < count; i++) list[i] = token_name(&p->names.at[first + (int)i], words[i]);
    if (st == PZ_OK) st = pz_node_set_strs(n, name, list, (int)count, p->err);
    pz_free(words);
    pz_free(list);
    p->names.n = first;
    return st;
}

static pz_status parse_strs(parser *p, pz_node *n, const char *name) {
    pz_token open = p->tok, t;
    int first = p->names.n;
    PZ_TRY(expect_punct(p, '[', "a list of words, [a, b]"));
    for (bool again = !accept_punct(p, ']'); again;) {
        PZ_TRY(expect_kind(p, PZ_TOK_WORD, "a word", &t));
        if (p->names.n - first == PZ_MAX_SLOTS) return fail_at(p, &t, PZ_E_PARSE, "more than %d words", PZ_MAX_SLOTS);
        PZ_TRY(pz_push(&p->names, t, p->err));
        PZ_TRY(more(p, ']', "',' or ']' after word", &again));
    }
    return located(p, &open, set_words(p, n, name, first));
}

static pz_status parse_attr_value(parser *p, pz_node *n, const pz_attr_spec *spec) {
    pz_token t = p->tok;
    name_buf buf;
    int64_t i;
    double d;
    pz_dtype dt;
    switch (spec->type) {
    case PZ_ATTR_INT:
        PZ_TRY(expect_kind(p, PZ_TOK_NUMBER, "a whole number", &t));
        if (!token_int(&t, &i))
            return fail_at(p, &t, PZ_E_PARSE, "'%.*s' is not a whole number of 64 bits", (int)t.n, t.s);
        return located(p, &t, pz_node_set_int(n, spec->name, i, p->err));
    case PZ_ATTR_FLOAT:
        PZ_TRY(expect_kind(p, PZ_TOK_NUMBER, "a number", &t));
        if (!pz_float_parse(token_name(&t, buf), &d))
            return fail_at(p, &t, PZ_E_PARSE, "'%s' is not a finite number", buf);
        return located(p, &t, pz_node_set_float(n, spec->name, d, p->err));
    case PZ_ATTR_STR:
        PZ_TRY(expect_kind(p, PZ_TOK_WORD, "a word", &t));
        return located(p, &t, pz_node_set_str(n, spec->name, token_name(&t, buf), p->err));
    case PZ_ATTR_DTYPE:
        PZ_TRY(parse_dtype(p, &dt));
        return located(p, &t, pz_node_set_dtype(n, spec->name, dt, p->err));
    case PZ_ATTR_STRS: break;
    }
    return parse_strs(p, n, spec->name);
}

static pz_status parse_attrs(parser *p, pz_node *n) {
    if (!accept_punct(p, '{')) return PZ_OK;
    for (bool again = true; again;) {
        pz_token name;
        name_buf buf;
        PZ_TRY(expect_kind(p, PZ_TOK_WORD, "an attribute name", &name));
        const pz_attr_spec *spec = pz_schema_attr(n->op, token_name(&name, buf));
        if (!spec)
            return fail_at(p, &name, PZ_E_PARSE, "%s has no attribute '%s'; it has: %s", pz_op_text(n->op), buf,
                           pz_schema(n->op)->n_attrs ? pz_schema(n->op)->attr_text : "none");
        if (pz_node_attr(n, buf)) return fail_at(p, &name, PZ_E_PARSE, "attribute %s is given twice", buf);
        PZ_TRY(expect_punct(p, '=', "'=' after attribute name"));
        PZ_TRY(parse_attr_value(p, n, spec));
        PZ_TRY(more(p, '}', "',' or '}' after attribute", &again));
    }
    return PZ_OK;
}

static pz_status parse_op(parser *p, pz_node **out, const pz_token *start) {
    pz_token t, callee;
    name_buf buf;
    void *f = NULL;
    pz_op op;
    PZ_TRY(expect_kind(p, PZ_TOK_WORD, "an operation", &t));
    if (!pz_op_from_text(token_name(&t, buf), &op)) return fail_at(p, &t, PZ_E_PARSE, "unknown operation '%s'", buf);
    if (op == PZ_OP_CALL) {
        PZ_TRY(expect_kind(p, PZ_TOK_GLOBAL, "@function after call", &callee));
        PZ_TRY(find_early(p, &callee, true, &f));
    }
    PZ_TRY(pz_node_new(p->f, -1, op, out, p->err));
    (*out)->callee = f;
    PZ_TRY(parse_args(p, *out));
    PZ_TRY(parse_attrs(p, *out));
    /* Set last: until here messages carry the position of the token that is wrong. */
    (*out)->line = start->line;
    (*out)->col = start->col;
    return PZ_OK;
}

static pz_status parse_statement(parser *p) {
    pz_token start = p->tok, t;
    pz_node *n = NULL;
    name_buf buf;
    p->names.n = 0;
    if (p->tok.kind == PZ_TOK_VALUE) {
        for (bool again = true; again;) {
            PZ_TRY(expect_kind(p, PZ_TOK_VALUE, "%value", &t));
            if (p->names.n == PZ_MAX_RETURNS) return fail_at(p, &t, PZ_E_PARSE, "more than %d results", PZ_MAX_RETURNS);
            PZ_TRY(pz_push(&p->names, t, p->err));
            PZ_TRY(more(p, '=', "',' or '=' after result", &again));
        }
    } else if (p->tok.kind != PZ_TOK_WORD) {
        return expected(p, "a statement, 'return' or '}'");
    }
    PZ_TRY(parse_op(p, &n, &start));
    for (int i = 0; i < p->names.n; i++) {
        const pz_token *name = &p->names.at[i];
        PZ_TRY(located(p, name, pz_node_add_result(n, token_name(name, buf), p->err)));
    }
    return PZ_OK;
}

static pz_status parse_return(parser *p) {
    pz_token t;
    pz_value *v;
    for (bool again = p->tok.kind == PZ_TOK_VALUE; again;) {
        PZ_TRY(expect_kind(p, PZ_TOK_VALUE, "%value", &t));
        PZ_TRY(find_value(p, &t, &v));
        if (p->f->returns.n == PZ_MAX_RETURNS)
            return fail_at(p, &t, PZ_E_PARSE, "more than %d results", PZ_MAX_RETURNS);
        PZ_TRY(pz_push(&p->f->returns, v, p->err));
        again = accept_punct(p, ',');
    }
    return expect_punct(p, '}', p->f->returns.n ? "',' or '}' after result" : "'}' or %value after 'return'");
}

/* ---- top level ---- */
static pz_status parse_params(parser *p) {
    PZ_TRY(expect_punct(p, '(', "'(' after function name"));
    for (bool again = !accept_punct(p, ')'); again;) {
        pz_token t, at;
        pz_type type;
        name_buf buf;
        PZ_TRY(expect_kind(p, PZ_TOK_VALUE, "%parameter", &t));
        PZ_TRY(expect_punct(p, ':', "':' after parameter name"));
        at = p->tok;
        PZ_TRY(parse_type(p, &type));
        PZ_TRY(located(p, &at, pz_type_check(&type, PZ_TYPE_PARAM, p->err)));
        PZ_TRY(located(p, &t, pz_func_add_param(p->f, token_name(&t, buf), type, NULL, p->err)));
        PZ_TRY(more(p, ')', "',' or ')' after parameter", &again));
    }
    return PZ_OK;
}

static pz_status parse_slots(parser *p) {
    if (!accept_word(p, "slots")) return PZ_OK;
    PZ_TRY(expect_punct(p, '(', "'(' after 'slots'"));
    for (bool again = true; again;) {
        pz_token t, at;
        pz_type type;
        name_buf buf;
        PZ_TRY(expect_kind(p, PZ_TOK_WORD, "a slot name", &t));
        PZ_TRY(expect_punct(p, ':', "':' after slot name"));
        at = p->tok;
        PZ_TRY(parse_type(p, &type));
        PZ_TRY(located(p, &at, pz_type_check(&type, PZ_TYPE_SLOT, p->err)));
        PZ_TRY(located(p, &t, pz_func_add_slot(p->f, token_name(&t, buf), type, p->err)));
        PZ_TRY(more(p, ')', "',' or ')' after slot", &again));
    }
    return PZ_OK;
}

static pz_status parse_result_types(parser *p) {
    PZ_TRY(expect_punct(p, '(', "'(' after '->'"));
    p->f->external = true;
    for (bool again = !accept_punct(p, ')'); again;) {
        pz_token at = p->tok;
        pz_type type;
        PZ_TRY(parse_type(p, &type));
        PZ_TRY(located(p, &at, pz_func_add_result_type(p->f, type, p->err)));
        PZ_TRY(more(p, ')', "',' or ')' after type", &again));
    }
    return PZ_OK;
}

static pz_status parse_func(parser *p, const pz_token *start) {
    pz_token t;
    name_buf buf;
    PZ_TRY(expect_kind(p, PZ_TOK_GLOBAL, "@function after 'func'", &t));
    p->f = declared_object(p, &t, true);
    if (!p->f) return PZ_NOMEM(p->err);
    PZ_TRY(located(p, &t, pz_graph_declare_func(p->g, p->f, token_name(&t, buf), false, p->err)));
    p->f->line = start->line;
    p->f->col = start->col;
    PZ_TRY(parse_params(p));
    p->f->opaque = accept_word(p, "opaque");
    PZ_TRY(parse_slots(p));
    if (p->f->opaque && p->tok.kind == PZ_TOK_ARROW) {
        advance(p);
        return parse_result_types(p);
    }
    PZ_TRY(expect_punct(p, '{', p->f->opaque ? "'{', or '->' and result types" : "'{' or 'opaque'"));
    while (!accept_word(p, "return")) PZ_TRY(parse_statement(p));
    return parse_return(p);
}

static pz_status parse_weight(parser *p, const pz_token *start) {
    pz_token t, at;
    pz_type type;
    name_buf buf;
    PZ_TRY(expect_kind(p, PZ_TOK_GLOBAL, "@weight after 'weight'", &t));
    PZ_TRY(expect_punct(p, ':', "':' after weight name"));
    at = p->tok;
    PZ_TRY(parse_type(p, &type));
    PZ_TRY(located(p, &at, pz_type_check(&type, PZ_TYPE_WEIGHT, p->err)));
    pz_weight *w = declared_object(p, &t, false);
    if (!w) return PZ_NOMEM(p->err);
    PZ_TRY(located(p, &t, pz_graph_declare_weight(p->g, w, token_name(&t, buf), type, p->err)));
    w->line = start->line;
    w->col = start->col;
    return PZ_OK;
}

static pz_status infer_node(pz_node *n, pz_error *err) {
    pz_type types[PZ_MAX_RETURNS];
    int count;
    PZ_TRY(pz_node_types(n, types, &count, err));
    if (n->results.n != count)
        return pz_node_fail(n, PZ_E_TYPE, err, "%d results are named, it gives %d", n->results.n, count);
    for (int i = 0; i < count; i++) n->results.at[i]->type = types[i];
    return PZ_OK;
}

static pz_status infer_all(parser *p) {
    int *order;
    PZ_TRY(pz_graph_call_order(p->g, &order, p->err));
    pz_status st = PZ_OK;
    for (int i = 0; st == PZ_OK && i < p->g->funcs.n; i++) {
        const pz_func *f = p->g->funcs.at[order[i]];
        for (int j = 0; st == PZ_OK && j < f->nodes.n; j++) st = infer_node(f->nodes.at[j], p->err);
    }
    pz_free(order);
    return st;
}

static pz_status parse_graph(parser *p) {
    advance(p);
    while (p->tok.kind != PZ_TOK_END) {
        pz_token start = p->tok;
        if (accept_word(p, "weight"))
            PZ_TRY(parse_weight(p, &start));
        else if (accept_word(p, "func"))
            PZ_TRY(parse_func(p, &start));
        else
            return expected(p, "'weight' or 'func'");
    }
    PZ_TRY(check_declared(p));
    PZ_TRY(infer_all(p));
    return pz_graph_verify(p->g, p->err);
}

pz_status pz_graph_parse(const char *text, size_t size, const char *name, pz_graph **out, pz_error *err) {
    PZ_NEED((text || !size) && out, "a text and a place for the graph", err);
    parser p = {.err = err};
    *out = NULL;
    PZ_TRY(pz_graph_new(name, &p.g, err));
    pz_lexer_start(&p.lexer, text, size);
    pz_status st = parse_graph(&p);
    pz_vec_free(&p.early);
    pz_vec_free(&p.names);
    if (st == PZ_OK)
        *out = p.g;
    else
        pz_graph_free(p.g);
    return st;
}
