/* SPDX-License-Identifier: Apache-2.0 */
/* Each rule of the verifier (docs/ir.md) broken, in text where the text can say it, else by editing the graph. */
#include "support.h"

#include "ir/ir_internal.h"

typedef struct bad_graph {
    const char *text, *message;
} bad_graph;

#define W "weight @n: bf16[8] weight @w: bf16[4,8] weight @v: bf16[4,8] weight @q: fp8[4,8]\n"
#define HEAD W "func @f(%x: bf16[m,8]) {\n"
#define FILL "%b = buffer() {slices=[s, t]}\n%y, %z = rms_norm(%x, @n, zero_fill=%b)\n"
#define CALLEE                                                                                  \
    "func @g(%x: bf16[m,8]) opaque slots(a: fixed[m,4], b: f32[m,4]) { %y = rms_norm(%x, @n)\n" \
    "%p = gemm(%y, @w) {accum=fixed, slot=a} %r = gemm(%y, @q) {slot=b} return %p }\n"

static const bad_graph bad[] = {
    {"", "t: no function; the first is the entry"},
    {"weight @n: bf16[8]", "t: no function"},
    {"func @f(%x: f32[m,4]) opaque { return %x }",
     "t:1:1: @f: the first function is the entry, which cannot be opaque"},
    {"func @f() opaque -> ()", "cannot be opaque"},
    /* calls */
    {"func @f(%x: f32[m,4]) {\n call @f(%x) return }",
     "t:2:2: @f: call @f: recursive call: @f is still being called here"},
    {"func @f() { call @g() return } func @g() { call @h() call @h() return } func @h() {\n call @g() return }",
     "t:2:2: @h: call @g: recursive call: @g is still being called here; calls form no cycle"},
    /* zero fill: the buffer */
    {HEAD "%b = buffer() {slices=[s]} return }", "t:3:1: @f: buffer %b: buffer %b is filled by no donor"},
    {HEAD FILL "%c, %d = rms_norm(%x, @n, zero_fill=%b) return }", "rms_norm %c: buffer %b is filled a second time"},
    {HEAD FILL "%c, %d = rms_norm(%x, @n, zero_fill=%z) return }",
     "zero_fill=%z is zeroed already; expected the result of a buffer"},
    {HEAD "%b = buffer() {slices=[s]} %c = gemm(%x, @w, into=%b:s) return }",
     "gemm %c: into=%b:s is not zeroed yet; expected the z result of its donor"},
    /* zero fill: the slices */
    {HEAD FILL "return }", "t:4:1: @f: rms_norm %y: slice s of %z has no consumer"},
    {HEAD FILL "%c = gemm(%y, @w, into=%z:s) return }",
     "slice t of %z has no consumer; each slice that is filled has one"},
    {HEAD FILL "%c = gemm(%y, @w, into=%z:u) return }", "into=%z:u: buffer %b has no such slice"},
    {HEAD FILL "%c = gemm(%y, @w, into=%z:s) %d = gemm(%y, @v, into=%z:s) return }",
     "gemm %d: into=%z:s: the slice has a consumer already"},
    {HEAD FILL "%c = gemm(%y, @w, into=%z:t) %d = gemm(%y, @v, into=%z:s) return }",
     "gemm %c: into=%z:t: slices are used in the order of the list, expected s"},
    {HEAD FILL "%c = gemm(%y, @w, into=%z:s) return %z }", "@f: returns buffer %z; a buffer stays in its function"},
    {HEAD "%b = buffer() {slices=[s]} return %b }", "returns buffer %b"},
    /* quantized consumers */
    {HEAD FILL "%c = gemm(%y, @q, into=%z:s) %d = gemm(%y, @w, into=%z:t) return }",
     "gemm %c: into=%z:s: a GEMM with quantized weights takes no zeroed output"},
    {HEAD FILL "%c = call @g(%x, a=%z:s, b=%z:t) return }" CALLEE, "call @g: b=%z:t: a GEMM with quantized weights"},
    {HEAD FILL "%c = call @g(%x, b=%z:s, a=%z:t) return }" CALLEE, "call @g: b=%z:s: a GEMM with quantized weights"},
    /* slots */
    {HEAD "%c = gemm(%x, @w) {slot=a} return }", "gemm %c: slot=a: the function has no such slot"},
    {HEAD "return } func @g(%x: bf16[m,8]) slots(a: f32[m,4]) { return }",
     "@g: slot a has no GEMM; expected one with slot=a"},
    {HEAD "return } func @g(%x: bf16[m,8]) slots(a: f32[m,4]) { %c = gemm(%x, @w) {slot=a} %d = gemm(%x, @v) {slot=a} "
          "return }",
     "gemm %d: slot=a: the slot has a GEMM already"},
    {HEAD "return } func @g(%x: bf16[m,8]) slots(a: fixed[m,4]) { %c = gemm(%x, @w) {slot=a} return }",
     "gemm %c: slot=a: the slot has type fixed[m,4], expected the result's, f32[m,4]"},
    {HEAD "return } func @g(%x: bf16[m,8]) slots(a: f32[m,5]) { %c = gemm(%x, @w) {slot=a} return }",
     "the slot has type f32[m,5], expected the result's, f32[m,4]"},
    {W "func @f(%x: bf16[m,8]) slots(a: f32[m,4]) {\n" FILL "%c = gemm(%y, @w, into=%z:s) {slot=a} return }",
     "gemm %c: slot=a: the GEMM has into= too; expected one of them"},
};

