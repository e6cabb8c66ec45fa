/* SPDX-License-Identifier: Apache-2.0 */
/* Every public function with its pointers missing: E_INVAL and one line, never a crash. */
#include "support.h"

#include <stdio.h>

#include "prezero/engine.h"
#include "prezero/kernels.h"

#define MODEL PZ_SOURCE_DIR "/tests/data/variants/v3-groups"
#define TOKENIZER PZ_SOURCE_DIR "/models/kimi-tiny"

static pz_error err;

static void refused(pz_status st, const char *call) {
    if (st != PZ_E_INVAL) fail_msg("%s: %s", call, pz_status_name(st));
    if (err.code != st || !*err.msg || strchr(err.msg, '\n')) fail_msg("%s: message \"%s\"", call, err.msg);
    err = (pz_error){0};
}
#define REFUSED(call) refused((call), #call)

static void test_graphs(void **state) {
    (void)state;
    pz_graph *g, *made;
    char *text;
    assert_ok(pz_graph_from_config(MODEL, NULL, &g, &err), &err);
    REFUSED(pz_graph_parse(NULL, 5, "x", &made, &err));
    REFUSED(pz_graph_parse("", 0, "x", NULL, &err));
    REFUSED(pz_graph_print(NULL, &text, &err));
    REFUSED(pz_graph_print(g, NULL, &err));
    REFUSED(pz_graph_dot(NULL, &text, &err));
    REFUSED(pz_graph_dot(g, NULL, &err));
    REFUSED(pz_graph_verify(NULL, &err));
    REFUSED(pz_graph_clone(NULL, &made, &err));
    REFUSED(pz_graph_clone(g, NULL, &err));
    REFUSED(pz_graph_from_config(NULL, NULL, &made, &err));
    REFUSED(pz_graph_from_config(MODEL, NULL, NULL, &err));
    REFUSED(pz_graph_from_config(MODEL, &(pz_model_graph_options){.size = 1}, &made, &err));
    REFUSED(pz_graph_run_passes(NULL, NULL, NULL, &err));
    REFUSED(pz_explain(NULL, NULL, &text, &err));
    REFUSED(pz_explain(g, NULL, NULL, &err));
    REFUSED(pz_explain(g, &(pz_explain_options){.size = 1}, &text, &err));
    REFUSED(pz_describe_ops(0, NULL, &err));
    REFUSED(pz_describe_passes(0, NULL, &err));
    REFUSED(pz_describe_knobs(0, NULL, &err));
    pz_gate_query q = {.size = sizeof q, .rows = 1};
    pz_gate_result r;
    REFUSED(pz_gate(NULL, &r, &err));
    REFUSED(pz_gate(&q, NULL, &err));
    q.size = 1;
    REFUSED(pz_gate(&q, &r, &err));
    pz_graph_free(g);
    pz_graph_free(NULL);
}

static void test_tokenizer(void **state) {
    (void)state;
    pz_tokenizer *t, *made;
    pz_detokenizer *d, *other;
    int32_t *ids, one = 5;
    size_t n;
    char *text;
    const char *shown;
    assert_ok(pz_tokenizer_open(TOKENIZER, &t, &err), &err);
    assert_ok(pz_detokenizer_new(t, &d, &err), &err);
    REFUSED(pz_tokenizer_open(NULL, &made, &err));
    REFUSED(pz_tokenizer_open(TOKENIZER, NULL, &err));
    REFUSED(pz_tokenizer_encode(NULL, "a", 1, 0, &ids, &n, &err));
    REFUSED(pz_tokenizer_encode(t, NULL, 1, 0, &ids, &n, &err));
    REFUSED(pz_tokenizer_encode(t, "a", 1, 0, NULL, &n, &err));
    REFUSED(pz_tokenizer_encode(t, "a", 1, 0, &ids, NULL, &err));
    REFUSED(pz_tokenizer_decode(NULL, &one, 1, 0, &text, &err));
    REFUSED(pz_tokenizer_decode(t, NULL, 1, 0, &text, &err));
    REFUSED(pz_tokenizer_decode(t, &one, 1, 0, NULL, &err));
    REFUSED(pz_detokenizer_new(NULL, &other, &err));
    REFUSED(pz_detokenizer_new(t, NULL, &err));
    REFUSED(pz_detokenizer_push(NULL, 5, &shown, &err));
    REFUSED(pz_detokenizer_push(d, 5, NULL, &err));
    REFUSED(pz_detokenizer_finish(NULL, &shown, &err));
    REFUSED(pz_detokenizer_finish(d, NULL, &err));
    assert_int_equal(pz_tokenizer_vocab_size(NULL), 0);
    /* Nothing at all is a text, and no ids are ids. */
    assert_ok(pz_tokenizer_encode(t, NULL, 0, 0, &ids, &n, &err), &err);
    assert_int_equal(n, 0);
    pz_free(ids);
    assert_ok(pz_tokenizer_decode(t, NULL, 0, 0, &text, &err), &err);
    assert_string_equal(text, "");
    pz_free(text);
    pz_detokenizer_free(d);
    pz_detokenizer_free(NULL);
    pz_tokenizer_close(t);
    pz_tokenizer_close(NULL);
}

