/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/tuned.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/knobs.h"
#include "plan/donor.h"

enum { PZ_MAX_TILE = 256, PZ_MAX_SPLIT = 4096, PZ_MAX_BUCKET = 65536, PZ_WHERE = 200 };
enum { PZ_TUNED_RANKS = 1024, PZ_TUNED_HIDDEN = 1 << 20 };

/* ---- in memory ---- */
void pz_tuned_free(pz_tuned *t) {
    if (!t) return;
    pz_free(t->source);
    pz_free(t->kernels);
    pz_free(t->date);
    pz_free(t->command);
    pz_vec_free(&t->rows);
    pz_vec_free(&t->collectives);
    pz_free(t);
}

static void forget_constants(pz_tuned *t) {
#define PZ_FORGET(name, meaning) t->gate.name = NAN;
    PZ_GATE_CONSTANTS(PZ_FORGET)
#undef PZ_FORGET
}

static pz_status make(const char *device, int units, const char *source, const char *kernels, const char *date,
                      const char *command, pz_tuned **out, pz_error *err) {
    *out = NULL;
    pz_tuned *t = pz_calloc(1, sizeof *t);
    if (!t) return PZ_NOMEM(err);
    snprintf(t->device, sizeof t->device, "%s", device);
    t->units = units;
    t->source = pz_strdup(source);
    t->kernels = pz_strdup(kernels);
    t->date = pz_strdup(date);
    t->command = pz_strdup(command);
    forget_constants(t);
    if (!t->source || !t->kernels || !t->date || !t->command) {
        pz_tuned_free(t);
        return PZ_NOMEM(err);
    }
    *out = t;
    return PZ_OK;
}

pz_status pz_tuned_new(const pz_device *dev, const char *command, pz_tuned **out, pz_error *err) {
    char date[16];
    time_t now = time(NULL);
    struct tm tm;
    if (!gmtime_r(&now, &tm) || !strftime(date, sizeof date, "%Y-%m-%d", &tm)) date[0] = 0;
    bool text = command && pz_utf8_valid(command, strlen(command), NULL);
    return make(dev->name, dev->units, "this run", PZ_GEMM_KERNEL_VERSION, date, text ? command : "", out, err);
}

static int compare(const pz_gemm_shape *a, const pz_gemm_shape *b) {
    const int64_t ka[] = {a->n, a->k, a->weight, a->accum, a->m}, kb[] = {b->n, b->k, b->weight, b->accum, b->m};
    for (size_t i = 0; i < sizeof ka / sizeof *ka; i++)
        if (ka[i] != kb[i]) return ka[i] < kb[i] ? -1 : 1;
    return 0;
}

