/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <dirent.h>
#include <ftw.h>
#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"

void support_assert_status(pz_status got, pz_status want, const pz_error *err, const char *expr, const char *file,
                           int line) {
    if (got == want) return;
    print_error("%s\n  is %s, expected %s%s%s\n", expr, pz_status_name(got), pz_status_name(want),
                got != PZ_OK && err ? ": " : "", got != PZ_OK && err ? err->msg : "");
    _fail(file, line);
}

void support_assert_fails(pz_status got, pz_status want, const pz_error *err, const char *const *texts,
                          const char *expr, const char *file, int line) {
    support_assert_status(got, want, err, expr, file, line);
    if (err->code != want) {
        print_error("%s\n  left %s in the error record\n", expr, pz_status_name(err->code));
        _fail(file, line);
    }
    if (strpbrk(err->msg, "\r\n")) {
        print_error("message has several lines: %s\n", err->msg);
        _fail(file, line);
    }
    for (; *texts; texts++) support_assert_contains(err->msg, *texts, file, line);
}

void support_assert_contains(const char *text, const char *part, const char *file, int line) {
    if (strstr(text, part)) return;
    print_error("\"%s\"\n  does not contain \"%s\"\n", text, part);
    _fail(file, line);
}

/* ---- failing allocations ---- */
static long sweep(pz_status (*fn)(void *), void *ctx, void (*fail_after)(long), bool nomem_only) {
    long failed = 0;
    /* Every allocation at first; further on, where a fault would only repeat, in growing steps. */
    for (long n = 0;; n += 1 + n / 512) {
        fail_after(n);
        pz_status st = fn(ctx);
        fail_after(-1);
        if (st == PZ_OK) return failed;
        if (nomem_only && st != PZ_E_NOMEM) fail_msg("allocation %ld failing gave %s", n, pz_status_name(st));
        failed++;
    }
}

long support_alloc_sweep(pz_status (*fn)(void *), void *ctx) {
    return sweep(fn, ctx, pz_alloc_fail_after, true);
}

static long json_left = -1;

static void *json_malloc(size_t n) {
    if (json_left == 0) return NULL;
    if (json_left > 0) json_left--;
    return malloc(n);
}

static void json_fail_after(long n) {
    json_left = n;
}

long support_alloc_sweep_json(pz_status (*fn)(void *), void *ctx) {
    json_set_alloc_funcs(json_malloc, free);
    long failed = sweep(fn, ctx, json_fail_after, false);
    json_set_alloc_funcs(malloc, free);
    return failed;
}

/* ---- files ---- */
char *support_tmp_dir(void) {
    const char *base = getenv("TMPDIR");
    char *dir = pz_path_join(base && *base ? base : "/tmp", "prezero-test-XXXXXX");
    assert_non_null(dir);
    assert_non_null(mkdtemp(dir));
    return dir;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void support_tmp_remove(char *dir) {
    assert_int_equal(nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
    pz_free(dir);
}

char *support_path(const char *dir, const char *name) {
    char *path = pz_path_join(dir, name);
    assert_non_null(path);
    return path;
}

int support_count_entries(const char *dir) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (const struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}
