/* SPDX-License-Identifier: Apache-2.0 */
/* The standard pipeline on the full-size decode graphs of published models: what is fused and what gets its slice. A
 * pass that silently matches nothing fails here. */
#include "support.h"

#include <stdio.h>

#include "pass/pass.h"

static pz_graph *build(const char *config, int tp, int inlined) {
    pz_error err = {0};
    pz_graph *g = NULL;
    char *dir = support_path(PZ_SOURCE_DIR "/tests/data/configs", config);
    pz_model_graph_options o = {.size = sizeof o, .tp = tp, .inlined = inlined};
    assert_ok(pz_graph_from_config(dir, &o, &g, &err), &err);
    pz_free(dir);
    return g;
}

static int count_ops(const pz_graph *g, pz_op op) {
    int n = 0;
    for (int i = 0; i < g->funcs.n; i++)
        for (int j = 0; j < g->funcs.at[i]->nodes.n; j++) n += g->funcs.at[i]->nodes.at[j]->op == op;
    return n;
}

/* Buffers of the entry whose slices are `list`, as the graph has them. */
static int count_buffers(const pz_graph *g, const char *list) {
    int n = 0;
    for (int j = 0; j < g->funcs.at[0]->nodes.n; j++) {
        const pz_node *node = g->funcs.at[0]->nodes.at[j];
        const pz_attr *slices = node->op == PZ_OP_BUFFER ? pz_node_attr(node, "slices") : NULL;
        char text[256] = "";
        for (int k = 0; slices && k < slices->n_strs; k++) {
            strcat(text, k ? "|" : "");
            strcat(text, slices->strs[k]);
        }
        n += slices && strcmp(text, list) == 0;
    }
    return n;
}

/* The same from the report: donors whose weight ends in `weight` and whose slices begin with `list`. */
static int count_donors(const pz_pass_report *r, const char *weight, const char *list) {
    int n = 0;
    for (int d = 0; d < r->donors.n; d++) {
        size_t len = strlen(r->donors.at[d].weight), tail = strlen(weight);
        char text[256] = "";
        if (len < tail || strcmp(r->donors.at[d].weight + len - tail, weight) != 0) continue;
        for (int c = 0; c < r->consumers.n; c++)
            if (r->consumers.at[c].donor == d) {
                strcat(text, *text ? "|" : "");
                strcat(text, r->consumers.at[c].name);
            }
        n += strncmp(text, list, strlen(list)) == 0;
    }
    return n;
}

static int count_reason(const pz_pass_report *r, pz_reason reason, const char *detail) {
    int n = 0;
    for (int c = 0; c < r->consumers.n; c++)
        n += r->consumers.at[c].reason == reason && strcmp(r->consumers.at[c].detail, detail) == 0;
    return n;
}

static void check_kimi(const char *config, int tp, int inlined) {
    enum { LAYERS = 61 };
    pz_error err = {0};
    pz_graph *g = build(config, tp, inlined);
    pz_pass_report r = {0};
    assert_int_equal(count_ops(g, PZ_OP_RMS_NORM), 2 * LAYERS + 1);
    assert_ok(pz_passes_run(g, NULL, &r, &err), &err);
    /* every norm but the first has a residual add before it */
    assert_int_equal(r.passes.at[0].changed, 2 * LAYERS);
    assert_int_equal(count_ops(g, tp > 1 ? PZ_OP_FUSED_ALLREDUCE_RMSNORM : PZ_OP_ADD_RMS_NORM), 2 * LAYERS);
    assert_int_equal(count_ops(g, PZ_OP_RMS_NORM), 1);
    assert_int_equal(count_ops(g, PZ_OP_ALL_REDUCE), 0);
    assert_int_equal(r.donors.n, 2 * LAYERS + 1);
    assert_int_equal(count_donors(&r, ".input_layernorm", "qkv_a|q_b|o_proj"), LAYERS);
    assert_int_equal(count_donors(&r, ".post_attention_layernorm", "gate|shared.gate_up|shared.down"), LAYERS - 1);
    assert_int_equal(count_donors(&r, ".post_attention_layernorm", "mlp.gate_up|mlp.down"), 1);
    assert_int_equal(count_buffers(g, "qkv_a|q_b|o_proj"), LAYERS);
    assert_int_equal(count_buffers(g, "gate|shared.gate_up|shared.down"), LAYERS - 1);
    assert_int_equal(count_ops(g, PZ_OP_BUFFER), 2 * LAYERS + 1);
    /* nothing is left out: 3 of attention, 3 of experts or 2 of the dense layer, and the head */
    assert_int_equal(r.consumers.n, 3 * LAYERS + 3 * (LAYERS - 1) + 2 + 1);
    assert_int_equal(count_reason(&r, PZ_REASON_NONE, ""), r.consumers.n);
    pz_pass_report_free(&r);
    pz_graph_free(g);
}

static void test_kimi(void **state) {
    (void)state;
    check_kimi("kimi-k2", 4, 0);
    check_kimi("kimi-k2", 4, 1);
    check_kimi("kimi-k2", 1, 0);
    check_kimi("kimi-k2.5", 4, 0);
}

/* fp8 linear layers: each has its reason, the gate and the head (bf16) are converted. */
static void test_deepseek(void **state) {
    (void)state;
    pz_error err = {0};
    pz_graph *g = build("deepseek-v3", 8, 0);
    pz_pass_report r = {0};
    char *text = NULL;
    assert_ok(pz_passes_run(g, NULL, &r, &err), &err);
    assert_int_equal(r.passes.at[0].changed, 122);
    assert_int_equal(count_donors(&r, ".post_attention_layernorm", "gate"), 58);
    assert_int_equal(count_donors(&r, "norm", "lm_head"), 1);
    assert_int_equal(count_reason(&r, PZ_REASON_NONE, ""), 59);
    assert_int_equal(count_reason(&r, PZ_REASON_QUANTIZED, "fp8"), r.consumers.n - 59);
    assert_ok(pz_pass_report_text(&r, &text, &err), &err);
    assert_contains(text, "  layers.3..60.post_attention_layernorm (fused_allreduce_rmsnorm): gate\n");
    assert_contains(text, "  quantized weights (fp8): layers.0..60.qkv_a, layers.0..60.q_b, layers.0..60.o_proj, ");
    int lines = 0;
    for (const char *p = text; *p; p++) lines += *p == '\n';
    assert_true(lines < 16);
    pz_free(text);
    pz_pass_report_free(&r);
    pz_graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kimi),
        cmocka_unit_test(test_deepseek),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
