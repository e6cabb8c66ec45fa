/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors format: 8 bytes little-endian header length, a JSON header, the data. The rules are those of the
 * reference implementation: tensors lie one after the other, without gaps, from the first byte of the data to the last.
 */
#include <inttypes.h>

#include "model/checkpoint.h"

/* Limit of the reference implementation. */
enum { MAX_HEADER = 100000000 };

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
    {"BF16", 16},   {"F32", 32}, {"U8", 8},      {"F16", 16},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F64", 64},
    {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},    {"I8", 8},      {"I16", 16},
    {"U16", 16},    {"I32", 32}, {"U32", 32},    {"I64", 64},    {"U64", 64},    {"C64", 64},
};

typedef struct entry {
    pz_tensor tensor; /* data is set last */
    size_t begin, end;
} entry;
typedef PZ_VEC(entry) entry_list;

static pz_status read_shape(const json_t *shape, pz_tensor *t, size_t *count, const char *where, pz_error *err) {
    size_t rank = json_array_size(shape), cap = sizeof t->shape / sizeof *t->shape;
    if (!json_is_array(shape))
        return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\": \"shape\" is missing or no array", where, t->name);
    if (rank > cap)
        return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\" has %zu dimensions, supported are %zu", where, t->name,
                       rank, cap);
    t->rank = (int)rank;
    bool fits = true;
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        t->shape[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || t->shape[i] < 0)
            return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\": dimension %zu is not an integer of at least 0",
                           where, t->name, i);
        fits = fits && pz_mul_ok(*count, (size_t)t->shape[i], count);
    }
    /* The reference multiplies in order and refuses an overflow even where a later dimension is 0. */
    if (!fits)
        return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\": the number of its elements overflows", where, t->name);
    return PZ_OK;
}

static pz_status read_bytes(const json_t *info, pz_tensor *t, size_t count, const char *where, pz_error *err) {
    const char *name = json_string_value(json_object_get(info, "dtype"));
    if (!name)
        return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\": \"dtype\" is missing or no string", where, t->name);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) != 0) continue;
        size_t bits;
        t->dtype = dtypes[i].name;
        if (!pz_mul_ok(count, dtypes[i].bits, &bits))
            return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\": its size in bits overflows", where, t->name);
        if (bits % 8)
            return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\": %zu elements of %s do not fill whole bytes", where,
                           t->name, count, name);
        t->bytes = bits / 8;
        return PZ_OK;
    }
    return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\": unknown dtype \"%.40s\"", where, t->name, name);
}

static pz_status read_entry(const json_t *info, entry *e, const char *where, pz_error *err) {
    pz_tensor *t = &e->tensor;
    size_t count = 1;
    if (!json_is_object(info))
        return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\": expected an object", where, t->name);
    PZ_TRY(read_shape(json_object_get(info, "shape"), t, &count, where, err));
    PZ_TRY(read_bytes(info, t, count, where, err));
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) || begin < 0 || end < begin)
        return pz_fail(err, PZ_E_FORMAT,
                       "%s: tensor \"%.100s\": \"data_offsets\" must be [begin, end], 0 <= begin <= end", where,
                       t->name);
    if ((size_t)(end - begin) != t->bytes)
        return pz_fail(err, PZ_E_FORMAT,
                       "%s: tensor \"%.100s\": data_offsets span %" PRId64 " bytes, its shape and dtype need %zu",
                       where, t->name, end - begin, t->bytes);
    e->begin = (size_t)begin;
    e->end = (size_t)end;
    return PZ_OK;
}

static pz_status check_metadata(const json_t *metadata, const char *where, pz_error *err) {
    const char *key;
    const json_t *value;
    if (!json_is_object(metadata))
        return pz_fail(err, PZ_E_FORMAT, "%s: \"__metadata__\" must be an object of strings", where);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) {
        if (!json_is_string(value))
            return pz_fail(err, PZ_E_FORMAT, "%s: \"__metadata__\": \"%.60s\" is not a string", where, key);
    }
    return PZ_OK;
}

