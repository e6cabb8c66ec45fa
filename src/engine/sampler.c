/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a token: temperature, then top-k, then top-p, then one draw. Ties go to the lower id everywhere, so that the
 * choice is a function of logits and state alone. */
#include <math.h>

#include "base/best.h"
#include "base/rng.h"
#include "engine/session.h"

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

static bool better(candidate a, candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(candidate *heap, int n, int at) {
    for (;;) {
        int best = at, left = 2 * at + 1;
        if (left < n && better(heap[left], heap[best])) best = left;
        if (left + 1 < n && better(heap[left + 1], heap[best])) best = left + 1;
        if (best == at) return;
        candidate t = heap[at];
        heap[at] = heap[best];
        heap[best] = t;
        at = best;
    }
}

/* exp((logit - max) / temperature); an infinite maximum leaves only its equals. */
static double weight_of(float logit, float max, float temperature) {
    if (logit == max) return 1;
    return exp(((double)logit - (double)max) / (double)temperature);
}

/* Moves the best of heap[0..n-taken) to heap[n - 1 - taken], so that the taken ones lie sorted from the end. */
static double take(candidate *heap, int n, int taken, float max, float temperature) {
    candidate best = heap[0];
    heap[0] = heap[n - 1 - taken];
    heap[n - 1 - taken] = best;
    sift_down(heap, n - 1 - taken, 0);
    return weight_of(best.logit, max, temperature);
}

/* Orders the candidates that top_k and top_p leave at the end of c, best last; returns how many. top_p keeps the fewest
 * best ones whose share of the weight left by top_k reaches it. */
static int keep_best(candidate *c, int n, const pz_sampling *how, float max) {
    bool nucleus = how->top_p > 0 && how->top_p < 1;
    int limit = how->top_k > 0 && how->top_k < n ? how->top_k : n, taken = 0;
    if (limit == n && !nucleus) return n;
    for (int i = n / 2 - 1; i >= 0; i--) sift_down(c, n, i);
    double total = 0, seen = 0;
    if (limit < n)
        while (taken < limit) total += take(c, n, taken++, max, how->temperature);
    else
        for (int i = 0; i < n; i++) total += weight_of(c[i].logit, max, how->temperature);
    if (!nucleus) return taken;
    for (int i = 0; i < limit; i++) {
        seen += i < taken ? weight_of(c[n - 1 - i].logit, max, how->temperature)
                          : take(c, n, taken++, max, how->temperature);
        if (seen >= (double)how->top_p * total) return i + 1;
    }
    return limit;
}

static int32_t draw(const candidate *c, int n, int kept, float max, const pz_sampling *how, uint64_t *state) {
    double total = 0;
    for (int i = 0; i < kept; i++) total += weight_of(c[n - 1 - i].logit, max, how->temperature);
    double at = pz_rng_unit(state) * total;
    int32_t id = c[n - 1].id;
    for (int i = 0; i < kept; i++) {
        double w = weight_of(c[n - 1 - i].logit, max, how->temperature);
        if (w > 0) id = c[n - 1 - i].id; /* rounding may leave a remainder for the last possible one */
        at -= w;
        if (at < 0) break;
    }
    return id;
}

pz_status pz_sampling_is_greedy(const pz_sampling *how, bool *greedy, pz_error *err) {
    if (!(how->temperature >= 0) || isinf(how->temperature))
        return pz_fail(err, PZ_E_RANGE, "temperature %g: must be 0 (greedy) or a positive number",
                       (double)how->temperature);
    if (!(how->top_p >= 0 && how->top_p <= 1))
        return pz_fail(err, PZ_E_RANGE, "top_p %g: must be between 0 and 1", (double)how->top_p);
    if (how->top_k < 0) return pz_fail(err, PZ_E_RANGE, "top_k %d: must be 0 (off) or positive", how->top_k);
    *greedy = how->temperature == 0;
    return PZ_OK;
}

pz_status pz_greedy_token(int32_t best, int vocab, int32_t *token, pz_error *err) {
    if (best < 0) return pz_fail(err, PZ_E_RANGE, "none of the %d logits is finite", vocab);
    *token = best;
    return PZ_OK;
}

pz_status pz_sample(const float *logits, int vocab, const pz_sampling *how, uint64_t *state, int32_t *token,
                    pz_error *err) {
    if (!logits || !how || !state || !token || vocab < 1)
        return pz_fail(err, PZ_E_INVAL, "pz_sample: needs logits of at least one token, a sampling, a state, a result");
    bool greedy;
    PZ_TRY(pz_sampling_is_greedy(how, &greedy, err));
    int32_t best = pz_best(logits, vocab);
    if (greedy || best < 0) return pz_greedy_token(best, vocab, token, err);
    candidate *c = pz_calloc((size_t)vocab, sizeof *c);
    if (!c) return PZ_NOMEM(err);
    int n = 0;
    for (int i = 0; i < vocab; i++)
        if (!isnan(logits[i])) c[n++] = (candidate){logits[i], i};
    int kept = keep_best(c, n, how, logits[best]);
    *token = draw(c, n, kept, logits[best], how, state);
    pz_free(c);
    return PZ_OK;
}
