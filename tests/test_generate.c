/* SPDX-License-Identifier: Apache-2.0 */
#include "support_engine.h"

#include <stdio.h>

enum { VOCAB = SUPPORT_VOCAB, REQUESTS = 9, MAX_NEW = 64 };

/* What the callback saw of each request. */
typedef struct record {
    int32_t tokens[REQUESTS][MAX_NEW];
    int n[REQUESTS], last[REQUESTS], ended_by_eos[REQUESTS];
    int stop_after; /* tokens, 0: never */
} record;

static int on_token(void *user, int i, int32_t token, int last) {
    record *r = user;
    assert_in_range(i, 0, REQUESTS - 1);
    assert_int_equal(r->last[i], 0); /* nothing comes after the last */
    r->last[i] = last;
    if (token < 0) {
        assert_int_equal(last, 1);
        r->ended_by_eos[i] = 1;
        return 0;
    }
    assert_in_range(r->n[i], 0, MAX_NEW - 1);
    r->tokens[i][r->n[i]++] = token;
    int stop = r->stop_after && r->n[i] == r->stop_after;
    if (stop) r->last[i] = 1;
    return stop;
}

static int32_t prompts[REQUESTS][48];

static void make_requests(pz_request *q, int n, int max_tokens, float temperature) {
    for (int i = 0; i < n; i++) {
        int length = 1 + (i * 11) % 48;
        support_ids(50 + (uint64_t)i, VOCAB, prompts[i], length);
        q[i] = (pz_request){.prompt = prompts[i],
                            .prompt_len = (size_t)length,
                            .max_tokens = max_tokens,
                            .sampling = {.temperature = temperature, .seed = 7 + (uint64_t)i},
                            .ignore_eos = 1};
    }
}

static void generate(pz_engine *e, const pz_request *q, int n, int batch, record *r) {
    pz_error err;
    assert_ok(pz_generate(e, q, n, batch, on_token, r, &err), &err);
    for (int i = 0; i < n; i++) assert_int_equal(r->last[i], 1);
    for (int i = 0; i < e->kv.max_sequences; i++) assert_int_equal(pz_seq_length(e, i), -1);
}

/* Greedy generation is the loop that anyone would write with steps. */
static void test_is_the_plain_loop(void **state) {
    (void)state;
    pz_error err;
    pz_request q[REQUESTS];
    float logits[VOCAB];
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.prezero = 1, .prefill_chunk = 20});
    make_requests(q, REQUESTS, 10, 0);
    record *r = pz_calloc(1, sizeof *r);
    assert_non_null(r);
    generate(e, q, REQUESTS, 4, r);
    for (int i = 0; i < REQUESTS; i++) {
        int seq = support_seq(e);
        uint64_t rng = q[i].sampling.seed;
        assert_int_equal(r->n[i], 10);
        assert_ok(pz_engine_prefill(e, seq, q[i].prompt, q[i].prompt_len, 0, logits, &err), &err);
        for (int t = 0; t < 10; t++) {
            int32_t token;
            assert_ok(pz_sample(logits, VOCAB, &q[i].sampling, &rng, &token, &err), &err);
            assert_int_equal(token, r->tokens[i][t]);
            assert_ok(pz_engine_step(e, &(pz_row){seq, token}, 1, logits, &err), &err);
        }
        pz_seq_close(e, seq);
    }
    pz_free(r);
    pz_engine_close(e);
}

/* Sampled tokens depend on prompt and seed, not on the batch, the chunks or the run. */
static void test_batch_does_not_matter(void **state) {
    (void)state;
    pz_request q[REQUESTS];
    record *want = pz_calloc(1, sizeof *want);
    assert_non_null(want);
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.prezero = 1, .gate = "open"});
    make_requests(q, REQUESTS, 12, 1.0f);
    for (int i = 0; i < REQUESTS; i++) q[i].max_tokens = 3 + i;
    generate(e, q, REQUESTS, 1, want);
    static const int batches[] = {1, 2, 3, 8, 128};
    static const int chunks[] = {128, 1, 13, 40, 64};
    for (size_t b = 0; b < 5; b++) {
        pz_engine *other = support_engine(SUPPORT_MXFP4, (pz_engine_options){.prefill_chunk = chunks[b], .threads = 3});
        record *got = pz_calloc(1, sizeof *got);
        assert_non_null(got);
        generate(other, q, REQUESTS, batches[b], got);
        for (int i = 0; i < REQUESTS; i++) {
            assert_int_equal(got->n[i], 3 + i);
            assert_memory_equal(got->tokens[i], want->tokens[i], sizeof(int32_t) * (size_t)got->n[i]);
        }
        pz_free(got);
        pz_engine_close(other);
    }
    record *seeded = pz_calloc(1, sizeof *seeded);
    assert_non_null(seeded);
    for (int i = 0; i < REQUESTS; i++) q[i].sampling.seed += 1000;
    generate(e, q, REQUESTS, 4, seeded);
    assert_memory_not_equal(seeded->tokens, want->tokens, sizeof want->tokens);
    pz_free(seeded);
    pz_free(want);
    pz_engine_close(e);
}

