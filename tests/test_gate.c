/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <math.h>

#include "base/par.h"
#include "base/rng.h"
#include "plan/donor.h"
#include "plan/tuned.h"

static pz_device device(const char *name, int units) {
    pz_device d;
    pz_error err;
    assert_ok(pz_device_find(name, units, &d, &err), &err);
    return d;
}

enum { BLOCK = 49152 }; /* bytes of a rider's block on a GPU */

/* Of two ranks and rows of 7168. */
static pz_gate_result evaluate(const pz_device *d, int m, bool collective, int64_t bytes, int slices) {
    pz_donor donor = pz_donor_of(d, m, collective, 7168);
    return pz_gate_evaluate(d, &donor, bytes, slices);
}
static pz_gate_result weigh(const pz_device *d, int m, bool collective, int64_t bytes, double replaced_us) {
    pz_donor donor = pz_donor_of(d, m, collective, 7168);
    return pz_gate_weigh(d, &donor, bytes, replaced_us);
}

static void test_devices(void **state) {
    (void)state;
    assert_int_equal(device("h200", 0).units, 132);
    assert_int_equal(device("h200", 20).units, 20);
    assert_int_equal(device("cpu", 0).units, pz_par_cpus());
    assert_int_equal(device("cpu", 3).units, 3);
    pz_device d;
    pz_error err;
    assert_fails(pz_device_find("gtx", 0, &d, &err), PZ_E_NOTFOUND, &err, "'gtx'", "h200", "cpu");
    assert_fails(pz_device_find(NULL, 0, &d, &err), PZ_E_NOTFOUND, &err, "h200");
    assert_fails(pz_device_find("cpu", -1, &d, &err), PZ_E_INVAL, &err, "-1");
}

