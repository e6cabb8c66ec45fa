/* SPDX-License-Identifier: Apache-2.0 */
#include "support_engine.h"

#include <stdio.h>

#include "base/file.h"
#include "engine/eval.h"

#define DATA SUPPORT_MXFP4 "/eval.jsonl"

static void test_answer(void **state) {
    (void)state;
    static const struct {
        const char *text, *answer;
    } cases[] = {{"1+1=2 #### 2", "2"}, {"#### 3 #### 4", "4"}, {"####5", "5"}, {"x ####   6 7 \n\t\r", "6 7"},
                 {"####", ""},          {"no mark", NULL},      {"", NULL},     {"### 1", NULL},
                 {"##### 8", "8"},      {"#### 1 ########", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = 99;
        const char *a = pz_eval_answer(cases[i].text, &n);
        if (!cases[i].answer) {
            assert_null(a);
            continue;
        }
        assert_non_null(a);
        assert_int_equal(n, strlen(cases[i].answer));
        assert_memory_equal(a, cases[i].answer, n);
    }
}

static pz_status parse(const char *text, int limit, pz_eval_result *r, pz_error *err) {
    return pz_eval_parse(text, strlen(text), "data", limit, r, err);
}

static void test_parse(void **state) {
    (void)state;
    pz_error err;
    pz_eval_result r;
    const char *two = "{\"question\": \"a?\", \"answer\": \"b #### c\"}\n\n  \r\n"
                      "{\"answer\": \"#### \\u00e9 f\", \"question\": \"g\", \"extra\": [1]}";
    assert_ok(parse(two, 0, &r, &err), &err);
    assert_int_equal(r.n, 2);
    assert_string_equal(r.items[0].question, "a?");
    assert_string_equal(r.items[0].expected, "c");
    assert_string_equal(r.items[1].question, "g");
    assert_string_equal(r.items[1].expected, "\xc3\xa9 f");
    assert_null(r.items[0].output);
    pz_eval_result_free(&r);
    assert_int_equal(r.n, 0);
    pz_eval_result_free(&r);
    pz_eval_result_free(NULL);
    assert_ok(parse(two, 1, &r, &err), &err);
    assert_int_equal(r.n, 1);
    pz_eval_result_free(&r);
}

static void test_parse_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "no lines"},
        {"\n \n", "no lines"},
        {"{\"question\": \"a\", \"answer\": \"#### 1\"}\n{", "data:2"},
        {"[1]", "data:1"},
        {"\n\n7", "data:3"},
        {"{\"question\": \"a\"}", "answer"},
        {"{\"answer\": \"#### 1\"}", "question"},
        {"{\"question\": 1, \"answer\": \"#### 1\"}", "question"},
        {"{\"question\": \"a\", \"answer\": [\"#### 1\"]}", "answer"},
        {"{\"question\": \"a\", \"answer\": \"1\"}", "####"},
        {"{\"question\": \"a\", \"answer\": \"#### 1\"} x", "data:1"},
        {"{\"question\": \"a\", \"question\": \"a\", \"answer\": \"#### 1\"}", "data:1"},
        {"{\"question\": \"\xff\", \"answer\": \"#### 1\"}", "data:1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pz_error err;
        pz_eval_result r;
        assert_fails(parse(cases[i].text, 0, &r, &err), PZ_E_FORMAT, &err, cases[i].part);
        assert_null(r.items);
        assert_int_equal(r.n, 0);
    }
}

static pz_status parse_some(void *ctx) {
    pz_eval_result r;
    (void)ctx;
    PZ_TRY(parse("{\"question\": \"a?\", \"answer\": \"b #### c\"}\n{\"question\": \"d\", \"answer\": \"#### e\"}", 0,
                 &r, NULL));
    pz_eval_result_free(&r);
    return PZ_OK;
}

static void test_parse_out_of_memory(void **state) {
    (void)state;
    assert_true(support_alloc_sweep(parse_some, NULL) >= 5);
    assert_true(support_alloc_sweep_json(parse_some, NULL) >= 5);
}

typedef struct progress {
    int calls, done, total;
} progress;

static void on_progress(void *user, int done, int total) {
    progress *p = user;
    p->calls++;
    assert_int_equal(done, p->done + 1);
    p->done = done;
    p->total = total;
}

static pz_tokenizer *open_tokenizer(void) {
    pz_error err;
    pz_tokenizer *tok;
    assert_ok(pz_tokenizer_open(SUPPORT_MXFP4, &tok, &err), &err);
    return tok;
}

static void run(pz_engine *e, const pz_tokenizer *tok, int batch, int limit, pz_eval_result *r) {
    pz_error err;
    progress p = {0};
    assert_ok(pz_eval(e, tok, DATA, batch, 48, limit, on_progress, &p, r, &err), &err);
    assert_int_equal(p.calls, r->n);
    assert_int_equal(p.total, r->n);
    assert_true(r->seconds > 0);
    int correct = 0;
    for (int i = 0; i < r->n; i++) {
        assert_int_equal(r->items[i].correct, strcmp(r->items[i].answer, r->items[i].expected) == 0);
        correct += r->items[i].correct;
    }
    assert_int_equal(correct, r->correct);
}

