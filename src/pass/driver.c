/* SPDX-License-Identifier: Apache-2.0 */
/* The driver: takes a comma list of passes, runs each on a clone, verifies, commits. */
#include "base/file.h"
#include "base/json.h"
#include "base/knobs.h"
#include "pass/pass.h"

enum {
#define PASS(id, text, suffix, pipeline, counts, doc) PASS_##id,
#include "pass/passes.def"
#undef PASS
    PASS_COUNT
};

static const pz_pass_info passes[PASS_COUNT] = {
#define PASS(id, text, suffix, pipeline, counts, doc) {text, doc, counts, pz_pass_##suffix},
#include "pass/passes.def"
#undef PASS
};

typedef PZ_VEC(int) pass_list; /* indices into the table */

int pz_pass_count(void) {
    return PASS_COUNT;
}

const pz_pass_info *pz_pass_at(int i) {
    return i >= 0 && i < PASS_COUNT ? &passes[i] : NULL;
}

const char *pz_pipeline(bool prezero) {
#define WITH_PREZERO_ALWAYS(text) "," text
#define WITH_PREZERO_PREZERO(text) "," text
#define WITHOUT_PREZERO_ALWAYS(text) "," text
#define WITHOUT_PREZERO_PREZERO(text)
#define PASS(id, text, suffix, pipeline, counts, doc) WITH_PREZERO_##pipeline(text)
    static const char on[] =
#include "pass/passes.def"
        ;
#undef PASS
#define PASS(id, text, suffix, pipeline, counts, doc) WITHOUT_PREZERO_##pipeline(text)
    static const char off[] =
#include "pass/passes.def"
        ;
#undef PASS
    return (prezero ? on : off) + 1; /* without the first comma */
}

static int find_pass(const char *name, size_t n) {
    for (int i = 0; i < PASS_COUNT; i++)
        if (strlen(passes[i].name) == n && memcmp(passes[i].name, name, n) == 0) return i;
    return -1;
}

/* E_INVAL with the names there are. `source` says where the wrong list came from. */
static pz_status fail_with_names(pz_error *err, const char *source, const char *what, size_t n) {
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; i < PASS_COUNT && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", passes[i].name);
    if (n > 64) n = 64;
    return pz_fail(err, PZ_E_INVAL, "%s: no pass '%.*s'; there are %s", source, (int)n, what, names);
}

/* Splits a comma list into passes; spaces around a name are allowed, an empty list is no pass at all. */
static pz_status parse_list(const char *text, const char *source, pass_list *out, pz_error *err) {
    if (text[strspn(text, " ")] == '\0') return PZ_OK;
    for (const char *p = text;; p++) {
        p += strspn(p, " ");
        size_t len = strcspn(p, ","), n = len;
        while (n > 0 && p[n - 1] == ' ') n--;
        int pass = find_pass(p, n);
        if (pass < 0) return fail_with_names(err, source, p, n);
        PZ_TRY(pz_push(out, pass, err));
        p += len;
        if (*p == '\0') return PZ_OK;
    }
}

/* Which passes the knob wants dumped; *dir is where to. */
static pz_status dump_wishes(bool wanted[PASS_COUNT], const char **dir, pz_error *err) {
    const char *text;
    PZ_TRY(pz_knob_text(PZ_KNOB_DUMP, &text, err));
    PZ_TRY(pz_knob_text(PZ_KNOB_DUMP_DIR, dir, err));
    if (pz_streq(text, "all")) {
        for (int i = 0; i < PASS_COUNT; i++) wanted[i] = true;
        return PZ_OK;
    }
    pass_list list = {0};
    pz_status st = parse_list(text, pz_knob_info(PZ_KNOB_DUMP)->env, &list, err);
    for (int i = 0; i < list.n; i++) wanted[list.at[i]] = true;
    pz_vec_free(&list);
    return st;
}

/* Writes dir/NN-pass.WHEN.pz, NN being the pass's place in the list, from 1. */
static pz_status dump(const pz_graph *g, const char *dir, int place, const char *pass, const char *when,
                      pz_error *err) {
    char *text = NULL, *path = NULL, *name = NULL;
    pz_str b = {0};
    pz_str_addf(&b, "%02d-%s.%s.pz", place, pass, when);
    pz_status st = pz_str_take(&b, &name, err);
    if (st == PZ_OK && !(path = pz_path_join(dir, name))) st = PZ_NOMEM(err);
    if (st == PZ_OK) st = pz_graph_print(g, &text, err);
    if (st == PZ_OK) st = pz_file_write(path, text, strlen(text), err);
    pz_free(text);
    pz_free(path);
    pz_free(name);
    return st;
}

