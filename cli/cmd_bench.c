/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const cli_option options[] = {
    CLI_OPTION("shapes", "NAME|N,K;...", CLI_TEXT, "kimi-tp4", NULL, shapes,
               "gemm: kimi-tpN, deepseek-tpN or llama70b-tpN, the GEMMs of a layer on N ranks; or w [N,K] by numbers: "
               "2112,7168;384,7168"),
    CLI_OPTION("batches", "LIST", CLI_INTS, "1,2,4,8,16,32,64,128", "1..65536", batches, "rows of the steps"),
    CLI_OPTION("accum", "LIST", CLI_TEXT, "fixed,f32,bf16", NULL, accums, "gemm: accumulators"),
    CLI_OPTION("strategies", "LIST", CLI_TEXT, "none,prezero,self,memset,reduce,ticket", NULL, strategies,
               "gemm: how the output starts at zero"),
    CLI_OPTION("search", NULL, CLI_FLAG, NULL, NULL, search,
               "gemm: each strategy with the fastest of the geometries that the cost model ranks first, not with the "
               "tuned one; slow"),
    CLI_OPTION("serial", NULL, CLI_FLAG, NULL, NULL, serial, "gemm: without programmatic dependent launch"),
    CLI_OPTION(
        "late", NULL, CLI_FLAG, NULL, NULL, late,
        "gemm: a prezero GEMM starts only after the rider's stores; plans, and bench without this, let it start as "
        "soon as its norm runs"),
    CLI_OPTION("hidden", "N", CLI_INT, "7168", "8..16384", hidden, "norm, allreduce: columns, a multiple of 8"),
    CLI_OPTION("rider", "BYTES", CLI_INT, "49408", "0..1048576", rider,
               "norm, allreduce: what the rider zeroes per row; the default is the qkv_a, q_b and o_proj of kimi-tp4"),
    CLI_OPTION("tp", "N", CLI_INT, "2", "2..8", ranks, "allreduce: ranks, on GPU --gpu and those after it"),
    CLI_OPTION("gemm", "N", CLI_INT, "2112", "1..1048576", gemm_n,
               "norm, allreduce: the GEMM behind a norm and behind the fused all-reduce is w [N,hidden]"),
    CLI_OPTION("one-shot", "ROWS", CLI_INT, "0", "0..256", one_shot,
               "allreduce: rows up to which every rank sends its rows to all others; 0: as tuned"),
    CLI_OPTION(
        "share", NULL, CLI_FLAG, NULL, NULL, share,
        "allreduce: where there are fewer GPUs than ranks, several ranks take turns on one; shows that it works, "
        "not how fast it is"),
    CLI_OPTION("rounds", "N", CLI_INT, "0", "0..64", rounds, "samples of each case; 0: 7, with --quick 3"),
    CLI_OPTION("quick", NULL, CLI_FLAG, NULL, NULL, quick, "fewer and shorter samples"),
    CLI_OPTION("gpu", "N", CLI_INT, "0", "0..1023", gpu, "number of the GPU"),
    CLI_OPTION("html", "FILE", CLI_TEXT, NULL, NULL, html, "one self-contained page"),
    CLI_JSON_OPTION("all numbers and samples"),
};
enum { QUICK_ROUNDS = 3, QUICK_SAMPLE_US = 300, SEED = 1 };

static int rounds_of(const cli_args *a) {
    return a->rounds ? (int)a->rounds : a->quick ? QUICK_ROUNDS : 0;
}

static bool text_wanted(const cli_args *a) {
    return !cli_is_stdout(a->json) && !cli_is_stdout(a->html);
}

static int write_page(const char *path, char *page) {
    int rc = page ? cli_write(path, page) : cli_fail("out of memory");
    free(page);
    return rc;
}

/* ---- gemm ---- */
/* One line of progress over all shapes and batches. */
typedef struct bench_progress {
    cli_progress line;
    int cell, cells;
} bench_progress;

static void show_progress(void *user, int done, int total) {
    bench_progress *p = user;
    cli_progress_update(&p->line, total > 0 ? (int)((p->cell + (double)done / total) * 1000 / p->cells) : 0, 1000);
}

