/* SPDX-License-Identifier: Apache-2.0 */
/* The pass driver: lists, errors, dumps, all or nothing. What each pass does is in test_golden.c. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "pass/pass.h"

/* A layer with something to do for every pass: a fusion, two slices, a dead node, a dead function and weight. */
static const char layer[] = "weight @norm: bf16[64]\n"
                            "weight @layers.0.qkv: bf16[96,64]\n"
                            "weight @layers.0.gate: bf16[8,64]\n"
                            "weight @unused: bf16[8,64]\n"
                            "func @decode(%h: bf16[m,64], %res: bf16[m,64]) {\n"
                            "  %sum = all_reduce(%h)\n"
                            "  %r = add(%sum, %res)\n"
                            "  %x = rms_norm(%r, @norm)\n"
                            "  %dead = silu_mul(%x)\n"
                            "  %q = gemm(%x, @layers.0.qkv)\n"
                            "  %g = gemm(%x, @layers.0.gate) {accum=fixed}\n"
                            "  return %q, %g, %r\n"
                            "}\n"
                            "func @never(%h: bf16[m,64]) {\n"
                            "  return %h\n"
                            "}\n";

static pz_graph *parse(const char *text) {
    pz_graph *g = NULL;
    pz_error err = {0};
    assert_ok(pz_graph_parse(text, strlen(text), "test.pz", &g, &err), &err);
    return g;
}

static char *print(const pz_graph *g) {
    char *text = NULL;
    pz_error err = {0};
    assert_ok(pz_graph_print(g, &text, &err), &err);
    return text;
}

static void test_table(void **state) {
    (void)state;
    char list[256] = "";
    for (int i = 0; i < pz_pass_count(); i++) {
        const pz_pass_info *p = pz_pass_at(i);
        assert_true(*p->name && *p->doc && *p->counts && p->run);
        if (i) strcat(list, ",");
        strcat(list, p->name);
    }
    assert_string_equal(pz_pipeline(true), list);
    assert_null(strstr(pz_pipeline(false), "prezero"));
    assert_non_null(strstr(pz_pipeline(false), "fuse_allreduce_rmsnorm,dce"));
    assert_null(pz_pass_at(-1));
    assert_null(pz_pass_at(pz_pass_count()));
}

static void test_describe(void **state) {
    (void)state;
    pz_error err = {0};
    char *text = NULL, *json = NULL;
    assert_ok(pz_describe_passes(0, &text, &err), &err);
    assert_ok(pz_describe_passes(1, &json, &err), &err);
    for (int i = 0; i < pz_pass_count(); i++) {
        assert_contains(text, pz_pass_at(i)->name);
        assert_contains(text, pz_pass_at(i)->doc);
        assert_contains(json, pz_pass_at(i)->name);
        assert_contains(json, pz_pass_at(i)->doc);
    }
    assert_int_equal(json[0], '[');
    pz_free(text);
    pz_free(json);
    assert_fails(pz_describe_passes(0, NULL, &err), PZ_E_INVAL, &err, "pz_describe_passes");
}

static void test_reasons(void **state) {
    (void)state;
    assert_string_equal(pz_reason_text(PZ_REASON_NONE), "converted");
    assert_string_equal(pz_reason_text((pz_reason)1000), "unknown reason");
    assert_string_equal(pz_reason_text((pz_reason)-1), "unknown reason");
}

static void test_counts(void **state) {
    (void)state;
    pz_error err = {0};
    pz_graph *g = parse(layer);
    pz_pass_report r = {0};
    assert_ok(pz_passes_run(g, NULL, &r, &err), &err);
    assert_int_equal(r.passes.n, 3);
    assert_int_equal(r.passes.at[0].changed, 1);
    assert_int_equal(r.passes.at[1].changed, 3); /* node, function, weight */
    assert_int_equal(r.passes.at[2].changed, 2);
    assert_int_equal(r.donors.n, 1);
    assert_non_null(r.donors.at[0].buffer);
    assert_string_equal(r.donors.at[0].op, "fused_allreduce_rmsnorm");
    assert_string_equal(r.donors.at[0].weight, "norm");
    assert_int_equal(r.consumers.n, 2);
    assert_string_equal(r.consumers.at[0].name, "qkv");
    assert_string_equal(r.consumers.at[0].weight, "layers.0.qkv");
    assert_string_equal(r.consumers.at[1].name, "gate");
    assert_int_equal(r.consumers.at[1].donor, 0);
    pz_pass_report_free(&r);
    pz_pass_report_free(NULL);
    pz_graph_free(g);
}

