/* SPDX-License-Identifier: Apache-2.0 */
/* Shape and dtype rules: each op once right and in every way wrong. The expected types are worked out by hand. */
#include "support.h"

#include <stdio.h>

#include "ir/ir.h"

static const char weights[] =
    "weight @emb: bf16[100,64] weight @emb3: bf16[2,100,64] weight @embq: fp8[100,64]\n"
    "weight @n: bf16[64] weight @nf: f32[64] weight @nq: mxfp4[64] weight @n32: bf16[32]\n"
    "weight @nu: bf16[?] weight @w: bf16[48,64] weight @w4: mxfp4[48,64] weight @w8: fp8[48,64]\n"
    "weight @wu: bf16[?,64] weight @w32: bf16[48,32] weight @freq: f32[4]\n"
    "weight @freqb: bf16[4] weight @freq3: f32[3] weight @kvn: bf16[56]\n"
    "weight @kvb: bf16[96,56] weight @kvbq: fp8[96,56] weight @kvb90: bf16[90,56]\n"
    "weight @bias: f32[64] weight @bias8: f32[8] weight @biasq: fp8[64]\n"
    "weight @up: mxfp4[8,64,64] weight @down: mxfp4[8,64,32] weight @downb: bf16[8,64,48]\n"
    "weight @upb: bf16[8,96,64] weight @up97: bf16[8,97,64] weight @down7: bf16[7,64,48]\n"
    "weight @down65: bf16[8,65,48] weight @up3: bf16[3,96,64] weight @down3: bf16[3,64,48]\n";
static const char params[] = "%ids: i32[m], %pos: i32[m], %seq: i32[m], %k: i32[m,4], %k1: i32[m,1], %x: bf16[m,64],\n"
                             "%f: f32[m,64], %q: fixed[m,64], %u: bf16[m,?], %o: bf16[m,65], %l: bf16[m,8],\n"
                             "%kw: f32[m,4], %s: bf16[m,96], %o168: f32[m,168], %t: f32[m,224]";

/* Parses a function with `body`; the caller frees *g. */
static pz_status parse_body(const char *body, pz_graph **g, pz_error *err) {
    char text[4096];
    int n = snprintf(text, sizeof text,
                     "%s\nfunc @f(%s) {\n%s\nreturn }\n"
                     "func @two(%%a: bf16[m,64], %%b: i32[m]) opaque slots(s: f32[m,64]) -> (f32[m,8], i32[m,4])\n",
                     weights, params, body);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return pz_graph_parse(text, (size_t)n, "t", g, err);
}

/* Types of the results of the last statement, with blanks between. */
typedef struct right_case {
    const char *body, *types;
} right_case;

