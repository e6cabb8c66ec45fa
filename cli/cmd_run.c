/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const cli_option options[] = {
    CLI_OPTION("prompt", "TEXT", CLI_TEXT, NULL, NULL, prompt,
               "what the model continues, exactly as given (after its begin token); - reads standard input"),
    CLI_OPTION("ids", "LIST", CLI_INTS, NULL, "0..2147483647", ids,
               "token numbers instead of text, 5,6,7; nothing is put in front"),
    CLI_OPTION("print-ids", NULL, CLI_FLAG, NULL, NULL, print_ids,
               "print token numbers instead of text; with --ids no tokenizer is needed"),
    CLI_OPTION("max-tokens", "N", CLI_INT, "256", "1..16777216", max_tokens, "new tokens at most"),
    CLI_PREZERO_OPTION,
    CLI_OPTION("temperature", "T", CLI_NUMBER, "0", "0..100", temperature, "0 always takes the likeliest token"),
    CLI_OPTION("top-p", "P", CLI_NUMBER, "1", "0..1", top_p, "likeliest tokens that make up this probability; 1: all"),
    CLI_OPTION("top-k", "K", CLI_INT, "0", "0..16777216", top_k, "the K likeliest tokens; 0: all"),
    CLI_OPTION("seed", "N", CLI_INT, "0", "0..4611686018427387904", seed, "start of the random numbers"),
    CLI_ENGINE_OPTIONS,
    CLI_JSON_OPTION("text, token numbers and speed"),
};

/* One generation: what is produced, and when. */
typedef struct generation {
    const cli_args *a;
    bool quiet; /* nothing on standard output until the end */
    pz_tokenizer *tokenizer;
    pz_detokenizer *stream;
    int32_t *prompt, *ids;
    size_t prompt_len;
    int n;
    char *text; /* all of it, through memstream */
    size_t text_size;
    FILE *memstream;
    bool by_end_token;
    double start, first, end;
    pz_error err;
    bool failed;
} generation;

static void show(generation *g, const char *text) {
    fputs(text, g->memstream);
    if (g->quiet) return;
    fputs(text, stdout);
    fflush(stdout);
}

static int on_token(void *user, int index, int32_t token, int last) {
    generation *g = user;
    (void)index;
    g->end = cli_now();
    if (g->first == 0) g->first = g->end;
    g->by_end_token = last && token < 0;
    if (token < 0) return 0;
    g->ids[g->n++] = token;
    char number[16];
    const char *text = number;
    if (g->a->print_ids)
        snprintf(number, sizeof number, "%s%d", g->n > 1 ? "," : "", (int)token);
    else if (pz_detokenizer_push(g->stream, token, &text, &g->err) != PZ_OK)
        g->failed = true;
    if (!g->failed) show(g, text);
    return g->failed || ferror(stdout);
}

static int read_prompt(generation *g) {
    const cli_args *a = g->a;
    if (!a->print_ids || a->prompt)
        if (pz_tokenizer_open(a->what, &g->tokenizer, &g->err) != PZ_OK) return cli_error(&g->err);
    if (!a->print_ids && pz_detokenizer_new(g->tokenizer, &g->stream, &g->err) != PZ_OK) return cli_error(&g->err);
    if (!a->prompt) {
        g->prompt_len = (size_t)a->ids.n;
        g->prompt = malloc(g->prompt_len * sizeof *g->prompt);
        if (!g->prompt) return cli_fail("out of memory");
        for (int i = 0; i < a->ids.n; i++) g->prompt[i] = a->ids.at[i];
        return CLI_OK;
    }
    char *from_stdin = NULL;
    size_t size = strlen(a->prompt);
    int rc = cli_is_stdout(a->prompt) ? cli_read("-", &from_stdin, &size) : CLI_OK;
    if (rc == CLI_OK && pz_tokenizer_encode(g->tokenizer, from_stdin ? from_stdin : a->prompt, size, 1, &g->prompt,
                                            &g->prompt_len, &g->err) != PZ_OK)
        rc = cli_fail("prompt: %s", g->err.msg);
    pz_free(from_stdin);
    return rc;
}

