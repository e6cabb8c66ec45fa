/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer against the Hugging Face library's answers (tests/data/tokenizer, made by
 * tools/make_tokenizer_cases.py), and against broken files, broken texts and failing allocations. */
#include "support.h"

#include <dirent.h>
#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "model/tokenizer.h"

#define DATA PZ_SOURCE_DIR "/tests/data/tokenizer"
#define MODEL PZ_SOURCE_DIR "/models/kimi-tiny"

static json_t *load_cases(const char *path) {
    json_error_t e;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!root) fail_msg("%s: %s", path, e.text);
    return root;
}

static pz_tokenizer *open_cases(const json_t *root) {
    pz_error err = {0};
    pz_tokenizer *t = NULL;
    const json_t *source = json_object_get(root, "tokenizer");
    pz_status st;
    if (json_is_string(source)) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", PZ_SOURCE_DIR, json_string_value(source));
        st = pz_tokenizer_open(path, &t, &err);
    } else {
        char *text = json_dumps(source, 0);
        st = pz_tokenizer_parse(text, strlen(text), NULL, 0, "tokenizer.json", &t, &err);
        free(text);
    }
    if (st != PZ_OK) fail_msg("%s", err.msg);
    return t;
}

static void check_encode(const char *name, const pz_tokenizer *t, const json_t *pair, size_t index) {
    const json_t *text = json_array_get(pair, 0), *want = json_array_get(pair, 1);
    pz_error err = {0};
    int32_t *ids;
    size_t n;
    if (pz_tokenizer_encode(t, json_string_value(text), json_string_length(text), 0, &ids, &n, &err) != PZ_OK)
        fail_msg("%s case %zu: %s", name, index, err.msg);
    for (size_t i = 0; i < n || i < json_array_size(want); i++)
        if (i >= n || i >= json_array_size(want) || ids[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s case %zu (\"%s\"): id %zu of %zu differs, %zu expected", name, index, json_string_value(text),
                     i, n, json_array_size(want));
    pz_free(ids);
}

static void check_decode(const char *name, const pz_tokenizer *t, const json_t *row, size_t index) {
    int32_t ids[64];
    size_t n = json_array_size(json_array_get(row, 0));
    assert_true(n <= 64);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(json_array_get(row, 0), i));
    for (int skip = 0; skip < 2; skip++) {
        char *text;
        const json_t *want = json_array_get(row, 1 + (size_t)skip);
        assert_int_equal(pz_tokenizer_decode(t, ids, n, skip, &text, NULL), PZ_OK);
        if (strlen(text) != strlen(json_string_value(want)) || strcmp(text, json_string_value(want)) != 0)
            fail_msg("%s decode %zu: \"%s\", expected \"%s\"", name, index, text, json_string_value(want));
        pz_free(text);
    }
}

static void test_reference(void **state) {
    (void)state;
    DIR *dir = opendir(DATA);
    assert_non_null(dir);
    int files = 0;
    for (struct dirent *d; (d = readdir(dir));) {
        if (!strstr(d->d_name, ".json") || strcmp(d->d_name, "eval_digest.json") == 0) continue;
        char path[600];
        snprintf(path, sizeof path, "%s/%s", DATA, d->d_name);
        json_t *root = load_cases(path), *v;
        pz_tokenizer *t = open_cases(root);
        size_t i;
        json_array_foreach(json_object_get(root, "cases"), i, v) check_encode(d->d_name, t, v, i);
        assert_true(i > 30);
        json_array_foreach(json_object_get(root, "decode"), i, v) if (json_string_length(json_array_get(v, 1)) ==
                                                                      strlen(json_string_value(json_array_get(v, 1))))
            check_decode(d->d_name, t, v, i);
        pz_tokenizer_close(t);
        json_decref(root);
        files++;
    }
    closedir(dir);
    assert_true(files >= 37);
}

/* All prompts and answers of the evaluation set, as one hash of their ids. */
static void test_eval_digest(void **state) {
    (void)state;
    pz_tokenizer *t;
    char *text;
    size_t size;
    assert_int_equal(pz_tokenizer_open(MODEL, &t, NULL), PZ_OK);
    assert_int_equal(pz_file_read(MODEL "/eval.jsonl", &text, &size, NULL), PZ_OK);
    uint64_t digest = 0xcbf29ce484222325u;
    json_int_t count = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *item = json_loadb(line, (size_t)(end - line), 0, NULL);
        pz_str b = {0};
        pz_str_addf(&b, "Question: %s\nAnswer: %s", json_string_value(json_object_get(item, "question")),
                    json_string_value(json_object_get(item, "answer")));
        int32_t *ids;
        size_t n;
        assert_int_equal(pz_tokenizer_encode(t, b.s, b.n, 0, &ids, &n, NULL), PZ_OK);
        for (size_t i = 0; i <= n; i++, count++) digest = (digest ^ (uint32_t)(i < n ? ids[i] : -1)) * 0x100000001b3u;
        pz_free(ids);
        pz_str_free(&b);
        json_decref(item);
    }
    json_t *want = load_cases(DATA "/eval_digest.json");
    char hex[20];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)digest);
    assert_int_equal(count, json_integer_value(json_object_get(want, "count")));
    assert_string_equal(hex, json_string_value(json_object_get(want, "digest")));
    json_decref(want);
    pz_free(text);
    pz_tokenizer_close(t);
}

