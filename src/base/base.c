/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

const char *pz_status_text(pz_status status) {
    switch (status) {
#define PZ_STATUS_TEXT(name, value, text) \
    case PZ_##name: return text;
        PZ_STATUS_TABLE(PZ_STATUS_TEXT)
#undef PZ_STATUS_TEXT
    }
    return "unknown status";
}

const char *pz_status_name(pz_status status) {
    switch (status) {
#define PZ_STATUS_NAME(name, value, text) \
    case PZ_##name: return #name;
        PZ_STATUS_TABLE(PZ_STATUS_NAME)
#undef PZ_STATUS_NAME
    }
    return "E_UNKNOWN";
}

const char *pz_version(void) {
    return PZ_VERSION;
}

pz_status(pz_fail)(pz_error *err, pz_status code, const char *fmt, ...) {
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        for (char *p = err->msg; *p; p++)
            if (*p == '\n' || *p == '\r') *p = ' ';
    }
    return code;
}

pz_status pz_fail_context(pz_error *err, pz_status code, const char *fmt, ...) {
    if (err) {
        char old[sizeof err->msg], front[sizeof err->msg];
        memcpy(old, err->msg, sizeof old);
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(front, sizeof front, fmt, ap);
        va_end(ap);
        return pz_fail(err, err->code, "%.240s: %.260s", front, old);
    }
    return code;
}

/* ---- memory ---- */
static _Atomic long fail_after = -1;

void pz_alloc_fail_after(long n) {
    atomic_store(&fail_after, n);
}

static bool alloc_denied(void) {
    long n = atomic_load_explicit(&fail_after, memory_order_relaxed);
    if (n < 0) return false;
    if (n == 0) return true;
    atomic_store(&fail_after, n - 1);
    return false;
}

void *pz_calloc(size_t n, size_t size) {
    size_t bytes;
    if (!pz_mul_ok(n, size, &bytes) || alloc_denied()) return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *pz_realloc(void *p, size_t n, size_t size) {
    size_t bytes;
    if (!pz_mul_ok(n, size, &bytes) || alloc_denied()) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void *pz_aligned_calloc(size_t size) {
    size_t bytes;
    if (alloc_denied() || !pz_add_ok(size, 64, &bytes)) return NULL;
    bytes = bytes / 64 * 64;
    void *p = aligned_alloc(64, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void pz_free(void *p) {
    free(p);
}

char *pz_strndup(const char *s, size_t n) {
    char *p = pz_calloc(n + 1, 1);
    if (p) memcpy(p, s, n);
    return p;
}

char *pz_strdup(const char *s) {
    return pz_strndup(s, strlen(s));
}

/* ---- arena ---- */
typedef struct pz_arena_chunk {
    struct pz_arena_chunk *next;
    size_t used, cap;
    _Alignas(16) unsigned char data[];
} pz_arena_chunk;

void *pz_arena_alloc(pz_arena *a, size_t size) {
    if (size > SIZE_MAX / 2) return NULL;
    size = pz_align_up(size ? size : 1, 16);
    pz_arena_chunk *c = a->head;
    if (!c || c->cap - c->used < size) {
        size_t cap = size > 8192 ? size : 16384;
        c = pz_calloc(1, sizeof *c + cap);
        if (!c) return NULL;
        c->cap = cap;
        /* A large object gets a chunk of its own behind the head, so that the head's room is not lost. */
        if (a->head && size > 8192) {
            c->next = a->head->next;
            a->head->next = c;
        } else {
            c->next = a->head;
            a->head = c;
        }
    }
    void *p = c->data + c->used;
    c->used += size;
    return p;
}

char *pz_arena_strndup(pz_arena *a, const char *s, size_t n) {
    char *p = pz_arena_alloc(a, n + 1);
    if (p) memcpy(p, s, n);
    return p;
}

char *pz_arena_strdup(pz_arena *a, const char *s) {
    return pz_arena_strndup(a, s, strlen(s));
}

char *pz_arena_printf(pz_arena *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : pz_arena_alloc(a, (size_t)n + 1);
    if (!p) return NULL;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

void pz_arena_free(pz_arena *a) {
    for (pz_arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        pz_free(c);
    }
    a->head = NULL;
}

/* ---- vector, string ---- */
bool pz_vec_grow(void *at, int *cap, int n, size_t elt) {
    if (n < *cap) return true;
    if (*cap > INT32_MAX / 2) return false;
    int want = *cap ? *cap * 2 : 8;
    void *p; /* copied as bytes: *at has another pointer type */
    memcpy(&p, at, sizeof p);
    p = pz_realloc(p, (size_t)want, elt);
    if (!p) return false;
    memcpy(at, &p, sizeof p);
    *cap = want;
    return true;
}

static bool str_room(pz_str *b, size_t more) {
    size_t need;
    if (b->failed || !pz_add_ok(b->n, more, &need) || !pz_add_ok(need, 1, &need)) return !(b->failed = true);
    if (need <= b->cap) return true;
    size_t cap = b->cap ? b->cap : 128;
    while (cap < need) cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *s = pz_realloc(b->s, cap, 1);
    if (!s) return !(b->failed = true);
    b->s = s;
    b->cap = cap;
    return true;
}

void pz_str_addn(pz_str *b, const char *s, size_t n) {
    if (!str_room(b, n)) return;
    if (n) memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = 0;
}

void pz_str_add(pz_str *b, const char *s) {
    pz_str_addn(b, s, strlen(s));
}

void pz_str_addf(pz_str *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !str_room(b, (size_t)n)) return;
    va_start(ap, fmt);
    vsnprintf(b->s + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
}

void pz_str_free(pz_str *b) {
    pz_free(b->s);
    *b = (pz_str){0};
}

pz_status pz_str_take(pz_str *b, char **out, pz_error *err) {
    *out = NULL;
    if (!str_room(b, 0)) {
        pz_str_free(b);
        return PZ_NOMEM(err);
    }
    b->s[b->n] = 0;
    *out = b->s;
    *b = (pz_str){0};
    return PZ_OK;
}

bool pz_streq(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Well-formed byte sequences: table 3-7 of the Unicode standard. */
bool pz_utf8_valid(const char *str, size_t n, size_t *bad_offset) {
    const unsigned char *s = (const unsigned char *)str;
    size_t i = 0;
    while (i < n) {
        unsigned char c = s[i];
        size_t len = c < 0x80                 ? 1
                     : c >= 0xC2 && c <= 0xDF ? 2
                     : (c & 0xF0) == 0xE0     ? 3
                     : c >= 0xF0 && c <= 0xF4 ? 4
                                              : 0;
        bool ok = len != 0 && n - i >= len;
        for (size_t j = 1; ok && j < len; j++) ok = (s[i + j] & 0xC0) == 0x80;
        if (ok && len >= 3) {
            unsigned char d = s[i + 1];
            ok = !(c == 0xE0 && d < 0xA0) && !(c == 0xED && d > 0x9F) && !(c == 0xF0 && d < 0x90) &&
                 !(c == 0xF4 && d > 0x8F);
        }
        if (!ok) {
            if (bad_offset) *bad_offset = i;
            return false;
        }
        i += len;
    }
    return true;
}

int64_t pz_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
