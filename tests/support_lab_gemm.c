/* SPDX-License-Identifier: Apache-2.0 */
/* GEMM against float64. */
#include <limits.h>
#include <stdio.h>

#include "support_lab.h"

#include "plan/gemm_unit.h"

enum { ROUNDS = 2 };

static const char *const accum_text[] = {"fixed", "f32", "bf16"};
#define STRATEGY_TEXT(id, text, adds) text,
static const char *const strategy_text[] = {PZ_STRATEGY_TABLE(STRATEGY_TEXT)};
#define FAMILY_TEXT(id, text) text,
static const char *const family_text[] = {PZ_GEMM_FAMILY_TABLE(FAMILY_TEXT)};
enum {
    N_ACCUMS = sizeof accum_text / sizeof *accum_text,
    N_STRATEGIES = sizeof strategy_text / sizeof *strategy_text,
    N_FAMILIES = sizeof family_text / sizeof *family_text
};

void gemm_variant_text(const gemm_variant *v, char text[160]) {
    const pz_gemm_config *c = &v->config;
    snprintf(text, 160, "%s %s %s tile_n %d split %d warps %d stages %d depth %d", accum_text[v->accum],
             strategy_text[v->strategy], family_text[c->family], c->tile_n, c->split, c->warps, c->stages, c->depth);
}

int64_t gemm_unit(const gemm_spec *s) {
    return (int64_t)PZ_GEMM_CHUNK * pz_gemm_unit(s->n, s->k);
}

static bool adds(pz_strategy s) {
    return s == PZ_ZERO_PREZERO || s == PZ_ZERO_SELF || s == PZ_ZERO_MEMSET;
}

/* ---- a problem ---- */
static uint16_t *operand(lab *l, int64_t rows, int64_t cols, int64_t ld, elem_data data, int exponent, uint64_t seed) {
    /* No room after the last element: what is read beyond it is found by a checker of memory. */
    size_t bytes = (size_t)((rows - 1) * ld + cols) * 2;
    uint16_t *a = l->alloc(l, bytes);
    lab_poison(l, a, bytes, lab_patterns[0], NULL);
    lab_fill(l, (elem_fill){a, cols, ld, PZ_ELEM_BF16, data, seed, exponent}, rows * cols, NULL);
    return a;
}

void gemm_problem_open(gemm_problem *p, lab *l, const gemm_spec *s) {
    *p = (gemm_problem){.l = l, .spec = *s, .ldx = s->k + s->pad_x, .ldw = s->k + s->pad_w, .ldy = s->n + s->pad_y};
    size_t elements = (size_t)s->m * (size_t)s->n;
    p->x = operand(l, s->m, s->k, p->ldx, s->data_x, s->exponent_x, s->seed);
    p->w = operand(l, s->n, s->k, p->ldw, s->data_w, s->exponent_w, s->seed + 1000);
    for (int i = 0; i < s->n_pokes; i++) {
        const gemm_poke *poke = &s->pokes[i];
        uint16_t *at = poke->in_w ? p->w + poke->row * p->ldw + poke->col : p->x + poke->row * p->ldx + poke->col;
        l->put(l, at, &poke->bits, sizeof poke->bits);
    }
    p->x_norm = l->alloc(l, (size_t)s->m * sizeof(float));
    p->w_norm = l->alloc(l, (size_t)s->n * sizeof(float));
    lab_norms(l, (elem_norms){p->x, p->ldx, s->k, p->x_norm}, s->m, NULL);
    lab_norms(l, (elem_norms){p->w, p->ldw, s->k, p->w_norm}, s->n, NULL);
    p->sum = l->alloc(l, elements * sizeof(double));
    p->abs = l->alloc(l, elements * sizeof(double));
    p->squares = l->alloc(l, elements * sizeof(double));
    lab_reference(l, (elem_reference){p->x, p->w, p->ldx, p->ldw, s->n, s->k, p->sum, p->abs, p->squares},
                  (int64_t)elements, NULL);
    p->y_begin = GEMM_GUARD + 4 * (size_t)s->shift_y;
    p->y_bytes = p->y_begin + (size_t)s->m * (size_t)p->ldy * 4 + GEMM_GUARD;
    p->y = l->alloc(l, p->y_bytes);
    p->outside = lab_result(l);
    p->wrong = lab_result(l);
}

void gemm_problem_close(gemm_problem *p) {
    void *all[] = {p->x,       p->w, p->x_norm,    p->w_norm,  p->sum,  p->abs,
                   p->squares, p->y, p->workspace, p->outside, p->wrong};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) p->l->release(p->l, all[i]);
    *p = (gemm_problem){0};
}

