/* SPDX-License-Identifier: Apache-2.0 */
/* Passes: one file each, one entry `pz_pass_NAME`; the driver verifies after each, counts, dumps, and undoes on error.
 */
#ifndef PZ_PASS_H
#define PZ_PASS_H

#include "ir/ir.h"

/* Why a consumer was not converted: one row a reason. */
#define PZ_REASON_TABLE(X)                                                   \
    X(NONE, "converted")                                                     \
    X(NO_DONOR, "no donor before it in its function")                        \
    X(QUANTIZED, "quantized weights")                                        \
    X(WIDTH_UNKNOWN, "output width unknown")                                 \
    X(OPAQUE, "inside an opaque function, and not reachable through a slot") \
    X(UNCALLED, "its slot is never handed in: nobody calls its function")    \
    X(ALREADY, "already has a zeroed output")                                \
    X(DONOR_TAKEN, "its donor already carries another fill")                 \
    X(DONOR_FULL, "its donor has more consumers than a buffer has slices")
typedef enum pz_reason {
#define PZ_REASON_ENUM(id, text) PZ_REASON_##id,
    PZ_REASON_TABLE(PZ_REASON_ENUM)
#undef PZ_REASON_ENUM
} pz_reason;
const char *pz_reason_text(pz_reason r);

/* One consumer that the prezero pass looked at. Strings belong to the report's arena. */
typedef struct pz_consumer_note {
    const char *func;   /* where the consumer stands: the calling function for a slot */
    const char *name;   /* slice name; when not converted the weight's name, or the slot's if that is unknown */
    const char *weight; /* the GEMM's weight, "" for a slot of an external function */
    const char *via;    /* "" or the callee for a slot */
    int donor;          /* the donor whose buffer it has a slice of, as index into donors; else -1 */
    pz_reason reason;
    const char *detail; /* "" or more, such as the dtype of quantized weights */
} pz_consumer_note;
typedef struct pz_donor_note {
    const char *func, *op, *weight; /* the norm's weight name identifies the donor */
    const char *buffer;             /* the buffer value's name, NULL if the donor got no fill */
} pz_donor_note;
typedef struct pz_pass_note {
    const char *pass;
    int changed;       /* matches, conversions, removals */
    const char *count; /* what is counted: "fused", "removed", "converted" */
} pz_pass_note;

/* What the passes did. Zero-initialise; free with pz_pass_report_free. After an error it holds what was noted until
 * then. Donors and consumers are those of the last prezero run. Donors inside opaque functions are not listed: no pass
 * may use them. */
typedef struct pz_pass_report {
    pz_arena arena;
    PZ_VEC(pz_pass_note) passes;
    PZ_VEC(pz_donor_note) donors; /* every donor node in execution order, also those without fill */
    PZ_VEC(pz_consumer_note) consumers;
} pz_pass_report;
void pz_pass_report_free(pz_pass_report *r);

typedef struct pz_pass_info {
    const char *name, *doc, *counts;
    /* report is never NULL. A pass may leave g half changed when it fails: the driver gives it a clone. */
    pz_status (*run)(pz_graph *g, pz_pass_report *report, int *changed, pz_error *err);
} pz_pass_info;
int pz_pass_count(void);
const pz_pass_info *pz_pass_at(int i);

/* The standard list as text: with or without prezero. */
const char *pz_pipeline(bool prezero);
/* Runs a comma list (NULL: pz_pipeline(true)). report may be NULL. All or nothing per pass. E_INVAL names an unknown
 * pass and lists those there are. */
pz_status pz_passes_run(pz_graph *g, const char *list, pz_pass_report *report, pz_error *err);
/* Text of the report, as pz_graph_run_passes gives it. */
pz_status pz_pass_report_text(const pz_pass_report *r, char **out, pz_error *err);

/* For the passes and the driver; strings are copied, NULL counts as "". */
pz_status pz_report_add_pass(pz_pass_report *r, const pz_pass_info *pass, int changed, pz_error *err);
pz_status pz_report_add_donor(pz_pass_report *r, const pz_donor_note *note, pz_error *err);
pz_status pz_report_add_consumer(pz_pass_report *r, const pz_consumer_note *note, pz_error *err);

#define PASS(id, text, suffix, pipeline, counts, doc) \
    pz_status pz_pass_##suffix(pz_graph *g, pz_pass_report *report, int *changed, pz_error *err);
#include "pass/passes.def"
#undef PASS

#endif
