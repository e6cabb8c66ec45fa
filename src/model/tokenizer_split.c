/* SPDX-License-Identifier: Apache-2.0 */
/* The pre-tokenizer: each step cuts the pieces of the step before; the ByteLevel step comes last. */
#include "model/tokenizer.h"

/* Backtracking allowed at one place of a text of n bytes. Enough for any pattern that is linear in the text, so that a
 * pattern that is exponential ends in an error. */
static uint32_t backtracking_limit(size_t n) {
    size_t limit = 10000 + 64 * n;
    return limit < 1000000000 ? (uint32_t)limit : 1000000000;
}

static const size_t HEAP_LIMIT_KIB = 64 * 1024;

pz_status pz_tok_encoder_init(pz_tok_encoder *e, const pz_tokenizer *t, pz_error *err) {
    *e = (pz_tok_encoder){.t = t};
    e->match = pcre2_match_data_create(1, t->pcre);
    e->limits = pcre2_match_context_create(t->pcre);
    if (!e->match || !e->limits) {
        pz_tok_encoder_free(e);
        return PZ_NOMEM(err);
    }
    pcre2_set_heap_limit(e->limits, (uint32_t)HEAP_LIMIT_KIB);
    /* Without a stack of its own the compiled code uses 32 KiB of the machine's, which is right too, only smaller. */
    e->jit_stack = pcre2_jit_stack_create(32 * 1024, 1024 * 1024, t->pcre);
    if (e->jit_stack) pcre2_jit_stack_assign(e->limits, NULL, e->jit_stack);
    return PZ_OK;
}

void pz_tok_encoder_free(pz_tok_encoder *e) {
    pz_vec_free(&e->ids);
    pz_vec_free(&e->symbols);
    pz_vec_free(&e->heap);
    pz_str_free(&e->mapped);
    pz_str_free(&e->prefixed);
    pcre2_match_data_free(e->match);
    pcre2_match_context_free(e->limits);
    pcre2_jit_stack_free(e->jit_stack);
}

typedef struct span {
    size_t begin, end;
    bool match;
} span;
typedef PZ_VEC(span) span_list;

static pz_status match_failed(int rc, size_t n, pz_error *err) {
    if (rc == PCRE2_ERROR_NOMEMORY) return PZ_NOMEM(err);
    char why[120];
    if (pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why) < 0) why[0] = 0;
    return pz_fail(err, PZ_E_RANGE, "the tokenizer's regular expression gives up on a text of %zu bytes: %s", n, why);
}

static int match_at(pz_tok_encoder *e, const pcre2_code *code, const char *s, size_t n, size_t from) {
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(code, (PCRE2_SPTR)s, n, from, options, e->match, e->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)s, n, from, options | PCRE2_NO_JIT, e->match, e->limits);
    return rc;
}

/* Covers the text with spans, alternately between and in matches. An empty match right behind a match does not count.
 */
static pz_status find_spans(pz_tok_encoder *e, const pcre2_code *code, const char *s, size_t n, span_list *out,
                            pz_error *err) {
    pcre2_set_match_limit(e->limits, backtracking_limit(n));
    size_t done = 0, from = 0;
    bool matched = false;
    while (from <= n) {
        int rc = match_at(e, code, s, n, from);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) return match_failed(rc, n, err);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(e->match);
        size_t begin = range[0], end = range[1];
        if (begin < done || end < begin || end > n)
            return pz_fail(err, PZ_E_RANGE, "the tokenizer's regular expression matches backwards");
        if (begin == end && matched && begin == done) {
            if (from < n)
                pz_tok_next_char(s, &from);
            else
                from++;
            continue;
        }
        if (begin > done) PZ_TRY(pz_push(out, ((span){done, begin, false}), err));
        PZ_TRY(pz_push(out, ((span){begin, end, true}), err));
        done = from = end;
        matched = true;
    }
    return done < n ? pz_push(out, ((span){done, n, false}), err) : PZ_OK;
}

