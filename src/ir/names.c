/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/names.h"

/* A leaf has a key; an inner node splits on one bit of one byte. */
typedef struct pz_name_node {
    const char *key;
    void *object;
    size_t byte;
    unsigned char bit;
    struct pz_name_node *child[2];
} pz_name_node;

static int side(const pz_name_node *n, const char *key, size_t len) {
    unsigned char c = n->byte < len ? (unsigned char)key[n->byte] : 0;
    return (c & n->bit) != 0;
}

static pz_name_node *nearest(const pz_names *t, const char *key, size_t len) {
    pz_name_node *n = t->root;
    while (n && !n->key) n = n->child[side(n, key, len)];
    return n;
}

void *pz_names_find(const pz_names *t, const char *key) {
    const pz_name_node *n = nearest(t, key, strlen(key));
    return n && strcmp(n->key, key) == 0 ? n->object : NULL;
}

bool pz_names_put(pz_names *t, pz_arena *a, const char *key, void *object) {
    size_t len = strlen(key), byte = 0;
    pz_name_node *near = nearest(t, key, len);
    if (near && strcmp(near->key, key) == 0) {
        near->object = object;
        return true;
    }
    pz_name_node *leaf = pz_arena_alloc(a, sizeof *leaf);
    pz_name_node *inner = near ? pz_arena_alloc(a, sizeof *inner) : NULL;
    if (!leaf || (near && !inner)) return false;
    leaf->key = key;
    leaf->object = object;
    if (!near) {
        t->root = leaf;
        return true;
    }
    while (near->key[byte] == key[byte]) byte++;
    unsigned diff = (unsigned char)near->key[byte] ^ (unsigned char)key[byte], bit = 0x80;
    while (!(diff & bit)) bit >>= 1;
    inner->byte = byte;
    inner->bit = (unsigned char)bit;

    pz_name_node **at = &t->root;
    while (!(*at)->key && ((*at)->byte < byte || ((*at)->byte == byte && (*at)->bit > bit)))
        at = &(*at)->child[side(*at, key, len)];
    int dir = side(inner, key, len);
    inner->child[dir] = leaf;
    inner->child[1 - dir] = *at;
    *at = inner;
    return true;
}
