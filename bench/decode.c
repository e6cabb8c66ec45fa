/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the decode engine on one model: start-up, prompt processing, decode steps at each batch size, and the pass
 * pipeline on a full-size configuration. Text on standard output, the same as JSON in a file.
 *
 *   bench_decode MODEL_DIR CONFIG_DIR [--threads N] [--steps N] [--json FILE]
 *
 * A decode step includes reading the logits of all rows. Times are medians with the 95 % confidence interval of the
 * median (order statistics, as in `prezero compare`). */
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/stats.h"
#include "prezero/engine.h"

enum { PROMPT = 64, OPENINGS = 15, PREFILLS = 30, PIPELINES = 15, MAX_BATCH = 128 };

static pz_error err;

static void must(pz_status st, const char *what) {
    if (st == PZ_OK) return;
    fprintf(stderr, "bench_decode: %s: %s\n", what, err.msg);
    exit(1);
}

static void *need(void *p) {
    if (p) return p;
    fprintf(stderr, "bench_decode: out of memory\n");
    exit(1);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Prints the median of n times of `tokens` tokens each and its interval; the same goes into `into`. */
static void report(json_t *into, const char *name, double *us, int n, double tokens) {
    double lo, hi;
    pz_stats_sort(us, n);
    double median = pz_stats_median(us, n);
    pz_stats_median_ci(us, n, &lo, &hi);
    printf("%-24s %10.1f us  [%.1f, %.1f]", name, median, lo, hi);
    json_t *o = need(json_pack("{s:s, s:f, s:f, s:f}", "name", name, "us", median, "ci_lo_us", lo, "ci_hi_us", hi));
    if (tokens > 0) {
        printf("  %9.0f tokens/s  [%.0f, %.0f]", tokens * 1e6 / median, tokens * 1e6 / hi, tokens * 1e6 / lo);
        json_object_set_new(o, "tokens_per_s", json_real(tokens * 1e6 / median));
        json_object_set_new(o, "ci_lo_tokens_per_s", json_real(tokens * 1e6 / hi));
        json_object_set_new(o, "ci_hi_tokens_per_s", json_real(tokens * 1e6 / lo));
    }
    printf("\n");
    json_array_append_new(into, o);
}

static pz_engine *open_engine(const char *dir, int prezero, int threads) {
    pz_engine *e;
    pz_engine_options o = {.size = sizeof o, .prezero = prezero, .threads = threads, .max_batch = MAX_BATCH};
    must(pz_engine_open(dir, &o, &e, &err), "open");
    return e;
}

static void bench_open(json_t *into, const char *dir, int threads) {
    double us[OPENINGS];
    for (int i = 0; i < OPENINGS; i++) {
        double start = now_us();
        pz_tokenizer *tok;
        pz_engine *e = open_engine(dir, 1, threads);
        must(pz_tokenizer_open(dir, &tok, &err), "tokenizer");
        us[i] = now_us() - start;
        pz_tokenizer_close(tok);
        pz_engine_close(e);
    }
    report(into, "start-up", us, OPENINGS, 0);
}

static void bench_pipeline(json_t *into, const char *config) {
    double us[PIPELINES];
    for (int i = 0; i < PIPELINES; i++) {
        pz_graph *g;
        pz_model_graph_options o = {.size = sizeof o, .tp = 4};
        must(pz_graph_from_config(config, &o, &g, &err), "graph");
        double start = now_us();
        must(pz_graph_run_passes(g, NULL, NULL, &err), "passes");
        us[i] = now_us() - start;
        pz_graph_free(g);
    }
    report(into, "pass pipeline, tp 4", us, PIPELINES, 0);
}

static void bench_prefill(json_t *into, pz_engine *e, int vocab, int tokens) {
    double us[PREFILLS];
    int32_t ids[256];
    char name[32];
    for (int i = 0; i < tokens; i++) ids[i] = (i * 37 + 5) % vocab;
    for (int i = -2; i < PREFILLS; i++) {
        int seq;
        must(pz_seq_open(e, &seq, &err), "sequence");
        double start = now_us();
        must(pz_engine_prefill(e, seq, ids, (size_t)tokens, 0, NULL, &err), "prefill");
        if (i >= 0) us[i] = now_us() - start;
        pz_seq_close(e, seq);
    }
    snprintf(name, sizeof name, "prefill %d", tokens);
    report(into, name, us, PREFILLS, tokens);
}

static void bench_decode(json_t *into, pz_engine *e, int vocab, const char *mode, int batch, int steps) {
    double *us = need(calloc((size_t)steps, sizeof *us));
    float *logits = need(calloc((size_t)batch * (size_t)vocab, sizeof *logits));
    pz_row rows[MAX_BATCH];
    int32_t ids[PROMPT];
    char name[48];
    for (int i = 0; i < PROMPT; i++) ids[i] = (i * 37 + 5) % vocab;
    for (int b = 0; b < batch; b++) {
        must(pz_seq_open(e, &rows[b].seq, &err), "sequence");
        must(pz_engine_prefill(e, rows[b].seq, ids, PROMPT, 0, NULL, &err), "prefill");
    }
    for (int i = -10; i < steps; i++) {
        for (int b = 0; b < batch; b++) rows[b].token = (i + 11 + 7 * b) % vocab;
        double start = now_us();
        must(pz_engine_step(e, rows, batch, logits, &err), "step");
        if (i >= 0) us[i] = now_us() - start;
    }
    for (int b = 0; b < batch; b++) pz_seq_close(e, rows[b].seq);
    snprintf(name, sizeof name, "decode %d, prezero %s", batch, mode);
    report(into, name, us, steps, batch);
    free(us);
    free(logits);
}

int main(int argc, char **argv) {
    int threads = 0, steps = 200;
    const char *json = NULL;
    bool good = argc >= 3;
    for (int i = 3; i < argc && good; i += 2) {
        good = i + 1 < argc;
        if (good && strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[i + 1]);
        else if (good && strcmp(argv[i], "--steps") == 0)
            steps = atoi(argv[i + 1]);
        else if (good && strcmp(argv[i], "--json") == 0)
            json = argv[i + 1];
        else
            good = false;
    }
    if (!good || steps < PZ_STATS_MIN_CI || steps > 800) {
        fprintf(stderr, "usage: bench_decode MODEL_DIR CONFIG_DIR [--threads N] [--steps 6..800] [--json FILE]\n");
        return 2;
    }
    pz_engine_info info;
    json_t *rows = need(json_array());
    bench_open(rows, argv[1], threads);
    bench_pipeline(rows, argv[2]);
    for (int prezero = 0; prezero < 2; prezero++) {
        pz_engine *e = open_engine(argv[1], prezero, threads);
        pz_engine_get_info(e, &info);
        if (!prezero) {
            printf("%d threads, %s\n", info.threads, info.isa);
            for (int n = 32; n <= 256; n *= 2) bench_prefill(rows, e, info.vocab, n);
        }
        for (int b = 1; b <= MAX_BATCH; b *= 2) bench_decode(rows, e, info.vocab, prezero ? "on" : "off", b, steps);
        pz_engine_close(e);
    }
    json_t *all = need(json_pack("{s:s, s:i, s:s, s:o}", "version", pz_version(), "threads", info.threads, "isa",
                                 info.isa, "results", rows));
    if (json && json_dump_file(all, json, JSON_INDENT(2)) != 0) {
        fprintf(stderr, "bench_decode: cannot write %s\n", json);
        return 1;
    }
    json_decref(all);
    return 0;
}
