/* SPDX-License-Identifier: Apache-2.0 */
/* Tables, building, reading and editing of graphs. */
#include "support.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "base/rng.h"
#include "ir/ir_internal.h"

/* ---- tables ---- */
static void *check_in_thread(void *ok) {
    *(bool *)ok = pz_schema_check(NULL) == PZ_OK && pz_schema(PZ_OP_GEMM)->n_operands == 3;
    return NULL;
}

static void test_table(void **state) {
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    bool ok[THREADS] = {false};
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, check_in_thread, &ok[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(ok[i]);
    }
    pz_error err = {0};
    assert_ok(pz_schema_check(&err), &err);
    for (int i = 0; i < PZ_OP_COUNT; i++) {
        const pz_op_schema *s = pz_schema((pz_op)i);
        pz_op back;
        assert_ok(pz_name_check(s->text, false, "op", &err), &err);
        assert_true(pz_op_from_text(s->text, &back) && back == (pz_op)i);
        assert_true(*pz_op_doc((pz_op)i) != 0);
        for (int j = 0; j < s->n_operands; j++) assert_int_equal(pz_op_operand_index((pz_op)i, s->operands[j].name), j);
        bool takes = false, gives = false;
        for (int j = 0; j < s->n_operands; j++)
            takes |= s->operands[j].optional && s->operands[j].cls == PZ_CLASS_BUFFER;
        for (int j = 0; j < s->n_results; j++) gives |= s->results[j].optional;
        /* Only donors take a fill and give it back zeroed; only consumers take a slice. */
        assert_int_equal(gives, (s->traits & PZ_TRAIT_DONOR) != 0);
        assert_int_equal(takes, (s->traits & (PZ_TRAIT_DONOR | PZ_TRAIT_CONSUMER)) != 0);
        assert_false((s->traits & PZ_TRAIT_PURE) && (s->traits & PZ_TRAIT_EFFECT));
        if (s->traits & PZ_TRAIT_ROW_NORM) assert_int_equal(s->results[0].cls, PZ_CLASS_ACT);
    }
    pz_op none;
    assert_false(pz_op_from_text("mul", &none));
    assert_int_equal(pz_op_operand_index(PZ_OP_ADD, "w"), -1);
    assert_int_equal(pz_op_traits(PZ_OP_GEMM), PZ_TRAIT_PURE | PZ_TRAIT_CONSUMER);
    assert_int_equal(pz_op_traits(PZ_OP_FUSED_ALLREDUCE_RMSNORM),
                     PZ_TRAIT_PURE | PZ_TRAIT_DONOR | PZ_TRAIT_ROW_NORM | PZ_TRAIT_COLLECTIVE);
    const pz_attr_spec *eps = pz_schema_attr(PZ_OP_RMS_NORM, "eps"), *out = pz_schema_attr(PZ_OP_ADD, "out");
    assert_true(eps && eps->type == PZ_ATTR_FLOAT && eps->f == 1e-6 && !eps->required);
    assert_true(out && out->type == PZ_ATTR_DTYPE && out->dt == PZ_DT_NONE && !out->required);
    assert_true(pz_schema_attr(PZ_OP_SLICE, "start")->required);
}

