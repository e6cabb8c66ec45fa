/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

static const cli_option options[] = {
    CLI_OPTION("batch", "LIST", CLI_INTS, NULL, "1..65536", batches,
               "rows of a decode step, one or several, ascending: 16 or 4,16,64 (default 1,2,4,...,128)"),
    CLI_OPTION("device", "NAME", CLI_TEXT, "h200", NULL, device, "device whose model the gate uses: h200 or cpu"),
    CLI_OPTION("units", "N", CLI_INT, "0", "0..65536", units,
               "execution units (SMs, threads); 0: the device's own number"),
    CLI_MODEL_GRAPH_OPTIONS,
    CLI_OPTION("graph", NULL, CLI_FLAG, NULL, NULL, graph, "print the graph before and after the passes too"),
    CLI_OPTION("plan", NULL, CLI_FLAG, NULL, NULL, plan, "print the launches of each batch size too"),
    CLI_OPTION("dot", "FILE", CLI_TEXT, NULL, NULL, dot,
               "GraphViz drawing of the graph after the passes; - for standard "
               "output"),
    CLI_JSON_OPTION("the same"),
};

static int write_dot(const pz_graph *g, const char *path) {
    pz_graph *copy = NULL;
    char *text = NULL;
    pz_error err;
    int rc = CLI_OK;
    if (pz_graph_clone(g, &copy, &err) != PZ_OK || pz_graph_run_passes(copy, NULL, NULL, &err) != PZ_OK ||
        pz_graph_dot(copy, &text, &err) != PZ_OK)
        rc = cli_error(&err);
    if (rc == CLI_OK) rc = cli_write(path, text);
    pz_free(text);
    pz_graph_free(copy);
    return rc;
}

static int describe(const cli_args *a, const pz_graph *g, bool json, const char *path) {
    pz_explain_options o = {.size = sizeof o,
                            .device = a->device,
                            .units = (int)a->units,
                            .ranks = a->tp > 1 ? (int)a->tp : 0,
                            .batches = a->batches.at,
                            .n_batches = a->batches.n,
                            .with_plan = a->plan && !json,
                            .with_graph = a->graph && !json,
                            .json = json};
    char *text = NULL;
    pz_error err;
    int rc = pz_explain(g, &o, &text, &err) == PZ_OK ? cli_write(path, text) : cli_error(&err);
    pz_free(text);
    return rc;
}

static int run(const cli_args *a) {
    for (int i = 1; i < a->batches.n; i++)
        if (a->batches.at[i] <= a->batches.at[i - 1])
            return cli_usage("--batch: %d after %d, expected ascending numbers", a->batches.at[i],
                             a->batches.at[i - 1]);
    if (cli_is_stdout(a->json) && cli_is_stdout(a->dot))
        return cli_usage("--json and --dot cannot both go to standard output");
    pz_graph *g = NULL;
    int rc = cli_check_output(a->dot);
    if (rc == CLI_OK) rc = cli_check_output(a->json);
    if (rc == CLI_OK) rc = cli_load_graph(a, &g);
    if (rc == CLI_OK && a->json) rc = describe(a, g, true, a->json);
    if (rc == CLI_OK && a->dot) rc = write_dot(g, a->dot);
    if (rc == CLI_OK && !cli_is_stdout(a->json) && !cli_is_stdout(a->dot)) rc = describe(a, g, false, "-");
    pz_graph_free(g);
    return rc;
}

const cli_command cli_explain = {
    "explain",
    "MODEL|GRAPH",
    "what prezero does in a model, why not elsewhere, gate, bytes and proof",
    "MODEL is a directory with a config.json (no weights are read), GRAPH a file of graph text, or - for\n"
    "standard input.\n"
    "  prezero explain models/kimi-tiny --batch 16\n"
    "  prezero explain kimi-k2 --tp 4 --batch 4,16,64 --json kimi-k2.json\n"
    "  prezero explain layer.pz --graph --dot - | dot -Tsvg > layer.svg\n",
    CLI_OPTIONS(options),
    run};
