/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <stdio.h>

#include "base/file.h"
#include "model/model.h"
#include "prezero/engine.h"

/* ---- making files ---- */
typedef struct blob {
    unsigned char *data;
    size_t size;
} blob;

/* length, header, `n` data bytes 0, 1, 2, ... */
static blob make(const char *header, size_t n) {
    size_t h = strlen(header);
    blob b = {malloc(8 + h + n), 8 + h + n};
    assert_non_null(b.data);
    for (int i = 0; i < 8; i++) b.data[i] = (unsigned char)(h >> (8 * i) & 0xff);
    memcpy(b.data + 8, header, h);
    for (size_t i = 0; i < n; i++) b.data[8 + h + i] = (unsigned char)i;
    return b;
}

static const char good_header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                  "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                                  "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[12,12]},"
                                  "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
                                  "\"c\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,5],\"data_offsets\":[16,21]},"
                                  "\"f4\":{\"dtype\":\"F4\",\"shape\":[6],\"data_offsets\":[21,24]}}   ";
enum { GOOD_BYTES = 24 };

static void write_file(const char *dir, const char *name, const void *data, size_t size) {
    pz_error err;
    char *path = support_path(dir, name);
    assert_ok(pz_file_write(path, data, size, &err), &err);
    free(path);
}

/* ---- one file ---- */
static void test_valid(void **state) {
    (void)state;
    blob b = make(good_header, GOOD_BYTES);
    pz_checkpoint *ck;
    pz_error err;
    assert_ok(pz_safetensors_parse(b.data, b.size, "x.safetensors", &ck, &err), &err);
    assert_int_equal(pz_checkpoint_count(ck), 5);
    const pz_tensor *t = pz_checkpoint_find(ck, "a");
    assert_non_null(t);
    assert_string_equal(t->name, "a");
    assert_string_equal(t->dtype, "BF16");
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 12);
    assert_int_equal(t->data[11], 11);
    t = pz_checkpoint_find(ck, "empty");
    assert_int_equal(t->bytes, 0);
    t = pz_checkpoint_find(ck, "b.weight");
    assert_int_equal(t->rank, 0);
    assert_int_equal(t->data[0], 12);
    t = pz_checkpoint_find(ck, "c");
    assert_int_equal(t->rank, 8);
    assert_int_equal(t->shape[7], 5);
    assert_int_equal(pz_checkpoint_find(ck, "f4")->bytes, 3);
    assert_null(pz_checkpoint_find(ck, "b"));
    assert_null(pz_checkpoint_find(ck, ""));
    assert_null(pz_checkpoint_find(ck, "__metadata__"));
    for (int i = 0; i < 5; i++) {
        t = pz_checkpoint_at(ck, i);
        assert_ptr_equal(pz_checkpoint_find(ck, t->name), t);
    }
    assert_null(pz_checkpoint_at(ck, -1));
    assert_null(pz_checkpoint_at(ck, 5));
    pz_checkpoint_close(ck);
    free(b.data);
    b = make("{}", 0);
    assert_ok(pz_safetensors_parse(b.data, b.size, "x.safetensors", &ck, &err), &err);
    assert_int_equal(pz_checkpoint_count(ck), 0);
    assert_null(pz_checkpoint_find(ck, "a"));
    pz_checkpoint_close(ck);
    free(b.data);
    pz_checkpoint_close(NULL);
}

static void test_truncated_anywhere(void **state) {
    (void)state;
    blob b = make(good_header, GOOD_BYTES);
    for (size_t n = 0; n < b.size; n++) {
        /* a copy of exactly that size, so that a read past the end is seen */
        unsigned char *part = malloc(n ? n : 1);
        assert_non_null(part);
        memcpy(part, b.data, n);
        pz_checkpoint *ck;
        pz_error err;
        const char *what = n < 8 ? "8 bytes of header length" : n < b.size - GOOD_BYTES ? "header length" : "file has";
        assert_fails(pz_safetensors_parse(part, n, "x.safetensors", &ck, &err), PZ_E_FORMAT, &err, "x.safetensors",
                     what);
        assert_null(ck);
        free(part);
    }
    free(b.data);
}

