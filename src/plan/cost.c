/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/cost.h"

#include <math.h>

#include "plan/gemm_unit.h"

/* Few: families skinny and group. */
enum {
    MAX_SPLIT = 64,     /* more adds into one element never paid */
    FEW_ROWS = 32,      /* of one tile of few; more rows are several tiles, each of which reads the weights again */
    HALF_SMEM = 113920, /* that a block may take where two are to be on an SM */
    SM_SMEM = 229888,   /* of an SM, without what the norm takes; a block takes BLOCK_SMEM more than it asks for */
    BLOCK_SMEM = 1024,
    SM_REGISTERS = 65536
};

/* Times in us, rates a us; fitted to measurements on an H200 by hand, so they rank but do not predict. */
static const double launch_us = 1.2, reduce_us = 0.6, ticket_us = 1.2, memset_us = 1.6;
static const double wave_us = 1.5;      /* blocks that start when others have ended have nothing prefetched */
static const double l2_bytes = 1e5;     /* that one SM reads from L2 */
static const double l2_all_bytes = 5e6; /* that all of them move through L2 */
static const double adds = 2e6;         /* 32-bit adds into L2 */
static const double add_us = 0.01;      /* one add after another into one element */
static const double mmas = 1.0e3;       /* m16n8k16 of one SM */
static const double wgmmas = 4.0e3;     /* the same work by wgmma, which takes no less time for fewer than 32 rows */
static const double sm_share = 1.6; /* of its equal part of the bandwidth, what one SM can take if others take less */
static const double in_flight = 32768; /* bytes an SM must have asked for to read at full rate */
/* one chunk of one warp, and each 8 rows of it */
static const double chunk_us = 0.06, chunk_rows_us = 0.02, group_us = 0.07, group_rows_us = 0.005, wide_chunk_us = 0.06;
static const double late_chunks = 3;     /* of a warp, are multiplied after all has been read; the others meanwhile, */
static const double early_us = 0.04;     /* but hold up what is read after them */
static const double late_products = 0.5; /* of the tensor cores of few likewise */
static const double sums_us = 0.06, warp_us = 0.02,
                    share_us = 0.2; /* sums of warps, of warpgroups meet in shared memory */

static bool is_few(const pz_gemm_config *c) {
    return c->family == PZ_GEMM_SKINNY || c->family == PZ_GEMM_GROUP;
}

static bool has_wgmma(const pz_device *dev) {
    return dev->sm == 90;
}

static int tile_step(int family) {
    return family == PZ_GEMM_SKINNY ? 16 : 64;
}

static int most_warps(int family, int tile) {
    return family == PZ_GEMM_WIDE ? PZ_GEMM_MAX_GROUPS / (tile / 64) : PZ_GEMM_MAX_WARPS / (tile / 16);
}

/* ---- what a block has ---- */
typedef struct layout {
    int rows;           /* of x in a tile */
    int64_t part, held; /* chunks of the longest part of K; of those, the ones that one warp (wide: warpgroup) has */
    int64_t stages;     /* chunks in shared memory: of a warp, of the ring of w */
    int64_t smem;
    int per_sm; /* blocks that an SM can have at once */
} layout;

static int blocks_per_sm(int64_t smem, int threads, int registers) {
    int64_t n = pz_min64(SM_SMEM / (smem + BLOCK_SMEM), SM_REGISTERS / ((int64_t)threads * registers));
    return n < 1 ? 1 : (int)n;
}

static bool few_layout(const pz_gemm_shape *s, const pz_gemm_config *c, int rows, layout *l) {
    pz_gemm_slots at;
    if (!pz_gemm_lay_out_slots(c, s->m, rows, s->n, s->k, &at)) return false;
    l->rows = rows;
    l->stages = at.slots;
    l->smem = (int64_t)at.slots * at.slot + at.x_bytes + at.sum_bytes;
    l->per_sm = blocks_per_sm(l->smem, 2 * c->tile_n * c->warps, 96);
    return true;
}

