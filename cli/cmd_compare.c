/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const cli_option options[] = {
    CLI_OPTION("batches", "LIST", CLI_INTS, "4,8,16,32,64,128", "1..4096", batches, "rows of the decode steps"),
    CLI_OPTION("steps", "N", CLI_INT, "64", "6..100000", steps, "pairs of steps at each batch size"),
    CLI_ENGINE_OPTIONS,
    CLI_OPTION("html", "FILE", CLI_TEXT, NULL, NULL, html, "one self-contained page with charts"),
    CLI_JSON_OPTION("all numbers"),
};

static bool all_identical(const pz_compare_result *r) {
    for (int i = 0; i < r->n_buckets; i++)
        if (!r->buckets[i].identical) return false;
    return true;
}

/* The interval, and what can be said about the difference. */
static const char *verdict(double lo, double hi) {
    return lo > 0 ? "slower" : hi < 0 ? "faster" : "same";
}

static void print_buckets(const pz_compare_result *r) {
    printf("one decode step, medians of interleaved pairs; on - off with its 95 %% confidence interval\n\n"
           "%6s %10s %10s %9s %19s %7s  %-6s %10s %10s %9s  %s\n",
           "batch", "off us", "on us", "on-off us", "95 % interval", "on-off", "on is", "off tok/s", "on tok/s",
           "fills", "logits");
    for (int i = 0; i < r->n_buckets; i++) {
        const pz_compare_bucket *b = &r->buckets[i];
        char interval[40], fills[32];
        snprintf(interval, sizeof interval, "[%.1f, %.1f]", b->ci_lo_us, b->ci_hi_us);
        snprintf(fills, sizeof fills, "%d of %d", b->slices, b->active_slices);
        printf("%6d %10.1f %10.1f %+9.1f %19s %+6.1f%%  %-6s %10.0f %10.0f %9s  %s\n", b->batch, b->a_us, b->b_us,
               b->diff_us, interval, b->a_us > 0 ? 100 * b->diff_us / b->a_us : 0, verdict(b->ci_lo_us, b->ci_hi_us),
               b->a_tokens_per_s, b->b_tokens_per_s, fills, b->identical ? "identical" : "DIFFER");
    }
    for (int i = 0; i < r->n_buckets; i++)
        if (r->buckets[i].slices == 0)
            printf("batch %d: %s, so off and on run the same plan\n", r->buckets[i].batch,
                   r->buckets[i].active_slices ? "the gate closes every fill" : "no GEMM adds into its output");
}

static void print_ops(const pz_compare_result *r) {
    for (int i = 0; i < r->n_ops; i++) {
        const pz_compare_op *o = &r->ops[i];
        if (i == 0 || o->batch != r->ops[i - 1].batch)
            printf("\nbatch %d, us per launch\n%-32s %10s %10s %9s %19s  %s\n", o->batch, "op", "off", "on", "on-off",
                   "95 % interval", "on is");
        char interval[40];
        snprintf(interval, sizeof interval, "[%.2f, %.2f]", o->ci_lo_us, o->ci_hi_us);
        printf("%-32s %10.2f %10.2f %+9.2f %19s  %s\n", o->op, o->a_us, o->b_us, o->diff_us, interval,
               verdict(o->ci_lo_us, o->ci_hi_us));
    }
}

static json_t *to_json(const cli_args *a, const pz_compare_result *r, const pz_engine_info *info) {
    static const char *const accums[] = {"fixed", "f32", "bf16"}, *const dtypes[] = {"bf16", "f32"};
    json_t *buckets = json_array(), *ops = json_array();
    for (int i = 0; i < r->n_buckets; i++) {
        const pz_compare_bucket *b = &r->buckets[i];
        json_array_append_new(buckets, json_pack("{s:i, s:i, s:f, s:f, s:f, s:[f,f], s:f, s:f, s:b, s:i, s:i, s:i}",
                                                 "batch", b->batch, "steps", b->steps, "off_us", b->a_us, "on_us",
                                                 b->b_us, "diff_us", b->diff_us, "ci95_us", b->ci_lo_us, b->ci_hi_us,
                                                 "off_tokens_per_s", b->a_tokens_per_s, "on_tokens_per_s",
                                                 b->b_tokens_per_s, "identical", b->identical, "riders", b->riders,
                                                 "slices", b->slices, "active_slices", b->active_slices));
    }
    for (int i = 0; i < r->n_ops; i++) {
        const pz_compare_op *o = &r->ops[i];
        json_array_append_new(ops, json_pack("{s:i, s:s, s:f, s:f, s:f, s:[f,f]}", "batch", o->batch, "op", o->op,
                                             "off_us", o->a_us, "on_us", o->b_us, "diff_us", o->diff_us, "ci95_us",
                                             o->ci_lo_us, o->ci_hi_us));
    }
    return json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:i, s:b, s:o, s:o}", "model", a->what, "accum", accums[a->accum],
                     "dtype", dtypes[a->dtype], "threads", info->threads, "isa", info->isa, "device", info->device,
                     "tp", info->tp, "identical", all_identical(r), "batches", buckets, "ops", ops);
}

