/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON with jansson: messages name the file, the key and what was expected. */
#ifndef PZ_JSON_H
#define PZ_JSON_H

#include <jansson.h>

#include "base/base.h"

/* Parses `size` bytes (duplicate keys and trailing bytes are errors). `where` names the source in messages. The caller
 * json_decref()s. */
pz_status pz_json_parse(const char *text, size_t size, const char *where, json_t **out, pz_error *err);
pz_status pz_json_load(const char *path, json_t **out, pz_error *err);

/* Typed members of an object. A missing or null key gives E_FORMAT if required, else *out keeps its value (so the
 * caller puts the default there first). A wrong type is always E_FORMAT. Integers are checked against [lo, hi]. */
pz_status pz_json_get_int(const json_t *obj, const char *key, bool required, int64_t lo, int64_t hi, int64_t *out,
                          const char *where, pz_error *err);
pz_status pz_json_get_double(const json_t *obj, const char *key, bool required, double *out, const char *where,
                             pz_error *err);
pz_status pz_json_get_bool(const json_t *obj, const char *key, bool required, bool *out, const char *where,
                           pz_error *err);
/* The string belongs to obj. */
pz_status pz_json_get_str(const json_t *obj, const char *key, bool required, const char **out, const char *where,
                          pz_error *err);
/* Sets *out to the member or NULL; E_FORMAT if it is there with another type. `type` is JSON_OBJECT or JSON_ARRAY. */
pz_status pz_json_get_node(const json_t *obj, const char *key, json_type type, const json_t **out, const char *where,
                           pz_error *err);
/* Dumps with two-space indent (pz_free). */
pz_status pz_json_dump(const json_t *value, char **out, pz_error *err);

#endif