static pz_status read_entries(const json_t *header, entry_list *list, const char *where, pz_error *err) {
    const char *key;
    const json_t *info;
    if (!json_is_object(header)) return pz_fail(err, PZ_E_FORMAT, "%s: the header is not a JSON object", where);
    json_object_foreach((json_t *)(uintptr_t)header, key, info) {
        if (strcmp(key, "__metadata__") == 0) {
            PZ_TRY(check_metadata(info, where, err));
            continue;
        }
        entry e = {.tensor.name = key};
        PZ_TRY(read_entry(info, &e, where, err));
        PZ_TRY(pz_push(list, e, err));
    }
    return PZ_OK;
}

static int compare_entries(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Neither gaps nor overlaps, and the last tensor ends with the file. */
static pz_status check_layout(entry_list *list, size_t room, const char *where, pz_error *err) {
    if (list->n) qsort(list->at, (size_t)list->n, sizeof *list->at, compare_entries);
    size_t at = 0;
    for (int i = 0; i < list->n; i++) {
        const entry *e = &list->at[i];
        if (e->begin != at)
            return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\" starts at byte %zu of the data, expected %zu (%s)",
                           where, e->tensor.name, e->begin, at, e->begin < at ? "overlap" : "gap");
        at = e->end;
        if (at > room)
            return pz_fail(err, PZ_E_FORMAT,
                           "%s: tensor \"%.100s\" ends at byte %zu of the data, but the file has %zu (truncated?)",
                           where, e->tensor.name, at, room);
    }
    if (at != room)
        return pz_fail(err, PZ_E_FORMAT, "%s: the tensors end at byte %zu of the data, but the file has %zu", where, at,
                       room);
    return PZ_OK;
}

static pz_status add_entries(pz_checkpoint *ck, const entry_list *list, const unsigned char *data,
                             const json_t *weight_map, const char *file, pz_error *err) {
    for (int i = 0; i < list->n; i++) {
        pz_tensor t = list->at[i].tensor;
        if (weight_map) {
            const char *owner = json_string_value(json_object_get(weight_map, t.name));
            if (!owner || strcmp(owner, file) != 0) continue;
        }
        t.data = data + list->at[i].begin;
        t.name = pz_arena_strdup(&ck->names, t.name);
        if (!t.name) return PZ_NOMEM(err);
        PZ_TRY(pz_push(&ck->tensors, t, err));
    }
    return PZ_OK;
}

pz_status pz_checkpoint_add(pz_checkpoint *ck, const unsigned char *data, size_t size, const json_t *weight_map,
                            const char *file, const char *where, pz_error *err) {
    if (size < 8)
        return pz_fail(err, PZ_E_FORMAT, "%s: %zu bytes, a safetensors file starts with 8 bytes of header length",
                       where, size);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | data[i];
    if (length > MAX_HEADER)
        return pz_fail(err, PZ_E_FORMAT, "%s: header length %" PRIu64 " is above the limit of %d bytes", where, length,
                       MAX_HEADER);
    if (length > size - 8)
        return pz_fail(err, PZ_E_FORMAT, "%s: header length %" PRIu64 ", but the file has %zu bytes (truncated?)",
                       where, length, size);
    const char *text = (const char *)data + 8;
    if (length == 0 || text[0] != '{') return pz_fail(err, PZ_E_FORMAT, "%s: the header does not start with {", where);
    json_t *header;
    PZ_TRY(pz_json_parse(text, (size_t)length, where, &header, err));
    entry_list list = {0};
    pz_status st;
    PZ_TRY_GOTO(st, read_entries(header, &list, where, err), done);
    PZ_TRY_GOTO(st, check_layout(&list, size - 8 - (size_t)length, where, err), done);
    st = add_entries(ck, &list, data + 8 + length, weight_map, file, err);
done:
    pz_vec_free(&list);
    json_decref(header);
    return st;
}

pz_status pz_safetensors_parse(const unsigned char *data, size_t size, const char *where, pz_checkpoint **out,
                               pz_error *err) {
    *out = NULL;
    pz_checkpoint *ck = pz_calloc(1, sizeof *ck);
    if (!ck) return PZ_NOMEM(err);
    pz_status st = pz_checkpoint_add(ck, data, size, NULL, NULL, where, err);
    if (st == PZ_OK) st = pz_checkpoint_index(ck, err);
    if (st == PZ_OK)
        *out = ck;
    else
        pz_checkpoint_close(ck);
    return st;
}
