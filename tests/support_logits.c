/* SPDX-License-Identifier: Apache-2.0 */
#include "support_logits.h"

#include <math.h>

double support_rms(support_distance d) {
    return sqrt(d.sum / d.n);
}

void support_distance_add(support_distance *d, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double diff = fabs((double)a[i] - (double)b[i]);
        assert_true(isfinite(diff));
        if (diff > d->max) d->max = diff;
        d->sum += diff * diff;
    }
    d->n += (double)n;
}

float *support_prefill(pz_engine *e, const int32_t *ids, int n) {
    pz_error err;
    int seq = support_seq(e);
    float *logits = pz_calloc((size_t)n * SUPPORT_VOCAB, sizeof *logits);
    assert_non_null(logits);
    assert_ok(pz_engine_prefill(e, seq, ids, (size_t)n, 1, logits, &err), &err);
    pz_seq_close(e, seq);
    return logits;
}

support_distance support_engine_distance(const char *dir, pz_engine_options o, const support_reference *r) {
    pz_engine *e = support_engine(dir, o);
    support_distance d = {0};
    for (int i = 0; i < SUPPORT_REFERENCES; i++) {
        float *logits = support_prefill(e, r->ids[i], r->n[i]);
        support_distance_add(&d, logits, r->logits[i], (size_t)r->n[i] * SUPPORT_VOCAB);
        pz_free(logits);
    }
    pz_engine_close(e);
    return d;
}

void support_check_bf16_logits(const char *dir, const char *fp32_name, const char *bf16_name, pz_engine_options o) {
    support_reference fp32, bf16;
    support_reference_open(fp32_name, &fp32);
    support_reference_open(bf16_name, &bf16);
    support_distance own = {0};
    for (int i = 0; i < SUPPORT_REFERENCES; i++)
        support_distance_add(&own, bf16.logits[i], fp32.logits[i], (size_t)fp32.n[i] * SUPPORT_VOCAB);
    o.act = PZ_ACT_BF16;
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_F32; accum++)
        for (int prezero = 0; prezero < 2; prezero++) {
            o.accum = (pz_accum)accum;
            o.prezero = prezero;
            support_distance d = support_engine_distance(dir, o, &fp32);
            print_message("%s bf16 accum %s prezero %d: max %.3g rms %.3g (transformers bf16: max %.3g rms %.3g)\n",
                          fp32_name, pz_accum_text(o.accum), prezero, d.max, support_rms(d), own.max, support_rms(own));
            assert_true(support_rms(d) <= 1.5 * support_rms(own));
            assert_true(d.max <= 1.5 * own.max);
        }
    support_reference_close(&fp32);
    support_reference_close(&bf16);
}

/* ---- one sequence ---- */
enum { OTHERS = 15, PLACE = 7 };

static void open_others(pz_engine *e, int *seq) {
    pz_error err;
    int32_t ids[32];
    for (int i = 0; i < OTHERS; i++) {
        int n = 1 + (i * 5) % 23;
        support_ids(100 + (uint64_t)i, SUPPORT_VOCAB, ids, n);
        seq[i] = support_seq(e);
        assert_ok(pz_engine_prefill(e, seq[i], ids, (size_t)n, 0, NULL, &err), &err);
    }
}

/* Decode steps of the sequence `own`, alone or as row PLACE among the others. */
static void decode(pz_engine *e, int own, const int *others, const int32_t *ids, float *logits) {
    pz_error err;
    pz_row rows[OTHERS + 1];
    int n = others ? OTHERS + 1 : 1, place = others ? PLACE : 0;
    float *all = pz_calloc((size_t)n * SUPPORT_VOCAB, sizeof *all);
    assert_non_null(all);
    for (int s = 0; s < SERVE_STEPS; s++) {
        int32_t tokens[OTHERS + 1];
        support_ids(900 + (uint64_t)s, SUPPORT_VOCAB, tokens, n);
        for (int i = 0, o = 0; i < n; i++)
            rows[i] = i == place ? (pz_row){own, ids[s]} : (pz_row){others[o++], tokens[i]};
        assert_ok(pz_engine_step(e, rows, n, all, &err), &err);
        memcpy(logits + (size_t)s * SUPPORT_VOCAB, all + (size_t)place * SUPPORT_VOCAB, SUPPORT_VOCAB * sizeof(float));
    }
    pz_free(all);
}

float *support_serve(pz_engine *e, bool others) {
    pz_error err;
    int32_t ids[SERVE_ROWS];
    int seq[OTHERS];
    float *logits = pz_calloc(1, SERVE_BYTES);
    assert_non_null(logits);
    support_ids(1, SUPPORT_VOCAB, ids, SERVE_ROWS);
    if (others) open_others(e, seq);
    int own = support_seq(e);
    assert_ok(pz_engine_prefill(e, own, ids, SERVE_PROMPT, 1, logits, &err), &err);
    decode(e, own, others ? seq : NULL, ids + SERVE_PROMPT, logits + SERVE_PROMPT * SUPPORT_VOCAB);
    pz_seq_close(e, own);
    for (int i = 0; others && i < OTHERS; i++) pz_seq_close(e, seq[i]);
    return logits;
}