static pz_tokenizer *builtin(void) {
    pz_tokenizer *t;
    pz_error err = {0};
    if (pz_tokenizer_open(MODEL, &t, &err) != PZ_OK) fail_msg("%s", err.msg);
    return t;
}

/* Random valid UTF-8 without NUL, any scalar value. */
static size_t random_text(uint64_t *rng, char *out, size_t chars) {
    size_t n = 0;
    for (size_t i = 0; i < chars; i++) {
        uint32_t c, kind = (uint32_t)(pz_rng_next(rng) % 4);
        do
            c = 1 + (uint32_t)(pz_rng_next(rng) % (kind == 0   ? 0x7F
                                                   : kind == 1 ? 0x7FF
                                                   : kind == 2 ? 0xFFFF
                                                               : 0x10FFFF));
        while (c >= 0xD800 && c < 0xE000);
        n += pz_tok_put_char(c, out + n);
    }
    out[n] = 0;
    return n;
}

static void test_round_trip_and_streaming(void **state) {
    (void)state;
    pz_tokenizer *t = builtin();
    uint64_t rng = 7;
    for (int round = 0; round < 300; round++) {
        char text[4 * 40 + 1], *back;
        size_t size = random_text(&rng, text, pz_rng_next(&rng) % 41), n;
        int32_t *ids;
        assert_int_equal(pz_tokenizer_encode(t, text, size, 0, &ids, &n, NULL), PZ_OK);
        assert_int_equal(pz_tokenizer_decode(t, ids, n, 0, &back, NULL), PZ_OK);
        assert_string_equal(back, text);
        pz_detokenizer *d;
        pz_str all = {0};
        const char *part;
        assert_int_equal(pz_detokenizer_new(t, &d, NULL), PZ_OK);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(pz_detokenizer_push(d, ids[i], &part, NULL), PZ_OK);
            assert_true(pz_utf8_valid(part, strlen(part), NULL));
            pz_str_add(&all, part);
        }
        assert_int_equal(pz_detokenizer_finish(d, &part, NULL), PZ_OK);
        assert_string_equal(part, "");
        pz_str_add(&all, part);
        assert_string_equal(all.s, text);
        pz_str_free(&all);
        pz_detokenizer_free(d);
        pz_free(back);
        pz_free(ids);
    }
    pz_tokenizer_close(t);
}