/* Names as the driver gives them. */
static void test_gpu_names(void **state) {
    (void)state;
    static const struct {
        const char *product, *name;
    } rows[] = {
        {"NVIDIA H200", "h200"},
        {"NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"},
        {"NVIDIA GeForce RTX 4090", "geforce-rtx-4090"},
        {"Tesla  V100", "tesla-v100"},
        {"cpu", "cpu"}, /* the name alone makes no GPU of it */
        {"", "gpu"},
        {"NVIDIA ", "gpu"},
        {"an accelerator with a name that does not end", "an-accelerator-with-a-name-that"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        pz_device d;
        pz_device_gpu(rows[i].product, 80, 77, &d);
        assert_string_equal(d.name, rows[i].name);
        assert_int_equal(d.units, 77);
        assert_int_equal(d.sm, 80);
        assert_true(d.gpu && d.bandwidth > 0 && d.gate.fill > 0);
        assert_null(d.tuned);
    }
}

static void test_splits(void **state) {
    (void)state;
    static const struct {
        const char *device;
        int64_t n, k;
        pz_dtype weight;
        int split;
    } rows[] = {
        /* the tiny model of the same layout: all four split */
        {"cpu", 704, 256, PZ_DT_BF16, 2}, {"cpu", 8, 256, PZ_DT_F32, 4}, {"cpu", 768, 128, PZ_DT_BF16, 2},
        {"cpu", 256, 512, PZ_DT_BF16, 8}, {"cpu", 1, 1, PZ_DT_F32, 1},   {"cpu", 704, 256, PZ_DT_MXFP4, 1},
        {"cpu", 704, 256, PZ_DT_FP8, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int units = 1; units < 300; units += 37) { /* bits must not depend on the number of units */
            pz_device d = device(rows[i].device, units);
            assert_int_equal(pz_gemm_configure(&d, rows[i].n, rows[i].k, rows[i].weight).split, rows[i].split);
        }
}

static void test_split_ranges(void **state) {
    (void)state;
    pz_device devs[] = {device("h200", 0), device("cpu", 0)};
    for (int64_t k = 1; k < 9000; k += k < 700 ? 1 : 97)
        for (int d = 0; d < 2; d++)
            for (int64_t n = 1; n < 3000; n = n * 3 + 1) {
                int split = pz_gemm_configure(&devs[d], n, k, PZ_DT_BF16).split;
                assert_true(split >= 1);
                assert_int_equal(pz_split_begin(k, split, 0), 0);
                assert_int_equal(pz_split_begin(k, split, split), k);
                for (int s = 0; s < split; s++) {
                    int64_t begin = pz_split_begin(k, split, s), end = pz_split_begin(k, split, s + 1);
                    assert_true(begin < end);
                    assert_int_equal(begin % 32, 0);
                }
            }
    assert_int_equal(pz_split_begin(7168, 8, 1), 896);
    assert_int_equal(pz_split_begin(INT64_MAX / 2, 2, 2), INT64_MAX / 2);
}

/* Worked by hand from the table: 132 units, 20000 bytes per us and unit. */
static void test_numbers(void **state) {
    (void)state;
    pz_device d = device("h200", 0);
    d.one_shot = 256;
    pz_gate_result r = evaluate(&d, 16, true, 135168, 1); /* 7 blocks a row */
    assert_int_equal(r.idle_units, 132 - 112);
    assert_true(fabs(r.donor_us - (3.55 + 0.038 * 16)) < 1e-9);
    assert_true(fabs(r.fill_us - 49152 / 20000.0) < 1e-9); /* 3 blocks, each on a unit of its own */
    assert_true(r.added_us == 0);
    assert_true(fabs(r.replaced_us - (0.9 + 135168 / (20000.0 * 132))) < 1e-9);
    assert_int_equal(r.verdict, PZ_GATE_FREE);

    /* 20 blocks have a unit each. One more, and the 112 of the rows store all of it. */
    r = evaluate(&d, 16, true, 20 * BLOCK, 1);
    assert_true(fabs(r.fill_us - 49152 / 20000.0) < 1e-9 && r.added_us == 0);
    r = evaluate(&d, 16, true, 20 * BLOCK + 16, 1);
    assert_true(fabs(r.fill_us - 983056 / 112.0 / 20000) < 1e-9 && r.added_us == 0);

    /* 131 blocks of 60 kB beside 131 rows: carried, and hidden while they wait */
    r = evaluate(&d, 131, true, 7860000, 1);
    assert_int_equal(r.idle_units, 1);
    assert_true(fabs(r.fill_us - 3) < 1e-9 && r.added_us == 0);
    assert_int_equal(r.verdict, PZ_GATE_FREE);

    r = evaluate(&d, 132, true, 7920000, 1); /* none idle */
    assert_int_equal(r.idle_units, 0);
    assert_true(fabs(r.fill_us - 3) < 1e-9 && r.added_us == 0 && r.verdict == PZ_GATE_FREE);

    /* the 118 units without one of the 14 blocks of two rows are busy for 1 us longer than these, 3.626 us */
    r = evaluate(&d, 2, true, 118 * 92520, 1);
    assert_true(fabs(r.fill_us - 4.626) < 1e-9 && fabs(r.added_us - 1) < 1e-9 && r.verdict == PZ_GATE_PAYS);

    /* A norm carries nothing. 132 blocks of 60 kB beside 131 rows: what those on units with a row store adds. */
    r = evaluate(&d, 131, false, 7920000, 1);
    assert_int_equal(r.idle_units, 1);
    assert_true(fabs(r.fill_us - 3) < 1e-9 && fabs(r.added_us - 3.0 * 131 / 132) < 1e-9);
    assert_int_equal(r.verdict, PZ_GATE_PAYS);

    /* 100 blocks, 32 of them on units without a row: 68 add their share of what all units need */
    r = evaluate(&d, 100, false, 4915200, 1);
    assert_true(fabs(r.fill_us - 49152 / 20000.0) < 1e-9);
    assert_true(fabs(r.added_us - 0.68 * 4915200 / (20000.0 * 132)) < 1e-9);

    /* longer than the donor, which hides no more than its own time */
    r = evaluate(&d, 1, false, 132 * 200000, 1);
    assert_true(fabs(r.fill_us - 10) < 1e-9 && fabs(r.added_us - (10 - 2.605)) < 1e-9);

    /* A GPU has all rows at once: beyond one a unit none is idle, and the norm takes its rows. */
    r = evaluate(&d, 140, false, 64, 1);
    assert_int_equal(r.idle_units, 0);
    assert_true(fabs(r.donor_us - (2.6 + 140 * 0.005)) < 1e-9);
    assert_int_equal(r.verdict, PZ_GATE_PAYS);

    /* On 4 threads 6 rows take two waves, and the second has 2: only its half of the donor's time can hide a fill. */
    pz_device cpu = device("cpu", 4);
    r = evaluate(&cpu, 6, false, 64, 1);
    assert_int_equal(r.idle_units, 2);
    assert_true(fabs(r.donor_us - (0.3 + 2 * 0.3)) < 1e-9);
    int64_t hidden_in_one_wave = (int64_t)(8000.0 * 2 * (0.3 + 2 * 0.3) / 2);
    assert_int_equal(evaluate(&cpu, 6, false, hidden_in_one_wave - 64, 1).verdict, PZ_GATE_FREE);
    assert_int_equal(evaluate(&cpu, 6, false, hidden_in_one_wave + 64, 1).verdict, PZ_GATE_PAYS);

    /* What the rider costs however small it is, and what is saved as it was measured. */
    pz_device rider = d;
    rider.gate.rider = 0.25;
    r = evaluate(&rider, 16, true, 135168, 1);
    assert_true(fabs(r.added_us - 0.25) < 1e-9 && r.verdict == PZ_GATE_PAYS);
    assert_true(fabs(evaluate(&rider, 132, true, 7920000, 1).added_us - 0.25) < 1e-9); /* carried: no more */
    assert_true(fabs(evaluate(&rider, 2, true, 118 * 92520, 1).added_us - 1.25) < 1e-9);
    assert_int_equal(evaluate(&rider, 16, true, 0, 0).verdict, PZ_GATE_FREE);
    assert_int_equal(weigh(&rider, 16, true, 135168, 0.26).verdict, PZ_GATE_PAYS);
    assert_int_equal(weigh(&rider, 16, true, 135168, 0.24).verdict, PZ_GATE_CLOSED);

    assert_int_equal(evaluate(&d, 132, false, 0, 0).verdict, PZ_GATE_FREE); /* nothing to do */

    /* A GEMM that zeroes itself for nothing: a rider that costs anything loses. */
    d.gate.handshake = 0;
    assert_int_equal(evaluate(&d, 132, false, 4096, 3).verdict, PZ_GATE_CLOSED);
    assert_int_equal(evaluate(&d, 1, false, 4096, 3).verdict, PZ_GATE_FREE);

    /* One thread waits for nobody: the fill costs the same wherever it stands. Two do wait. */
    d = device("cpu", 1);
    assert_int_equal(evaluate(&d, 1, false, 4096, 1).verdict, PZ_GATE_CLOSED);
    d = device("cpu", 2);
    assert_int_equal(evaluate(&d, 2, false, 4096, 1).verdict, PZ_GATE_PAYS);
}

/* Which kernel, how many blocks, how long: by hand, for 132 SMs. Of 28 warps of 7168 columns a block takes 4 or more,
 * so at most 7 share a row; more rows than SMs take turns. */
static void test_donors(void **state) {
    (void)state;
    static const struct {
        int ranks, one_shot, nccl, m, hidden;
        pz_collective kind;
        int blocks;
    } rows[] = {
        {0, 0, 0, 1, 7168, PZ_COLLECTIVE_ONE_SHOT, 7},         {2, 0, 0, 18, 7168, PZ_COLLECTIVE_ONE_SHOT, 7 * 18},
        {2, 0, 0, 19, 7168, PZ_COLLECTIVE_ONE_SHOT, 6 * 19},   {2, 0, 0, 64, 7168, PZ_COLLECTIVE_ONE_SHOT, 2 * 64},
        {2, 0, 0, 65, 7168, PZ_COLLECTIVE_TWO_STEP, 2 * 65},   {2, 0, 0, 67, 7168, PZ_COLLECTIVE_TWO_STEP, 67},
        {2, 0, 0, 128, 7168, PZ_COLLECTIVE_TWO_STEP, 128},     {2, 128, 0, 128, 7168, PZ_COLLECTIVE_ONE_SHOT, 128},
        {2, 256, 0, 200, 7168, PZ_COLLECTIVE_ONE_SHOT, 132},   {2, 256, 0, 1000, 7168, PZ_COLLECTIVE_ONE_SHOT, 132},
        {2, 255, 0, 1000, 7168, PZ_COLLECTIVE_TWO_STEP, 132},  {2, 128, 0, 100, 8200, PZ_COLLECTIVE_ONE_SHOT, 100},
        {8, 128, 0, 32, 7168, PZ_COLLECTIVE_ONE_SHOT, 4 * 32}, {8, 128, 0, 128, 7168, PZ_COLLECTIVE_ONE_SHOT, 128},
        {4, 3, 0, 4, 256, PZ_COLLECTIVE_TWO_STEP, 4},          {4, 3, 0, 4, 2048, PZ_COLLECTIVE_TWO_STEP, 2 * 4},
        {8, 0, 1, 100, 7168, PZ_COLLECTIVE_NCCL, 100},         {2, 0, 1, 8, 7168, PZ_COLLECTIVE_NCCL, 7 * 8},
        {1, 0, 0, 200, 7168, PZ_COLLECTIVE_NONE, 200},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        pz_device d = device("h200", 0);
        d.ranks = rows[i].ranks;
        d.one_shot = rows[i].one_shot;
        d.nccl = rows[i].nccl;
        pz_donor donor = pz_donor_of(&d, rows[i].m, true, rows[i].hidden), norm = pz_donor_of(&d, rows[i].m, false, 8);
        assert_string_equal(pz_collective_text(donor.kind), pz_collective_text(rows[i].kind));
        assert_int_equal(donor.blocks, rows[i].blocks);
        bool alone = rows[i].ranks == 1; /* a norm */
        double us = alone ? 2.6 + 0.005 * rows[i].m : 3.55 + 0.038 * rows[i].m;
        assert_true(fabs(donor.us - us) < 1e-9);
        assert_true(norm.kind == PZ_COLLECTIVE_NONE && norm.blocks == rows[i].m && norm.one_shot == 0);
        /* A block for each unit. Beside a norm's blocks, here one a unit; of a collective on the units without a block,
         * if its own are on half of them or fewer, else carried by these. */
        pz_gate_result r = pz_gate_evaluate(&d, &donor, 132 * BLOCK, 1);
        assert_int_equal(r.idle_units, 132 > rows[i].blocks ? 132 - rows[i].blocks : 0);
        double fill = 132.0 * BLOCK / 20000 / (rows[i].blocks > 66 ? rows[i].blocks : 132 - rows[i].blocks);
        assert_true(fabs(r.added_us - (alone ? BLOCK / 20000.0 : fmax(0, fill - us))) < 1e-9);
    }
    pz_device few = device("h200", 1), cpu = device("cpu", 4);
    few.ranks = cpu.ranks = 4;
    assert_int_equal(pz_donor_of(&few, 9, true, 7168).blocks, 1);
    assert_int_equal(pz_donor_of(&cpu, 9, true, 7168).kind, PZ_COLLECTIVE_NONE);
    few.units = 132;
    assert_int_equal(pz_donor_of(&few, 9, true, INT64_MAX).blocks, 9);
    few.sm = 89; /* no clusters */
    assert_int_equal(pz_donor_of(&few, 9, true, 7168).blocks, 9);
    assert_string_equal(pz_collective_text((pz_collective)9), "unknown");
}

/* What is wrong with a shape; NULL: nothing. */
static const char *shape_fault(pz_group_shape s, int hidden, int ranks, int m, int units, int clusters) {
    int64_t block = 8 * (int64_t)s.threads * s.vectors; /* columns */
    if (s.vectors != 1 && s.vectors != 2 && s.vectors != 4) return "no such kernel";
    if (s.threads < 32 || s.threads % 32) return "a warp is not whole";
    if (s.threads > (ranks <= 2 && s.vectors == 1 ? 896 : 512)) return "more threads than registers allow";
    if (s.parts < 1 || s.parts > (clusters ? 8 : 1)) return "no such cluster";
    if (block * s.parts < hidden) return "columns are left over";
    if (block * (s.parts - 1) >= hidden) return "a block has no columns";
    if (s.parts * (s.threads / 32) * s.vectors > 64) return "more sums than there is room for";
    if (s.rows < 1 || s.rows > m) return "a block has no row";
    if (s.rows * s.parts > units) return "more blocks than units";
    if (s.rows < m && (s.rows + 1) * s.parts <= units) return "units without a row";
    return NULL;
}

static void check_shape(int hidden, int ranks, int m, int units, int clusters) {
    pz_group_shape s = pz_group_shape_of(hidden, ranks, m, units, clusters);
    const char *fault = shape_fault(s, hidden, ranks, m, units, clusters);
    if (fault)
        fail_msg("%d columns, %d ranks, m %d, %d units, clusters %d: %s (%d threads, %d vectors, %d parts, %d rows)",
                 hidden, ranks, m, units, clusters, fault, s.threads, s.vectors, s.parts, s.rows);
}

/* Of any row that the kernel takes, on any share of a device. */
static void test_shapes(void **state) {
    (void)state;
    static const struct {
        int hidden, ranks, m, units, clusters, threads, vectors, parts, rows;
    } rows[] = {
        {7168, 2, 1, 132, 1, 128, 1, 7, 1},
        {7168, 2, 16, 132, 1, 128, 1, 7, 16},
        {7168, 2, 19, 132, 1, 160, 1, 6, 19}, /* 28 warps: 5 by 5 and 3 */
        {7168, 2, 32, 132, 1, 224, 1, 4, 32},
        {7168, 2, 64, 132, 1, 448, 1, 2, 64},
        {7168, 2, 128, 132, 1, 896, 1, 1, 128},
        {7168, 2, 300, 132, 1, 896, 1, 1, 132},
        {7168, 2, 1, 132, 0, 896, 1, 1, 1},
        {7168, 2, 128, 66, 1, 896, 1, 1, 66}, /* half of a device */
        {7168, 8, 64, 132, 1, 448, 1, 2, 64},
        {7168, 8, 128, 132, 1, 448, 2, 1, 128}, /* 28 warps in two turns of 14 */
        {7200, 2, 128, 132, 1, 480, 2, 1, 128},
        {8200, 2, 128, 132, 1, 288, 4, 1, 128}, /* 33 warps: more than two turns of 16 */
        {8, 2, 1, 132, 1, 32, 1, 1, 1},
        {1792, 2, 1, 132, 1, 224, 1, 1, 1}, /* 7 warps are too few for two blocks */
        {2048, 2, 1, 132, 1, 128, 1, 2, 1},
        {16384, 2, 1, 132, 1, 256, 1, 8, 1},
        {16384, 2, 20, 132, 1, 512, 1, 4, 20}, /* 6 blocks of 11 warps would have 66 sums */
        {16384, 8, 132, 132, 1, 512, 4, 1, 132},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pz_group_shape s = pz_group_shape_of(rows[i].hidden, rows[i].ranks, rows[i].m, rows[i].units, rows[i].clusters);
        assert_int_equal(s.threads, rows[i].threads);
        assert_int_equal(s.vectors, rows[i].vectors);
        assert_int_equal(s.parts, rows[i].parts);
        assert_int_equal(s.rows, rows[i].rows);
    }
    uint64_t seed = 5;
    for (int hidden = 8; hidden <= 16384; hidden += 8)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int round = 0; round < 16; round++) {
                int m = 1 + (int)(pz_rng_next(&seed) % 300), units = 1 + (int)(pz_rng_next(&seed) % 132);
                check_shape(hidden, ranks, m, units, round % 2);
            }
    static const int widths[] = {8, 2048, 7168, 8200, 15368, 16384};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int m = 1; m <= 300; m++)
            for (int units = 1; units <= 132; units++)
                for (int c = 0; c < 4; c++) check_shape(widths[i], c < 2 ? 2 : 8, m, units, c % 2);
    static const int riders[][4] = {/* blocks of the rows, wanted, units; own */
                                    {112, 20, 132, 20}, {112, 21, 132, 0}, {7, 125, 132, 125}, {7, 132, 132, 125},
                                    {66, 67, 132, 66},  {67, 66, 132, 0},  {8, 0, 132, 0},     {132, 1, 132, 0}};
    for (size_t i = 0; i < sizeof riders / sizeof *riders; i++)
        assert_int_equal(pz_group_rider(riders[i][0], riders[i][1], riders[i][2]), riders[i][3]);
}