pz_gemm_args gemm_args(const gemm_problem *p, const gemm_variant *v) {
    return (pz_gemm_args){.size = sizeof(pz_gemm_args),
                          .x = p->x,
                          .w = p->w,
                          .ldx = p->ldx,
                          .ldw = p->ldw,
                          .y = p->y + p->y_begin,
                          .ldy = p->ldy,
                          .m = p->spec.m,
                          .n = p->spec.n,
                          .k = p->spec.k,
                          .accum = v->accum,
                          .x_norm = p->x_norm,
                          .w_norm = p->w_norm,
                          .strategy = v->strategy,
                          .config = v->config,
                          .workspace = p->workspace};
}

static int y_size(const gemm_variant *v) {
    return v->accum == PZ_ACCUM_BF16 ? 2 : 4;
}

static void check_outside(gemm_problem *p, const gemm_variant *v, uint32_t word, bool all) {
    int64_t size = y_size(v);
    lab_outside(p->l,
                (elem_outside){p->y, (int64_t)p->y_begin, all ? 0 : p->spec.m, p->spec.n * size, p->ldy * size, word,
                               p->outside},
                (int64_t)p->y_bytes, NULL);
}

enum { CUBLASLT_SPLIT = 16 /* parts of K at most */ };

static void check_values(gemm_problem *p, const gemm_variant *v) {
    static const pz_elem elem[] = {PZ_ELEM_FIXED, PZ_ELEM_F32, PZ_ELEM_BF16};
    const gemm_spec *s = &p->spec;
    int64_t elements = (int64_t)s->m * s->n;
    bool ternary = s->data_x == DATA_TERNARY && s->data_w == DATA_TERNARY, fixed = v->accum == PZ_ACCUM_FIXED;
    int split = v->config.family == PZ_GEMM_DEFAULT ? 64 : v->config.split;
    pz_matrix y = {p->y + p->y_begin, p->ldy, elem[v->accum], p->x_norm, p->w_norm};
    /* cuBLASLt may split K itself, and then adds the parts in the type of its output */
    bool adds_inside = v->config.family == PZ_GEMM_CUBLASLT && v->accum == PZ_ACCUM_BF16;
    elem_limits limits = {.accum = v->accum,
                          .adds = adds(v->strategy) ? split
                                  : adds_inside     ? CUBLASLT_SPLIT
                                                    : 0,
                          .exact = s->exact && !adds_inside && (ternary || v->accum == PZ_ACCUM_F32),
                          .k = s->k,
                          .unit = gemm_unit(s)};
    lab_check(p->l, (elem_check){y, p->sum, p->abs, p->squares, s->n, limits, p->wrong}, elements, NULL);
    if (fixed && s->exact)
        lab_fixed(p->l,
                  (elem_fixed){p->x, p->w, p->ldx, p->ldw, s->n, s->k, gemm_unit(s), p->x_norm, p->w_norm, y.data,
                               p->ldy, p->wrong},
                  elements, NULL);
    if (fixed && s->data_x == DATA_UNIFORM && s->data_w == DATA_UNIFORM && s->n_pokes == 0 && s->exponent_x == 0 &&
        s->exponent_w == 0)
        lab_ulp(p->l, (elem_ulp){y, p->sum, p->squares, s->n, p->wrong}, elements, NULL);
}

/* Poison, zeros where the strategy asks the caller for them, launch. */
static pz_status launch(gemm_problem *p, const gemm_variant *v, uint32_t word, pz_error *err) {
    int64_t width = p->spec.n * y_size(v);
    lab_poison(p->l, p->y, p->y_bytes, word, NULL);
    if (v->strategy == PZ_ZERO_PREZERO)
        lab_zero(p->l, (elem_zero){p->y + p->y_begin, width, p->ldy * y_size(v)}, p->spec.m * width, NULL);
    pz_gemm_args a = gemm_args(p, v);
    *err = (pz_error){0};
    return p->l->gemm(&a, err);
}

