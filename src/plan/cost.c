/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/cost.h"

#include <math.h>

/* What the kernels are made of; src/backend/cuda/gemm has the same numbers. */
enum {
    CHUNK = 128,         /* K is split in units of this many */
    MAX_WARPS = 16,      /* of a block of the skinny family */
    MAX_SPLIT = 64,      /* more adds into one element never paid */
    SKINNY_ROWS = 32,    /* more rows than this are several tiles, each of which reads the weights again */
    SKINNY_MOST = 64,    /* rows beyond which the family is not looked at */
    WIDE_ROWS = 128,     /* of one tile */
    BLOCK_SMEM = 230400, /* bytes of shared memory that a block of the kernels has */
    WIDE_MOST = 2        /* warpgroups of a block with all rows that a tile can have */
};

/* Times in us, rates a us; fitted to prototypes on an H200 by hand, so they rank but do not predict. */
static const double launch_us = 1.2, wide_us = 0.8, reduce_us = 0.6, ticket_us = 1.2, memset_us = 1.6;
static const double l2_bytes = 1e5;     /* that one SM reads from L2 */
static const double l2_all_bytes = 5e6; /* that all of them move through L2 */
static const double adds = 2e6;         /* 32-bit adds into L2 */
static const double mmas = 1.0e3;       /* m16n8k16 of one SM */
static const double wide_mmas = 4.0e3;  /* the same work by wgmma */
static const double sm_share = 1.6; /* of its equal part of the bandwidth, what one SM can take if others take less */
static const double in_flight = 32768; /* bytes an SM must have asked for to read at full rate */
/* one chunk of one warp, and each 8 rows of it: what has been prefetched is multiplied after the wait for x */
static const double chunk_us = 0.04, chunk_rows_us = 0.02;

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Rows of x of one tile. The skinny family keeps them in shared memory beside one slot of w a thread and the sums. */
static int tile_rows(const pz_gemm_shape *s, const pz_gemm_config *c) {
    if (c->family == PZ_GEMM_WIDE) {
        int rows = 8;
        while (rows < s->m && rows < WIDE_ROWS) rows *= 2;
        return rows;
    }
    int rows = s->m <= 8 ? 8 : s->m <= 16 ? 16 : SKINNY_ROWS;
    int64_t part = pz_ceil_div(pz_ceil_div(s->k, CHUNK), c->split),
            slot = (int64_t)c->tile_n / 16 * c->warps * 32 * CHUNK;
    for (; rows > 1; rows /= 2) {
        int64_t x = min64(s->m, rows) * (part * CHUNK * 2 + 64);
        int64_t sums = (int64_t)c->warps * (rows < 8 ? 8 : rows) * (c->tile_n + 4) * 4;
        if (x + sums + slot <= BLOCK_SMEM) break;
    }
    return rows;
}

int64_t pz_gemm_blocks(const pz_gemm_shape *s, const pz_gemm_config *c) {
    return pz_ceil_div(s->n, c->tile_n) * c->split * pz_ceil_div(s->m, tile_rows(s, c));
}

/* Bytes in flight that one block of the skinny family can have; 0: it does not fit. */
static double skinny_in_flight(const pz_gemm_shape *s, const pz_gemm_config *c, int64_t part) {
    int warps = c->tile_n / 16 * c->warps, rows = tile_rows(s, c);
    int64_t x = min64(s->m, rows) * (part * CHUNK * 2 + 64),
            sums = (int64_t)c->warps * (rows < 8 ? 8 : rows) * (c->tile_n + 4) * 4;
    int64_t slot = (int64_t)warps * 32 * CHUNK, held = pz_ceil_div(part, c->warps);
    int64_t room = (BLOCK_SMEM - x - sums) / slot, slots = held - c->stages;
    if (room < 1) return 0;
    return (double)(c->stages + min64(slots > 0 ? slots : 0, room)) * warps * 16 * CHUNK * 2;
}

