/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of the passes on any graph, tried on random ones: the result is well formed, its text comes back, it
 * computes the same bits, another run changes nothing, and prezero converts exactly what it should. */
#include "support.h"
#include "support_graph.h"

#include <stdio.h>

#include "base/rng.h"
#include "pass/pass.h"

enum { GRAPHS = 600 };

static char *print(const pz_graph *g) {
    pz_error err = {0};
    char *text = NULL;
    assert_ok(pz_graph_print(g, &text, &err), &err);
    return text;
}

static pz_graph *clone(const pz_graph *g) {
    pz_error err = {0};
    pz_graph *out = NULL;
    assert_ok(pz_graph_clone(g, &out, &err), &err);
    return out;
}

/* A list of up to five passes in any order. */
static void random_list(uint64_t *rng, char list[256]) {
    int n = 1 + (int)(pz_rng_next(rng) % 5);
    *list = 0;
    for (int i = 0; i < n; i++) {
        if (i) strcat(list, ",");
        strcat(list, pz_pass_at((int)(pz_rng_next(rng) % (uint64_t)pz_pass_count()))->name);
    }
}

static void check_text(const char *text) {
    pz_error err = {0};
    pz_graph *again = NULL;
    assert_ok(pz_graph_parse(text, strlen(text), "again.pz", &again, &err), &err);
    char *printed = print(again);
    assert_string_equal(printed, text);
    pz_free(printed);
    pz_graph_free(again);
}

static void test_any_list(void **state) {
    (void)state;
    pz_error err = {0};
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        uint64_t rng = seed ^ 0x5eed;
        char list[256];
        random_list(&rng, list);
        pz_graph *g = support_random_graph(seed), *before = clone(g);
        uint64_t bits = support_interpret(g);
        assert_ok(pz_passes_run(g, list, NULL, &err), &err);
        assert_ok(pz_graph_verify(g, &err), &err);
        char *text = print(g);
        check_text(text);
        if (support_interpret(g) != bits) {
            char *old = print(before);
            fail_msg("seed %d: %s changes the result of\n%s\nnow\n%s", (int)seed, list, old, text);
        }
        pz_free(text);
        pz_graph_free(g);
        pz_graph_free(before);
    }
}

static void test_idempotent(void **state) {
    (void)state;
    pz_error err = {0};
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        pz_graph *g = support_random_graph(seed);
        for (int p = -1; p < pz_pass_count(); p++) { /* -1: all of them */
            const char *list = p < 0 ? NULL : pz_pass_at(p)->name;
            pz_graph *work = clone(g);
            pz_pass_report r = {0};
            assert_ok(pz_passes_run(work, list, NULL, &err), &err);
            char *once = print(work);
            assert_ok(pz_passes_run(work, list, &r, &err), &err);
            char *twice = print(work);
            assert_string_equal(twice, once);
            for (int i = 0; i < r.passes.n; i++) assert_int_equal(r.passes.at[i].changed, 0);
            pz_free(once);
            pz_free(twice);
            pz_pass_report_free(&r);
            pz_graph_free(work);
        }
        pz_graph_free(g);
    }
}

/* ---- prezero, by another reading of its rules ---- */
typedef struct tally {
    int donors, gemms, slots, quantized, unknown, no_donor, opaque;
} tally;

static bool is_donor(const pz_node *n) {
    return n->op == PZ_OP_RMS_NORM || n->op == PZ_OP_ADD_RMS_NORM || n->op == PZ_OP_FUSED_ALLREDUCE_RMSNORM;
}

/* 1 if a consumer with this weight and type must be converted, given the nearest donor. */
static bool must_convert(const pz_weight *w, const pz_type *t, const pz_node *nearest, tally *count) {
    if (w && (w->type.dt == PZ_DT_MXFP4 || w->type.dt == PZ_DT_FP8)) return count->quantized++, false;
    if (t->dim[1] == PZ_DIM_UNKNOWN) return count->unknown++, false;
    if (!nearest) return count->no_donor++, false;
    return true;
}

static void check_converted(const pz_node *n, const char *operand, bool expected, const pz_node *nearest) {
    const pz_arg *a = pz_node_arg(n, operand);
    assert_int_equal(a != NULL, expected);
    if (a) assert_ptr_equal(a->value->def, nearest);
}

