/* SPDX-License-Identifier: Apache-2.0 */
/* Launch times, gathered over all plans by the launch's role and layer. */
#include <stdio.h>

#include "engine/session.h"

typedef PZ_VEC(pz_profile_row) profile_rows;

static pz_status add_launch(profile_rows *rows, const pz_launch *l, int64_t calls, int64_t ns, pz_error *err) {
    int i = 0;
    while (i < rows->n && (rows->at[i].layer != l->layer || !pz_streq(rows->at[i].op, l->role))) i++;
    if (i == rows->n) {
        pz_profile_row row = {.layer = l->layer};
        snprintf(row.op, sizeof row.op, "%s", l->role);
        PZ_TRY(pz_push(rows, row, err));
    }
    rows->at[i].calls += calls;
    rows->at[i].seconds += (double)ns * 1e-9;
    return PZ_OK;
}

static pz_status gather(const pz_bucket_set *set, profile_rows *rows, pz_error *err) {
    for (int i = 0; i < set->n; i++) {
        const pz_prepared *p = &set->prepared[i];
        if (p->calls == 0) continue;
        for (int l = 0; l < p->plan->launches.n; l++)
            PZ_TRY(add_launch(rows, &p->plan->launches.at[l], p->calls, p->launch_ns[l], err));
    }
    return PZ_OK;
}

static void reset_times(pz_bucket_set *set) {
    for (int i = 0; i < set->n; i++) {
        pz_prepared *p = &set->prepared[i];
        if (p->calls) memset(p->launch_ns, 0, (size_t)p->plan->launches.n * sizeof *p->launch_ns);
        p->calls = 0;
    }
}

pz_status pz_engine_profile(pz_engine *e, int reset, pz_profile_row **rows, int *n, pz_error *err) {
    if (!e || !rows || !n) return pz_fail(err, PZ_E_INVAL, "pz_engine_profile: needs an engine, rows and a count");
    profile_rows v = {0};
    pz_status st = gather(&e->decode, &v, err);
    if (st == PZ_OK) st = gather(&e->prompt, &v, err);
    if (st != PZ_OK) {
        pz_vec_free(&v);
        return st;
    }
    if (reset) {
        reset_times(&e->decode);
        reset_times(&e->prompt);
    }
    *rows = v.at;
    *n = v.n;
    return PZ_OK;
}
