/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "prezero/engine.h"

static char *dir;

static int setup(void **state) {
    (void)state;
    dir = support_tmp_dir();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    support_tmp_remove(dir);
    return 0;
}

static void expect_content(const char *path, const char *want) {
    pz_error err;
    char *data;
    size_t size;
    assert_ok(pz_file_read(path, &data, &size, &err), &err);
    assert_int_equal(size, strlen(want));
    assert_string_equal(data, want);
    pz_free(data);
}

static void test_map(void **state) {
    (void)state;
    pz_error err;
    char *path = support_path(dir, "file");
    assert_ok(pz_file_write(path, "12345", 5, &err), &err);
    pz_map map;
    assert_ok(pz_map_open(path, &map, &err), &err);
    assert_int_equal(map.size, 5);
    assert_memory_equal(map.data, "12345", 5);
    pz_map_close(&map);
    assert_null(map.data);
    pz_map_close(&map);

    assert_ok(pz_file_write(path, "", 0, &err), &err);
    assert_ok(pz_map_open(path, &map, &err), &err);
    assert_int_equal(map.size, 0);
    assert_null(map.data);
    pz_map_close(&map);
    pz_free(path);
}

static void test_read(void **state) {
    (void)state;
    pz_error err;
    char *path = support_path(dir, "file"), *data;
    size_t size, big = 100000;
    char *bytes = malloc(big);
    assert_non_null(bytes);
    for (size_t i = 0; i < big; i++) bytes[i] = (char)(i * 7);
    assert_ok(pz_file_write(path, bytes, big, &err), &err);
    assert_ok(pz_file_read(path, &data, &size, &err), &err);
    assert_int_equal(size, big);
    assert_memory_equal(data, bytes, big);
    assert_int_equal(data[big], 0);
    pz_free(data);
    free(bytes);
    assert_ok(pz_write_text(path, "text\n", &err), &err);
    assert_ok(pz_read_text(path, &data, &size, &err), &err);
    assert_string_equal(data, "text\n");
    pz_free(data);
    assert_ok(pz_file_write(path, NULL, 0, &err), &err);
    expect_content(path, "");
    pz_free(path);
}

/* What is no regular file can be read but not mapped. */
static void test_pipe(void **state) {
    (void)state;
    pz_error err;
    char *path = support_path(dir, "pipe"), *data;
    size_t size;
    assert_int_equal(mkfifo(path, 0600), 0);
    pz_map map;
    assert_fails(pz_map_open(path, &map, &err), PZ_E_IO, &err, path, "not a regular file");
    pid_t child = fork();
    if (child == 0) _exit(pz_file_write(path, "through a pipe", 14, NULL) != PZ_OK);
    assert_ok(pz_file_read(path, &data, &size, &err), &err);
    assert_string_equal(data, "through a pipe");
    pz_free(data);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode)); /* written in place, not replaced */
    pz_free(path);
}

/* A file without an end is refused, not read until memory is gone. */
static void test_endless(void **state) {
    (void)state;
    pz_error err;
    char *data;
    size_t size;
    assert_fails(pz_file_read("/dev/zero", &data, &size, &err), PZ_E_RANGE, &err, "/dev/zero", "128 MiB");
    assert_null(data);
    assert_int_equal(size, 0);
}

