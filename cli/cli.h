/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. It has no logic of its own: it reads options, calls the library and shows what comes back.
 *
 * Exit codes: 0 success, 1 the library or the system refused (one line on standard error), 2 wrong usage. */
#ifndef PZ_CLI_H
#define PZ_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "prezero/engine.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef struct cli_ints {
    int *at;
    int n;
} cli_ints;

/* The values of all options of all commands; a command reads those of its own table. Text is borrowed from argv. */
typedef struct cli_args {
    const char *what; /* the positional argument, NULL if it may be left out and is */
    bool help;
    int64_t prezero; /* 1, 0, -1: as the environment says */
    int64_t accum, dtype, threads, context, max_tokens, top_k, seed, chunk, tp, experts, units, batch, steps, limit,
        gpu, hidden, rider, rounds, ranks, gemm_n, one_shot;
    double temperature, top_p;
    bool share, print_ids, plan, graph, inlined, report, failures, quick, resume, search, serial, late;
    cli_ints ids, batches;
    const char *prompt, *ids_file, *strategy, *gate, *out, *json, *html, *dot, *device, *passes, *data, *shapes,
        *accums, *strategies;
} cli_args;

typedef enum cli_type {
    CLI_FLAG,   /* bool */
    CLI_SWITCH, /* int64_t: --name and --name=on are 1, --name=off is 0 */
    CLI_INT,    /* int64_t within `allowed`, "1..128" */
    CLI_NUMBER, /* double within `allowed` */
    CLI_INTS,   /* cli_ints, comma separated, each within `allowed` */
    CLI_CHOICE, /* int64_t: position among the words of `allowed`, "fixed|f32|bf16" */
    CLI_WORD,   /* const char *: one of the words */
    CLI_TEXT    /* const char * */
} cli_type;

/* One option: parsing and help come from the same row. */
typedef struct cli_option {
    const char *name, *arg; /* "max-tokens", "N"; a one-letter name is written with one dash */
    cli_type type;
    const char *def; /* as it would be typed; NULL: none */
    const char *allowed;
    size_t field; /* in cli_args */
    const char *help;
} cli_option;
#define CLI_OPTION(name, arg, type, def, allowed, field, help) \
    { name, arg, type, def, allowed, offsetof(cli_args, field), help }

typedef struct cli_command {
    const char *name, *positional; /* "MODEL"; "[MODEL]" may be left out; NULL: none */
    const char *summary;           /* one line */
    const char *details;           /* more, and examples */
    const cli_option *options;
    int n_options;
    int (*run)(const cli_args *a);
} cli_command;
#define CLI_OPTIONS(table) table, (int)(sizeof(table) / sizeof *(table))

extern const cli_command cli_run, cli_bench, cli_tune, cli_logits, cli_explain, cli_opt, cli_compare, cli_eval,
    cli_knobs, cli_ops, cli_passes, cli_version;

/* Rows that several commands share. */
#define CLI_EXPERTS_OPTION                                                              \
    CLI_OPTION("experts", "width|expert", CLI_CHOICE, "width", "width|expert", experts, \
               "what a rank has of the routed experts: a slice of each, or whole ones")
#define CLI_ENGINE_OPTIONS                                                                                            \
    CLI_OPTION("accum", "TYPE", CLI_CHOICE, "fixed", "fixed|f32|bf16", accum,                                         \
               "accumulator of split-K GEMMs; fixed gives the same bits in every run"),                               \
        CLI_OPTION("dtype", "TYPE", CLI_CHOICE, "bf16", "bf16|f32", dtype, "data type of the activations"),           \
        CLI_OPTION("device", "NAME", CLI_TEXT, NULL, NULL, device,                                                    \
                   "cpu, cuda, cuda:N, or auto: cuda if there is a usable GPU (default: PREZERO_DEVICE, else cpu)"),  \
        CLI_OPTION("threads", "N", CLI_INT, "0", "0..1024", threads,                                                  \
                   "threads; 0: PREZERO_THREADS, else all processors"),                                               \
        CLI_OPTION(                                                                                                   \
            "tp", "N", CLI_INT, "1", "1..8", tp,                                                                      \
            "tensor-parallel ranks; on the CPU they share the threads, on GPUs each has one, from --device on"),      \
        CLI_EXPERTS_OPTION,                                                                                           \
        CLI_OPTION("context", "N", CLI_INT, "0", "0..16777216", context,                                              \
                   "tokens a sequence may hold; 0: the model's maximum, at most 4096"),                               \
        CLI_OPTION("strategy", "NAME", CLI_WORD, NULL, "auto|self|reduce|none|ticket|memset", strategy,               \
                   "how split-K outputs start at zero where prezero does not do it; auto: as tuned, self on the CPU " \
                   "(default: PREZERO_STRATEGY, else auto)"),                                                         \
        CLI_OPTION("gate", "NAME", CLI_WORD, NULL, "auto|strict|open|closed", gate,                                   \
                   "when a fill may ride on a norm: auto by cost, strict only if it is free (default: PREZERO_GATE, " \
                   "else auto)")