static const right_case right[] = {
    {"%a = embed(%ids, @emb)", "bf16[m,64]"},
    {"%a = embed(%ids, @emb) {out=f32}", "f32[m,64]"},
    {"%a = rms_norm(%x, @n)", "bf16[m,64]"},
    {"%a = rms_norm(%f, @n)", "f32[m,64]"},
    {"%a = rms_norm(%q, @nf)", "bf16[m,64]"},
    {"%a = rms_norm(%u, @nu)", "bf16[m,?]"},
    {"%a = rms_norm(%u, @n)", "bf16[m,64]"},
    {"%b = buffer() {slices=[s]} %a, %z = rms_norm(%x, @n, zero_fill=%b) %c = gemm(%a, @w, into=%z:s)", "f32[m,48]"},
    {"%a, %r = add_rms_norm(%f, %x, @n)", "f32[m,64] f32[m,64]"},
    {"%a, %r = add_rms_norm(%f, %x, @n) {out=bf16}", "bf16[m,64] bf16[m,64]"},
    {"%a, %r = add_rms_norm(%u, %x, @nu)", "bf16[m,64] bf16[m,64]"},
    {"%a, %r = fused_allreduce_rmsnorm(%q, %x, @n)", "bf16[m,64] bf16[m,64]"},
    {"%a = latent_rms_norm(%x, @n)", "bf16[m,64]"},
    {"%a = all_reduce(%f) {out=bf16}", "bf16[m,64]"},
    {"%a = add(%x, %f)", "bf16[m,64]"},
    {"%a = add(%u, %f)", "bf16[m,64]"},
    {"%a = gemm(%x, @w)", "f32[m,48]"},
    {"%a = gemm(%x, @w4) {accum=bf16}", "bf16[m,48]"},
    {"%a = gemm(%x, @w8)", "f32[m,48]"},
    {"%a = gemm(%x, @wu)", "f32[m,?]"},
    {"%n = rms_norm(%x, @n) %a = gemm(%n, @w) {accum=fixed}", "fixed[m,48]"},
    {"%n, %r = add_rms_norm(%x, %x, @n) %a = gemm(%n, @w) {accum=fixed}", "fixed[m,48]"},
    {"%a = slice(%q) {start=60, size=4}", "fixed[m,4]"},
    {"%a = slice(%u) {start=60, size=400}", "bf16[m,400]"},
    {"%a = silu_mul(%x)", "bf16[m,32]"},
    {"%a = silu_mul(%u)", "bf16[m,?]"},
    {"mla_cache_write(%x, %pos, %seq, @kvn, @freq) {layer=0}", ""},
    /* 96 = 4 heads of 16 + 8, for the columns of q and for the rows of kv_b; 256 = 4 heads of 56 + 8 */
    {"%a = mla_absorb_q(%s, %pos, @kvb, @freq) {heads=4, nope=16, rope=8, v=8}", "f32[m,256]"},
    {"%a = mla_attention(%o168, %pos, %seq) {layer=3, heads=3, latent=48, rope=8, scale=0.5}", "f32[m,144]"},
    {"%a = mla_absorb_v(%t, @kvb) {heads=4, nope=16, v=8}", "bf16[m,32]"},
    {"%a, %b = router(%x) {top_k=4}", "i32[m,4] f32[m,4]"},
    {"%a, %b = router(%q, bias=@bias) {top_k=6, n_group=8, topk_group=3, scoring=softmax, norm=0}",
     "i32[m,6] f32[m,6]"},
    {"%a = moe_experts(%x, %k, %kw, @upb, @downb)", "f32[m,64]"},
    {"%a = moe_experts(%u, %k, %kw, @up, @down) {out=bf16}", "bf16[m,64]"},
    {"%a = moe_experts(%x, %k, %kw, @up3, @down3) {first=5, total=8}", "f32[m,64]"},
    {"%a = moe_experts(%x, %k, %kw, @upb, @downb) {total=8}", "f32[m,64]"},
    {"%b = buffer() {slices=[s]} %a, %r, %z = add_rms_norm(%x, %x, @n, zero_fill=%b)\n"
     "%c, %d = call @two(%a, %ids, s=%z:s)",
     "f32[m,8] i32[m,4]"},
    {"%a, %b = call @two(%u, %ids)", "f32[m,8] i32[m,4]"},
};

static void test_right(void **state) {
    (void)state;
    bool covered[PZ_OP_COUNT] = {false};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        pz_error err = {0};
        pz_graph *g;
        char *types;
        pz_status st = parse_body(right[i].body, &g, &err);
        if (st != PZ_OK) fail_msg("%s\n%s", right[i].body, err.msg);
        const pz_func *f = g->funcs.at[0];
        const pz_node *n = f->nodes.at[f->nodes.n - 1];
        pz_str s = {0};
        for (int j = 0; j < n->results.n; j++) {
            if (j) pz_str_add(&s, " ");
            pz_type_print(&n->results.at[j]->type, &s);
        }
        assert_ok(pz_str_take(&s, &types, &err), &err);
        if (strcmp(types, right[i].types)) fail_msg("%s\ngives %s, expected %s", right[i].body, types, right[i].types);
        for (int j = 0; j < f->nodes.n; j++) covered[f->nodes.at[j]->op] = true;
        pz_free(types);
        pz_graph_free(g);
    }
    for (int i = 0; i < PZ_OP_COUNT; i++)
        if (!covered[i]) fail_msg("no case for %s", pz_op_text((pz_op)i));
}

