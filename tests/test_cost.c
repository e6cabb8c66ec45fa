/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model of GPUs and the launches that the tuner measures. */
#include "support.h"

#include <limits.h>
#include <math.h>

#include "base/rng.h"
#include "plan/cost.h"
#include "plan/gemm_unit.h"

static pz_device gpu(int units) {
    pz_device d;
    pz_error err;
    assert_ok(pz_device_find("h200", units, &d, &err), &err);
    return d;
}

static pz_gemm_shape shape(int64_t n, int64_t k, int m) {
    return (pz_gemm_shape){n, k, PZ_DT_BF16, PZ_ACCUM_FIXED, m};
}

/* What the kernels refuse must never be proposed. */
static void check_geometry(const pz_gemm_shape *s, const pz_gemm_config *c) {
    int64_t unit = pz_gemm_unit(s->n, s->k), units = (s->k + 128 * unit - 1) / (128 * unit);
    assert_int_equal(units, pz_gemm_units(s->n, s->k));
    assert_in_range(c->split, 1, units);
    assert_true(c->depth >= 0 && c->stages >= 0);
    int64_t part = (units + c->split - 1) / c->split * unit; /* chunks */
    if (c->family == PZ_GEMM_WIDE) {
        assert_true(c->tile_n == 64 || c->tile_n == 128 || c->tile_n == 192);
        assert_in_range(c->tile_n / 64 * c->warps, 1, 3);
        assert_int_equal(s->k % 64, 0);
        /* two chunks of w and of x, 64 values of k a slot, fit into the shared memory of an H200's block, and so do the
         * sums of the warpgroups that share a tile, which take their place */
        bool narrow = s->accum == PZ_ACCUM_FIXED && c->tile_n / 64 * c->warps == 3;
        int rows = s->m <= 8 ? 8 : s->m <= 16 ? 16 : s->m <= 32 ? 32 : s->m <= 64 || narrow ? 64 : 128;
        assert_true(2 * (part < 2 ? part : 2) * 128 * (c->tile_n + rows) <= 226 * 1024);
        assert_true(c->warps == 1 || (int64_t)c->warps * rows * (c->tile_n + 4) * 4 <= 226 * 1024);
        return;
    }
    assert_true(c->family == PZ_GEMM_SKINNY || c->family == PZ_GEMM_GROUP);
    assert_int_equal(c->tile_n % (c->family == PZ_GEMM_GROUP ? 64 : 16), 0);
    assert_in_range(c->tile_n, 16, 256);
    assert_in_range(c->warps, 1, 16);
    assert_in_range(c->tile_n / 16 * c->warps, 1, 16);
    /* so do one row of x at least, one slot of w a thread, if a warp has more than the chunk in its registers, and the
     * sums of the warps that share a tile */
    bool slot = (part / unit + c->warps - 1) / c->warps * unit > 1;
    int64_t w = slot ? (int64_t)c->tile_n / 16 * c->warps * 32 * 128 : 0,
            sums = c->warps > 1 ? (int64_t)c->warps * 8 * (c->tile_n + 4) * 4 : 0;
    assert_true(part * 256 + w + sums <= 226 * 1024);
}

static bool same(const pz_gemm_config *a, const pz_gemm_config *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 300};
static const int64_t sizes[][2] = {{2112, 7168}, {384, 7168}, {3072, 1536}, {7168, 2048}, {163840, 7168},
                                   {8, 256},     {704, 256},  {64, 16},     {1, 16},      {9000, 16384},
                                   {17, 144},    {256, 512},  {14336, 8192}};