/* A refusal: its code, its message, and memory as it was. */
static gemm_outcome check_refusal(gemm_problem *p, const gemm_variant *v, pz_status want, pz_error *err) {
    char text[160];
    gemm_variant_text(v, text);
    if ((want != PZ_E_INVAL && want != PZ_E_UNSUPPORTED) || err->code != want || !err->msg[0]) {
        lab_fault(p->l, "%s: the workspace query gives %s '%s'", text, pz_status_name(want), err->msg);
        return GEMM_WRONG;
    }
    lab_poison(p->l, p->y, p->y_bytes, lab_patterns[0], NULL);
    pz_gemm_args a = gemm_args(p, v);
    *err = (pz_error){0};
    pz_status st = p->l->gemm(&a, err);
    check_outside(p, v, lab_patterns[0], true);
    elem_result outside = lab_result_get(p->l, p->outside);
    if (st == want && err->msg[0] && outside.wrong == 0) return GEMM_REFUSED;
    lab_fault(p->l, "%s: refused by the workspace query with %s, the launch gives %s '%s', %llu bytes written", text,
              pz_status_name(want), pz_status_name(st), err->msg, outside.wrong);
    lab_result_clear(p->l, p->outside);
    return GEMM_WRONG;
}

/* Zeroed, with a guard after it. */
void gemm_make_workspace(gemm_problem *p, size_t bytes) {
    size_t need = (bytes + 3) / 4 * 4 + GEMM_GUARD;
    if (need > p->workspace_bytes) {
        if (p->workspace) p->l->release(p->l, p->workspace);
        p->workspace = p->l->alloc(p->l, need);
        p->workspace_bytes = need;
    }
    lab_poison(p->l, p->workspace, need, lab_patterns[0], NULL);
    lab_clear(p->l, p->workspace, bytes, NULL);
}

gemm_outcome gemm_try(gemm_problem *p, const gemm_variant *v) {
    lab *l = p->l;
    const gemm_spec *s = &p->spec;
    pz_error err = {0};
    size_t bytes = 0;
    pz_gemm_args a = gemm_args(p, v);
    if (lab_done(l)) return GEMM_WRONG;
    pz_status st = l->gemm_workspace(&a, &bytes, &err);
    if (st != PZ_OK) return check_refusal(p, v, st, &err);
    gemm_make_workspace(p, bytes);
    for (int round = 0; round < ROUNDS && st == PZ_OK; round++) {
        st = launch(p, v, lab_patterns[round], &err);
        check_outside(p, v, lab_patterns[round], false);
        check_values(p, v);
    }
    size_t need = (bytes + 3) / 4 * 4 + GEMM_GUARD;
    lab_outside(l, (elem_outside){p->workspace, 0, 1, (int64_t)bytes, (int64_t)need, lab_patterns[0], p->outside},
                (int64_t)need, NULL);
    elem_result outside = lab_result_get(l, p->outside), wrong = lab_result_get(l, p->wrong);
    if (st == PZ_OK && outside.wrong == 0 && wrong.wrong == 0) return GEMM_RIGHT;
    char text[160];
    gemm_variant_text(v, text);
    lab_fault(l,
              "gemm m %d n %d k %d ld %lld %lld %lld data %d %d 2^%d 2^%d seed %llu, %s: %s %s; %llu wrong in %d runs, "
              "first at row %lld column %lld; %llu bytes outside written, first at %lld",
              s->m, s->n, s->k, (long long)p->ldx, (long long)p->ldw, (long long)p->ldy, s->data_x, s->data_w,
              s->exponent_x, s->exponent_w, (unsigned long long)s->seed, text, pz_status_name(st), err.msg, wrong.wrong,
              ROUNDS, (long long)wrong.first / s->n, (long long)wrong.first % s->n, outside.wrong,
              (long long)outside.first - (long long)p->y_begin);
    lab_result_clear(l, p->outside);
    lab_result_clear(l, p->wrong);
    return GEMM_WRONG;
}

/* ---- variants ---- */
#define PICK(state, ...) \
    (((const int[]){__VA_ARGS__})[pz_rng_next(state) % (sizeof((const int[]){__VA_ARGS__}) / sizeof(int))])

