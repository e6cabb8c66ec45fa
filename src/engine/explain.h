/* SPDX-License-Identifier: Apache-2.0 */
/* What an explanation is made of, for its two forms. */
#ifndef PZ_EXPLAIN_H
#define PZ_EXPLAIN_H

#include "pass/pass.h"
#include "plan/tuned.h"

typedef struct pz_explained {
    const pz_graph *before;
    pz_graph *after; /* the standard pipeline has run */
    pz_pass_report report;
    pz_device device;
    pz_tuned *tuned;         /* what the device decides by, NULL: its model alone */
    PZ_VEC(pz_plan *) plans; /* one a bucket, ascending */
    pz_plan *above;          /* more rows than the largest bucket; prompt processing is planned the same way */
} pz_explained;

pz_status pz_explain_text(const pz_explained *x, const pz_explain_options *opts, char **out, pz_error *err);
pz_status pz_explain_json(const pz_explained *x, char **out, pz_error *err);

/* Launches of one bucket that differ in nothing but their layer. */
typedef struct pz_explained_launch {
    const pz_launch *first;
    int count;
} pz_explained_launch;
typedef PZ_VEC(pz_explained_launch) pz_explained_launches;
typedef pz_status (*pz_explain_fn)(const pz_plan *p, pz_explained_launches *out, pz_error *err);
pz_status pz_explain_gemms(const pz_plan *p, pz_explained_launches *out, pz_error *err);
/* Collectives over the ranks of GPUs. */
pz_status pz_explain_collectives(const pz_plan *p, pz_explained_launches *out, pz_error *err);
/* Of a collective's rows. */
int64_t pz_explain_columns(const pz_plan *p, const pz_launch *la);

/* Where the numbers of the gate and the GEMMs come from, one line. */
void pz_explain_source(const pz_explained *x, pz_str *b);

/* The donor's norm weight, "" if it has none. */
const char *pz_explain_donor(const pz_plan *p, const pz_fill *f);

#endif
