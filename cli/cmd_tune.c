/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#define BUILT_IN_MODEL "models/kimi-tiny"

static const cli_option options[] = {
    CLI_OPTION("tp", "N", CLI_INT, "1", "1..1024", tp,
               "tensor-parallel ranks: of the model; and the all-reduce over so many GPUs is tuned too"),
    CLI_OPTION("batches", "LIST", CLI_INTS, NULL, "1..65536", batches,
               "rows of the steps (default 1,2,4,...,128); a row of the table serves fewer rows too"),
    CLI_OPTION("shapes", "N,K;...", CLI_TEXT, NULL, NULL, shapes,
               "these GEMMs, w [N,K], instead of a model's: 2112,7168;384,7168"),
    CLI_OPTION("accum", "LIST", CLI_TEXT, "fixed", NULL, accums, "accumulators: fixed, f32, bf16, or several of them"),
    CLI_OPTION("out", "FILE", CLI_TEXT, NULL, NULL, out,
               "the table (default tuned/DEVICE.json); what it has for other shapes stays"),
    CLI_OPTION("resume", NULL, CLI_FLAG, NULL, NULL, resume, "do not measure again what the table has"),
    CLI_OPTION("quick", NULL, CLI_FLAG, NULL, NULL, quick, "fewer candidates and shorter measurements"),
    CLI_OPTION("gpu", "N", CLI_INT, "0", "0..1023", gpu, "number of the GPU"),
};

static int read_accums(const char *text, int *bits) {
    static const char *const names[] = {"fixed", "f32", "bf16"};
    *bits = 0;
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        int found = -1;
        for (int i = 0; i < 3; i++)
            if (strlen(names[i]) == n && memcmp(names[i], at, n) == 0) found = i;
        if (found < 0)
            return cli_usage("--accum is \"%.80s\", expected fixed, f32 and bf16, separated by commas", text);
        *bits |= 1 << found;
        at += n;
        if (!*at) return CLI_OK;
    }
}

/* The line that would do the same again. */
static char *command_line(const cli_args *a) {
    char *line = NULL;
    size_t size;
    FILE *f = open_memstream(&line, &size);
    if (!f) return NULL;
    fprintf(f, "prezero tune");
    if (a->shapes)
        fprintf(f, " --shapes '%s'", a->shapes);
    else
        fprintf(f, " %s", a->what ? a->what : BUILT_IN_MODEL);
    fprintf(f, " --tp %d", (int)a->tp);
    for (int i = 0; i < a->batches.n; i++) fprintf(f, "%s%d", i ? "," : " --batches ", a->batches.at[i]);
    fprintf(f, " --accum %s%s", a->accums, a->quick ? " --quick" : "");
    if (fclose(f) == 0) return line;
    free(line);
    return NULL;
}

static void show_progress(void *progress, int done, int total) {
    cli_progress_update(progress, total > 0 ? (int)(1000LL * done / total) : 0, 1000);
}

static int tune(pz_tune_options *o) {
    pz_error err;
    pz_tune_result r;
    cli_progress p = cli_progress_begin("tune", "thousandths");
    o->progress = show_progress;
    o->user = &p;
    pz_status st = pz_tune(o, &r, &err);
    cli_progress_end(&p);
    if (st != PZ_OK) return cli_error(&err);
    fputs(r.summary, stdout);
    if (r.stale) printf("%d rows of another device or version of the kernels were dropped\n", r.stale);
    printf("%s: written; %s=%s makes the engine use it, and a build has the tables of tuned/ in it\n", r.path,
           "PREZERO_TUNED", r.path);
    int rc = r.wrong || (r.failed && !r.rows && !r.kept) ? CLI_FAILED : CLI_OK;
    pz_tune_result_free(&r);
    return rc;
}

static int run(const cli_args *a) {
    if (a->what && a->shapes) return cli_usage("MODEL and --shapes exclude each other");
    pz_tune_options o = {.size = sizeof o,
                         .model = a->shapes ? NULL
                                  : a->what ? a->what
                                            : BUILT_IN_MODEL,
                         .tp = (int)a->tp,
                         .shapes = a->shapes,
                         .batches = a->batches.at,
                         .n_batches = a->batches.n,
                         .device = (int)a->gpu,
                         .path = a->out,
                         .resume = a->resume,
                         .quick = a->quick};
    int rc = read_accums(a->accums, &o.accums);
    if (rc == CLI_OK) rc = cli_check_output(a->out);
    if (rc == CLI_OK && o.model) rc = cli_check_model(o.model);
    if (rc != CLI_OK) return rc;
    char *command = command_line(a);
    if (!command) return cli_fail("out of memory");
    o.command = command;
    rc = tune(&o);
    free(command);
    return rc;
}

const cli_command cli_tune = {
    "tune",
    "[MODEL]",
    "measures on a GPU how each GEMM of a model is fastest, and writes the tuned table",
    "MODEL is a directory with a config.json; weights are not read. Without it the GEMMs of the built-in model are\n"
    "tuned. The table is written after every row, so a run can be interrupted and taken up again with --resume.\n"
    "With --tp N the fused all-reduce over N GPUs, --gpu and those after it, is measured last; with fewer GPUs it is "
    "not.\n"
    "  prezero tune kimi-k2 --tp 4 --batches 1,4,16,64\n"
    "  prezero tune --shapes '2112,7168;384,7168' --accum fixed,f32 --out my.json --resume\n"
    "  prezero tune --shapes 2112,7168 --tp 2 --resume\n",
    CLI_OPTIONS(options),
    run};