/* Ids of single bytes in any order: what the stream shows is what decoding the whole shows, and never half a
 * character. */
static void test_streaming_bytes(void **state) {
    (void)state;
    pz_tokenizer *t = builtin();
    int32_t byte_id[256];
    for (int b = 0; b < 256; b++) {
        char ch[4];
        byte_id[b] = pz_tok_find(t, ch, pz_tok_put_char(pz_tok_byte_char((unsigned char)b), ch));
        assert_true(byte_id[b] >= 0);
    }
    static const unsigned char lively[] = {0x41, 0x80, 0xBF, 0xC2, 0xC0, 0xE0, 0xA0, 0xED, 0x9F, 0xF0, 0x90,
                                           0xF4, 0x8F, 0xF5, 0xFF, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80};
    uint64_t rng = 11;
    for (int round = 0; round < 2000; round++) {
        int32_t ids[24];
        size_t n = pz_rng_next(&rng) % 24;
        for (size_t i = 0; i < n; i++) ids[i] = byte_id[lively[pz_rng_next(&rng) % sizeof lively]];
        char *whole;
        assert_int_equal(pz_tokenizer_decode(t, ids, n, 1, &whole, NULL), PZ_OK);
        assert_true(pz_utf8_valid(whole, strlen(whole), NULL));
        pz_detokenizer *d;
        const char *part;
        pz_str all = {0};
        pz_str_add(&all, "");
        assert_int_equal(pz_detokenizer_new(t, &d, NULL), PZ_OK);
        for (size_t i = 0; i <= n; i++) {
            if (i < n)
                assert_int_equal(pz_detokenizer_push(d, ids[i], &part, NULL), PZ_OK);
            else
                assert_int_equal(pz_detokenizer_finish(d, &part, NULL), PZ_OK);
            assert_true(pz_utf8_valid(part, strlen(part), NULL));
            pz_str_add(&all, part);
        }
        assert_string_equal(all.s, whole);
        pz_str_free(&all);
        pz_detokenizer_free(d);
        pz_free(whole);
    }
    pz_tokenizer_close(t);
}

static void test_decode_ids(void **state) {
    (void)state;
    pz_tokenizer *t = builtin();
    pz_error err;
    char *text;
    pz_detokenizer *d;
    const char *part;
    int32_t unknown[] = {36, 1000000, 1, 37}, negative[] = {-1};
    assert_int_equal(pz_tokenizer_decode(t, unknown, 4, 1, &text, NULL), PZ_OK);
    assert_string_equal(text, "BC");
    pz_free(text);
    assert_int_equal(pz_tokenizer_decode(t, unknown, 4, 0, &text, NULL), PZ_OK);
    assert_string_equal(text, "B<|end|>C");
    pz_free(text);
    assert_int_equal(pz_tokenizer_decode(t, negative, 1, 1, &text, &err), PZ_E_RANGE);
    assert_non_null(strstr(err.msg, "-1"));
    assert_int_equal(pz_detokenizer_new(t, &d, NULL), PZ_OK);
    assert_int_equal(pz_detokenizer_push(d, -5, &part, &err), PZ_E_RANGE);
    assert_int_equal(pz_detokenizer_push(d, 1, &part, &err), PZ_OK);
    assert_string_equal(part, "");
    pz_detokenizer_free(d);
    assert_int_equal(pz_tokenizer_vocab_size(t), 575);
    pz_tokenizer_close(t);
}

