/* SPDX-License-Identifier: Apache-2.0 */
/* Random small graphs, and an interpreter that shows whether a change kept their meaning. */
#ifndef PZ_TEST_SUPPORT_GRAPH_H
#define PZ_TEST_SUPPORT_GRAPH_H

#include "ir/ir.h"

/* A valid graph, the same for the same seed: norms, adds, all_reduces, GEMMs with plain, quantized and unknown-width
 * weights, and calls of opaque, open and external functions with slots, in any order. */
pz_graph *support_random_graph(uint64_t seed);

/* Runs the entry on one rank with inputs and weights that depend on names alone, and mixes the bits of all that is
 * returned into one number. Every result is rounded to its dtype; zero fills and slices are ignored, as they may not
 * change anything. */
uint64_t support_interpret(const pz_graph *g);

#endif