/* Any byte of length and header changed in a few ways: no crash, and what is accepted stays inside the file. */
static void test_changed_anywhere(void **state) {
    (void)state;
    static const unsigned char values[] = {0, 0xff, '"', '{', '}', '9', '0', ' ', ','};
    blob b = make(good_header, GOOD_BYTES);
    for (size_t at = 0; at < b.size - GOOD_BYTES; at++) {
        unsigned char old = b.data[at];
        for (size_t i = 0; i < sizeof values; i++) {
            b.data[at] = values[i];
            pz_checkpoint *ck;
            pz_error err;
            if (pz_safetensors_parse(b.data, b.size, "x.safetensors", &ck, &err) != PZ_OK) continue;
            for (int t = 0; t < pz_checkpoint_count(ck); t++) {
                const pz_tensor *one = pz_checkpoint_at(ck, t);
                assert_true(one->data >= b.data && one->data + one->bytes <= b.data + b.size);
            }
            pz_checkpoint_close(ck);
        }
        b.data[at] = old;
    }
    free(b.data);
}

static void test_lying_length(void **state) {
    (void)state;
    static const struct {
        unsigned char length[8];
        const char *text;
    } cases[] = {
        {{0}, "does not start with {"},
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "above the limit"},
        {{0, 0, 0, 0, 0, 0, 0, 0x80}, "above the limit"},
        {{0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "above the limit"}, /* + 8 overflows to 0 */
        {{1, 0xe1, 0xf5, 5}, "above the limit of 100000000"},
        {{0, 0xe1, 0xf5, 5}, "truncated?"}, /* 100 MB exactly: allowed, but not there */
    };
    blob b = make(good_header, GOOD_BYTES);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(b.data, cases[i].length, 8);
        pz_checkpoint *ck;
        pz_error err;
        assert_fails(pz_safetensors_parse(b.data, b.size, "x.safetensors", &ck, &err), PZ_E_FORMAT, &err,
                     "x.safetensors", cases[i].text);
    }
    free(b.data);
}

