/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const cli_option options[] = {
    CLI_OPTION("ids", "LIST", CLI_INTS, NULL, "0..2147483647", ids, "token numbers, 5,6,7"),
    CLI_OPTION(
        "ids-file", "FILE", CLI_TEXT, NULL, NULL, ids_file,
        "token numbers from a file: separated by commas or white space, or a JSON array; - reads standard input"),
    CLI_OPTION("o", "FILE", CLI_TEXT, NULL, NULL, out, "the safetensors file to write (required)"),
    CLI_OPTION("chunk", "N", CLI_INT, "128", "1..65536", chunk, "tokens in one step"),
    CLI_PREZERO_OPTION,
    CLI_ENGINE_OPTIONS,
    CLI_JSON_OPTION("what was written"),
};

static int read_ids(const cli_args *a, cli_ints *ids) {
    if (!a->ids_file) return CLI_OK;
    char *text, buf[120];
    size_t size;
    int rc = cli_read(a->ids_file, &text, &size);
    if (rc != CLI_OK) return rc;
    /* A JSON array of integers is the same list in brackets. */
    char *first = text + strspn(text, " \t\r\n"), *last = strrchr(text, ']');
    if (*first == '[' && last && last[1 + strspn(last + 1, " \t\r\n")] == 0) {
        *first = ' ';
        *last = 0;
    }
    const char *wrong =
        strlen(text) == size || last ? cli_read_ints(text, 0, INT32_MAX, ids, buf, sizeof buf) : "has a NUL byte in it";
    if (wrong) rc = cli_fail("%s: %s", a->ids_file, wrong);
    pz_free(text);
    return rc;
}

static int write_logits(const cli_args *a, pz_engine *engine, const cli_ints *ids) {
    pz_error err;
    pz_engine_info info;
    pz_engine_get_info(engine, &info);
    if (ids->n < 1 || info.vocab < 1) return cli_fail("there are no token numbers");
    size_t count = (size_t)ids->n * (size_t)info.vocab;
    float *logits = calloc(count, sizeof *logits);
    if (!logits) return cli_fail("out of memory for %d x %d logits", ids->n, info.vocab);
    int seq, rc = CLI_OK;
    double start = cli_now();
    if (pz_seq_open(engine, &seq, &err) != PZ_OK ||
        pz_engine_prefill(engine, seq, ids->at, (size_t)ids->n, 1, logits, &err) != PZ_OK ||
        pz_write_safetensors(a->out, "logits", logits, ids->n, info.vocab, &err) != PZ_OK)
        rc = cli_error(&err);
    free(logits);
    if (rc != CLI_OK) return rc;
    if (a->json)
        rc = cli_write_json(a->json,
                            json_pack("{s:s, s:s, s:[i,i], s:f, s:b}", "file", a->out, "tensor", "logits", "shape",
                                      ids->n, info.vocab, "seconds", cli_now() - start, "prezero", info.prezero));
    cli_report_device(&info);
    if (!cli_is_stdout(a->json)) printf("%s: logits f32 [%d, %d]\n", a->out, ids->n, info.vocab);
    return rc;
}

static int run(const cli_args *a) {
    if ((a->ids_file != NULL) == (a->ids.n > 0)) return cli_usage("logits needs one of --ids and --ids-file");
    if (!a->out || cli_is_stdout(a->out)) return cli_usage("logits needs -o FILE, the safetensors file to write");
    cli_ints from_file = {0};
    pz_error err;
    pz_engine *engine = NULL;
    pz_engine_options o = cli_engine_options(a);
    o.max_batch = 1;
    o.prefill_chunk = (int)a->chunk;
    int rc = cli_check_output(a->out);
    if (rc == CLI_OK) rc = cli_check_output(a->json);
    if (rc == CLI_OK) rc = cli_check_model(a->what);
    if (rc == CLI_OK) rc = read_ids(a, &from_file);
    if (rc == CLI_OK && pz_engine_open(a->what, &o, &engine, &err) != PZ_OK) rc = cli_error(&err);
    if (rc == CLI_OK) rc = write_logits(a, engine, a->ids_file ? &from_file : &a->ids);
    pz_engine_close(engine);
    free(from_file.at);
    return rc;
}

const cli_command cli_logits = {
    "logits",
    "MODEL",
    "writes the logits of every position, to compare with other software",
    "The file holds one tensor, logits f32 [tokens, vocabulary]: row i belongs to the token after the first i + 1.\n"
    "  prezero logits models/kimi-tiny --ids 5,6,7 --dtype f32 -o logits.safetensors\n",
    CLI_OPTIONS(options),
    run};