static void test_text(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pz_error err = {0};
        pz_graph *g = NULL;
        pz_status st = pz_graph_parse(bad[i].text, strlen(bad[i].text), "t", &g, &err);

        if (st != PZ_E_VERIFY || g) fail_msg("%s\ngives %s: %s", bad[i].text, pz_status_name(st), err.msg);
        if (!strstr(err.msg, bad[i].message)) fail_msg("%s\n%s\nexpected %s", bad[i].text, err.msg, bad[i].message);
    }
}

static const char good[] = W "func @f(%x: bf16[m,8]) {\n" FILL "%c = gemm(%y, @w, into=%z:s)\n"
                             "%d = call @g(%x, a=%z:t)\n"
                             "return %c }\n" CALLEE "func @e(%x: bf16[m,8]) opaque slots(a: f32[m,4]) -> (f32[m,4])\n";

static pz_graph *parse_good(void) {
    pz_error err = {0};
    pz_graph *g;
    assert_ok(pz_graph_parse(good, strlen(good), "t", &g, &err), &err);
    return g;
}

static pz_value *value(pz_graph *g, const char *name) {
    pz_value *v = pz_func_find_value(g->funcs.at[0], name);
    assert_non_null(v);
    return v;
}

/* What a pass that edits by hand can break. */
static void break_type(pz_graph *g) {
    value(g, "c")->type.dim[1] = 5;
}
static void break_dtype(pz_graph *g) {
    value(g, "y")->type.dt = PZ_DT_F32;
}
static void break_order(pz_graph *g) {
    pz_func *f = g->funcs.at[0];
    pz_node *n = f->nodes.at[1];
    f->nodes.at[1] = f->nodes.at[2];
    f->nodes.at[2] = n;
}
static void break_scope(pz_graph *g) {
    value(g, "c")->def->args.at[0].value = pz_func_find_value(g->funcs.at[1], "y");
}
static void break_duplicate(pz_graph *g) {
    value(g, "d")->name = "c";
}
static void break_name(pz_graph *g) {
    value(g, "c")->name = "c c";
}
static void break_twice(pz_graph *g) {
    pz_error err = {0};
    assert_ok(pz_push(&g->funcs.at[0]->nodes, g->funcs.at[0]->nodes.at[2], &err), &err);
}
static void break_def(pz_graph *g) {
    value(g, "c")->def = value(g, "d")->def;
}
static void break_owner(pz_graph *g) {
    value(g, "c")->def->func = g->funcs.at[1];
}
static void break_no_value(pz_graph *g) {
    value(g, "c")->def->args.at[0].value = NULL;
}
static void break_results(pz_graph *g) {
    value(g, "y")->def->results.n = 1;
}
static void break_operand(pz_graph *g) {
    value(g, "c")->def->args.at[0].name = "y";
}
static void break_attr(pz_graph *g) {
    g->funcs.at[1]->nodes.at[1]->attrs.at[0].type = PZ_ATTR_INT;
}
static pz_weight stray = {.name = "stray"};
static void break_weight(pz_graph *g) {
    stray.type = g->weights.at[1]->type;
    value(g, "c")->def->args.at[1].weight = &stray;
}
static void break_weight_name(pz_graph *g) {
    g->weights.at[1]->name = "n";
}
static void break_weight_type(pz_graph *g) {
    g->weights.at[2]->type.dim[0] = 0;
}
static void break_func_name(pz_graph *g) {
    g->funcs.at[1]->name = "f";
}
static pz_func alien = {.name = "alien"};
static void break_callee(pz_graph *g) {
    value(g, "d")->def->callee = &alien;
}
static void break_callee_null(pz_graph *g) {
    value(g, "d")->def->callee = NULL;
}
static void break_param(pz_graph *g) {
    g->funcs.at[1]->params.at[0]->type.dim[0] = 7;
}
static void break_slot_name(pz_graph *g) {
    g->funcs.at[1]->slots.at[1].name = "a";
}
static void break_slot_type(pz_graph *g) {
    g->funcs.at[1]->slots.at[1].type.rank = 3;
}
static void break_external_body(pz_graph *g) {
    g->funcs.at[2]->opaque = false;
}
static void break_result_types(pz_graph *g) {
    g->funcs.at[2]->external = false;
}
static void break_return(pz_graph *g) {
    g->funcs.at[0]->returns.at[0] = g->funcs.at[1]->returns.at[0];
}
static void break_slices(pz_graph *g) {
    pz_error err = {0};
    const char *const list[] = {"s", "x", "t"};
    assert_ok(pz_node_set_strs(value(g, "b")->def, "slices", list, 3, &err), &err);
}

