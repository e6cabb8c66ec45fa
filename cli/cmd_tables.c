/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that print a table of the library, and the version. */
#include "cli.h"

#include <string.h>

static const cli_option options[] = {CLI_JSON_OPTION("the table")};

static int print_table(const cli_args *a, pz_status (*describe)(int json, char **out, pz_error *err)) {
    for (int json = 1; json >= 0; json--) { /* the file first: where it fails, nothing is printed */
        if (json ? !a->json : cli_is_stdout(a->json)) continue;
        char *text = NULL;
        pz_error err;
        int rc = describe(json, &text, &err) == PZ_OK ? cli_write(json ? a->json : "-", text) : cli_error(&err);
        if (rc == CLI_OK && cli_is_stdout(a->json)) printf("\n");
        pz_free(text);
        if (rc != CLI_OK) return rc;
    }
    return CLI_OK;
}

static int run_knobs(const cli_args *a) {
    return print_table(a, pz_describe_knobs);
}

static int run_ops(const cli_args *a) {
    return print_table(a, pz_describe_ops);
}

static int run_passes(const cli_args *a) {
    return print_table(a, pz_describe_passes);
}

static const char isas[] = "baseline"
#ifdef PZ_HAVE_ISA_avx2
                           " avx2"
#endif
#ifdef PZ_HAVE_ISA_avx512
                           " avx512"
#endif
    ;

static const char compiler[] =
#ifdef __clang__
    __VERSION__;
#else
    "gcc " __VERSION__;
#endif

static int run_version(const cli_args *a) {
    if (a->json) {
        int rc = cli_write_json(a->json, json_pack("{s:s, s:s, s:s}", "version", pz_version(), "compiler", compiler,
                                                   "instruction_sets", isas));
        if (rc != CLI_OK || cli_is_stdout(a->json)) return rc;
    }
    printf("prezero %s\ncompiler: %s\ninstruction sets: %s\n", pz_version(), compiler, isas);
    return CLI_OK;
}

const cli_command cli_knobs = {
    "knobs", NULL, "the environment variables, their values and meaning", NULL, CLI_OPTIONS(options), run_knobs};
const cli_command cli_ops = {"ops", NULL, "the ops of the graph language", NULL, CLI_OPTIONS(options), run_ops};
const cli_command cli_passes = {
    "passes", NULL, "the passes, in the order of the standard pipeline", NULL, CLI_OPTIONS(options), run_passes};
const cli_command cli_version = {
    "version", NULL, "version, compiler and instruction sets of this build", NULL, CLI_OPTIONS(options), run_version};
