/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a tokenizer, its byte alphabet, and encoding: added tokens are cut out first. */
#include "model/tokenizer.h"

/* ---- life ---- */
static void *pcre_malloc(size_t n, void *user) {
    (void)user;
    return pz_calloc(n, 1);
}

static void pcre_free(void *p, void *user) {
    (void)user;
    pz_free(p);
}

pz_tokenizer *pz_tok_new(void) {
    pz_tokenizer *t = pz_calloc(1, sizeof *t);
    if (!t) return NULL;
    t->unk = t->bos = -1;
    t->pcre = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
    if (t->pcre) return t;
    pz_free(t);
    return NULL;
}

void pz_tokenizer_close(pz_tokenizer *t) {
    if (!t) return;
    for (int i = 0; i < t->steps.n; i++) pcre2_code_free(t->steps.at[i].code);
    pcre2_code_free(t->byte_level_split);
    pcre2_general_context_free(t->pcre);
    pz_vec_free(&t->steps);
    pz_vec_free(&t->added);
    pz_free(t->words);
    pz_free(t->lookup);
    pz_free(t->merges);
    pz_arena_free(&t->arena);
    pz_free(t);
}

int pz_tokenizer_vocab_size(const pz_tokenizer *t) {
    return t ? t->n_ids : 0;
}

/* ---- characters ---- */
static bool stands_for_itself(uint32_t c) {
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

/* The bytes that do not stand for themselves are 00-20, 7F-A0, AD: 68 of them, numbered in this order. */
uint32_t pz_tok_byte_char(unsigned char b) {
    if (stands_for_itself(b)) return b;
    return 0x100u + (b <= 0x20 ? b : b <= 0xA0 ? b - 0x7Fu + 0x21u : 0x43u);
}

int pz_tok_char_byte(uint32_t ch) {
    if (ch < 0x100) return stands_for_itself(ch) ? (int)ch : -1;
    uint32_t i = ch - 0x100;
    return i <= 0x20 ? (int)i : i < 0x43 ? (int)(i - 0x21 + 0x7F) : i == 0x43 ? 0xAD : -1;
}

uint32_t pz_tok_next_char(const char *str, size_t *at) {
    const unsigned char *s = (const unsigned char *)str + *at;
    int more = s[0] < 0x80 ? 0 : s[0] < 0xE0 ? 1 : s[0] < 0xF0 ? 2 : 3;
    uint32_t ch = more ? s[0] & (0x3Fu >> more) : s[0];
    for (int i = 1; i <= more; i++) ch = ch << 6 | (s[i] & 0x3Fu);
    *at += (size_t)more + 1;
    return ch;
}

size_t pz_tok_put_char(uint32_t ch, char out[4]) {
    if (ch < 0x80) {
        out[0] = (char)ch;
        return 1;
    }
    int more = ch < 0x800 ? 1 : ch < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    for (int i = more; i > 0; i--, ch >>= 6) out[i] = (char)(0x80 | (ch & 0x3F));
    out[0] = (char)(lead[more] | ch);
    return (size_t)more + 1;
}

static bool is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Start of the spaces that end at `end`, not before `floor`. */
static size_t spaces_before(const char *s, size_t end, size_t floor) {
    while (end > floor) {
        size_t begin = end - 1;
        while (begin > floor && ((unsigned char)s[begin] & 0xC0) == 0x80) begin--;
        size_t at = begin;
        if (!is_space(pz_tok_next_char(s, &at))) break;
        end = begin;
    }
    return end;
}

static size_t spaces_after(const char *s, size_t n, size_t from) {
    while (from < n) {
        size_t at = from;
        if (!is_space(pz_tok_next_char(s, &at))) break;
        from = at;
    }
    return from;
}

/* ---- encoding ---- */
/* First entry of a round whose text begins with that byte, or later. */
static int first_added(const pz_tokenizer *t, int round, unsigned char byte) {
    int lo = 0, hi = t->added.n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const pz_tok_added *a = &t->added.at[mid];
        if (a->round < round || (a->round == round && (unsigned char)a->text[0] < byte))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest added token of a round at a place of the text, or NULL. */
static const pz_tok_added *added_at(const pz_tokenizer *t, int round, const char *s, size_t n, const int first[256]) {
    for (int i = first[(unsigned char)s[0]]; i < t->added.n; i++) {
        const pz_tok_added *a = &t->added.at[i];
        if (a->round != round || a->text[0] != s[0]) return NULL;
        if (a->size <= n && memcmp(a->text, s, a->size) == 0) return a;
    }
    return NULL;
}

/* Cuts out the added tokens of a round; what lies between goes to the next round, then to the pre-tokenizer. */
static pz_status encode_round(pz_tok_encoder *e, int round, const char *s, size_t n, pz_error *err) {
    if (round == 2) return pz_tok_encode_text(e, s, n, err);
    int first[256];
    for (int b = 0; b < 256; b++) first[b] = first_added(e->t, round, (unsigned char)b);
    size_t done = 0, at = 0;
    while (at < n) {
        const pz_tok_added *a = added_at(e->t, round, s + at, n - at, first);
        if (!a) {
            at++;
            continue;
        }
        size_t begin = a->lstrip ? spaces_before(s, at, done) : at, end = at + a->size;
        if (begin > done) PZ_TRY(encode_round(e, round + 1, s + done, begin - done, err));
        PZ_TRY(pz_push(&e->ids, a->id, err));
        at = end; /* tokens may follow within the spaces that rstrip takes */
        done = a->rstrip ? spaces_after(s, n, end) : end;
    }
    return done < n ? encode_round(e, round + 1, s + done, n - done, err) : PZ_OK;
}

pz_status pz_tokenizer_encode(const pz_tokenizer *t, const char *text, size_t size, int add_bos, int32_t **ids,
                              size_t *n, pz_error *err) {
    PZ_NEED(t && (text || !size) && ids && n, "a tokenizer, a text and places for the ids and their number", err);
    *ids = NULL;
    *n = 0;
    size_t bad;
    if (size > PZ_TOK_MAX_TEXT)
        return pz_fail(err, PZ_E_RANGE, "text of %zu bytes, at most %d can be encoded", size, PZ_TOK_MAX_TEXT);
    if (!pz_utf8_valid(text, size, &bad))
        return pz_fail(err, PZ_E_FORMAT, "text is not valid UTF-8 at byte offset %zu (0x%02X)", bad,
                       (unsigned char)text[bad]);
    pz_tok_encoder e;
    PZ_TRY(pz_tok_encoder_init(&e, t, err));
    pz_status st = add_bos && t->add_bos ? pz_push(&e.ids, t->bos, err) : PZ_OK;
    if (st == PZ_OK) st = encode_round(&e, 0, text, size, err);
    /* An empty result is an array too. */
    if (st == PZ_OK && !pz_vec_grow(&e.ids.at, &e.ids.cap, e.ids.n, sizeof *e.ids.at)) st = PZ_NOMEM(err);
    if (st == PZ_OK) {
        *ids = e.ids.at;
        *n = (size_t)e.ids.n;
        e.ids.at = NULL;
    }
    pz_tok_encoder_free(&e);
    return st;
}