static void test_limits(void **state) {
    (void)state;
    pz_request q[REQUESTS];
    record *r = pz_calloc(1, sizeof *r);
    assert_non_null(r);
    pz_engine *e =
        support_engine(SUPPORT_MXFP4, (pz_engine_options){.context = 50, .max_batch = 8, .max_sequences = 3});
    make_requests(q, REQUESTS, 60, 0);
    q[0].max_tokens = 1;
    generate(e, q, REQUESTS, 8, r); /* fewer sequences than the batch: it runs with three */
    assert_int_equal(r->n[0], 1);
    for (int i = 1; i < REQUESTS; i++) /* up to a full context, and one token that no longer needs a place */
        assert_int_equal(r->n[i], 50 - (int)q[i].prompt_len + 1 < 60 ? 50 - (int)q[i].prompt_len + 1 : 60);
    memset(r, 0, sizeof *r);
    r->stop_after = 2;
    q[0].max_tokens = 60;
    generate(e, q, REQUESTS, 2, r);
    for (int i = 0; i < REQUESTS; i++) assert_int_equal(r->n[i], 2 < 50 - (int)q[i].prompt_len + 1 ? 2 : r->n[i]);
    memset(r, 0, sizeof *r);
    generate(e, q, 0, 2, r);
    pz_free(r);
    pz_engine_close(e);
}

/* The end token ends a request and is not reported; ignore_eos makes it a token like others. */
static void test_eos(void **state) {
    (void)state;
    pz_request q[REQUESTS];
    record *r = pz_calloc(1, sizeof *r);
    assert_non_null(r);
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){0});
    make_requests(q, 2, 20, 0);
    generate(e, q, 2, 2, r);
    int32_t fourth = r->tokens[0][3];
    int first = 0;
    while (r->tokens[0][first] != fourth) first++;
    e->hf.eos[e->hf.n_eos++] = fourth; /* whatever the model said there is now an end token too */
    memset(r, 0, sizeof *r);
    generate(e, q, 2, 2, r);
    assert_int_equal(r->n[0], 20);
    memset(r, 0, sizeof *r);
    q[0].ignore_eos = 0;
    generate(e, q, 2, 2, r);
    assert_int_equal(r->n[0], first);
    assert_int_equal(r->ended_by_eos[0], 1);
    assert_int_equal(r->n[1], 20);
    pz_free(r);
    pz_engine_close(e);
}

static void test_bad_requests(void **state) {
    (void)state;
    pz_error err;
    pz_request q[REQUESTS];
    int seq;
    record *r = pz_calloc(1, sizeof *r);
    assert_non_null(r);
    pz_engine *e =
        support_engine(SUPPORT_MXFP4, (pz_engine_options){.context = 40, .max_batch = 4, .max_sequences = 2});
    make_requests(q, 4, 5, 0);
#define GENERATE(n, batch) pz_generate(e, q, n, batch, on_token, r, &err)
    assert_fails(GENERATE(4, 0), PZ_E_RANGE, &err, "batch 0", "1 to 4");
    assert_fails(GENERATE(4, 5), PZ_E_RANGE, &err, "batch 5");
    assert_fails(pz_generate(e, q, 4, 2, NULL, NULL, &err), PZ_E_INVAL, &err, "callback");
    assert_fails(pz_generate(e, NULL, 4, 2, on_token, r, &err), PZ_E_INVAL, &err, "requests");
    q[2].max_tokens = 0;
    assert_fails(GENERATE(4, 2), PZ_E_RANGE, &err, "request 2", "max_tokens 0");
    q[2].max_tokens = 5;
    q[3].prompt_len = 0;
    assert_fails(GENERATE(4, 2), PZ_E_INVAL, &err, "request 3", "empty");
    q[3].prompt_len = 41;
    assert_fails(GENERATE(4, 2), PZ_E_RANGE, &err, "request 3", "41 tokens", "40");
    q[3].prompt_len = 12;
    prompts[1][0] = 1024;
    assert_fails(GENERATE(4, 2), PZ_E_RANGE, &err, "request 1", "token 1024");
    prompts[1][0] = 5;
    q[1].sampling.temperature = -1;
    assert_fails(GENERATE(4, 2), PZ_E_RANGE, &err, "request 1", "temperature -1");
    q[1].sampling.temperature = 0;
    for (int i = 0; i < 2; i++) assert_int_equal(pz_seq_length(e, i), -1); /* all closed again */
    assert_int_equal(support_seq(e), 0);
    memset(r, 0, sizeof *r);
    assert_ok(GENERATE(4, 2), &err); /* one sequence is left */
    assert_int_equal(support_seq(e), 1);
    memset(r, 0, sizeof *r);
    assert_fails(GENERATE(4, 2), PZ_E_RANGE, &err, "2 sequences");
#undef GENERATE
    pz_seq_close(e, 0);
    for (long n = 0; n < 5; n++) {
        pz_alloc_fail_after(n);
        pz_status st = pz_generate(e, q, 4, 2, on_token, r, &err);
        pz_alloc_fail_after(-1);
        assert_status(st, PZ_E_NOMEM, &err);
    }
    assert_ok(pz_seq_open(e, &seq, &err), &err);
    pz_free(r);
    pz_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_the_plain_loop),
        cmocka_unit_test(test_batch_does_not_matter),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_eos),
        cmocka_unit_test(test_bad_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