/* Each mistake a row of the table can have. */
static void test_table_mistakes(void **state) {
    (void)state;
    static const struct {
        const char *operands, *results, *attrs, *message;
    } rows[] = {
        {"x", "", "", "ops.def: op: operand 'x' is not a new name:class"},
        {":act", "", "", "operand ':act' is not a new name:class"},
        {"x:actt", "", "", "operand 'x:actt' is not a new name:class"},
        {"x:act?", "", "x", "attribute 'x' is not"},
        {"x:act x:i32", "", "", "operand 'x:i32' is not a new name:class"},
        {"a_name_that_is_too_long:act", "", "", "is not a new name:class"},
        {"a:act b:act c:act d:act e:act f:act g:act h:act i:act", "", "", "more than 8 operands"},
        {"", "y:", "", "operand 'y:' is not a new name:class"},
        {"", "z:buffer? y:act", "", "result 'z' is optional but not the last"},
        {"", "a:act b:act c:act d:act e:act", "", "more than 4 operands"},
        {"", "", "n", "attribute 'n' is not a new name:type or name:type=default"},
        {"", "", "n:intt", "attribute 'n:intt' is not"},
        {"", "", "n:int=", "attribute 'n:int=' is not"},
        {"", "", "n:int=x", "attribute 'n:int=x' is not"},
        {"", "", "n:int=99999999999999999999", "is not a new name:type"},
        {"", "", "n:float=1e", "attribute 'n:float=1e' is not"},
        {"", "", "n:str=sixteen_characters", "is not a new name:type"},
        {"", "", "n:strs=a", "attribute 'n:strs=a' is not"},
        {"", "", "n:dtype=f33", "attribute 'n:dtype=f33' is not"},
        {"", "", "n:int n:int", "attribute 'n:int' is not a new"},
        {"", "", "a:int b:int c:int d:int e:int f:int g:int h:int i:int", "more than 8 attributes"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pz_op_schema row = {
            .text = "op", .operand_text = rows[i].operands, .result_text = rows[i].results, .attr_text = rows[i].attrs};
        pz_error err = {0};
        assert_fails(pz_schema_parse_row(&row, &err), PZ_E_INTERNAL, &err, rows[i].message);
    }
}

static void test_dtypes(void **state) {
    (void)state;
    static const struct {
        pz_dtype dt;
        const char *text;
        int bits;
        bool act;
    } rows[] = {{PZ_DT_F32, "f32", 32, true},      {PZ_DT_BF16, "bf16", 16, true}, {PZ_DT_FIXED, "fixed", 32, true},
                {PZ_DT_I32, "i32", 32, false},     {PZ_DT_FP8, "fp8", 8, false},   {PZ_DT_MXFP4, "mxfp4", 4, false},
                {PZ_DT_BUFFER, "buffer", 0, false}};
    assert_int_equal(sizeof rows / sizeof *rows, PZ_DT_COUNT - 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_string_equal(pz_dtype_text(rows[i].dt), rows[i].text);
        assert_int_equal(pz_dtype_bits(rows[i].dt), rows[i].bits);
        assert_int_equal(pz_dtype_is_act(rows[i].dt), rows[i].act);
        assert_int_equal(pz_dtype_from_text(rows[i].text, strlen(rows[i].text)), rows[i].dt);
        assert_int_equal(pz_dtype_from_text(rows[i].text, strlen(rows[i].text) - 1), PZ_DT_NONE);
    }
    static const struct {
        pz_accum accum;
        pz_dtype dt;
        const char *text;
    } accums[] = {
        {PZ_ACCUM_FIXED, PZ_DT_FIXED, "fixed"}, {PZ_ACCUM_F32, PZ_DT_F32, "f32"}, {PZ_ACCUM_BF16, PZ_DT_BF16, "bf16"}};
    for (size_t i = 0; i < 3; i++) {
        pz_accum back;
        assert_int_equal(pz_accum_dtype(accums[i].accum), accums[i].dt);
        assert_string_equal(pz_accum_text(accums[i].accum), accums[i].text);
        assert_true(pz_accum_from_text(accums[i].text, &back) && back == accums[i].accum);
    }
    pz_accum none;
    assert_false(pz_accum_from_text("i32", &none));
}

static void test_types(void **state) {
    (void)state;
    pz_type a = pz_type_make(PZ_DT_MXFP4, 3, 8, 64, 32), b = a;
    char buf[PZ_TYPE_TEXT];
    assert_true(pz_type_equal(&a, &b) && pz_type_match(&a, &b));
    b.dim[1] = PZ_DIM_UNKNOWN;
    assert_true(!pz_type_equal(&a, &b) && pz_type_match(&a, &b));
    b.dim[2] = 64;
    assert_false(pz_type_match(&a, &b));
    b = a;
    b.rank = 2;
    assert_false(pz_type_equal(&a, &b) || pz_type_match(&a, &b));
    b = a;
    b.dt = PZ_DT_FP8;
    assert_false(pz_type_equal(&a, &b) || pz_type_match(&a, &b));
    pz_type wide = {.dt = PZ_DT_BUFFER, .rank = 4, .dim = {PZ_MAX_DIM, PZ_DIM_M, PZ_DIM_UNKNOWN, INT64_MAX}};
    assert_string_equal(pz_type_text(&wide, buf), "buffer[2147483647,m,?,9223372036854775807]");
    pz_error err = {0};
    pz_type none = {0};
    assert_fails(pz_type_check(&none, PZ_TYPE_WEIGHT, &err), PZ_E_TYPE, &err, "type without a dtype");
    wide.rank = 5;
    assert_fails(pz_type_check(&wide, PZ_TYPE_WEIGHT, &err), PZ_E_TYPE, &err, "rank that is not in 0..4");
}

/* ---- names: against a plain list ---- */
static void test_names(void **state) {
    (void)state;
    enum { N = 600 };
    static char keys[N][8];
    pz_arena arena = {0};
    pz_names names = {0};
    assert_null(pz_names_find(&names, ""));
    assert_null(pz_names_find(&names, "a"));
    uint64_t seed = 1;
    int n = 0;
    for (int tries = 0; tries < 3000 && n < N; tries++) {
        /* short keys over three letters: many come twice, many are prefixes of others */
        uint64_t r = pz_rng_next(&seed);
        int len = (int)(r % 8);
        char key[8] = "";
        for (int i = 0; i < len && i < 7; i++) key[i] = "ab\xff"[(r >> (8 + 4 * i)) % 3];
        bool known = false;
        for (int i = 0; i < n; i++) known |= strcmp(keys[i], key) == 0;
        assert_int_equal(pz_names_find(&names, key) != NULL, known);
        if (known) continue;
        memcpy(keys[n], key, sizeof key);
        assert_true(pz_names_put(&names, &arena, keys[n], keys[n]));
        n++;
    }
    assert_true(n > 100);
    for (int i = 0; i < n; i++) assert_ptr_equal(pz_names_find(&names, keys[i]), keys[i]);
    assert_true(pz_names_put(&names, &arena, "ab", NULL));
    assert_null(pz_names_find(&names, "ab"));
    pz_arena_free(&arena);
}

/* ---- building ---- */
typedef struct built {
    pz_graph *g;
    pz_func *f;
    pz_value *x, *res;
    pz_weight *norm, *w;
    pz_node *n, *gemm;
} built;

/* The prezeroed pair, as a pass makes it. */
static pz_status build(built *b, pz_error *err) {
    static const char *const slices[] = {"w"};
    static const char *const names[] = {"y", NULL};
    pz_node *buffer;
    *b = (built){0};
    PZ_TRY(pz_graph_new("built", &b->g, err));
    PZ_TRY(pz_graph_add_weight(b->g, "norm", pz_type_make(PZ_DT_BF16, 1, 64, 0, 0), &b->norm, err));
    PZ_TRY(pz_graph_add_weight(b->g, "w", pz_type_make(PZ_DT_BF16, 2, 48, 64, 0), &b->w, err));
    PZ_TRY(pz_graph_add_func(b->g, "main", false, &b->f, err));
    PZ_TRY(pz_func_add_param(b->f, "x", pz_type_rows(PZ_DT_BF16, 64), &b->x, err));
    PZ_TRY(pz_func_add_param(b->f, "0", pz_type_rows(PZ_DT_BF16, 64), &b->res, err));
    PZ_TRY(pz_node_new(b->f, -1, PZ_OP_GEMM, &b->gemm, err));
    PZ_TRY(pz_node_new(b->f, 0, PZ_OP_ADD_RMS_NORM, &b->n, err));
    /* operands in any order come out in the table's */
    PZ_TRY(pz_node_add_weight(b->n, "w", b->norm, err));
    PZ_TRY(pz_node_add_value(b->n, "res", b->res, NULL, err));
    PZ_TRY(pz_node_add_value(b->n, "x", b->x, NULL, err));
    PZ_TRY(pz_node_set_float(b->n, "eps", 1e-5, err));
    PZ_TRY(pz_node_infer(b->n, names, err));
    PZ_TRY(pz_node_add_weight(b->gemm, "w", b->w, err));
    PZ_TRY(pz_node_add_value(b->gemm, "x", b->n->results.at[0], NULL, err));
    PZ_TRY(pz_node_set_str(b->gemm, "accum", "fixed", err));
    PZ_TRY(pz_node_infer(b->gemm, NULL, err));
    PZ_TRY(pz_push(&b->f->returns, b->gemm->results.at[0], err));
    PZ_TRY(pz_node_new(b->f, pz_node_position(b->n), PZ_OP_BUFFER, &buffer, err));
    PZ_TRY(pz_node_set_strs(buffer, "slices", slices, 1, err));
    PZ_TRY(pz_node_infer(buffer, NULL, err));
    PZ_TRY(pz_node_add_value(b->n, "zero_fill", buffer->results.at[0], NULL, err));
    PZ_TRY(pz_node_infer(b->n, NULL, err));
    PZ_TRY(pz_node_add_value(b->gemm, "into", pz_node_result(b->n, "z"), "w", err));
    PZ_TRY(pz_node_infer(b->gemm, NULL, err));
    return pz_graph_verify(b->g, err);
}

static void test_build(void **state) {
    (void)state;
    pz_error err = {0};
    built b;
    char *text;
    assert_int_equal(build(&b, &err), PZ_OK);
    assert_ok(pz_graph_print(b.g, &text, &err), &err);
    assert_string_equal(text, "weight @norm: bf16[64]\n"
                              "weight @w: bf16[48,64]\n"
                              "\n"
                              "func @main(%x: bf16[m,64], %0: bf16[m,64]) {\n"
                              "  %3 = buffer() {slices=[w]}\n"
                              "  %y, %1, %4 = add_rms_norm(%x, %0, @norm, zero_fill=%3) {eps=1e-5}\n"
                              "  %2 = gemm(%y, @w, into=%4:w) {accum=fixed}\n"
                              "  return %2\n"
                              "}\n");
    pz_free(text);
    /* reading */
    assert_ptr_equal(pz_node_arg_value(b.n, "x"), b.x);
    assert_ptr_equal(pz_node_arg_weight(b.n, "w"), b.norm);
    assert_null(pz_node_arg(b.gemm, "zero_fill"));
    assert_null(pz_node_arg_value(b.n, "w"));
    assert_string_equal(pz_node_arg(b.gemm, "into")->slice, "w");
    assert_true(pz_node_float(b.n, "eps") == 1e-5);
    assert_string_equal(pz_node_str(b.gemm, "accum"), "fixed");
    assert_string_equal(pz_node_str(b.gemm, "slot"), "");
    assert_string_equal(pz_node_str(b.gemm, "none"), "");
    assert_int_equal(pz_node_int(b.gemm, "none"), 0);
    assert_true(pz_node_float(b.gemm, "none") == 0);
    assert_null(pz_node_attr(b.gemm, "slot"));
    assert_ptr_equal(pz_node_result(b.n, "r"), b.n->results.at[1]);
    assert_null(pz_node_result(b.n, "none"));
    assert_null(pz_node_result(b.f->nodes.at[0], "y"));
    assert_true(pz_node_has(b.n, PZ_TRAIT_DONOR | PZ_TRAIT_ROW_NORM));
    assert_false(pz_node_has(b.n, PZ_TRAIT_DONOR | PZ_TRAIT_COLLECTIVE));
    assert_int_equal(pz_node_position(b.gemm), 2);
    char buf[64];
    assert_string_equal(pz_node_describe(b.gemm, buf, sizeof buf), "gemm %2");
    b.gemm->line = 12;
    b.gemm->col = 3;
    assert_string_equal(pz_node_describe(b.gemm, buf, sizeof buf), "gemm %2 (built:12:3)");
    assert_string_equal(pz_node_describe(b.gemm, buf, 6), "gemm ");
    pz_graph_free(b.g);
}

static void test_build_errors(void **state) {
    (void)state;
    pz_error err = {0};
    built b;
    pz_node *n;
    char longest[PZ_MAX_NAME + 2];
    memset(longest, 'n', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(build(&b, &err), PZ_OK);
    pz_type t = pz_type_rows(PZ_DT_F32, 8), w = pz_type_make(PZ_DT_F32, 1, 8, 0, 0);
    assert_fails(pz_graph_add_weight(b.g, "w", w, NULL, &err), PZ_E_VERIFY, &err, "weight @w is declared twice");
    assert_fails(pz_graph_add_weight(b.g, "a b", w, NULL, &err), PZ_E_INVAL, &err, "weight 'a b' is not a name");
    assert_fails(pz_graph_add_weight(b.g, "", w, NULL, &err), PZ_E_INVAL, &err, "weight '' is not a name");
    assert_fails(pz_graph_add_weight(b.g, "9", w, NULL, &err), PZ_E_INVAL, &err, "weight '9' is not a name");
    assert_fails(pz_graph_add_weight(b.g, longest, w, NULL, &err), PZ_E_INVAL, &err, "is longer than 255 bytes");
    assert_fails(pz_graph_add_weight(b.g, "v", t, NULL, &err), PZ_E_TYPE, &err, "dimension 1 of f32[m,8]");
    assert_fails(pz_graph_add_func(b.g, "main", false, NULL, &err), PZ_E_VERIFY, &err,
                 "function @main is defined twice");
    assert_fails(pz_func_add_param(b.f, "x", t, NULL, &err), PZ_E_VERIFY, &err, "value %x is defined twice in @main");
    assert_fails(pz_func_add_param(b.f, "1x", t, NULL, &err), PZ_E_INVAL, &err, "value '1x' is not a name");
    assert_fails(pz_func_add_param(b.f, "p", w, NULL, &err), PZ_E_TYPE, &err, "value of type f32[8]");
    assert_fails(pz_func_add_slot(b.f, "s", w, &err), PZ_E_TYPE, &err, "slot of type f32[8]");
    assert_ok(pz_func_add_slot(b.f, "s", t, &err), &err);
    assert_fails(pz_func_add_slot(b.f, "s", t, &err), PZ_E_VERIFY, &err, "slot s is declared twice");
    assert_true(pz_type_equal(&pz_func_find_slot(b.f, "s")->type, &t));
    assert_null(pz_func_find_slot(b.f, "t"));

    assert_fails(pz_node_new(b.f, 4, PZ_OP_ADD, &n, &err), PZ_E_INVAL, &err, "no position 4 among 3 nodes");
    assert_fails(pz_node_new(b.f, -2, PZ_OP_ADD, &n, &err), PZ_E_INVAL, &err, "no position -2");
    assert_fails(pz_node_new(b.f, 0, PZ_OP_COUNT, &n, &err), PZ_E_INVAL, &err, "no op");
    assert_fails(pz_node_add_value(b.n, "a", b.x, NULL, &err), PZ_E_TYPE, &err,
                 "@main: add_rms_norm %y: no operand 'a'");
    assert_fails(pz_node_add_value(b.n, NULL, b.x, NULL, &err), PZ_E_TYPE, &err, "no operand ''");
    assert_fails(pz_node_add_value(b.n, "x", b.x, NULL, &err), PZ_E_VERIFY, &err, "operand x is given twice");
    assert_fails(pz_node_add_value(b.gemm, "into", b.x, "a-b", &err), PZ_E_INVAL, &err, "slice 'a-b' is not a name");
    assert_fails(pz_node_set_int(b.n, "eps", 1, &err), PZ_E_TYPE, &err, "attribute eps is of type float, not int");
    assert_fails(pz_node_set_float(b.n, "eps", INFINITY, &err), PZ_E_INVAL, &err, "attribute eps must be finite");
    assert_fails(pz_node_set_dtype(b.gemm, "out", PZ_DT_F32, &err), PZ_E_TYPE, &err,
                 "no attribute 'out'; gemm has accum:str=f32");
    assert_fails(pz_node_set_str(b.gemm, "slot", "a b", &err), PZ_E_INVAL, &err, "slot 'a b' is not a name");
    assert_fails(pz_node_set_str(b.gemm, "accum", "", &err), PZ_E_INVAL, &err, "accum '' is not a name");
    assert_fails(pz_node_set_strs(b.f->nodes.at[0], "slices", NULL, PZ_MAX_SLOTS + 1, &err), PZ_E_INVAL, &err,
                 "more than 256");
    assert_fails(pz_node_remove(b.n, &err), PZ_E_VERIFY, &err, "cannot be removed: %y still has 1 uses");

    /* an empty string takes the attribute back where that is the default */
    assert_ok(pz_node_set_str(b.gemm, "slot", "s", &err), &err);
    assert_ok(pz_node_set_str(b.gemm, "slot", "t", &err), &err);
    assert_string_equal(pz_node_str(b.gemm, "slot"), "t");
    assert_int_equal(b.gemm->attrs.n, 2);
    assert_ok(pz_node_set_str(b.gemm, "slot", "", &err), &err);
    assert_int_equal(b.gemm->attrs.n, 1);
    assert_ok(pz_node_set_str(b.gemm, "slot", "", &err), &err);
    pz_graph_free(b.g);
}

static void test_call(void **state) {
    (void)state;
    pz_error err = {0};
    built b;
    pz_func *callee;
    pz_node *call;
    assert_int_equal(build(&b, &err), PZ_OK);
    assert_ok(pz_graph_add_func(b.g, "ext", true, &callee, &err), &err);
    callee->external = true;
    assert_ok(pz_func_add_param(callee, "a", pz_type_rows(PZ_DT_BF16, 64), NULL, &err), &err);
    assert_ok(pz_func_add_param(callee, "b", pz_type_rows(PZ_DT_BF16, PZ_DIM_UNKNOWN), NULL, &err), &err);
    assert_ok(pz_func_add_slot(callee, "s", pz_type_rows(PZ_DT_F32, 64), &err), &err);
    assert_ok(pz_func_add_result_type(callee, pz_type_rows(PZ_DT_F32, 64), &err), &err);
    assert_ok(pz_node_new(b.f, -1, PZ_OP_CALL, &call, &err), &err);
    assert_fails(pz_node_infer(call, NULL, &err), PZ_E_TYPE, &err, "@main: call @?: call without a function");
    call->callee = callee;
    /* positional arguments stay before slots, whatever is added first */
    assert_ok(pz_node_add_value(call, "s", pz_node_result(b.n, "z"), "w", &err), &err);
    assert_ok(pz_node_add_value(call, NULL, b.x, NULL, &err), &err);
    assert_ok(pz_node_add_value(call, NULL, b.res, NULL, &err), &err);
    assert_fails(pz_node_add_value(call, "s", b.x, "w", &err), PZ_E_VERIFY, &err, "slot s is given twice");
    assert_ok(pz_node_infer(call, NULL, &err), &err);
    assert_ptr_equal(call->args.at[0].value, b.x);
    assert_ptr_equal(call->args.at[1].value, b.res);
    assert_string_equal(call->args.at[2].name, "s");
    pz_type want = pz_type_rows(PZ_DT_F32, 64);
    assert_true(call->results.n == 1 && pz_type_equal(&call->results.at[0]->type, &want));
    assert_fails(pz_graph_verify(b.g, &err), PZ_E_VERIFY, &err, "call @ext: s=%4:w: the slice has a consumer already");
    assert_ok(pz_node_add_weight(call, NULL, b.w, &err), &err);
    assert_fails(pz_node_infer(call, NULL, &err), PZ_E_TYPE, &err, "argument 3 is a weight; a call takes values");
    pz_graph_free(b.g);
}

static void test_edit(void **state) {
    (void)state;
    pz_error err = {0};
    built b;
    pz_graph *copy;
    pz_node *n;
    assert_int_equal(build(&b, &err), PZ_OK);
    pz_value *y = b.n->results.at[0], *out = b.gemm->results.at[0];
    assert_int_equal(pz_value_use_count(b.f, y), 1);
    assert_int_equal(pz_value_use_count(b.f, out), 1);
    assert_int_equal(pz_value_use_count(b.f, b.x), 1);
    assert_ok(pz_push(&b.f->returns, y, &err), &err);
    assert_int_equal(pz_value_use_count(b.f, y), 2);
    pz_func_replace_uses(b.f, y, b.x);
    assert_int_equal(pz_value_use_count(b.f, y), 0);
    assert_int_equal(pz_value_use_count(b.f, b.x), 3);
    pz_func_replace_uses(b.f, out, b.x);
    assert_ok(pz_node_remove(b.gemm, &err), &err);
    assert_int_equal(b.f->nodes.n, 2);
    assert_null(pz_func_find_value(b.f, "2"));
    assert_fails(pz_node_remove(b.gemm, &err), PZ_E_VERIFY, &err, "not in its function");
    /* the name is free again, and fresh names avoid those in use */
    assert_ok(pz_node_new(b.f, -1, PZ_OP_ADD, &n, &err), &err);
    assert_ok(pz_node_add_value(n, "a", b.x, NULL, &err), &err);
    assert_ok(pz_node_add_value(n, "b", b.res, NULL, &err), &err);
    const char *const names[] = {"2"};
    assert_ok(pz_node_infer(n, names, &err), &err);
    assert_ptr_equal(pz_func_find_value(b.f, "2"), n->results.at[0]);
    b.g->next_id = 0;
    assert_ok(pz_node_new(b.f, -1, PZ_OP_SILU_MUL, &n, &err), &err);
    assert_ok(pz_node_add_value(n, "x", b.x, NULL, &err), &err);
    assert_ok(pz_node_infer(n, NULL, &err), &err);
    assert_string_equal(n->results.at[0]->name, "5");
    /* a donor that loses its fill still has the result */
    b.n->args.n--;
    assert_fails(pz_node_infer(b.n, NULL, &err), PZ_E_TYPE, &err, "3 results are named, add_rms_norm gives 2");
    b.n->args.n++;
    pz_graph_free(b.g);

    /* a change made on a clone and committed */
    assert_int_equal(build(&b, &err), PZ_OK);
    b.gemm->line = 7;
    b.gemm->col = 9;
    assert_ok(pz_graph_clone(b.g, &copy, &err), &err);
    assert_int_equal(copy->funcs.at[0]->nodes.at[2]->line, 7);
    assert_int_equal(copy->funcs.at[0]->nodes.at[2]->col, 9);
    assert_int_equal(copy->next_id, b.g->next_id);
    assert_ptr_not_equal(copy->funcs.at[0]->nodes.at[2]->args.at[1].weight, b.w);
    copy->funcs.at[0]->nodes.at[2]->line = 8;
    pz_graph_replace(b.g, copy);
    assert_int_equal(b.g->funcs.at[0]->nodes.at[2]->line, 8);
    assert_ptr_equal(b.g->funcs.at[0]->graph, b.g);
    assert_ok(pz_graph_verify(b.g, &err), &err);
    pz_graph_free(b.g);
    pz_graph_free(NULL);
}

/* Graphs that cannot be copied are refused. */
static void test_clone_errors(void **state) {
    (void)state;
    pz_error err = {0};
    built b;
    pz_graph *copy;
    pz_weight stray = {.name = "stray", .index = 99};
    assert_int_equal(build(&b, &err), PZ_OK);
    b.gemm->args.at[1].weight = &stray;
    assert_fails(pz_graph_clone(b.g, &copy, &err), PZ_E_VERIFY, &err, "an operand is not a weight of this graph");
    b.gemm->args.at[1].weight = b.w;
    b.gemm->args.at[0].value = NULL;
    assert_fails(pz_graph_clone(b.g, &copy, &err), PZ_E_VERIFY, &err, "an operand is not defined before its use");
    b.gemm->args.at[0].value = b.n->results.at[0];
    pz_value *out = b.gemm->results.at[0];
    out->name = "x";
    assert_fails(pz_graph_clone(b.g, &copy, &err), PZ_E_VERIFY, &err, "value %x is defined twice");
    assert_null(copy);
    pz_graph_free(b.g);
}

static pz_status build_once(void *unused) {
    (void)unused;
    built b;
    pz_status st = build(&b, NULL);
    pz_graph_free(b.g);
    return st;
}

static pz_status describe_once(void *json) {
    char *text;
    pz_status st = pz_describe_ops(json != NULL, &text, NULL);
    pz_free(text);
    return st;
}

static void test_no_memory(void **state) {
    (void)state;
    int yes = 1;
    assert_true(support_alloc_sweep(build_once, NULL) > 15);
    assert_true(support_alloc_sweep(describe_once, NULL) >= 1);
    assert_true(support_alloc_sweep_json(describe_once, &yes) >= PZ_OP_COUNT);
}

/* ---- pz_describe_ops ---- */
static void test_describe(void **state) {
    (void)state;
    pz_error err = {0};
    char *text;
    assert_ok(pz_describe_ops(1, &text, &err), &err);
    json_t *list = json_loads(text, 0, NULL);
    assert_int_equal(json_array_size(list), PZ_OP_COUNT);
    const json_t *gemm = json_array_get(list, PZ_OP_GEMM);
    assert_string_equal(json_string_value(json_object_get(gemm, "name")), "gemm");
    assert_string_equal(json_string_value(json_object_get(gemm, "operands")), "x:act w:weight into:buffer?");
    assert_string_equal(json_string_value(json_object_get(gemm, "results")), "y:act");
    assert_string_equal(json_string_value(json_object_get(gemm, "attributes")), "accum:str=f32 slot:str=");
    assert_string_equal(json_string_value(json_object_get(gemm, "traits")), "CONSUMER PURE");
    assert_int_equal(json_object_size(gemm), 6);
    json_decref(list);
    pz_free(text);
    assert_ok(pz_describe_ops(0, &text, &err), &err);
    for (int i = 0; i < PZ_OP_COUNT; i++) {
        assert_contains(text, pz_op_text((pz_op)i));
        assert_contains(text, pz_op_doc((pz_op)i));
    }
    assert_contains(text, "traits      DONOR COLLECTIVE ROW_NORM PURE\n");
    pz_free(text);
    char cut[8];
    pz_traits_text(~0u, cut, sizeof cut);
    assert_string_equal(cut, "DONOR C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),        cmocka_unit_test(test_table_mistakes), cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_types),        cmocka_unit_test(test_names),          cmocka_unit_test(test_build),
        cmocka_unit_test(test_build_errors), cmocka_unit_test(test_call),           cmocka_unit_test(test_edit),
        cmocka_unit_test(test_clone_errors), cmocka_unit_test(test_no_memory),      cmocka_unit_test(test_describe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
