/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "plan/donor.h"
#include "plan/tuned.h"

#define PZ_DEFAULT_DEVICE "h200"
enum { PZ_DEFAULT_HIDDEN = 7168 };

const char *pz_gate_text(pz_gate_verdict v) {
    switch (v) {
#define PZ_GATE_TEXT(id, text) \
    case PZ_GATE_##id: return text;
        PZ_GATE_TABLE(PZ_GATE_TEXT)
#undef PZ_GATE_TEXT
    }
    return "unknown";
}

double pz_gate_replaced(const pz_device *dev, int64_t bytes, int slices) {
    double meet = dev->units > 1 ? dev->gate.handshake : 0; /* one unit has nobody to wait for */
    return slices * meet + (double)bytes / (dev->gate.fill * dev->units);
}

pz_rider pz_rider_of(int busy, int64_t bytes, int units) {
    double idle = units > busy ? units - busy : 0, need = ceil((double)bytes / PZ_RIDER_BLOCK),
           blocks = fmin(need, units);
    pz_rider r = {.blocks = (int)blocks};
    r.busiest = fmax((double)bytes / units, fmin((double)bytes, PZ_RIDER_BLOCK));
    if (blocks > idle) r.beside = (blocks - idle) / blocks * (double)bytes / units;
    return r;
}

static void weigh_blocks(const pz_device *dev, const pz_donor *donor, int64_t bytes, pz_gate_result *r) {
    pz_rider rider = pz_rider_of(donor->blocks, bytes, dev->units);
    if (donor->kind != PZ_COLLECTIVE_NONE) {
        int own = pz_group_rider(donor->blocks, rider.blocks, dev->units);
        if (own < rider.blocks) rider.busiest = (double)bytes / (own ? own : donor->blocks);
        rider.beside = 0;
    }
    r->fill_us = rider.busiest / dev->gate.fill;
    r->added_us = fmax(rider.beside / dev->gate.fill, fmax(r->fill_us - r->donor_us, 0));
}

static void weigh_waves(const pz_device *dev, int waves, int64_t bytes, pz_gate_result *r) {
    double after = (double)bytes / (dev->gate.fill * dev->units);
    r->fill_us = r->added_us = after;
    if (r->idle_units == 0) return;
    double hidden = (double)bytes / (dev->gate.fill * r->idle_units), room = r->donor_us / waves;
    double excess = hidden > room ? hidden - room : 0;
    if (excess < after || bytes == 0) {
        r->fill_us = hidden;
        r->added_us = excess;
    }
}

pz_gate_result pz_gate_weigh(const pz_device *dev, const pz_donor *donor, int64_t bytes, double replaced_us) {
    int waves = dev->gpu ? 1 : (int)pz_ceil_div(donor->m, dev->units);
    int last = dev->gpu ? donor->blocks : donor->m - (waves - 1) * dev->units; /* rows of the last wave */
    pz_gate_result r = {.idle_units = dev->units > last ? dev->units - last : 0, .replaced_us = replaced_us};
    r.donor_us = donor->us;
    if (dev->gpu)
        weigh_blocks(dev, donor, bytes, &r);
    else
        weigh_waves(dev, waves, bytes, &r);
    if (bytes > 0) r.added_us += donor->rider;
    r.verdict = r.added_us == 0 ? PZ_GATE_FREE : r.added_us < r.replaced_us ? PZ_GATE_PAYS : PZ_GATE_CLOSED;
    return r;
}

pz_gate_result pz_gate_evaluate(const pz_device *dev, const pz_donor *donor, int64_t bytes, int slices) {
    return pz_gate_weigh(dev, donor, bytes, pz_gate_replaced(dev, bytes, slices));
}

pz_status pz_gate(const pz_gate_query *q, pz_gate_result *result, pz_error *err) {
    if (!q || q->size != sizeof *q)
        return pz_fail(err, PZ_E_INVAL, "pz_gate: the query's size must be sizeof(pz_gate_query), %zu", sizeof *q);
    if (!result) return pz_fail(err, PZ_E_INVAL, "pz_gate: result must not be NULL");
    if (q->rows < 1) return pz_fail(err, PZ_E_INVAL, "pz_gate: rows is %d, must be 1 or more", q->rows);
    if (q->bytes < 0) return pz_fail(err, PZ_E_INVAL, "pz_gate: bytes is %lld, must be 0 or more", (long long)q->bytes);
    if (q->slices < 0) return pz_fail(err, PZ_E_INVAL, "pz_gate: slices is %d, must be 0 or more", q->slices);
    if (q->ranks < 0) return pz_fail(err, PZ_E_INVAL, "pz_gate: ranks is %d, must be 0 or more", q->ranks);
    if (q->hidden < 0) return pz_fail(err, PZ_E_INVAL, "pz_gate: hidden is %d, must be 0 or more", q->hidden);
    pz_device dev;
    pz_tuned *table;
    PZ_TRY(pz_device_find(q->device ? q->device : PZ_DEFAULT_DEVICE, q->units, &dev, err));
    PZ_TRY(pz_tuned_open(&dev, &table, err));
    pz_device_tune(&dev, table);
    dev.ranks = q->ranks;
    pz_donor donor = pz_donor_of(&dev, q->rows, q->collective != 0, q->hidden ? q->hidden : PZ_DEFAULT_HIDDEN);
    *result = pz_gate_evaluate(&dev, &donor, q->bytes, q->slices);
    pz_tuned_free(table);
    return PZ_OK;
}
