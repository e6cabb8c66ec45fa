/* SPDX-License-Identifier: Apache-2.0 */
/* What the passes noted, and its text. Lines that differ in one number (the layers of a model) become one line. */
#include "pass/pass.h"

static const char *const reasons[] = {
#define REASON_TEXT(id, text) text,
    PZ_REASON_TABLE(REASON_TEXT)
#undef REASON_TEXT
};
enum { REASON_COUNT = sizeof reasons / sizeof *reasons };

const char *pz_reason_text(pz_reason r) {
    return (unsigned)r < REASON_COUNT ? reasons[r] : "unknown reason";
}

void pz_pass_report_free(pz_pass_report *r) {
    if (!r) return;
    pz_vec_free(&r->passes);
    pz_vec_free(&r->donors);
    pz_vec_free(&r->consumers);
    pz_arena_free(&r->arena);
    *r = (pz_pass_report){0};
}

static pz_status copy(pz_pass_report *r, const char *s, const char **out, pz_error *err) {
    *out = pz_arena_strdup(&r->arena, s ? s : "");
    return *out ? PZ_OK : PZ_NOMEM(err);
}

pz_status pz_report_add_pass(pz_pass_report *r, const pz_pass_info *pass, int changed, pz_error *err) {
    pz_pass_note note = {.pass = pass->name, .changed = changed, .count = pass->counts};
    return pz_push(&r->passes, note, err);
}

pz_status pz_report_add_donor(pz_pass_report *r, const pz_donor_note *note, pz_error *err) {
    pz_donor_note n = *note;
    PZ_TRY(copy(r, note->func, &n.func, err));
    PZ_TRY(copy(r, note->op, &n.op, err));
    PZ_TRY(copy(r, note->weight, &n.weight, err));
    if (note->buffer) PZ_TRY(copy(r, note->buffer, &n.buffer, err));
    return pz_push(&r->donors, n, err);
}

pz_status pz_report_add_consumer(pz_pass_report *r, const pz_consumer_note *note, pz_error *err) {
    pz_consumer_note n = *note;
    PZ_TRY(copy(r, note->func, &n.func, err));
    PZ_TRY(copy(r, note->name, &n.name, err));
    PZ_TRY(copy(r, note->weight, &n.weight, err));
    PZ_TRY(copy(r, note->via, &n.via, err));
    PZ_TRY(copy(r, note->detail, &n.detail, err));
    return pz_push(&r->consumers, n, err);
}

/* ---- grouping: "layers.3.norm" is the pattern "layers." 3 ".norm" ---- */
typedef struct group {
    const char *name, *rest; /* name: the first one's */
    size_t head, tail;       /* name[0, head) and name + tail stand around the number; head == tail: no number */
    PZ_VEC(int) numbers;
} group;
typedef PZ_VEC(group) groups;

