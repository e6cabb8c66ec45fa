/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/donor.h"

#include "base/knobs.h"
#include "plan/tuned.h"

enum { PZ_UNKNOWN_RANKS = 2 };

static const char *const kinds[] = {
#define PZ_COLLECTIVE_TEXT(id, text) text,
    PZ_COLLECTIVE_TABLE(PZ_COLLECTIVE_TEXT)
#undef PZ_COLLECTIVE_TEXT
};

const char *pz_collective_text(pz_collective kind) {
    return (unsigned)kind < sizeof kinds / sizeof *kinds ? kinds[kind] : "unknown";
}

pz_status pz_device_group(pz_device *dev, int ranks, pz_error *err) {
    int64_t one_shot;
    bool nccl;
    dev->ranks = ranks;
    PZ_TRY(pz_knob_int(PZ_KNOB_ONE_SHOT, &one_shot, err));
    dev->one_shot = (int)one_shot;
    PZ_TRY(pz_knob_bool(PZ_KNOB_NCCL, &nccl, err));
    dev->nccl = dev->nccl || nccl;
    return PZ_OK;
}

/* rows: of the first launch. */
static pz_collective kind_of(const pz_device *dev, int rows, int one_shot) {
    if (!dev->gpu) return PZ_COLLECTIVE_NONE;
    if (dev->nccl) return PZ_COLLECTIVE_NCCL;
    return rows > one_shot ? PZ_COLLECTIVE_TWO_STEP : PZ_COLLECTIVE_ONE_SHOT;
}

pz_donor pz_donor_of(const pz_device *dev, int m, bool collective, int64_t hidden) {
    const pz_gate_constants *g = &dev->gate;
    int times = dev->gpu ? m : (int)pz_ceil_div(m, dev->units), ranks = dev->ranks ? dev->ranks : PZ_UNKNOWN_RANKS;
    pz_donor d = {.m = m, .blocks = m, .us = g->norm_base + g->norm_row * times, .rider = g->rider};
    if (!collective || dev->ranks == 1) return d;
    const pz_tuned_collective *t = dev->tuned ? pz_tuned_collective_find(dev->tuned, ranks, hidden) : NULL;
    d.us = (t ? t->ar_base : g->ar_base) + (t ? t->ar_row : g->ar_row) * m;
    if (t) d.rider = t->rider;
    d.one_shot = dev->one_shot ? dev->one_shot : t ? t->one_shot : PZ_ONE_SHOT_ROWS;
    int rows = m < PZ_GROUP_ROWS ? m : PZ_GROUP_ROWS;
    d.kind = kind_of(dev, rows, d.one_shot);
    if (d.kind == PZ_COLLECTIVE_NONE) return d;
    int columns = hidden < INT32_MAX ? (int)hidden : INT32_MAX;
    pz_group_shape shape = pz_group_shape_of(columns, ranks, rows, dev->units, dev->sm >= 90);
    d.blocks = shape.rows * shape.parts;
    return d;
}
