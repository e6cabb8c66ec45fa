/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const cli_option options[] = {
    CLI_OPTION("data", "FILE", CLI_TEXT, NULL, NULL, data,
               "JSON lines with question and answer (default MODEL/eval.jsonl)"),
    CLI_OPTION("batch", "N", CLI_INT, "32", "1..4096", batch, "questions at once"),
    CLI_OPTION("limit", "N", CLI_INT, "0", "0..2147483647", limit, "only the first N; 0: all"),
    CLI_OPTION("max-tokens", "N", CLI_INT, "128", "1..16777216", max_tokens, "new tokens of one answer at most"),
    CLI_OPTION("failures", NULL, CLI_FLAG, NULL, NULL, failures, "list the wrong answers"),
    CLI_PREZERO_OPTION,
    CLI_ENGINE_OPTIONS,
    CLI_JSON_OPTION("counts, speed and every answer"),
};

static json_t *to_json(const pz_eval_result *r, const pz_engine_info *info) {
    json_t *items = json_array();
    for (int i = 0; i < r->n; i++) {
        const pz_eval_item *it = &r->items[i];
        json_array_append_new(items,
                              json_pack("{s:s, s:s, s:s, s:s, s:b}", "question", it->question, "expected", it->expected,
                                        "answer", it->answer, "output", it->output, "correct", it->correct));
    }
    return json_pack("{s:i, s:i, s:I, s:I, s:f, s:f, s:b, s:s, s:i, s:o}", "correct", r->correct, "total", r->n,
                     "prompt_tokens", (json_int_t)r->prompt_tokens, "new_tokens", (json_int_t)r->new_tokens, "seconds",
                     r->seconds, "tokens_per_s", r->seconds > 0 ? (double)r->new_tokens / r->seconds : 0.0, "prezero",
                     info->prezero, "device", info->device, "tp", info->tp, "items", items);
}

static void print_result(const pz_eval_result *r, bool failures) {
    for (int i = 0; failures && i < r->n; i++)
        if (!r->items[i].correct)
            printf("%d: %s\n    expected %s, got %s; output:%s%s\n", i + 1, r->items[i].question, r->items[i].expected,
                   r->items[i].answer && *r->items[i].answer ? r->items[i].answer : "nothing",
                   r->items[i].output[0] == ' ' ? "" : " ", r->items[i].output);
    printf("%d of %d correct (%.2f %%), %lld tokens at %.0f tokens/s, %.1f s\n", r->correct, r->n,
           r->n ? 100.0 * r->correct / r->n : 0.0, (long long)r->new_tokens,
           r->seconds > 0 ? (double)r->new_tokens / r->seconds : 0.0, r->seconds);
}

static int evaluate(const cli_args *a, pz_engine *engine, const pz_tokenizer *tokenizer, const char *path) {
    pz_error err;
    pz_eval_result r = {0};
    pz_engine_info info;
    pz_engine_get_info(engine, &info);
    cli_progress p = cli_progress_begin("eval", "questions");
    pz_status st = pz_eval(engine, tokenizer, path, (int)a->batch, (int)a->max_tokens, (int)a->limit,
                           cli_progress_update, &p, &r, &err);
    cli_progress_end(&p);
    if (st != PZ_OK) return cli_error(&err);
    int rc = a->json ? cli_write_json(a->json, to_json(&r, &info)) : CLI_OK;
    if (rc == CLI_OK && !cli_is_stdout(a->json)) print_result(&r, a->failures);
    cli_report_device(&info);
    pz_eval_result_free(&r);
    return rc;
}

static int run(const cli_args *a) {
    char *path = NULL;
    if (!a->data && asprintf(&path, "%s/eval.jsonl", a->what) < 0) return cli_fail("out of memory");
    pz_error err;
    pz_tokenizer *tokenizer = NULL;
    pz_engine *engine = NULL;
    pz_engine_options o = cli_engine_options(a);
    o.max_batch = (int)a->batch;
    int rc = cli_check_output(a->json);
    if (rc == CLI_OK) rc = cli_check_model(a->what);
    if (rc == CLI_OK && pz_tokenizer_open(a->what, &tokenizer, &err) != PZ_OK) rc = cli_error(&err);
    if (rc == CLI_OK && pz_engine_open(a->what, &o, &engine, &err) != PZ_OK) rc = cli_error(&err);
    if (rc == CLI_OK) rc = evaluate(a, engine, tokenizer, a->data ? a->data : path);
    pz_engine_close(engine);
    pz_tokenizer_close(tokenizer);
    free(path);
    return rc;
}

const cli_command cli_eval = {
    "eval",
    "MODEL",
    "answers questions and counts the exact matches",
    "Each line of the data is {\"question\": ..., \"answer\": \"... #### X\"}. The model gets\n"
    "\"Question: ...\\nAnswer:\", and its answer is what follows its last ####.\n"
    "  prezero eval models/kimi-tiny --prezero --failures\n",
    CLI_OPTIONS(options),
    run};
