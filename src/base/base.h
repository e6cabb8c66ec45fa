/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, memory, strings, vectors: what every other part uses. */
#ifndef PZ_BASE_H
#define PZ_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "prezero/status.h"

/* ---- errors ---- */
/* Fills *err (if not NULL) and returns `code`, so that a failing function ends in one line. */
pz_status pz_fail(pz_error *err, pz_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "context: " in front of the message in *err; returns err's code unchanged (or `code` if err is NULL). */
pz_status pz_fail_context(pz_error *err, pz_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#define PZ_NOMEM(err) pz_fail((err), PZ_E_NOMEM, "out of memory (%s:%d)", __FILE__, __LINE__)
#ifdef __clang_analyzer__ /* which does not look into base.c: the value is the code, never PZ_OK */
#define pz_fail(err, code, ...) ((void)(pz_fail)((err), (code), __VA_ARGS__), (code))
#endif

/* For the arguments of public functions: E_INVAL "<function>: needs <what>" unless `ok`. */
#define PZ_NEED(ok, what, err)                                                          \
    do {                                                                                \
        if (!(ok)) return pz_fail((err), PZ_E_INVAL, "%s: needs %s", __func__, (what)); \
    } while (0)
#define PZ_TRY(expr)                          \
    do {                                      \
        pz_status pz_try_ = (expr);           \
        if (pz_try_ != PZ_OK) return pz_try_; \
    } while (0)
/* For functions with clean-up: sets `st` and jumps. */
#define PZ_TRY_GOTO(st, expr, label)   \
    do {                               \
        (st) = (expr);                 \
        if ((st) != PZ_OK) goto label; \
    } while (0)

/* ---- memory: every allocation of the library goes through these, so that tests can make any one fail ---- */
void *pz_calloc(size_t n, size_t size);           /* zeroed; NULL on overflow or failure */
void *pz_realloc(void *p, size_t n, size_t size); /* NULL on overflow or failure, p stays valid */
void *pz_aligned_calloc(size_t size);             /* 64-byte aligned, zeroed; pz_free releases it */
char *pz_strdup(const char *s);
char *pz_strndup(const char *s, size_t n);
/* Test hook: the allocation that comes after `n` successful ones fails, as do all later ones; negative turns it off.
 * Process-wide. */
void pz_alloc_fail_after(long n);

/* ---- arena: many small objects with one lifetime ---- */
typedef struct pz_arena {
    struct pz_arena_chunk *head;
} pz_arena;
void *pz_arena_alloc(pz_arena *a, size_t size); /* zeroed, 16-byte aligned; NULL if out of memory */
char *pz_arena_strndup(pz_arena *a, const char *s, size_t n);
char *pz_arena_strdup(pz_arena *a, const char *s);
char *pz_arena_printf(pz_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void pz_arena_free(pz_arena *a);

/* ---- vector: `PZ_VEC(int) v = {0};  PZ_TRY(pz_push(&v, 3, err));  v.at[i], v.n;  pz_vec_free(&v);` ---- */
#define PZ_VEC(T)   \
    struct {        \
        T *at;      \
        int n, cap; \
    }
/* Room for n + 1 elements; `at` points to the vector's data pointer; false if out of memory. */
bool pz_vec_grow(void *at, int *cap, int n, size_t elt);
#define pz_push(vec, item, err)                                                                                  \
    (pz_vec_grow(&(vec)->at, &(vec)->cap, (vec)->n, sizeof *(vec)->at) ? ((vec)->at[(vec)->n++] = (item), PZ_OK) \
                                                                       : PZ_NOMEM(err))
#define pz_vec_free(vec) (pz_free((vec)->at), (vec)->at = NULL, (vec)->n = (vec)->cap = 0)

/* ---- string builder; running out of memory is remembered and reported once, by pz_str_take ---- */
typedef struct pz_str {
    char *s;
    size_t n, cap;
    bool failed;
} pz_str;
void pz_str_add(pz_str *b, const char *s);
void pz_str_addn(pz_str *b, const char *s, size_t n);
void pz_str_addf(pz_str *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void pz_str_free(pz_str *b);
/* Hands the NUL-terminated string to *out (pz_free) and empties the builder; E_NOMEM (and *out NULL) if any add failed.
 */
pz_status pz_str_take(pz_str *b, char **out, pz_error *err);

/* ---- checked arithmetic; false on overflow ---- */
static inline bool pz_mul_ok(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool pz_add_ok(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline int64_t pz_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline size_t pz_align_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* ---- strings ---- */
bool pz_streq(const char *a, const char *b);
bool pz_utf8_valid(const char *s, size_t n, size_t *bad_offset);

/* Monotonic clock, nanoseconds. */
int64_t pz_now_ns(void);

#endif