static void test_begin_token(void **state) {
    (void)state;
    static const char model[] =
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"added_tokens\":[{\"id\":5,\"content\":\"<s>\",\"special\":true}]";
    static const char with_template[] =
        ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
        "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":"
        "\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[5],\"tokens\":[\"<s>\"]}}}]}";
    static const struct {
        bool template;
        const char *config;
        size_t want;
    } cases[] = {
        {false, NULL, 1},
        {true, NULL, 2},
        {true, "{}", 2},
        {true, "{\"add_bos_token\":false}", 1},
        {false, "{\"bos_token\":\"<s>\"}", 1},
        {false, "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 2},
        {false, "{\"bos_token\":{\"content\":\"<s>\"},\"add_bos_token\":true}", 2},
        {true, "{\"bos_token\":null,\"add_bos_token\":null}", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1500];
        snprintf(text, sizeof text, "{%s%s}", model, cases[i].template ? with_template : "");
        pz_tokenizer *t;
        pz_error err = {0};
        const char *config = cases[i].config;
        if (pz_tokenizer_parse(text, strlen(text), config, config ? strlen(config) : 0, "t", &t, &err) != PZ_OK)
            fail_msg("case %zu: %s", i, err.msg);
        for (int add = 0; add < 2; add++) {
            int32_t *ids;
            size_t n;
            assert_int_equal(pz_tokenizer_encode(t, "a", 1, add, &ids, &n, NULL), PZ_OK);
            assert_int_equal(n, add ? cases[i].want : 1);
            if (n == 2) assert_int_equal(ids[0], 5);
            assert_int_equal(ids[n - 1], 0);
            pz_free(ids);
        }
        pz_tokenizer_close(t);
    }
}

static void test_invalid_text(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t size, offset;
    } cases[] = {{"ab\xFFz", 4, 2},
                 {"\x80", 1, 0},
                 {"ok \xC3", 4, 3},
                 {"\xC0\x80", 2, 0},
                 {"x\xED\xA0\x80", 4, 1},
                 {"\xF4\x90\x80\x80", 4, 0},
                 {"\xE2\x82\xAC\xE2\x82", 5, 3}};
    pz_tokenizer *t = builtin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pz_error err;
        int32_t *ids;
        size_t n;
        char want[40];
        assert_int_equal(pz_tokenizer_encode(t, cases[i].text, cases[i].size, 1, &ids, &n, &err), PZ_E_FORMAT);
        snprintf(want, sizeof want, "byte offset %zu", cases[i].offset);
        assert_non_null(strstr(err.msg, want));
        assert_null(ids);
    }
    pz_tokenizer_close(t);
}

/* A small tokenizer whose parts the cases below replace. */
#define VOCAB "{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3}"
#define MODEL_TAIL ",\"decoder\":{\"type\":\"ByteLevel\"}"
#define WITH_MODEL(m) "{\"model\":" m MODEL_TAIL "}"
#define GOOD_MODEL "{\"type\":\"BPE\",\"vocab\":" VOCAB ",\"merges\":[\"a b\"]}"
#define WITH(part) "{\"model\":" GOOD_MODEL MODEL_TAIL "," part "}"
#define SPLIT(pattern) WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":" pattern "}")