static void test_candidates(void **state) {
    (void)state;
    for (int units = 1; units < 200; units += units == 1 ? 131 : 17)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                pz_device d = gpu(units);
                pz_gemm_shape s = shape(sizes[i][0], sizes[i][1], rows[r]);
                pz_gemm_candidate c[PZ_MAX_CANDIDATES];
                int n = pz_gemm_candidates(&d, &s, c, PZ_MAX_CANDIDATES), whole = 0;
                assert_in_range(n, 1, PZ_MAX_CANDIDATES);
                for (int a = 0; a < n; a++) {
                    check_geometry(&s, &c[a].config);
                    assert_true(isfinite(c[a].us) && c[a].us > 0);
                    assert_true(a == 0 || c[a - 1].us <= c[a].us);
                    whole += c[a].config.split == 1;
                    for (int b = 0; b < a; b++) assert_false(same(&c[a].config, &c[b].config));
                    double waves = (double)pz_gemm_blocks(&s, &c[a].config) / d.units;
                    assert_true(c[a].config.split == 1 || waves >= 0.75);
                    pz_gemm_config v[PZ_MAX_VARIANTS];
                    int variants = pz_gemm_variants(&s, &c[a].config, v);
                    assert_in_range(variants, 0, PZ_MAX_VARIANTS);
                    pz_gemm_config other = c[a].config, w[2 * PZ_MAX_VARIANTS];
                    other.depth = 3; /* which is none of those that are tried */
                    assert_in_range(pz_gemm_variants(&s, &other, w), variants, PZ_MAX_VARIANTS);
                    for (int k = 0; k < variants; k++) {
                        check_geometry(&s, &v[k]);
                        assert_false(same(&v[k], &c[a].config));
                        assert_int_equal(v[k].tile_n, c[a].config.tile_n);
                        assert_int_equal(v[k].split > 1, c[a].config.split > 1);
                        for (int b = 0; b < k; b++) assert_false(same(&v[k], &v[b]));
                    }
                }
                assert_true(whole >= 1); /* not to split is always tried */
                pz_gemm_candidate few[7];
                assert_in_range(pz_gemm_candidates(&d, &s, few, 7), 1, 7);
                assert_int_equal(pz_gemm_candidates(&d, &s, few, 0), 0);
            }
}

