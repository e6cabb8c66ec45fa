/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

static const cli_option options[] = {
    CLI_OPTION(
        "passes", "LIST", CLI_TEXT, NULL, NULL, passes,
        "passes in order, separated by commas (default: the standard pipeline; see prezero passes); an empty list "
        "only checks the graph and prints it in its canonical form"),
    CLI_OPTION("o", "FILE", CLI_TEXT, "-", NULL, out, "where the graph goes; - for standard output"),
    CLI_OPTION("report", NULL, CLI_FLAG, NULL, NULL, report,
               "print counts, donors, slices and reasons on standard error"),
    CLI_MODEL_GRAPH_OPTIONS,
};

static int run(const cli_args *a) {
    pz_graph *g = NULL;
    char *report = NULL, *text = NULL;
    pz_error err;
    int rc = cli_check_output(a->out);
    if (rc == CLI_OK) rc = cli_load_graph(a, &g);
    if (rc == CLI_OK && !(a->passes && !*a->passes) &&
        pz_graph_run_passes(g, a->passes, a->report ? &report : NULL, &err) != PZ_OK)
        rc = cli_error(&err);
    if (rc == CLI_OK && pz_graph_print(g, &text, &err) != PZ_OK) rc = cli_error(&err);
    if (rc == CLI_OK) rc = cli_write(a->out, text);
    if (rc == CLI_OK && report) fputs(report, stderr);
    pz_free(text);
    pz_free(report);
    pz_graph_free(g);
    return rc;
}

const cli_command cli_opt = {
    "opt",
    "GRAPH|MODEL",
    "runs passes on a graph and prints it",
    "GRAPH is a file of graph text, or - for standard input; MODEL is a directory with a config.json.\n"
    "  prezero opt layer.pz --report\n"
    "  prezero opt models/kimi-tiny --passes \"\" | prezero opt - --passes fuse_allreduce_rmsnorm,prezero\n",
    CLI_OPTIONS(options),
    run};