/* Knobs decide over the table, and the table over the built-in numbers. */
static void test_group(void **state) {
    (void)state;
    pz_error err;
    pz_device d = device("h200", 0);
    pz_tuned *t;
    assert_ok(pz_tuned_new(&d, "", &t, &err), &err);
    pz_tuned_collective rows[] = {{2, 7168, 256, 3, 0.5, 0}, {4, 7168, 16, 5, 0.25, 0}, {4, 1024, 32, 4, 0.125, 0}};
    for (int i = 0; i < 3; i++) assert_ok(pz_tuned_put_collective(t, &rows[i], &err), &err);
    pz_device_tune(&d, t);
    static const struct {
        int ranks, hidden, one_shot;
        double us; /* of 8 rows */
    } want[] = {{0, 7168, 256, 7}, {2, 7168, 256, 7}, {2, 64, 256, 7},    {4, 7168, 16, 7},     {4, 1025, 16, 7},
                {4, 1024, 32, 5},  {4, 8, 32, 5},     {4, 100000, 16, 7}, {3, 7168, 64, 3.854}, {8, 7168, 64, 3.854}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_ok(pz_device_group(&d, want[i].ranks, &err), &err);
        pz_donor donor = pz_donor_of(&d, 8, true, want[i].hidden);
        assert_int_equal(donor.one_shot, want[i].one_shot);
        assert_true(fabs(donor.us - want[i].us) < 1e-9);
    }
    assert_int_equal(setenv("PREZERO_ONE_SHOT", "7", 1), 0);
    assert_ok(pz_device_group(&d, 4, &err), &err);
    assert_int_equal(pz_donor_of(&d, 8, true, 7168).kind, PZ_COLLECTIVE_TWO_STEP);
    assert_int_equal(pz_donor_of(&d, 7, true, 7168).kind, PZ_COLLECTIVE_ONE_SHOT);
    assert_int_equal(setenv("PREZERO_NCCL", "1", 1), 0);
    assert_ok(pz_device_group(&d, 4, &err), &err);
    assert_int_equal(pz_donor_of(&d, 8, true, 7168).kind, PZ_COLLECTIVE_NCCL);
    assert_int_equal(setenv("PREZERO_ONE_SHOT", "257", 1), 0);
    assert_fails(pz_device_group(&d, 4, &err), PZ_E_INVAL, &err, "PREZERO_ONE_SHOT", "256");
    assert_int_equal(unsetenv("PREZERO_ONE_SHOT") | unsetenv("PREZERO_NCCL"), 0);
    /* GPUs that cannot write to each other's memory, as their backend has found */
    for (int near = 0; near < 2; near++) {
        pz_device g = device("h200", 0);
        g.nccl = !near;
        assert_ok(pz_device_group(&g, 2, &err), &err);
        assert_int_equal(pz_donor_of(&g, 8, true, 7168).kind, near ? PZ_COLLECTIVE_ONE_SHOT : PZ_COLLECTIVE_NCCL);
    }
    pz_tuned_free(t);
}