static int write_page(const cli_args *a, const pz_compare_result *r, const pz_engine_info *info) {
    static const char *const accums[] = {"fixed", "f32", "bf16"}, *const dtypes[] = {"bf16", "f32"};
    char *page = cli_compare_html(&(cli_compare_page){.model = a->what,
                                                      .accum = accums[a->accum],
                                                      .dtype = dtypes[a->dtype],
                                                      .info = *info,
                                                      .steps = (int)a->steps,
                                                      .result = r});
    int rc = page ? cli_write(a->html, page) : cli_fail("out of memory");
    free(page);
    return rc;
}

static int show(const cli_args *a, const pz_compare_result *r, pz_engine *on) {
    pz_engine_info info;
    pz_engine_get_info(on, &info);
    cli_report_device(&info);
    int rc = a->json ? cli_write_json(a->json, to_json(a, r, &info)) : CLI_OK;
    if (rc == CLI_OK && a->html) rc = write_page(a, r, &info);
    if (rc != CLI_OK) return rc;
    bool identical = all_identical(r);
    if (!cli_is_stdout(a->json) && !cli_is_stdout(a->html)) {
        print_buckets(r);
        print_ops(r);
        printf("\nlogits: %s\n", identical ? "bit-identical in every step" : "NOT identical");
    }
    return identical ? CLI_OK : CLI_FAILED;
}

static int compare(const cli_args *a, pz_engine *off, pz_engine *on) {
    pz_error err;
    pz_compare_result r = {0};
    cli_progress p = cli_progress_begin("compare", "steps");
    pz_status st = pz_compare(off, on, a->batches.at, a->batches.n, (int)a->steps, cli_progress_update, &p, &r, &err);
    cli_progress_end(&p);
    if (st != PZ_OK) return cli_error(&err);
    int rc = show(a, &r, on);
    pz_compare_result_free(&r);
    return rc;
}

static int run(const cli_args *a) {
    if (cli_is_stdout(a->json) && cli_is_stdout(a->html))
        return cli_usage("--json and --html cannot both go to standard output");
    pz_error err;
    pz_engine *engines[2] = {NULL, NULL};
    pz_engine_options o = cli_engine_options(a);
    o.max_batch = 1;
    for (int i = 0; i < a->batches.n; i++)
        if (a->batches.at[i] > o.max_batch) o.max_batch = a->batches.at[i];
    int rc = cli_check_output(a->json);
    if (rc == CLI_OK) rc = cli_check_output(a->html);
    if (rc == CLI_OK) rc = cli_check_model(a->what);
    for (int on = 0; on < 2 && rc == CLI_OK; on++) {
        o.prezero = on;
        if (pz_engine_open(a->what, &o, &engines[on], &err) != PZ_OK) rc = cli_error(&err);
    }
    if (rc == CLI_OK) rc = compare(a, engines[0], engines[1]);
    pz_engine_close(engines[0]);
    pz_engine_close(engines[1]);
    return rc;
}

const cli_command cli_compare = {
    "compare",
    "MODEL",
    "prezero off against on: speed, time per op, and whether all logits are equal",
    "Both run the same tokens in interleaved steps. Differences come with 95 % confidence intervals;\n"
    "\"same\" means that the interval holds 0. The exit status is 1 if any logit differs in any bit.\n"
    "  prezero compare models/kimi-tiny --batches 1,8,64 --html compare.html --json compare.json\n",
    CLI_OPTIONS(options),
    run};