static bool wide_layout(const pz_gemm_shape *s, const pz_gemm_config *c, layout *l) {
    int groups = c->tile_n / 64 * c->warps;
    pz_gemm_rings at;
    l->rows = pz_gemm_wide_rows(s->m, s->accum, groups);
    if (!pz_gemm_lay_out_rings(c, l->rows, s->n, s->k, &at)) return false;
    l->stages = at.w_slots / 2;
    l->smem = at.smem;
    int halves = pz_gemm_wide_halves(l->rows, s->accum, groups);
    l->per_sm = blocks_per_sm(l->smem, pz_gemm_wide_threads(groups, halves),
                              PZ_GEMM_WIDE_REGISTERS(l->rows / halves, s->accum == PZ_ACCUM_FIXED));
    return true;
}

/* False: the kernels would refuse it. */
static bool lay_out(const pz_gemm_shape *s, const pz_gemm_config *c, layout *l) {
    int64_t unit = pz_gemm_unit(s->n, s->k), units = pz_gemm_units(s->n, s->k);
    int step = tile_step(c->family);
    if (c->tile_n < step || c->tile_n % step || c->warps < 1 || c->warps > most_warps(c->family, c->tile_n) ||
        c->split < 1 || c->split > units || c->stages < 0)
        return false;
    int64_t longest = pz_ceil_div(units, c->split);
    l->part = longest * unit;
    l->held = pz_ceil_div(longest, c->warps) * unit;
    if (c->family == PZ_GEMM_WIDE) return s->k % 64 == 0 && wide_layout(s, c, l);
    if (!is_few(c)) return false;
    int rows = s->m <= 8 ? 8 : s->m <= 16 ? 16 : FEW_ROWS;
    while (!few_layout(s, c, rows, l))
        if ((rows /= 2) < 1) return false;
    return true;
}

static int64_t count_blocks(const pz_gemm_shape *s, const pz_gemm_config *c, int rows) {
    return pz_ceil_div(s->n, c->tile_n) * c->split * pz_ceil_div(s->m, rows);
}

int64_t pz_gemm_blocks(const pz_gemm_shape *s, const pz_gemm_config *c) {
    layout l;
    return lay_out(s, c, &l) ? count_blocks(s, c, l.rows) : 0;
}

/* ---- its time ---- */
static double strategy_us(const pz_device *dev, const pz_gemm_shape *s, const pz_gemm_config *c, pz_strategy strategy) {
    double outputs = (double)s->m * (double)s->n, parts = outputs * c->split;
    double added = parts / adds + add_us * c->split;
    switch (strategy) {
    case PZ_ZERO_NONE: return outputs * 4 / l2_all_bytes;
    case PZ_ZERO_PREZERO: return added;
    case PZ_ZERO_SELF: return added + pz_gate_replaced(dev, (int64_t)outputs * 4, 1);
    case PZ_ZERO_MEMSET: return added + memset_us;
    case PZ_ZERO_REDUCE: return 2 * parts * 4 / l2_all_bytes + reduce_us;
    case PZ_ZERO_TICKET: return 2 * parts * 4 / l2_all_bytes + ticket_us;
    }
    return INFINITY;
}

static double late(const layout *l) {
    return (double)l->held < late_chunks ? (double)l->held : late_chunks;
}

/* What is left to do when all weights have been read. */
static double after_reading(const pz_gemm_config *c, const layout *l, double row_groups) {
    if (c->family == PZ_GEMM_WIDE) return wide_chunk_us * late(l) + share_us * (c->warps - 1);
    double chunk =
        c->family == PZ_GEMM_GROUP ? group_us + group_rows_us * row_groups : chunk_us + chunk_rows_us * row_groups;
    return late(l) * chunk + ((double)l->held - late(l)) * early_us + (c->warps > 1 ? sums_us + warp_us * c->warps : 0);
}