/* Blocks of a rider: by hand. */
static void test_rider(void **state) {
    (void)state;
    static const struct {
        int m, units, blocks;
        int64_t bytes;
        double busiest, beside;
    } rows[] = {
        {1, 132, 0, 0, 0, 0},
        {1, 132, 1, 16, 16, 0},
        {1, 132, 1, BLOCK, BLOCK, 0},
        {1, 132, 2, BLOCK + 16, BLOCK, 0},
        {1, 132, 131, 131 * BLOCK, BLOCK, 0},
        {1, 132, 132, 132 * BLOCK, BLOCK, BLOCK / 132.0},
        {128, 132, 4, 196608, BLOCK, 0},
        {128, 132, 5, 245760, BLOCK, BLOCK / 132.0},
        {128, 132, 132, 7920000, 60000, 60000 * 128 / 132.0},
        {200, 100, 2, 98304, BLOCK, 983.04},
        {200, 100, 100, 8192000, 81920, 81920},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        pz_rider r = pz_rider_of(rows[i].m, rows[i].bytes, rows[i].units);
        assert_int_equal(r.blocks, rows[i].blocks);
        assert_true(fabs(r.busiest - rows[i].busiest) < 1e-9 && fabs(r.beside - rows[i].beside) < 1e-9);
    }
}