static void set_cases(const cli_args *a, bench_gemm *b, int shape, int batch) {
    for (int i = 0; i < b->n_accums; i++)
        for (int s = 0; s < b->n_strategies; s++)
            *bench_case(b, shape, batch, i, s) =
                (pz_measure_case){.accum = (pz_accum)b->accums[i],
                                  .strategy = (pz_strategy)b->strategies[s],
                                  .config = {.stages = a->search ? PZ_MEASURE_BEST : 0},
                                  .serial = a->serial,
                                  .late = a->late};
    *bench_cublaslt(b, shape, batch) =
        (pz_measure_case){.accum = PZ_ACCUM_BF16,
                          .config = {.split = 1, .family = PZ_GEMM_CUBLASLT, .stages = PZ_MEASURE_BEST},
                          .serial = 1};
}

static int measure_cell(const cli_args *a, bench_gemm *b, int shape, int batch, bench_progress *p) {
    pz_error err;
    pz_measure_spec spec = {.size = sizeof spec,
                            .device = (int)a->gpu,
                            .m = b->batches.at[batch],
                            .n = b->shapes[shape].n,
                            .k = b->shapes[shape].k,
                            .rounds = rounds_of(a),
                            .sample_us = a->quick ? QUICK_SAMPLE_US : 0,
                            .seed = SEED};
    set_cases(a, b, shape, batch);
    pz_status st = pz_measure_gemm(&spec, bench_case(b, shape, batch, 0, 0), bench_cases(b),
                                   &b->norms[shape * b->batches.n + batch], show_progress, p, &err);
    p->cell++;
    if (st == PZ_OK) return CLI_OK;
    cli_progress_end(&p->line);
    return cli_fail("%s, m %d: %s", b->shapes[shape].name, spec.m, err.msg);
}

/* Files are written after each shape, so that a run that is cut short leaves what it has. */
static int write_gemm(const cli_args *a, const bench_gemm *b, bool last) {
    int rc = CLI_OK;
    if (a->json && (last || !cli_is_stdout(a->json))) rc = cli_write_json(a->json, bench_json(b));
    if (rc == CLI_OK && a->html && (last || !cli_is_stdout(a->html))) rc = write_page(a->html, bench_html(b));
    return rc;
}

static int measure_shapes(const cli_args *a, bench_gemm *b) {
    int rc = CLI_OK;
    bench_progress p = {.cells = b->n_shapes * b->batches.n};
    if (text_wanted(a)) bench_text_head(stdout, b);
    for (int s = 0; s < b->n_shapes && rc == CLI_OK; s++) {
        p.line = cli_progress_begin("bench", "thousandths");
        for (int m = 0; m < b->batches.n && rc == CLI_OK; m++) rc = measure_cell(a, b, s, m, &p);
        cli_progress_end(&p.line);
        if (rc != CLI_OK) break;
        b->measured = s + 1;
        if (text_wanted(a)) bench_text_shape(stdout, b, s);
        fflush(stdout);
        rc = write_gemm(a, b, b->measured == b->n_shapes);
    }
    if (rc == CLI_OK && text_wanted(a)) bench_text_sums(stdout, b);
    return rc == CLI_OK && bench_wrong(b) ? CLI_FAILED : rc;
}

static int bench_gemms(const cli_args *a, const char *command) {
    bench_gemm b = {.command = command, .quick = a->quick, .search = a->search, .serial = a->serial, .late = a->late};
    pz_error err;
    b.batches = a->batches;
    int rc = bench_read_shapes(a->shapes, b.shapes, &b.n_shapes);
    if (rc == CLI_OK) rc = bench_read_names("--accum", a->accums, bench_accums, BENCH_ACCUMS, b.accums, &b.n_accums);
    if (rc == CLI_OK)
        rc = bench_read_names("--strategies", a->strategies, bench_strategies, BENCH_STRATEGIES, b.strategies,
                              &b.n_strategies);
    if (rc != CLI_OK) return rc;
    if (pz_measure_get_device((int)a->gpu, &b.device, &err) != PZ_OK) return cli_error(&err);
    size_t cells = (size_t)b.n_shapes * (size_t)b.batches.n;
    b.cases = calloc(cells * (size_t)bench_cases(&b), sizeof *b.cases);
    b.norms = calloc(cells, sizeof *b.norms);
    rc = b.cases && b.norms ? measure_shapes(a, &b) : cli_fail("out of memory");
    free(b.cases);
    free(b.norms);
    return rc;
}

