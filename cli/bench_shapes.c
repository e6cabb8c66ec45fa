/* SPDX-License-Identifier: Apache-2.0 */
/* What is measured: shapes by name or by number, and the reading of lists. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_N = 1 << 20, MAX_K = 16384, MAX_TP = 64 };

typedef enum divided { NEITHER, N, K } divided;
static const struct {
    const char *model, *name;
    int n, k;
    divided by;
} table[] = {
#define SHAPE(model, name, n, k, by) {model, name, n, k, by},
#include "shapes.def"
#undef SHAPE
};
enum { N_TABLE = sizeof table / sizeof *table };

const char *const bench_accums[BENCH_ACCUMS] = {"fixed", "f32", "bf16"};
const char *const bench_strategies[BENCH_STRATEGIES] = {
#define NAME(id, text, adds) text,
    PZ_STRATEGY_TABLE(NAME)
#undef NAME
};

static int unknown_set(const char *text) {
    char sets[200] = "";
    for (int i = 0; i < N_TABLE; i++)
        if (i == 0 || strcmp(table[i].model, table[i - 1].model) != 0) {
            size_t n = strlen(sets);
            snprintf(sets + n, sizeof sets - n, "%s%s-tpN", n ? ", " : "", table[i].model);
        }
    return cli_usage("--shapes is \"%.80s\", expected %s (N ranks), or N,K;N,K;...", text, sets);
}

static int check_shape(const bench_shape *s) {
    if (s->n < 1 || s->n > MAX_N || s->k < 16 || s->k > MAX_K || s->k % 16)
        return cli_usage("--shapes: %s is %d x %d; N must be 1 to %d, K a multiple of 16 up to %d", s->name, s->n, s->k,
                         MAX_N, MAX_K);
    return CLI_OK;
}

static int read_set(const char *text, bench_shape *out, int *n) {
    const char *dash = strstr(text, "-tp");
    char *end;
    long tp = dash ? strtol(dash + 3, &end, 10) : 0;
    if (!dash || dash[3] < '1' || dash[3] > '9' || *end || tp > MAX_TP) return unknown_set(text);
    size_t length = (size_t)(dash - text);
    *n = 0;
    for (int i = 0; i < N_TABLE; i++) {
        if (strlen(table[i].model) != length || memcmp(table[i].model, text, length) != 0) continue;
        bench_shape *s = &out[(*n)++];
        int parts = (int)tp, of_n = table[i].by == N ? parts : 1, of_k = table[i].by == K ? parts : 1;
        snprintf(s->name, sizeof s->name, "%s", table[i].name);
        s->n = table[i].n / of_n;
        s->k = table[i].k / of_k;
        if (table[i].n % of_n || table[i].k % of_k)
            return cli_usage("--shapes: %d ranks do not divide %s of %.*s", parts, s->name, (int)length, text);
        if (check_shape(s) != CLI_OK) return CLI_USAGE;
    }
    return *n ? CLI_OK : unknown_set(text);
}

int bench_read_shapes(const char *text, bench_shape out[BENCH_MAX_SHAPES], int *n) {
    *n = 0;
    if (*text < '0' || *text > '9') return read_set(text, out, n);
    for (const char *p = text; *p;) {
        int used = 0;
        if (*n == BENCH_MAX_SHAPES) return cli_usage("--shapes: more than %d shapes", BENCH_MAX_SHAPES);
        bench_shape *s = &out[*n];
        if (sscanf(p, "%7d,%7d%n", &s->n, &s->k, &used) != 2 || (p[used] != ';' && p[used])) return unknown_set(text);
        snprintf(s->name, sizeof s->name, "%dx%d", s->n, s->k);
        if (check_shape(s) != CLI_OK) return CLI_USAGE;
        (*n)++;
        p += used;
        p += *p == ';';
    }
    return CLI_OK;
}

int bench_read_names(const char *option, const char *text, const char *const *names, int n, int *out, int *count) {
    char known[160] = "";
    for (int i = 0; i < n; i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", names[i]);
    }
    *count = 0;
    for (const char *p = text;; p++) {
        size_t length = strcspn(p, ",");
        int found = -1;
        for (int i = 0; i < n; i++)
            if (strlen(names[i]) == length && memcmp(names[i], p, length) == 0) found = i;
        for (int i = 0; i < *count; i++)
            if (out[i] == found) return cli_usage("%s is \"%.80s\": %s twice", option, text, names[found]);
        if (found < 0) return cli_usage("%s is \"%.80s\", expected a list of %s", option, text, known);
        out[(*count)++] = found;
        p += length;
        if (!*p) return CLI_OK;
    }
}
