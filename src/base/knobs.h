/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PZ_KNOBS_H
#define PZ_KNOBS_H

#include "base/base.h"

typedef enum pz_knob_id {
#define KNOB(id, env, type, def, allowed, doc) PZ_KNOB_##id,
#include "base/knobs.def"
#undef KNOB
    PZ_KNOB_COUNT
} pz_knob_id;

typedef enum pz_knob_type { PZ_KNOB_BOOL, PZ_KNOB_INT, PZ_KNOB_ENUM, PZ_KNOB_TEXT } pz_knob_type;

typedef struct pz_knob {
    const char *env;
    pz_knob_type type;
    const char *def, *allowed, *doc;
} pz_knob;

const pz_knob *pz_knob_info(pz_knob_id id);
/* Value from the environment, else the default. E_INVAL names the variable, its value and what is allowed. */
pz_status pz_knob_bool(pz_knob_id id, bool *out, pz_error *err);
pz_status pz_knob_int(pz_knob_id id, int64_t *out, pz_error *err);
pz_status pz_knob_text(pz_knob_id id, const char **out, pz_error *err); /* ENUM and TEXT */
/* Checks `value` against an ENUM knob's words and gives the index of the word. `what` names the source in the message
 * ("--gate"). */
pz_status pz_knob_enum_index(pz_knob_id id, const char *value, const char *what, int *index, pz_error *err);

#endif