/* Joins neighbours as the behavior says; `match` of a resulting span then means: to be removed. */
static void apply_behavior(span_list *spans, pz_tok_behavior behavior) {
    span *at = spans->at;
    int n = spans->n, out = 0;
    bool previous = false; /* whether the span before (in walking order) matched */
    switch (behavior) {
    case PZ_TOK_REMOVED: return;
    case PZ_TOK_ISOLATED:
        for (int i = 0; i < n; i++) at[i].match = false;
        return;
    case PZ_TOK_CONTIGUOUS:
    case PZ_TOK_MERGED_WITH_PREVIOUS:
        for (int i = 0; i < n; i++) {
            span s = at[i];
            bool join = behavior == PZ_TOK_CONTIGUOUS ? s.match == previous : s.match && !previous;
            if (join && out > 0)
                at[out - 1].end = s.end;
            else
                at[out++] = (span){s.begin, s.end, false};
            previous = s.match;
        }
        spans->n = out;
        return;
    case PZ_TOK_MERGED_WITH_NEXT:
        out = n;
        for (int i = n - 1; i >= 0; i--) {
            span s = at[i];
            if (s.match && !previous && out < n)
                at[out].begin = s.begin;
            else
                at[--out] = (span){s.begin, s.end, false};
            previous = s.match;
        }
        if (n > out) memmove(at, at + out, (size_t)(n - out) * sizeof *at);
        spans->n = n - out;
        return;
    }
}

static pz_status cut(pz_tok_encoder *e, const pz_tok_step *step, const char *s, size_t n, span_list *out,
                     pz_error *err) {
    PZ_TRY(find_spans(e, step->code, s, n, out, err));
    for (int i = 0; step->invert && i < out->n; i++) out->at[i].match = !out->at[i].match;
    apply_behavior(out, step->behavior);
    return PZ_OK;
}

static pz_status encode_bytes(pz_tok_encoder *e, const char *s, size_t n, pz_error *err) {
    e->mapped.n = 0;
    for (size_t i = 0; i < n; i++) {
        char ch[4];
        pz_str_addn(&e->mapped, ch, pz_tok_put_char(pz_tok_byte_char((unsigned char)s[i]), ch));
    }
    if (e->mapped.failed) return PZ_NOMEM(err);
    return pz_tok_encode_piece(e, e->mapped.s, e->mapped.n, err);
}

static pz_status byte_level(pz_tok_encoder *e, const char *s, size_t n, pz_error *err) {
    if (e->t->prefix_space && s[0] != ' ') {
        e->prefixed.n = 0;
        pz_str_add(&e->prefixed, " ");
        pz_str_addn(&e->prefixed, s, n);
        if (e->prefixed.failed) return PZ_NOMEM(err);
        s = e->prefixed.s;
        n = e->prefixed.n;
    }
    if (!e->t->byte_level_split) return encode_bytes(e, s, n, err);
    span_list spans = {0};
    pz_status st = find_spans(e, e->t->byte_level_split, s, n, &spans, err);
    for (int i = 0; st == PZ_OK && i < spans.n; i++)
        if (spans.at[i].end > spans.at[i].begin)
            st = encode_bytes(e, s + spans.at[i].begin, spans.at[i].end - spans.at[i].begin, err);
    pz_vec_free(&spans);
    return st;
}

/* Cuts a piece by the steps from `step` on. The depth is the number of steps, which loading bounds. */
static pz_status encode_from(pz_tok_encoder *e, int step, const char *s, size_t n, pz_error *err) {
    if (step == e->t->steps.n) return e->t->byte_level ? byte_level(e, s, n, err) : pz_tok_encode_piece(e, s, n, err);
    span_list spans = {0};
    pz_status st = cut(e, &e->t->steps.at[step], s, n, &spans, err);
    for (int i = 0; st == PZ_OK && i < spans.n; i++) {
        const span *p = &spans.at[i];
        if (!p->match && p->end > p->begin) st = encode_from(e, step + 1, s + p->begin, p->end - p->begin, err);
    }
    pz_vec_free(&spans);
    return st;
}

pz_status pz_tok_encode_text(pz_tok_encoder *e, const char *s, size_t n, pz_error *err) {
    return n ? encode_from(e, 0, s, n, err) : PZ_OK;
}