pz_gemm_config gemm_random_config(uint64_t *state, pz_gemm_family family) {
    pz_gemm_config c = {.family = family};
    if (family == PZ_GEMM_DEFAULT) return c;
    c.split = PICK(state, 1, 1, 1, 2, 2, 3, 4, 5, 8, 16, 57);
    if (family == PZ_GEMM_SKINNY) {
        c.tile_n = PICK(state, 16, 16, 32, 32, 48, 64, 96, 128, 256, 24, 0);
        c.warps = PICK(state, 1, 1, 2, 2, 3, 4, 6, 8, 16, 0);
        c.stages = PICK(state, 0, 0, 1, 2, 3, -1);
        c.depth = PICK(state, 0, 0, 1, 2, 4, 7);
    } else if (family == PZ_GEMM_GROUP) {
        c.tile_n = PICK(state, 64, 64, 64, 128, 128, 192, 256, 96, 0);
        c.warps = PICK(state, 1, 1, 2, 2, 3, 4, 5, 0);
        c.stages = PICK(state, 0, 0, 1, 2, 3, -1);
        c.depth = PICK(state, 0, 0, 1, 2, 4, 7);
    } else if (family == PZ_GEMM_WIDE) {
        c.tile_n = PICK(state, 64, 64, 128, 128, 192, 256, 80, 0);
        c.stages = PICK(state, 0, 0, 1, 2, 3, 4, 5, 6, 8, -1);
        c.warps = PICK(state, 0, 1, 1, 2, 3, 8);
        c.depth = PICK(state, 0, 0, 1, 2, 4, 7, -1);
    } else {
        c.split = 1;
        c.stages = PICK(state, 0, 0, 1, 2, 3, 5, 9);
    }
    return c;
}

typedef struct tally {
    int right[N_FAMILIES][N_STRATEGIES][N_ACCUMS], refused, wrong;
} tally;

static void try_one(gemm_problem *p, const gemm_variant *v, tally *t) {
    gemm_outcome o = gemm_try(p, v);
    t->right[v->config.family][v->strategy][v->accum] += o == GEMM_RIGHT;
    t->refused += o == GEMM_REFUSED;
    t->wrong += o == GEMM_WRONG;
}

/* A geometry that should be taken whatever the shape: parts of K of at most 8 chunks, if it may be split. */
static pz_gemm_config sound_config(const gemm_problem *p, pz_strategy s, pz_gemm_family family) {
    int chunks = (p->spec.k + PZ_GEMM_CHUNK - 1) / PZ_GEMM_CHUNK, split = chunks < 2 ? 1 : 2 + (chunks - 2) / 8;
    if (split > pz_gemm_units(p->spec.n, p->spec.k)) split = (int)pz_gemm_units(p->spec.n, p->spec.k);
    if (s == PZ_ZERO_NONE || family == PZ_GEMM_CUBLASLT) split = 1;
    if (family == PZ_GEMM_SKINNY) return (pz_gemm_config){32, split, family, 2, 0, 1};
    if (family == PZ_GEMM_GROUP) return (pz_gemm_config){64, split, family, 2, 0, 1};
    if (family == PZ_GEMM_WIDE) return (pz_gemm_config){64, split, family, 1, 4, 0};
    return (pz_gemm_config){.split = split, .family = family};
}

/* Every accumulator, strategy and family; a sound geometry of each and `configs` - 1 random ones. */
static void try_all(gemm_problem *p, uint64_t *state, int configs, tally *t) {
    for (int a = 0; a < N_ACCUMS; a++)
        for (int s = 0; s < N_STRATEGIES; s++)
            for (int f = 0; f < N_FAMILIES; f++) {
                bool few = f == PZ_GEMM_SKINNY || f == PZ_GEMM_GROUP;
                int n = f == PZ_GEMM_DEFAULT ? 1 : few ? 2 * configs : configs;
                for (int i = 0; i < n; i++) {
                    gemm_variant v = {(pz_accum)a, (pz_strategy)s, gemm_random_config(state, (pz_gemm_family)f)};
                    if (i == 0) v.config = sound_config(p, v.strategy, (pz_gemm_family)f);
                    if (s == PZ_ZERO_NONE && i % 4 != 3 && f != PZ_GEMM_DEFAULT) v.config.split = 1;
                    try_one(p, &v, t);
                }
            }
}

bool gemm_family_absent(lab *l, pz_gemm_family family) {
    pz_gemm_args a = {.size = sizeof a, .ldx = 512, .ldw = 512, .ldy = 64, .m = 8, .n = 64, .k = 512};
    size_t bytes;
    pz_error err = {0};
    if (family == PZ_GEMM_DEFAULT || family == PZ_GEMM_SKINNY) return false;
    a.accum = PZ_ACCUM_F32;
    a.config = family == PZ_GEMM_CUBLASLT ? (pz_gemm_config){.split = 1, .family = family}
                                          : (pz_gemm_config){64, 1, family, 1, 4, 0};
    if (l->gemm_workspace(&a, &bytes, &err) != PZ_E_UNSUPPORTED) return false;
    if (!l->quiet) print_message("  NOT TESTED: family %s: %s\n", family_text[family], err.msg);
    return true;
}

