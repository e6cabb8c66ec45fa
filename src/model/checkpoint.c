/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint directory: one file, or shards under an index; tensors by name. */
#include "model/checkpoint.h"

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* ---- names ---- */
/* FNV-1a. */
static uint64_t hash_name(const char *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* The slot of the name, or the empty one where it would stand. */
static int *slot_of(const pz_checkpoint *ck, const char *name) {
    size_t mask = ck->n_slots - 1;
    for (size_t i = hash_name(name) & mask;; i = (i + 1) & mask) {
        int *slot = &ck->slots[i];
        if (*slot == 0 || strcmp(ck->tensors.at[*slot - 1].name, name) == 0) return slot;
    }
}

pz_status pz_checkpoint_index(pz_checkpoint *ck, pz_error *err) {
    ck->n_slots = 16;
    while (ck->n_slots < (size_t)ck->tensors.n * 2) ck->n_slots *= 2;
    ck->slots = pz_calloc(ck->n_slots, sizeof *ck->slots);
    if (!ck->slots) return PZ_NOMEM(err);
    for (int i = 0; i < ck->tensors.n; i++) *slot_of(ck, ck->tensors.at[i].name) = i + 1;
    return PZ_OK;
}

const pz_tensor *pz_checkpoint_find(const pz_checkpoint *ck, const char *name) {
    int slot = *slot_of(ck, name);
    return slot ? &ck->tensors.at[slot - 1] : NULL;
}

int pz_checkpoint_count(const pz_checkpoint *ck) {
    return ck->tensors.n;
}

const pz_tensor *pz_checkpoint_at(const pz_checkpoint *ck, int i) {
    return i >= 0 && i < ck->tensors.n ? &ck->tensors.at[i] : NULL;
}

void pz_checkpoint_close(pz_checkpoint *ck) {
    if (!ck) return;
    for (int i = 0; i < ck->maps.n; i++) pz_map_close(&ck->maps.at[i]);
    pz_vec_free(&ck->maps);
    pz_vec_free(&ck->tensors);
    pz_arena_free(&ck->names);
    pz_free(ck->slots);
    pz_free(ck);
}

/* ---- files ---- */
static pz_status add_file(pz_checkpoint *ck, const char *dir, const char *file, const json_t *weight_map,
                          pz_error *err) {
    char *path = pz_path_join(dir, file);
    if (!path) return PZ_NOMEM(err);
    pz_map map;
    pz_status st = pz_map_open(path, &map, err);
    if (st == PZ_OK) {
        st = pz_push(&ck->maps, map, err);
        if (st != PZ_OK) pz_map_close(&map);
    }
    if (st == PZ_OK) st = pz_checkpoint_add(ck, map.data, map.size, weight_map, file, path, err);
    pz_free(path);
    return st;
}

/* A shard stands beside its index: a plain file name. */
static pz_status check_shard_name(const char *tensor, const json_t *file, const char *where, pz_error *err) {
    const char *s = json_string_value(file);
    if (s && *s && !strchr(s, '/') && strcmp(s, "..") != 0 && strcmp(s, ".") != 0) return PZ_OK;
    return pz_fail(err, PZ_E_FORMAT,
                   "%s: \"weight_map\": \"%.100s\" must name a file in the same directory, not \"%.60s\"", where,
                   tensor, s ? s : "(no string)");
}

static pz_status add_shards(pz_checkpoint *ck, const char *dir, const json_t *weight_map, json_t *seen,
                            const char *where, pz_error *err) {
    const char *tensor;
    json_t *file;
    json_t *map = (json_t *)(uintptr_t)weight_map; /* the iteration macros want it so; nothing is changed */
    json_object_foreach(map, tensor, file) {
        PZ_TRY(check_shard_name(tensor, file, where, err));
        const char *name = json_string_value(file);
        if (json_object_get(seen, name)) continue;
        if (json_object_set_new(seen, name, json_true()) != 0) return PZ_NOMEM(err);
        pz_status st = add_file(ck, dir, name, weight_map, err);
        if (st != PZ_OK) return pz_fail_context(err, st, "%s", where);
    }
    PZ_TRY(pz_checkpoint_index(ck, err));
    json_object_foreach(map, tensor, file) {
        if (!pz_checkpoint_find(ck, tensor))
            return pz_fail(err, PZ_E_FORMAT, "%s: tensor \"%.100s\" is not in %.60s, where the index puts it", where,
                           tensor, json_string_value(file));
    }
    return PZ_OK;
}

static pz_status open_sharded(pz_checkpoint *ck, const char *dir, const char *where, pz_error *err) {
    json_t *root, *seen = NULL;
    const json_t *weight_map;
    PZ_TRY(pz_json_load(where, &root, err));
    pz_status st;
    PZ_TRY_GOTO(st, pz_json_get_node(root, "weight_map", JSON_OBJECT, &weight_map, where, err), done);
    if (!weight_map) {
        st = pz_fail(err, PZ_E_FORMAT, "%s: \"weight_map\" is missing, expected an object", where);
        goto done;
    }
    seen = json_object();
    st = seen ? add_shards(ck, dir, weight_map, seen, where, err) : PZ_NOMEM(err);
done:
    json_decref(seen);
    json_decref(root);
    return st;
}

static pz_status open_directory(pz_checkpoint *ck, const char *dir, pz_error *err) {
    char *single = pz_path_join(dir, single_name), *index = pz_path_join(dir, index_name);
    pz_status st;
    if (!single || !index) {
        st = PZ_NOMEM(err);
    } else if (pz_file_exists(single)) {
        st = add_file(ck, dir, single_name, NULL, err);
        if (st == PZ_OK) st = pz_checkpoint_index(ck, err);
    } else if (pz_file_exists(index)) {
        st = open_sharded(ck, dir, index, err);
    } else {
        st = pz_fail(err, PZ_E_NOTFOUND, "%s: neither %s nor %s is there", dir, single_name, index_name);
    }
    pz_free(single);
    pz_free(index);
    return st;
}

pz_status pz_checkpoint_open(const char *dir, pz_checkpoint **out, pz_error *err) {
    *out = NULL;
    pz_checkpoint *ck = pz_calloc(1, sizeof *ck);
    if (!ck) return PZ_NOMEM(err);
    pz_status st = open_directory(ck, dir, err);
    if (st == PZ_OK)
        *out = ck;
    else
        pz_checkpoint_close(ck);
    return st;
}
