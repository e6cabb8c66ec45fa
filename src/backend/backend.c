/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/backend.h"

pz_status pz_backend_check_reading(const char *backend, const pz_plan *plan, int place, bool scaled, const int *rows,
                                   int n, pz_error *err) {
    const pz_place *p = place >= 0 && place < plan->places.n ? &plan->places.at[place] : NULL;
    if (!p || !pz_dtype_is_act(p->type.dt) || p->type.rank != 2)
        return pz_fail(err, PZ_E_INVAL, "%s: place %d is no activation", backend, place);
    if (p->type.dt == PZ_DT_FIXED && !scaled)
        return pz_fail(err, PZ_E_INVAL, "%s: %s is a fixed-point sum without its scale", backend, p->name);
    for (int i = 0; i < n; i++)
        if (rows[i] < 0 || rows[i] >= plan->m)
            return pz_fail(err, PZ_E_RANGE, "%s: row %d of %s, which has %d", backend, rows[i], p->name, plan->m);
    return PZ_OK;
}
