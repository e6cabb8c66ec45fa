/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/schema.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "ir/ir_internal.h"

/* The trait words of ops.def, here alone. */
enum {
    NONE = PZ_TRAIT_NONE,
    DONOR = PZ_TRAIT_DONOR,
    CONSUMER = PZ_TRAIT_CONSUMER,
    COLLECTIVE = PZ_TRAIT_COLLECTIVE,
    ROW_NORM = PZ_TRAIT_ROW_NORM,
    VIEW = PZ_TRAIT_VIEW,
    EFFECT = PZ_TRAIT_EFFECT,
    PURE = PZ_TRAIT_PURE,
};
static const struct {
    unsigned bit;
    const char *text;
} trait_names[] = {
    {PZ_TRAIT_DONOR, "DONOR"},       {PZ_TRAIT_CONSUMER, "CONSUMER"}, {PZ_TRAIT_COLLECTIVE, "COLLECTIVE"},
    {PZ_TRAIT_ROW_NORM, "ROW_NORM"}, {PZ_TRAIT_VIEW, "VIEW"},         {PZ_TRAIT_EFFECT, "EFFECT"},
    {PZ_TRAIT_PURE, "PURE"},
};

static pz_op_schema table[PZ_OP_COUNT] = {
#define OP(id, name, operands_, results_, attrs_, traits_, infer_, doc_) \
    [PZ_OP_##id] = {.text = name,                                        \
                    .operand_text = operands_,                           \
                    .result_text = results_,                             \
                    .attr_text = attrs_,                                 \
                    .doc = doc_,                                         \
                    .traits = (traits_)},
#include "ir/ops.def"
#undef OP
};
static pz_status table_status;
static pz_error table_error;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *const class_names[] = {"act", "i32", "weight", "buffer"};
static const char *const attr_types[] = {"int", "float", "str", "strs", "dtype"};

const char *pz_class_text(pz_operand_class c) {
    return class_names[c];
}

const char *pz_attr_type_text(pz_attr_type t) {
    return attr_types[t];
}

static int word_index(const char *const *words, int n, const char *s) {
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], s) == 0) return i;
    return -1;
}

/* Copies the next space-separated word of *s; false at the end. A word that does not fit comes out as it is cut, which
 * the caller's checks then refuse. */
static bool next_word(const char **s, char *word, size_t cap) {
    while (**s == ' ') (*s)++;
    size_t n = strcspn(*s, " ");
    if (!n) return false;
    snprintf(word, cap, "%.*s", (int)n, *s);
    *s += n;
    return true;
}

/* Splits "name:rest" and copies the name. */
static char *split_name(char *word, char *name, size_t cap) {
    char *colon = strchr(word, ':');
    if (!colon || colon == word || (size_t)(colon - word) >= cap) return NULL;
    *colon = 0;
    memcpy(name, word, (size_t)(colon - word) + 1);
    return colon + 1;
}

static bool name_taken(const pz_operand_spec *specs, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(specs[i].name, name) == 0) return true;
    return false;
}

static pz_status parse_operands(const pz_op_schema *row, const char *text, pz_operand_spec *specs, int cap, int *count,
                                pz_error *err) {
    char word[64], whole[64];
    *count = 0;
    while (next_word(&text, word, sizeof word)) {
        memcpy(whole, word, sizeof whole);
        if (*count == cap) return pz_fail(err, PZ_E_INTERNAL, "ops.def: %s: more than %d operands", row->text, cap);
        pz_operand_spec *spec = &specs[*count];
        char *cls = split_name(word, spec->name, sizeof spec->name);
        size_t len = cls ? strlen(cls) : 0;
        spec->optional = len && cls[len - 1] == '?';
        if (spec->optional) cls[len - 1] = 0;
        int index = cls ? word_index(class_names, (int)(sizeof class_names / sizeof *class_names), cls) : -1;
        if (index < 0 || name_taken(specs, *count, spec->name))
            return pz_fail(err, PZ_E_INTERNAL, "ops.def: %s: operand '%s' is not a new name:class", row->text, whole);
        spec->cls = (pz_operand_class)index;
        (*count)++;
    }
    return PZ_OK;
}