/* ---- norm ---- */
static int measure_norms(const cli_args *a, bench_norm *b) {
    pz_error err;
    pz_status st = PZ_OK;
    bench_progress p = {.line = cli_progress_begin("bench", "thousandths"), .cells = b->batches.n};
    for (int m = 0; m < b->batches.n && st == PZ_OK; m++) {
        pz_measure_norm_spec spec = {.size = sizeof spec,
                                     .device = (int)a->gpu,
                                     .m = b->batches.at[m],
                                     .hidden = b->hidden,
                                     .gemm_n = b->gemm_n,
                                     .rounds = rounds_of(a),
                                     .sample_us = a->quick ? QUICK_SAMPLE_US : 0,
                                     .seed = SEED};
        pz_measure_norm_case *cases = b->cases + m * BENCH_NORMS;
        bench_norm_cases(b, m, cases);
        st = pz_measure_norm(&spec, cases, BENCH_NORMS, show_progress, &p, &err);
        p.cell++;
    }
    cli_progress_end(&p.line);
    if (st != PZ_OK) return cli_error(&err);
    int rc = a->json ? cli_write_json(a->json, bench_norm_json(b)) : CLI_OK;
    if (rc == CLI_OK && a->html) rc = write_page(a->html, bench_norm_html(b));
    if (rc == CLI_OK && text_wanted(a)) bench_norm_text(stdout, b);
    return rc == CLI_OK && bench_norm_wrong(b) ? CLI_FAILED : rc;
}

static int bench_norms(const cli_args *a, const char *command) {
    bench_norm b = {.command = command, .quick = a->quick, .hidden = (int)a->hidden, .gemm_n = (int)a->gemm_n};
    pz_error err;
    if (a->hidden % 8) return cli_usage("--hidden is %d, expected a multiple of 8", (int)a->hidden);
    if (pz_measure_get_device((int)a->gpu, &b.device, &err) != PZ_OK) return cli_error(&err);
    b.rider = (int)a->rider;
    b.batches = a->batches;
    b.cases = calloc((size_t)b.batches.n * BENCH_NORMS, sizeof *b.cases);
    int rc = b.cases ? measure_norms(a, &b) : cli_fail("out of memory");
    free(b.cases);
    return rc;
}

/* ---- allreduce ---- */
static int measure_reduces(const cli_args *a, bench_reduce *b) {
    pz_error err;
    pz_status st = PZ_OK;
    bench_progress p = {.line = cli_progress_begin("bench", "thousandths"), .cells = b->batches.n};
    for (int m = 0; m < b->batches.n && st == PZ_OK; m++) {
        pz_measure_reduce_spec spec = {.size = sizeof spec,
                                       .device = (int)a->gpu,
                                       .ranks = b->ranks,
                                       .share_device = a->share,
                                       .one_shot = (int)a->one_shot,
                                       .m = b->batches.at[m],
                                       .hidden = b->hidden,
                                       .gemm_n = b->gemm_n,
                                       .rounds = rounds_of(a),
                                       .sample_us = a->quick ? QUICK_SAMPLE_US : 0,
                                       .seed = SEED};
        pz_measure_reduce_case *cases = b->cases + m * BENCH_REDUCES;
        bench_reduce_cases(b, m, cases);
        st = pz_measure_reduce(&spec, cases, BENCH_REDUCES, show_progress, &p, &err);
        p.cell++;
    }
    cli_progress_end(&p.line);
    if (st != PZ_OK) return cli_error(&err);
    int rc = a->json ? cli_write_json(a->json, bench_reduce_json(b)) : CLI_OK;
    if (rc == CLI_OK && text_wanted(a)) bench_reduce_text(stdout, b);
    return rc == CLI_OK && bench_reduce_wrong(b) ? CLI_FAILED : rc;
}