/* A suite in which everything was refused has shown nothing. WIDE takes some values of k, CUBLASLT some strategies. */
static void require_all(lab *l, const tally *t, const char *what) {
    for (int f = 0; f < N_FAMILIES; f++) {
        int total = 0;
        bool absent = gemm_family_absent(l, (pz_gemm_family)f);
        for (int s = 0; s < N_STRATEGIES; s++)
            for (int a = 0; a < N_ACCUMS; a++) {
                total += t->right[f][s][a];
                if (t->right[f][s][a] == 0 && f <= PZ_GEMM_GROUP && !absent)
                    lab_fault(l, "%s: no right result of %s %s %s", what, family_text[f], strategy_text[s],
                              accum_text[a]);
            }
        if (total == 0 && !absent) lab_fault(l, "%s: no right result of family %s", what, family_text[f]);
        if (!l->quiet) print_message("  %s: %d right of family %s\n", what, total, family_text[f]);
    }
    if (!l->quiet) print_message("  %s: %d refused, %d wrong\n", what, t->refused, t->wrong);
}

/* ---- random shapes ---- */
/* n log-uniform in [lo, hi]. */
static int log_int(uint64_t *state, int lo, int hi) {
    double v = (double)lo * pow((double)hi / lo, pz_rng_unit(state));
    return v >= hi ? hi : (int)v;
}

static gemm_spec random_spec(lab *l, uint64_t *state, int m) {
    gemm_spec s = {.m = m, .seed = pz_rng_next(state) >> 16};
    s.n = l->small ? log_int(state, 8, 150) : log_int(state, 8, 9000);
    s.k = 16 * (l->small ? log_int(state, 1, 32) : log_int(state, 1, 1024));
    s.pad_x = 8 * lab_int(state, 0, 3);
    s.pad_w = 8 * lab_int(state, 0, 3);
    s.pad_y = lab_int(state, 0, 1) ? lab_int(state, 1, 40) : 0;
    s.shift_y = lab_int(state, 0, 3);
    s.data_x = lab_int(state, 0, 2) ? DATA_UNIFORM : DATA_HOLES;
    s.data_w = lab_int(state, 0, 3) ? DATA_UNIFORM : DATA_HOLES;
    return s;
}

static void try_spec(lab *l, const gemm_spec *s, uint64_t *state, int configs, tally *t) {
    gemm_problem p;
    if (lab_done(l)) return;
    gemm_problem_open(&p, l, s);
    try_all(&p, state, configs, t);
    gemm_problem_close(&p);
}

void suite_gemm_random(lab *l) {
    static const int ms[] = {1,  2,  3,  4,  7,  8,   9,   15,  16,  17,  24,  31, 32,
                             33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 257, 300};
    static const int small_ms[] = {1, 9, 33};
    static const struct {
        int n, k;
    } odd[] = {{8, 16},      {8, 7168},    {1, 144},     {384, 7168},   {2112, 7168}, {3072, 1536},
               {7168, 2048}, {163840, 16}, {163840, 64}, {9000, 16384}, {17, 16384}};
    uint64_t state = 11;
    tally t = {0};
    int n = l->small ? (int)(sizeof small_ms / sizeof *small_ms) : (int)(sizeof ms / sizeof *ms);
    for (int i = 0; i < n; i++)
        for (int repeat = 0; repeat < (l->small ? 1 : 3); repeat++) {
            gemm_spec s = random_spec(l, &state, l->small ? small_ms[i] : ms[i]);
            if (i % 2 == 0) s.k = (s.k + 63) / 64 * 64; /* else WIDE takes a quarter of the shapes only */
            try_spec(l, &s, &state, l->few ? 1 : l->small ? 2 : 3, &t);
        }
    for (size_t i = 0; !l->small && i < sizeof odd / sizeof *odd; i++)
        for (int j = 0; j < 3; j++) {
            gemm_spec s = random_spec(l, &state, j == 0 ? 1 : j == 1 ? lab_int(&state, 2, 64) : 128);
            s.n = odd[i].n;
            s.k = odd[i].k;
            try_spec(l, &s, &state, 2, &t);
        }
    require_all(l, &t, "random shapes");
}

