/* SPDX-License-Identifier: Apache-2.0 */
/* The gate, usable alone: for authors of engines who carry a zero fill in a kernel of their own and want to know, per
 * batch size, whether it is worth it.
 *
 * A donor (a norm, or an all-reduce fused with one) works with one row per execution unit. Units without a row can zero
 * `bytes` bytes for GEMMs that run later and add into them (the rider), so that those need not zero their output
 * themselves. Example, the widest prefix of three slices that is worth its time:
 *
 *     pz_gate_query q = {.size = sizeof q, .device = "h200", .rows = 16, .collective = 1};
 *     int level = 0;
 *     for (int i = 0; i < 3; i++) {
 *         pz_gate_result r;
 *         q.bytes += slice_bytes[i];
 *         q.slices = i + 1;
 *         if (pz_gate(&q, &r, NULL) == PZ_OK && r.verdict != PZ_GATE_CLOSED) level = i + 1;
 *     }
 *
 * Threads: every function here may be called from any thread. */
#ifndef PREZERO_KERNELS_H
#define PREZERO_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "prezero/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Verdicts: enum suffix, text. */
#define PZ_GATE_TABLE(X)                                                                             \
    X(FREE, "free")     /* the donor takes no longer: the fill ends on idle units within its time */ \
    X(PAYS, "pays")     /* it lengthens the donor, by less than the zeroing that it replaces */      \
    X(CLOSED, "closed") /* it would cost as much as it saves, or more */
typedef enum pz_gate_verdict {
#define PZ_GATE_ENUM(id, text) PZ_GATE_##id,
    PZ_GATE_TABLE(PZ_GATE_ENUM)
#undef PZ_GATE_ENUM
} pz_gate_verdict;

/* Numbers behind a verdict; times in microseconds, from the model of the device. */
typedef struct pz_gate_result {
    int idle_units;     /* units without a row in the donor's last wave (a wave is one row per unit) */
    double donor_us;    /* the donor without rider */
    double fill_us;     /* the fill: on the idle units, or after the rows on all units, whichever adds less */
    double added_us;    /* how much longer the donor takes with the rider */
    double replaced_us; /* what zeroing inside the GEMMs would take: a handshake each, and the same fill */
    pz_gate_verdict verdict;
} pz_gate_result;

/* Zero-initialise, then set `size`. */
typedef struct pz_gate_query {
    size_t size;        /* sizeof(pz_gate_query) */
    const char *device; /* row of the device table: "h200", "cpu"; NULL means "h200" */
    int units;          /* execution units the donor is launched on (SMs, threads); 0: as graph.h's explain options */
    int rows;           /* rows of the step, >= 1 */
    int collective;     /* 1: the donor is an all-reduce fused with the norm; 0: a norm alone */
    int64_t bytes;      /* what the rider zeroes, >= 0 */
    int slices;         /* GEMM outputs in those bytes, >= 0 */
} pz_gate_query;

/* Evaluates one query. E_NOTFOUND lists the devices; E_INVAL names the field that is out of range. */
PZ_API pz_status pz_gate(const pz_gate_query *query, pz_gate_result *result, pz_error *err);

/* "free", "pays", "closed"; static strings, "unknown" for other values. */
PZ_API const char *pz_gate_text(pz_gate_verdict verdict);

#ifdef __cplusplus
}
#endif
#endif
