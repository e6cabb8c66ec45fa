/* SPDX-License-Identifier: Apache-2.0 */
/* What every test program can use. Include it first: cmocka needs its own headers before it. */
#ifndef PZ_TEST_SUPPORT_H
#define PZ_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"

/* Asserts that `expr` is `code`; on failure shows the message in *err too. */
#define assert_status(expr, want, err) support_assert_status((expr), (want), (err), #expr, __FILE__, __LINE__)
#define assert_ok(expr, err) assert_status(expr, PZ_OK, err)
/* Asserts that `expr` fails with `want`, that *err has the same code and a message of one line that contains each of
 * the given texts (at least one). */
#define assert_fails(expr, want, err, ...) \
    support_assert_fails((expr), (want), (err), (const char *const[]){__VA_ARGS__, NULL}, #expr, __FILE__, __LINE__)
void support_assert_status(pz_status got, pz_status want, const pz_error *err, const char *expr, const char *file,
                           int line);
void support_assert_fails(pz_status got, pz_status want, const pz_error *err, const char *const *texts,
                          const char *expr, const char *file, int line);
/* Asserts that `text` contains `part`. */
#define assert_contains(text, part) support_assert_contains((text), (part), __FILE__, __LINE__)
void support_assert_contains(const char *text, const char *part, const char *file, int line);

/* Runs fn(ctx) with its first allocation failing, then its second, and so on until it succeeds. Each run must return
 * PZ_E_NOMEM or PZ_OK and leave nothing behind (leak checkers see to that); fn itself releases what it got. Returns the
 * number of runs that failed: a test asserts that it is at least what it knows to be allocated. */
long support_alloc_sweep(pz_status (*fn)(void *ctx), void *ctx);
/* The same for the allocations that jansson makes. It reports some of them as malformed text, so any error will do
 * here; what counts is that nothing crashes or leaks. */
long support_alloc_sweep_json(pz_status (*fn)(void *ctx), void *ctx);

/* A fresh directory below the system's temporary one; support_tmp_remove deletes it with all that is in it. */
char *support_tmp_dir(void);
void support_tmp_remove(char *dir);
/* dir/name on the heap; asserts instead of failing. */
char *support_path(const char *dir, const char *name);
/* Number of entries in a directory. */
int support_count_entries(const char *dir);

#endif