static void test_monotonic(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 300; round++) {
        pz_device d = device(round % 2 ? "h200" : "cpu", 1 + (int)(pz_rng_next(&seed) % 200));
        d.one_shot = 256;
        d.gate.fill = 1 + pz_rng_unit(&seed) * (d.gpu ? 180000 : 30000);
        d.gate.handshake = pz_rng_unit(&seed) * 2;
        int m = 1 + (int)(pz_rng_next(&seed) % 500);
        bool collective = pz_rng_next(&seed) & 1;
        pz_gate_result last = {0};
        for (int64_t bytes = 0; bytes < 50000000; bytes += 64 + bytes / 3 / 64 * 64) {
            pz_gate_result r = evaluate(&d, m, collective, bytes, 2);
            assert_in_range(r.idle_units, 0, d.units - 1);
            int idle = d.gpu ? (m < d.units ? d.units - m : 0) : (d.units - m % d.units) % d.units;
            if (d.gpu && collective) /* a row may have several blocks */
                assert_true(r.idle_units <= idle);
            else
                assert_int_equal(r.idle_units, idle);
            /* one block of a GPU's rider may outlast the donor by itself, which more of them do not add to; those of a
             * collective, where they are many, are carried by all of its blocks */
            int carriers = d.gpu && collective ? d.units - r.idle_units : d.units;
            double spread = (double)bytes / (d.gate.fill * carriers), one = d.gpu ? PZ_RIDER_BLOCK / d.gate.fill : 0;
            assert_true(r.added_us >= last.added_us || (d.gpu && collective && one > r.donor_us));
            assert_true(r.replaced_us >= last.replaced_us);
            assert_true(r.added_us <= spread * (1 + 1e-12) || r.added_us <= one);
            assert_true(r.verdict >= last.verdict || one > r.donor_us); /* else more bytes never open the gate */
            assert_true((r.verdict == PZ_GATE_FREE) == (r.added_us == 0));
            assert_true((r.verdict == PZ_GATE_PAYS) == (r.added_us > 0 && r.added_us < r.replaced_us));
            last = r;
        }
    }
}