static int generate(generation *g, pz_engine *engine) {
    const cli_args *a = g->a;
    pz_engine_info info;
    pz_engine_get_info(engine, &info);
    if (g->prompt_len == 0) return cli_fail("the prompt is empty, and the model has no begin token");
    if (g->prompt_len > (size_t)info.context)
        return cli_fail("the prompt has %zu tokens, but the context holds %d (see --context)", g->prompt_len,
                        info.context);
    for (size_t i = 0; i < g->prompt_len; i++)
        if (g->prompt[i] >= info.vocab)
            return cli_fail("token %d of the prompt is outside the vocabulary (0 to %d)", (int)g->prompt[i],
                            info.vocab - 1);
    g->ids = malloc((size_t)a->max_tokens * sizeof *g->ids);
    g->memstream = open_memstream(&g->text, &g->text_size);
    if (!g->ids || !g->memstream) return cli_fail("out of memory");
    pz_request request = {.prompt = g->prompt,
                          .prompt_len = g->prompt_len,
                          .max_tokens = (int)a->max_tokens,
                          .sampling = {.temperature = (float)a->temperature,
                                       .top_p = (float)a->top_p,
                                       .top_k = (int)a->top_k,
                                       .seed = (uint64_t)a->seed}};
    g->start = cli_now();
    pz_status st = pz_generate(engine, &request, 1, 1, on_token, g, &g->err);
    const char *rest = "";
    if (st == PZ_OK && !g->failed && g->stream) st = pz_detokenizer_finish(g->stream, &rest, &g->err);
    bool ended = st == PZ_OK && !g->failed;
    if (ended) show(g, rest);
    if (!g->quiet && (ended || g->n > 0)) printf("\n");
    fflush(stdout);
    fclose(g->memstream);
    g->memstream = NULL;
    return ended ? CLI_OK : cli_error(&g->err);
}

static double rate(double n, double seconds) {
    return seconds > 0 ? n / seconds : 0;
}

static json_t *to_json(const generation *g, const pz_engine_info *info) {
    json_t *ids = json_array();
    for (int i = 0; i < g->n; i++) json_array_append_new(ids, json_integer(g->ids[i]));
    json_t *text = g->a->print_ids ? json_null() : json_string(g->text);
    return json_pack("{s:o, s:o, s:s, s:I, s:i, s:f, s:f, s:f, s:i, s:s, s:b, s:s, s:i, s:I}", "text", text, "ids", ids,
                     "stopped_by", g->by_end_token ? "end token" : "length", "prompt_tokens", (json_int_t)g->prompt_len,
                     "new_tokens", g->n, "prompt_tokens_per_s", rate((double)g->prompt_len, g->first - g->start),
                     "tokens_per_s", rate(g->n - 1, g->end - g->first), "load_ms", info->load_seconds * 1e3, "threads",
                     info->threads, "isa", info->isa, "prezero", info->prezero, "device", info->device, "tp", info->tp,
                     "device_used_bytes", (json_int_t)info->device_used_bytes);
}

static int report(const generation *g, pz_engine *engine) {
    pz_engine_info info;
    pz_engine_get_info(engine, &info);
    fprintf(stderr, "%d token%s", g->n, g->n == 1 ? "" : "s");
    if (g->n > 1) fprintf(stderr, " at %.0f tokens/s", rate(g->n - 1, g->end - g->first));
    fprintf(stderr, "; prompt of %zu at %.0f tokens/s; load %.0f ms; prezero %s\n", g->prompt_len,
            rate((double)g->prompt_len, g->first - g->start), info.load_seconds * 1e3, info.prezero ? "on" : "off");
    cli_report_device(&info);
    return g->a->json ? cli_write_json(g->a->json, to_json(g, &info)) : CLI_OK;
}

static int run(const cli_args *a) {
    if ((a->prompt != NULL) == (a->ids.n > 0)) return cli_usage("run needs one of --prompt and --ids");
    int rc = cli_check_output(a->json);
    if (rc != CLI_OK) return rc;
    generation g = {.a = a, .quiet = cli_is_stdout(a->json)};
    pz_engine *engine = NULL;
    pz_engine_options o = cli_engine_options(a);
    o.max_batch = 1;
    rc = cli_check_model(a->what);
    if (rc == CLI_OK) rc = read_prompt(&g);
    if (rc == CLI_OK && pz_engine_open(a->what, &o, &engine, &g.err) != PZ_OK) rc = cli_error(&g.err);
    if (rc == CLI_OK) rc = generate(&g, engine);
    if (rc == CLI_OK) rc = report(&g, engine);
    pz_engine_close(engine);
    pz_detokenizer_free(g.stream);
    pz_tokenizer_close(g.tokenizer);
    if (g.memstream) fclose(g.memstream);
    pz_free(g.prompt);
    free(g.ids);
    free(g.text);
    return rc;
}

const cli_command cli_run = {
    "run",
    "MODEL",
    "continues a text, which it shows as it is made",
    "The text goes to standard output, then one line of speed to standard error. It ends at the model's\n"
    "end token, at --max-tokens, or when the context is full. The built-in model solves word problems:\n"
    "  prezero run models/kimi-tiny --prompt $'Question: Hugo has 76 eggs and gives 67 to Kim. How many eggs are "
    "left?\\nAnswer:'\n"
    "Token numbers work without a tokenizer:\n"
    "  prezero run models/kimi-tiny --ids 5,6,7 --print-ids --max-tokens 8 --prezero\n",
    CLI_OPTIONS(options),
    run};