static int on_token(void *user, int index, int32_t token, int last) {
    (void)user, (void)index, (void)token, (void)last;
    return 0;
}

static void test_steps(pz_engine *e) {
    int seq, batch = 1, n;
    int32_t ids[] = {1, 2}, token;
    uint64_t rng = 1;
    float logits[48] = {0};
    pz_row row = {0, 1};
    pz_request request = {.prompt = ids, .prompt_len = 2, .max_tokens = 1},
               without = {.prompt_len = 2, .max_tokens = 1};
    pz_sampling greedy = {0};
    pz_profile_row *profile;
    pz_compare_result compared;
    REFUSED(pz_seq_open(NULL, &seq, &err));
    REFUSED(pz_seq_open(e, NULL, &err));
    REFUSED(pz_engine_step(NULL, &row, 1, logits, &err));
    REFUSED(pz_engine_step(e, NULL, 1, logits, &err));
    REFUSED(pz_engine_prefill(NULL, 0, ids, 2, 0, logits, &err));
    REFUSED(pz_engine_prefill(e, 0, NULL, 2, 0, logits, &err));
    REFUSED(pz_generate(NULL, &request, 1, 1, on_token, NULL, &err));
    REFUSED(pz_generate(e, NULL, 1, 1, on_token, NULL, &err));
    REFUSED(pz_generate(e, &request, 1, 1, NULL, NULL, &err));
    REFUSED(pz_generate(e, &without, 1, 1, on_token, NULL, &err));
    REFUSED(pz_sample(NULL, 48, &greedy, &rng, &token, &err));
    REFUSED(pz_sample(logits, 48, NULL, &rng, &token, &err));
    REFUSED(pz_sample(logits, 48, &greedy, NULL, &token, &err));
    REFUSED(pz_sample(logits, 48, &greedy, &rng, NULL, &err));
    REFUSED(pz_engine_profile(NULL, 0, &profile, &n, &err));
    REFUSED(pz_engine_profile(e, 0, NULL, &n, &err));
    REFUSED(pz_engine_profile(e, 0, &profile, NULL, &err));
    REFUSED(pz_compare(NULL, e, &batch, 1, 6, NULL, NULL, &compared, &err));
    REFUSED(pz_compare(e, NULL, &batch, 1, 6, NULL, NULL, &compared, &err));
    REFUSED(pz_compare(e, e, NULL, 1, 6, NULL, NULL, &compared, &err));
    REFUSED(pz_compare(e, e, &batch, 1, 6, NULL, NULL, NULL, &err));
}

static void test_engine(void **state) {
    (void)state;
    pz_engine *e, *made;
    pz_engine_info info = {.vocab = 1};
    pz_engine_options wrong = {.size = 1}, o = {.size = sizeof o, .threads = 1};
    pz_eval_result answers;
    char *text;
    int n = 7;
    REFUSED(pz_engine_open(NULL, NULL, &made, &err));
    REFUSED(pz_engine_open(MODEL, NULL, NULL, &err));
    REFUSED(pz_engine_open(MODEL, &wrong, &made, &err));
    assert_ok(pz_engine_open(MODEL, &o, &e, &err), &err);
    REFUSED(pz_engine_plan_text(NULL, 1, &text, &err));
    REFUSED(pz_engine_plan_text(e, 1, NULL, &err));
    REFUSED(pz_eval(e, NULL, "x", 1, 1, 0, NULL, NULL, &answers, &err));
    test_steps(e);
    pz_engine_get_info(e, NULL);
    pz_engine_get_info(NULL, &info);
    assert_int_equal(info.vocab, 0);
    assert_non_null(pz_engine_buckets(e, NULL));
    assert_null(pz_engine_buckets(NULL, &n));
    assert_int_equal(n, 0);
    assert_int_equal(pz_seq_length(NULL, 0), -1);
    pz_seq_close(NULL, 0);
    pz_seq_close(e, -1);
    pz_seq_close(e, 1 << 30);
    pz_engine_close(e);
    pz_engine_close(NULL);
    pz_eval_result_free(NULL);
    pz_compare_result_free(NULL);
    pz_free(NULL);
}

static void test_files(void **state) {
    (void)state;
    char *text;
    size_t size;
    float one = 1;
    REFUSED(pz_write_text(NULL, "x", &err));
    REFUSED(pz_write_text("/nonexistent/x", NULL, &err));
    REFUSED(pz_read_text(NULL, &text, &size, &err));
    REFUSED(pz_read_text(MODEL "/config.json", NULL, &size, &err));
    REFUSED(pz_read_text(MODEL "/config.json", &text, NULL, &err));
    REFUSED(pz_write_safetensors(NULL, "a", &one, 1, 1, &err));
    REFUSED(pz_write_safetensors("/nonexistent/x", NULL, &one, 1, 1, &err));
    REFUSED(pz_write_safetensors("/nonexistent/x", "a", NULL, 1, 1, &err));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_engine),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