static void test_lists(void **state) {
    (void)state;
    static const struct {
        const char *list, *named;
    } bad[] = {{"prezero,nothing", "'nothing'"}, {"Prezero", "'Prezero'"}, {"prezero,", "''"}, {",prezero", "''"},
               {"prezero dce", "'prezero dce'"}, {"all", "'all'"},         {"?", "'?'"}};
    pz_error err = {0};
    pz_graph *g = parse(layer);
    char *before = print(g), *report = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(pz_graph_run_passes(g, bad[i].list, &report, &err), PZ_E_INVAL, &err, bad[i].named,
                     "there are fuse_allreduce_rmsnorm, dce, prezero");
        assert_null(report);
        char *after = print(g);
        assert_string_equal(after, before);
        pz_free(after);
    }
    assert_ok(pz_graph_run_passes(g, "", &report, &err), &err);
    assert_string_equal(report, "");
    pz_free(report);
    assert_ok(pz_graph_run_passes(g, " dce , prezero ", &report, &err), &err);
    assert_contains(report, "dce: 3 removed\nprezero: 2 converted\n");
    pz_free(report);
    assert_fails(pz_graph_run_passes(NULL, "dce", NULL, &err), PZ_E_INVAL, &err, "no graph");
    pz_free(before);
    pz_graph_free(g);
}

/* A graph that was broken by hand is refused before any pass, and says so. */
static void test_broken_input(void **state) {
    (void)state;
    pz_error err = {0};
    pz_graph *g = parse(layer);
    pz_node *norm = pz_func_find_value(g->funcs.at[0], "x")->def;
    norm->results.at[0]->type.dt = PZ_DT_F32;
    assert_fails(pz_passes_run(g, NULL, NULL, &err), PZ_E_VERIFY, &err, "before the passes", "%x");
    pz_graph_free(g);
}

/* ---- dumps ---- */
static void test_dumps(void **state) {
    (void)state;
    pz_error err = {0};
    char *dir = support_tmp_dir(), *text = NULL;
    size_t size;
    setenv("PREZERO_DUMP_DIR", dir, 1);
    setenv("PREZERO_DUMP", "prezero", 1);
    pz_graph *g = parse(layer);
    assert_ok(pz_passes_run(g, NULL, NULL, &err), &err);
    assert_int_equal(support_count_entries(dir), 2);
    char *path = support_path(dir, "03-prezero.after.pz"), *after = print(g);
    assert_ok(pz_file_read(path, &text, &size, &err), &err);
    assert_string_equal(text, after);
    pz_free(text);
    pz_free(path);
    path = support_path(dir, "03-prezero.before.pz");
    assert_ok(pz_file_read(path, &text, &size, &err), &err);
    assert_null(strstr(text, "zero_fill"));
    assert_non_null(strstr(text, "fused_allreduce_rmsnorm"));
    pz_free(text);
    pz_free(path);
    setenv("PREZERO_DUMP", "all", 1);
    assert_ok(pz_passes_run(g, "dce,dce", NULL, &err), &err);
    assert_int_equal(support_count_entries(dir), 6);
    setenv("PREZERO_DUMP", "?", 1);
    assert_fails(pz_passes_run(g, "dce", NULL, &err), PZ_E_INVAL, &err, "PREZERO_DUMP",
                 "there are fuse_allreduce_rmsnorm, dce, prezero");
    setenv("PREZERO_DUMP", "dce,nothing", 1);
    assert_fails(pz_passes_run(g, "dce", NULL, &err), PZ_E_INVAL, &err, "PREZERO_DUMP", "'nothing'");
    char *now = print(g);
    assert_string_equal(now, after);
    unsetenv("PREZERO_DUMP");
    unsetenv("PREZERO_DUMP_DIR");
    pz_free(now);
    pz_free(after);
    pz_graph_free(g);
    support_tmp_remove(dir);
}