/* Without what the strategy costs. */
static double launch_time(const pz_device *dev, const pz_gemm_shape *s, const pz_gemm_config *c) {
    layout l;
    if ((c->family != PZ_GEMM_SKINNY && !has_wgmma(dev)) || !lay_out(s, c, &l)) return INFINITY;
    int64_t k = pz_min64(l.part * PZ_GEMM_CHUNK, s->k), rows = pz_min64(s->m, l.rows),
            blocks = count_blocks(s, c, l.rows);
    double busiest = (double)pz_ceil_div(blocks, dev->units); /* blocks of one SM */
    double weights = (double)pz_min64(c->tile_n, s->n) * (double)k * 2, x = (double)rows * (double)k * 2;
    double resident = busiest < l.per_sm ? busiest : l.per_sm, waves = ceil(busiest / l.per_sm);
    double chunk = (double)c->tile_n * PZ_GEMM_CHUNK * 2;
    double flying = resident * chunk * (is_few(c) ? (double)(c->warps * (l.stages + 1)) : (double)l.stages);
    double rate = sm_share * dev->bandwidth / dev->units;
    if (flying < in_flight) rate *= flying / in_flight;
    /* chunks that the slowest of the warps sharing them has, to those of the mean */
    double uneven = is_few(c) ? (double)(l.held * c->warps) / (double)l.part : 1;
    double all = (double)blocks * weights * (double)s->k / (double)(k * c->split) / dev->bandwidth,
           slowest = busiest * weights * uneven / rate, read = slowest > all ? slowest : all;
    double row_groups = (double)pz_ceil_div(rows, 8);
    bool skinny = c->family == PZ_GEMM_SKINNY;
    double products = (double)c->tile_n / 16 * (skinny || row_groups > 4 ? row_groups : 4) * (double)k / 16;
    if (is_few(c)) products *= late_products;
    double work = busiest * (x / l2_bytes + products / (skinny ? mmas : wgmmas));
    /* what the ring does not hold when x comes is multiplied while it is read */
    if (!is_few(c) && l.stages < l.part) work *= (double)l.stages / (double)l.part;
    return launch_us + read + work + after_reading(c, &l, row_groups) + wave_us * (waves - 1);
}

double pz_gemm_estimate(const pz_device *dev, const pz_gemm_shape *s, const pz_gemm_config *c, pz_strategy strategy) {
    if (strategy == PZ_ZERO_NONE && c->split > 1) return INFINITY;
    return launch_time(dev, s, c) + strategy_us(dev, s, c, strategy);
}

/* ---- geometries ---- */
typedef void (*visit_fn)(void *ctx, const pz_gemm_config *c);

/* Depths that are tried, the first of them first. */
static const int few_depths[] = {1, 0}, wide_depths[] = {1, 2, 4, 0};
enum { FEW_DEPTHS = sizeof few_depths / sizeof *few_depths, WIDE_DEPTHS = sizeof wide_depths / sizeof *wide_depths };

/* As deep as there are chunks is as deep as can be. */
static pz_gemm_config with_depth(const pz_gemm_config *c, const layout *l, int depth) {
    pz_gemm_config out = *c;
    out.depth = depth < l->stages ? depth : 0;
    return out;
}

/* Chunks that leave room for a second block on the SM; 0: there is none, a block leaves it anyway, or registers do not.
 */
static int half_stages(const pz_device *dev, const pz_gemm_shape *s, const pz_gemm_config *c) {
    pz_gemm_config half = *c;
    layout l;
    half.stages = 0;
    if (c->family != PZ_GEMM_WIDE || !lay_out(s, &half, &l) || l.smem <= HALF_SMEM) return 0;
    if (count_blocks(s, c, l.rows) <= dev->units) return 0;
    half.stages = (HALF_SMEM - PZ_GEMM_WIDE_HEAD) / (256 * (c->tile_n + l.rows));
    return half.stages && lay_out(s, &half, &l) && l.per_sm > 1 ? half.stages : 0;
}

