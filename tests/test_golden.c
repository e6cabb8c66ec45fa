/* SPDX-License-Identifier: Apache-2.0 */
/* Golden tests of the passes: tests/pass/<pass>/<case>.pz.
 *
 *   # RUN: passes=fuse_allreduce_rmsnorm,prezero [expect-error]
 *   ... the graph ...
 *   # ---
 *   ... the graph after the passes, then the report, each line after "# "; or "# E_CODE: message"
 *
 * --bless rewrites what follows "# ---" with what comes out now. Files whose name starts with _ are slow: they run only
 * with --slow. Other arguments select cases by a part of their path. */
#include "support.h"

#include <dirent.h>
#include <stdio.h>

#include "base/file.h"
#include "prezero/graph.h"

typedef struct golden_case {
    char *path;
    const char *name; /* within path */
    bool bless;
} golden_case;

typedef struct golden_text {
    char *text;         /* the file */
    char passes[256];   /* of line 1 */
    bool expect_error;  /* of line 1 */
    size_t input;       /* bytes before the separator line */
    const char *output; /* after it */
} golden_text;

static const char separator[] = "# ---\n";

/* ---- reading a case ---- */
static void read_header(golden_text *t, const char *path) {
    static const char run[] = "# RUN: passes=";
    if (strncmp(t->text, run, sizeof run - 1) != 0) fail_msg("%s:1: expected \"%sLIST\"", path, run);
    const char *list = t->text + sizeof run - 1;
    size_t n = strcspn(list, " \n");
    assert_true(n < sizeof t->passes);
    memcpy(t->passes, list, n);
    size_t rest = strcspn(list + n, "\n");
    const char *mode = list + n + strspn(list + n, " ");
    size_t mode_n = rest - (size_t)(mode - list - n);
    t->expect_error = mode_n == strlen("expect-error") && strncmp(mode, "expect-error", mode_n) == 0;
    if (mode_n && !t->expect_error) fail_msg("%s:1: unknown mode '%.*s'", path, (int)mode_n, mode);
}

static void read_case(const golden_case *c, golden_text *t) {
    pz_error err = {0};
    size_t size;
    *t = (golden_text){0};
    if (pz_file_read(c->path, &t->text, &size, &err) != PZ_OK) fail_msg("%s", err.msg);
    read_header(t, c->path);
    char *at = strstr(t->text, separator);
    if (!at && !c->bless) fail_msg("%s: no line \"# ---\"; run with --bless to make it", c->path);
    t->input = at ? (size_t)(at - t->text) : size;
    t->output = at ? at + strlen(separator) : "";
}