static bool parse_default(pz_attr_spec *spec, const char *text) {
    char *end;
    switch (spec->type) {
    case PZ_ATTR_INT:
        errno = 0;
        spec->i = strtoll(text, &end, 10);
        return *text && !*end && !errno;
    case PZ_ATTR_FLOAT: return pz_float_parse(text, &spec->f);
    case PZ_ATTR_STR: return snprintf(spec->s, sizeof spec->s, "%s", text) < (int)sizeof spec->s;
    case PZ_ATTR_DTYPE: spec->dt = pz_dtype_from_text(text, strlen(text)); return spec->dt != PZ_DT_NONE;
    case PZ_ATTR_STRS: break;
    }
    return false;
}

static pz_status parse_attrs(pz_op_schema *row, pz_error *err) {
    char word[64], whole[64];
    const char *text = row->attr_text;
    row->n_attrs = 0;
    while (next_word(&text, word, sizeof word)) {
        memcpy(whole, word, sizeof whole);
        if (row->n_attrs == PZ_SCHEMA_MAX_ATTRS)
            return pz_fail(err, PZ_E_INTERNAL, "ops.def: %s: more than %d attributes", row->text, PZ_SCHEMA_MAX_ATTRS);
        pz_attr_spec *spec = &row->attrs[row->n_attrs];
        char *type = split_name(word, spec->name, sizeof spec->name);
        char *def = type ? strchr(type, '=') : NULL;
        if (def) *def++ = 0;
        int index = type ? word_index(attr_types, (int)(sizeof attr_types / sizeof *attr_types), type) : -1;
        bool ok = index >= 0;
        for (int i = 0; ok && i < row->n_attrs; i++) ok = strcmp(row->attrs[i].name, spec->name) != 0;
        if (ok) spec->type = (pz_attr_type)index;
        if (!ok || (def && !parse_default(spec, def)))
            return pz_fail(err, PZ_E_INTERNAL,
                           "ops.def: %s: attribute '%s' is not a new name:type or name:type=default", row->text, whole);
        spec->required = !def && strcmp(spec->name, "out") != 0;
        row->n_attrs++;
    }
    return PZ_OK;
}

pz_status pz_schema_parse_row(pz_op_schema *row, pz_error *err) {
    PZ_TRY(parse_operands(row, row->operand_text, row->operands, PZ_SCHEMA_MAX_OPERANDS, &row->n_operands, err));
    PZ_TRY(parse_operands(row, row->result_text, row->results, PZ_SCHEMA_MAX_RESULTS, &row->n_results, err));
    for (int i = 0; i + 1 < row->n_results; i++)
        if (row->results[i].optional)
            return pz_fail(err, PZ_E_INTERNAL, "ops.def: %s: result '%s' is optional but not the last", row->text,
                           row->results[i].name);
    return parse_attrs(row, err);
}

static void fill_table(void) {
    for (int i = 0; i < PZ_OP_COUNT && table_status == PZ_OK; i++)
        table_status = pz_schema_parse_row(&table[i], &table_error);
}

pz_status pz_schema_check(pz_error *err) {
    pthread_once(&once, fill_table);
    return table_status == PZ_OK ? PZ_OK : pz_fail(err, table_status, "%s", table_error.msg);
}

const pz_op_schema *pz_schema(pz_op op) {
    pthread_once(&once, fill_table);
    return &table[op];
}

const pz_attr_spec *pz_schema_attr(pz_op op, const char *name) {
    const pz_op_schema *s = pz_schema(op);
    for (int i = 0; i < s->n_attrs; i++)
        if (strcmp(s->attrs[i].name, name) == 0) return &s->attrs[i];
    return NULL;
}

bool pz_op_from_text(const char *s, pz_op *out) {
    for (int i = 0; i < PZ_OP_COUNT; i++)
        if (strcmp(table[i].text, s) == 0) {
            *out = (pz_op)i;
            return true;
        }
    return false;
}

void pz_traits_text(unsigned traits, char *buf, size_t cap) {
    size_t n = 0;
    buf[0] = 0;
    for (size_t i = 0; i < sizeof trait_names / sizeof *trait_names; i++)
        if ((traits & trait_names[i].bit) && n < cap)
            n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? " " : "", trait_names[i].text);
}

const char *pz_op_text(pz_op op) {
    return table[op].text;
}

unsigned pz_op_traits(pz_op op) {
    return table[op].traits;
}

const char *pz_op_doc(pz_op op) {
    return table[op].doc;
}

int pz_op_operand_index(pz_op op, const char *name) {
    const pz_op_schema *s = pz_schema(op);
    for (int i = 0; i < s->n_operands; i++)
        if (strcmp(s->operands[i].name, name) == 0) return i;
    return -1;
}