/* Pass number `place` of the list on a clone of g; g takes the result only if all went well. */
static pz_status run_one(pz_graph *g, const pz_pass_info *pass, int place, const char *dump_dir, pz_pass_report *report,
                         pz_error *err) {
    pz_graph *work = NULL;
    pz_status st;
    int changed = 0;
    PZ_TRY_GOTO(st, pz_graph_clone(g, &work, err), fail);
    if (dump_dir) PZ_TRY_GOTO(st, dump(work, dump_dir, place, pass->name, "before", err), fail);
    PZ_TRY_GOTO(st, pass->run(work, report, &changed, err), fail);
    /* before the verifier, so that a broken graph can be looked at */
    if (dump_dir) PZ_TRY_GOTO(st, dump(work, dump_dir, place, pass->name, "after", err), fail);
    PZ_TRY_GOTO(st, pz_graph_verify(work, err), fail);
    PZ_TRY_GOTO(st, pz_report_add_pass(report, pass, changed, err), fail);
    pz_graph_replace(g, work);
    return PZ_OK;
fail:
    pz_graph_free(work);
    return st;
}

/* "pass prezero (after fuse_allreduce_rmsnorm,dce)" in front of the message. */
static pz_status fail_in_pass(pz_error *err, pz_status st, const pass_list *list, int at) {
    char before[256] = "";
    size_t used = 0;
    for (int i = 0; i < at && used < sizeof before; i++)
        used += (size_t)snprintf(before + used, sizeof before - used, "%s%s", i ? "," : "", passes[list->at[i]].name);
    return pz_fail_context(err, st, "pass %s (%s%s)", passes[list->at[at]].name, at ? "after " : "the first", before);
}

static pz_status run_list(pz_graph *g, const pass_list *list, pz_pass_report *report, pz_error *err) {
    bool wanted[PASS_COUNT] = {0};
    const char *dir = NULL;
    PZ_TRY(dump_wishes(wanted, &dir, err));
    /* a graph that came in broken is not the first pass's fault */
    pz_status st = pz_graph_verify(g, err);
    if (st != PZ_OK) return pz_fail_context(err, st, "before the passes");
    for (int i = 0; i < list->n; i++) {
        int p = list->at[i];
        st = run_one(g, &passes[p], i + 1, wanted[p] ? dir : NULL, report, err);
        if (st != PZ_OK) return fail_in_pass(err, st, list, i);
    }
    return PZ_OK;
}

pz_status pz_passes_run(pz_graph *g, const char *text, pz_pass_report *report, pz_error *err) {
    if (!g) return pz_fail(err, PZ_E_INVAL, "passes: no graph given");
    pz_pass_report unread = {0};
    pass_list list = {0};
    pz_status st = parse_list(text ? text : pz_pipeline(true), "pass list", &list, err);
    if (st == PZ_OK) st = run_list(g, &list, report ? report : &unread, err);
    pz_vec_free(&list);
    pz_pass_report_free(&unread);
    return st;
}

pz_status pz_graph_run_passes(pz_graph *graph, const char *list, char **report, pz_error *err) {
    pz_pass_report notes = {0};
    if (report) *report = NULL;
    pz_status st = pz_passes_run(graph, list, &notes, err);
    if (st == PZ_OK && report) st = pz_pass_report_text(&notes, report, err);
    pz_pass_report_free(&notes);
    return st;
}

static pz_status describe_json(char **out, pz_error *err) {
    json_t *rows = json_array();
    bool ok = rows != NULL;
    for (int i = 0; ok && i < PASS_COUNT; i++)
        ok = json_array_append_new(rows, json_pack("{s:s, s:s}", "name", passes[i].name, "doc", passes[i].doc)) == 0;
    pz_status st = ok ? pz_json_dump(rows, out, err) : PZ_NOMEM(err);
    json_decref(rows);
    return st;
}

pz_status pz_describe_passes(int json, char **out, pz_error *err) {
    PZ_NEED(out, "a place for the result", err);
    *out = NULL;
    if (json) return describe_json(out, err);
    pz_str b = {0};
    for (int i = 0; i < PASS_COUNT; i++) pz_str_addf(&b, "%-24s %s\n", passes[i].name, passes[i].doc);
    return pz_str_take(&b, out, err);
}