static void test_errors_name_path_and_reason(void **state) {
    (void)state;
    pz_error err;
    char *data, *missing = support_path(dir, "missing"), *below = support_path(missing, "file");
    size_t size;
    pz_map map;
    assert_fails(pz_map_open(missing, &map, &err), PZ_E_NOTFOUND, &err, missing, "No such file");
    assert_fails(pz_file_read(missing, &data, &size, &err), PZ_E_NOTFOUND, &err, missing, "No such file");
    assert_null(data);
    assert_fails(pz_map_open(dir, &map, &err), PZ_E_IO, &err, dir, "is a directory");
    assert_fails(pz_file_read(dir, &data, &size, &err), PZ_E_IO, &err, dir, "is a directory");
    assert_fails(pz_file_write(dir, "x", 1, &err), PZ_E_IO, &err, dir, "is a directory");
    assert_fails(pz_file_write(below, "x", 1, &err), PZ_E_NOTFOUND, &err, below, "No such file");
    assert_fails(pz_file_read("", &data, &size, &err), PZ_E_NOTFOUND, &err, "No such file");

    assert_ok(pz_file_write(missing, "x", 1, &err), &err);
    assert_fails(pz_map_open(below, &map, &err), PZ_E_IO, &err, below, "Not a directory");
    assert_fails(pz_file_write(below, "x", 1, &err), PZ_E_IO, &err, below, "Not a directory");
    char *loop = support_path(dir, "loop");
    assert_int_equal(symlink("loop", loop), 0);
    assert_fails(pz_map_open(loop, &map, &err), PZ_E_IO, &err, loop, "symbolic links");
    assert_true(pz_file_exists(missing));
    assert_false(pz_file_exists(below));
    pz_free(loop);
    pz_free(missing);
    pz_free(below);
}

/* Runs `body` in a child that has no special rights; its exit code is the number of the check that failed. */
static void unprivileged(int (*body)(const char *path), const char *path) {
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(99);
        _exit(body(path));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int check_denied(const char *path) {
    pz_error err = {0};
    pz_map map;
    char *data;
    size_t size;
    if (pz_map_open(path, &map, &err) != PZ_E_IO || !strstr(err.msg, "Permission denied")) return 1;
    if (pz_file_read(path, &data, &size, &err) != PZ_E_IO || !strstr(err.msg, path)) return 2;
    if (pz_file_write(path, "x", 1, &err) != PZ_E_IO || !strstr(err.msg, "Permission denied")) return 3;
    return 0;
}

static void test_permission(void **state) {
    (void)state;
    pz_error err;
    char *path = support_path(dir, "locked");
    assert_ok(pz_file_write(path, "x", 1, &err), &err);
    assert_int_equal(chmod(path, 0), 0);
    assert_int_equal(chmod(dir, 0555), 0);
    unprivileged(check_denied, path);
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(chmod(path, 0644), 0);
    expect_content(path, "x");
    pz_free(path);
}

/* ---- writing ---- */
static void test_write_is_atomic(void **state) {
    (void)state;
    pz_error err;
    char *path = support_path(dir, "file");
    assert_ok(pz_file_write(path, "old", 3, &err), &err);
    pz_outfile o;
    assert_ok(pz_outfile_open(&o, path, &err), &err);
    assert_ok(pz_outfile_write(&o, "new ", 4, &err), &err);
    assert_ok(pz_outfile_write(&o, NULL, 0, &err), &err);
    assert_int_equal(fflush(o.f), 0);
    expect_content(path, "old"); /* untouched while being written */
    assert_int_equal(support_count_entries(dir), 2);
    pz_outfile_abort(&o);
    expect_content(path, "old");
    assert_int_equal(support_count_entries(dir), 1);
    pz_outfile_abort(&o); /* harmless a second time */

    /* Two writers of one file do not meet; the last to commit wins. */
    pz_outfile p;
    assert_ok(pz_outfile_open(&o, path, &err), &err);
    assert_ok(pz_outfile_open(&p, path, &err), &err);
    assert_ok(pz_outfile_write(&o, "first", 5, &err), &err);
    assert_ok(pz_outfile_write(&p, "second", 6, &err), &err);
    assert_ok(pz_outfile_commit(&p, &err), &err);
    expect_content(path, "second");
    assert_ok(pz_outfile_commit(&o, &err), &err);
    expect_content(path, "first");
    assert_int_equal(support_count_entries(dir), 1);
    pz_free(path);
}

/* A full disk, played by a limit on the file size: the old file stays, nothing else does. */
static void test_write_failure_leaves_old_file(void **state) {
    (void)state;
    pz_error err;
    char *path = support_path(dir, "file");
    assert_ok(pz_file_write(path, "old", 3, &err), &err);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 10000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    static const size_t sizes[] = {10001, 100000}; /* fails in the flush of commit; in write already */
    for (size_t i = 0; i < 2; i++) {
        char *bytes = calloc(sizes[i], 1);
        assert_non_null(bytes);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        pz_status st = pz_file_write(path, bytes, sizes[i], &err);
        pz_outfile o;
        pz_status opened = pz_outfile_open(&o, path, NULL), written = PZ_OK;
        for (size_t k = 0; k < sizes[i] && opened == PZ_OK && written == PZ_OK; k += 10)
            written = pz_outfile_write(&o, bytes, 10, NULL);
        pz_status committed = opened == PZ_OK ? pz_outfile_commit(&o, NULL) : PZ_OK;
        setrlimit(RLIMIT_FSIZE, &old);
        free(bytes);
        assert_fails(st, PZ_E_IO, &err, path, "cannot write", "File too large");
        assert_int_equal(opened, PZ_OK);
        assert_int_equal(committed, PZ_E_IO); /* also after a write whose failure the caller did not heed */
        expect_content(path, "old");
        assert_int_equal(support_count_entries(dir), 1);
    }
    signal(SIGXFSZ, handler);
    pz_free(path);
}

/* The target becomes a directory while the file is being written. */
static void test_rename_failure(void **state) {
    (void)state;
    pz_error err;
    char *path = support_path(dir, "file");
    pz_outfile o;
    assert_ok(pz_outfile_open(&o, path, &err), &err);
    assert_ok(pz_outfile_write(&o, "x", 1, &err), &err);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_fails(pz_outfile_commit(&o, &err), PZ_E_IO, &err, path, "cannot replace");
    assert_int_equal(support_count_entries(dir), 1);
    pz_free(path);
}

static void test_modes_links_devices(void **state) {
    (void)state;
    pz_error err;
    char *path = support_path(dir, "file"), *link = support_path(dir, "link");
    struct stat st;
    mode_t mask = umask(027);
    assert_ok(pz_file_write(path, "a", 1, &err), &err);
    umask(mask);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640); /* a new file obeys the umask */
    assert_int_equal(chmod(path, 0604), 0);
    assert_ok(pz_file_write(path, "b", 1, &err), &err);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0604); /* a replaced one keeps its mode */

    assert_int_equal(symlink("file", link), 0);
    assert_ok(pz_file_write(link, "through", 7, &err), &err);
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    expect_content(path, "through");

    assert_ok(pz_file_write("/dev/null", "gone", 4, &err), &err);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_fails(pz_file_write("/dev/full", "x", 1, &err), PZ_E_IO, &err, "/dev/full", "No space left");
    pz_free(path);
    pz_free(link);
}