typedef struct wrong_case {
    const char *body, *message;
} wrong_case;

static const wrong_case wrong[] = {
    /* class of operands, for every class */
    {"%a = add(%x, %ids)", "add %a: operand b is %ids: i32[m], expected f32, bf16 or fixed [m,columns]"},
    {"%a = embed(%x, @emb)", "embed %a: operand ids is %x: bf16[m,64], expected i32[m] or i32[m,k]"},
    {"%a = embed(%ids, %x)", "embed %a: operand w is a value, expected a weight"},
    {"%a = add(%x, @w)", "add %a: operand b is a weight, expected f32, bf16 or fixed [m,columns]"},
    {"%a = rms_norm(%x, @n, zero_fill=%x)", "operand zero_fill is %x: bf16[m,64], expected a buffer"},
    {"%b = buffer() {slices=[s]} %a = add(%b, %x)", "operand a is %b: buffer, expected f32, bf16 or fixed"},
    {"%b = buffer() {slices=[s]} %a, %z = rms_norm(%x, @n, zero_fill=%b:s)", "operand zero_fill is %b with a slice"},
    {"%b = buffer() {slices=[s]} %a, %z = rms_norm(%x, @n, zero_fill=%b) %c = gemm(%a, @w, into=%z)",
     "operand into is %z without a slice, expected %z:slice"},
    /* presence */
    {"%a = add(%x)", "add %a: operand b is missing; add takes a:act b:act"},
    {"%a = slice(%x) {start=0}", "slice %a: attribute size is missing; slice has start:int size:int"},
    {"%a, %b = add(%x, %x)", "2 results are named, it gives 1"},
    {"add(%x, %x)", "0 results are named, it gives 1"},
    {"%a = mla_cache_write(%x, %pos, %seq, @kvn, @freq) {layer=0}", "1 results are named, it gives 0"},
    {"%a, %r, %z = add_rms_norm(%x, %x, @n)", "3 results are named, it gives 2"},
    {"%b = buffer() {slices=[s]} %a, %r = add_rms_norm(%x, %x, @n, zero_fill=%b)", "2 results are named, it gives 3"},
    /* out */
    {"%a = add(%x, %x) {out=fixed}", "attribute out is fixed, expected f32 or bf16"},
    {"%a = embed(%ids, @emb) {out=mxfp4}", "attribute out is mxfp4, expected f32 or bf16"},
    /* embed */
    {"%a = embed(%k, @emb)", "operand ids is %k: i32[m,4], expected i32[m]"},
    {"%a = embed(%ids, @emb3)", "operand w is @emb3: bf16[2,100,64], expected bf16 or f32 (not quantized) [?,?]"},
    {"%a = embed(%ids, @embq)", "operand w is @embq: fp8[100,64], expected bf16 or f32 (not quantized)"},
    /* norms */
    {"%a = rms_norm(%x, @n32)", "operand w is @n32: bf16[32], expected bf16 or f32 (not quantized) [64]"},
    {"%a = rms_norm(%x, @nq)", "operand w is @nq: mxfp4[64], expected bf16 or f32 (not quantized) [64]"},
    {"%a = rms_norm(%x, @emb)", "operand w is @emb: bf16[100,64], expected bf16 or f32 (not quantized) [64]"},
    {"%a = rms_norm(%x, @n) {eps=-1e-6}", "attribute eps is -1e-06, expected 0 or more"},
    {"%a, %r = add_rms_norm(%x, %o, @n)", "operand res is %o: bf16[m,65], expected bf16[m,64]"},
    {"%a, %r = fused_allreduce_rmsnorm(%x, %o, @n)", "operand res is %o: bf16[m,65], expected bf16[m,64]"},
    {"%a = latent_rms_norm(%x, @n32)", "operand w is @n32"},
    {"%a = add(%x, %o)", "operand b is %o: bf16[m,65], expected bf16[m,64]"},
    /* gemm */
    {"%a = gemm(%x, @w32)", "operand w is @w32: bf16[48,32], expected bf16, f32, mxfp4 or fp8 [?,64]"},
    {"%a = gemm(%x, @n)", "operand w is @n: bf16[64], expected bf16, f32, mxfp4 or fp8 [?,64]"},
    {"%a = gemm(%x, @w) {accum=f64}", "attribute accum is f64, expected fixed, f32 or bf16"},
    {"%a = gemm(%x, @w) {accum=fixed}", "accum=fixed needs the row norms of x, but %x is a parameter"},
    {"%n, %r = add_rms_norm(%x, %x, @n) %a = gemm(%r, @w) {accum=fixed}", "but %r is add_rms_norm"},
    {"%n = rms_norm(%x, @n) %s1 = slice(%n) {start=0, size=64} %a = gemm(%s1, @w) {accum=fixed}", "but %s1 is slice"},
    {"%n = add(%x, %x) %a = gemm(%n, @w) {accum=fixed}", "but %n is add; expected the first result of an op with"},
    /* slice, silu_mul */
    {"%a = slice(%x) {start=60, size=5}", "columns [60, 65) lie outside x, which has 64 columns"},
    {"%a = slice(%x) {start=-1, size=5}", "attribute start is -1, expected 0..2147483647"},
    {"%a = slice(%x) {start=0, size=0}", "attribute size is 0, expected 1..2147483647"},
    {"%a = slice(%x) {start=9223372036854775807, size=1}", "attribute start is 9223372036854775807, expected 0.."},
    {"%a = silu_mul(%o)", "operand x is %o: bf16[m,65], expected an even number of columns"},
    /* latent attention */
    {"mla_cache_write(%o, %pos, %seq, @kvn, @freq) {layer=0}", "operand kv is %o: bf16[m,65], expected bf16[m,64]"},
    {"mla_cache_write(%x, %k, %seq, @kvn, @freq) {layer=0}", "operand pos is %k: i32[m,4], expected i32[m]"},
    {"mla_cache_write(%x, %pos, %k, @kvn, @freq) {layer=0}", "operand seq is %k: i32[m,4], expected i32[m]"},
    {"mla_cache_write(%x, %pos, %seq, @kvn, @freqb) {layer=0}", "operand inv_freq is @freqb: bf16[4], expected f32[?]"},
    {"mla_cache_write(%x, %pos, %seq, @nq, @freq) {layer=0}", "operand w is @nq"},
    {"mla_cache_write(%x, %pos, %seq, @kvn, @freq) {layer=-1}", "attribute layer is -1"},
    {"mla_cache_write(%x, %pos, %seq, @kvn, @freq)", "attribute layer is missing"},
    {"%a = mla_absorb_q(%x, %pos, @kvb, @freq) {heads=4, nope=16, rope=8, v=8}",
     "operand q is %x: bf16[m,64], expected bf16[m,96]"},
    {"%a = mla_absorb_q(%s, %pos, @kvb90, @freq) {heads=4, nope=16, rope=8, v=8}",
     "operand kv_b is @kvb90: bf16[90,56], expected bf16 or f32 (not quantized) [96,?]"},
    {"%a = mla_absorb_q(%s, %pos, @kvbq, @freq) {heads=4, nope=16, rope=8, v=8}", "operand kv_b is @kvbq: fp8[96,56]"},
    {"%a = mla_absorb_q(%s, %pos, @kvb, @freq3) {heads=4, nope=16, rope=8, v=8}",
     "operand inv_freq is @freq3: f32[3], expected f32[4]"},
    {"%a = mla_absorb_q(%s, %pos, @kvb, @freq) {heads=4, nope=17, rope=7, v=8}",
     "attribute rope is 7, expected an even number"},
    {"%a = mla_absorb_q(%s, %pos, @kvb, @freq) {heads=0, nope=16, rope=8, v=8}",
     "attribute heads is 0, expected 1..1073741824"},
    {"%a = mla_absorb_q(%u, %pos, @wu, @freq) {heads=1073741824, nope=1, rope=8, v=1}",
     "result would have 77309411328 columns"},
    {"%a = mla_attention(%x, %pos, %seq) {layer=0, heads=3, latent=48, rope=8, scale=1}",
     "operand ql is %x: bf16[m,64], expected bf16[m,168]"},
    {"%a = mla_attention(%o168, %pos, %seq) {layer=0, heads=3, latent=48, rope=8}", "attribute scale is missing"},
    {"%a = mla_absorb_v(%t, @kvb90) {heads=4, nope=16, v=8}",
     "operand kv_b is @kvb90: bf16[90,56], expected bf16 or f32 (not quantized) [96,56]"},
    {"%a = mla_absorb_v(%o, @kvb) {heads=4, nope=16, v=8}",
     "operand o is %o: bf16[m,65], expected heads * latent columns"},
    {"%a = mla_absorb_v(%s, @kvb) {heads=4, nope=16, v=8}",
     "operand kv_b is @kvb: bf16[96,56], expected bf16 or f32 (not quantized) [96,24]"},
    /* router */
    {"%a, %b = router(%x, bias=@bias8) {top_k=4}",
     "operand bias is @bias8: f32[8], expected bf16 or f32 (not quantized) [64]"},
    {"%a, %b = router(%x, bias=@biasq) {top_k=4}", "operand bias is @biasq: fp8[64]"},
    {"%a, %b = router(%x) {top_k=65}", "attribute top_k is 65, expected 1..64"},
    {"%a, %b = router(%x) {top_k=4, n_group=7}", "64 experts cannot be divided into n_group=7 equal groups"},
    {"%a, %b = router(%x) {top_k=4, n_group=4, topk_group=5}", "attribute topk_group is 5, expected 1..4"},
    {"%a, %b = router(%x) {top_k=17, n_group=4, topk_group=1}", "top_k=17 from topk_group=1 groups of 16 experts"},
    {"%a, %b = router(%x) {top_k=4, n_group=64, topk_group=4}",
     "scored by group_top=2; expected top_k <= topk_group * 1 and group_top <= 1"},
    {"%a, %b = router(%x) {top_k=4, scoring=relu}", "attribute scoring is relu, expected one of sigmoid, softmax"},
    {"%a, %b = router(%x) {top_k=4, norm=2}", "attribute norm is 2, expected 0..1"},
    /* experts */
    {"%a = moe_experts(%x, %ids, %kw, @upb, @downb)", "operand ids is %ids: i32[m], expected i32[m,top_k]"},
    {"%a = moe_experts(%x, %k1, %kw, @upb, @downb)", "operand weights is %kw: f32[m,4], expected f32[m,1]"},
    {"%a = moe_experts(%o, %k, %kw, @upb, @downb)",
     "operand gate_up is @upb: bf16[8,96,64], expected bf16, f32, mxfp4 or fp8 [?,?,65]"},
    {"%a = moe_experts(%x, %k, %kw, @up97, @downb)",
     "operand gate_up is @up97: bf16[8,97,64], expected an even second dimension"},
    {"%a = moe_experts(%x, %k, %kw, @upb, @down7)",
     "operand down is @down7: bf16[7,64,48], expected bf16, f32, mxfp4 or fp8 [8,64,48]"},
    {"%a = moe_experts(%x, %k, %kw, @upb, @down65)", "operand down is @down65: bf16[8,65,48]"},
    {"%a = moe_experts(%x, %k, %kw, @upb, @down)",
     "operand down is @down: mxfp4[8,64,32], expected bf16, f32, mxfp4 or fp8 [8,64,48]"},
    {"%a = moe_experts(%x, %k, %kw, @up3, @down3)", "operand ids chooses 4 of 3 experts"},
    {"%a = moe_experts(%x, %k, %kw, @up3, @down3) {total=3}", "operand ids chooses 4 of 3 experts"},
    {"%a = moe_experts(%x, %k, %kw, @up3, @down3) {first=6, total=8}", "first=6 and 3 experts here, but total=8"},
    {"%a = moe_experts(%x, %k, %kw, @up3, @down3) {first=9, total=8}", "first=9 and 3 experts here, but total=8"},
    {"%a = moe_experts(%x, %k, %kw, @upb, @downb) {total=7}", "first=0 and 8 experts here, but total=7"},
    {"%a = moe_experts(%x, %k, %kw, @upb, @downb) {first=1}", "attribute first is 1, expected 0..0"},
    {"%a = moe_experts(%x, %k, %kw, @upb, @downb) {first=-1, total=8}", "attribute first is -1, expected 0.."},
    {"%a = moe_experts(%x, %k, %kw, @upb, @downb) {total=-1}", "attribute total is -1, expected 0.."},
    /* buffers, calls */
    {"%b = buffer() {slices=[]}", "attribute slices is empty"},
    {"%b = buffer() {slices=[s, t, s]}", "slice s is listed twice"},
    {"%a, %b = call @two(%x)", "call @two: 1 arguments, but @two takes 2"},
    {"%a, %b = call @two(%x, %ids, %x)", "3 arguments, but @two takes 2"},
    {"%a, %b = call @two(%f, %ids)", "argument 1 is %f: f32[m,64], expected bf16[m,64] for parameter %a"},
    {"%a, %b = call @two(%x, %k)", "argument 2 is %k: i32[m,4], expected i32[m] for parameter %b"},
    {"%a, %b = call @two(%x, %ids, s=%x)", "slot s is given %x, expected a slice of a zeroed buffer"},
    {"%a, %b = call @two(%x, %ids, s=%x:s)", "slot s is given %x, which is no buffer, expected a slice"},
    {"%a, %b = call @two(%x, %ids, t=%x:s)", "@two has no slot 't'"},
    {"%b = buffer() {slices=[s]} %a, %c = call @two(%b, %ids)", "argument 1 is a buffer; buffers go to slots"},
    {"%a = call @two(%x, %ids)", "1 results are named, it gives 2"},
};

static void test_wrong(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        pz_error err = {0};
        pz_graph *g = NULL;
        pz_status st = parse_body(wrong[i].body, &g, &err);
        if (st != PZ_E_TYPE || g) fail_msg("%s\ngives %s: %s", wrong[i].body, pz_status_name(st), err.msg);
        if (!strstr(err.msg, wrong[i].message) || strncmp(err.msg, "t:", 2))
            fail_msg("%s\n%s\nexpected %s", wrong[i].body, err.msg, wrong[i].message);
    }
}

/* The message of a type error points at its statement, wherever that is. */
static void test_position(void **state) {
    (void)state;
    static const char text[] = "func @f(%x: f32[m,3]) {\n"
                               "  %y = add(%x, %x)\n"
                               "  # comment\n"
                               "  %z =\n"
                               "    silu_mul(%y)\n"
                               "  return %z }";
    pz_error err = {0};
    pz_graph *g;
    assert_fails(pz_graph_parse(text, strlen(text), "layer.pz", &g, &err), PZ_E_TYPE, &err,
                 "layer.pz:4:3: @f: silu_mul %z: operand x is %y: f32[m,3], expected an even number of columns");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