/* Index of the first row that is not before the shape. */
static int lower_bound(const pz_tuned *t, const pz_gemm_shape *shape) {
    int lo = 0, hi = t->rows.n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (compare(&t->rows.at[mid].shape, shape) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const pz_tuned_row *pz_tuned_find(const pz_tuned *t, const pz_gemm_shape *shape) {
    int at = lower_bound(t, shape);
    if (at == t->rows.n) return NULL;
    pz_gemm_shape same = t->rows.at[at].shape;
    same.m = shape->m;
    return compare(&same, shape) == 0 ? &t->rows.at[at] : NULL;
}

const pz_tuned_row *pz_tuned_exact(const pz_tuned *t, const pz_gemm_shape *shape) {
    const pz_tuned_row *row = pz_tuned_find(t, shape);
    return row && row->shape.m == shape->m ? row : NULL;
}

/* ---- what a row may say ---- */
/* What the kernels refuse on any device, by numbers alone. */
static pz_status check_geometry(const pz_gemm_choice *c, const char *where, pz_status code, pz_error *err) {
    const pz_gemm_config *g = &c->config;
    static const struct {
        int step, per_column, most; /* of tile_n; of it a column has so many; columns * warps at most */
        const char *sharers;
    } limits[] = {[PZ_GEMM_SKINNY] = {16, 16, 16, "warps"},
                  [PZ_GEMM_GROUP] = {64, 16, 16, "warps"},
                  [PZ_GEMM_WIDE] = {64, 64, 3, "warpgroups"}};
    if (g->family == PZ_GEMM_CUBLASLT) {
        if (c->strategy == PZ_ZERO_NONE) return PZ_OK;
        return pz_fail(err, code, "%s: \"strategy\" is %s, which cublaslt does not know", where,
                       pz_strategy_text(c->strategy));
    }
    if (g->family != PZ_GEMM_SKINNY && g->family != PZ_GEMM_GROUP && g->family != PZ_GEMM_WIDE)
        return pz_fail(err, code, "%s: \"family\" is %s, expected skinny, group, wide or cublaslt", where,
                       pz_gemm_family_text(g->family));
    int step = limits[g->family].step, most = limits[g->family].most;
    if (g->tile_n >= step && g->tile_n % step == 0 && g->warps >= 1 &&
        g->tile_n / limits[g->family].per_column * g->warps <= most && g->stages >= 0 && g->depth >= 0)
        return PZ_OK;
    return pz_fail(err, code,
                   "%s: \"tile_n\" %d with \"warps\" %d, \"stages\" %d and \"depth\" %d: expected a multiple of %d, "
                   "at least one and together at most %d %s a block, and numbers from 0",
                   where, g->tile_n, g->warps, g->stages, g->depth, step, most, limits[g->family].sharers);
}

static pz_status check_choice(const pz_gemm_choice *c, bool on, const char *where, pz_status code, pz_error *err) {
    bool fits = on ? c->strategy == PZ_ZERO_PREZERO || c->strategy == PZ_ZERO_NONE : c->strategy != PZ_ZERO_PREZERO;
    if (!fits)
        return pz_fail(err, code, "%s: \"strategy\" is %s, expected %s", where, pz_strategy_text(c->strategy),
                       on ? "prezero or none" : "anything but prezero");
    const pz_gemm_config *g = &c->config;
    if ((c->strategy == PZ_ZERO_NONE) != (g->split == 1))
        return pz_fail(err, code, "%s: \"split\" is %d with strategy %s: 1 with none, 2 or more with any other", where,
                       g->split, pz_strategy_text(c->strategy));
    if (!isfinite(c->us) || c->us <= 0 || !isfinite(c->ci) || c->ci < 0)
        return pz_fail(err, code, "%s: \"us\" is %g and \"ci\" %g, expected a time and half of its interval", where,
                       c->us, c->ci);
    return check_geometry(c, where, code, err);
}

static pz_status check_row(const pz_tuned_row *r, const char *where, pz_status code, pz_error *err) {
    char choice[PZ_WHERE + 8];
    snprintf(choice, sizeof choice, "%s, on", where);
    PZ_TRY(check_choice(&r->on, true, choice, code, err));
    snprintf(choice, sizeof choice, "%s, off", where);
    PZ_TRY(check_choice(&r->off, false, choice, code, err));
    if (isfinite(r->cublaslt_us) && r->cublaslt_us >= 0) return PZ_OK;
    return pz_fail(err, code, "%s: \"cublaslt_us\" is %g, expected a time, or 0 if it was not measured", where,
                   r->cublaslt_us);
}

pz_status pz_tuned_put(pz_tuned *t, const pz_tuned_row *row, pz_error *err) {
    const pz_gemm_shape *s = &row->shape;
    char where[PZ_WHERE];
    snprintf(where, sizeof where, "row n %lld, k %lld, m %d", (long long)s->n, (long long)s->k, s->m);
    if (s->n < 1 || s->k < 1 || s->m < 1 || s->m > PZ_MAX_BUCKET)
        return pz_fail(err, PZ_E_INVAL, "%s: expected numbers from 1, m up to %d", where, PZ_MAX_BUCKET);
    PZ_TRY(check_row(row, where, PZ_E_INVAL, err));
    int at = lower_bound(t, s);
    if (at < t->rows.n && compare(&t->rows.at[at].shape, s) == 0) {
        t->rows.at[at] = *row;
        return PZ_OK;
    }
    PZ_TRY(pz_push(&t->rows, *row, err));
    memmove(&t->rows.at[at + 1], &t->rows.at[at], (size_t)(t->rows.n - 1 - at) * sizeof *row);
    t->rows.at[at] = *row;
    return PZ_OK;
}

/* ---- collectives ---- */
/* Index of the first one that is not before. */
static int collective_at(const pz_tuned *t, int ranks, int64_t hidden) {
    int i = 0;
    while (i < t->collectives.n) {
        const pz_tuned_collective *c = &t->collectives.at[i];
        if (c->ranks > ranks || (c->ranks == ranks && c->hidden >= hidden)) break;
        i++;
    }
    return i;
}

const pz_tuned_collective *pz_tuned_collective_find(const pz_tuned *t, int ranks, int64_t hidden) {
    int at = collective_at(t, ranks, hidden);
    for (int i = at; i >= 0 && i >= at - 1; i--)
        if (i < t->collectives.n && t->collectives.at[i].ranks == ranks) return &t->collectives.at[i];
    return NULL;
}

const pz_tuned_collective *pz_tuned_collective_exact(const pz_tuned *t, int ranks, int hidden) {
    const pz_tuned_collective *c = pz_tuned_collective_find(t, ranks, hidden);
    return c && c->hidden == hidden ? c : NULL;
}

static bool is_time(double us) {
    return isfinite(us) && us >= 0;
}

static pz_status check_collective(const pz_tuned_collective *c, const char *where, pz_status code, pz_error *err) {
    const struct {
        const char *name;
        int value, lo, hi;
    } numbers[] = {{"ranks", c->ranks, 2, PZ_TUNED_RANKS},
                   {"hidden", c->hidden, 1, PZ_TUNED_HIDDEN},
                   {"one_shot", c->one_shot, 1, PZ_GROUP_ROWS}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value < numbers[i].lo || numbers[i].value > numbers[i].hi)
            return pz_fail(err, code, "%s: \"%s\" is %d, expected %d to %d", where, numbers[i].name, numbers[i].value,
                           numbers[i].lo, numbers[i].hi);
    if (is_time(c->ar_base) && is_time(c->ar_row) && is_time(c->rider)) return PZ_OK;
    return pz_fail(err, code, "%s: \"ar_base\" is %g, \"ar_row\" %g and \"rider\" %g, expected 0 or more", where,
                   c->ar_base, c->ar_row, c->rider);
}

pz_status pz_tuned_put_collective(pz_tuned *t, const pz_tuned_collective *row, pz_error *err) {
    PZ_TRY(check_collective(row, "a collective", PZ_E_INVAL, err));
    int at = collective_at(t, row->ranks, row->hidden);
    if (!pz_tuned_collective_exact(t, row->ranks, row->hidden)) {
        PZ_TRY(pz_push(&t->collectives, *row, err));
        memmove(&t->collectives.at[at + 1], &t->collectives.at[at], (size_t)(t->collectives.n - 1 - at) * sizeof *row);
    }
    t->collectives.at[at] = *row;
    return PZ_OK;
}

/* ---- reading ---- */
static pz_status check_keys(const json_t *obj, const char *const *known, int n, const char *where, pz_error *err) {
    if (!json_is_object(obj)) return pz_fail(err, PZ_E_FORMAT, "%s: is not an object", where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)obj, key, value) {
        bool found = false;
        for (int i = 0; i < n && !found; i++) found = strcmp(key, known[i]) == 0;
        if (!found) return pz_fail(err, PZ_E_FORMAT, "%s: \"%.40s\" is not a key of it", where, key);
    }
    return PZ_OK;
}
#define CHECK_KEYS(obj, known, where, err) \
    check_keys((obj), (known), (int)(sizeof(known) / sizeof *(known)), (where), (err))

static pz_status read_int(const json_t *obj, const char *key, int lo, int hi, int *out, const char *where,
                          pz_error *err) {
    int64_t v;
    PZ_TRY(pz_json_get_int(obj, key, true, lo, hi, &v, where, err));
    *out = (int)v;
    return PZ_OK;
}

static pz_status read_choice(const json_t *row, bool on, pz_gemm_choice *c, const char *row_name, pz_error *err) {
    static const char *const keys[] = {"strategy", "family", "tile_n", "split", "warps", "stages", "depth", "us", "ci"};
    const char *name = on ? "on" : "off", *word;
    const json_t *obj;
    char where[PZ_WHERE + 8];
    snprintf(where, sizeof where, "%s, %s", row_name, name);
    PZ_TRY(pz_json_get_node(row, name, JSON_OBJECT, &obj, row_name, err));
    if (!obj) return pz_fail(err, PZ_E_FORMAT, "%s: \"%s\" is missing", row_name, name);
    PZ_TRY(CHECK_KEYS(obj, keys, where, err));
    PZ_TRY(pz_json_get_str(obj, "strategy", true, &word, where, err));
    if (!pz_strategy_from_text(word, &c->strategy))
        return pz_fail(err, PZ_E_FORMAT, "%s: \"strategy\" is \"%.40s\", which there is not", where, word);
    PZ_TRY(pz_json_get_str(obj, "family", true, &word, where, err));
    if (!pz_gemm_family_from_text(word, &c->config.family))
        return pz_fail(err, PZ_E_FORMAT, "%s: \"family\" is \"%.40s\", which there is not", where, word);
    PZ_TRY(read_int(obj, "tile_n", 0, PZ_MAX_TILE, &c->config.tile_n, where, err));
    PZ_TRY(read_int(obj, "split", 1, PZ_MAX_SPLIT, &c->config.split, where, err));
    PZ_TRY(read_int(obj, "warps", 0, 16, &c->config.warps, where, err));
    PZ_TRY(read_int(obj, "stages", 0, 1024, &c->config.stages, where, err));
    PZ_TRY(read_int(obj, "depth", 0, 1024, &c->config.depth, where, err));
    PZ_TRY(pz_json_get_double(obj, "us", true, &c->us, where, err));
    return pz_json_get_double(obj, "ci", true, &c->ci, where, err);
}

static pz_status read_shape(const json_t *row, pz_gemm_shape *s, const char *where, pz_error *err) {
    const char *word;
    PZ_TRY(pz_json_get_int(row, "n", true, 1, INT32_MAX, &s->n, where, err));
    PZ_TRY(pz_json_get_int(row, "k", true, 1, INT32_MAX, &s->k, where, err));
    PZ_TRY(read_int(row, "m", 1, PZ_MAX_BUCKET, &s->m, where, err));
    PZ_TRY(pz_json_get_str(row, "weight", true, &word, where, err));
    s->weight = pz_dtype_from_text(word, strlen(word));
    if (s->weight != PZ_DT_BF16 && s->weight != PZ_DT_F32)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"weight\" is \"%.40s\", expected bf16 or f32", where, word);
    PZ_TRY(pz_json_get_str(row, "accum", true, &word, where, err));
    if (pz_accum_from_text(word, &s->accum)) return PZ_OK;
    return pz_fail(err, PZ_E_FORMAT, "%s: \"accum\" is \"%.40s\", expected fixed, f32 or bf16", where, word);
}

