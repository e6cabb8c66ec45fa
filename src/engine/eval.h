/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PZ_EVAL_H
#define PZ_EVAL_H

#include "base/base.h"
#include "prezero/engine.h"

/* Reads the questions and expected answers of JSON lines into result->items (their other members are NULL); blank lines
 * are skipped, limit 0 takes all. E_FORMAT says "where:line". On failure *result is empty. */
pz_status pz_eval_parse(const char *text, size_t size, const char *where, int limit, pz_eval_result *result,
                        pz_error *err);
/* Where the answer begins: the trimmed text after the last "####", *n bytes of it. NULL if there is no mark. */
const char *pz_eval_answer(const char *text, size_t *n);

#endif
