/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs and plans for the tests of the planner and of the checker. */
#ifndef PZ_TEST_SUPPORT_PLAN_H
#define PZ_TEST_SUPPORT_PLAN_H

#include "support.h"

#include "plan/plan.h"

/* One layer of an attention model with all four consumers converted, in the shapes of the tiny model; attention is a
 * function with two slots. */
extern const char support_layer_text[];

pz_graph *support_graph(const char *text);
/* "cpu" with that many units, gate auto, strategy self. */
pz_plan_options support_plan_options(const char *device, int units, int m);
pz_plan *support_plan(const pz_graph *g, const pz_plan_options *o);
/* Number of the n-th (from 0) launch whose role is `role`; asserts that there is one. */
int support_launch(const pz_plan *p, const char *role, int n);
int support_place(const pz_plan *p, const char *name);

#endif