static pz_status read_row(pz_tuned *t, const json_t *row, int number, pz_error *err) {
    static const char *const keys[] = {"n", "k", "weight", "accum", "m", "cublaslt_us", "on", "off"};
    char where[PZ_WHERE];
    pz_tuned_row r = {0};
    snprintf(where, sizeof where, "%.100s: row %d", t->source, number);
    PZ_TRY(CHECK_KEYS(row, keys, where, err));
    PZ_TRY(read_shape(row, &r.shape, where, err));
    snprintf(where, sizeof where, "%.100s: row %d (n %lld, k %lld, m %d)", t->source, number, (long long)r.shape.n,
             (long long)r.shape.k, r.shape.m);
    PZ_TRY(pz_json_get_double(row, "cublaslt_us", false, &r.cublaslt_us, where, err));
    PZ_TRY(read_choice(row, true, &r.on, where, err));
    PZ_TRY(read_choice(row, false, &r.off, where, err));
    PZ_TRY(check_row(&r, where, PZ_E_FORMAT, err));
    if (pz_tuned_exact(t, &r.shape)) return pz_fail(err, PZ_E_FORMAT, "%s: there is another one of this key", where);
    return pz_tuned_put(t, &r, err);
}

static pz_status read_gate(pz_tuned *t, const json_t *root, pz_error *err) {
    static const char *const keys[] = {
#define PZ_GATE_KEY(name, meaning) #name,
        PZ_GATE_CONSTANTS(PZ_GATE_KEY)
#undef PZ_GATE_KEY
    };
    const json_t *obj;
    char where[PZ_WHERE];
    snprintf(where, sizeof where, "%.100s: gate", t->source);
    PZ_TRY(pz_json_get_node(root, "gate", JSON_OBJECT, &obj, t->source, err));
    if (!obj) return PZ_OK;
    PZ_TRY(CHECK_KEYS(obj, keys, where, err));
#define PZ_GATE_READ(name, meaning) PZ_TRY(pz_json_get_double(obj, #name, false, &t->gate.name, where, err));
    PZ_GATE_CONSTANTS(PZ_GATE_READ)
#undef PZ_GATE_READ
#define PZ_GATE_RANGE(name, meaning)             \
    if (isinf(t->gate.name) || t->gate.name < 0) \
        return pz_fail(err, PZ_E_FORMAT, "%s: \"" #name "\" is %g, expected 0 or more", where, t->gate.name);
    PZ_GATE_CONSTANTS(PZ_GATE_RANGE)
#undef PZ_GATE_RANGE
    if (t->gate.fill == 0) return pz_fail(err, PZ_E_FORMAT, "%s: \"fill\" is 0, expected a rate", where);
    return PZ_OK;
}

static pz_status read_collective(pz_tuned *t, const json_t *row, int number, pz_error *err) {
    static const char *const keys[] = {"kernels", "ranks", "hidden", "one_shot", "ar_base", "ar_row", "rider"};
    char where[PZ_WHERE];
    const char *kernels;
    pz_tuned_collective c;
    snprintf(where, sizeof where, "%.100s: collective %d", t->source, number);
    PZ_TRY(CHECK_KEYS(row, keys, where, err));
    PZ_TRY(pz_json_get_str(row, "kernels", true, &kernels, where, err));
    PZ_TRY(read_int(row, "ranks", INT_MIN, INT_MAX, &c.ranks, where, err));
    PZ_TRY(read_int(row, "hidden", INT_MIN, INT_MAX, &c.hidden, where, err));
    PZ_TRY(read_int(row, "one_shot", INT_MIN, INT_MAX, &c.one_shot, where, err));
    PZ_TRY(pz_json_get_double(row, "ar_base", true, &c.ar_base, where, err));
    PZ_TRY(pz_json_get_double(row, "ar_row", true, &c.ar_row, where, err));
    PZ_TRY(pz_json_get_double(row, "rider", true, &c.rider, where, err));
    PZ_TRY(check_collective(&c, where, PZ_E_FORMAT, err));
    if (!pz_streq(kernels, PZ_REDUCE_KERNEL_VERSION)) {
        t->stale_collectives++;
        return PZ_OK;
    }
    if (pz_tuned_collective_exact(t, c.ranks, c.hidden))
        return pz_fail(err, PZ_E_FORMAT, "%s: there is another one of %d ranks and hidden %d", where, c.ranks,
                       c.hidden);
    return pz_tuned_put_collective(t, &c, err);
}

static pz_status read_collectives(pz_tuned *t, const json_t *root, pz_error *err) {
    const json_t *list;
    PZ_TRY(pz_json_get_node(root, "collectives", JSON_ARRAY, &list, t->source, err));
    for (size_t i = 0; list && i < json_array_size(list); i++)
        PZ_TRY(read_collective(t, json_array_get(list, i), (int)i + 1, err));
    return PZ_OK;
}

static pz_status read_table(pz_tuned *t, const json_t *root, const pz_device *dev, pz_error *err) {
    const json_t *rows;
    PZ_TRY(read_gate(t, root, err));
    PZ_TRY(read_collectives(t, root, err));
    PZ_TRY(pz_json_get_node(root, "rows", JSON_ARRAY, &rows, t->source, err));
    if (!rows) return pz_fail(err, PZ_E_FORMAT, "%s: \"rows\" is missing", t->source);
    for (size_t i = 0; i < json_array_size(rows); i++) PZ_TRY(read_row(t, json_array_get(rows, i), (int)i + 1, err));
    bool fresh =
        pz_streq(t->device, dev->name) && t->units == dev->units && pz_streq(t->kernels, PZ_GEMM_KERNEL_VERSION);
    if (fresh) return PZ_OK;
    t->stale = t->rows.n;
    t->rows.n = 0;
    t->stale_collectives += t->collectives.n;
    t->collectives.n = 0;
    forget_constants(t);
    return PZ_OK;
}

static pz_status read_header(const json_t *root, const char *source, pz_tuned **out, pz_error *err) {
    static const char *const keys[] = {"device", "units", "kernels", "date", "command", "gate", "collectives", "rows"};
    const char *device, *kernels, *date, *command;
    int units;
    PZ_TRY(CHECK_KEYS(root, keys, source, err));
    PZ_TRY(pz_json_get_str(root, "device", true, &device, source, err));
    PZ_TRY(read_int(root, "units", 1, 1 << 20, &units, source, err));
    PZ_TRY(pz_json_get_str(root, "kernels", true, &kernels, source, err));
    PZ_TRY(pz_json_get_str(root, "date", true, &date, source, err));
    PZ_TRY(pz_json_get_str(root, "command", true, &command, source, err));
    if (!*device || strlen(device) >= PZ_DEVICE_NAME)
        return pz_fail(err, PZ_E_FORMAT, "%s: \"device\" is \"%.40s\", expected 1 to %d bytes", source, device,
                       PZ_DEVICE_NAME - 1);
    return make(device, units, source, kernels, date, command, out, err);
}

pz_status pz_tuned_parse(const char *text, size_t size, const char *source, const pz_device *dev, pz_tuned **out,
                         pz_error *err) {
    *out = NULL;
    json_t *root;
    PZ_TRY(pz_json_parse(text, size, source, &root, err));
    pz_tuned *t = NULL;
    pz_status st = read_header(root, source, &t, err);
    if (st == PZ_OK) st = read_table(t, root, dev, err);
    json_decref(root);
    if (st == PZ_OK)
        *out = t;
    else
        pz_tuned_free(t);
    return st;
}

pz_status pz_tuned_load(const char *path, const pz_device *dev, pz_tuned **out, pz_error *err) {
    *out = NULL;
    char *text;
    size_t size;
    PZ_TRY(pz_file_read(path, &text, &size, err));
    pz_status st = pz_tuned_parse(text, size, path, dev, out, err);
    pz_free(text);
    return st;
}

pz_status pz_tuned_open(const pz_device *dev, pz_tuned **out, pz_error *err) {
    *out = NULL;
    const char *named;
    PZ_TRY(pz_knob_text(PZ_KNOB_TUNED, &named, err));
    if (pz_streq(named, "none")) return PZ_OK;
    if (*named) return pz_tuned_load(named, dev, out, err);
    for (const pz_builtin_table *b = pz_builtin_tables; b->name; b++)
        if (pz_streq(b->name, dev->name))
            return pz_tuned_parse((const char *)b->text, b->size, "built-in table", dev, out, err);
    return PZ_OK;
}

/* ---- writing ---- */
static void add_number(pz_str *b, double v) {
    char text[48];
    json_t *value = json_real(v);
    size_t n = value ? json_dumpb(value, text, sizeof text, JSON_ENCODE_ANY | JSON_REAL_PRECISION(7)) : 0;
    json_decref(value);
    if (n == 0 || n > sizeof text)
        b->failed = true;
    else
        pz_str_addn(b, text, n);
}

static void add_text(pz_str *b, const char *s) {
    json_t *value = json_string(s);
    char *text = NULL;
    if (!value || pz_json_dump(value, &text, NULL) != PZ_OK) b->failed = true;
    if (text) pz_str_add(b, text);
    pz_free(text);
    json_decref(value);
}

static void add_choice(pz_str *b, const char *name, const pz_gemm_choice *c) {
    const pz_gemm_config *g = &c->config;
    pz_str_addf(b,
                "\"%s\": {\"strategy\": \"%s\", \"family\": \"%s\", \"tile_n\": %d, \"split\": %d, \"warps\": %d, "
                "\"stages\": %d, \"depth\": %d, \"us\": ",
                name, pz_strategy_text(c->strategy), pz_gemm_family_text(g->family), g->tile_n, g->split, g->warps,
                g->stages, g->depth);
    add_number(b, c->us);
    pz_str_add(b, ", \"ci\": ");
    add_number(b, c->ci);
    pz_str_add(b, "}");
}

static void add_row(pz_str *b, const pz_tuned_row *r) {
    const pz_gemm_shape *s = &r->shape;
    pz_str_addf(b, "    {\"n\": %lld, \"k\": %lld, \"weight\": \"%s\", \"accum\": \"%s\", \"m\": %d, ", (long long)s->n,
                (long long)s->k, pz_dtype_text(s->weight), pz_accum_text(s->accum), s->m);
    pz_str_add(b, "\"cublaslt_us\": ");
    add_number(b, r->cublaslt_us);
    pz_str_add(b, ", ");
    add_choice(b, "on", &r->on);
    pz_str_add(b, ", ");
    add_choice(b, "off", &r->off);
    pz_str_add(b, "}");
}

static void add_gate(pz_str *b, const pz_gate_constants *g) {
    const struct {
        const char *name;
        double value;
    } constants[] = {
#define PZ_GATE_PAIR(name, meaning) {#name, g->name},
        PZ_GATE_CONSTANTS(PZ_GATE_PAIR)
#undef PZ_GATE_PAIR
    };
    int n = 0;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (isnan(constants[i].value)) continue;
        pz_str_addf(b, "%s\"%s\": ", n++ ? ", " : "", constants[i].name);
        add_number(b, constants[i].value);
    }
}