/* ---- data without rounding ---- */
void suite_gemm_exact(lab *l) {
    static const struct {
        int m, n, k;
    } shapes[] = {{1, 40, 16},       {5, 24, 448},     {9, 33, 384},    {33, 72, 528},
                  {1, 2112, 7168},   {16, 384, 7168},  {8, 3072, 1536}, {64, 520, 4112},
                  {128, 1000, 2048}, {300, 264, 4624}, {17, 136, 16384}};
    uint64_t state = 23;
    tally t = {0};
    for (size_t i = 0; i < (l->few ? 2 : l->small ? 4 : sizeof shapes / sizeof *shapes); i++)
        for (int huge = 0; huge < (l->few ? 1 : 2); huge++) {
            gemm_spec s = random_spec(l, &state, shapes[i].m);
            s.n = shapes[i].n;
            s.k = shapes[i].k;
            s.exact = 1;
            s.data_x = huge ? DATA_HUGE_ROW : DATA_TERNARY;
            s.data_w = huge ? DATA_HUGE_COL : DATA_TERNARY;
            try_spec(l, &s, &state, l->small ? 2 : 8, &t);
        }
    require_all(l, &t, "exact data");
}

/* ---- special values ---- */
enum { BF16_NAN = 0x7fc0, BF16_INF = 0x7f80, BF16_MINUS_INF = 0xff80, BF16_MAX = 0x7f7f };

void suite_gemm_special(lab *l) {
    const gemm_poke pokes[] = {{0, 2, 3, BF16_NAN},  {0, 5, 17, BF16_INF},      {1, 7, 31, BF16_MINUS_INF},
                               {1, 11, 0, BF16_NAN}, {0, 6, 2, BF16_MINUS_INF}, {0, 6, 30, BF16_INF}};
    const gemm_poke largest[] = {{0, 1, 1, BF16_MAX}, {1, 2, 1, BF16_MAX}, {0, 4, 5, BF16_MAX}};
    const struct {
        elem_data x, w;
        int exponent_x, exponent_w, n_pokes;
        const gemm_poke *pokes;
    } cases[] = {{DATA_UNIFORM, DATA_UNIFORM, 0, 0, 6, pokes},   {DATA_HOLES, DATA_HOLES, 0, 0, 2, pokes},
                 {DATA_UNIFORM, DATA_UNIFORM, 0, 0, 3, largest}, {DATA_DENORMAL, DATA_UNIFORM, 0, 0, 0, NULL},
                 {DATA_DENORMAL, DATA_UNIFORM, 0, 100, 0, NULL}, {DATA_DENORMAL, DATA_DENORMAL, 0, 0, 0, NULL},
                 {DATA_SPREAD, DATA_SPREAD, 0, 0, 0, NULL},      {DATA_UNIFORM, DATA_UNIFORM, 100, -100, 0, NULL},
                 {DATA_UNIFORM, DATA_UNIFORM, -90, 90, 0, NULL}, {DATA_UNIFORM, DATA_UNIFORM, 50, 60, 0, NULL},
                 {DATA_UNIFORM, DATA_UNIFORM, 70, 70, 0, NULL},  {DATA_UNIFORM, DATA_UNIFORM, 116, 0, 0, NULL},
                 {DATA_UNIFORM, DATA_UNIFORM, -60, -60, 0, NULL}};
    static const struct { int m, n, k; } shapes[] = {{9, 40, 192}, {8, 200, 2048}, {40, 384, 7168}, {150, 100, 1040}};
    uint64_t state = 37;
    tally t = {0};
    for (size_t c = 0; c < (l->few ? 1 : sizeof cases / sizeof *cases); c++)
        for (size_t i = 0; i < (l->small ? 1 : sizeof shapes / sizeof *shapes); i++) {
            gemm_spec s = random_spec(l, &state, shapes[i].m);
            s.n = shapes[i].n;
            s.k = shapes[i].k;
            s.data_x = cases[c].x;
            s.data_w = cases[c].w;
            s.exponent_x = cases[c].exponent_x;
            s.exponent_w = cases[c].exponent_w;
            s.pokes = cases[c].pokes;
            s.n_pokes = cases[c].n_pokes;
            try_spec(l, &s, &state, l->small ? 1 : 2, &t);
        }
    require_all(l, &t, "special values");
}

/* ---- what must be refused ---- */
typedef struct bad_args {
    const char *what;
    pz_gemm_args a;
} bad_args;

