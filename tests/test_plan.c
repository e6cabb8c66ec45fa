/* SPDX-License-Identifier: Apache-2.0 */
#include "support_plan.h"

/* ---- what a plan says ---- */
static void test_layer(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    pz_plan_options o = support_plan_options("cpu", 2, 3);
    pz_plan *p = support_plan(g, &o);
    assert_int_equal(p->launches.n, 16);
    assert_int_equal(p->fills.n, 2);
    assert_int_equal(p->slices.n, 4);
    assert_int_equal(p->inputs.n, 3);
    assert_int_equal(p->outputs.n, 1);

    const pz_launch *norm = &p->launches.at[support_launch(p, "rms_norm", 0)];
    const pz_launch *qkv = &p->launches.at[support_launch(p, "gemm qkv_a", 0)];
    const pz_launch *q = &p->launches.at[support_launch(p, "gemm q_b", 0)];
    const pz_launch *head = &p->launches.at[support_launch(p, "gemm lm_head", 0)];
    const pz_fill *f = &p->fills.at[norm->fill];
    assert_int_equal(f->level, 3);
    assert_int_equal(f->n_active, 3);
    assert_int_equal(f->bytes, (704 + 768 + 256) * 4 * 3);
    assert_int_equal(qkv->strategy, PZ_ZERO_PREZERO);
    assert_int_equal(qkv->gemm.split, 2);
    assert_int_equal(p->slices.at[qkv->slice].offset, f->offset);
    assert_int_equal(p->slices.at[q->slice].offset, f->offset + 704 * 4 * 3);
    assert_int_equal(p->places.at[q->out[0]].root, f->place);
    assert_int_equal(p->places.at[f->place].first, support_launch(p, "rms_norm", 0));
    assert_int_equal(p->places.at[f->place].last, support_launch(p, "fused_allreduce_rmsnorm", 0)); /* reads o_proj */
    assert_int_equal(head->strategy, PZ_ZERO_SELF);
    assert_int_equal(head->slice, -1);

    const pz_place *kv = &p->places.at[support_place(p, "attention.0/%kv")];
    assert_true(kv->root == f->place && kv->col == 128 && kv->ld == 704);
    assert_int_equal(kv->offset, p->places.at[qkv->out[0]].offset);
    assert_ptr_equal(kv->scale_weight, qkv->in[1].weight);
    assert_int_equal(kv->scale_col, 128);
    assert_int_equal(kv->scale_norm, p->places.at[norm->out[0]].norm);
    /* the norm of x serves the readers of the accumulator, too */
    assert_int_equal(p->places.at[kv->scale_norm].last, support_launch(p, "latent_rms_norm", 0));
    assert_int_equal(p->places.at[norm->out[0]].last, support_launch(p, "gemm qkv_a", 0));

    assert_false(p->launches.at[0].waits);
    for (int i = 1; i < p->launches.n; i++) assert_true(p->launches.at[i].waits);

    static const struct {
        const char *role;
        int layer;
    } layers[] = {{"embed", -1}, {"rms_norm", 0},    {"mla_cache_write", 0}, {"mla_attention", 0},
                  {"router", 0}, {"moe_experts", 0}, {"gemm lm_head", -1}};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        assert_int_equal(p->launches.at[support_launch(p, layers[i].role, 0)].layer, layers[i].layer);
    pz_plan_free(p);
    pz_graph_free(g);
}

static int count_strategy(const pz_plan *p, pz_strategy s) {
    int n = 0;
    for (int i = 0; i < p->launches.n; i++) n += p->launches.at[i].op == PZ_OP_GEMM && p->launches.at[i].strategy == s;
    return n;
}

static void test_no_rider(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    pz_plan_options o = support_plan_options("cpu", 2, 3);
    o.gate = PZ_GATE_SHUT;
    pz_plan *shut = support_plan(g, &o);
    assert_int_equal(shut->fill_bytes, 0);
    assert_int_equal(shut->fills.n, 2);
    assert_int_equal(shut->fills.at[0].level, 0);
    assert_int_equal(shut->fills.at[0].place, -1);
    assert_int_equal(count_strategy(shut, PZ_ZERO_SELF), 5);
    o.prefill = true;
    o.gate = PZ_GATE_OPEN;
    pz_plan *prefill = support_plan(g, &o);
    assert_int_equal(prefill->fills.n, 0);
    assert_int_equal(prefill->slices.n, 0);
    assert_int_equal(prefill->fill_bytes, 0);
    assert_int_equal(count_strategy(prefill, PZ_ZERO_SELF), 5);
    for (int i = 0; i < prefill->places.n; i++) {
        assert_int_not_equal(prefill->places.at[i].type.dt, PZ_DT_BUFFER);
        assert_null(strstr(prefill->places.at[i].name, "buffer"));
    }
    for (int i = 0; i < prefill->launches.n; i++) assert_int_equal(prefill->launches.at[i].fill, -1);
    assert_int_equal(prefill->arena_bytes, shut->arena_bytes); /* no byte wasted on a buffer */
    pz_plan_free(prefill);
    pz_plan_free(shut);
    pz_graph_free(g);
}