static void groups_free(groups *g) {
    for (int i = 0; i < g->n; i++) pz_vec_free(&g->at[i].numbers);
    pz_vec_free(g);
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Finds the first component of `name` that is a number; false if there is none. */
static bool find_number(const char *name, size_t *head, size_t *tail, int *number) {
    for (size_t i = 0; name[i]; i++) {
        if (!is_digit(name[i]) || (i > 0 && name[i - 1] != '.')) continue;
        size_t end = i;
        int n = 0;
        while (is_digit(name[end]) && end - i < 9) n = n * 10 + (name[end++] - '0');
        if (name[end] != '\0' && name[end] != '.' && name[end] != ':') continue;
        *head = i;
        *tail = end;
        *number = n;
        return true;
    }
    *head = *tail = strlen(name);
    return false;
}

/* Adds a line to the group it belongs to. name and rest must outlive the groups. */
static pz_status groups_add(groups *all, const char *name, const char *rest, pz_error *err) {
    size_t head, tail;
    int number = 0;
    bool numbered = find_number(name, &head, &tail, &number);
    group *hit = NULL;
    for (int i = all->n - 1; i >= 0 && !hit; i--) {
        group *g = &all->at[i];
        if (g->head == head && (g->head == g->tail) == !numbered && memcmp(g->name, name, head) == 0 &&
            pz_streq(g->name + g->tail, name + tail) && pz_streq(g->rest, rest))
            hit = g;
    }
    if (!hit) {
        group fresh = {.name = name, .rest = rest, .head = head, .tail = tail};
        PZ_TRY(pz_push(all, fresh, err));
        hit = &all->at[all->n - 1];
    }
    return pz_push(&hit->numbers, number, err);
}

/* "layers.0..60.norm", "layers.0,2..4.norm", or the name; a name without number that came again: "name (2 times)". */
static void group_text(const group *g, pz_str *b) {
    pz_str_addn(b, g->name, g->head);
    if (g->head == g->tail) {
        if (g->numbers.n > 1) pz_str_addf(b, " (%d times)", g->numbers.n);
        return;
    }
    for (int i = 0, j; i < g->numbers.n; i = j) {
        for (j = i + 1; j < g->numbers.n && g->numbers.at[j] - g->numbers.at[j - 1] <= 1; j++) {
        }
        int from = g->numbers.at[i], to = g->numbers.at[j - 1];
        pz_str_addf(b, "%s%d", i ? "," : "", from);
        if (to != from) pz_str_addf(b, "..%d", to);
    }
    pz_str_add(b, g->name + g->tail);
}

/* ---- text ---- */
static bool one_function(const pz_pass_report *r) {
    const char *func = NULL;
    for (int i = 0; i < r->donors.n; i++)
        if (!func)
            func = r->donors.at[i].func;
        else if (!pz_streq(func, r->donors.at[i].func))
            return false;
    for (int i = 0; i < r->consumers.n; i++)
        if (!func)
            func = r->consumers.at[i].func;
        else if (!pz_streq(func, r->consumers.at[i].func))
            return false;
    return true;
}

/* "name", or "@func name" where a report spans functions. */
static const char *place(pz_arena *a, bool one, const char *func, const char *name) {
    return one ? name : pz_arena_printf(a, "@%s %s", func, name);
}

static pz_status donors_text(const pz_pass_report *r, pz_arena *a, groups *lines, pz_str *b, pz_error *err) {
    bool one = one_function(r);
    int filled = 0;
    for (int d = 0; d < r->donors.n; d++) {
        const pz_donor_note *donor = &r->donors.at[d];
        pz_str rest = {0};
        int slices = 0;
        pz_str_addf(&rest, " (%s):", donor->op);
        for (int c = 0; c < r->consumers.n; c++)
            if (r->consumers.at[c].donor == d)
                pz_str_addf(&rest, "%s %s", slices++ ? " |" : "", r->consumers.at[c].name);
        if (!slices) pz_str_add(&rest, donor->buffer ? " a fill of its own" : " no fill");
        filled += donor->buffer != NULL;
        char *text = NULL;
        PZ_TRY(pz_str_take(&rest, &text, err));
        const char *kept = pz_arena_strdup(a, text), *name = place(a, one, donor->func, donor->weight);
        pz_free(text);
        if (!kept || !name) return PZ_NOMEM(err);
        PZ_TRY(groups_add(lines, name, kept, err));
    }
    pz_str_addf(b, "donors: %d, with a fill: %d\n", r->donors.n, filled);
    for (int i = 0; i < lines->n; i++) {
        pz_str_add(b, "  ");
        group_text(&lines->at[i], b);
        pz_str_addf(b, "%s\n", lines->at[i].rest);
    }
    return PZ_OK;
}

/* A consumer is called by its weight; by the slot where no weight is known. */
static const char *consumer_name(pz_arena *a, bool one, const pz_consumer_note *c) {
    const char *name = *c->weight ? c->weight : pz_arena_printf(a, "%s:%s", c->via, c->name);
    return name ? place(a, one, c->func, name) : NULL;
}

static pz_status consumers_text(const pz_pass_report *r, pz_arena *a, groups *lines, pz_str *b, pz_error *err) {
    bool one = one_function(r);
    int left = 0;
    for (int i = 0; i < r->consumers.n; i++) {
        const pz_consumer_note *c = &r->consumers.at[i];
        if (c->reason == PZ_REASON_NONE) continue;
        const char *name = consumer_name(a, one, c), *rest = pz_reason_text(c->reason);
        if (*c->detail) rest = pz_arena_printf(a, "%s (%s)", rest, c->detail);
        if (!name || !rest) return PZ_NOMEM(err);
        PZ_TRY(groups_add(lines, name, rest, err));
        left++;
    }
    if (left) pz_str_addf(b, "consumers not converted: %d\n", left);
    for (int i = 0; i < lines->n; i++) {
        bool first = true; /* of its reason */
        for (int j = 0; j < i; j++) first = first && !pz_streq(lines->at[j].rest, lines->at[i].rest);
        if (!first) continue;
        pz_str_addf(b, "  %s:", lines->at[i].rest);
        for (int j = i; j < lines->n; j++) {
            if (!pz_streq(lines->at[j].rest, lines->at[i].rest)) continue;
            pz_str_add(b, j == i ? " " : ", ");
            group_text(&lines->at[j], b);
        }
        pz_str_add(b, "\n");
    }
    return PZ_OK;
}

pz_status pz_pass_report_text(const pz_pass_report *r, char **out, pz_error *err) {
    pz_str b = {0};
    pz_arena a = {0};
    groups donors = {0}, consumers = {0};
    pz_status st = PZ_OK;
    *out = NULL;
    for (int i = 0; i < r->passes.n; i++)
        pz_str_addf(&b, "%s: %d %s\n", r->passes.at[i].pass, r->passes.at[i].changed, r->passes.at[i].count);
    if (r->donors.n || r->consumers.n) {
        st = donors_text(r, &a, &donors, &b, err);
        if (st == PZ_OK) st = consumers_text(r, &a, &consumers, &b, err);
    }
    if (st == PZ_OK) st = pz_str_take(&b, out, err);
    pz_str_free(&b);
    groups_free(&donors);
    groups_free(&consumers);
    pz_arena_free(&a);
    return st;
}