static void check_call(const pz_node *n, const pz_node *nearest, tally *count) {
    for (int s = 0; s < n->callee->slots.n; s++) {
        const pz_slot *slot = &n->callee->slots.at[s];
        const pz_weight *w = NULL;
        for (int i = 0; i < n->callee->nodes.n; i++)
            if (n->callee->nodes.at[i]->op == PZ_OP_GEMM &&
                strcmp(pz_node_str(n->callee->nodes.at[i], "slot"), slot->name) == 0)
                w = pz_node_arg_weight(n->callee->nodes.at[i], "w");
        bool expected = must_convert(w, &slot->type, nearest, count);
        check_converted(n, slot->name, expected, nearest);
        count->slots += expected;
    }
}

static void check_func(const pz_func *f, tally *count) {
    const pz_node *nearest = NULL;
    for (int i = 0; i < f->nodes.n; i++) {
        const pz_node *n = f->nodes.at[i];
        if (n->op == PZ_OP_GEMM && (f->opaque || *pz_node_str(n, "slot"))) {
            assert_null(pz_node_arg(n, "into"));
            count->opaque++;
        } else if (n->op == PZ_OP_GEMM) {
            bool expected = must_convert(pz_node_arg_weight(n, "w"), &n->results.at[0]->type, nearest, count);
            check_converted(n, "into", expected, nearest);
            count->gemms += expected;
        } else if (n->op == PZ_OP_CALL) {
            check_call(n, f->opaque ? NULL : nearest, count);
        } else if (is_donor(n)) {
            nearest = n;
            if (f->opaque)
                assert_null(pz_node_arg(n, "zero_fill"));
            else
                count->donors += pz_node_arg(n, "zero_fill") != NULL;
        }
    }
}

static void test_nearest_donor(void **state) {
    (void)state;
    pz_error err = {0};
    tally sum = {0};
    int fused[2] = {0};
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        pz_graph *g = support_random_graph(seed);
        pz_pass_report r = {0};
        tally count = {0};
        assert_ok(pz_passes_run(g, seed % 2 ? "prezero" : NULL, &r, &err), &err);
        for (int i = 0; i < g->funcs.n; i++) check_func(g->funcs.at[i], &count);
        assert_int_equal(r.passes.at[r.passes.n - 1].changed, count.gemms + count.slots);
        int fills = 0, converted = 0;
        for (int i = 0; i < r.donors.n; i++) fills += r.donors.at[i].buffer != NULL;
        for (int i = 0; i < r.consumers.n; i++) converted += r.consumers.at[i].reason == PZ_REASON_NONE;
        assert_int_equal(fills, count.donors);
        assert_int_equal(converted, count.gemms + count.slots);
        for (int i = 0; i < g->funcs.at[0]->nodes.n; i++) {
            fused[0] += g->funcs.at[0]->nodes.at[i]->op == PZ_OP_FUSED_ALLREDUCE_RMSNORM;
            fused[1] += g->funcs.at[0]->nodes.at[i]->op == PZ_OP_ADD_RMS_NORM;
        }
        sum.gemms += count.gemms, sum.slots += count.slots, sum.quantized += count.quantized;
        sum.unknown += count.unknown, sum.no_donor += count.no_donor, sum.opaque += count.opaque;
        pz_pass_report_free(&r);
        pz_graph_free(g);
    }
    /* the graphs are what they are meant to be */
    const int seen[] = {sum.gemms, sum.slots, sum.quantized, sum.unknown, sum.no_donor, sum.opaque, fused[0], fused[1]};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        if (seen[i] < GRAPHS / 16) fail_msg("only %d graphs of kind %d", seen[i], (int)i);
}

/* After dce nothing pure is unused, and nothing is left that the entry does not need. */
static void test_nothing_dead(void **state) {
    (void)state;
    pz_error err = {0};
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        pz_graph *g = support_random_graph(seed);
        assert_ok(pz_passes_run(g, "prezero,dce", NULL, &err), &err);
        for (int i = 0; i < g->funcs.n; i++) {
            const pz_func *f = g->funcs.at[i];
            for (int j = 0; j < f->nodes.n && !f->opaque; j++) {
                int uses = 0;
                for (int k = 0; k < f->nodes.at[j]->results.n; k++)
                    uses += pz_value_use_count(f, f->nodes.at[j]->results.at[k]);
                bool served = f->nodes.at[j]->op == PZ_OP_GEMM && *pz_node_str(f->nodes.at[j], "slot");
                assert_true(uses > 0 || served || !pz_node_has(f->nodes.at[j], PZ_TRAIT_PURE));
            }
        }
        pz_graph_free(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_list),
        cmocka_unit_test(test_idempotent),
        cmocka_unit_test(test_nearest_donor),
        cmocka_unit_test(test_nothing_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