/* The message names the pass and those before it, and the passes before it stay done. */
static void test_failing_pass(void **state) {
    (void)state;
    pz_error err = {0};
    pz_graph *g = parse(layer), *once = parse(layer);
    assert_ok(pz_passes_run(once, "dce", NULL, &err), &err);
    setenv("PREZERO_DUMP", "prezero", 1);
    setenv("PREZERO_DUMP_DIR", "/nowhere/at/all", 1);
    assert_fails(pz_passes_run(g, "prezero", NULL, &err), PZ_E_NOTFOUND, &err,
                 "pass prezero (the first): ", "/nowhere");
    assert_fails(pz_passes_run(g, "dce,prezero,dce", NULL, &err), PZ_E_NOTFOUND, &err,
                 "pass prezero (after dce): ", "/nowhere");
    unsetenv("PREZERO_DUMP");
    unsetenv("PREZERO_DUMP_DIR");
    char *got = print(g), *want = print(once);
    assert_string_equal(got, want);
    pz_free(got);
    pz_free(want);
    pz_graph_free(g);
    pz_graph_free(once);
}

/* A donor with more consumers than a buffer may have slices is left as it was, whole; the others are served. */
static void test_full_donor(void **state) {
    (void)state;
    pz_error err = {0};
    for (int n = PZ_MAX_SLOTS; n <= PZ_MAX_SLOTS + 1; n++) {
        pz_str b = {0};
        char *text = NULL;
        pz_str_add(&b,
                   "weight @n: bf16[64]\nweight @w: bf16[8,64]\nfunc @f(%h: bf16[m,64]) {\n  %x = rms_norm(%h, @n)\n");
        for (int i = 0; i < n; i++) pz_str_addf(&b, "  %%g%d = gemm(%%x, @w)\n", i);
        pz_str_add(&b, "  %y = rms_norm(%h, @n)\n  %last = gemm(%y, @w)\n  return %last\n}\n");
        assert_ok(pz_str_take(&b, &text, &err), &err);
        pz_graph *g = parse(text);
        pz_pass_report r = {0};
        assert_ok(pz_passes_run(g, "prezero", &r, &err), &err);
        bool fits = n <= PZ_MAX_SLOTS;
        assert_int_equal(r.passes.at[0].changed, fits ? n + 1 : 1);
        assert_int_equal(r.donors.at[0].buffer != NULL, fits);
        assert_non_null(r.donors.at[1].buffer);
        for (int i = 0; i < n; i++)
            assert_int_equal(r.consumers.at[i].reason, fits ? PZ_REASON_NONE : PZ_REASON_DONOR_FULL);
        assert_int_equal(r.consumers.at[n].reason, PZ_REASON_NONE);
        pz_pass_report_free(&r);
        pz_graph_free(g);
        pz_free(text);
    }
}

/* Calls nested as deep as there are functions, and as many dead functions beside them. */
static void test_deep_calls(void **state) {
    (void)state;
    enum { DEPTH = 20000 };
    pz_error err = {0};
    pz_str b = {0};
    char *text = NULL;
    pz_graph *g;
    pz_pass_report r = {0};
    for (int i = 0; i < DEPTH; i++)
        pz_str_addf(&b, "func @f%d(%%h: bf16[m,64]) {\n  %%x = call @f%d(%%h)\n  return %%x\n}\n", i, i + 1);
    pz_str_addf(&b, "func @f%d(%%h: bf16[m,64]) opaque -> (bf16[m,64])\n", DEPTH);
    for (int i = 0; i < DEPTH; i++) pz_str_addf(&b, "func @d%d(%%h: bf16[m,64]) {\n  return %%h\n}\n", i);
    assert_ok(pz_str_take(&b, &text, &err), &err);
    g = parse(text);
    assert_ok(pz_passes_run(g, "dce,prezero", &r, &err), &err);
    assert_int_equal(r.passes.at[0].changed, DEPTH);
    assert_int_equal(g->funcs.n, DEPTH + 1);
    pz_pass_report_free(&r);
    pz_graph_free(g);
    pz_free(text);
}