static void test_public(void **state) {
    (void)state;
    pz_error err;
    pz_gate_result r, want;
    pz_device d = device("cpu", 4);
    pz_gate_query q = {.size = sizeof q, .device = "cpu", .units = 4, .rows = 3, .bytes = 5000, .slices = 2};
    assert_ok(pz_gate(&q, &r, &err), &err);
    want = evaluate(&d, 3, false, 5000, 2);
    assert_true(r.idle_units == want.idle_units && r.verdict == want.verdict && r.donor_us == want.donor_us &&
                r.fill_us == want.fill_us && r.added_us == want.added_us && r.replaced_us == want.replaced_us);
    q = (pz_gate_query){.size = sizeof q, .rows = 16, .collective = 1, .bytes = 135168, .slices = 1};
    assert_ok(pz_gate(&q, &r, &err), &err); /* h200 */
    assert_int_equal(r.idle_units, 132 - 7 * 16);
    assert_string_equal(pz_gate_text(r.verdict), "free");
    assert_string_equal(pz_gate_text(PZ_GATE_CLOSED), "closed");
    assert_string_equal(pz_gate_text((pz_gate_verdict)77), "unknown");

    /* by the constants of a tuned table */
    char *dir = support_tmp_dir(), *path = support_path(dir, "t.json");
    pz_tuned *t;
    d = device("h200", 0);
    assert_ok(pz_tuned_new(&d, "", &t, &err), &err);
    t->gate.ar_base = 11;
    assert_ok(pz_tuned_put_collective(t, &(pz_tuned_collective){4, 7168, 8, 5, 0.5, 0}, &err), &err);
    assert_ok(pz_tuned_save(t, path, &err), &err);
    pz_tuned_free(t);
    assert_int_equal(setenv("PREZERO_TUNED", path, 1), 0);
    assert_ok(pz_gate(&q, &r, &err), &err);
    assert_true(fabs(r.donor_us - (11 + 16 * 0.038)) < 1e-9);
    q.ranks = 4;
    q.rows = 128;
    assert_ok(pz_gate(&q, &r, &err), &err);
    assert_true(fabs(r.donor_us - (5 + 128 * 0.5)) < 1e-9);
    assert_int_equal(r.idle_units, 4);
    q.ranks = 0;
    q.rows = 16;
    assert_int_equal(setenv("PREZERO_TUNED", dir, 1), 0);
    assert_fails(pz_gate(&q, &r, &err), PZ_E_IO, &err, dir);
    assert_int_equal(setenv("PREZERO_TUNED", "none", 1), 0);
    pz_free(path);
    support_tmp_remove(dir);

    pz_gate_query bad = q;
    bad.size = 3;
    assert_fails(pz_gate(&bad, &r, &err), PZ_E_INVAL, &err, "size");
    assert_fails(pz_gate(NULL, &r, &err), PZ_E_INVAL, &err, "size");
    assert_fails(pz_gate(&q, NULL, &err), PZ_E_INVAL, &err, "result");
    bad = q, bad.rows = 0;
    assert_fails(pz_gate(&bad, &r, &err), PZ_E_INVAL, &err, "rows is 0");
    bad = q, bad.bytes = -1;
    assert_fails(pz_gate(&bad, &r, &err), PZ_E_INVAL, &err, "bytes is -1");
    bad = q, bad.slices = -1;
    assert_fails(pz_gate(&bad, &r, &err), PZ_E_INVAL, &err, "slices is -1");
    bad = q, bad.ranks = -1;
    assert_fails(pz_gate(&bad, &r, &err), PZ_E_INVAL, &err, "ranks is -1");
    bad = q, bad.hidden = -1;
    assert_fails(pz_gate(&bad, &r, &err), PZ_E_INVAL, &err, "hidden is -1");
    bad = q, bad.device = "abacus";
    assert_fails(pz_gate(&bad, &r, &err), PZ_E_NOTFOUND, &err, "abacus", "h200");
}

