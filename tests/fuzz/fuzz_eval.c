/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation lines: every accepted one has a question and an expected answer. */
#include "base/base.h"
#include "engine/eval.h"
#include "fuzz.h"

static void check_answer(const char *text) {
    size_t n = 0;
    const char *answer = pz_eval_answer(text, &n);
    FUZZ_CHECK(!answer || (answer >= text && n <= strlen(answer)), "answer outside its text");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pz_eval_result r = {0};
    pz_error err = {0};
    if (pz_eval_parse((const char *)data, size, "eval.jsonl", 0, &r, &err) != PZ_OK) {
        FUZZ_CHECK(err.msg[0] && r.n == 0 && !r.items, "a failure with items or without a message");
    }
    for (int i = 0; i < r.n; i++) {
        FUZZ_CHECK(r.items[i].question && r.items[i].expected, "line %d", i);
        check_answer(r.items[i].question);
    }
    pz_eval_result_free(&r);
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    check_answer(text);
    free(text);
    return 0;
}