#define CLI_PREZERO_OPTION                                           \
    CLI_OPTION("prezero", "on|off", CLI_SWITCH, NULL, NULL, prezero, \
               "move the zeroing of split-K outputs into the norm before them (default: PREZERO, else off)")
#define CLI_MODEL_GRAPH_OPTIONS                                                                                    \
    CLI_OPTION("tp", "N", CLI_INT, "1", "1..1024", tp, "tensor-parallel ranks; the graph is that of rank 0"),      \
        CLI_EXPERTS_OPTION,                                                                                        \
        CLI_OPTION("accum", "TYPE", CLI_CHOICE, "fixed", "fixed|f32|bf16", accum, "accumulator of split-K GEMMs"), \
        CLI_OPTION("dtype", "TYPE", CLI_CHOICE, "bf16", "bf16|f32", dtype, "data type of the activations"),        \
        CLI_OPTION("inlined", NULL, CLI_FLAG, NULL, NULL, inlined,                                                 \
                   "attention inside the main function instead of an opaque one")
#define CLI_JSON_OPTION(what) \
    CLI_OPTION("json", "FILE", CLI_TEXT, NULL, NULL, json, what " as JSON; - for standard output instead of text")

/* ---- options.c ---- */
/* Reads argv[0..argc) into *a (released by cli_args_free either way). Returns CLI_OK or CLI_USAGE, with one line on
 * standard error. */
int cli_parse(const cli_command *c, int argc, char **argv, cli_args *a);
void cli_args_free(cli_args *a);
void cli_print_help(const cli_command *c);
/* "; did you mean X?" for the nearest of n names, or "". */
const char *cli_suggest(const char *word, const char *const *names, int n, char *buf, size_t size);
/* Integers separated by commas or white space, in [lo, hi]. NULL is returned where it went well, else what is wrong, in
 * buf. */
const char *cli_read_ints(const char *text, long long lo, long long hi, cli_ints *out, char *buf, size_t size);

/* ---- common.c ---- */
/* "prezero: ..." on standard error; returns CLI_USAGE. */
int cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* "prezero: ..." on standard error; returns CLI_FAILED. */
int cli_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int cli_error(const pz_error *err);
/* Says early that a file cannot be written, so that long work is not in vain. NULL and "-" pass. */
int cli_check_output(const char *path);
/* To a file, or to standard output if path is "-". */
int cli_write(const char *path, const char *text);
int cli_write_json(const char *path, json_t *value); /* takes over value; NULL: out of memory */
bool cli_is_stdout(const char *path);
/* Says that a model directory is none, before anything else is said about its files. */
int cli_check_model(const char *path);
/* A file's text, or standard input for "-" (free with pz_free). */
int cli_read(const char *path, char **text, size_t *size);
/* A model directory or a file of graph text, by a->what. */
int cli_load_graph(const cli_args *a, pz_graph **out);
pz_engine_options cli_engine_options(const cli_args *a);
/* On a GPU one line on standard error: its name and the memory in use. */
void cli_report_device(const pz_engine_info *info);
double cli_now(void); /* seconds, monotonic */

/* ---- progress.c: one line on standard error, only if that is a terminal ---- */
typedef struct cli_progress {
    const char *what, *unit;
    double start, shown;
    bool active;
} cli_progress;
cli_progress cli_progress_begin(const char *what, const char *unit);
void cli_progress_update(void *progress, int done, int total); /* a pz_progress_fn */
void cli_progress_end(cli_progress *p);

/* ---- html.c ---- */
typedef struct cli_compare_page {
    const char *model, *accum, *dtype;
    pz_engine_info info;
    int steps;
    const pz_compare_result *result;
} cli_compare_page;
/* One self-contained page (free with free); NULL if out of memory. */
char *cli_compare_html(const cli_compare_page *page);

#endif