static void test_strategies(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    pz_plan_options o = support_plan_options("cpu", 2, 5);
    o.gate = PZ_GATE_SHUT;
    o.strategy = PZ_ZERO_REDUCE;
    pz_plan *p = support_plan(g, &o);
    assert_int_equal(count_strategy(p, PZ_ZERO_REDUCE), 5);
    const pz_launch *o_proj = &p->launches.at[support_launch(p, "gemm o_proj", 0)];
    assert_int_equal(p->places.at[o_proj->workspace].bytes, 8 * 5 * 256 * 4);
    pz_plan_free(p);
    o.strategy = PZ_ZERO_NONE;
    p = support_plan(g, &o);
    assert_int_equal(count_strategy(p, PZ_ZERO_NONE), 5);
    for (int i = 0; i < p->launches.n; i++)
        if (p->launches.at[i].op == PZ_OP_GEMM) assert_int_equal(p->launches.at[i].gemm.split, 1);
    pz_plan_free(p);
    o.gate = PZ_GATE_OPEN; /* what is prezeroed stays split */
    p = support_plan(g, &o);
    assert_int_equal(count_strategy(p, PZ_ZERO_PREZERO), 4);
    assert_int_equal(count_strategy(p, PZ_ZERO_NONE), 1);
    pz_plan_free(p);
    pz_graph_free(g);
}

/* Levels are prefixes of the active slices, and each mode takes the level it says. */
static void test_levels(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    pz_plan_options o = support_plan_options("h200", 0, 1);
    bool partial = false;
    for (int m = 1; m < 400; m += m < 8 ? 1 : 29)
        for (int fill = 1; fill < 20000; fill *= 7)
            for (int mode = PZ_GATE_AUTO; mode <= PZ_GATE_SHUT; mode++) {
                o.m = m;
                o.device.units = 40;
                o.device.gemm_units = 132;
                o.device.min_k = 64;
                o.device.gate.fill = fill;
                o.device.gate.handshake = fill % 3 ? 0.9 : 0; /* 0: the gate closes for what is not hidden */
                o.gate = (pz_gate_mode)mode;
                pz_plan *p = support_plan(g, &o);
                int64_t total = 0;
                for (int i = 0; i < p->fills.n; i++) {
                    const pz_fill *f = &p->fills.at[i];
                    int want = 0, seen = 0, filled = 0;
                    assert_int_equal(f->gates.n, f->n_active);
                    for (int k = 0; k < f->gates.n; k++) {
                        pz_gate_verdict v = f->gates.at[k].verdict;
                        if (mode == PZ_GATE_OPEN || (mode == PZ_GATE_AUTO && v != PZ_GATE_CLOSED) ||
                            (mode == PZ_GATE_STRICT && v == PZ_GATE_FREE))
                            want = k + 1;
                    }
                    assert_int_equal(f->level, want);
                    for (int s = f->first_slice; s < f->first_slice + f->n_slices; s++) {
                        const pz_slice *sl = &p->slices.at[s];
                        if (sl->active)
                            assert_int_equal(sl->filled, seen++ < f->level);
                        else
                            assert_false(sl->filled);
                        filled += sl->filled;
                        if (sl->filled) total += sl->bytes;
                    }
                    assert_int_equal(filled, f->level);
                    partial = partial || (f->level > 0 && f->level < f->n_active);
                }
                assert_int_equal(total, p->fill_bytes);
                pz_plan_free(p);
            }
    assert_true(partial);
    pz_graph_free(g);
}