static const struct {
    const char *text, *config, *message;
    pz_status status;
} broken[] = {
    {"", NULL, "not valid JSON", PZ_E_FORMAT},
    {"{\"model\":", NULL, "not valid JSON", PZ_E_FORMAT},
    {"[]", NULL, "expected", PZ_E_FORMAT},
    {"{}", NULL, "\"model\" is missing", PZ_E_FORMAT},
    {"{\"model\":[]}", NULL, "\"model\" is an array", PZ_E_FORMAT},
    {WITH_MODEL("{\"type\":\"Unigram\"}"), NULL, "model.vocab", PZ_E_FORMAT},
    {WITH_MODEL("{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},\"merges\":[]}"), NULL, "WordPiece", PZ_E_UNSUPPORTED},
    {WITH_MODEL("{\"vocab\":{},\"merges\":[]}"), NULL, "vocab", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":{\"a\":0}}"), NULL, "merges", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":{\"a\":-1},\"merges\":[]}"), NULL, "no valid id", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":{\"a\":4194304},\"merges\":[]}"), NULL, "no valid id", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":{\"a\":9223372036854775807},\"merges\":[]}"), NULL, "no valid id", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":{\"a\":\"0\"},\"merges\":[]}"), NULL, "no valid id", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":{\"a\":0.5},\"merges\":[]}"), NULL, "no valid id", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}"), NULL, "same id 0", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}"), NULL, "duplicate", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[\"a\"]}"), NULL, "merge 0", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[\"a b\",\"a b c\"]}"), NULL, "merge 1", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[[\"a\"]]}"), NULL, "merge 0", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[[\"a\",3]]}"), NULL, "merge 0", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[3]}"), NULL, "merge 0", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[\"a z\"]}"), NULL, "\"z\" is not in the vocabulary", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[\"b a\"]}"), NULL, "\"ba\" is not in the vocabulary", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[],\"byte_fallback\":true}"), NULL, "byte_fallback", PZ_E_UNSUPPORTED},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[],\"byte_fallback\":1}"), NULL, "byte_fallback", PZ_E_FORMAT},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[],\"dropout\":0.1}"), NULL, "dropout", PZ_E_UNSUPPORTED},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[],\"continuing_subword_prefix\":\"##\"}"), NULL,
     "continuing_subword_prefix", PZ_E_UNSUPPORTED},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[],\"end_of_word_suffix\":\"</w>\"}"), NULL, "end_of_word_suffix",
     PZ_E_UNSUPPORTED},
    {WITH_MODEL("{\"vocab\":" VOCAB ",\"merges\":[],\"unk_token\":\"<unk>\"}"), NULL, "unk_token", PZ_E_FORMAT},
    {WITH("\"added_tokens\":{}"), NULL, "added_tokens", PZ_E_FORMAT},
    {WITH("\"added_tokens\":[3]"), NULL, "content", PZ_E_FORMAT},
    {WITH("\"added_tokens\":[{\"id\":9}]"), NULL, "content", PZ_E_FORMAT},
    {WITH("\"added_tokens\":[{\"content\":\"x\"}]"), NULL, "no valid id", PZ_E_FORMAT},
    {WITH("\"added_tokens\":[{\"id\":9,\"content\":\"\"}]"), NULL, "no content", PZ_E_FORMAT},
    {WITH("\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]"), NULL, "vocabulary says", PZ_E_FORMAT},
    {WITH("\"added_tokens\":[{\"id\":9,\"content\":\"a\"}]"), NULL, "another id", PZ_E_FORMAT},
    {WITH("\"added_tokens\":[{\"id\":9,\"content\":\"x\"},{\"id\":9,\"content\":\"y\"}]"), NULL, "id 9", PZ_E_FORMAT},
    {WITH("\"added_tokens\":[{\"id\":9,\"content\":\"x\"},{\"id\":8,\"content\":\"x\"}]"), NULL, "twice", PZ_E_FORMAT},
    {WITH("\"added_tokens\":[{\"id\":9,\"content\":\"x\",\"single_word\":true}]"), NULL, "single_word",
     PZ_E_UNSUPPORTED},
    {WITH("\"normalizer\":{\"type\":\"NFC\"}"), NULL, "normalizer NFC", PZ_E_UNSUPPORTED},
    {WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}"), NULL, "Lowercase",
     PZ_E_UNSUPPORTED},
    {WITH("\"normalizer\":\"NFC\""), NULL, "not an object", PZ_E_FORMAT},
    {"{\"model\":" GOOD_MODEL "}", NULL, "decoder null", PZ_E_UNSUPPORTED},
    {"{\"model\":" GOOD_MODEL ",\"decoder\":{\"type\":\"Metaspace\"}}", NULL, "decoder Metaspace", PZ_E_UNSUPPORTED},
    {WITH("\"pre_tokenizer\":{\"type\":\"Whitespace\"}"), NULL, "pre_tokenizer Whitespace", PZ_E_UNSUPPORTED},
    {WITH("\"pre_tokenizer\":{}"), NULL, "\"type\"", PZ_E_FORMAT},
    {WITH("\"pre_tokenizer\":{\"type\":\"Sequence\"}"), NULL, "pretokenizers", PZ_E_FORMAT},
    {WITH("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]"
          "}"),
     NULL, "Digits after ByteLevel", PZ_E_UNSUPPORTED},
    {WITH("\"pre_tokenizer\":{\"type\":\"Split\"}"), NULL, "behavior", PZ_E_FORMAT},
    {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\"}"), NULL, "no pattern", PZ_E_FORMAT},
    {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Upside\",\"pattern\":{\"String\":\" \"}}"), NULL,
     "\"Upside\"", PZ_E_FORMAT},
    {SPLIT("{}"), NULL, "Regex", PZ_E_FORMAT},
    {SPLIT("{\"Regex\":\"(\"}"), NULL, "bad regular expression \"(\"", PZ_E_FORMAT},
    {SPLIT("{\"Regex\":\"[a\"}"), NULL, "bad regular expression", PZ_E_FORMAT},
    {SPLIT("{\"Regex\":\"[a&&b\"}"), NULL, "regular expression", PZ_E_FORMAT},
    {SPLIT("{\"Regex\":\"\\\\p{Nonsense}\"}"), NULL, "bad regular expression", PZ_E_FORMAT},
    {SPLIT("{\"Regex\":\"\\\\\"}"), NULL, "bad regular expression", PZ_E_FORMAT},
    {SPLIT("{\"Regex\":\"\\\\h\"}"), NULL, "\\h", PZ_E_UNSUPPORTED},
    {SPLIT("{\"Regex\":\"[\\\\W]\"}"), NULL, "\\W in a class", PZ_E_UNSUPPORTED},
    {SPLIT("{\"Regex\":\"[a[bc]]\"}"), NULL, "a class in a class", PZ_E_UNSUPPORTED},
    {SPLIT("{\"Regex\":\"[^a&&b]\"}"), NULL, "&&", PZ_E_UNSUPPORTED},
    {SPLIT("{\"Regex\":\"[a&&[b]c]\"}"), NULL, "class in a class", PZ_E_UNSUPPORTED},
    {SPLIT("{\"Regex\":\"(?m:a)\"}"), NULL, "group flag", PZ_E_UNSUPPORTED},
    {SPLIT("{\"Regex\":\"a{1,3}+\"}"), NULL, "{...}+", PZ_E_UNSUPPORTED},
    {SPLIT("{\"Regex\":\"[[:alpha\"}"), NULL, "POSIX", PZ_E_UNSUPPORTED},
    {SPLIT("{\"Regex\":\"\\\\C\"}"), NULL, "bad regular expression", PZ_E_FORMAT},
    {WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), NULL, "BertProcessing", PZ_E_UNSUPPORTED},
    {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\"}}]}"), NULL,
     "not one known id", PZ_E_FORMAT},
    {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}},{\"SpecialToken\":{\"id\":"
          "\"q\"}}]}"),
     NULL, "more than one token", PZ_E_UNSUPPORTED},
    {WITH("\"version\":1"), "{", "tokenizer_config.json", PZ_E_FORMAT},
    {WITH("\"version\":1"), "{\"add_bos_token\":1}", "add_bos_token", PZ_E_FORMAT},
    {WITH("\"version\":1"), "{\"add_bos_token\":true}", "bos_token is missing", PZ_E_FORMAT},
    {WITH("\"version\":1"), "{\"add_bos_token\":true,\"bos_token\":\"zz\"}", "no token", PZ_E_FORMAT},
    {WITH("\"version\":1"), "{\"bos_token\":3}", "neither a string nor an object", PZ_E_FORMAT},
    {WITH("\"version\":1"), "{\"bos_token\":{}}", "content", PZ_E_FORMAT},
};

