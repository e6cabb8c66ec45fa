/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tune_cases.h"

#include <math.h>

enum {
    FINALISTS = 3,
    GEOMETRIES_OFF = 6, /* split ones that are tried with every strategy that zeroes or adds up by itself */
    SEEDS = 3,          /* geometries whose neighbours are tried in one step */
    ACCUMS = PZ_ACCUM_BF16 + 1
};
enum { FIRST_STEP = 36, SECOND_STEP = 20, THIRD_STEP = 12 };
static const int step_most[PZ_TUNE_STEPS] = {FIRST_STEP, SECOND_STEP, THIRD_STEP};
_Static_assert(PZ_MAX_CANDIDATES + 1 + PZ_TUNE_CARRIED + FIRST_STEP + SECOND_STEP + THIRD_STEP <= PZ_TUNE_QUICK,
               "all quick launches");

bool pz_tune_is_blas(const pz_tune_case *c) {
    return c->choice.config.family == PZ_GEMM_CUBLASLT;
}
bool pz_tune_is_on(const pz_tune_case *c) {
    return c->choice.strategy == PZ_ZERO_PREZERO || c->choice.strategy == PZ_ZERO_NONE;
}

static pz_strategy strategy_on(const pz_gemm_config *c) {
    return c->split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE;
}

static bool has(const pz_tune_cases *c, pz_strategy strategy, const pz_gemm_config *config) {
    for (int i = 0; i < c->tried; i++) {
        const pz_gemm_choice *o = &c->at[i].choice;
        if (o->strategy == strategy && memcmp(&o->config, config, sizeof *config) == 0) return true;
    }
    return false;
}

static void add(pz_tune_cases *c, int most, const pz_gemm_shape *shape, pz_strategy strategy,
                const pz_gemm_config *config) {
    if (c->n >= most || has(c, strategy, config)) return;
    c->at[c->n++] = (pz_tune_case){.accum = shape->accum, .choice = {.strategy = strategy, .config = *config}};
    c->tried = c->n;
}

static void copy(pz_tune_cases *c, const pz_tune_case *e) {
    c->at[c->n++] = *e;
    c->tried = c->n;
}

static int faster(const void *a, const void *b) {
    const pz_tune_case *x = a, *y = b;
    if ((x->status != PZ_OK) != (y->status != PZ_OK)) return x->status != PZ_OK ? 1 : -1;
    return (x->choice.us > y->choice.us) - (x->choice.us < y->choice.us);
}

void pz_tune_sort(pz_tune_cases *c) {
    qsort(c->at, (size_t)c->tried, sizeof *c->at, faster);
    for (c->n = c->tried; c->n > 0 && c->at[c->n - 1].status != PZ_OK;) c->n--;
}

void pz_tune_merge(pz_tune_cases *all, const pz_tune_cases *more) {
    for (int i = 0; i < more->tried && all->tried < PZ_TUNE_QUICK; i++) all->at[all->tried++] = more->at[i];
    pz_tune_sort(all);
}

/* ---- the first round ---- */
/* Rows of the same weight: of each accumulator the one with as many rows, the next with fewer, the next with more. */
static void carry_over(const pz_tune_plan *plan, const pz_tuned *table, const pz_gemm_shape *s, pz_tune_cases *c) {
    const pz_tuned_row *of[3][ACCUMS] = {{NULL}};
    for (int i = 0; i < table->rows.n; i++) {
        const pz_tuned_row *r = &table->rows.at[i];
        if (r->shape.n != s->n || r->shape.k != s->k || r->shape.weight != s->weight) continue;
        const pz_tuned_row **same = &of[0][r->shape.accum], **fewer = &of[1][r->shape.accum],
                           **more = &of[2][r->shape.accum];
        if (r->shape.m == s->m) *same = r;
        if (r->shape.m < s->m) *fewer = r;
        if (r->shape.m > s->m && !*more) *more = r;
    }
    int most = c->n + PZ_TUNE_CARRIED;
    for (int k = 0; k < 3 * ACCUMS; k++)
        for (int off = 0; of[k / ACCUMS][k % ACCUMS] && off < 2; off++) {
            const pz_tuned_row *r = of[k / ACCUMS][k % ACCUMS];
            const pz_gemm_config *g = off ? &r->off.config : &r->on.config;
            if (isfinite(pz_gemm_estimate(plan->dev, s, g, strategy_on(g)))) add(c, most, s, strategy_on(g), g);
        }
}

