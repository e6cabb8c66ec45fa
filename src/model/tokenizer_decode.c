/* SPDX-License-Identifier: Apache-2.0 */
/* From ids to text. Bytes wait until their character is complete; what can never become one is U+FFFD, one for each
 * longest beginning of a character (as the Unicode standard recommends). */
#include "model/tokenizer.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

struct pz_detokenizer {
    const pz_tokenizer *t;
    pz_str waiting, shown;
};

/* The bytes of a word. A word with a character outside the byte alphabet stands for itself. */
static void add_word(pz_str *out, const pz_tok_word *w) {
    size_t mark = out->n;
    for (size_t at = 0; at < w->size;) {
        int byte = pz_tok_char_byte(pz_tok_next_char(w->text, &at));
        if (byte < 0) {
            out->n = mark;
            pz_str_addn(out, w->text, w->size);
            return;
        }
        char c = (char)byte;
        pz_str_addn(out, &c, 1);
    }
}

/* Adds the word of an id; an id without a word (a model may have more rows than the tokenizer words) adds nothing. */
static pz_status add_id(const pz_tokenizer *t, int32_t id, int skip_special, pz_str *out, pz_error *err) {
    if (id < 0) return pz_fail(err, PZ_E_RANGE, "token id %d is negative", id);
    if (id >= t->n_ids || !t->words[id].text || (skip_special && t->words[id].special)) return PZ_OK;
    add_word(out, &t->words[id]);
    return out->failed ? PZ_NOMEM(err) : PZ_OK;
}

/* Bytes at s that belong together: *whole says whether they are a character; 0: more bytes are needed to tell. */
static size_t next_part(const char *s, size_t n, bool *whole) {
    const unsigned char *u = (const unsigned char *)s;
    size_t len = u[0] < 0x80 ? 1 : u[0] < 0xC2 ? 0 : u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : u[0] < 0xF5 ? 4 : 0;
    *whole = false;
    if (len == 0) return 1;
    unsigned char lo = u[0] == 0xE0 ? 0xA0 : u[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char hi = u[0] == 0xED ? 0x9F : u[0] == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < len; i++, lo = 0x80, hi = 0xBF) {
        if (i == n) return 0;
        if (u[i] < lo || u[i] > hi) return i;
    }
    *whole = true;
    return len;
}

/* Moves what is decided from `in` to `out`; all of it if this is the end. */
static void decode_bytes(pz_str *in, bool end, pz_str *out) {
    size_t at = 0;
    while (at < in->n) {
        bool whole;
        size_t n = next_part(in->s + at, in->n - at, &whole);
        if (n == 0 && !end) break;
        if (whole)
            pz_str_addn(out, in->s + at, n);
        else
            pz_str_add(out, REPLACEMENT);
        at += n ? n : in->n - at;
    }
    if (in->n) memmove(in->s, in->s + at, in->n - at);
    in->n -= at;
}

pz_status pz_tokenizer_decode(const pz_tokenizer *t, const int32_t *ids, size_t n, int skip_special, char **text,
                              pz_error *err) {
    PZ_NEED(t && (ids || !n) && text, "a tokenizer, ids and a place for the text", err);
    *text = NULL;
    pz_str bytes = {0}, out = {0};
    pz_status st = PZ_OK;
    for (size_t i = 0; i < n && st == PZ_OK; i++) st = add_id(t, ids[i], skip_special, &bytes, err);
    if (st == PZ_OK) {
        decode_bytes(&bytes, true, &out);
        st = pz_str_take(&out, text, err);
    }
    pz_str_free(&bytes);
    return st;
}

/* ---- streaming ---- */
pz_status pz_detokenizer_new(const pz_tokenizer *t, pz_detokenizer **out, pz_error *err) {
    PZ_NEED(t && out, "a tokenizer and a place for the result", err);
    *out = pz_calloc(1, sizeof **out);
    if (!*out) return PZ_NOMEM(err);
    (*out)->t = t;
    return PZ_OK;
}

void pz_detokenizer_free(pz_detokenizer *d) {
    if (!d) return;
    pz_str_free(&d->waiting);
    pz_str_free(&d->shown);
    pz_free(d);
}

static pz_status show(pz_detokenizer *d, bool end, const char **text, pz_error *err) {
    d->shown.n = 0;
    pz_str_add(&d->shown, "");
    decode_bytes(&d->waiting, end, &d->shown);
    if (d->shown.failed) return PZ_NOMEM(err);
    *text = d->shown.s;
    return PZ_OK;
}

pz_status pz_detokenizer_push(pz_detokenizer *d, int32_t id, const char **text, pz_error *err) {
    PZ_NEED(d && text, "a detokenizer and a place for the text", err);
    *text = "";
    PZ_TRY(add_id(d->t, id, 1, &d->waiting, err));
    return show(d, false, text, err);
}

pz_status pz_detokenizer_finish(pz_detokenizer *d, const char **text, pz_error *err) {
    PZ_NEED(d && text, "a detokenizer and a place for the text", err);
    *text = "";
    return show(d, true, text, err);
}