static double strategy_us(const pz_device *dev, const pz_gemm_shape *s, const pz_gemm_config *c, pz_strategy strategy) {
    double outputs = (double)s->m * (double)s->n, parts = outputs * c->split;
    switch (strategy) {
    case PZ_ZERO_NONE: return outputs * 4 / l2_all_bytes;
    case PZ_ZERO_PREZERO: return parts / adds;
    case PZ_ZERO_SELF: return parts / adds + pz_gate_replaced(dev, (int64_t)outputs * 4, 1);
    case PZ_ZERO_MEMSET: return parts / adds + memset_us;
    case PZ_ZERO_REDUCE: return 2 * parts * 4 / l2_all_bytes + reduce_us;
    case PZ_ZERO_TICKET: return 2 * parts * 4 / l2_all_bytes + ticket_us;
    }
    return INFINITY;
}

double pz_gemm_estimate(const pz_device *dev, const pz_gemm_shape *s, const pz_gemm_config *c, pz_strategy strategy) {
    bool wide = c->family == PZ_GEMM_WIDE;
    int64_t chunks = pz_ceil_div(s->k, CHUNK);
    if ((!wide && c->family != PZ_GEMM_SKINNY) || c->tile_n < 16 || c->split < 1 || c->split > chunks) return INFINITY;
    if (strategy == PZ_ZERO_NONE && c->split > 1) return INFINITY;
    if (!wide && (c->warps < 1 || c->tile_n / 16 * c->warps > MAX_WARPS || c->tile_n % 16)) return INFINITY;
    int64_t part = pz_ceil_div(chunks, c->split), k = min64(part * CHUNK, s->k);
    int64_t rows = min64(s->m, tile_rows(s, c));
    double busiest = (double)pz_ceil_div(pz_gemm_blocks(s, c), dev->units); /* blocks of one SM */
    double weights = (double)min64(c->tile_n, s->n) * (double)k * 2, x = (double)rows * (double)k * 2;
    double rate = sm_share * dev->bandwidth / dev->units;
    double all = (double)pz_gemm_blocks(s, c) * weights / dev->bandwidth;
    /* chunks that the slowest of the warps sharing them has, to those of the mean */
    double uneven = 1;
    if (!wide) {
        double flying = skinny_in_flight(s, c, part);
        if (flying <= 0) return INFINITY;
        if (busiest * flying < in_flight) rate *= busiest * flying / in_flight;
        uneven = (double)(pz_ceil_div(part, c->warps) * c->warps) / (double)part;
    }
    double products = (double)c->tile_n / 16 * (double)pz_ceil_div(rows, 8) * (double)k / 16;
    double slowest = busiest * weights * uneven / rate;
    double us = (slowest > all ? slowest : all) + busiest * (x / l2_bytes + products / (wide ? wide_mmas : mmas));
    /* the family with a ring of tiles takes longer to get going; sums of warps meet in shared memory */
    double held = wide ? 0 : (double)pz_ceil_div(part, c->warps);
    us += wide ? wide_us : held * (chunk_us + chunk_rows_us * (double)pz_ceil_div(rows, 8)) + 0.01 * c->warps;
    return launch_us + us + strategy_us(dev, s, c, strategy);
}

/* ---- geometries ---- */
typedef void (*visit_fn)(void *ctx, const pz_gemm_config *c);

/* Not split; all splits that nearly fill the device once; of those with up to three blocks an SM the ones that fill
 * them best, and for each longest part of K the one with the fewest blocks. */
static void visit_splits(const pz_device *dev, const pz_gemm_shape *s, pz_gemm_config c, visit_fn fn, void *ctx) {
    int64_t chunks = pz_ceil_div(s->k, CHUNK);
    c.split = 1;
    fn(ctx, &c);
    for (int64_t split = 2; split <= min64(chunks, MAX_SPLIT); split++) {
        c.split = (int)split;
        int64_t blocks = pz_gemm_blocks(s, &c), tiles = blocks / split;
        bool shortest = split == pz_ceil_div(chunks, pz_ceil_div(chunks, split));
        bool fullest = (blocks + tiles - 1) / dev->units != (blocks - 1) / dev->units;
        bool once = 4 * blocks >= 3 * (int64_t)dev->units && blocks <= dev->units;
        if (blocks <= 3 * (int64_t)dev->units && (once || shortest || fullest)) fn(ctx, &c);
    }
}