static int list_bad(const gemm_problem *p, const pz_gemm_args *good, bad_args out[40]) {
    int n = 0;
#define BAD(text, ...)                    \
    do {                                  \
        out[n] = (bad_args){text, *good}; \
        pz_gemm_args *a = &out[n++].a;    \
        __VA_ARGS__;                      \
    } while (0)
    BAD("m 0", a->m = 0);
    BAD("m -1", a->m = -1);
    BAD("n 0", a->n = 0);
    BAD("k 0", a->k = 0);
    BAD("k 24", a->k = 24);
    BAD("k 7", a->k = 7);
    BAD("ldx below k", a->ldx = a->k - 8);
    BAD("ldx odd", a->ldx = a->k + 3);
    BAD("ldw below k", a->ldw = a->k - 8);
    BAD("ldw odd", a->ldw = a->k + 4);
    BAD("ldy below n", a->ldy = a->n - 1);
    BAD("x unaligned", a->x = p->x + 1);
    BAD("w unaligned", a->w = p->w + 4);
    BAD("y unaligned", a->y = (char *)a->y + 2);
    BAD("x NULL", a->x = NULL);
    BAD("w NULL", a->w = NULL);
    BAD("y NULL", a->y = NULL);
    BAD("x_norm NULL", a->x_norm = NULL);
    BAD("w_norm NULL", a->w_norm = NULL);
    BAD("accumulator 9", a->accum = (pz_accum)9);
    BAD("strategy 17", a->strategy = (pz_strategy)17);
    BAD("no such family", a->config.family = N_FAMILIES);
    BAD("family -1", a->config.family = -1);
    BAD("none, split", a->strategy = PZ_ZERO_NONE; a->config = (pz_gemm_config){16, 2, PZ_GEMM_SKINNY, 1, 0, 0});
    BAD("tile_n 8", a->config = (pz_gemm_config){8, 1, PZ_GEMM_SKINNY, 1, 0, 0});
    BAD("64 warps", a->config = (pz_gemm_config){16, 1, PZ_GEMM_SKINNY, 64, 0, 0});
    BAD("stages -1", a->config = (pz_gemm_config){16, 1, PZ_GEMM_SKINNY, 1, -1, 0});
    BAD("group of 32 rows of w", a->config = (pz_gemm_config){32, 1, PZ_GEMM_GROUP, 1, 0, 0});
    BAD("group of 20 warps", a->config = (pz_gemm_config){64, 1, PZ_GEMM_GROUP, 5, 0, 0});
    BAD("4 warpgroups", a->config = (pz_gemm_config){128, 1, PZ_GEMM_WIDE, 2, 0, 0});
    BAD("wide, split above k", a->config = (pz_gemm_config){64, 5, PZ_GEMM_WIDE, 1, 0, 0});
    BAD("split 0", a->config = (pz_gemm_config){16, 0, PZ_GEMM_SKINNY, 1, 0, 0});
    BAD("split above k", a->config = (pz_gemm_config){16, 1000, PZ_GEMM_SKINNY, 1, 0, 0});
    BAD("no workspace", a->strategy = PZ_ZERO_TICKET; a->workspace = NULL;
        a->config = (pz_gemm_config){16, 2, PZ_GEMM_SKINNY, 1, 0, 0});
    BAD("size 0", a->size = 0);
    BAD("size too large", a->size = sizeof *a + 8);
#undef BAD
    return n;
}

void suite_gemm_arguments(lab *l) {
    gemm_spec s = {.m = 4, .n = 48, .k = 512, .seed = 5};
    gemm_variant v = {PZ_ACCUM_FIXED, PZ_ZERO_SELF, {.family = PZ_GEMM_DEFAULT}};
    gemm_problem p;
    bad_args bad[40];
    gemm_problem_open(&p, l, &s);
    gemm_make_workspace(&p, 1 << 20);
    pz_gemm_args good = gemm_args(&p, &v);
    int n = list_bad(&p, &good, bad);
    lab_poison(l, p.y, p.y_bytes, lab_patterns[0], NULL);
    for (int i = 0; i < n; i++) {
        pz_error err = {0};
        pz_status st = l->gemm(&bad[i].a, &err);
        if ((st != PZ_E_INVAL && st != PZ_E_UNSUPPORTED) || err.code != st || !err.msg[0])
            lab_fault(l, "gemm with %s gives %s '%s'", bad[i].what, pz_status_name(st), err.msg);
    }
    check_outside(&p, &v, lab_patterns[0], true);
    if (lab_result_get(l, p.outside).wrong) lab_fault(l, "a refused gemm has written");
    lab_result_clear(l, p.outside);
    pz_error err = {0};
    if (l->gemm(&good, &err) != PZ_OK) lab_fault(l, "the arguments that all others are made of: %s", err.msg);
    gemm_problem_close(&p);
}

/* Stages and depth are as many as fit, however many are asked for; what else is out of range is refused. In pairs, for
 * a product may wrap around. */
