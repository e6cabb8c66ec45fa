/* SPDX-License-Identifier: Apache-2.0 */
/* FIXED: one row has one result of one family of kernels, bit by bit, whatever the run, the geometry, the strategy and
 * the rows beside it. Families multiply in another order of k, so each has a reference of its own, which is compared
 * with float64; DEFAULT is SKINNY. That families agree where sums are exact is for suite_gemm_exact. */
#include "support_lab.h"

enum { BATCH = 128 };

static const struct {
    int m, n, k;
} shapes[] = {{4, 384, 7168}, {16, 3072, 1536}, {1, 2112, 7168}, {33, 200, 2064}, {128, 130, 1088}, {8, 7168, 2048}},
  small_shapes[] = {{3, 24, 448}, {17, 40, 272}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_SMALL = sizeof small_shapes / sizeof *small_shapes };

static gemm_spec spec_of(const lab *l, int i, int m) {
    gemm_spec s = {.m = l->small ? small_shapes[i].m : shapes[i].m,
                   .n = l->small ? small_shapes[i].n : shapes[i].n,
                   .k = l->small ? small_shapes[i].k : shapes[i].k,
                   .pad_x = 8,
                   .pad_y = 3,
                   .seed = 100 + (uint64_t)i};
    if (m) s.m = m;
    return s;
}

/* Launches v on rows [row, row + m) of x into y, after poison and, if asked for, zeros. */
static pz_status run_rows(gemm_problem *p, const gemm_variant *v, int row, int m, uint8_t *y, pz_error *err) {
    pz_gemm_args a = gemm_args(p, v);
    size_t bytes;
    a.x = p->x + row * p->ldx;
    a.x_norm = p->x_norm + row;
    a.m = m;
    a.y = y;
    *err = (pz_error){0};
    PZ_TRY(p->l->gemm_workspace(&a, &bytes, err));
    gemm_make_workspace(p, bytes);
    a.workspace = p->workspace;
    lab_poison(p->l, y, (size_t)(m * p->ldy) * 4, lab_patterns[1], NULL);
    if (v->strategy == PZ_ZERO_PREZERO)
        lab_zero(p->l, (elem_zero){y, p->spec.n * 4, p->ldy * 4}, (int64_t)m * p->spec.n * 4, NULL);
    return p->l->gemm(&a, err);
}

/* Are rows [0, m) of y those of base from `row` on? */
static unsigned long long different(gemm_problem *p, const uint8_t *y, const uint8_t *base, int row, int m) {
    lab_equal(p->l, (elem_equal){y, base + row * p->ldy * 4, p->ldy, p->ldy, p->spec.n, 4, p->wrong},
              (int64_t)m * p->spec.n, NULL);
    elem_result r = lab_result_get(p->l, p->wrong);
    if (r.wrong) lab_result_clear(p->l, p->wrong);
    return r.wrong;
}

/* References of all rows, by family. */
typedef struct bases {
    uint8_t *narrow, *wide; /* wide NULL: the family does not take this shape */
} bases;

static bool takes(const gemm_problem *p, pz_gemm_family family) {
    return family != PZ_GEMM_WIDE || (p->spec.k % 64 == 0 && !gemm_family_absent(p->l, family));
}

static uint8_t *base_of(gemm_problem *p, const gemm_variant *v) {
    pz_error err;
    uint8_t *base = p->l->alloc(p->l, (size_t)(p->spec.m * p->ldy) * 4);
    if (run_rows(p, v, 0, p->spec.m, base, &err) != PZ_OK)
        lab_fault(p->l, "fixed, m %d n %d k %d: %s", p->spec.m, p->spec.n, p->spec.k, err.msg);
    elem_check check = {{base, p->ldy, PZ_ELEM_FIXED, p->x_norm, p->w_norm}, p->sum,  p->abs, p->squares, p->spec.n,
                        {.accum = PZ_ACCUM_FIXED, .k = p->spec.k},           p->wrong};
    lab_check(p->l, check, (int64_t)p->spec.m * p->spec.n, NULL);
    elem_result r = lab_result_get(p->l, p->wrong);
    lab_result_clear(p->l, p->wrong);
    if (r.wrong)
        lab_fault(p->l, "fixed, m %d n %d k %d, family %d: %llu elements are not within the bound of float64",
                  p->spec.m, p->spec.n, p->spec.k, v->config.family, r.wrong);
    return base;
}

static bases bases_of(gemm_problem *p) {
    static const gemm_variant narrow = {PZ_ACCUM_FIXED, PZ_ZERO_NONE, {.family = PZ_GEMM_DEFAULT}};
    static const gemm_variant wide = {PZ_ACCUM_FIXED, PZ_ZERO_NONE, {64, 1, PZ_GEMM_WIDE, 1, 0, 0}};
    return (bases){base_of(p, &narrow), takes(p, PZ_GEMM_WIDE) ? base_of(p, &wide) : NULL};
}

static void release_bases(lab *l, const bases *b) {
    l->release(l, b->narrow);
    if (b->wide) l->release(l, b->wide);
}

/* One variant against its family's reference, m rows from `row` on; whether it was taken. */
static bool same_bits(gemm_problem *p, const gemm_variant *v, const bases *b, int row, int m) {
    const uint8_t *base = v->config.family == PZ_GEMM_WIDE ? b->wide : b->narrow;
    pz_error err;
    char text[160];
    uint8_t *y = p->y + GEMM_GUARD;
    if (!base || lab_done(p->l)) return false;
    if (run_rows(p, v, row, m, y, &err) != PZ_OK) return false;
    unsigned long long n = different(p, y, base, row, m);
    gemm_variant_text(v, text);
    if (n)
        lab_fault(p->l, "n %d k %d, rows %d to %d, %s: %llu elements have other bits than the same rows before",
                  p->spec.n, p->spec.k, row, row + m - 1, text, n);
    return true;
}

