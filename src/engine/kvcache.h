/* SPDX-License-Identifier: Apache-2.0 */
/* The paged latent cache: pages of tokens, handed to sequences on demand and back when they close. The pool grows
 * between steps, so memory follows the tokens held and not the limits. Every rank has a pool of its own with the same
 * pages in it. */
#ifndef PZ_KVCACHE_H
#define PZ_KVCACHE_H

#include "backend/backend.h"

enum { PZ_PAGE_TOKENS = 16 };

/* Between steps a sequence holds exactly ceil(length / PZ_PAGE_TOKENS) pages. */
typedef struct pz_kv {
    const pz_backend_api *api;
    int ranks;
    pz_backend *backend[PZ_MAX_RANKS]; /* whose memory a pool is */
    unsigned char *pool[PZ_MAX_RANKS];
    pz_cache view; /* what kernels see, but for the pool; changes when the pools grow */
    int layers, max_sequences, context, max_pages;
    int32_t *table; /* view.block_table; -1 where there is no page */
    int *length;    /* tokens of each sequence, -1: not open */
    int32_t *free_pages;
    int n_free;
} pz_kv;

pz_status pz_kv_init(pz_kv *kv, const pz_backend_api *api, pz_backend *const *backends, int ranks, pz_dtype dt,
                     int layers, int entry, int max_sequences, int context, pz_error *err);
/* What the kernels of a rank see until a reservation. */
pz_cache pz_kv_view(const pz_kv *kv, int rank);
void pz_kv_free(pz_kv *kv);
/* Lowest free number. E_RANGE when all are open. */
pz_status pz_kv_open(pz_kv *kv, int *seq, pz_error *err);
void pz_kv_close(pz_kv *kv, int seq);
bool pz_kv_is_open(const pz_kv *kv, int seq);
/* Pages for n more tokens than the sequence's length; the length stays, and asking twice is as good as once. On failure
 * the sequence keeps what it got until pz_kv_trim. */
pz_status pz_kv_reserve(pz_kv *kv, int seq, int n, pz_error *err);
/* Sets the length (at most what is reserved) and gives back the pages beyond it. */
void pz_kv_trim(pz_kv *kv, int seq, int length);
int64_t pz_kv_bytes(const pz_kv *kv); /* of all pools */

#endif