/* Chunks of a unit by the size of w, and how many units K has then: by hand. */
static void test_units(void **state) {
    (void)state;
    static const struct {
        int64_t n, k, units;
        int unit;
    } cases[] = {
        {1, 1, 1, 1},        {1, 129, 2, 1},      {384, 7168, 56, 1},
        {4095, 1024, 8, 1},  {4096, 1024, 4, 2},  {4097, 1025, 5, 2},
        {3072, 1536, 6, 2},  {8191, 1024, 4, 2},  {8192, 1024, 2, 4},
        {8192, 1025, 3, 4},  {2112, 7168, 14, 4}, {7168, 2048, 4, 4},
        {1024, 4095, 32, 1}, {1024, 4096, 16, 2}, {1024, 8191, 32, 2},
        {1024, 8192, 16, 4}, {163840, 64, 1, 4},  {1 << 30, 1 << 30, 1 << 21, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(pz_gemm_unit(cases[i].n, cases[i].k), cases[i].unit);
        assert_int_equal(pz_gemm_units(cases[i].n, cases[i].k), cases[i].units);
    }
}

/* What is wrong with the rings of a launch of wide; NULL: nothing. */
static const char *ring_fault(const pz_gemm_config *c, int tile_m, const pz_gemm_shape *s, const pz_gemm_rings *r) {
    int64_t unit = pz_gemm_unit(s->n, s->k), chunks = (s->k + 127) / 128, part = (chunks + unit - 1) / unit;
    part = (part + c->split - 1) / c->split * unit; /* of the longest block */
    int64_t blocks = 2 * (part < chunks ? part : chunks), sums = (int64_t)c->warps * tile_m * (c->tile_n + 4) * 4;
    if (r->w_bytes != c->tile_n * 128 || r->x_bytes != tile_m * 128) return "a slot is not 64 k of a tile";
    if (r->smem > 231040) return "more shared memory than there is";
    if (r->smem < 1280 + r->head) return "the barriers end behind the memory that is asked for";
    if (r->head < (int64_t)r->w_slots * r->w_bytes + (int64_t)r->x_slots * r->x_bytes)
        return "rings reach into the barriers";
    if (c->warps > 1 && r->head < sums) return "sums reach into the barriers";
    if (r->head % 8) return "barriers are not aligned";
    if (r->x_slots > r->w_slots || r->w_slots > blocks) return "slots that nothing comes to";
    /* who holds a chunk waits for the next one */
    if (r->x_slots < blocks && r->x_slots < 4) return "a warpgroup waits for a slot that it holds";
    int groups = c->tile_n / 64 * c->warps, halves = pz_gemm_wide_halves(tile_m, s->accum, groups);
    if (halves != (tile_m == 128 && groups == 1 && s->accum == PZ_ACCUM_FIXED ? 2 : 1))
        return "one warpgroup of 128 fixed sums is two of 64, and no other is";
    /* an SM has 65536 registers, and a block of the norm takes 16384 of them */
    if (pz_gemm_wide_threads(groups, halves) * PZ_GEMM_WIDE_REGISTERS(tile_m / halves, s->accum == PZ_ACCUM_FIXED) >
        49152)
        return "no registers are left for the norm";
    /* Of 32 barriers: from a unit to its next, a warpgroup does not see those of the others. A lap behind, a barrier's
     * two phases look alike. */
    if (r->w_slots > 24 || r->w_slots >= 32 - 2 * unit * (c->warps - 1)) return "a barrier is used again too early";
    int asked = c->stages < 2 ? 4 : 2 * c->stages;
    if (c->stages && r->w_slots > asked) return "more than was asked for";
    return NULL;
}

/* Rings of every geometry of wide, of few and many rows, of shapes with units of every length and with a part that is
 * a chunk. */
static void test_rings(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int m = 1; m <= 256; m *= 2)
            for (int f32 = 0; f32 < 2; f32++)
                for (int tile_n = 64; tile_n <= 192; tile_n += 64)
                    for (int warps = 1; warps * tile_n <= 192; warps++)
                        for (int stages = 0; stages < 14; stages++) {
                            pz_gemm_shape s = shape(sizes[i][0], sizes[i][1], m);
                            s.accum = f32 ? PZ_ACCUM_F32 : PZ_ACCUM_FIXED;
                            int tile_m = pz_gemm_wide_rows(m, s.accum, tile_n / 64 * warps), most = 128;
                            if (!f32 && tile_n / 64 * warps == 3) most = 64;
                            assert_int_equal(tile_m, m < 8 ? 8 : m < most ? m : most);
                            for (int split = 1; split <= (int)pz_gemm_units(s.n, s.k); split++) {
                                pz_gemm_config c = {tile_n, split, PZ_GEMM_WIDE, warps, stages, 0};
                                pz_gemm_rings r;
                                assert_true(pz_gemm_lay_out_rings(&c, tile_m, s.n, s.k, &r));
                                const char *fault = ring_fault(&c, tile_m, &s, &r);
                                if (fault)
                                    fail_msg("n %d, k %d, m %d, tile_n %d, warps %d, stages %d, split %d: %s", (int)s.n,
                                             (int)s.k, m, tile_n, warps, stages, split, fault);
                            }
                        }
}

/* Blocks as the kernels count them. */
static void test_blocks(void **state) {
    (void)state;
    pz_gemm_config skinny = {.tile_n = 64, .split = 4, .family = PZ_GEMM_SKINNY, .warps = 2, .stages = 1};
    pz_gemm_config wide = {.tile_n = 128, .split = 3, .family = PZ_GEMM_WIDE, .warps = 1, .stages = 4};
    pz_gemm_config group = {.tile_n = 128, .split = 5, .family = PZ_GEMM_GROUP, .warps = 2};
    pz_gemm_shape s = shape(2112, 7168, 16);
    assert_int_equal(pz_gemm_blocks(&s, &skinny), 33 * 4);
    assert_int_equal(pz_gemm_blocks(&s, &wide), 17 * 3);
    assert_int_equal(pz_gemm_blocks(&s, &group), 17 * 5);
    s.m = 33; /* two tiles of 32 rows; one of 128 */
    assert_int_equal(pz_gemm_blocks(&s, &skinny), 33 * 4 * 2);
    assert_int_equal(pz_gemm_blocks(&s, &group), 17 * 5 * 2);
    assert_int_equal(pz_gemm_blocks(&s, &wide), 17 * 3);
    s.m = 129;
    assert_int_equal(pz_gemm_blocks(&s, &wide), 17 * 3 * 2);
    s.m = 128; /* three warpgroups: fixed sums of 64 rows, others of 128 */
    wide.tile_n = 192;
    assert_int_equal(pz_gemm_blocks(&s, &wide), 11 * 3 * 2);
    s.accum = PZ_ACCUM_F32;
    assert_int_equal(pz_gemm_blocks(&s, &wide), 11 * 3);
    s.accum = PZ_ACCUM_FIXED;
    wide.tile_n = 128;
    /* x of 32 rows and 56 chunks does not fit beside w: 8 rows a tile */
    skinny.split = 1;
    s.m = 32;
    assert_int_equal(pz_gemm_blocks(&s, &skinny), 33 * 4);
    wide.warps = 2; /* four warpgroups */
    assert_int_equal(pz_gemm_blocks(&s, &wide), 0);
}

