/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json: what loads can encode and decode any text; the streaming decoder agrees with the other one. */
#include "fuzz.h"
#include "model/tokenizer.h"

static const char sample[] = "Question: How many 12345 apples?\n\nAnswer: it's  caf\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87 "
                             "\xF0\x9F\x98\x80 <|begin|><|end|> ####\t 7\r\n";

static void check_decode(const pz_tokenizer *t, const int32_t *ids, size_t n) {
    pz_error err;
    char *text = NULL;
    pz_detokenizer *d = NULL;
    FUZZ_CHECK(pz_tokenizer_decode(t, ids, n, 0, &text, &err) == PZ_OK, "%s", err.msg);
    FUZZ_CHECK(pz_utf8_valid(text, strlen(text), NULL), "decoded text is not UTF-8");
    pz_free(text);
    FUZZ_CHECK(pz_tokenizer_decode(t, ids, n, 1, &text, &err) == PZ_OK, "%s", err.msg);
    pz_str streamed = {0};
    FUZZ_CHECK(pz_detokenizer_new(t, &d, &err) == PZ_OK, "%s", err.msg);
    for (size_t i = 0; i <= n; i++) {
        const char *part;
        pz_status st = i < n ? pz_detokenizer_push(d, ids[i], &part, &err) : pz_detokenizer_finish(d, &part, &err);
        FUZZ_CHECK(st == PZ_OK, "%s", err.msg);
        FUZZ_CHECK(pz_utf8_valid(part, strlen(part), NULL), "half a character at id %zu", i);
        pz_str_add(&streamed, part);
    }
    FUZZ_CHECK(strcmp(streamed.s ? streamed.s : "", text) == 0, "streamed \"%s\", whole \"%s\"", streamed.s, text);
    pz_str_free(&streamed);
    pz_detokenizer_free(d);
    pz_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char config[] = "{\"add_bos_token\": true}";
    pz_tokenizer *t = NULL;
    pz_error err = {0};
    pz_status st = pz_tokenizer_parse((const char *)data, size, config, sizeof config - 1, "tokenizer.json", &t, &err);
    FUZZ_CHECK((st == PZ_OK) == (t != NULL), "status %d", st);
    FUZZ_CHECK(st == PZ_OK || err.msg[0], "no message");
    if (!t) return 0;
    int32_t *ids = NULL;
    size_t n = 0;
    st = pz_tokenizer_encode(t, sample, sizeof sample - 1, 1, &ids, &n, &err);
    if (st == PZ_OK) {
        for (size_t i = 0; i < n; i++)
            FUZZ_CHECK(ids[i] >= 0 && ids[i] < pz_tokenizer_vocab_size(t), "id %d of %d", ids[i],
                       pz_tokenizer_vocab_size(t));
        check_decode(t, ids, n);
    }
    pz_free(ids);
    pz_tokenizer_close(t);
    return 0;
}