/* ---- no memory ---- */
/* Slots, two donors in two functions, and consumers that turn out dead after they got their slices. */
static const char slots[] = "weight @norm: bf16[64]\n"
                            "weight @a: bf16[32,64]\n"
                            "weight @b: fp8[64,64]\n"
                            "func @f(%h: bf16[m,64]) {\n"
                            "  %x = rms_norm(%h, @norm)\n"
                            "  %dead = gemm(%x, @a)\n"
                            "  %a = gemm(%x, @a)\n"
                            "  %b = call @g(%x)\n"
                            "  %y = rms_norm(%b, @norm)\n"
                            "  %dead2 = gemm(%y, @a)\n"
                            "  return %a, %y\n"
                            "}\n"
                            "func @g(%h: bf16[m,64]) opaque slots(s: bf16[m,64], t: f32[m,64]) -> (bf16[m,64])\n"
                            "func @h(%h: bf16[m,64]) {\n"
                            "  %a = gemm(%h, @b)\n"
                            "  return %a\n"
                            "}\n";

enum { STEPS = 4 };
typedef struct sweep {
    const pz_graph *graph;
    const char *list;
    char *after[STEPS]; /* text after 0, 1, 2 and 3 passes */
    int seen[STEPS];
} sweep;

static pz_status run_with_failure(void *ctx) {
    sweep *s = ctx;
    pz_error err = {0};
    pz_graph *g = NULL;
    char *report = NULL;
    pz_status st = pz_graph_clone(s->graph, &g, &err);
    bool cloned = st == PZ_OK;
    if (cloned) st = pz_graph_run_passes(g, s->list, &report, &err);
    pz_alloc_fail_after(-1);
    if (st != PZ_OK) {
        assert_int_equal(err.code, st);
        assert_non_null(strstr(err.msg, "memory"));
        assert_null(report);
    }
    if (cloned) {
        char *text = print(g);
        int step = STEPS - 1;
        while (step >= 0 && strcmp(text, s->after[step]) != 0) step--;
        if (step < 0) fail_msg("half done:\n%s", text);
        s->seen[step]++;
        assert_ok(pz_graph_verify(g, &err), &err);
        pz_free(text);
    }
    pz_free(report);
    pz_graph_free(g);
    return st;
}

static void sweep_list(const char *text, const char *const list[STEPS - 1]) {
    pz_error err = {0};
    pz_graph *g = parse(text), *work = parse(text);
    char joined[256];
    snprintf(joined, sizeof joined, "%s,%s,%s", list[0], list[1], list[2]);
    sweep s = {.graph = g, .list = joined};
    for (int i = 0; i < STEPS; i++) {
        if (i > 0) assert_ok(pz_passes_run(work, list[i - 1], NULL, &err), &err);
        s.after[i] = print(work);
    }
    assert_true(support_alloc_sweep(run_with_failure, &s) > 100);
    for (int i = 0; i < STEPS; i++) {
        bool same_as_next = i + 1 < STEPS && strcmp(s.after[i], s.after[i + 1]) == 0;
        assert_true(s.seen[i] > 0 || same_as_next);
        pz_free(s.after[i]);
    }
    pz_graph_free(g);
    pz_graph_free(work);
}

/* Whatever allocation fails, the graph is what it was before the failing pass. */
static void test_no_memory(void **state) {
    (void)state;
    static const char *const standard[] = {"fuse_allreduce_rmsnorm", "dce", "prezero"};
    static const char *const late_dce[] = {"prezero", "fuse_allreduce_rmsnorm", "dce"};
    sweep_list(layer, standard);
    sweep_list(layer, late_dce);
    sweep_list(slots, late_dce);
}

static pz_status describe(void *ctx) {
    pz_error err = {0};
    char *text = NULL;
    pz_status st = pz_describe_passes(*(int *)ctx, &text, &err);
    pz_free(text);
    return st;
}

static void test_describe_no_memory(void **state) {
    (void)state;
    int json = 0;
    assert_true(support_alloc_sweep(describe, &json) >= 1);
    json = 1;
    assert_true(support_alloc_sweep_json(describe, &json) >= 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),      cmocka_unit_test(test_describe),
        cmocka_unit_test(test_reasons),    cmocka_unit_test(test_counts),
        cmocka_unit_test(test_lists),      cmocka_unit_test(test_broken_input),
        cmocka_unit_test(test_dumps),      cmocka_unit_test(test_failing_pass),
        cmocka_unit_test(test_full_donor), cmocka_unit_test(test_deep_calls),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_describe_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