#define A_TENSOR(members) "{\"a\":{" members "}}"
static void test_bad_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        const char *texts[2];
    } cases[] = {
        {"[1]", 0, {"start with {", ""}},
        {" {}", 0, {"start with {", ""}},
        {"{", 0, {"JSON", ""}},
        {"{} x", 0, {"JSON", ""}},
        {"{\"a\":3}", 0, {"\"a\"", "object"}},
        {"{\"__metadata__\":3}", 0, {"__metadata__", "object of strings"}},
        {"{\"__metadata__\":{\"n\":3}}", 0, {"__metadata__", "\"n\" is not a string"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2,
         {"duplicate", ""}},
        {A_TENSOR("\"shape\":[1],\"data_offsets\":[0,1]"), 1, {"\"a\"", "dtype"}},
        {A_TENSOR("\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]"), 1, {"\"a\"", "dtype"}},
        {A_TENSOR("\"dtype\":\"Q4\",\"shape\":[1],\"data_offsets\":[0,1]"), 1, {"\"a\"", "unknown dtype \"Q4\""}},
        {A_TENSOR("\"dtype\":\"U8\",\"data_offsets\":[0,1]"), 1, {"\"a\"", "shape"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]"), 1, {"\"a\"", "shape"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]"), 1, {"\"a\"", "dimension 0"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[1,1.0],\"data_offsets\":[0,1]"), 1, {"\"a\"", "dimension 1"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]"), 1, {"9 dimensions", "8"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[4294967296,4294967297],\"data_offsets\":[0,4294967296]"),
         1,
         {"\"a\"", "overflows"}},
        {A_TENSOR("\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"),
         0,
         {"\"a\"", "overflows"}},
        {A_TENSOR("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]"), 1, {"\"a\"", "whole bytes"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[1]"), 1, {"\"a\"", "data_offsets"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]"), 1, {"\"a\"", "data_offsets"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]"), 1, {"\"a\"", "data_offsets"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0.0,1]"), 1, {"\"a\"", "data_offsets"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]"), 1, {"\"a\"", "data_offsets"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]"), 1, {"\"a\"", "data_offsets"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,18446744073709551616]"), 1, {"JSON", "too big"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]"), 1, {"span 1 bytes", "need 2"}},
        {A_TENSOR("\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,1]"), 1, {"span 1 bytes", "need 2"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]"), 8, {"ends at byte 9", "file has 8"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[9223372036854775799,9223372036854775807]"),
         8,
         {"\"a\"", "gap"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]"), 9, {"end at byte 8", "file has 9"}},
        {A_TENSOR("\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[1,8]"), 8, {"starts at byte 1", "gap"}},
        {"{}", 1, {"end at byte 0", "file has 1"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
         7,
         {"\"b\" starts at byte 3", "overlap"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         4,
         {"starts at byte 0", "overlap"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}",
         9,
         {"\"b\" starts at byte 5", "gap"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
         4,
         {"starts at byte 2", "overlap"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        blob b = make(cases[i].header, cases[i].bytes);
        pz_checkpoint *ck;
        pz_error err = {0};
        pz_status st = pz_safetensors_parse(b.data, b.size, "x.safetensors", &ck, &err);
        if (st != PZ_E_FORMAT) fail_msg("%s: %s", cases[i].header, pz_status_name(st));
        assert_fails(st, PZ_E_FORMAT, &err, "x.safetensors", cases[i].texts[0], cases[i].texts[1]);
        assert_null(ck);
        free(b.data);
    }
}

/* Tensors may be listed in any order; only their places count. */
static void test_any_order(void **state) {
    (void)state;
    blob b = make("{\"z\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]},"
                  "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[3,3]},"
                  "\"y\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3],\"other\":[1]}}",
                  5);
    pz_checkpoint *ck;
    pz_error err;
    assert_ok(pz_safetensors_parse(b.data, b.size, "x", &ck, &err), &err);
    assert_int_equal(pz_checkpoint_find(ck, "z")->data[0], 3);
    assert_int_equal(pz_checkpoint_find(ck, "y")->data[2], 2);
    pz_checkpoint_close(ck);
    free(b.data);
}

/* A header as large as a shard of a large model's: every name is found. */
static void test_many_tensors(void **state) {
    (void)state;
    enum { N = 20000 };
    pz_str h = {0};
    for (int i = 0; i < N; i++)
        pz_str_addf(&h,
                    "%s\"model.layers.%d.mlp.experts.%d.down_proj.weight\":{\"dtype\":\"U8\",\"shape\":[1],"
                    "\"data_offsets\":[%d,%d]}",
                    i ? "," : "{", i % 60, i / 60, i, i + 1);
    pz_str_add(&h, "}");
    blob b = make(h.s, N);
    pz_str_free(&h);
    pz_checkpoint *ck;
    pz_error err;
    assert_ok(pz_safetensors_parse(b.data, b.size, "x", &ck, &err), &err);
    assert_int_equal(pz_checkpoint_count(ck), N);
    for (int i = 0; i < N; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.down_proj.weight", i % 60, i / 60);
        const pz_tensor *t = pz_checkpoint_find(ck, name);
        assert_non_null(t);
        assert_int_equal(t->data[0], i & 0xff);
    }
    pz_checkpoint_close(ck);
    free(b.data);
}

/* ---- directories ---- */
static void test_directory(void **state) {
    (void)state;
    char *dir = support_tmp_dir();
    pz_checkpoint *ck;
    pz_error err;
    assert_fails(pz_checkpoint_open(dir, &ck, &err), PZ_E_NOTFOUND, &err, dir, "model.safetensors",
                 "model.safetensors.index.json");
    assert_fails(pz_checkpoint_open("/nonexistent", &ck, &err), PZ_E_NOTFOUND, &err, "/nonexistent");
    write_file(dir, "model.safetensors", "", 0);
    assert_fails(pz_checkpoint_open(dir, &ck, &err), PZ_E_FORMAT, &err, "model.safetensors", "0 bytes");
    blob b = make(good_header, GOOD_BYTES);
    write_file(dir, "model.safetensors", b.data, b.size);
    /* one file goes before an index */
    write_file(dir, "model.safetensors.index.json", "{", 1);
    assert_ok(pz_checkpoint_open(dir, &ck, &err), &err);
    assert_int_equal(pz_checkpoint_find(ck, "a")->data[1], 1);
    pz_checkpoint_close(ck);
    free(b.data);
    support_tmp_remove(dir);
}

/* Two shards; "shared" is in both, the index says which counts; "extra" is in no list. */
static char *sharded_dir(void) {
    char *dir = support_tmp_dir();
    blob one = make("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                    "\"shared\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
                    3);
    blob two = make("{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                    "\"shared\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]},"
                    "\"extra\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[5,6]}}",
                    6);
    write_file(dir, "m-1.safetensors", one.data, one.size);
    write_file(dir, "m-2.safetensors", two.data, two.size);
    free(one.data);
    free(two.data);
    return dir;
}

static pz_status open_with_index(const char *dir, const char *index, pz_checkpoint **ck, pz_error *err) {
    write_file(dir, "model.safetensors.index.json", index, strlen(index));
    return pz_checkpoint_open(dir, ck, err);
}

static void test_sharded(void **state) {
    (void)state;
    char *dir = sharded_dir();
    pz_checkpoint *ck;
    pz_error err;
    assert_ok(open_with_index(dir,
                              "{\"metadata\": {\"total_size\": 9}, \"weight_map\": {\"b\": \"m-2.safetensors\","
                              " \"a\": \"m-1.safetensors\", \"shared\": \"m-2.safetensors\"}}",
                              &ck, &err),
              &err);
    assert_int_equal(pz_checkpoint_count(ck), 3);
    assert_int_equal(pz_checkpoint_find(ck, "a")->bytes, 2);
    assert_int_equal(pz_checkpoint_find(ck, "b")->bytes, 4);
    assert_int_equal(pz_checkpoint_find(ck, "shared")->data[0], 4);
    assert_null(pz_checkpoint_find(ck, "extra"));
    pz_checkpoint_close(ck);
    support_tmp_remove(dir);
}

static void test_bad_index(void **state) {
    (void)state;
    static const struct {
        const char *index;
        pz_status status;
        const char *texts[2];
    } cases[] = {
        {"{", PZ_E_FORMAT, {"JSON", ""}},
        {"[]", PZ_E_FORMAT, {"object", ""}},
        {"{}", PZ_E_FORMAT, {"weight_map", "missing"}},
        {"{\"weight_map\": []}", PZ_E_FORMAT, {"weight_map", "an object"}},
        {"{\"weight_map\": {\"a\": 3}}", PZ_E_FORMAT, {"\"a\"", "same directory"}},
        {"{\"weight_map\": {\"a\": \"\"}}", PZ_E_FORMAT, {"\"a\"", "same directory"}},
        {"{\"weight_map\": {\"a\": \"..\"}}", PZ_E_FORMAT, {"\"a\"", "same directory"}},
        {"{\"weight_map\": {\"a\": \"../m-1.safetensors\"}}", PZ_E_FORMAT, {"\"a\"", "../m-1.safetensors"}},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", PZ_E_FORMAT, {"\"a\"", "/etc/passwd"}},
        {"{\"weight_map\": {\"a\": \"m-3.safetensors\"}}", PZ_E_NOTFOUND, {"m-3.safetensors", "No such file"}},
        {"{\"weight_map\": {\"a\": \"m-2.safetensors\"}}", PZ_E_FORMAT, {"\"a\" is not in m-2.safetensors", ""}},
        {"{\"weight_map\": {\"a\": \"m-1.safetensors\", \"x\": \"m-1.safetensors\"}}",
         PZ_E_FORMAT,
         {"\"x\" is not in m-1.safetensors", ""}},
        {"{\"weight_map\": {\"a\": \"m-1.safetensors\", \"a\": \"m-2.safetensors\"}}", PZ_E_FORMAT, {"duplicate", ""}},
        {"{\"weight_map\": {\"a\": \"model.safetensors.index.json\"}}", PZ_E_FORMAT, {"above the limit", ""}},
    };
    char *dir = sharded_dir();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pz_checkpoint *ck;
        pz_error err = {0};
        pz_status st = open_with_index(dir, cases[i].index, &ck, &err);
        if (st != cases[i].status) fail_msg("%s: %s (%s)", cases[i].index, pz_status_name(st), err.msg);
        assert_fails(st, cases[i].status, &err, "model.safetensors.index.json", cases[i].texts[0], cases[i].texts[1]);
        assert_null(ck);
    }
    support_tmp_remove(dir);
}