static int bench_reduces(const cli_args *a, const char *command) {
    bench_reduce b = {.command = command, .quick = a->quick, .ranks = (int)a->ranks, .hidden = (int)a->hidden};
    pz_error err;
    if (a->hidden % 8) return cli_usage("--hidden is %d, expected a multiple of 8", (int)a->hidden);
    if (a->html) return cli_usage("bench allreduce writes no page; --json has everything");
    if (pz_measure_get_device((int)a->gpu, &b.device, &err) != PZ_OK) return cli_error(&err);
    b.gemm_n = (int)a->gemm_n;
    b.rider = (int)a->rider;
    b.batches = a->batches;
    b.cases = calloc((size_t)b.batches.n * BENCH_REDUCES, sizeof *b.cases);
    int rc = b.cases ? measure_reduces(a, &b) : cli_fail("out of memory");
    free(b.cases);
    return rc;
}

/* ---- the command ---- */
typedef int (*bench_fn)(const cli_args *a, const char *command);
static const struct {
    const char *name;
    bench_fn run;
} benches[] = {{"gemm", bench_gemms}, {"norm", bench_norms}, {"allreduce", bench_reduces}};
enum { GEMM, NORM, ALLREDUCE, N_BENCHES };

/* The line that would do the same again. */
static char *command_line(const cli_args *a, int which) {
    bool gemm = which == GEMM;
    char *line = NULL;
    size_t size;
    FILE *f = open_memstream(&line, &size);
    if (!f) return NULL;
    fprintf(f, "prezero bench %s", a->what);
    if (gemm) fprintf(f, " --shapes '%s' --accum %s --strategies %s", a->shapes, a->accums, a->strategies);
    if (gemm)
        fprintf(f, "%s%s%s", a->search ? " --search" : "", a->serial ? " --serial" : "", a->late ? " --late" : "");
    if (!gemm) fprintf(f, " --hidden %d --rider %d --gemm %d", (int)a->hidden, (int)a->rider, (int)a->gemm_n);
    if (which == ALLREDUCE)
        fprintf(f, " --tp %d --one-shot %d%s", (int)a->ranks, (int)a->one_shot, a->share ? " --share" : "");
    for (int i = 0; i < a->batches.n; i++) fprintf(f, "%s%d", i ? "," : " --batches ", a->batches.at[i]);
    if (a->rounds) fprintf(f, " --rounds %d", (int)a->rounds);
    fputs(a->quick ? " --quick" : "", f);
    if (fclose(f) == 0) return line;
    free(line);
    return NULL;
}

static int run(const cli_args *a) {
    int which = 0;
    while (which < N_BENCHES && strcmp(a->what, benches[which].name) != 0) which++;
    if (which == N_BENCHES) return cli_usage("bench \"%.40s\": expected gemm, norm or allreduce", a->what);
    if (cli_is_stdout(a->json) && cli_is_stdout(a->html))
        return cli_usage("--json and --html cannot both go to standard output");
    int rc = cli_check_output(a->json);
    if (rc == CLI_OK) rc = cli_check_output(a->html);
    if (rc != CLI_OK) return rc;
    char *command = command_line(a, which);
    if (!command) return cli_fail("out of memory");
    rc = benches[which].run(a, command);
    free(command);
    return rc;
}

const cli_command cli_bench = {
    "bench",
    "gemm|norm|allreduce",
    "times GEMMs by strategy and accumulator against cuBLASLt, norms with riders, or all-reduces over several GPUs",
    "GEMMs are timed as they run in a decode step, in a captured chain behind their norm, each with a weight of its\n"
    "own; all cases take turns. Results are compared first: GEMMs with f64, all-reduces of ours with f32, bit by bit.\n"
    "The exit status is 1 if any is wrong. Norms are timed in chains of their own and in front of a GEMM, as riders "
    "are\n"
    "used. Behind an all-reduce a GEMM is timed too, launched before that has ended and after: the difference is what\n"
    "an early launch hides.\n"
    "  prezero bench gemm --shapes kimi-tp4 --html gemm.html --json gemm.json\n"
    "  prezero bench gemm --shapes '2112,7168;384,7168' --batches 1,16 --accum fixed --quick\n"
    "  prezero bench norm --batches 1,16,64 --rider 49408\n"
    "  prezero bench allreduce --tp 2 --batches 1,8,32,64,128\n",
    CLI_OPTIONS(options),
    run};