static void test_broken_files(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        pz_tokenizer *t;
        pz_error err = {0};
        const char *config = broken[i].config;
        pz_status st = pz_tokenizer_parse(broken[i].text, strlen(broken[i].text), config, config ? strlen(config) : 0,
                                          "tokenizer.json", &t, &err);
        if (st != broken[i].status || !strstr(err.msg, broken[i].message))
            fail_msg("case %zu %s: %s \"%s\", expected %s with \"%s\"", i, broken[i].text, pz_status_name(st), err.msg,
                     pz_status_name(broken[i].status), broken[i].message);
        assert_null(t);
    }
}

/* Every beginning of a good file, and every single byte of it changed, ends in an error or a tokenizer. */
static void test_damaged_file(void **state) {
    (void)state;
    static const char good[] =
        WITH("\"added_tokens\":[{\"id\":9,\"content\":\"x\"}],\"pre_tokenizer\":{\"type\":\"Sequence\","
             "\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Removed\",\"pattern\":{\"Regex\":"
             "\"[^a&&b]|\\\\p{L}|\\\\s\"}},{\"type\":\"ByteLevel\"}]}");
    uint64_t rng = 3;
    for (size_t n = 0; n < sizeof good; n++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        pz_tokenizer *t;
        pz_error err = {0};
        if (n + 1 < sizeof good) assert_int_not_equal(pz_tokenizer_parse(good, n, NULL, 0, "t", &t, &err), PZ_OK);
        text[n] = (char)(32 + pz_rng_next(&rng) % 95);
        if (pz_tokenizer_parse(text, sizeof good - 1, NULL, 0, "t", &t, &err) == PZ_OK) pz_tokenizer_close(t);
    }
}