/* The model against what was measured on an H200 (us, with a zeroed output): it must not be far off, or the candidates
 * that it ranks first are the wrong ones. */
static void test_estimates(void **state) {
    (void)state;
    static const struct {
        int64_t n, k;
        int m;
        double us;
    } measured[] = {{2112, 7168, 1, 7.6}, {2112, 7168, 16, 8.6}, {384, 7168, 1, 2.1},  {384, 7168, 16, 2.7},
                    {3072, 1536, 4, 3.2}, {3072, 1536, 16, 3.6}, {7168, 2048, 4, 8.0}, {7168, 2048, 16, 8.9}};
    pz_device d = gpu(0);
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        pz_gemm_shape s = shape(measured[i].n, measured[i].k, measured[i].m);
        pz_gemm_choices c = pz_gemm_model(&d, &s);
        double us = pz_gemm_estimate(&d, &s, &c.on.config, c.on.strategy);
        assert_true(us > 0.8 * measured[i].us && us < 1.45 * measured[i].us);
    }
}

/* Geometries of wide whose part of K is longer than their ring, as measured (tuned/h200.json): what the ring does not
 * hold when x comes is multiplied while it is read, and adds no time of its own. */
static void test_overlap(void **state) {
    (void)state;
    static const struct {
        int64_t n, k;
        int m;
        pz_gemm_config c;
        double us;
    } measured[] = {
        {2112, 7168, 64, {64, 4, PZ_GEMM_WIDE, 1, 0, 4}, 9.5},
        {2112, 7168, 128, {64, 4, PZ_GEMM_WIDE, 1, 0, 4}, 12.2},
        {7168, 2048, 64, {64, 1, PZ_GEMM_WIDE, 1, 0, 4}, 9.7},
        {7168, 2048, 128, {64, 1, PZ_GEMM_WIDE, 1, 0, 2}, 10.8},
        {8192, 7168, 64, {64, 1, PZ_GEMM_WIDE, 1, 6, 2}, 32.2},
        {7168, 8192, 64, {64, 1, PZ_GEMM_WIDE, 1, 6, 2}, 33.0},
        {14336, 8192, 64, {192, 1, PZ_GEMM_WIDE, 1, 0, 0}, 61.4},
    };
    pz_device d = gpu(0);
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        pz_gemm_shape s = shape(measured[i].n, measured[i].k, measured[i].m);
        pz_strategy strategy = measured[i].c.split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE;
        double us = pz_gemm_estimate(&d, &s, &measured[i].c, strategy);
        assert_true(us > 0.85 * measured[i].us && us < 1.15 * measured[i].us);
    }
}

/* Whether a step leads to a ring that leaves room for a second block on the SM. */
static bool is_half_ring(const pz_gemm_shape *s, const pz_gemm_config *from, const pz_gemm_config *to) {
    pz_gemm_rings r;
    if (to->family != PZ_GEMM_WIDE || to->tile_n != from->tile_n || to->warps != from->warps ||
        to->split != from->split || to->stages == 0)
        return false;
    int tile_m = pz_gemm_wide_rows(s->m, s->accum, from->tile_n / 64 * from->warps);
    assert_true(pz_gemm_lay_out_rings(from, tile_m, s->n, s->k, &r));
    return abs(to->stages - r.w_slots / 2) > 1;
}