static void test_path_join(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}, {"a/b", "c.json", "a/b/c.json"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *p = pz_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(p, cases[i][2]);
        pz_free(p);
    }
}

static pz_status write_and_read(void *path) {
    pz_error err;
    PZ_TRY(pz_file_write(path, "some text", 9, &err));
    char *data;
    size_t size;
    PZ_TRY(pz_file_read(path, &data, &size, &err));
    bool same = pz_streq(data, "some text");
    pz_free(data);
    return same ? PZ_OK : PZ_E_INTERNAL;
}

static void test_no_memory(void **state) {
    (void)state;
    char *path = support_path(dir, "file");
    assert_true(support_alloc_sweep(write_and_read, path) >= 3);
    assert_int_equal(support_count_entries(dir), 1);
    pz_free(path);
    pz_alloc_fail_after(0);
    path = pz_path_join("a", "b");
    pz_alloc_fail_after(-1);
    assert_null(path);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_map),
        TEST(test_read),
        TEST(test_endless),
        TEST(test_pipe),
        TEST(test_errors_name_path_and_reason),
        TEST(test_permission),
        TEST(test_write_is_atomic),
        TEST(test_write_failure_leaves_old_file),
        TEST(test_rename_failure),
        TEST(test_modes_links_devices),
        TEST(test_path_join),
        TEST(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
