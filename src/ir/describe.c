/* SPDX-License-Identifier: Apache-2.0 */
/* The op table for people and programs. */
#include "base/json.h"
#include "ir/ir_internal.h"

enum { TRAITS_TEXT = 128 };

static pz_status describe_json(char **out, pz_error *err) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int i = 0; ok && i < PZ_OP_COUNT; i++) {
        const pz_op_schema *op = pz_schema((pz_op)i);
        char traits[TRAITS_TEXT];
        pz_traits_text(op->traits, traits, sizeof traits);
        json_t *row =
            json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "name", op->text, "operands", op->operand_text, "results",
                      op->result_text, "attributes", op->attr_text, "traits", traits, "doc", op->doc);
        ok = json_array_append_new(list, row) == 0;
    }
    pz_status st = ok ? pz_json_dump(list, out, err) : PZ_NOMEM(err);
    json_decref(list);
    return st;
}

static void text_row(pz_str *s, const char *title, const char *text) {
    if (*text) pz_str_addf(s, "  %-11s %s\n", title, text);
}

pz_status pz_describe_ops(int json, char **out, pz_error *err) {
    PZ_NEED(out, "a place for the result", err);
    *out = NULL;
    PZ_TRY(pz_schema_check(err));
    if (json) return describe_json(out, err);
    pz_str s = {0};
    for (int i = 0; i < PZ_OP_COUNT; i++) {
        const pz_op_schema *op = pz_schema((pz_op)i);
        char traits[TRAITS_TEXT];
        pz_traits_text(op->traits, traits, sizeof traits);
        pz_str_addf(&s, "%s\n", op->text);
        text_row(&s, "operands", op->operand_text);
        text_row(&s, "results", op->result_text);
        text_row(&s, "attributes", op->attr_text);
        text_row(&s, "traits", traits);
        text_row(&s, "", op->doc);
    }
    return pz_str_take(&s, out, err);
}