/* Launches that were among the fastest on an H200, by numbers of rows: each has a candidate of the same family, tile
 * and warps with nearly its split, so that the tuner comes by. */
static void test_winners(void **state) {
    (void)state;
    static const struct {
        int64_t n, k;
        int least, most;
        pz_gemm_config c;
    } winners[] = {
        {2112, 7168, 1, 8, {240, 12, PZ_GEMM_SKINNY, 1, 0, 1}}, {2112, 7168, 16, 16, {64, 8, PZ_GEMM_WIDE, 1, 5, 2}},
        {2112, 7168, 16, 32, {192, 12, PZ_GEMM_WIDE, 1, 0, 1}}, {2112, 7168, 32, 128, {64, 4, PZ_GEMM_WIDE, 1, 0, 4}},
        {384, 7168, 1, 16, {64, 18, PZ_GEMM_GROUP, 4, 0, 0}},   {384, 7168, 1, 16, {64, 19, PZ_GEMM_GROUP, 3, 0, 0}},
        {384, 7168, 32, 128, {64, 20, PZ_GEMM_WIDE, 1, 0, 1}},  {3072, 1536, 1, 8, {64, 6, PZ_GEMM_GROUP, 1, 0, 0}},
        {3072, 1536, 1, 8, {64, 4, PZ_GEMM_WIDE, 2, 0, 4}},     {3072, 1536, 16, 32, {64, 5, PZ_GEMM_WIDE, 1, 0, 1}},
        {3072, 1536, 16, 16, {128, 5, PZ_GEMM_WIDE, 1, 0, 2}},  {3072, 1536, 64, 64, {64, 3, PZ_GEMM_WIDE, 1, 0, 1}},
        {3072, 1536, 128, 128, {64, 5, PZ_GEMM_WIDE, 1, 2, 1}}, {3072, 1536, 128, 128, {128, 5, PZ_GEMM_WIDE, 1, 0, 1}},
        {7168, 2048, 1, 8, {112, 4, PZ_GEMM_SKINNY, 1, 0, 1}},  {7168, 2048, 1, 8, {176, 3, PZ_GEMM_SKINNY, 1, 0, 1}},
        {7168, 2048, 1, 8, {64, 1, PZ_GEMM_SKINNY, 4, 0, 1}},   {7168, 2048, 16, 16, {128, 4, PZ_GEMM_WIDE, 1, 3, 2}},
        {7168, 2048, 16, 32, {128, 2, PZ_GEMM_WIDE, 1, 0, 2}},  {7168, 2048, 64, 64, {64, 2, PZ_GEMM_WIDE, 1, 3, 2}},
        {7168, 2048, 64, 64, {192, 3, PZ_GEMM_WIDE, 1, 0, 1}},  {7168, 2048, 128, 128, {128, 2, PZ_GEMM_WIDE, 1, 0, 1}},
        {7168, 2048, 128, 128, {64, 1, PZ_GEMM_WIDE, 1, 0, 4}},
    };
    pz_device d = gpu(0);
    for (size_t i = 0; i < sizeof winners / sizeof *winners; i++)
        for (int m = winners[i].least; m <= winners[i].most; m *= 2) {
            const pz_gemm_config *w = &winners[i].c;
            pz_gemm_shape s = shape(winners[i].n, winners[i].k, m);
            pz_gemm_candidate c[PZ_MAX_CANDIDATES];
            int n = pz_gemm_candidates(&d, &s, c, PZ_MAX_CANDIDATES), near = 0;
            for (int k = 0; k < n; k++) {
                const pz_gemm_config *g = &c[k].config;
                near += g->family == w->family && g->tile_n == w->tile_n && g->warps == w->warps &&
                        g->stages == w->stages && (g->split > 1) == (w->split > 1) && abs(g->split - w->split) <= 2;
            }
            if (!near)
                fail_msg("n %d, k %d, m %d: nothing like tile_n %d, split %d, family %d, warps %d, stages %d", (int)s.n,
                         (int)s.k, m, w->tile_n, w->split, w->family, w->warps, w->stages);
        }
}