/* ---- inlining ---- */
static const char twice_text[] =
    "weight @n: bf16[256]\n"
    "weight @a: bf16[256,256]\n"
    "weight @b: bf16[256,256]\n"
    "weight @mx: mxfp4[256,256]\n"
    "func @main(%x: bf16[m,256]) {\n"
    "  %z = buffer() {slices=[one, two, three]}\n"
    "  %y, %z1 = rms_norm(%x, @n, zero_fill=%z)\n"
    "  %p = call @f(%y, s=%z1:one)\n"
    "  %q = call @f(%p, s=%z1:two)\n"
    "  %e, %e2 = call @ext(%q, %y, t=%z1:three)\n"
    "  %k = gemm(%e, @mx) {accum=bf16}\n"
    "  return %k, %y, %x\n"
    "}\n"
    "func @f(%v: bf16[m,256]) opaque slots(s: bf16[m,256]) {\n"
    "  %w = call @inner(%v)\n"
    "  %g = gemm(%w, @a) {accum=bf16, slot=s}\n"
    "  return %g\n"
    "}\n"
    "func @inner(%v: bf16[m,256]) {\n"
    "  %s = slice(%v) {start=0, size=256}\n"
    "  return %s\n"
    "}\n"
    "func @ext(%v: bf16[m,256], %u: bf16[m,256]) opaque slots(t: f32[m,64]) -> (bf16[m,256], "
    "f32[m,8])\n";

static void test_inlining(void **state) {
    (void)state;
    pz_graph *g = support_graph(twice_text);
    pz_plan_options o = support_plan_options("cpu", 4, 2);
    o.gate = PZ_GATE_OPEN;
    pz_plan *p = support_plan(g, &o);
    assert_int_equal(p->launches.n, 5); /* norm, two GEMMs, the external call, the quantized GEMM */
    const pz_launch *one = &p->launches.at[1], *two = &p->launches.at[2], *ext = &p->launches.at[3],
                    *mx = &p->launches.at[4];
    assert_string_equal(p->places.at[one->out[0]].name, "f/%g");
    assert_int_equal(two->in[0].place == one->out[0], 0); /* it reads a view of it */
    assert_int_equal(p->places.at[two->in[0].place].offset, p->places.at[one->out[0]].offset);
    assert_string_equal(p->places.at[two->in[0].place].name, "f/inner/%s");
    assert_string_equal(p->slices.at[one->slice].name, "one");
    assert_string_equal(p->slices.at[two->slice].name, "two");
    assert_string_equal(ext->role, "call ext");
    assert_int_equal(ext->in[0].place, two->out[0]);
    assert_int_equal(ext->in[1].place, p->launches.at[0].out[0]);
    assert_true(ext->out[0] >= 0 && ext->out[1] >= 0);
    const pz_slice *three = &p->slices.at[2];
    assert_true(three->consumer == 3 && !three->active && !three->filled);
    assert_int_equal(p->fills.at[0].level, 2);
    assert_int_equal(mx->gemm.split, 1);
    assert_int_equal(mx->strategy, PZ_ZERO_NONE);
    assert_int_equal(p->outputs.at[2], p->inputs.at[0]); /* a parameter that is returned */
    char *text;
    pz_error err;
    assert_ok(pz_plan_text(p, &text, &err), &err);
    assert_contains(text, "three: the kernel behind the call is not known");
    assert_contains(text, "proven: ");
    pz_free(text);
    pz_plan_free(p);
    pz_graph_free(g);
}

/* Launches that touch nothing of those before them need not wait; those between two that conflict must. */
static void test_waits(void **state) {
    (void)state;
    pz_graph *g = support_graph("weight @t: bf16[8,64]\n"
                                "func @main(%i: i32[m], %j: i32[m]) {\n"
                                "  %a = embed(%i, @t)\n"
                                "  %b = embed(%j, @t)\n"
                                "  %c = embed(%j, @t)\n"
                                "  %s = add(%b, %c)\n"
                                "  return %s, %a\n"
                                "}\n");
    pz_plan_options o = support_plan_options("cpu", 4, 2);
    pz_plan *p = support_plan(g, &o);
    static const bool waits[] = {false, false, true, true}; /* %c: else the sum is not ordered after %b */
    for (int i = 0; i < 4; i++) assert_int_equal(p->launches.at[i].waits, waits[i]);
    pz_plan_free(p);
    pz_graph_free(g);
}

