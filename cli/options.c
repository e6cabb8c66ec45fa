/* SPDX-License-Identifier: Apache-2.0 */
/* Options by table: parsing, checking, help. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the nearest name ---- */
/* Edit distance with transpositions (restricted Damerau-Levenshtein); names longer than the table are not close. */
static int distance(const char *a, const char *b) {
    enum { MAX = 40 };
    size_t n = strlen(a), m = strlen(b);
    if (n >= MAX || m >= MAX) return MAX;
    int d[MAX][MAX];
    for (size_t i = 0; i <= n; i++)
        for (size_t j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = (int)(i + j);
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

const char *cli_suggest(const char *word, const char *const *names, int n, char *buf, size_t size) {
    int best = -1, best_distance = 0;
    for (int i = 0; i < n; i++) {
        bool prefix = strlen(word) >= 3 && strncmp(names[i], word, strlen(word)) == 0;
        int d = prefix ? 1 : distance(word, names[i]);
        if (best < 0 || d < best_distance) {
            best = i;
            best_distance = d;
        }
    }
    buf[0] = 0;
    if (best >= 0 && best_distance <= 1 + (int)strlen(word) / 3) snprintf(buf, size, "; did you mean %s?", names[best]);
    return buf;
}

/* ---- values ---- */
static bool read_int(const char *s, size_t n, long long *out) {
    char digits[24];
    if (n == 0 || n >= sizeof digits) return false;
    memcpy(digits, s, n);
    digits[n] = 0;
    const char *first = digits + (digits[0] == '-');
    if (!*first || strspn(first, "0123456789") != strlen(first)) return false;
    errno = 0;
    *out = strtoll(digits, NULL, 10);
    return errno == 0;
}

const char *cli_read_ints(const char *text, long long lo, long long hi, cli_ints *out, char *buf, size_t size) {
    static const char space[] = " \t\r\n";
    free(out->at);
    *out = (cli_ints){0};
    int cap = 0;
    const char *p = text + strspn(text, space);
    while (*p) {
        size_t n = strcspn(p, ", \t\r\n");
        long long v;
        if (!read_int(p, n, &v) || v < lo || v > hi) {
            snprintf(buf, size, "\"%.*s\" where an integer from %lld to %lld is expected", n > 40 ? 40 : (int)n, p, lo,
                     hi);
            return buf;
        }
        if (out->n == cap) {
            cap = cap ? cap * 2 : 64;
            int *grown = cap <= INT32_MAX / 8 ? realloc(out->at, (size_t)cap * sizeof *grown) : NULL;
            if (!grown) return "out of memory";
            out->at = grown;
        }
        out->at[out->n++] = (int)v;
        p += n;
        p += strspn(p, space);
        if (*p != ',') continue;
        p += 1;
        p += strspn(p, space);
        if (!*p) return "nothing behind the last comma";
    }
    return out->n ? NULL : "no number in it";
}

/* Position of a word among "a|b|c", else -1. */
static int word_index(const char *words, const char *value) {
    size_t want = strlen(value);
    for (int index = 0;; index++) {
        size_t n = strcspn(words, "|");
        if (n == want && memcmp(words, value, n) == 0) return index;
        if (!words[n]) return -1;
        words += n + 1;
    }
}

static const char *dashes(const cli_option *o) {
    return o->name[1] ? "--" : "-";
}

static int bad_value(const cli_option *o, const char *value, const char *expected) {
    return cli_usage("%s%s is \"%.80s\", expected %s", dashes(o), o->name, value, expected);
}

static int set_numeric(const cli_option *o, const char *value, void *field) {
    char expected[80], *end;
    double lo = strtod(o->allowed, NULL), hi = strtod(strstr(o->allowed, "..") + 2, NULL);
    snprintf(expected, sizeof expected, "%s from %.*s to %s", o->type == CLI_INT ? "an integer" : "a number",
             (int)strcspn(o->allowed, "."), o->allowed, strstr(o->allowed, "..") + 2);
    if (o->type == CLI_INT) {
        long long v;
        if (!read_int(value, strlen(value), &v) || (double)v < lo || (double)v > hi)
            return bad_value(o, value, expected);
        *(int64_t *)field = v;
        return CLI_OK;
    }
    double v = strtod(value, &end);
    bool plain = *value && strspn(value, "+-.0123456789eE") == strlen(value);
    if (!plain || *end || !isfinite(v) || v < lo || v > hi) return bad_value(o, value, expected);
    *(double *)field = v;
    return CLI_OK;
}

static int set_word(const cli_option *o, const char *value, void *field) {
    int index = word_index(o->allowed, value);
    if (index < 0) return bad_value(o, value, o->allowed);
    if (o->type == CLI_CHOICE)
        *(int64_t *)field = index;
    else
        *(const char **)field = value;
    return CLI_OK;
}

static const char switch_words[] = "0|off|false|1|on|true"; /* those for off come first */

static int set_switch(const cli_option *o, const char *value, void *field) {
    int index = value ? word_index(switch_words, value) : 3;
    if (index < 0) return bad_value(o, value, switch_words);
    *(int64_t *)field = index >= 3;
    return CLI_OK;
}

static int set_value(const cli_option *o, const char *value, cli_args *a) {
    void *field = (char *)a + o->field;
    switch (o->type) {
    case CLI_FLAG: *(bool *)field = true; return CLI_OK;
    case CLI_SWITCH: return set_switch(o, value, field);
    case CLI_INT:
    case CLI_NUMBER: return set_numeric(o, value, field);
    case CLI_CHOICE:
    case CLI_WORD: return set_word(o, value, field);
    case CLI_TEXT:
        if (!*value && strcmp(o->arg, "FILE") == 0) return bad_value(o, value, "the name of a file");
        *(const char **)field = value;
        return CLI_OK;
    case CLI_INTS: {
        char buf[120], *end;
        long long lo = strtoll(o->allowed, &end, 10), hi = strtoll(end + 2, NULL, 10);
        const char *wrong = cli_read_ints(value, lo, hi, field, buf, sizeof buf);
        return wrong ? cli_usage("%s%s: %s", dashes(o), o->name, wrong) : CLI_OK;
    }
    }
    return CLI_OK;
}

/* ---- the arguments ---- */
static const cli_option help_option = CLI_OPTION("help", NULL, CLI_FLAG, NULL, NULL, help, "print this");

static const cli_option *find_option(const cli_command *c, const char *name, size_t n) {
    if ((n == 4 && memcmp(name, "help", 4) == 0) || (n == 1 && *name == 'h')) return &help_option;
    for (int i = 0; i < c->n_options; i++)
        if (strlen(c->options[i].name) == n && memcmp(c->options[i].name, name, n) == 0) return &c->options[i];
    return NULL;
}

static int unknown_option(const cli_command *c, const char *arg, size_t n) {
    const char *names[64];
    char word[64], buf[120], full[64][40];
    int count = 0;
    snprintf(word, sizeof word, "%.*s", n > 60 ? 60 : (int)n, arg);
    for (; count < c->n_options && count < 64; count++) {
        snprintf(full[count], sizeof *full, "%s%s", dashes(&c->options[count]), c->options[count].name);
        names[count] = full[count];
    }
    cli_suggest(word, names, count, buf, sizeof buf);
    return cli_usage("unknown option %s for %s%s%s", word, c->name, buf, *buf ? "" : "; see --help");
}

/* One option at argv[*i], and its value; moves *i to the last argument used. */
static int parse_option(const cli_command *c, int argc, char **argv, int *i, cli_args *a) {
    const char *arg = argv[*i], *equals = strchr(arg, '=');
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg), dash = arg[1] == '-' ? 2 : 1;
    const cli_option *o = find_option(c, arg + dash, n - dash);
    if (!o || (dash == 1) != (n - dash == 1)) return unknown_option(c, arg, n);
    const char *value = equals ? equals + 1 : NULL;
    if (o->type == CLI_FLAG && value) return cli_usage("%.*s takes no value", (int)n, arg);
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    if (o->type == CLI_SWITCH && !value && next && word_index(switch_words, next) >= 0) {
        value = next;
        (*i)++;
    } else if (o->type != CLI_FLAG && o->type != CLI_SWITCH && !value) {
        if (!next) return cli_usage("%s needs a value, %s", arg, o->arg);
        if (next[0] == '-' && next[1] == '-')
            return cli_usage("%s needs a value, %s; write %s=%.40s if that is meant", arg, o->arg, arg, next);
        value = next;
        (*i)++;
    }
    return set_value(o, value, a);
}

int cli_parse(const cli_command *c, int argc, char **argv, cli_args *a) {
    *a = (cli_args){.prezero = -1};
    for (int i = 0; i < c->n_options; i++)
        if (c->options[i].def && set_value(&c->options[i], c->options[i].def, a) != CLI_OK) return CLI_USAGE;
    bool options = true;
    for (int i = 0; i < argc; i++) {
        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (options && argv[i][0] == '-' && argv[i][1]) {
            int rc = parse_option(c, argc, argv, &i, a);
            if (rc != CLI_OK) return rc;
        } else if (!c->positional || a->what) {
            return cli_usage("unexpected argument \"%.80s\" for %s; see prezero %s --help", argv[i], c->name, c->name);
        } else {
            a->what = argv[i];
        }
    }
    if (a->help || a->what || !c->positional || c->positional[0] == '[') return CLI_OK;
    return cli_usage("%s needs %s; see prezero %s --help", c->name, c->positional, c->name);
}

void cli_args_free(cli_args *a) {
    free(a->ids.at);
    free(a->batches.at);
}

/* ---- help ---- */
enum { HELP_COLUMN = 24, HELP_WIDTH = 100 };

/* Words of `text`, in lines that begin at HELP_COLUMN, where the first one is already. */
static void print_wrapped(const char *text) {
    for (int at = HELP_COLUMN; *text; text += *text == ' ') {
        int n = (int)strcspn(text, " ");
        if (at > HELP_COLUMN && at + 1 + n > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
        }
        at += printf("%s%.*s", at > HELP_COLUMN ? " " : "", n, text);
        text += n;
    }
    printf("\n");
}

static void print_option(const cli_option *o) {
    int at = printf("  %s%s", dashes(o), o->name);
    if (o->arg) at += o->type == CLI_SWITCH ? printf("[=%s]", o->arg) : printf(" %s", o->arg);
    if (at >= HELP_COLUMN - 1) at = printf("\n") - 1;
    printf("%*s", HELP_COLUMN - at, "");
    char text[512];
    bool words = o->type == CLI_CHOICE || o->type == CLI_WORD;
    snprintf(text, sizeof text, "%s%s%s%s%s%s", words ? o->allowed : "", words ? ": " : "", o->help,
             o->def ? " (default " : "", o->def ? o->def : "", o->def ? ")" : "");
    print_wrapped(text);
}

void cli_print_help(const cli_command *c) {
    printf("usage: prezero %s%s%s%s\n\n%s\n", c->name, c->positional ? " " : "", c->positional ? c->positional : "",
           c->n_options ? " [options]" : "", c->summary);
    if (c->details) printf("\n%s", c->details);
    printf("\noptions:\n");
    for (int i = 0; i < c->n_options; i++) print_option(&c->options[i]);
    print_option(&help_option);
}