/* Tiles of every family are tried all over their list, whatever the model thinks of them. */
static void test_cover(void **state) {
    (void)state;
    static const int64_t large[][2] = {{2112, 7168}, {7168, 2048}, {2560, 8192}, {8192, 7168}};
    pz_device d = gpu(0);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        for (int m = 1; m <= 128; m *= 2) {
            pz_gemm_shape s = shape(large[i][0], large[i][1], m);
            pz_gemm_candidate c[PZ_MAX_CANDIDATES];
            int n = pz_gemm_candidates(&d, &s, c, PZ_MAX_CANDIDATES), few = 0, wide[4][4] = {{0}},
                tiles[2][257] = {{0}};
            for (int k = 0; k < n; k++) {
                const pz_gemm_config *g = &c[k].config;
                if (g->family == PZ_GEMM_WIDE)
                    wide[g->tile_n / 64][g->warps] = 1;
                else
                    few++, tiles[g->family == PZ_GEMM_GROUP][g->tile_n] = 1;
            }
            assert_true(wide[1][1] && wide[1][2] && wide[1][3] && wide[2][1] && wide[3][1]);
            assert_int_equal(few > 0, m <= 32);
            for (int tile = 64; few && tile <= 256; tile += 32) {
                assert_true(tiles[0][tile]);
                assert_true(tile % 64 || tiles[1][tile]);
            }
        }
}

/* Steps stay among what the kernels take, are told once, and lead from one good geometry to another far from it. */
static void test_neighbours(void **state) {
    (void)state;
    int halves = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            pz_device d = gpu(132);
            pz_gemm_shape s = shape(sizes[i][0], sizes[i][1], rows[r]);
            pz_gemm_candidate c[PZ_MAX_CANDIDATES];
            int n = pz_gemm_candidates(&d, &s, c, PZ_MAX_CANDIDATES);
            for (int a = 0; a < n; a++) {
                pz_gemm_config v[PZ_MAX_NEIGHBOURS + 1], mark;
                memset(&mark, 0x55, sizeof mark);
                v[PZ_MAX_NEIGHBOURS] = mark;
                int steps = pz_gemm_neighbours(&d, &s, &c[a].config, v);
                assert_in_range(steps, 0, PZ_MAX_NEIGHBOURS);
                assert_true(same(&v[PZ_MAX_NEIGHBOURS], &mark));
                for (int k = 0; k < steps; k++) {
                    check_geometry(&s, &v[k]);
                    assert_true(pz_gemm_blocks(&s, &v[k]) > 0);
                    assert_false(same(&v[k], &c[a].config));
                    assert_int_equal(v[k].family, c[a].config.family);
                    assert_int_equal(v[k].split > 1, c[a].config.split > 1);
                    bool half = is_half_ring(&s, &c[a].config, &v[k]);
                    assert_true(!half || pz_gemm_blocks(&s, &v[k]) > 132); /* there is a second block */
                    halves += half;
                    for (int b = 0; b < k; b++) assert_false(same(&v[k], &v[b]));
                }
            }
        }
    assert_true(halves > 0);
    static const pz_gemm_config from[] = {{176, 10, PZ_GEMM_SKINNY, 1, 0, 1}, {64, 4, PZ_GEMM_WIDE, 1, 0, 1}},
                                to[] = {{240, 11, PZ_GEMM_SKINNY, 1, 0, 1}, {192, 12, PZ_GEMM_WIDE, 1, 0, 1}};
    pz_device d = gpu(132);
    pz_gemm_shape s = shape(2112, 7168, 1);
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        pz_gemm_config at = from[i], v[PZ_MAX_NEIGHBOURS];
        int walked = 0;
        for (; !same(&at, &to[i]) && walked < 4; walked++) {
            int steps = pz_gemm_neighbours(&d, &s, &at, v), best = 0;
            for (int k = 0; k < steps; k++)
                if (abs(v[k].tile_n - to[i].tile_n) + abs(v[k].split - to[i].split) + abs(v[k].warps - to[i].warps) <
                    abs(v[best].tile_n - to[i].tile_n) + abs(v[best].split - to[i].split) +
                        abs(v[best].warps - to[i].warps))
                    best = k;
            at = v[best];
        }
        assert_true(same(&at, &to[i]));
    }
    pz_gemm_config v[PZ_MAX_NEIGHBOURS], none = {.family = PZ_GEMM_CUBLASLT, .split = 1, .stages = 2};
    assert_int_equal(pz_gemm_neighbours(&d, &s, &none, v), 0);
}