static void test_refused(void **state) {
    (void)state;
    pz_error err;
    pz_plan *p;
    pz_graph *g = support_graph(support_layer_text);
    pz_plan_options o = support_plan_options("cpu", 2, 0);
    assert_fails(pz_plan_create(g, &o, &p, &err), PZ_E_INVAL, &err, "0 rows");
    assert_null(p);
    o = support_plan_options("cpu", 2, 1);
    o.device.units = 0;
    assert_fails(pz_plan_create(g, &o, &p, &err), PZ_E_INVAL, &err, "0 units");
    o = support_plan_options("cpu", 2, 1);
    o.strategy = PZ_ZERO_PREZERO;
    assert_fails(pz_plan_create(g, &o, &p, &err), PZ_E_INVAL, &err, "prezero", "self, reduce or none");
    pz_graph_free(g);

    static const struct {
        const char *text, *why;
        pz_status st;
        int m;
    } rows[] = {
        {"func @f(%x: bf16[m,?]) {\n  return %x\n}\n", "%x: its size is not known", PZ_E_UNSUPPORTED, 1},
        {"func @f(%x: fixed[m,8]) {\n  return %x\n}\n", "%x: a fixed value must come from a gemm", PZ_E_UNSUPPORTED, 1},
        {"func @f(%x: bf16[m,8]) {\n  %y = call @e(%x)\n  return %y\n}\nfunc @e(%x: bf16[m,8]) opaque -> "
         "(fixed[m,8])\n",
         "%y: a fixed value must come from a gemm", PZ_E_UNSUPPORTED, 1},
        {"func @f(%x: bf16[m,8]) {\n  %a, %b, %c, %d = call @e(%x)\n  return %a\n}\n"
         "func @e(%x: bf16[m,8]) opaque -> (f32[m,8], f32[m,8], f32[m,8], f32[m,8])\n",
         "more than 3 results", PZ_E_UNSUPPORTED, 1},
        {"func @f(%x: bf16[m,8]) {\n  %a = call @e(%x, %x, %x, %x, %x, %x, %x, %x, %x)\n  return %a\n}\n"
         "func @e(%a: bf16[m,8], %b: bf16[m,8], %c: bf16[m,8], %d: bf16[m,8], %e: bf16[m,8], %f: bf16[m,8], %g: "
         "bf16[m,8], %h: bf16[m,8], %i: bf16[m,8]) opaque -> (f32[m,8])\n",
         "more than 8 operands", PZ_E_UNSUPPORTED, 1},
        {"func @e(%x: bf16[m,8]) opaque -> (f32[m,8])\n", NULL, PZ_OK, 1}, /* refused by the parser: no entry */
        {"func @f(%x: f32[m,1000000000]) {\n  return %x\n}\n", "%x: too large", PZ_E_RANGE, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (pz_graph_parse(rows[i].text, strlen(rows[i].text), "t", &g, &err) != PZ_OK) {
            if (rows[i].why) fail_msg("row %zu: %s", i, err.msg);
            continue;
        }
        o = support_plan_options("cpu", 2, rows[i].m);
        assert_fails(pz_plan_create(g, &o, &p, &err), rows[i].st, &err, rows[i].why);
        pz_graph_free(g);
    }
}

/* Each function calls the next twice: 2^24 launches of the last. */
static void test_explosion(void **state) {
    (void)state;
    pz_error err;
    pz_plan *p;
    for (int deep = 0; deep < 2; deep++) {
        pz_str b = {0};
        int levels = deep ? 70 : 25;
        for (int i = 0; i < levels; i++) {
            pz_str_addf(&b, "func @f%d(%%x: f32[m,8]) {\n", i);
            if (i + 1 == levels)
                pz_str_add(&b, "  %y = add(%x, %x)\n  return %y\n}\n");
            else if (deep)
                pz_str_addf(&b, "  %%y = call @f%d(%%x)\n  return %%y\n}\n", i + 1);
            else
                pz_str_addf(&b, "  %%t = call @f%d(%%x)\n  %%y = call @f%d(%%t)\n  return %%y\n}\n", i + 1, i + 1);
        }
        char *text;
        assert_ok(pz_str_take(&b, &text, &err), &err);
        pz_graph *g = support_graph(text);
        pz_plan_options o = support_plan_options("cpu", 2, 1);
        if (deep)
            assert_fails(pz_plan_create(g, &o, &p, &err), PZ_E_RANGE, &err, "nest deeper than");
        else
            assert_fails(pz_plan_create(g, &o, &p, &err), PZ_E_RANGE, &err, "launches after inlining");
        pz_graph_free(g);
        pz_free(text);
    }
}

/* ---- no memory ---- */
static pz_status plan_and_print(void *ctx) {
    pz_error err;
    pz_plan *p;
    char *text;
    pz_plan_options o = {.m = 3, .strategy = PZ_ZERO_REDUCE};
    PZ_TRY(pz_device_find("cpu", 2, &o.device, &err));
    PZ_TRY(pz_plan_create(ctx, &o, &p, &err));
    pz_status st = pz_plan_text(p, &text, &err);
    if (st == PZ_OK) pz_free(text);
    pz_plan_free(p);
    return st;
}

static void test_memory(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    assert_true(support_alloc_sweep(plan_and_print, g) > 20);
    pz_graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer),   cmocka_unit_test(test_no_rider),  cmocka_unit_test(test_strategies),
        cmocka_unit_test(test_levels),  cmocka_unit_test(test_inlining),  cmocka_unit_test(test_waits),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_explosion), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
