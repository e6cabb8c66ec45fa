/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/kvcache.h"

pz_status pz_kv_init(pz_kv *kv, const pz_backend_api *api, pz_backend *const *backends, int ranks, pz_dtype dt,
                     int layers, int entry, int max_sequences, int context, pz_error *err) {
    *kv = (pz_kv){.api = api, .ranks = ranks, .layers = layers, .max_sequences = max_sequences, .context = context};
    memcpy(kv->backend, backends, (size_t)ranks * sizeof *backends);
    int stride = (int)pz_ceil_div(context, PZ_PAGE_TOKENS);
    size_t cells;
    if (!pz_mul_ok((size_t)max_sequences, (size_t)stride, &cells) || cells > INT32_MAX)
        return pz_fail(err, PZ_E_RANGE, "%d sequences of %d tokens: more than 2^31 cache pages", max_sequences,
                       context);
    kv->max_pages = (int)cells;
    kv->view = (pz_cache){.dt = dt, .page_tokens = PZ_PAGE_TOKENS, .entry = entry, .table_stride = stride};
    kv->table = pz_calloc(cells, sizeof *kv->table);
    kv->length = pz_calloc((size_t)max_sequences, sizeof *kv->length);
    if (!kv->table || !kv->length) {
        pz_kv_free(kv);
        return PZ_NOMEM(err);
    }
    kv->view.block_table = kv->table;
    for (size_t i = 0; i < cells; i++) kv->table[i] = -1;
    for (int i = 0; i < max_sequences; i++) kv->length[i] = -1;
    return PZ_OK;
}

static void release_pools(const pz_kv *kv, unsigned char *const *pool) {
    for (int r = 0; r < kv->ranks; r++)
        if (pool[r]) kv->api->release(kv->backend[r], pool[r]);
}

void pz_kv_free(pz_kv *kv) {
    release_pools(kv, kv->pool);
    pz_free(kv->table);
    pz_free(kv->length);
    pz_free(kv->free_pages);
    *kv = (pz_kv){0};
}

static int pages_of(int tokens) {
    return (int)pz_ceil_div(tokens, PZ_PAGE_TOKENS);
}

pz_status pz_kv_open(pz_kv *kv, int *seq, pz_error *err) {
    for (int i = 0; i < kv->max_sequences; i++)
        if (kv->length[i] < 0) {
            kv->length[i] = 0;
            *seq = i;
            return PZ_OK;
        }
    return pz_fail(err, PZ_E_RANGE, "all %d sequences are open: close one or raise max_sequences", kv->max_sequences);
}

bool pz_kv_is_open(const pz_kv *kv, int seq) {
    return seq >= 0 && seq < kv->max_sequences && kv->length[seq] >= 0;
}

void pz_kv_close(pz_kv *kv, int seq) {
    pz_kv_trim(kv, seq, 0);
    kv->length[seq] = -1;
}

void pz_kv_trim(pz_kv *kv, int seq, int length) {
    int32_t *row = kv->table + (size_t)seq * (size_t)kv->view.table_stride;
    for (int i = pages_of(length); i < kv->view.table_stride && row[i] >= 0; i++) {
        kv->free_pages[kv->n_free++] = row[i];
        row[i] = -1;
    }
    kv->length[seq] = length;
}

pz_cache pz_kv_view(const pz_kv *kv, int rank) {
    pz_cache view = kv->view;
    view.data = kv->pool[rank];
    return view;
}

/* The larger pool of a rank, with every layer's part in its new place. */
static pz_status make_pool(const pz_kv *kv, int rank, size_t stride, size_t bytes, unsigned char **out, pz_error *err) {
    size_t old = (size_t)kv->view.layer_stride;
    PZ_TRY(kv->api->alloc(kv->backend[rank], (int64_t)bytes, out, err));
    for (int l = 0; kv->pool[rank] && l < kv->layers; l++)
        PZ_TRY(kv->api->copy(kv->backend[rank], *out + (size_t)l * stride, kv->pool[rank] + (size_t)l * old,
                             (int64_t)old, PZ_COPY_WITHIN, err));
    return PZ_OK;
}

/* Makes the pools twice as large (at least 64 pages), or leaves all as they are. */
static pz_status grow(pz_kv *kv, pz_error *err) {
    pz_cache *v = &kv->view;
    int64_t want = v->n_pages < 32 ? 64 : 2 * (int64_t)v->n_pages;
    int pages = want < kv->max_pages ? (int)want : kv->max_pages;
    size_t page_bytes = (size_t)v->page_tokens * (size_t)v->entry * (size_t)pz_dtype_bits(v->dt) / 8, stride, bytes;
    if (!pz_mul_ok((size_t)pages, page_bytes, &stride) || !pz_mul_ok(stride, (size_t)kv->layers, &bytes) ||
        bytes > INT64_MAX)
        return PZ_NOMEM(err);
    int32_t *list = pz_realloc(kv->free_pages, (size_t)pages, sizeof *list);
    if (!list) return PZ_NOMEM(err);
    kv->free_pages = list;
    unsigned char *larger[PZ_MAX_RANKS] = {0};
    pz_status st = PZ_OK;
    for (int r = 0; r < kv->ranks && st == PZ_OK; r++) st = make_pool(kv, r, stride, bytes, &larger[r], err);
    if (st != PZ_OK) {
        release_pools(kv, larger);
        return pz_fail_context(err, st, "a latent cache of %d pages", pages);
    }
    release_pools(kv, kv->pool);
    memcpy(kv->pool, larger, sizeof larger);
    v->layer_stride = (int64_t)stride;
    for (int p = pages - 1; p >= v->n_pages; p--) kv->free_pages[kv->n_free++] = p;
    v->n_pages = pages;
    return PZ_OK;
}

pz_status pz_kv_reserve(pz_kv *kv, int seq, int n, pz_error *err) {
    int32_t *row = kv->table + (size_t)seq * (size_t)kv->view.table_stride;
    int end = pages_of(kv->length[seq] + n);
    for (int i = pages_of(kv->length[seq]); i < end; i++) {
        if (row[i] >= 0) continue;
        if (kv->n_free == 0) PZ_TRY(grow(kv, err));
        row[i] = kv->free_pages[--kv->n_free];
    }
    return PZ_OK;
}

int64_t pz_kv_bytes(const pz_kv *kv) {
    return kv->view.layer_stride * kv->layers * kv->ranks;
}