static void assert_same_outputs(const pz_eval_result *a, const pz_eval_result *b) {
    assert_true(a->n <= b->n);
    for (int i = 0; i < a->n; i++) {
        assert_string_equal(a->items[i].question, b->items[i].question);
        assert_string_equal(a->items[i].output, b->items[i].output);
    }
}

/* Sixty lines, in the order of the file whatever the batch. */
static void test_subset(void **state) {
    (void)state;
    pz_tokenizer *tok = open_tokenizer();
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.prezero = 1});
    pz_eval_result one, many;
    run(e, tok, 32, 60, &many);
    assert_int_equal(many.n, 60);
    assert_in_range(many.correct, 59, 60);
    assert_string_equal(many.items[0].expected, "12");
    assert_string_equal(many.items[0].output, " 36/3=12 #### 12");
    assert_true(many.prompt_tokens > 60 * 10 && many.new_tokens > 60 * 4);
    run(e, tok, 3, 60, &one);
    assert_same_outputs(&one, &many);
    pz_eval_result_free(&one);
    pz_eval_result_free(&many);
    pz_engine_close(e);
    pz_tokenizer_close(tok);
}

/* The whole set, or a part of it where instrumentation makes it slow. */
#ifdef __has_feature
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    HAS_FEATURE(address_sanitizer) || HAS_FEATURE(thread_sanitizer)
enum { LINES = 60 };
#else
enum { LINES = 1319 };
#endif

/* Asserts that at most `wrong` of the first `limit` answers are wrong. */
static void eval_set(const pz_tokenizer *tok, pz_act act, int prezero, int limit, int wrong, pz_eval_result *r) {
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.prezero = prezero, .gate = "open", .act = act});
    run(e, tok, 64, limit, r);
    print_message("%d of %d correct, %lld prompt and %lld new tokens, %.2f s\n", r->correct, r->n,
                  (long long)r->prompt_tokens, (long long)r->new_tokens, r->seconds);
    assert_int_equal(r->n, limit);
    assert_in_range(r->correct, limit - wrong, limit);
    pz_engine_close(e);
}

/* The whole set with prezero on, and its first `n_off` lines with prezero off: the same text. */
static void check_set(pz_act act, int wrong, int n_off) {
    pz_tokenizer *tok = open_tokenizer();
    pz_eval_result off, on;
    eval_set(tok, act, 0, n_off, wrong, &off);
    eval_set(tok, act, 1, LINES, wrong, &on);
    assert_same_outputs(&off, &on);
    pz_eval_result_free(&off);
    pz_eval_result_free(&on);
    pz_tokenizer_close(tok);
}

static void test_all_bf16(void **state) {
    (void)state;
    check_set(PZ_ACT_BF16, 4, LINES);
}

static void test_all_f32(void **state) {
    (void)state;
    check_set(PZ_ACT_F32, 2, LINES / 4);
}

static void test_errors(void **state) {
    (void)state;
    pz_error err;
    pz_eval_result r;
    pz_tokenizer *tok = open_tokenizer();
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_batch = 4, .context = 24});
    assert_fails(pz_eval(e, tok, "/nowhere.jsonl", 4, 8, 2, NULL, NULL, &r, &err), PZ_E_NOTFOUND, &err, "nowhere");
    assert_fails(pz_eval(e, tok, DATA, 5, 8, 2, NULL, NULL, &r, &err), PZ_E_RANGE, &err, "batch 5");
    assert_fails(pz_eval(e, tok, DATA, 4, 0, 2, NULL, NULL, &r, &err), PZ_E_RANGE, &err, "max_tokens 0");
    assert_fails(pz_eval(e, tok, DATA, 4, 8, -1, NULL, NULL, &r, &err), PZ_E_RANGE, &err, "limit -1");
    assert_fails(pz_eval(e, tok, DATA, 4, 8, 0, NULL, NULL, &r, &err), PZ_E_RANGE, &err, "context of 24");
    assert_fails(pz_eval(e, NULL, DATA, 4, 8, 0, NULL, NULL, &r, &err), PZ_E_INVAL, &err, "tokenizer");
    pz_engine_close(e);
    pz_tokenizer_close(tok);
}

typedef struct env {
    pz_engine *e;
    pz_tokenizer *tok;
} env;

static pz_status eval_two(void *ctx) {
    env *v = ctx;
    pz_eval_result r;
    PZ_TRY(pz_eval(v->e, v->tok, DATA, 2, 3, 2, NULL, NULL, &r, NULL));
    pz_eval_result_free(&r);
    return PZ_OK;
}

static void test_out_of_memory(void **state) {
    (void)state;
    env v = {support_engine(SUPPORT_MXFP4, (pz_engine_options){.max_batch = 2}), open_tokenizer()};
    assert_true(support_alloc_sweep(eval_two, &v) > 20);
    for (int i = 0; i < v.e->kv.max_sequences; i++) assert_int_equal(pz_seq_length(v.e, i), -1);
    pz_engine_close(v.e);
    pz_tokenizer_close(v.tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer),
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_errors),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_parse_out_of_memory),
        cmocka_unit_test(test_subset),
        cmocka_unit_test(test_all_bf16),
        cmocka_unit_test(test_all_f32),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
