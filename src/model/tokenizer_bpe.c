/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair encoding of one piece: the pair of the lowest rank is merged first, the leftmost among equals. Symbols are
 * a linked list and candidates a heap, so that a piece of n characters takes O(n log n). */
#include "model/tokenizer.h"

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    return x;
}

pz_tok_merge *pz_tok_merge_place(const pz_tokenizer *t, int32_t left, int32_t right) {
    size_t mask = t->merges_size - 1;
    size_t i = mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & mask;
    while (t->merges[i].rank >= 0 && !(t->merges[i].left == left && t->merges[i].right == right)) i = (i + 1) & mask;
    return &t->merges[i];
}

const pz_tok_merge *pz_tok_find_merge(const pz_tokenizer *t, int32_t left, int32_t right) {
    const pz_tok_merge *m = pz_tok_merge_place(t, left, right);
    return m->rank < 0 ? NULL : m;
}

static bool before(const pz_tok_candidate *a, const pz_tok_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static pz_status heap_push(pz_tok_encoder *e, pz_tok_candidate c, pz_error *err) {
    PZ_TRY(pz_push(&e->heap, c, err));
    int i = e->heap.n - 1;
    for (; i > 0 && before(&c, &e->heap.at[(i - 1) / 2]); i = (i - 1) / 2) e->heap.at[i] = e->heap.at[(i - 1) / 2];
    e->heap.at[i] = c;
    return PZ_OK;
}

static pz_tok_candidate heap_pop(pz_tok_encoder *e) {
    pz_tok_candidate *h = e->heap.at, top = h[0], last = h[--e->heap.n];
    int i = 0, n = e->heap.n;
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&h[child + 1], &h[child])) child++;
        if (!before(&h[child], &last)) break;
        h[i] = h[child];
    }
    if (n > 0) h[i] = last;
    return top;
}

/* Queues the pair that begins at symbol `at`, if it merges. */
static pz_status consider(pz_tok_encoder *e, int32_t at, pz_error *err) {
    if (at < 0 || e->symbols.at[at].next < 0) return PZ_OK;
    const pz_tok_merge *m = pz_tok_find_merge(e->t, e->symbols.at[at].id, e->symbols.at[e->symbols.at[at].next].id);
    return m ? heap_push(e, (pz_tok_candidate){m->rank, at, m->id}, err) : PZ_OK;
}

static pz_status merge_all(pz_tok_encoder *e, pz_error *err) {
    e->heap.n = 0;
    for (int32_t i = 0; i + 1 < e->symbols.n; i++) PZ_TRY(consider(e, i, err));
    while (e->heap.n > 0) {
        pz_tok_candidate c = heap_pop(e);
        pz_tok_symbol *s = e->symbols.at, *left = &s[c.at];
        if (left->id < 0 || left->next < 0) continue;
        const pz_tok_merge *m = pz_tok_find_merge(e->t, left->id, s[left->next].id);
        if (!m || m->rank != c.rank) continue; /* a neighbour has changed since this was queued */
        pz_tok_symbol *right = &s[left->next];
        left->id = c.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) s[left->next].prev = c.at;
        PZ_TRY(consider(e, left->prev, err));
        PZ_TRY(consider(e, c.at, err));
    }
    return PZ_OK;
}

static pz_status add_symbol(pz_tok_encoder *e, int32_t id, pz_error *err) {
    int32_t n = e->symbols.n;
    if (n > 0) e->symbols.at[n - 1].next = n;
    return pz_push(&e->symbols, ((pz_tok_symbol){.id = id, .prev = n - 1, .next = -1}), err);
}

static pz_status no_token(const char *s, size_t n, pz_error *err) {
    return pz_fail(err, PZ_E_FORMAT, "the tokenizer has no token for the character \"%.*s\" and no unk_token", (int)n,
                   s);
}

pz_status pz_tok_encode_piece(pz_tok_encoder *e, const char *s, size_t n, pz_error *err) {
    const pz_tokenizer *t = e->t;
    if (t->ignore_merges) {
        int32_t whole = pz_tok_find(t, s, n);
        if (whole >= 0) return pz_push(&e->ids, whole, err);
    }
    e->symbols.n = 0;
    bool after_unk = false;
    for (size_t at = 0; at < n;) {
        size_t begin = at;
        pz_tok_next_char(s, &at);
        int32_t id = pz_tok_find(t, s + begin, at - begin);
        bool unk = id < 0;
        if (unk && t->unk < 0) return no_token(s + begin, at - begin, err);
        if (!(unk && after_unk && t->fuse_unk)) PZ_TRY(add_symbol(e, unk ? t->unk : id, err));
        after_unk = unk;
    }
    PZ_TRY(merge_all(e, err));
    for (int32_t i = e->symbols.n ? 0 : -1; i >= 0; i = e->symbols.at[i].next)
        PZ_TRY(pz_push(&e->ids, e->symbols.at[i].id, err));
    return PZ_OK;
}
