/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "base/rng.h"
#include "engine/kvcache.h"

enum { RANKS = 2, LAYERS = 3, ENTRY = 4, SEQUENCES = 5, CONTEXT = 700 };
static pz_backend *const backends[RANKS]; /* the CPU asks nothing of one */

static void open_cache(pz_kv *kv) {
    pz_error err;
    assert_ok(pz_kv_init(kv, pz_backend_cpu(), backends, RANKS, PZ_DT_F32, LAYERS, ENTRY, SEQUENCES, CONTEXT, &err),
              &err);
}

/* Address of a token's entry, by the contract of pz_cache. */
static float *entry(const pz_kv *kv, int rank, int layer, int seq, int token) {
    const pz_cache view = pz_kv_view(kv, rank), *v = &view;
    int32_t page = v->block_table[seq * v->table_stride + token / v->page_tokens];
    assert_in_range(page, 0, v->n_pages - 1);
    return (float *)(void *)(v->data + layer * v->layer_stride +
                             ((int64_t)page * v->page_tokens + token % v->page_tokens) * v->entry * 4);
}

static float value(int rank, int layer, int seq, int token, int column) {
    return (float)(seq + 10 * layer + 100 * token + column + 100000 * rank);
}

/* Every page is free or in exactly one sequence, and sequences have what their length needs. */
static void check_pages(const pz_kv *kv) {
    const pz_cache *v = &kv->view;
    int *owner = pz_calloc((size_t)v->n_pages + 1, sizeof *owner), held = 0;
    assert_non_null(owner);
    for (int i = 0; i < kv->n_free; i++) owner[kv->free_pages[i]]++;
    for (int s = 0; s < SEQUENCES; s++) {
        int need = kv->length[s] > 0 ? (kv->length[s] + v->page_tokens - 1) / v->page_tokens : 0;
        for (int i = 0; i < v->table_stride; i++) {
            int32_t page = v->block_table[s * v->table_stride + i];
            assert_int_equal(page >= 0, i < need);
            if (page >= 0) {
                owner[page]++;
                held++;
            }
        }
    }
    for (int p = 0; p < v->n_pages; p++) assert_int_equal(owner[p], 1);
    assert_int_equal(held + kv->n_free, v->n_pages);
    pz_free(owner);
}

static void test_sequences(void **state) {
    (void)state;
    pz_kv kv;
    pz_error err;
    int seq;
    open_cache(&kv);
    assert_int_equal(pz_kv_bytes(&kv), 0);
    for (int i = 0; i < SEQUENCES; i++) {
        assert_ok(pz_kv_open(&kv, &seq, &err), &err);
        assert_int_equal(seq, i);
    }
    assert_fails(pz_kv_open(&kv, &seq, &err), PZ_E_RANGE, &err, "5 sequences");
    pz_kv_close(&kv, 2);
    assert_false(pz_kv_is_open(&kv, 2));
    assert_false(pz_kv_is_open(&kv, -1));
    assert_false(pz_kv_is_open(&kv, SEQUENCES));
    assert_ok(pz_kv_open(&kv, &seq, &err), &err);
    assert_int_equal(seq, 2);
    pz_kv_free(&kv);
}