/* The depths are tried on the best of each family. */
static void test_depths(void **state) {
    (void)state;
    pz_device d = gpu(0);
    pz_gemm_shape s = shape(2112, 7168, 16);
    pz_gemm_candidate c[PZ_MAX_CANDIDATES];
    int n = pz_gemm_candidates(&d, &s, c, PZ_MAX_CANDIDATES), seen[8][8] = {{0}};
    for (int i = 0; i < n; i++) seen[c[i].config.family][c[i].config.depth]++;
    for (int depth = 0; depth < 2; depth++)
        assert_true(seen[PZ_GEMM_SKINNY][depth] && seen[PZ_GEMM_GROUP][depth] && seen[PZ_GEMM_WIDE][depth]);
    assert_true(seen[PZ_GEMM_WIDE][2] && seen[PZ_GEMM_WIDE][4]);
}

static void test_infeasible(void **state) {
    (void)state;
    pz_device d = gpu(0);
    pz_gemm_shape s = shape(2112, 7168, 4);
    pz_gemm_config good = {.tile_n = 64, .split = 4, .family = PZ_GEMM_SKINNY, .warps = 2, .stages = 1};
    assert_true(isfinite(pz_gemm_estimate(&d, &s, &good, PZ_ZERO_PREZERO)));
    assert_true(isinf(pz_gemm_estimate(&d, &s, &good, PZ_ZERO_NONE))); /* split and stored */
    pz_gemm_config bad[6] = {good, good, good, good, good, good};
    bad[0].split = (int)pz_gemm_units(s.n, s.k) + 1;
    bad[1].tile_n = 72;
    bad[2].warps = 5; /* 20 in all */
    bad[3].family = PZ_GEMM_DEFAULT;
    bad[4].warps = 0;
    bad[5].split = 0;
    for (int i = 0; i < 6; i++) assert_true(isinf(pz_gemm_estimate(&d, &s, &bad[i], PZ_ZERO_PREZERO)));
    bad[0] = bad[1] = bad[2] = bad[3] = good; /* products that wrap around */
    bad[0].tile_n = 1 << 30, bad[0].warps = 1 << 26;
    bad[1].tile_n = 1 << 30, bad[1].warps = 1 << 26, bad[1].family = PZ_GEMM_WIDE;
    bad[2].warps = INT_MAX;
    bad[3].split = INT_MAX;
    for (int i = 0; i < 4; i++) assert_int_equal(pz_gemm_blocks(&s, &bad[i]), 0);
    good.stages = INT_MAX; /* as many as fit */
    good.depth = INT_MAX;
    assert_true(pz_gemm_blocks(&s, &good) > 0);
    good.family = PZ_GEMM_WIDE, good.warps = 1;
    assert_true(pz_gemm_blocks(&s, &good) > 0);
    pz_gemm_config whole = {.tile_n = 16, .split = 1, .family = PZ_GEMM_SKINNY, .warps = 4, .stages = 1};
    pz_gemm_shape many = shape(2112, 128000, 1); /* not even one row fits into shared memory */
    assert_true(isinf(pz_gemm_estimate(&d, &many, &whole, PZ_ZERO_NONE)));
}

