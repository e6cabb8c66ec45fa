/* SPDX-License-Identifier: Apache-2.0 */
/* Graph text: print and parse are inverse; the passes and the planner accept every graph that parses, keep it well
 * formed, and never make a plan that their own checker refuses. */
#include "fuzz.h"
#include "prezero/graph.h"

static char *print(const pz_graph *g) {
    char *text;
    pz_error err;
    FUZZ_CHECK(pz_graph_print(g, &text, &err) == PZ_OK, "%s", err.msg);
    return text;
}

static void check_round_trip(const pz_graph *g) {
    pz_error err;
    char *first = print(g);
    pz_graph *again = NULL;
    FUZZ_CHECK(pz_graph_parse(first, strlen(first), "printed", &again, &err) == PZ_OK, "%s\n%s", err.msg, first);
    char *second = print(again);
    FUZZ_CHECK(strcmp(first, second) == 0, "printed\n%s\nand then\n%s", first, second);
    pz_graph_free(again);
    pz_free(first);
    pz_free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pz_graph *g = NULL;
    pz_error err = {0};
    if (pz_graph_parse((const char *)data, size, "input", &g, &err) != PZ_OK) {
        FUZZ_CHECK(!g && err.msg[0], "a failure with a graph or without a message");
        return 0;
    }
    FUZZ_CHECK(pz_graph_verify(g, &err) == PZ_OK, "%s", err.msg);
    check_round_trip(g);

    char *text = NULL;
    FUZZ_CHECK(pz_graph_dot(g, &text, &err) == PZ_OK, "%s", err.msg);
    pz_free(text);
    static const int batches[] = {1, 17};
    pz_explain_options how = {.size = sizeof how, .device = "cpu", .units = 4, .batches = batches, .n_batches = 2};
    pz_status st = pz_explain(g, &how, &text, &err);
    FUZZ_CHECK(st != PZ_E_PROOF && st != PZ_E_INTERNAL && st != PZ_E_VERIFY, "%s", err.msg);
    pz_free(text);

    st = pz_graph_run_passes(g, NULL, NULL, &err);
    FUZZ_CHECK(st != PZ_E_INTERNAL && st != PZ_E_VERIFY, "%s", err.msg);
    FUZZ_CHECK(pz_graph_verify(g, &err) == PZ_OK, "%s", err.msg);
    check_round_trip(g);
    pz_graph_free(g);
    return 0;
}
