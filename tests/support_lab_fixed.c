/* SPDX-License-Identifier: Apache-2.0 */
/* FIXED: one row has one result, bit by bit, whatever the run, the family of kernels, the geometry, the strategy and
 * the rows beside it: that of one launch of SKINNY, which is compared with float64. */
#include "support_lab.h"

#include "plan/gemm_unit.h"

enum { BATCH = 128 };

static const struct {
    int m, n, k;
} shapes[] = {{4, 384, 7168}, {16, 3072, 1536}, {1, 2112, 7168}, {33, 200, 2064}, {150, 130, 1088}, {8, 7168, 2048}},
  small_shapes[] = {{3, 24, 448}, {17, 40, 272}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_SMALL = sizeof small_shapes / sizeof *small_shapes };

static gemm_spec spec_of(const lab *l, int i, int m) {
    gemm_spec s = {.m = l->small ? small_shapes[i].m : shapes[i].m,
                   .n = l->small ? small_shapes[i].n : shapes[i].n,
                   .k = l->small ? small_shapes[i].k : shapes[i].k,
                   .pad_x = 8,
                   .pad_y = i % 2 ? 3 : 4, /* rows of y at multiples of 16 bytes, and not */
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

static bool takes(const gemm_problem *p, pz_gemm_family family) {
    return (family != PZ_GEMM_WIDE || p->spec.k % 64 == 0) && !gemm_family_absent(p->l, family);
}

/* The reference of all rows. */
static uint8_t *base_of(gemm_problem *p) {
    static const gemm_variant v = {PZ_ACCUM_FIXED, PZ_ZERO_NONE, {32, 1, PZ_GEMM_SKINNY, 2, 0, 0}};
    pz_error err;
    uint8_t *base = p->l->alloc(p->l, (size_t)(p->spec.m * p->ldy) * 4);
    if (run_rows(p, &v, 0, p->spec.m, base, &err) != PZ_OK)
        lab_fault(p->l, "fixed, m %d n %d k %d: %s", p->spec.m, p->spec.n, p->spec.k, err.msg);
    elem_check check = {{base, p->ldy, PZ_ELEM_FIXED, p->x_norm, p->w_norm},
                        p->sum,
                        p->abs,
                        p->squares,
                        p->spec.n,
                        {.accum = PZ_ACCUM_FIXED, .k = p->spec.k, .unit = gemm_unit(&p->spec)},
                        p->wrong};
    lab_check(p->l, check, (int64_t)p->spec.m * p->spec.n, NULL);
    elem_result r = lab_result_get(p->l, p->wrong);
    lab_result_clear(p->l, p->wrong);
    if (r.wrong)
        lab_fault(p->l, "fixed, m %d n %d k %d: %llu elements are not within the bound of float64", p->spec.m,
                  p->spec.n, p->spec.k, r.wrong);
    return base;
}

/* One variant against the reference, m rows from `row` on; whether it was taken. */
static bool same_bits(gemm_problem *p, const gemm_variant *v, const uint8_t *base, int row, int m) {
    pz_error err;
    char text[160];
    uint8_t *y = p->y + GEMM_GUARD;
    if (lab_done(p->l)) return false;
    if (run_rows(p, v, row, m, y, &err) != PZ_OK) return false;
    unsigned long long n = different(p, y, base, row, m);
    gemm_variant_text(v, text);
    if (n)
        lab_fault(p->l, "n %d k %d, rows %d to %d, %s: %llu elements have other bits than the same rows before",
                  p->spec.n, p->spec.k, row, row + m - 1, text, n);
    return true;
}

void suite_fixed_repeat(lab *l) {
    static const gemm_variant variants[] = {{PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {16, 3, PZ_GEMM_SKINNY, 1, 0, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {.family = PZ_GEMM_DEFAULT}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_SELF, {32, 3, PZ_GEMM_SKINNY, 2, 1, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_TICKET, {16, 2, PZ_GEMM_SKINNY, 2, 2, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_REDUCE, {16, 3, PZ_GEMM_SKINNY, 4, 0, 1}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_MEMSET, {.family = PZ_GEMM_DEFAULT}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {64, 3, PZ_GEMM_GROUP, 2, 0, 1}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {64, 2, PZ_GEMM_WIDE, 1, 4, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_SELF, {64, 2, PZ_GEMM_WIDE, 3, 2, 1}}};
    int runs = l->small ? 10 : 1000;
    for (int i = 0; i < (l->small ? 1 : 3); i++) {
        gemm_spec s = spec_of(l, i, 0);
        gemm_problem p;
        gemm_problem_open(&p, l, &s);
        uint8_t *base = base_of(&p);
        int taken = 0;
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
            for (int r = 0; r < runs && l->faults == 0; r++) taken += same_bits(&p, &variants[v], base, 0, s.m);
        if (taken < 4 * runs) lab_fault(l, "m %d n %d k %d: only %d runs were taken", s.m, s.n, s.k, taken);
        l->release(l, base);
        gemm_problem_close(&p);
    }
}

typedef struct config_set {
    pz_gemm_family family;
    int tile_n[6], split[7], warps[6], stages[6], depth[4], strategies;
} config_set;

/* Number n of the set's combinations in mixed radix; lists end with 0, those that may hold a 0 with -1. */
static bool combination(const config_set *c, int n, gemm_variant *v) {
    const int *const lists[] = {c->tile_n, c->split, c->warps, c->stages, c->depth};
    const int ends[] = {0, 0, -1, -1, -1};
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

/* Rows [row, row + m) in every geometry of the set. */
static void try_set(gemm_problem *p, const config_set *c, const uint8_t *base, int row, int m) {
    gemm_variant v;
    int taken = 0;
    if (!takes(p, c->family)) return;
    for (int n = 0; combination(c, n, &v); n++) taken += same_bits(p, &v, base, row, m);
    if (taken == 0)
        lab_fault(p->l, "m %d n %d k %d: no geometry of family %d was taken", m, p->spec.n, p->spec.k, c->family);
}

void suite_fixed_configs(lab *l) {
    static const config_set sets[] = {
        {PZ_GEMM_SKINNY,
         {16, 32, 48, 64, 128},
         {1, 2, 3, 5, 8, 16},
         {1, 2, 4, 8, 16, -1},
         {0, 2, -1},
         {0, 1, 3, -1},
         6},
        {PZ_GEMM_GROUP, {64, 128, 192, 256}, {1, 2, 3, 5, 8, 16}, {1, 2, 3, 4, -1}, {0, 2, -1}, {0, 1, 3, -1}, 6},
        {PZ_GEMM_WIDE, {64, 128, 192, 256}, {1, 2, 3, 5, 8}, {1, 2, 3, -1}, {0, 1, 2, 3, 5, -1}, {0, 1, 3, -1}, 6},
        {PZ_GEMM_DEFAULT, {1}, {1}, {0, -1}, {0, -1}, {0, -1}, 6}};
    static const config_set small_sets[] = {
        {PZ_GEMM_SKINNY, {16, 32}, {1, 2, 3}, {1, 2, -1}, {0, 1, -1}, {0, 1, -1}, 6},
        {PZ_GEMM_GROUP, {64, 128}, {1, 2, 3}, {1, 2, -1}, {0, 1, -1}, {0, 1, -1}, 6},
        {PZ_GEMM_WIDE, {64, 128}, {1, 2}, {1, 2, 3, -1}, {0, 2, -1}, {0, -1}, 6},
        {PZ_GEMM_DEFAULT, {1}, {1}, {0, -1}, {0, -1}, {0, -1}, 6}};
    enum { SETS = sizeof sets / sizeof *sets };
    for (int i = 0; i < (l->small ? (int)N_SMALL : (int)N_SHAPES); i++) {
        gemm_spec s = spec_of(l, i, 0);
        gemm_problem p;
        gemm_problem_open(&p, l, &s);
        uint8_t *base = base_of(&p);
        for (int set = 0; set < SETS; set++) try_set(&p, l->small ? &small_sets[set] : &sets[set], base, 0, s.m);
        l->release(l, base);
        gemm_problem_close(&p);
    }
}

void suite_fixed_batches(lab *l) {
    static const gemm_variant variants[] = {{PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {.family = PZ_GEMM_DEFAULT}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_NONE, {.family = PZ_GEMM_DEFAULT}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {16, 3, PZ_GEMM_SKINNY, 2, 0, 1}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {64, 3, PZ_GEMM_GROUP, 2, 0, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {64, 2, PZ_GEMM_WIDE, 1, 0, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {64, 2, PZ_GEMM_WIDE, 2, 0, 0}},
                                            {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {192, 2, PZ_GEMM_WIDE, 1, 3, 1}}};
    int largest = l->small ? 20 : BATCH;
    for (int i = 0; i < (l->small ? (int)N_SMALL : (int)N_SHAPES); i++) {
        gemm_spec s = spec_of(l, i, largest);
        gemm_problem p;
        gemm_problem_open(&p, l, &s);
        uint8_t *base = base_of(&p);
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
            int taken = 0;
            if (!takes(&p, (pz_gemm_family)variants[v].config.family)) continue;
            for (int m = 1; m <= largest; m++) {
                taken += same_bits(&p, &variants[v], base, 0, m);
                taken += same_bits(&p, &variants[v], base, largest - m, m);
                taken += same_bits(&p, &variants[v], base, m - 1, 1);
            }
            if (taken < 3 * largest)
                lab_fault(l, "n %d k %d: only %d batches of variant %zu were taken", s.n, s.k, taken, v);
        }
        l->release(l, base);
        gemm_problem_close(&p);
    }
}

/* Sums of warpgroups that need more shared memory than the copies of x and w: barriers that they had overwritten came
 * back in one launch of a hundred. A block has one unit of K, so that all warpgroups but one have none. */
void suite_fixed_sums(lab *l) {
    int longer = 0;
    int runs = l->small ? 2 : 500, k = l->small ? 896 : 7168;
    for (int m = 32; m <= 128; m *= 2) {
        gemm_spec s = {.m = m, .n = l->small ? 40 : 256, .k = k, .seed = 300};
        gemm_problem p;
        gemm_problem_open(&p, l, &s);
        uint8_t *base = base_of(&p);
        for (int warps = 2; warps <= 3 && takes(&p, PZ_GEMM_WIDE); warps++) {
            gemm_variant v = {PZ_ACCUM_FIXED, PZ_ZERO_PREZERO, {64, k / 128, PZ_GEMM_WIDE, warps, 0, 0}};
            pz_gemm_rings at;
            int taken = 0, tile_m = pz_gemm_wide_rows(m, PZ_ACCUM_FIXED, warps);
            if (!pz_gemm_lay_out_rings(&v.config, tile_m, s.n, k, &at) ||
                at.head == (int64_t)at.w_slots * at.w_bytes + (int64_t)at.x_slots * at.x_bytes)
                continue;
            longer++;
            for (int r = 0; r < runs && !lab_done(l); r++) taken += same_bits(&p, &v, base, 0, m);
            if (taken < runs && l->faults == 0)
                lab_fault(l, "m %d, %d warpgroups: only %d runs were taken", m, warps, taken);
        }
        l->release(l, base);
        gemm_problem_close(&p);
    }
    if (longer < 5 && !gemm_family_absent(l, PZ_GEMM_WIDE))
        lab_fault(l, "only %d geometries have sums that are longer than their rings", longer);
}

/* ---- edges ---- */
enum { MOST_COLUMNS = 1 << 24 };

/* The least n at which a unit of K is longer than at `from`; MOST_COLUMNS: there is none. */
static int longer_unit_from(int k, int from) {
    int lo = from, hi = MOST_COLUMNS;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (pz_gemm_unit(mid, k) > pz_gemm_unit(from, k))
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Rings and slots that hold hardly more than what is multiplied at once, so that what is loaded next waits for those
 * who share them; with all rows and with one. */
static void try_edge(lab *l, int m, int n, int k) {
    static const config_set sets[] = {
        {PZ_GEMM_SKINNY, {32, 256}, {1, 2, 3, 7}, {1, 3, 8, -1}, {0, 1, 2, -1}, {0, 1, -1}, 2},
        {PZ_GEMM_GROUP, {64, 256}, {1, 2, 3, 7}, {1, 3, 4, -1}, {0, 1, 2, -1}, {0, 1, -1}, 2},
        {PZ_GEMM_WIDE, {64, 128, 192}, {1, 2, 3, 7}, {1, 2, 3, -1}, {0, 1, 2, 3, -1}, {0, 1, 2, -1}, 2}};
    static const config_set few_sets[] = {{PZ_GEMM_SKINNY, {256}, {1, 2}, {1, -1}, {1, -1}, {0, -1}, 2},
                                          {PZ_GEMM_GROUP, {256}, {1, 2}, {1, -1}, {1, -1}, {0, -1}, 2},
                                          {PZ_GEMM_WIDE, {64}, {1, 2}, {3, -1}, {1, -1}, {0, -1}, 2}};
    enum { SETS = sizeof sets / sizeof *sets };
    gemm_spec s = {.m = m, .n = n, .k = k, .pad_w = 8, .seed = 200 + (uint64_t)n};
    gemm_problem p;
    if (lab_done(l)) return;
    gemm_problem_open(&p, l, &s);
    uint8_t *base = base_of(&p);
    for (int set = 0; set < SETS; set++) {
        const config_set *c = l->small ? &few_sets[set] : &sets[set];
        try_set(&p, c, base, 0, m);
        try_set(&p, c, base, m - 1, 1);
    }
    l->release(l, base);
    gemm_problem_close(&p);
}

void suite_fixed_edges(lab *l) {
    static const int ks[] = {192, 7232, 2432}; /* odd numbers of 64, and of chunks */
    if (l->small) {
        int first = longer_unit_from(384, 1), second = longer_unit_from(640, longer_unit_from(640, 1));
        try_edge(l, 3, 70, 192);
        try_edge(l, 1, first - 1, 384);
        try_edge(l, 1, first, 384); /* the last unit is a half, */
        try_edge(l, 1, second - 1, 640);
        try_edge(l, 1, second, 640); /* and here a quarter */
        return;
    }
    for (int i = 0; i < 3; i++) {
        int m = i == 0 ? 8 : 128;
        try_edge(l, 128, 200, ks[i]);
        try_edge(l, 33, 72, ks[i]);
        for (int n = longer_unit_from(ks[i], 1); n < MOST_COLUMNS; n = longer_unit_from(ks[i], n)) {
            try_edge(l, m, n - 1, ks[i]);
            try_edge(l, m, n, ks[i]);
            try_edge(l, 16, n, ks[i]);
        }
    }
}