/* ---- running it ---- */
static void add_comment(pz_str *b, const char *text) {
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        pz_str_addf(b, "# %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

static char *print(const pz_graph *g) {
    pz_error err = {0};
    char *text = NULL;
    if (pz_graph_print(g, &text, &err) != PZ_OK) fail_msg("%s", err.msg);
    return text;
}

/* What must hold whatever the case: the text comes back, and the passes have nothing left to do. */
static void check_stable(const golden_case *c, const golden_text *t, const char *text) {
    pz_error err = {0};
    pz_graph *again = NULL;
    if (pz_graph_parse(text, strlen(text), c->name, &again, &err) != PZ_OK) fail_msg("output: %s", err.msg);
    char *printed = print(again);
    assert_string_equal(printed, text);
    pz_free(printed);
    if (pz_graph_run_passes(again, t->passes, NULL, &err) != PZ_OK) fail_msg("second run: %s", err.msg);
    printed = print(again);
    assert_string_equal(printed, text);
    pz_free(printed);
    pz_graph_free(again);
}

static char *run_case(const golden_case *c, const golden_text *t) {
    pz_error err = {0};
    pz_graph *g = NULL;
    char *report = NULL, *out = NULL;
    pz_str b = {0};
    pz_status st = pz_graph_parse(t->text, t->input, c->name, &g, &err);
    if (st == PZ_OK) st = pz_graph_run_passes(g, t->passes, &report, &err);
    if ((st != PZ_OK) != t->expect_error) fail_msg("%s: %s", c->path, st == PZ_OK ? "no error" : err.msg);
    if (st == PZ_OK) {
        char *text = print(g);
        check_stable(c, t, text);
        pz_str_add(&b, text);
        add_comment(&b, report);
        pz_free(text);
    } else {
        assert_int_equal(err.code, st);
        pz_str_addf(&b, "# %s: %s\n", pz_status_name(st), err.msg);
    }
    assert_int_equal(pz_str_take(&b, &out, &err), PZ_OK);
    pz_free(report);
    pz_graph_free(g);
    return out;
}

static void bless(const golden_case *c, const golden_text *t, const char *got) {
    pz_error err = {0};
    pz_str b = {0};
    char *text = NULL;
    pz_str_addn(&b, t->text, t->input);
    pz_str_add(&b, separator);
    pz_str_add(&b, got);
    assert_int_equal(pz_str_take(&b, &text, &err), PZ_OK);
    if (pz_file_write(c->path, text, strlen(text), &err) != PZ_OK) fail_msg("%s", err.msg);
    pz_free(text);
}

static void show_difference(const char *want, const char *got) {
    int line = 1;
    size_t i = 0, start = 0;
    for (; want[i] && want[i] == got[i]; i++)
        if (want[i] == '\n') {
            line++;
            start = i + 1;
        }
    print_error("line %d of the output differs\n  expected: %.*s\n  got:      %.*s\n", line,
                (int)strcspn(want + start, "\n"), want + start, (int)strcspn(got + start, "\n"), got + start);
}

static void test_case(void **state) {
    const golden_case *c = *state;
    golden_text t;
    read_case(c, &t);
    char *got = run_case(c, &t);
    bool same = strcmp(got, t.output) == 0;
    if (c->bless && !same) bless(c, &t, got);
    if (!c->bless && !same) {
        show_difference(t.output, got);
        fail_msg("%s: not the expected output; if it is right, run with --bless", c->path);
    }
    pz_free(got);
    pz_free(t.text);
}

/* ---- finding the cases ---- */
typedef struct options {
    bool bless, slow;
    const char *const *filters;
    int n_filters;
} options;

typedef struct suite {
    PZ_VEC(golden_case) cases;
} suite;

static bool wanted(const options *o, const char *path) {
    for (int i = 0; i < o->n_filters; i++)
        if (strstr(path, o->filters[i])) return true;
    return o->n_filters == 0;
}

static int visible(const struct dirent *e) {
    return e->d_name[0] != '.';
}

static void add_case(suite *s, const options *o, const char *dir, const char *file) {
    size_t n = strlen(file);
    if (n < 4 || strcmp(file + n - 3, ".pz") != 0 || (*file == '_' && !o->slow)) return;
    golden_case c = {.path = pz_path_join(dir, file), .bless = o->bless};
    if (!c.path || !wanted(o, c.path)) {
        pz_free(c.path);
        return;
    }
    c.name = c.path + strlen(c.path) - n;
    if (pz_push(&s->cases, c, NULL) != PZ_OK) abort();
}

static void find_cases(suite *s, const options *o, const char *root) {
    struct dirent **dirs, **files;
    int n = scandir(root, &dirs, visible, alphasort);
    for (int i = 0; i < n; i++) {
        char *dir = pz_path_join(root, dirs[i]->d_name);
        int m = dir ? scandir(dir, &files, visible, alphasort) : -1;
        for (int j = 0; j < m; j++) {
            add_case(s, o, dir, files[j]->d_name);
            free(files[j]);
        }
        if (m >= 0) free(files);
        pz_free(dir);
        free(dirs[i]);
    }
    if (n >= 0) free(dirs);
}

int main(int argc, char **argv) {
    options o = {0};
    suite s = {0};
    int first = 1;
    for (; first < argc && argv[first][0] == '-'; first++) {
        if (strcmp(argv[first], "--bless") == 0)
            o.bless = true;
        else if (strcmp(argv[first], "--slow") == 0)
            o.slow = true;
        else
            return fprintf(stderr, "usage: %s [--bless] [--slow] [PART OF A PATH]...\n", argv[0]), 2;
    }
    o.filters = (const char *const *)argv + first;
    o.n_filters = argc - first;
    find_cases(&s, &o, PZ_SOURCE_DIR "/tests/pass");
    struct CMUnitTest *tests = pz_calloc((size_t)s.cases.n + 1, sizeof *tests);
    for (int i = 0; tests && i < s.cases.n; i++)
        tests[i] = (struct CMUnitTest){.name = s.cases.at[i].path + strlen(PZ_SOURCE_DIR "/tests/pass/"),
                                       .test_func = test_case,
                                       .initial_state = &s.cases.at[i]};
    if (s.cases.n == 0) fprintf(stderr, "no cases under %s\n", PZ_SOURCE_DIR "/tests/pass");
    int failed = tests && s.cases.n ? _cmocka_run_group_tests("golden", tests, (size_t)s.cases.n, NULL, NULL) : 1;
    for (int i = 0; i < s.cases.n; i++) pz_free(s.cases.at[i].path);
    pz_vec_free(&s.cases);
    pz_free(tests);
    return failed;
}