void suite_gemm_extremes(lab *l) {
    static const int values[] = {INT_MAX, INT_MIN, 1 << 26, 1 << 30, -1, 0, 1024, 1 << 16};
    enum { FIELDS = 5, STAGES = 3 };
    int n = l->few ? 4 : sizeof values / sizeof *values;
    gemm_spec s = {.m = 4, .n = 48, .k = 512, .seed = 6};
    gemm_problem p;
    gemm_problem_open(&p, l, &s);
    for (int f = PZ_GEMM_SKINNY; f <= PZ_GEMM_WIDE; f++) {
        if (gemm_family_absent(l, (pz_gemm_family)f)) continue;
        for (int i = 0; i < FIELDS * n * FIELDS * n; i++) {
            int field[] = {i / n % FIELDS, i / n / n / FIELDS}, value[] = {values[i % n], values[i / n / FIELDS % n]};
            gemm_variant v = {PZ_ACCUM_FIXED, PZ_ZERO_SELF, sound_config(&p, PZ_ZERO_SELF, (pz_gemm_family)f)};
            int *at[FIELDS] = {&v.config.tile_n, &v.config.split, &v.config.warps, &v.config.stages, &v.config.depth};
            bool fits = true;
            if (field[0] > field[1] || (field[0] == field[1] && value[0] != value[1])) continue;
            for (int k = 0; k < 2; k++) {
                *at[field[k]] = value[k];
                fits = fits && field[k] >= STAGES && value[k] >= 0;
            }
            char text[160];
            gemm_variant_text(&v, text);
            if (gemm_try(&p, &v) == (fits ? GEMM_REFUSED : GEMM_RIGHT))
                lab_fault(l, "%s is %s", text, fits ? "refused" : "taken");
        }
    }
    gemm_problem_close(&p);
}

/* ---- pz_weight_norms ---- */
static void weight_norms(lab *l, const gemm_spec *s) {
    gemm_problem p;
    pz_error err = {0};
    gemm_problem_open(&p, l, s);
    size_t bytes = (size_t)s->n * 4 + 2 * GEMM_GUARD;
    uint8_t *got = l->alloc(l, bytes);
    lab_poison(l, got, bytes, lab_patterns[1], NULL);
    if (l->weight_norms(p.w, p.ldw, s->n, s->k, (float *)(void *)(got + GEMM_GUARD), NULL, &err) != PZ_OK)
        lab_fault(l, "weight_norms: %s", err.msg);
    lab_outside(l, (elem_outside){got, GEMM_GUARD, 1, s->n * 4, s->n * 4, lab_patterns[1], p.outside}, (int64_t)bytes,
                NULL);
    float *norms = pz_calloc((size_t)s->n, 4), *want = pz_calloc((size_t)s->n, 4);
    assert_true(norms && want);
    l->get(l, norms, got + GEMM_GUARD, (size_t)s->n * 4);
    l->get(l, want, p.w_norm, (size_t)s->n * 4);
    for (int i = 0; i < s->n; i++)
        if (norms[i] == norms[i] ? norms[i] != want[i] : want[i] == want[i])
            lab_fault(l, "norm of row %d of [%d, %d] is %a, not %a", i, s->n, s->k, (double)norms[i], (double)want[i]);
    if (lab_result_get(l, p.outside).wrong) lab_fault(l, "weight_norms writes outside of its result");
    pz_free(norms);
    pz_free(want);
    l->release(l, got);
    gemm_problem_close(&p);
}

void suite_weight_norms(lab *l) {
    const gemm_poke pokes[] = {
        {1, 3, 5, BF16_NAN}, {1, 5, 0, BF16_INF}, {1, 6, 15, BF16_MINUS_INF}, {1, 1, 1, BF16_MAX}};
    const int exponents[] = {0, -110, 70, 111, 125};
    for (size_t i = 0; i < sizeof exponents / sizeof *exponents; i++) {
        gemm_spec s = {
            .m = 1, .n = 41, .k = 272, .pad_w = 8, .exponent_w = exponents[i], .seed = 77, .data_w = DATA_HOLES};
        weight_norms(l, &s);
    }
    gemm_spec poked = {.m = 1, .n = 9, .k = 16, .pokes = pokes, .n_pokes = 4, .seed = 3, .data_w = DATA_TERNARY};
    gemm_spec large = {.m = 1, .n = 2112, .k = 7168, .seed = 4};
    weight_norms(l, &poked);
    if (!l->small) weight_norms(l, &large);
}