/* The built-in model and the test model, against what the safetensors package says of them. */
static void test_real_files(void **state) {
    (void)state;
    pz_checkpoint *ck;
    pz_error err;
    assert_ok(pz_checkpoint_open(PZ_SOURCE_DIR "/models/kimi-tiny", &ck, &err), &err);
    assert_int_equal(pz_checkpoint_count(ck), 201);
    const pz_tensor *t = pz_checkpoint_find(ck, "model.layers.1.mlp.experts.0.down_proj.weight_scale");
    assert_string_equal(t->dtype, "U8");
    assert_int_equal(t->shape[0], 256);
    assert_int_equal(t->shape[1], 4);
    pz_checkpoint_close(ck);
    assert_ok(pz_checkpoint_open(PZ_SOURCE_DIR "/tests/data/kimi-tiny-bf16", &ck, &err), &err);
    assert_int_equal(pz_checkpoint_count(ck), 129);
    pz_checkpoint_close(ck);
}

/* ---- writing ---- */
static void test_write(void **state) {
    (void)state;
    static const float data[6] = {1, -2.5f, 3, 1e-30f, 0, -0.0f};
    char *dir = support_tmp_dir(), *path = support_path(dir, "out.safetensors");
    pz_checkpoint *ck;
    pz_error err;
    pz_map map;
    for (int i = 0; i < 2; i++) { /* the second replaces the first */
        assert_ok(pz_write_safetensors(path, "lo\"gits", data, 2, 3, &err), &err);
        assert_ok(pz_map_open(path, &map, &err), &err);
        assert_ok(pz_safetensors_parse(map.data, map.size, path, &ck, &err), &err);
        assert_int_equal(pz_checkpoint_count(ck), 1);
        const pz_tensor *t = pz_checkpoint_find(ck, "lo\"gits");
        assert_non_null(t);
        assert_string_equal(t->dtype, "F32");
        assert_int_equal(t->rank, 2);
        assert_int_equal(t->shape[0], 2);
        assert_int_equal(t->shape[1], 3);
        assert_memory_equal(t->data, data, sizeof data);
        assert_int_equal((t->data - map.data) % 8, 0);
        pz_checkpoint_close(ck);
        pz_map_close(&map);
        assert_int_equal(support_count_entries(dir), 1);
    }
    assert_ok(pz_write_safetensors(path, "none", NULL, 0, 3, &err), &err);
    assert_fails(pz_write_safetensors("/nonexistent/x", "a", data, 2, 3, &err), PZ_E_NOTFOUND, &err, "/nonexistent/x");
    assert_fails(pz_write_safetensors(path, "a", data, -1, 3, &err), PZ_E_INVAL, &err, "rows");
    assert_fails(pz_write_safetensors(path, "a", data, INT64_MAX, 3, &err), PZ_E_INVAL, &err, "rows");
    assert_fails(pz_write_safetensors(path, "a", NULL, 2, 3, &err), PZ_E_INVAL, &err, "matrix");
    assert_fails(pz_write_safetensors(path, "\xff", data, 2, 3, &err), PZ_E_INVAL, &err, "UTF-8");
    assert_int_equal(support_count_entries(dir), 1);
    free(path);
    support_tmp_remove(dir);
}

