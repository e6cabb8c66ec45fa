/* SPDX-License-Identifier: Apache-2.0 */
/* Exact match on question/answer lines. */
#include "engine/eval.h"

#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "engine/session.h"

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

const char *pz_eval_answer(const char *text, size_t *n) {
    const char *mark = NULL;
    for (const char *p = strstr(text, "####"); p; p = strstr(p + 1, "####")) mark = p;
    if (!mark) return NULL;
    const char *begin = mark + 4, *end = text + strlen(text);
    while (begin < end && is_space(*begin)) begin++;
    while (end > begin && is_space(end[-1])) end--;
    *n = (size_t)(end - begin);
    return begin;
}

/* Copies the answer of `text` ("" if it has none). */
static pz_status copy_answer(const char *text, char **out, pz_error *err) {
    size_t n = 0;
    const char *answer = pz_eval_answer(text, &n);
    *out = pz_strndup(answer ? answer : "", n);
    return *out ? PZ_OK : PZ_NOMEM(err);
}

static pz_status parse_line(const char *line, size_t size, const char *where, pz_eval_item *item, pz_error *err) {
    json_t *json = NULL;
    const char *question, *answer;
    size_t n;
    PZ_TRY(pz_json_parse(line, size, where, &json, err));
    pz_status st = json_is_object(json)
                       ? PZ_OK
                       : pz_fail(err, PZ_E_FORMAT, "%s: must be an object with \"question\" and \"answer\"", where);
    if (st == PZ_OK) st = pz_json_get_str(json, "question", true, &question, where, err);
    if (st == PZ_OK) st = pz_json_get_str(json, "answer", true, &answer, where, err);
    /* An empty result would match every output without an answer. */
    if (st == PZ_OK && (!pz_eval_answer(answer, &n) || n == 0))
        st = pz_fail(err, PZ_E_FORMAT, "%s: \"answer\" must end in \"#### \" and the expected result", where);
    if (st == PZ_OK) st = copy_answer(answer, &item->expected, err);
    if (st == PZ_OK) {
        item->question = pz_strdup(question);
        if (!item->question) st = PZ_NOMEM(err);
    }
    json_decref(json);
    return st;
}

typedef PZ_VEC(pz_eval_item) eval_items;

static pz_status parse_lines(const char *text, size_t size, const char *where, int limit, eval_items *items,
                             pz_error *err) {
    const char *at = text, *end = text + size;
    for (int line = 1; at < end && (limit == 0 || items->n < limit); line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at)), *first = at;
        if (!stop) stop = end;
        while (first < stop && is_space(*first)) first++;
        if (first < stop) {
            char place[320];
            snprintf(place, sizeof place, "%.300s:%d", where, line);
            PZ_TRY(pz_push(items, (pz_eval_item){0}, err));
            PZ_TRY(parse_line(at, (size_t)(stop - at), place, &items->at[items->n - 1], err));
        }
        at = stop < end ? stop + 1 : end;
    }
    return PZ_OK;
}

pz_status pz_eval_parse(const char *text, size_t size, const char *where, int limit, pz_eval_result *result,
                        pz_error *err) {
    eval_items items = {0};
    pz_status st = parse_lines(text, size, where, limit, &items, err);
    *result = (pz_eval_result){.items = items.at, .n = items.n};
    if (st == PZ_OK && items.n == 0)
        st = pz_fail(err, PZ_E_FORMAT,
                     "%s: no lines; one JSON object with \"question\" and \"answer\" a line is needed", where);
    if (st != PZ_OK) pz_eval_result_free(result);
    return st;
}

void pz_eval_result_free(pz_eval_result *result) {
    if (!result) return;
    for (int i = 0; i < result->n; i++) {
        pz_free(result->items[i].question);
        pz_free(result->items[i].expected);
        pz_free(result->items[i].output);
        pz_free(result->items[i].answer);
    }
    pz_free(result->items);
    *result = (pz_eval_result){0};
}

typedef PZ_VEC(int32_t) id_list;