static void visit_stages(const pz_device *dev, const pz_gemm_shape *s, pz_gemm_config c, visit_fn fn, void *ctx) {
    layout l;
    for (int i = 0; i < 2; i++) {
        if (i > 0 && (c.stages = half_stages(dev, s, &c)) == 0) return;
        if (!lay_out(s, &c, &l)) return;
        pz_gemm_config first = with_depth(&c, &l, is_few(&c) ? few_depths[0] : wide_depths[0]);
        fn(ctx, &first);
    }
}

/* Not split; all splits that nearly fill the device once; of those with up to three blocks an SM the ones that fill
 * them best, and for each longest part of K the one with the fewest blocks. */
static void visit_splits(const pz_device *dev, const pz_gemm_shape *s, pz_gemm_config c, visit_fn fn, void *ctx) {
    int64_t units = pz_gemm_units(s->n, s->k);
    c.split = 1;
    visit_stages(dev, s, c, fn, ctx);
    for (int64_t split = 2; split <= pz_min64(units, MAX_SPLIT); split++) {
        c.split = (int)split;
        int64_t blocks = pz_gemm_blocks(s, &c), tiles = blocks / split;
        bool shortest = split == pz_ceil_div(units, pz_ceil_div(units, split));
        bool fullest = (blocks + tiles - 1) / dev->units != (blocks - 1) / dev->units;
        bool once = 4 * blocks >= 3 * (int64_t)dev->units && blocks <= dev->units;
        if (blocks > 0 && blocks <= 3 * (int64_t)dev->units && (once || shortest || fullest))
            visit_stages(dev, s, c, fn, ctx);
    }
}

/* Warps that share a part of K, as far as they fit beside a tile's. */
static const int few_warps[] = {1, 2, 3, 4, 6, 7, 8, 12, 14, 16};
enum { FEW_WARPS = sizeof few_warps / sizeof *few_warps };

static void visit_few(const pz_device *dev, const pz_gemm_shape *s, int family, visit_fn fn, void *ctx) {
    int step = tile_step(family);
    int64_t widest = pz_ceil_div(s->n, step) * step;
    for (int tile = step; tile <= 16 * PZ_GEMM_MAX_WARPS && tile <= widest; tile += step)
        for (int w = 0; w < FEW_WARPS && few_warps[w] <= most_warps(family, tile); w++)
            if (few_warps[w] <= pz_gemm_units(s->n, s->k))
                visit_splits(dev, s, (pz_gemm_config){.tile_n = tile, .family = family, .warps = few_warps[w]}, fn,
                             ctx);
}

static void visit_all(const pz_device *dev, const pz_gemm_shape *s, visit_fn fn, void *ctx) {
    bool wide = s->k % 64 == 0 && has_wgmma(dev);
    if (s->m <= FEW_ROWS || !wide) {
        visit_few(dev, s, PZ_GEMM_SKINNY, fn, ctx);
        if (has_wgmma(dev)) visit_few(dev, s, PZ_GEMM_GROUP, fn, ctx);
    }
    for (int columns = 1; wide && columns <= PZ_GEMM_MAX_GROUPS && 64 * (columns - 1) < s->n; columns++)
        for (int shares = 1; shares * columns <= PZ_GEMM_MAX_GROUPS && shares <= pz_gemm_units(s->n, s->k); shares++)
            visit_splits(dev, s, (pz_gemm_config){.tile_n = 64 * columns, .family = PZ_GEMM_WIDE, .warps = shares}, fn,
                         ctx);
}

/* ---- the model's choice ---- */
typedef struct pick {
    pz_strategy strategy;
    pz_gemm_config config;
    double us;
} pick;

typedef struct search {
    const pz_device *dev;
    const pz_gemm_shape *shape;
    pick *of;
    int n;
} search;