static void test_model(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int round = 0; round < 400; round++) {
        pz_device d = gpu(1 + (int)(pz_rng_next(&seed) % 170));
        pz_gemm_shape s = shape(1 + (int64_t)(pz_rng_next(&seed) % 20000),
                                16 * (1 + (int64_t)(pz_rng_next(&seed) % 600)), 1 + (int)(pz_rng_next(&seed) % 200));
        pz_gemm_choices c = pz_gemm_choose(&d, &s);
        assert_false(c.tuned);
        check_geometry(&s, &c.on.config);
        check_geometry(&s, &c.off.config);
        assert_int_equal(c.on.strategy, c.on.config.split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE);
        assert_true(c.off.strategy != PZ_ZERO_PREZERO);
        assert_int_equal(c.off.config.split > 1, c.off.strategy != PZ_ZERO_NONE);
        /* a zeroed output never makes it slower */
        assert_true(pz_gemm_estimate(&d, &s, &c.on.config, c.on.strategy) <=
                    pz_gemm_estimate(&d, &s, &c.off.config, c.off.strategy) + 1e-9);
        for (int i = PZ_ZERO_NONE; i <= PZ_ZERO_TICKET; i++) {
            pz_gemm_config one = pz_gemm_model_for(&d, &s, (pz_strategy)i);
            check_geometry(&s, &one);
            if (i == PZ_ZERO_NONE) assert_int_equal(one.split, 1);
        }
        s.weight = PZ_DT_MXFP4; /* is converted, so it is launched like any other */
        pz_gemm_choices converted = pz_gemm_choose(&d, &s);
        assert_true(same(&converted.on.config, &c.on.config));
    }
}

/* Another architecture has skinny alone, at any number of rows. */
static void test_no_wgmma(void **state) {
    (void)state;
    pz_device d;
    pz_device_gpu("NVIDIA A100-SXM4-80GB", 80, 108, &d);
    for (int accum = PZ_ACCUM_FIXED; accum <= PZ_ACCUM_BF16; accum++)
        for (int m = 1; m <= 300; m += 13) {
            pz_gemm_shape s = shape(2112, 7168, m);
            s.accum = (pz_accum)accum;
            pz_gemm_candidate c[PZ_MAX_CANDIDATES];
            int n = pz_gemm_candidates(&d, &s, c, PZ_MAX_CANDIDATES);
            assert_true(n >= 1);
            for (int i = 0; i < n; i++) assert_int_equal(c[i].config.family, PZ_GEMM_SKINNY);
            pz_gemm_choices chosen = pz_gemm_choose(&d, &s);
            assert_int_equal(chosen.on.config.family, PZ_GEMM_SKINNY);
            assert_int_equal(chosen.off.config.family, PZ_GEMM_SKINNY);
            pz_gemm_config wide = {64, 4, PZ_GEMM_WIDE, 1, 0, 0};
            assert_true(isinf(pz_gemm_estimate(&d, &s, &wide, PZ_ZERO_PREZERO)));
        }
}

static void test_text(void **state) {
    (void)state;
    pz_device d = gpu(0);
    pz_gemm_shape s = shape(2112, 7168, 4);
    char *text;
    pz_error err;
    assert_ok(pz_gemm_candidates_text(&d, &s, &text, &err), &err);
    assert_contains(text, " candidates for n 2112, k 7168, m 4 on h200 (132 units)\n");
    assert_contains(text, " waves  skinny tile_n ");
    assert_contains(text, " waves  group tile_n ");
    assert_contains(text, " waves  wide tile_n ");
    pz_free(text);
    s.accum = PZ_ACCUM_F32;
    s.m = 128;
    assert_ok(pz_gemm_candidates_text(&d, &s, &text, &err), &err);
    assert_contains(text, " waves  wide tile_n 64, split ");
    assert_null(strstr(text, "skinny")); /* too many rows */
    pz_free(text);
    pz_str b = {0};
    pz_gemm_config_text(&(pz_gemm_config){.family = PZ_GEMM_CUBLASLT, .split = 1, .stages = 5}, &b);
    assert_string_equal(b.s, "cublaslt heuristic 5");
    pz_str_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates), cmocka_unit_test(test_units),      cmocka_unit_test(test_rings),
        cmocka_unit_test(test_blocks),     cmocka_unit_test(test_estimates),  cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_winners),    cmocka_unit_test(test_cover),      cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_depths),     cmocka_unit_test(test_infeasible), cmocka_unit_test(test_model),
        cmocka_unit_test(test_no_wgmma),   cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