/* Sequences grow, shrink and close at random; what they wrote is still there, whatever the pool did. */
static void test_random_use(void **state) {
    (void)state;
    pz_kv kv;
    pz_error err;
    uint64_t rng = 7;
    open_cache(&kv);
    for (int round = 0; round < 3000; round++) {
        int seq = (int)(pz_rng_next(&rng) % SEQUENCES), what = (int)(pz_rng_next(&rng) % 16);
        if (!pz_kv_is_open(&kv, seq)) {
            assert_ok(pz_kv_open(&kv, &seq, &err), &err);
        } else if (what == 0) {
            pz_kv_close(&kv, seq);
        } else if (what == 1) {
            pz_kv_trim(&kv, seq, kv.length[seq] / 2);
        } else {
            int n = (int)(pz_rng_next(&rng) % 40), from = kv.length[seq];
            if (from + n > CONTEXT) n = CONTEXT - from;
            assert_ok(pz_kv_reserve(&kv, seq, n, &err), &err);
            assert_ok(pz_kv_reserve(&kv, seq, n, &err), &err);
            if (what == 2) n = 0; /* the step failed */
            pz_kv_trim(&kv, seq, from + n);
            for (int i = from * RANKS * LAYERS; i < (from + n) * RANKS * LAYERS; i++) {
                int t = i / (RANKS * LAYERS), r = i / LAYERS % RANKS, l = i % LAYERS;
                for (int c = 0; c < ENTRY; c++) entry(&kv, r, l, seq, t)[c] = value(r, l, seq, t, c);
            }
        }
        check_pages(&kv);
        for (int s = 0; s < SEQUENCES; s++)
            for (int t = 0; t < kv.length[s]; t += 5)
                for (int i = 0; i < RANKS * LAYERS; i++) {
                    int r = i / LAYERS, l = i % LAYERS;
                    assert_true(entry(&kv, r, l, s, t)[1] == value(r, l, s, t, 1));
                }
    }
    assert_true(kv.view.n_pages > 64); /* it did grow */
    assert_true(kv.view.n_pages <= kv.max_pages);
    pz_kv_free(&kv);
}

/* The pool holds every sequence at its full length, and no more memory than that. */
static void test_full(void **state) {
    (void)state;
    pz_kv kv;
    pz_error err;
    int seq;
    open_cache(&kv);
    for (int i = 0; i < SEQUENCES; i++) {
        assert_ok(pz_kv_open(&kv, &seq, &err), &err);
        assert_ok(pz_kv_reserve(&kv, seq, CONTEXT, &err), &err);
        pz_kv_trim(&kv, seq, CONTEXT);
    }
    check_pages(&kv);
    assert_int_equal(kv.view.n_pages, kv.max_pages);
    assert_int_equal(kv.n_free, 0);
    pz_kv_free(&kv);
}

static void test_out_of_memory(void **state) {
    (void)state;
    pz_kv kv;
    pz_error err;
    int seq;
    for (int n = 0; n < 2; n++) {
        pz_alloc_fail_after(n);
        pz_status st =
            pz_kv_init(&kv, pz_backend_cpu(), backends, RANKS, PZ_DT_F32, LAYERS, ENTRY, SEQUENCES, CONTEXT, &err);
        pz_alloc_fail_after(-1);
        assert_status(st, PZ_E_NOMEM, &err);
    }
    open_cache(&kv);
    assert_ok(pz_kv_open(&kv, &seq, &err), &err);
    for (int n = 0; n < 1 + RANKS; n++) {
        pz_alloc_fail_after(n);
        pz_status st = pz_kv_reserve(&kv, seq, 20, &err);
        pz_alloc_fail_after(-1);
        assert_status(st, PZ_E_NOMEM, &err);
        assert_int_equal(kv.length[seq], 0);
    }
    assert_ok(pz_kv_reserve(&kv, seq, 20, &err), &err);
    pz_kv_trim(&kv, seq, 20);
    pz_alloc_fail_after(0);
    pz_status st = pz_kv_reserve(&kv, seq, 680, &err); /* 44 pages: within the pool, nothing to allocate */
    pz_alloc_fail_after(-1);
    assert_status(st, PZ_OK, &err);
    pz_kv_trim(&kv, seq, 20);
    check_pages(&kv);
    pz_kv_free(&kv);
    assert_fails(pz_kv_init(&kv, pz_backend_cpu(), backends, RANKS, PZ_DT_BF16, LAYERS, ENTRY, 1 << 20, 1 << 20, &err),
                 PZ_E_RANGE, &err, "pages");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_random_use),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