static void test_edited(void **state) {
    (void)state;
    static const struct {
        void (*edit)(pz_graph *);
        pz_status status;
        const char *message;
    } cases[] = {
        {break_type, PZ_E_VERIFY, "t:5:1: @f: gemm %c: result %c has type f32[m,5], expected f32[m,4]"},
        {break_dtype, PZ_E_VERIFY, "rms_norm %y: result %y has type f32[m,8], expected bf16[m,8]"},
        {break_order, PZ_E_VERIFY, "gemm %c: %y is not defined before this use in this function"},
        {break_scope, PZ_E_VERIFY, "gemm %c: %y is not defined before this use in this function"},
        {break_duplicate, PZ_E_VERIFY, "@f: value %c is defined twice; each is defined once"},
        {break_name, PZ_E_VERIFY, "@f: value 'c c' is not a name"},
        {break_twice, PZ_E_VERIFY, "@f: value %c is defined twice"},
        {break_def, PZ_E_VERIFY, "@f: value %c does not know its definition"},
        {break_owner, PZ_E_VERIFY, "belongs to another function"},
        {break_no_value, PZ_E_VERIFY, "is not defined before this use"},
        {break_results, PZ_E_VERIFY, "rms_norm %y: 1 results, expected 2"},
        {break_operand, PZ_E_TYPE, "gemm %c: no operand 'y'; gemm has x:act w:weight into:buffer?"},
        {break_attr, PZ_E_TYPE, "gemm %p: attribute accum is not in the op table, or of another type"},
        {break_weight, PZ_E_VERIFY, "gemm %c: operand w is not a weight of this graph"},
        {break_weight_name, PZ_E_VERIFY, "weight @n is declared twice"},
        {break_weight_type, PZ_E_VERIFY, "weight @v: dimension 1 of bf16[?,8] is not a number"},
        {break_func_name, PZ_E_VERIFY, "function @f is defined twice"},
        {break_callee, PZ_E_VERIFY, "the function called is not in this graph"},
        {break_callee_null, PZ_E_TYPE, "call without a function"},
        {break_param, PZ_E_VERIFY, "@g: value of type bf16[7,8]; expected f32, bf16 or fixed [m,columns]"},
        {break_slot_name, PZ_E_VERIFY, "@g: slot a is declared twice"},
        {break_slot_type, PZ_E_VERIFY, "@g: slot of type f32[m,4,"},
        {break_external_body, PZ_E_VERIFY, "@e: an external function is opaque and has no body"},
        {break_result_types, PZ_E_VERIFY, "@e: only an external function declares result types"},
        {break_return, PZ_E_VERIFY, "@f: returned value 1 is not defined in it"},
        {break_slices, PZ_E_VERIFY, "call @g: a=%z:t: slices are used in the order of the list, expected x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pz_error err = {0};
        pz_graph *g = parse_good();
        cases[i].edit(g);
        pz_status st = pz_graph_verify(g, &err);
        if (st != cases[i].status || !strstr(err.msg, cases[i].message))
            fail_msg("case %zu: %s: %s\nexpected %s", i, pz_status_name(st), err.msg, cases[i].message);
        pz_graph_free(g);
    }
}

static void test_good(void **state) {
    (void)state;
    pz_error err = {.msg = "untouched"};
    pz_graph *g = parse_good();
    assert_ok(pz_graph_verify(g, &err), &err);
    assert_string_equal(err.msg, "untouched");
    assert_int_equal(pz_graph_verify(g, NULL), PZ_OK);
    pz_graph_free(g);
}

static pz_status verify_once(void *g) {
    return pz_graph_verify(g, NULL);
}

static void test_no_memory(void **state) {
    (void)state;
    pz_graph *g = parse_good();
    assert_true(support_alloc_sweep(verify_once, g) >= 4);
    pz_graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_edited),
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
