/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* "path: cannot <what>: <reason of errno>" */
static pz_status fail_errno(pz_error *err, const char *path, const char *what) {
    pz_status code = errno == ENOENT ? PZ_E_NOTFOUND : errno == ENOMEM ? PZ_E_NOMEM : PZ_E_IO;
    return pz_fail(err, code, "%s: cannot %s: %m", path, what);
}

/* Opens for reading anything but a directory; *size is 0 for what is no regular file. */
static pz_status open_read(const char *path, int flags, int *fd, struct stat *st, pz_error *err) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (*fd < 0) return fail_errno(err, path, "open");
    pz_status code = PZ_OK;
    if (fstat(*fd, st) != 0)
        code = fail_errno(err, path, "examine");
    else if (S_ISDIR(st->st_mode))
        code = pz_fail(err, PZ_E_IO, "%s: is a directory, expected a file", path);
    if (code != PZ_OK) close(*fd);
    return code;
}

pz_status pz_map_open(const char *path, pz_map *out, pz_error *err) {
    *out = (pz_map){0};
    int fd;
    struct stat st;
    /* O_NONBLOCK: a FIFO is refused below instead of waiting for its writer. */
    PZ_TRY(open_read(path, O_NONBLOCK, &fd, &st, err));
    pz_status code = PZ_OK;
    if (!S_ISREG(st.st_mode)) {
        code = pz_fail(err, PZ_E_IO, "%s: is not a regular file, which mapping needs", path);
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            code = fail_errno(err, path, "map");
        else
            *out = (pz_map){.data = p, .size = (size_t)st.st_size};
    }
    close(fd);
    return code;
}

void pz_map_close(pz_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (pz_map){0};
}

/* ---- writing ---- */
/* Creates a file with a fresh name beside o->path, with the permissions of the file it will replace or those the
 * umask gives. */
static int open_temporary(pz_outfile *o, const struct stat *old) {
    static atomic_uint serial;
    size_t room = strlen(o->path) + 48;
    o->tmp = pz_calloc(room, 1);
    if (!o->tmp) {
        errno = ENOMEM;
        return -1;
    }
    int fd;
    do {
        snprintf(o->tmp, room, "%s.tmp-%ld-%u", o->path, (long)getpid(), atomic_fetch_add(&serial, 1));
        fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST);
    if (fd >= 0 && old && fchmod(fd, old->st_mode & 0777) != 0) {
        int saved = errno;
        unlink(o->tmp);
        close(fd);
        errno = saved;
        fd = -1;
    }
    return fd;
}

static void outfile_release(pz_outfile *o) {
    pz_free(o->tmp);
    pz_free(o->path);
    *o = (pz_outfile){0};
}

pz_status pz_outfile_open(pz_outfile *o, const char *path, pz_error *err) {
    *o = (pz_outfile){0};
    struct stat old = {0}, link;
    bool exists = stat(path, &old) == 0;
    if (exists && S_ISDIR(old.st_mode)) return pz_fail(err, PZ_E_IO, "%s: is a directory, expected a file", path);
    bool via_link = exists && lstat(path, &link) == 0 && S_ISLNK(link.st_mode);
    /* What a link points to is replaced, not the link. Pipes and devices are written in place: a rename would replace
     * /dev/null by a file. */
    o->path = via_link && S_ISREG(old.st_mode) ? realpath(path, NULL) : pz_strdup(path);
    if (!o->path) return PZ_NOMEM(err);
    int fd =
        exists && !S_ISREG(old.st_mode) ? open(path, O_WRONLY | O_CLOEXEC) : open_temporary(o, exists ? &old : NULL);
    if (fd >= 0) {
        o->f = fdopen(fd, "wb");
        if (o->f) return PZ_OK;
        if (o->tmp) unlink(o->tmp);
        close(fd);
    }
    pz_status code = fail_errno(err, path, "create");
    outfile_release(o);
    return code;
}

pz_status pz_outfile_write(pz_outfile *o, const void *data, size_t n, pz_error *err) {
    if (n && fwrite(data, 1, n, o->f) != n) return fail_errno(err, o->path, "write");
    return PZ_OK;
}

pz_status pz_outfile_commit(pz_outfile *o, pz_error *err) {
    pz_status code = PZ_OK;
    if (ferror(o->f) || fflush(o->f) != 0 || (o->tmp && fsync(fileno(o->f)) != 0))
        code = fail_errno(err, o->path, "write");
    if (fclose(o->f) != 0 && code == PZ_OK) code = fail_errno(err, o->path, "write");
    if (code == PZ_OK && o->tmp && rename(o->tmp, o->path) != 0) code = fail_errno(err, o->path, "replace");
    if (code != PZ_OK && o->tmp) unlink(o->tmp);
    outfile_release(o);
    return code;
}

void pz_outfile_abort(pz_outfile *o) {
    if (o->f) fclose(o->f);
    if (o->tmp) unlink(o->tmp);
    outfile_release(o);
}

pz_status pz_file_write(const char *path, const void *data, size_t n, pz_error *err) {
    pz_outfile o;
    PZ_TRY(pz_outfile_open(&o, path, err));
    pz_status code = pz_outfile_write(&o, data, n, err);
    if (code == PZ_OK) return pz_outfile_commit(&o, err);
    pz_outfile_abort(&o);
    return code;
}

/* ---- reading ---- */
/* No text that is read whole (configurations, tokenizers, graphs, questions) comes near: a device that never ends does.
 */
enum { MAX_TEXT = 128 << 20 };

pz_status pz_file_read(const char *path, char **data, size_t *size, pz_error *err) {
    *data = NULL;
    *size = 0;
    int fd;
    struct stat st;
    PZ_TRY(open_read(path, 0, &fd, &st, err));
    pz_str text = {0};
    char part[16384];
    ssize_t got = 0;
    while (!text.failed && text.n <= MAX_TEXT &&
           ((got = read(fd, part, sizeof part)) > 0 || (got < 0 && errno == EINTR)))
        if (got > 0) pz_str_addn(&text, part, (size_t)got);
    pz_status code = !text.failed && got < 0 ? fail_errno(err, path, "read") : PZ_OK;
    if (text.n > MAX_TEXT)
        code = pz_fail(err, PZ_E_RANGE, "%s: is longer than %d MiB, the most that is read", path, MAX_TEXT >> 20);
    close(fd);
    if (code == PZ_OK) {
        *size = text.n;
        code = pz_str_take(&text, data, err);
    }
    if (code != PZ_OK) {
        *size = 0;
        pz_str_free(&text);
    }
    return code;
}

bool pz_file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

char *pz_path_join(const char *dir, const char *name) {
    size_t n = strlen(dir);
    const char *sep = n && dir[n - 1] != '/' ? "/" : "";
    size_t room = n + strlen(name) + 2;
    char *path = pz_calloc(room, 1);
    if (path) snprintf(path, room, "%s%s%s", dir, sep, name);
    return path;
}