static void add_collectives(pz_str *b, const pz_tuned *t) {
    if (!t->collectives.n) return;
    pz_str_add(b, ",\n  \"collectives\": [");
    for (int i = 0; i < t->collectives.n; i++) {
        const pz_tuned_collective *c = &t->collectives.at[i];
        pz_str_addf(b, "%s\n    {\"kernels\": \"%s\", \"ranks\": %d, \"hidden\": %d, \"one_shot\": %d, \"ar_base\": ",
                    i ? "," : "", PZ_REDUCE_KERNEL_VERSION, c->ranks, c->hidden, c->one_shot);
        add_number(b, c->ar_base);
        pz_str_add(b, ", \"ar_row\": ");
        add_number(b, c->ar_row);
        pz_str_add(b, ", \"rider\": ");
        add_number(b, c->rider);
        pz_str_add(b, "}");
    }
    pz_str_add(b, "\n  ]");
}

pz_status pz_tuned_text(const pz_tuned *t, char **out, pz_error *err) {
    pz_str b = {0};
    pz_str_add(&b, "{\n  \"device\": ");
    add_text(&b, t->device);
    pz_str_addf(&b, ",\n  \"units\": %d,\n  \"kernels\": ", t->units);
    add_text(&b, t->kernels);
    pz_str_add(&b, ",\n  \"date\": ");
    add_text(&b, t->date);
    pz_str_add(&b, ",\n  \"command\": ");
    add_text(&b, t->command);
    pz_str_add(&b, ",\n  \"gate\": {");
    add_gate(&b, &t->gate);
    pz_str_add(&b, "}");
    add_collectives(&b, t);
    pz_str_add(&b, ",\n  \"rows\": [");
    for (int i = 0; i < t->rows.n; i++) {
        pz_str_add(&b, i ? ",\n" : "\n");
        add_row(&b, &t->rows.at[i]);
    }
    pz_str_add(&b, "\n  ]\n}\n");
    return pz_str_take(&b, out, err);
}

pz_status pz_tuned_save(const pz_tuned *t, const char *path, pz_error *err) {
    char *text;
    PZ_TRY(pz_tuned_text(t, &text, err));
    pz_status st = pz_file_write(path, text, strlen(text), err);
    pz_free(text);
    return st;
}

/* ---- use ---- */
void pz_device_tune(pz_device *dev, const pz_tuned *t) {
    dev->tuned = NULL;
    if (!t) return;
    dev->tuned = t;
#define PZ_GATE_TAKE(name, meaning) \
    if (!isnan(t->gate.name)) dev->gate.name = t->gate.name;
    PZ_GATE_CONSTANTS(PZ_GATE_TAKE)
#undef PZ_GATE_TAKE
}