static void keep_best(void *ctx, const pz_gemm_config *c) {
    search *s = ctx;
    double launch = INFINITY;
    for (int i = 0; i < s->n; i++) {
        pick *b = &s->of[i];
        if ((c->split == 1) != (b->strategy == PZ_ZERO_NONE)) continue;
        if (isinf(launch)) launch = launch_time(s->dev, s->shape, c);
        double us = launch + strategy_us(s->dev, s->shape, c, b->strategy);
        if (us >= b->us) continue;
        b->us = us;
        b->config = *c;
    }
}

static void search_best(const pz_device *dev, const pz_gemm_shape *shape, pick *of, int n) {
    search s = {dev, shape, of, n};
    for (int i = 0; i < n; i++) {
        of[i].us = INFINITY;
        of[i].config = (pz_gemm_config){.tile_n = 64, .split = 1, .family = PZ_GEMM_SKINNY, .warps = 4};
    }
    visit_all(dev, shape, keep_best, &s);
}

pz_gemm_config pz_gemm_model_for(const pz_device *dev, const pz_gemm_shape *shape, pz_strategy strategy) {
    pick one = {.strategy = strategy};
    search_best(dev, shape, &one, 1);
    return one.config;
}

pz_gemm_choices pz_gemm_model(const pz_device *dev, const pz_gemm_shape *shape) {
    pick all[] = {{.strategy = PZ_ZERO_NONE},
                  {.strategy = PZ_ZERO_PREZERO},
                  {.strategy = PZ_ZERO_SELF},
                  {.strategy = PZ_ZERO_REDUCE}};
    const pick *none = &all[0], *zeroed = &all[1], *self = &all[2], *reduce = &all[3];
    search_best(dev, shape, all, sizeof all / sizeof *all);
    const pick *on = zeroed->us < none->us ? zeroed : none;
    const pick *off = reduce->us < self->us ? reduce : self;
    if (none->us <= off->us) off = none;
    return (pz_gemm_choices){.on = {.strategy = on->strategy, .config = on->config},
                             .off = {.strategy = off->strategy, .config = off->config}};
}

/* ---- candidates ---- */
/* What is fastest is close to other geometries of its kind, and far from what the model thinks of another kind. So each
 * kind gives its best. */
enum {
    FAMILIES = 3,
    WAVES = 3, /* not split; split, and at most a block an SM; more blocks */
    KINDS = FAMILIES * WAVES,
    MAX_KIND = 32,
    COVER_STEP = 32, /* of tiles of skinny; the other families have few */
    MAX_COVER = 32
};
static const double far = 1.4, farther = 2, likeness = 0.02; /* relative to the best of all, twice; to its own time */

typedef struct kind {
    pz_gemm_candidate at[MAX_KIND]; /* ascending */
    int n, next, given, turn;       /* the given ones are the first of `at` */
} kind;

typedef struct ranking {
    const pz_device *dev;
    const pz_gemm_shape *shape;
    kind kinds[KINDS];
    pz_gemm_candidate cover[MAX_COVER]; /* the best of each tile, of wide of each tile and number of warpgroups */
    int n_cover;
} ranking;

static void insert(pz_gemm_candidate *at, int *n, int max, const pz_gemm_candidate *c) {
    if (*n == max && c->us >= at[*n - 1].us) return;
    int i = *n < max ? (*n)++ : *n - 1;
    for (; i > 0 && at[i - 1].us > c->us; i--) at[i] = at[i - 1];
    at[i] = *c;
}

