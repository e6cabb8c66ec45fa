/* SPDX-License-Identifier: Apache-2.0 */
/* Messages, files and settings that the commands share. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void complain(const char *fmt, va_list ap) {
    fputs("prezero: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

int cli_usage(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    complain(fmt, ap);
    va_end(ap);
    return CLI_USAGE;
}

int cli_fail(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    complain(fmt, ap);
    va_end(ap);
    return CLI_FAILED;
}

int cli_error(const pz_error *err) {
    return cli_fail("%s", err->msg);
}

void cli_report_device(const pz_engine_info *info) {
    if (info->device_total_bytes == 0) return;
    const double mib = 1024.0 * 1024.0;
    fprintf(stderr, "%s: %.0f of %.0f MiB in use: weights %.0f, latent cache %.0f, activations %.0f\n", info->device,
            (double)info->device_used_bytes / mib, (double)info->device_total_bytes / mib,
            (double)info->weight_bytes / mib, (double)info->cache_bytes / mib, (double)info->arena_bytes / mib);
}

double cli_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- files ---- */
bool cli_is_stdout(const char *path) {
    return path && strcmp(path, "-") == 0;
}

int cli_check_output(const char *path) {
    if (!path || cli_is_stdout(path)) return CLI_OK;
    struct stat st;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode)) return cli_fail("%s: is a directory, expected a file to write", path);
        return access(path, W_OK) == 0 ? CLI_OK : cli_fail("%s: cannot write: %s", path, strerror(errno));
    }
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!dir) return cli_fail("out of memory");
    int rc =
        access(dir, W_OK | X_OK) == 0 ? CLI_OK : cli_fail("%s: cannot write into %s: %s", path, dir, strerror(errno));
    free(dir);
    return rc;
}

int cli_check_model(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return cli_fail("%s: %s, expected a model directory", path, strerror(errno));
    return S_ISDIR(st.st_mode) ? CLI_OK : cli_fail("%s: is a file, expected a model directory", path);
}

int cli_write(const char *path, const char *text) {
    if (cli_is_stdout(path)) {
        fputs(text, stdout);
        return CLI_OK;
    }
    pz_error err;
    return pz_write_text(path, text, &err) == PZ_OK ? CLI_OK : cli_error(&err);
}

int cli_write_json(const char *path, json_t *value) {
    char *text = value ? json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(value);
    size_t n = text ? strlen(text) : 0;
    char *line = text ? realloc(text, n + 2) : NULL;
    if (!line) {
        free(text);
        return cli_fail("out of memory");
    }
    memcpy(line + n, "\n", 2);
    int rc = cli_write(path, line);
    free(line);
    return rc;
}

/* pz_read_text reads pipes too. */
int cli_read(const char *path, char **text, size_t *size) {
    pz_error err;
    return pz_read_text(cli_is_stdout(path) ? "/dev/stdin" : path, text, size, &err) == PZ_OK ? CLI_OK
                                                                                              : cli_error(&err);
}

/* ---- graphs and engines ---- */
static int parse_graph(const char *path, pz_graph **out) {
    char *text;
    size_t size;
    pz_error err;
    int rc = cli_read(path, &text, &size);
    if (rc != CLI_OK) return rc;
    if (pz_graph_parse(text, size, cli_is_stdout(path) ? "standard input" : path, out, &err) != PZ_OK)
        rc = cli_error(&err);
    pz_free(text);
    return rc;
}

int cli_load_graph(const cli_args *a, pz_graph **out) {
    *out = NULL;
    struct stat st;
    if (cli_is_stdout(a->what)) return parse_graph(a->what, out);
    if (stat(a->what, &st) != 0)
        return cli_fail("%s: %s, expected a model directory or a file of graph text", a->what, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return parse_graph(a->what, out);
    pz_error err;
    pz_model_graph_options o = {.size = sizeof o,
                                .tp = (int)a->tp,
                                .accum = (pz_accum)a->accum,
                                .act = (pz_act)a->dtype,
                                .inlined = a->inlined,
                                .experts = (pz_expert_split)a->experts};
    return pz_graph_from_config(a->what, &o, out, &err) == PZ_OK ? CLI_OK : cli_error(&err);
}

pz_engine_options cli_engine_options(const cli_args *a) {
    return (pz_engine_options){.size = sizeof(pz_engine_options),
                               .prezero = (int)a->prezero,
                               .accum = (pz_accum)a->accum,
                               .act = (pz_act)a->dtype,
                               .threads = (int)a->threads,
                               .context = (int)a->context,
                               .strategy = a->strategy,
                               .gate = a->gate,
                               .device = a->device,
                               .tp = (int)a->tp,
                               .experts = (pz_expert_split)a->experts};
}
