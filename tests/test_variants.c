/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of configuration that the model family allows, each as a small random checkpoint with the logits of an
 * independent float64 forward pass (tools/make_variants.py). */
#include "support_engine.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>

#define VARIANTS PZ_SOURCE_DIR "/tests/data/variants"

typedef struct variant {
    char dir[600];
    pz_map map;
    pz_checkpoint *file;
    const int32_t *ids;
    const float *logits;
    size_t n, vocab;
} variant;

static void open_variant(const char *name, variant *v) {
    char path[640];
    pz_error err;
    *v = (variant){0};
    snprintf(v->dir, sizeof v->dir, VARIANTS "/%s", name);
    snprintf(path, sizeof path, "%s/expected.safetensors", v->dir);
    assert_ok(pz_map_open(path, &v->map, &err), &err);
    assert_ok(pz_safetensors_parse(v->map.data, v->map.size, path, &v->file, &err), &err);
    const pz_tensor *ids = pz_checkpoint_find(v->file, "ids"), *logits = pz_checkpoint_find(v->file, "logits");
    assert_non_null(ids);
    assert_non_null(logits);
    assert_string_equal(ids->dtype, "I32");
    assert_string_equal(logits->dtype, "F32");
    v->n = (size_t)logits->shape[0];
    v->vocab = (size_t)logits->shape[1];
    assert_int_equal(ids->shape[0], v->n);
    v->ids = (const int32_t *)(const void *)ids->data;
    v->logits = (const float *)(const void *)logits->data;
}

static void close_variant(variant *v) {
    pz_checkpoint_close(v->file);
    pz_map_close(&v->map);
}

static float *run_variant(const variant *v, pz_engine_options o) {
    pz_error err;
    pz_engine *e = support_engine(v->dir, o);
    float *logits = pz_calloc(v->n * v->vocab, sizeof *logits);
    assert_non_null(logits);
    assert_ok(pz_engine_prefill(e, support_seq(e), v->ids, v->n, 1, logits, &err), &err);
    pz_engine_close(e);
    return logits;
}

static double largest_difference(const variant *v, const float *logits) {
    double max = 0;
    for (size_t i = 0; i < v->n * v->vocab; i++) {
        double d = fabs((double)logits[i] - (double)v->logits[i]);
        assert_true(isfinite(d));
        if (d > max) max = d;
    }
    return max;
}

/* f32 activations: close to float64, whatever the accumulator, the riders and the chunk. */
static void check_close(const variant *v) {
    static const int chunks[] = {128, 7, 1};
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_F32; accum++)
        for (int prezero = 0; prezero < 2; prezero++)
            for (int c = 0; c < 3; c++) {
                float *logits = run_variant(v, (pz_engine_options){.act = PZ_ACT_F32,
                                                                   .accum = (pz_accum)accum,
                                                                   .prezero = prezero,
                                                                   .gate = "open",
                                                                   .prefill_chunk = chunks[c]});
                double d = largest_difference(v, logits);
                if (d > 1e-4)
                    fail_msg("%s: accum %d prezero %d chunk %d: largest difference %g", v->dir, accum, prezero,
                             chunks[c], d);
                pz_free(logits);
            }
}

/* The fixed accumulator: neither riders nor chunks, strategies or threads change a bit, in either type of activation.
 */
static void check_bits(const variant *v) {
    static const char *const strategies[] = {"self", "reduce", "none"};
    for (int act = PZ_ACT_BF16; act <= PZ_ACT_F32; act++) {
        float *first = run_variant(v, (pz_engine_options){.act = (pz_act)act, .strategy = "self"});
        for (int i = 0; i < 6; i++) {
            float *other = run_variant(v, (pz_engine_options){.act = (pz_act)act,
                                                              .prezero = i % 2,
                                                              .gate = "open",
                                                              .strategy = strategies[i / 2],
                                                              .threads = 1 + i % 3,
                                                              .prefill_chunk = i % 2 ? 1 : 5});
            if (memcmp(first, other, v->n * v->vocab * sizeof *first) != 0)
                fail_msg("%s: act %d case %d: other bits", v->dir, act, i);
            pz_free(other);
        }
        pz_free(first);
    }
}

static void for_each(void (*check)(const variant *v)) {
    DIR *d = opendir(VARIANTS);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        if (entry->d_name[0] == '.') continue;
        variant v;
        open_variant(entry->d_name, &v);
        check(&v);
        close_variant(&v);
        n++;
    }
    closedir(d);
    assert_true(n >= 13);
}

static void test_close_to_float64(void **state) {
    (void)state;
    for_each(check_close);
}

static void test_same_bits(void **state) {
    (void)state;
    for_each(check_bits);
}

/* The comparison can fail: logits of one variant are not those of another of the same shape. */
static void test_variants_differ(void **state) {
    (void)state;
    variant v, other;
    open_variant("v3-groups", &v);
    open_variant("v3-linear", &other);
    assert_int_equal(v.n * v.vocab, other.n * other.vocab);
    float *logits = run_variant(&other, (pz_engine_options){.act = PZ_ACT_F32});
    assert_true(largest_difference(&v, logits) > 0.1);
    pz_free(logits);
    close_variant(&v);
    close_variant(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_close_to_float64),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_variants_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
