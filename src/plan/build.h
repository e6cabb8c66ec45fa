/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the planner: flatten, then gate and strategies, then lifetimes, offsets and waits. */
#ifndef PZ_PLAN_BUILD_H
#define PZ_PLAN_BUILD_H

#include "plan/plan.h"

/* Launches, places, slices and fills of the entry with all calls inlined. Each place has first and last use and no
 * offset yet, each fill all its slices and no level. */
pz_status pz_plan_flatten(pz_plan *p, pz_error *err);

/* Appends a place that is its own root. E_UNSUPPORTED for a width that is not known, E_RANGE when it is too large. */
pz_status pz_plan_add_place(pz_plan *p, const char *name, pz_type type, int first, int *out, pz_error *err);
pz_status pz_plan_type_bytes(const pz_type *type, int m, const char *name, int64_t *out, pz_error *err);
void pz_plan_use(pz_plan *p, int place, int launch);

/* Lifetimes of the roots from those of their views, offsets of all places, arena_bytes and waits. */
pz_status pz_plan_assign_offsets(pz_plan *p, pz_error *err);

#endif