void pz_tune_first(const pz_tune_plan *plan, const pz_tuned *table, const pz_gemm_shape *shape, pz_tune_cases *out) {
    pz_gemm_candidate at[PZ_MAX_CANDIDATES];
    int n = pz_gemm_candidates(plan->dev, shape, at, plan->quick ? PZ_MAX_CANDIDATES / 3 : PZ_MAX_CANDIDATES);
    pz_gemm_config blas = {.family = PZ_GEMM_CUBLASLT, .split = 1, .stages = PZ_MEASURE_BEST};
    out->n = out->tried = 0;
    for (int i = 0; i < n; i++) add(out, PZ_MAX_CANDIDATES, shape, strategy_on(&at[i].config), &at[i].config);
    carry_over(plan, table, shape, out);
    add(out, PZ_TUNE_QUICK, shape, PZ_ZERO_NONE, &blas);
    if (shape->accum == PZ_ACCUM_FIXED) out->at[out->n - 1].accum = PZ_ACCUM_F32; /* a reference: no fixed sums */
}

/* ---- the steps ---- */
/* The fastest geometries, of each family and tile one. */
static int find_seeds(const pz_tune_cases *c, const pz_gemm_config *seeds[SEEDS]) {
    int n = 0;
    for (int i = 0; i < c->n && n < SEEDS; i++) {
        const pz_gemm_config *g = &c->at[i].choice.config;
        bool known = pz_tune_is_blas(&c->at[i]);
        for (int k = 0; k < n; k++) known |= seeds[k]->family == g->family && seeds[k]->tile_n == g->tile_n;
        if (!known) seeds[n++] = g;
    }
    return n;
}

void pz_tune_near(const pz_tune_plan *plan, const pz_gemm_shape *shape, const pz_tune_cases *measured, int step,
                  pz_tune_cases *out) {
    const pz_gemm_config *seeds[SEEDS];
    pz_gemm_config to[SEEDS][PZ_MAX_NEIGHBOURS];
    int n = find_seeds(measured, seeds), steps[SEEDS], most = step_most[step] / (plan->quick ? 3 : 1);
    out->n = out->tried = 0;
    for (int s = 0; s < n; s++) steps[s] = pz_gemm_neighbours(plan->dev, shape, seeds[s], to[s]);
    for (int i = 0; i < PZ_MAX_NEIGHBOURS; i++)
        for (int s = 0; s < n; s++)
            if (i < steps[s] && !has(measured, strategy_on(&to[s][i]), &to[s][i]))
                add(out, most, shape, strategy_on(&to[s][i]), &to[s][i]);
}

/* ---- the last rounds ---- */
void pz_tune_longer(const pz_tune_plan *plan, const pz_gemm_shape *shape, const pz_tune_cases *measured,
                    pz_tune_cases *out) {
    static const pz_strategy without[] = {PZ_ZERO_SELF, PZ_ZERO_REDUCE, PZ_ZERO_TICKET, PZ_ZERO_MEMSET};
    int most = plan->quick ? 4 : 8, of[2] = {0, 0}, rank = 0, off = 0;
    out->n = out->tried = 0;
    for (int i = 0; i < measured->n; i++) {
        const pz_gemm_config *g = &measured->at[i].choice.config;
        if (pz_tune_is_blas(&measured->at[i])) {
            copy(out, &measured->at[i]);
            continue;
        }
        bool split = g->split > 1;
        if (rank >= most && of[split] >= 2) continue;
        of[split]++;
        add(out, PZ_TUNE_LONGER, shape, strategy_on(g), g);
        pz_gemm_config v[PZ_MAX_VARIANTS];
        int variants = rank++ < most - most / 4 ? pz_gemm_variants(shape, g, v) : 0;
        for (int k = 0; k < variants; k++) add(out, PZ_TUNE_LONGER, shape, strategy_on(g), &v[k]);
        if (!split || off++ >= GEOMETRIES_OFF) continue;
        for (size_t s = 0; s < sizeof without / sizeof *without; s++) add(out, PZ_TUNE_LONGER, shape, without[s], g);
    }
}

void pz_tune_last(const pz_gemm_shape *shape, const pz_tune_cases *measured, pz_tune_cases *out) {
    int whole = 0, on = 0, off = 0;
    const pz_gemm_config *best_on = NULL;
    out->n = out->tried = 0;
    for (int i = 0; i < measured->n; i++) {
        const pz_tune_case *e = &measured->at[i];
        int *kind = e->choice.strategy == PZ_ZERO_NONE ? &whole : pz_tune_is_on(e) ? &on : &off;
        if (pz_tune_is_blas(e))
            copy(out, e);
        else if ((*kind)++ < FINALISTS)
            add(out, PZ_TUNE_FINAL, shape, e->choice.strategy, &e->choice.config);
        if (!best_on && e->choice.strategy == PZ_ZERO_PREZERO) best_on = &e->choice.config;
    }
    for (int i = 0; best_on && i < measured->n; i++)
        if (!pz_tune_is_on(&measured->at[i])) {
            add(out, PZ_TUNE_FINAL, shape, measured->at[i].choice.strategy, best_on);
            break;
        }
}
