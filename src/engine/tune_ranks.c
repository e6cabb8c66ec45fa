/* SPDX-License-Identifier: Apache-2.0 */
/* The all-reduce of several ranks: up to how many rows one step is not slower than two, and what it takes. */
#include "engine/tune.h"
#include "plan/donor.h"

static const int ladder[] = {1, 4, 8, 16, 32, 48, 64, 96, 128, 192, PZ_GROUP_ROWS};
enum { RUNGS = sizeof ladder / sizeof *ladder, FITTED_ROWS = 128 /* of decode steps */ };

/* One step, two; then both with the smallest rider that is a whole block. */
enum { WAYS = 2, CASES = 2 * WAYS };

static pz_status measure(const pz_tune_plan *p, int m, pz_tune_reduce cases[CASES], pz_error *err) {
    for (int i = 0; i < CASES; i++)
        cases[i] = (pz_tune_reduce){.steps = 1 + i % WAYS, .bytes = i < WAYS ? 0 : PZ_RIDER_BLOCK};
    PZ_TRY(p->clock->reduce(p->clock->ctx, p->ranks, m, p->ranks_hidden, cases, CASES, err));
    for (int i = 0; i < CASES; i++)
        if (!(cases[i].us > 0))
            return pz_fail(err, PZ_E_INTERNAL, "a collective of %d ranks and %d rows took %g us", p->ranks, m,
                           cases[i].us);
    return PZ_OK;
}

pz_status pz_tune_collective(const pz_tune_plan *p, pz_progress_fn progress, void *user, pz_tuned_collective *out,
                             pz_error *err) {
    pz_tuned_collective c = {.ranks = p->ranks, .hidden = p->ranks_hidden, .one_shot = 1};
    double x[RUNGS], y[RUNGS], extra[RUNGS];
    bool one_step = true; /* so far */
    int fitted = 0;
    for (int i = 0; i < RUNGS; i++) {
        pz_tune_reduce cases[CASES];
        PZ_TRY(measure(p, ladder[i], cases, err));
        one_step = one_step && cases[0].us <= cases[1].us + cases[0].ci + cases[1].ci;
        if (one_step) c.one_shot = ladder[i];
        int way = ladder[i] <= c.one_shot ? 0 : 1;
        if (ladder[i] <= FITTED_ROWS) {
            x[fitted] = ladder[i];
            y[fitted] = cases[way].us;
            extra[fitted++] = cases[WAYS + way].us - cases[way].us;
        }
        progress(user, i + 1, RUNGS);
    }
    pz_fit_times(x, y, fitted, &c.ar_base, &c.ar_row);
    c.rider = pz_fit_extra(extra, fitted);
    *out = c;
    return PZ_OK;
}
