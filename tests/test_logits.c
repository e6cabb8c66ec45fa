/* SPDX-License-Identifier: Apache-2.0 */
/* Logits against those of transformers for the same checkpoints. */
#include "support_logits.h"

static void check_model(const char *dir, const char *fp32_name, const char *bf16_name) {
    support_reference fp32;
    support_reference_open(fp32_name, &fp32);
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_F32; accum++)
        for (int prezero = 0; prezero < 2; prezero++) {
            pz_engine_options o = {.accum = (pz_accum)accum, .act = PZ_ACT_F32, .prezero = prezero};
            support_distance d = support_engine_distance(dir, o, &fp32);
            print_message("%s f32 accum %s prezero %d: max %.3g rms %.3g\n", fp32_name, pz_accum_text(o.accum), prezero,
                          d.max, support_rms(d));
            assert_true(d.max <= 1e-3);
        }
    support_reference_close(&fp32);
    support_check_bf16_logits(dir, fp32_name, bf16_name, (pz_engine_options){0});
}

static void test_bf16_checkpoint(void **state) {
    (void)state;
    check_model(SUPPORT_BF16, "ref_fp32", "ref_bf16");
}

static void test_mxfp4_checkpoint(void **state) {
    (void)state;
    check_model(SUPPORT_MXFP4, "ref_mxfp4_fp32", "ref_mxfp4_bf16");
}

/* The test itself can fail: the logits of one checkpoint are not those of the other. */
static void test_checkpoints_differ(void **state) {
    (void)state;
    support_reference fp32;
    support_reference_open("ref_fp32", &fp32);
    support_distance d = support_engine_distance(SUPPORT_MXFP4, (pz_engine_options){.act = PZ_ACT_F32}, &fp32);
    assert_true(d.max > 1e-2);
    support_reference_close(&fp32);
}

static void check_chunks(pz_act act) {
    support_reference r;
    support_reference_open("ref_mxfp4_fp32", &r);
    static const int chunks[] = {128, 7, 1};
    float *first[SUPPORT_REFERENCES] = {0};
    for (int c = 0; c < 3; c++) {
        pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.act = act, .prefill_chunk = chunks[c]});
        for (int i = 0; i < SUPPORT_REFERENCES; i++) {
            float *logits = support_prefill(e, r.ids[i], r.n[i]);
            if (c == 0) {
                first[i] = logits;
                continue;
            }
            assert_memory_equal(logits, first[i], (size_t)r.n[i] * SUPPORT_VOCAB * sizeof(float));
            pz_free(logits);
        }
        pz_engine_close(e);
    }
    for (int i = 0; i < SUPPORT_REFERENCES; i++) pz_free(first[i]);
    support_reference_close(&r);
}

/* A prompt in chunks of all, 7 and 1 tokens gives the same bits. */
static void test_chunks_bf16(void **state) {
    (void)state;
    check_chunks(PZ_ACT_BF16);
}

static void test_chunks_f32(void **state) {
    (void)state;
    check_chunks(PZ_ACT_F32);
}

/* The logits of the last token alone are those of the last row. */
static void test_last_only(void **state) {
    (void)state;
    pz_error err;
    int32_t ids[20];
    float last[SUPPORT_VOCAB];
    support_ids(3, SUPPORT_VOCAB, ids, 20);
    pz_engine *e = support_engine(SUPPORT_MXFP4, (pz_engine_options){.prefill_chunk = 8});
    float *all = support_prefill(e, ids, 20);
    int seq = support_seq(e);
    assert_ok(pz_engine_prefill(e, seq, ids, 20, 0, last, &err), &err);
    assert_memory_equal(last, all + 19 * SUPPORT_VOCAB, sizeof last);
    pz_free(all);
    pz_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_checkpoint),    cmocka_unit_test(test_mxfp4_checkpoint),
        cmocka_unit_test(test_checkpoints_differ), cmocka_unit_test(test_chunks_bf16),
        cmocka_unit_test(test_chunks_f32),         cmocka_unit_test(test_last_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
