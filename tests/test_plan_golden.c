/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that must not change unless somebody means it: tests/plan/NAME.txt. A commit that only moves code leaves them
 * as they are. `test_plan_golden --bless` writes what comes out now. */
#include "support_plan.h"

#include <stdio.h>

#include "base/file.h"
#include "pass/pass.h"

#define PLAN_DIR PZ_SOURCE_DIR "/tests/plan/"

typedef struct golden {
    const char *name;  /* of the expected text */
    const char *graph; /* a graph text in tests/plan, or NULL: */
    const char *config;
    const char *device;
    int units, m;
    bool prefill;
} golden;
static const golden cases[] = {
    {"kimi-tiny-m1.txt", NULL, PZ_SOURCE_DIR "/models/kimi-tiny", "cpu", 2, 1, false},
    {"kimi-tiny-m4.txt", NULL, PZ_SOURCE_DIR "/models/kimi-tiny", "cpu", 2, 4, false},
    {"kimi-tiny-prefill.txt", NULL, PZ_SOURCE_DIR "/models/kimi-tiny", "cpu", 2, 128, true},
    {"kimi-k2-tp4-m16.txt", "kimi-k2-tp4.pz", NULL, "h200", 0, 16, false},
};
static bool bless;

static pz_graph *read_graph(const golden *c) {
    pz_graph *g;
    pz_error err;
    if (c->config) {
        pz_model_graph_options o = {.size = sizeof o};
        assert_ok(pz_graph_from_config(c->config, &o, &g, &err), &err);
        return g;
    }
    char *text, *path = support_path(PLAN_DIR, c->graph);
    size_t size;
    assert_ok(pz_file_read(path, &text, &size, &err), &err);
    assert_ok(pz_graph_parse(text, size, c->graph, &g, &err), &err);
    pz_free(text);
    pz_free(path);
    return g;
}

static void show_difference(const golden *c, const char *want, const char *got) {
    int line = 1;
    size_t at = 0;
    for (size_t i = 0; want[i] && want[i] == got[i]; i++)
        if (want[i] == '\n') line++, at = i + 1;
    fail_msg("tests/plan/%s:%d: expected\n%.*s\ngot\n%.*s\nIf that is meant: test_plan_golden --bless", c->name, line,
             (int)strcspn(want + at, "\n"), want + at, (int)strcspn(got + at, "\n"), got + at);
}

static void test_golden(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const golden *c = &cases[i];
        pz_error err;
        char *got, *want, *path = support_path(PLAN_DIR, c->name);
        size_t size;
        pz_graph *g = read_graph(c);
        assert_ok(pz_passes_run(g, NULL, NULL, &err), &err);
        pz_plan_options o = support_plan_options(c->device, c->units, c->m);
        o.prefill = c->prefill;
        pz_plan *p = support_plan(g, &o);
        assert_ok(pz_plan_text(p, &got, &err), &err);
        if (bless) assert_ok(pz_file_write(path, got, strlen(got), &err), &err);
        assert_ok(pz_file_read(path, &want, &size, &err), &err);
        if (!pz_streq(want, got)) show_difference(c, want, got);
        pz_free(want);
        pz_free(got);
        pz_free(path);
        pz_plan_free(p);
        pz_graph_free(g);
    }
}

int main(int argc, char **argv) {
    bless = argc > 1 && pz_streq(argv[1], "--bless");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