static void test_strategies(void **state) {
    (void)state;
    pz_strategy s;
    for (int i = 0; i <= PZ_ZERO_TICKET; i++) {
        assert_true(pz_strategy_from_text(pz_strategy_text((pz_strategy)i), &s));
        assert_int_equal(s, i);
    }
    assert_false(pz_strategy_from_text("wish", &s));
    int option;
    assert_true(pz_strategy_option("auto", &option));
    assert_int_equal(option, PZ_STRATEGY_AUTO);
    assert_true(pz_strategy_option("ticket", &option));
    assert_int_equal(option, PZ_ZERO_TICKET);
    assert_false(pz_strategy_option("wish", &option));
    int family;
    for (int i = PZ_GEMM_DEFAULT; i <= PZ_GEMM_CUBLASLT; i++) {
        assert_true(pz_gemm_family_from_text(pz_gemm_family_text(i), &family));
        assert_int_equal(family, i);
    }
    assert_string_equal(pz_gemm_family_text(-1), "unknown");
    assert_false(pz_gemm_family_from_text("unknown", &family));
    assert_string_equal(pz_strategy_text((pz_strategy)99), "unknown");
    assert_true(pz_strategy_adds(PZ_ZERO_PREZERO) && pz_strategy_adds(PZ_ZERO_SELF) &&
                pz_strategy_adds(PZ_ZERO_MEMSET));
    assert_false(pz_strategy_adds(PZ_ZERO_NONE) || pz_strategy_adds(PZ_ZERO_REDUCE) ||
                 pz_strategy_adds((pz_strategy)99));
}

static int model_alone(void **state) {
    (void)state;
    return setenv("PREZERO_TUNED", "none", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),      cmocka_unit_test(test_gpu_names), cmocka_unit_test(test_splits),
        cmocka_unit_test(test_split_ranges), cmocka_unit_test(test_numbers),   cmocka_unit_test(test_donors),
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_group),     cmocka_unit_test(test_rider),
        cmocka_unit_test(test_monotonic),    cmocka_unit_test(test_public),    cmocka_unit_test(test_strategies),
    };
    return cmocka_run_group_tests(tests, model_alone, NULL);
}