/* The families multiply in another order of k, so a fixed sum's bits depend on the family, though on nothing else. */
static bool may_be_wide(const pz_device *dev, const pz_gemm_shape *s) {
    return s->k % 64 == 0 && (s->accum != PZ_ACCUM_FIXED || !dev->batch_invariant);
}

static void visit_all(const pz_device *dev, const pz_gemm_shape *s, visit_fn fn, void *ctx) {
    static const int warps[] = {1, 2, 3, 4, 6, 7, 8, 12, 14, 16};
    bool wide = may_be_wide(dev, s);
    int64_t widest = pz_ceil_div(s->n, 16) * 16;
    for (int tile = 16; (s->m <= SKINNY_MOST || !wide) && tile <= 16 * MAX_WARPS && tile <= widest; tile += 16)
        for (size_t w = 0; w < sizeof warps / sizeof *warps; w++) {
            if (tile / 16 * warps[w] > MAX_WARPS || warps[w] > pz_ceil_div(s->k, CHUNK)) continue;
            pz_gemm_config c = {.tile_n = tile, .family = PZ_GEMM_SKINNY, .warps = warps[w], .stages = 1};
            visit_splits(dev, s, c, fn, ctx);
        }
    for (int tile = 64; wide && tile <= 128; tile += 64)
        for (int shares = 1; shares * tile <= WIDE_MOST * 64; shares++) {
            pz_gemm_config c = {.tile_n = tile, .family = PZ_GEMM_WIDE, .warps = shares};
            visit_splits(dev, s, c, fn, ctx);
        }
}

/* ---- the model's choice ---- */
typedef struct search {
    const pz_device *dev;
    const pz_gemm_shape *shape;
    pz_strategy strategy;
    pz_gemm_config best;
    double us;
} search;

static void keep_best(void *ctx, const pz_gemm_config *c) {
    search *s = ctx;
    if ((c->split == 1) != (s->strategy == PZ_ZERO_NONE)) return;
    double us = pz_gemm_estimate(s->dev, s->shape, c, s->strategy);
    if (us >= s->us) return;
    s->us = us;
    s->best = *c;
}

static search best_for(const pz_device *dev, const pz_gemm_shape *shape, pz_strategy strategy) {
    search s = {.dev = dev, .shape = shape, .strategy = strategy, .us = INFINITY};
    s.best = (pz_gemm_config){.tile_n = 64, .split = 1, .family = PZ_GEMM_SKINNY, .warps = 4, .stages = 1};
    visit_all(dev, shape, keep_best, &s);
    return s;
}

pz_gemm_config pz_gemm_model_for(const pz_device *dev, const pz_gemm_shape *shape, pz_strategy strategy) {
    return best_for(dev, shape, strategy).best;
}

pz_gemm_choices pz_gemm_model(const pz_device *dev, const pz_gemm_shape *shape) {
    search none = best_for(dev, shape, PZ_ZERO_NONE), zeroed = best_for(dev, shape, PZ_ZERO_PREZERO);
    search self = best_for(dev, shape, PZ_ZERO_SELF), reduce = best_for(dev, shape, PZ_ZERO_REDUCE);
    const search *on = zeroed.us < none.us ? &zeroed : &none;
    const search *off = reduce.us < self.us ? &reduce : &self;
    if (none.us <= off->us) off = &none;
    return (pz_gemm_choices){.on = {.strategy = on->strategy, .config = on->best},
                             .off = {.strategy = off->strategy, .config = off->best}};
}