void suite_fixed_repeat(lab *l) {
    static const gemm_variant variants[] = {{PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {16, 3, PZ_GEMM_SKINNY, 1, 1, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {.family = PZ_GEMM_DEFAULT}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_SELF, {32, 3, PZ_GEMM_SKINNY, 2, 1, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_TICKET, {16, 2, PZ_GEMM_SKINNY, 2, 2, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_REDUCE, {16, 3, PZ_GEMM_SKINNY, 4, 1, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_MEMSET, {.family = PZ_GEMM_DEFAULT}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {64, 2, PZ_GEMM_WIDE, 1, 4, 0}}};
    int runs = l->small ? 10 : 1000;
    for (int i = 0; i < (l->small ? 1 : 3); i++) {
        gemm_spec s = spec_of(l, i, 0);
        gemm_problem p;
        gemm_problem_open(&p, l, &s);
        bases base = bases_of(&p);
        int taken = 0;
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
            for (int r = 0; r < runs && l->faults == 0; r++) taken += same_bits(&p, &variants[v], &base, 0, s.m);
        if (taken < 4 * runs) lab_fault(l, "m %d n %d k %d: only %d runs were taken", s.m, s.n, s.k, taken);
        release_bases(l, &base);
        gemm_problem_close(&p);
    }
}

typedef struct config_set {
    pz_gemm_family family;
    int tile_n[6], split[7], warps[6], stages[6], depth[4], strategies;
} config_set;

/* Number n of the set's combinations in mixed radix; lists end with 0 (depth: with -1). */
static bool combination(const config_set *c, int n, gemm_variant *v) {
    const int *const lists[] = {c->tile_n, c->split, c->warps, c->stages, c->depth};
    const int ends[] = {0, 0, -1, 0, -1};
    int at[5];
    for (int i = 0; i < 5; i++) {
        int count = 0;
        while (lists[i][count] != ends[i]) count++;
        at[i] = lists[i][n % count];
        n /= count;
    }
    v->accum = PZ_ACCUM_FIXED;
    v->strategy = (pz_strategy)(n % c->strategies);
    v->config = (pz_gemm_config){at[0], at[1], c->family, at[2], at[3], at[4]};
    return n < c->strategies;
}

void suite_fixed_configs(lab *l) {
    static const config_set sets[] = {
        {PZ_GEMM_SKINNY, {16, 32, 48, 64, 128}, {1, 2, 3, 5, 8, 16}, {1, 2, 4, 8, 16, -1}, {1, 2}, {0, 1, 3, -1}, 6},
        {PZ_GEMM_WIDE, {64, 128, 192, 256}, {1, 2, 3, 5, 8}, {1, 2, 3, -1}, {2, 3, 4, 6, 8}, {0, 3, -1}, 6},
        {PZ_GEMM_DEFAULT, {1}, {1}, {0, -1}, {1}, {0, -1}, 6}};
    static const config_set small_sets[] = {{PZ_GEMM_SKINNY, {16, 32}, {1, 2, 3}, {1, 2, -1}, {1, 2}, {0, 1, -1}, 6},
                                            {PZ_GEMM_WIDE, {64, 128}, {1, 2}, {1, 2, -1}, {2, 4}, {0, -1}, 6},
                                            {PZ_GEMM_DEFAULT, {1}, {1}, {0, -1}, {1}, {0, -1}, 6}};
    for (int i = 0; i < (l->small ? (int)N_SMALL : (int)N_SHAPES); i++) {
        gemm_spec s = spec_of(l, i, 0);
        gemm_problem p;
        gemm_problem_open(&p, l, &s);
        bases base = bases_of(&p);
        for (int set = 0; set < 3; set++) {
            const config_set *c = l->small ? &small_sets[set] : &sets[set];
            gemm_variant v;
            int taken = 0;
            for (int n = 0; combination(c, n, &v); n++) taken += same_bits(&p, &v, &base, 0, s.m);
            if (taken == 0 && takes(&p, c->family) && !gemm_family_absent(l, c->family))
                lab_fault(l, "m %d n %d k %d: no geometry of family %d was taken", s.m, s.n, s.k, c->family);
        }
        release_bases(l, &base);
        gemm_problem_close(&p);
    }
}

void suite_fixed_batches(lab *l) {
    static const gemm_variant variants[] = {{PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {.family = PZ_GEMM_DEFAULT}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_NONE, {.family = PZ_GEMM_DEFAULT}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {16, 3, PZ_GEMM_SKINNY, 2, 1, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {64, 2, PZ_GEMM_WIDE, 2, 0, 0}}};
    int largest = l->small ? 20 : BATCH;
    for (int i = 0; i < (l->small ? (int)N_SMALL : (int)N_SHAPES); i++) {
        gemm_spec s = spec_of(l, i, largest);
        gemm_problem p;
        gemm_problem_open(&p, l, &s);
        bases base = bases_of(&p);
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
            int taken = 0;
            for (int m = 1; m <= largest; m++) {
                taken += same_bits(&p, &variants[v], &base, 0, m);
                taken += same_bits(&p, &variants[v], &base, largest - m, m);
                taken += same_bits(&p, &variants[v], &base, m - 1, 1);
            }
            pz_gemm_family family = (pz_gemm_family)variants[v].config.family;
            if (taken < 3 * largest && takes(&p, family) && !gemm_family_absent(l, family))
                lab_fault(l, "n %d k %d: only %d batches of variant %zu were taken", s.n, s.k, taken, v);
        }
        release_bases(l, &base);
        gemm_problem_close(&p);
    }
}