/* ---- memory ---- */
static pz_status open_dir(void *dir) {
    pz_checkpoint *ck;
    pz_error err;
    pz_status st = pz_checkpoint_open(dir, &ck, &err);
    pz_checkpoint_close(ck);
    return st;
}

static pz_status write_one(void *path) {
    static const float data[2] = {1, 2};
    pz_error err;
    return pz_write_safetensors(path, "logits", data, 1, 2, &err);
}

static void test_no_memory(void **state) {
    (void)state;
    char *dir = sharded_dir(), *path = support_path(dir, "out.safetensors");
    pz_checkpoint *ck;
    pz_error err;
    assert_ok(
        open_with_index(dir, "{\"weight_map\": {\"b\": \"m-2.safetensors\", \"a\": \"m-1.safetensors\"}}", &ck, &err),
        &err);
    pz_checkpoint_close(ck);
    assert_true(support_alloc_sweep(open_dir, dir) >= 10);
    support_alloc_sweep_json(open_dir, dir);
    assert_true(support_alloc_sweep(write_one, path) >= 3);
    support_alloc_sweep_json(write_one, path);
    free(path);
    support_tmp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),
        cmocka_unit_test(test_truncated_anywhere),
        cmocka_unit_test(test_changed_anywhere),
        cmocka_unit_test(test_lying_length),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_many_tensors),
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_real_files),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