static void test_missing_directory(void **state) {
    (void)state;
    pz_tokenizer *t;
    pz_error err;
    assert_int_equal(pz_tokenizer_open("/nonexistent", &t, &err), PZ_E_NOTFOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/tokenizer.json"));
    assert_null(t);
}

/* A pattern that is exponential ends in an error, soon; a text without a token likewise. */
static void test_limits(void **state) {
    (void)state;
    static const char hostile[] = SPLIT("{\"Regex\":\"(?:a+)+[bc]\"}");
    char text[41];
    memset(text, 'a', sizeof text);
    pz_tokenizer *t;
    pz_error err;
    int32_t *ids;
    size_t n;
    assert_int_equal(pz_tokenizer_parse(hostile, strlen(hostile), NULL, 0, "t", &t, NULL), PZ_OK);
    int64_t start = pz_now_ns();
    assert_int_equal(pz_tokenizer_encode(t, text, sizeof text, 0, &ids, &n, &err), PZ_E_RANGE);
    assert_non_null(strstr(err.msg, "regular expression gives up"));
    assert_true(pz_now_ns() - start < 5000000000);
    assert_int_equal(pz_tokenizer_encode(t, "abz", 3, 0, &ids, &n, &err), PZ_E_FORMAT);
    assert_non_null(strstr(err.msg, "\"z\""));
    pz_tokenizer_close(t);
}

/* A group repeated so often that the compiled pattern's stack does not hold it. */
static void test_deep_backtracking(void **state) {
    (void)state;
    static const char deep[] = SPLIT("{\"Regex\":\"(?:a|b|[[:digit:]])+\"}");
    pz_tokenizer *t;
    pz_error err;
    int32_t *ids;
    size_t n, size = 100000;
    char *text = malloc(size);
    memset(text, 'a', size);
    assert_ok(pz_tokenizer_parse(deep, strlen(deep), NULL, 0, "t", &t, &err), &err);
    assert_ok(pz_tokenizer_encode(t, text, size, 0, &ids, &n, &err), &err);
    assert_int_equal(n, size);
    pz_free(ids);
    free(text);
    pz_tokenizer_close(t);
}

static void test_many_steps(void **state) {
    (void)state;
    pz_str text = {0};
    pz_str_add(&text,
               "{\"model\":" GOOD_MODEL MODEL_TAIL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i <= PZ_TOK_MAX_STEPS; i++) pz_str_addf(&text, "%s{\"type\":\"Digits\"}", i ? "," : "");
    pz_str_add(&text, "]}}");
    pz_tokenizer *t;
    pz_error err;
    assert_fails(pz_tokenizer_parse(text.s, text.n, NULL, 0, "t", &t, &err), PZ_E_FORMAT, &err, "more than 64 steps");
    pz_str_free(&text);
}

/* One piece of 300 000 characters: merging must not be quadratic. */
static void test_long_piece(void **state) {
    (void)state;
    pz_tokenizer *t = builtin();
    size_t n, size = 300000;
    char *text = malloc(size), *back;
    for (size_t i = 0; i < size; i++) text[i] = "anesoner"[i * 7 % 8];
    int32_t *ids;
    int64_t start = pz_now_ns();
    assert_int_equal(pz_tokenizer_encode(t, text, size, 0, &ids, &n, NULL), PZ_OK);
    assert_true(pz_now_ns() - start < 10000000000);
    assert_int_equal(pz_tokenizer_decode(t, ids, n, 0, &back, NULL), PZ_OK);
    assert_int_equal(strlen(back), size);
    assert_memory_equal(back, text, size);
    pz_free(back);
    pz_free(ids);
    free(text);
    pz_tokenizer_close(t);
}

static pz_status everything(void *json) {
    pz_tokenizer *t = NULL;
    pz_detokenizer *d = NULL;
    int32_t *ids = NULL;
    char *text = NULL;
    const char *part;
    size_t n = 0;
    pz_status st = pz_tokenizer_parse(json, strlen(json), "{\"add_bos_token\":false}", 23, "t", &t, NULL);
    if (st == PZ_OK) st = pz_tokenizer_encode(t, "Hello <tool> world 123\r\n", 24, 1, &ids, &n, NULL);
    if (st == PZ_OK) st = pz_tokenizer_decode(t, ids, n, 1, &text, NULL);
    if (st == PZ_OK) st = pz_detokenizer_new(t, &d, NULL);
    for (size_t i = 0; i < n && st == PZ_OK; i++) st = pz_detokenizer_push(d, ids[i], &part, NULL);
    if (st == PZ_OK) st = pz_detokenizer_finish(d, &part, NULL);
    pz_detokenizer_free(d);
    pz_free(text);
    pz_free(ids);
    pz_tokenizer_close(t);
    return st;
}

static pz_status only_parse(void *json) {
    pz_tokenizer *t;
    pz_status st = pz_tokenizer_parse(json, strlen(json), "{}", 2, "t", &t, NULL);
    pz_tokenizer_close(t);
    return st;
}

static void test_allocation_failures(void **state) {
    (void)state;
    json_t *root = load_cases(DATA "/deepseek.json");
    char *json = json_dumps(json_object_get(root, "tokenizer"), 0);
    json_decref(root);
    assert_true(support_alloc_sweep(everything, json) > 20);
    free(json);
    static char small[] =
        WITH("\"added_tokens\":[{\"id\":9,\"content\":\"x\"}],\"pre_tokenizer\":{\"type\":\"ByteLevel\"}");
    assert_true(support_alloc_sweep_json(only_parse, small) > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_eval_digest),
        cmocka_unit_test(test_round_trip_and_streaming),
        cmocka_unit_test(test_streaming_bytes),
        cmocka_unit_test(test_decode_ids),
        cmocka_unit_test(test_begin_token),
        cmocka_unit_test(test_invalid_text),
        cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_damaged_file),
        cmocka_unit_test(test_missing_directory),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_deep_backtracking),
        cmocka_unit_test(test_many_steps),
        cmocka_unit_test(test_long_piece),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