typedef struct eval_run {
    const pz_tokenizer *tok;
    pz_eval_result *result;
    pz_request *requests;
    id_list *outputs;
    int done;
    pz_progress_fn progress;
    void *user;
    pz_status st; /* of the callback, which can only ask to stop */
    pz_error *err;
} eval_run;

static pz_status make_request(eval_run *r, int i, int max_tokens) {
    pz_str prompt = {0};
    char *text;
    int32_t *ids;
    size_t n;
    pz_str_addf(&prompt, "Question: %s\nAnswer:", r->result->items[i].question);
    PZ_TRY(pz_str_take(&prompt, &text, r->err));
    pz_status st = pz_tokenizer_encode(r->tok, text, strlen(text), 1, &ids, &n, r->err);
    pz_free(text);
    if (st != PZ_OK) return st;
    r->requests[i] = (pz_request){.prompt = ids, .prompt_len = n, .max_tokens = max_tokens};
    r->result->prompt_tokens += (int64_t)n;
    return PZ_OK;
}

static pz_status finish_item(eval_run *r, int i) {
    pz_eval_item *item = &r->result->items[i];
    PZ_TRY(pz_tokenizer_decode(r->tok, r->outputs[i].at, (size_t)r->outputs[i].n, 1, &item->output, r->err));
    PZ_TRY(copy_answer(item->output, &item->answer, r->err));
    item->correct = pz_streq(item->answer, item->expected);
    r->result->correct += item->correct;
    r->result->new_tokens += r->outputs[i].n;
    pz_vec_free(&r->outputs[i]);
    if (r->progress) r->progress(r->user, ++r->done, r->result->n);
    return PZ_OK;
}

static int on_token(void *user, int i, int32_t token, int last) {
    eval_run *r = user;
    if (r->st == PZ_OK && token >= 0) r->st = pz_push(&r->outputs[i], token, r->err);
    if (r->st == PZ_OK && last) r->st = finish_item(r, i);
    return r->st != PZ_OK;
}

static pz_status run_items(pz_engine *engine, eval_run *r, int batch, int max_tokens) {
    int n = r->result->n;
    r->requests = pz_calloc((size_t)n, sizeof *r->requests);
    r->outputs = pz_calloc((size_t)n, sizeof *r->outputs);
    pz_status st = r->requests && r->outputs ? PZ_OK : PZ_NOMEM(r->err);
    for (int i = 0; i < n && st == PZ_OK; i++) st = make_request(r, i, max_tokens);
    if (st == PZ_OK) st = pz_generate(engine, r->requests, n, batch, on_token, r, r->err);
    if (st == PZ_OK) st = r->st;
    for (int i = 0; i < n; i++) {
        if (r->requests) pz_free((void *)(uintptr_t)r->requests[i].prompt);
        if (r->outputs) pz_vec_free(&r->outputs[i]);
    }
    pz_free(r->requests);
    pz_free(r->outputs);
    return st;
}

pz_status pz_eval(pz_engine *engine, const pz_tokenizer *tok, const char *path, int batch, int max_tokens, int limit,
                  pz_progress_fn progress, void *user, pz_eval_result *result, pz_error *err) {
    if (!engine || !tok || !path || !result)
        return pz_fail(err, PZ_E_INVAL, "pz_eval: needs an engine, a tokenizer, a path and a result");
    if (limit < 0) return pz_fail(err, PZ_E_RANGE, "limit %d: must be 0 (all) or positive", limit);
    int64_t start = pz_now_ns();
    char *text;
    size_t size;
    PZ_TRY(pz_file_read(path, &text, &size, err));
    pz_status st = pz_eval_parse(text, size, path, limit, result, err);
    pz_free(text);
    if (st != PZ_OK) return st;
    eval_run run = {.tok = tok, .result = result, .progress = progress, .user = user, .err = err};
    st = run_items(engine, &run, batch, max_tokens);
    if (st != PZ_OK) {
        pz_eval_result_free(result);
        return st;
    }
    result->seconds = (double)(pz_now_ns() - start) * 1e-9;
    return PZ_OK;
}