static bool same(const pz_gemm_config *a, const pz_gemm_config *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static void add_new(pz_gemm_candidate *at, int *n, int max, const pz_gemm_candidate *c) {
    for (int i = 0; i < *n; i++)
        if (same(&at[i].config, &c->config)) return;
    if (*n < max) insert(at, n, max, c);
}

static void cover(ranking *r, const pz_gemm_candidate *c) {
    const pz_gemm_config *g = &c->config;
    if (g->family == PZ_GEMM_SKINNY && g->tile_n % COVER_STEP) return;
    for (int i = 0; i < r->n_cover; i++) {
        const pz_gemm_config *o = &r->cover[i].config;
        if (o->family != g->family || o->tile_n != g->tile_n || (!is_few(g) && o->warps != g->warps)) continue;
        if (c->us < r->cover[i].us) r->cover[i] = *c;
        return;
    }
    if (r->n_cover < MAX_COVER) r->cover[r->n_cover++] = *c;
}

/* A split that leaves a quarter of the device idle is for other shapes. */
static void rank(void *ctx, const pz_gemm_config *c) {
    ranking *r = ctx;
    pz_gemm_candidate it = {*c, pz_gemm_estimate(r->dev, r->shape, c, c->split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE)};
    int64_t blocks = pz_gemm_blocks(r->shape, c);
    if (!isfinite(it.us) || (c->split > 1 && 4 * blocks < 3 * (int64_t)r->dev->units)) return;
    int family = c->family == PZ_GEMM_SKINNY ? 0 : c->family == PZ_GEMM_GROUP ? 1 : 2;
    kind *k = &r->kinds[WAVES * family + (c->split == 1 ? 0 : blocks <= r->dev->units ? 1 : 2)];
    insert(k->at, &k->n, MAX_KIND, &it);
    cover(r, &it);
}

static int better(const void *a, const void *b) {
    const kind *x = a, *y = b;
    if (!x->n || !y->n) return (x->n == 0) - (y->n == 0);
    return (x->at[0].us > y->at[0].us) - (x->at[0].us < y->at[0].us);
}

/* How many of those given have the same tile and warps: each makes one more of them less worth a measurement. */
static int alike(const kind *k, const pz_gemm_config *c) {
    int n = 0;
    for (int i = 0; i < k->given; i++) {
        const pz_gemm_config *o = &k->at[i].config;
        n += o->tile_n == c->tile_n && o->warps == c->warps && o->stages == c->stages;
    }
    return n;
}

/* The next of a kind; nothing that is far from the best of all, but the first always: not to split needs no zeroes, and
 * the model may be wrong. */
static bool give(kind *k, double best, pz_gemm_candidate *out) {
    int next = -1;
    double least = k->given ? far * best : INFINITY;
    for (int i = k->given; i < k->n; i++) {
        double worth = k->at[i].us * (1 + likeness * alike(k, &k->at[i].config));
        if (worth >= least) continue;
        least = worth;
        next = i;
    }
    if (next < 0) return false;
    *out = k->at[next];
    memmove(&k->at[k->given + 1], &k->at[k->given], (size_t)(next - k->given) * sizeof *out);
    k->at[k->given++] = *out;
    return true;
}

/* Other depths of what the kinds have given, the best of each first. */
static int add_depths(ranking *r, double best, pz_gemm_candidate *out, int n, int max) {
    for (int i = 0; i < MAX_KIND && n < max; i++)
        for (int k = 0; k < KINDS; k++) {
            pz_gemm_candidate c = r->kinds[k].at[i];
            if (i >= r->kinds[k].given || c.us > far * best) continue;
            pz_gemm_config v[PZ_MAX_VARIANTS];
            int variants = pz_gemm_variants(r->shape, &c.config, v);
            for (int j = 0; j < variants; j++) add_new(out, &n, max, &(pz_gemm_candidate){v[j], c.us});
        }
    return n;
}

/* How many each kind gives in its turn: more of the family that wins at most shapes with so many rows. */
static void set_turns(ranking *r) {
    int family = r->shape->m <= 8 ? 0 : FAMILIES - 1;
    for (int k = 0; k < KINDS; k++) {
        int waves = k % WAVES;
        r->kinds[k].turn = waves == 0 ? 1 : waves == 1 && k / WAVES == family ? 4 : 2;
    }
}

static int choose_candidates(ranking *r, pz_gemm_candidate *out, int max) {
    int n = 0, bases = max - max / 4, covered = 0;
    bool more = true;
    pz_gemm_candidate c;
    set_turns(r);
    visit_all(r->dev, r->shape, rank, r);
    qsort(r->kinds, KINDS, sizeof *r->kinds, better);
    double best = r->kinds[0].n ? r->kinds[0].at[0].us : 0;
    while (n < bases && more) {
        more = false;
        for (int k = 0; k < KINDS; k++)
            for (int i = 0; i < r->kinds[k].turn && n < bases && give(&r->kinds[k], best, &c); i++, more = true)
                add_new(out, &n, bases, &c);
        for (; covered < r->n_cover; covered++) /* after the first turn of each kind */
            if (r->cover[covered].us <= farther * best) add_new(out, &n, bases, &r->cover[covered]);
    }
    return add_depths(r, best, out, n, max);
}

int pz_gemm_candidates(const pz_device *dev, const pz_gemm_shape *shape, pz_gemm_candidate *out, int max) {
    ranking r = {.dev = dev, .shape = shape};
    return max > 0 ? choose_candidates(&r, out, max) : 0;
}

int pz_gemm_variants(const pz_gemm_shape *shape, const pz_gemm_config *c, pz_gemm_config out[PZ_MAX_VARIANTS]) {
    layout l;
    int n = 0, all = is_few(c) ? FEW_DEPTHS : WIDE_DEPTHS;
    if (!lay_out(shape, c, &l)) return 0;
    for (int i = 0; i < all; i++) {
        int depth = is_few(c) ? few_depths[i] : wide_depths[i];
        if (depth != c->depth && depth < l.stages) out[n++] = with_depth(c, &l, depth);
    }
    return n;
}

/* ---- one step away ---- */
typedef struct steps {
    const pz_device *dev;
    const pz_gemm_shape *shape;
    const pz_gemm_config *from;
    pz_gemm_config *at;
    int n;
} steps;

/* Takes what the kernels take and what is not there yet. */
static void step_to(steps *t, int tile, int warps, int64_t split, int stages) {
    const pz_gemm_config *from = t->from;
    layout l;
    if (tile < tile_step(from->family) || warps < 1 || (split > 1) != (from->split > 1) || split > MAX_SPLIT ||
        tile >= t->shape->n + tile_step(from->family) || t->n == PZ_MAX_NEIGHBOURS)
        return;
    pz_gemm_config c = {.tile_n = tile, .split = (int)split, .family = from->family, .warps = warps, .stages = stages};
    if (!lay_out(t->shape, &c, &l)) return;
    c = with_depth(&c, &l, from->depth);
    if (same(&c, from)) return;
    for (int i = 0; i < t->n; i++)
        if (same(&c, &t->at[i])) return;
    t->at[t->n++] = c;
}

/* Other tiles: with as many parts, with as many blocks; and of twice or half the width by half or twice the warps. */
static void step_tiles(steps *t) {
    const pz_gemm_config *c = t->from;
    int step = tile_step(c->family);
    int64_t tiles = pz_ceil_div(t->shape->n, c->tile_n);
    for (int by = -2; by <= 2; by++) {
        int tile = c->tile_n + by * step;
        if (by == 0 || tile < step) continue;
        int64_t of = pz_ceil_div(t->shape->n, tile);
        int most = most_warps(c->family, tile), warps = c->warps < most ? c->warps : most;
        step_to(t, tile, warps, c->split, c->stages);
        step_to(t, tile, warps, (c->split * tiles + of / 2) / of, c->stages);
    }
    step_to(t, c->tile_n * 2, c->warps / 2, c->split * 2, c->stages);
    step_to(t, c->tile_n / 2, c->warps * 2, c->split / 2, c->stages);
}

/* Few more or fewer parts, and the fewest whose longest is one unit longer or shorter. */
static void step_splits(steps *t) {
    const pz_gemm_config *c = t->from;
    int64_t units = pz_gemm_units(t->shape->n, t->shape->k), longest = pz_ceil_div(units, c->split);
    for (int by = -2; by <= 2; by++) step_to(t, c->tile_n, c->warps, c->split + by, c->stages);
    step_to(t, c->tile_n, c->warps, pz_ceil_div(units, longest + 1), c->stages);
    if (longest > 1) step_to(t, c->tile_n, c->warps, pz_ceil_div(units, longest - 1), c->stages);
}

static void step_warps(steps *t) {
    const pz_gemm_config *c = t->from;
    int at = 0;
    if (c->family == PZ_GEMM_WIDE) {
        step_to(t, c->tile_n, c->warps - 1, c->split, c->stages);
        step_to(t, c->tile_n, c->warps + 1, c->split, c->stages);
        return;
    }
    while (at < FEW_WARPS - 1 && few_warps[at] < c->warps) at++;
    if (at > 0) step_to(t, c->tile_n, few_warps[at - 1], c->split, c->stages);
    if (at < FEW_WARPS - 1) step_to(t, c->tile_n, few_warps[at + 1], c->split, c->stages);
}

/* Rings one chunk longer or shorter, and as long as fit, once or twice on an SM. */
static void step_stages(steps *t, const layout *l) {
    const pz_gemm_config *c = t->from;
    int half = half_stages(t->dev, t->shape, c);
    if (c->family != PZ_GEMM_WIDE) return;
    if (c->stages) step_to(t, c->tile_n, c->warps, c->split, 0);
    if (half) step_to(t, c->tile_n, c->warps, c->split, half);
    if (l->stages > 1) step_to(t, c->tile_n, c->warps, c->split, (int)l->stages - 1);
    if (l->stages == c->stages) step_to(t, c->tile_n, c->warps, c->split, c->stages + 1);
}

int pz_gemm_neighbours(const pz_device *dev, const pz_gemm_shape *shape, const pz_gemm_config *c,
                       pz_gemm_config out[PZ_MAX_NEIGHBOURS]) {
    steps t = {.dev = dev, .shape = shape, .from = c, .at = out};
    layout l;
    if (!lay_out(shape, c, &l)) return 0;
    step_splits(&t);
    step_tiles(&t);
    step_warps(&t);
    step_stages(&t, &l);
    return t.n;
}

void pz_gemm_config_text(const pz_gemm_config *c, pz_str *b) {
    pz_str_add(b, pz_gemm_family_text(c->family));
    if (c->family == PZ_GEMM_CUBLASLT)
        pz_str_addf(b, " heuristic %d", c->stages);
    else
        pz_str_addf(b, " tile_n %d, split %d", c->tile_n, c->split);
    if (is_few(c) || c->family == PZ_GEMM_WIDE)
        pz_str_addf(b, ", %s %d, stages %d, depth %d", is_few(c) ? "warps" : "warpgroups", c->warps, c->stages,
                    c->depth);
}

pz_status pz_gemm_candidates_text(const pz_device *dev, const pz_gemm_shape *shape, char **out, pz_error *err) {
    pz_gemm_candidate at[PZ_MAX_CANDIDATES];
    int n = pz_gemm_candidates(dev, shape, at, PZ_MAX_CANDIDATES);
    pz_str b = {0};
    pz_str_addf(&b, "%d candidates for n %lld, k %lld, m %d on %s (%d units)\n", n, (long long)shape->n,
                (long long)shape->k, shape->m, dev->name, dev->units);
    for (int i = 0; i < n; i++) {
        double waves = (double)pz_gemm_blocks(shape, &at[i].config) / dev->units;
        pz_str_addf(&b, "%4d  %7.2f us  %5.2f waves  ", i + 1, at[i].us, waves);
        pz_gemm_config_text(&at[i].config, &b);
        pz_str_add(&b, "\n");
    }
    return pz_str_take(&b, out, err);
}
