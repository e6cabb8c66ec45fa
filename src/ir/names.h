/* SPDX-License-Identifier: Apache-2.0 */
/* Names to objects: a crit-bit tree (Bernstein). A look-up takes at most 8 steps per byte of the name whatever the
 * other names are, so hostile text cannot make it slow. Keys are borrowed and must outlive the tree. */
#ifndef PZ_NAMES_H
#define PZ_NAMES_H

#include "base/base.h"

typedef struct pz_names {
    struct pz_name_node *root;
} pz_names;

/* NULL if the name is absent (or was put with NULL, which is how a name is taken out). */
void *pz_names_find(const pz_names *t, const char *key);
/* Adds or replaces; false if out of memory. */
bool pz_names_put(pz_names *t, pz_arena *a, const char *key, void *object);

#endif