/* ---- candidates ---- */
typedef struct ranking {
    const pz_device *dev;
    const pz_gemm_shape *shape;
    bool whole, split;     /* which ones */
    pz_gemm_candidate *at; /* ascending */
    int n, max;
} ranking;

/* Blocks that fill the device: 0.75 to 1 wave, or so many that the last wave's gap is small. What is not split has as
 * many as it has. */
static bool fills(const pz_device *dev, const pz_gemm_shape *shape, const pz_gemm_config *c) {
    double waves = (double)pz_gemm_blocks(shape, c) / dev->units;
    if (c->split == 1) return true;
    return (waves >= 0.75 && waves <= 1) || (waves > 1 && waves / ceil(waves) >= 0.85);
}

static void rank(void *ctx, const pz_gemm_config *c) {
    ranking *r = ctx;
    double us = pz_gemm_estimate(r->dev, r->shape, c, c->split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE);
    if (!(c->split > 1 ? r->split : r->whole) || !isfinite(us) || !fills(r->dev, r->shape, c)) return;
    if (r->n == r->max && us >= r->at[r->n - 1].us) return;
    int at = r->n < r->max ? r->n++ : r->n - 1;
    for (; at > 0 && r->at[at - 1].us > us; at--) r->at[at] = r->at[at - 1];
    r->at[at] = (pz_gemm_candidate){*c, us};
}

int pz_gemm_candidates(const pz_device *dev, const pz_gemm_shape *shape, pz_gemm_candidate *out, int max) {
    if (max < 2) { /* no room for one of each */
        ranking any = {dev, shape, true, true, out, 0, max};
        if (max == 1) visit_all(dev, shape, rank, &any);
        return any.n;
    }
    /* Some that are not split always: if one of them is as fast as those that are, it needs no zeroes. */
    ranking whole = {dev, shape, true, false, out, 0, (max + 5) / 6};
    visit_all(dev, shape, rank, &whole);
    ranking split = {dev, shape, false, true, out + whole.n, 0, max - whole.n};
    if (split.max > 0) visit_all(dev, shape, rank, &split);
    int n = whole.n + split.n;
    for (int i = whole.n; i < n; i++) { /* merge */
        pz_gemm_candidate c = out[i];
        int at = i;
        for (; at > 0 && out[at - 1].us > c.us; at--) out[at] = out[at - 1];
        out[at] = c;
    }
    return n;
}

int pz_gemm_variants(const pz_gemm_shape *shape, const pz_gemm_config *c, pz_gemm_config out[PZ_MAX_VARIANTS]) {
    int64_t part = pz_ceil_div(pz_ceil_div(shape->k, CHUNK), c->split);
    int n = 0;
    if (c->family == PZ_GEMM_WIDE) {
        for (int depth = 0; depth <= 6; depth += 3) {
            if (depth == c->depth) continue;
            out[n] = *c;
            out[n++].depth = depth;
        }
        return n;
    }
    int64_t held = c->warps ? pz_ceil_div(part, c->warps) : 0; /* chunks of one warp */
    for (int stages = 1; stages <= 2 && stages <= held; stages++)
        for (int depth = 0; depth <= 1; depth++) {
            if (stages == c->stages && depth == c->depth) continue;
            out[n] = *c;
            out[n].stages = stages;
            out[n++].depth = depth;
        }
    return n;
}

void pz_gemm_config_text(const pz_gemm_config *c, pz_str *b) {
    pz_str_add(b, pz_gemm_family_text(c->family));
    if (c->family == PZ_GEMM_CUBLASLT)
        pz_str_addf(b, " heuristic %d", c->stages);
    else
        pz_str_addf(b, " tile_n %d, split %d", c->tile_n, c->split);
    if (c->family == PZ_GEMM_SKINNY)
        pz_str_addf(b, ", warps %d, stages %d, depth %d", c->warps, c->stages, c->depth);
    else if (c->family == PZ_GEMM_WIDE)
        pz_str_addf(b, ", warpgroups %d, depth %d", c->warps, c->depth);
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
