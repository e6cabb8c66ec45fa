/* SPDX-License-Identifier: Apache-2.0 */
/* Logits of an engine: their distance from a reference, and the bits of one sequence that is served in several ways. */
#ifndef PZ_TEST_SUPPORT_LOGITS_H
#define PZ_TEST_SUPPORT_LOGITS_H

#include "support_engine.h"

/* Largest and root mean square difference. */
typedef struct support_distance {
    double max, sum, n;
} support_distance;
double support_rms(support_distance d);
void support_distance_add(support_distance *d, const float *a, const float *b, size_t n);
/* Of an engine's logits from a reference, over all its sequences. */
support_distance support_engine_distance(const char *dir, pz_engine_options o, const support_reference *r);
/* bf16 activations on the device of `o`, accumulators fixed and f32, prezero off and on: no further from transformers'
 * f32 logits than 1.5 times what transformers' own bf16 ones are. */
void support_check_bf16_logits(const char *dir, const char *fp32_name, const char *bf16_name, pz_engine_options o);

/* Logits of all n tokens of a new sequence, f32 [n, SUPPORT_VOCAB], on the heap. */
float *support_prefill(pz_engine *e, const int32_t *ids, int n);

/* A prompt, then decode steps with tokens that are given. */
enum { SERVE_PROMPT = 10, SERVE_STEPS = 4, SERVE_ROWS = SERVE_PROMPT + SERVE_STEPS };
enum { SERVE_BYTES = SERVE_ROWS * SUPPORT_VOCAB * (int)sizeof(float) };
/* f32 [SERVE_ROWS, SUPPORT_VOCAB], on the heap, of the one sequence; with others: its decode steps are rows of a batch
 * with 15 others. */
float *support_serve(pz_engine *e, bool others);

#endif
