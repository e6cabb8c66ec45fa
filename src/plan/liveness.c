/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/build.h"

/* Memory in use at the launch the sweep has reached. */
typedef struct block {
    int64_t begin, end;
    int last;
} block;

typedef struct order_key {
    int first, place;
    int64_t bytes;
} order_key;

/* A view's root may itself have become a view of a buffer. Afterwards every root owns its memory, lives as long as its
 * views, and a view's offset counts from its root. */
static void fold_views(pz_plan *p) {
    for (int i = 0; i < p->places.n; i++) {
        pz_place *v = &p->places.at[i];
        const pz_place *r = &p->places.at[v->root];
        if (v->root == i) continue;
        if (r->root != v->root) {
            v->offset += r->offset;
            v->root = r->root;
        }
        pz_plan_use(p, v->root, v->last);
    }
}

/* Earlier first; at the same launch the larger first, which packs better. */
static int compare_keys(const void *a, const void *b) {
    const order_key *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

/* live[0..*n) is sorted by begin. Drops what has ended before `first`, finds the smallest gap that holds `bytes`, and
 * puts the block there. */
static pz_status place_block(block *live, int *n, int first, int last, int64_t bytes, int64_t *offset, pz_error *err) {
    int kept = 0, best_at = -1;
    int64_t end = 0, best = 0, best_gap = INT64_MAX;
    for (int i = 0; i < *n; i++) {
        if (live[i].last < first) continue;
        int64_t gap = live[i].begin - end;
        if (gap >= bytes && gap < best_gap) {
            best_gap = gap;
            best = end;
            best_at = kept;
        }
        end = live[i].end;
        live[kept++] = live[i];
    }
    if (best_at < 0) {
        best_at = kept;
        best = end;
    }
    block b = {.begin = best, .last = last};
    if (__builtin_add_overflow(best, bytes, &b.end)) return pz_fail(err, PZ_E_RANGE, "the plan's arena is too large");
    memmove(&live[best_at + 1], &live[best_at], (size_t)(kept - best_at) * sizeof *live);
    live[best_at] = b;
    *n = kept + 1;
    *offset = best;
    return PZ_OK;
}

/* *reused_until: last launch that starts to use memory which something else had before. */
static pz_status sweep(pz_plan *p, order_key *keys, int n_keys, block *live, int *reused_until, pz_error *err) {
    int n_live = 0;
    for (int i = 0; i < n_keys; i++) {
        pz_place *pl = &p->places.at[keys[i].place];
        PZ_TRY(place_block(live, &n_live, pl->first, pl->last, keys[i].bytes, &pl->offset, err));
        if (pl->offset < p->arena_bytes) *reused_until = pl->first;
        if (pl->offset + keys[i].bytes > p->arena_bytes) p->arena_bytes = pl->offset + keys[i].bytes;
    }
    return PZ_OK;
}

static void place_views(pz_plan *p) {
    for (int i = 0; i < p->places.n; i++) {
        pz_place *v = &p->places.at[i];
        if (v->root != i) v->offset += p->places.at[v->root].offset;
    }
    for (int i = 0; i < p->fills.n; i++) {
        pz_fill *f = &p->fills.at[i];
        if (f->place < 0) continue;
        f->offset = p->places.at[f->place].offset;
        for (int s = f->first_slice; s < f->first_slice + f->n_slices; s++)
            if (p->slices.at[s].filled) p->slices.at[s].offset += f->offset;
    }
}

/* A launch need not wait if it and all after it touch nothing that those before it did. Waiting only orders a launch
 * after its predecessor, so every launch between two that conflict has to. Conflicts: the life of a value; memory that
 * had another owner (then everything up to there); state outside the arena, such as the latent cache. */
static pz_status mark_waits(pz_plan *p, int reused_until, pz_error *err) {
    int n = p->launches.n, until = reused_until;
    int *reach = pz_calloc((size_t)n + 1, sizeof *reach); /* [first] = last launch that touches what `first` wrote */
    if (!reach) return PZ_NOMEM(err);
    for (int i = 0; i < n; i++) {
        pz_access acc[PZ_MAX_ACCESSES];
        for (int k = pz_launch_accesses(p, i, acc) - 1; k >= 0; k--) {
            int first = p->places.at[p->places.at[acc[k].place].root].first;
            if (first >= 0) reach[first] = i;
        }
    }
    for (int i = 0; i < n; i++) {
        pz_launch *la = &p->launches.at[i];
        la->waits = i > 0 && i <= until;
        if (pz_node_has(la->node, PZ_TRAIT_EFFECT) || la->op == PZ_OP_CALL) until = n;
        if (until < reach[i]) until = reach[i];
    }
    pz_free(reach);
    return PZ_OK;
}

pz_status pz_plan_assign_offsets(pz_plan *p, pz_error *err) {
    fold_views(p);
    size_t n = (size_t)p->places.n;
    order_key *keys = pz_calloc(n, sizeof *keys);
    block *live = pz_calloc(n + 1, sizeof *live);
    pz_status st = PZ_OK;
    int n_keys = 0, reused_until = -1;
    if (!keys || !live) {
        st = PZ_NOMEM(err);
        goto done;
    }
    for (int i = 0; i < p->places.n; i++) {
        const pz_place *pl = &p->places.at[i];
        if (pl->root != i || pl->bytes == 0) continue;
        keys[n_keys++] = (order_key){pl->first, i, (int64_t)pz_align_up((size_t)pl->bytes, 64)};
    }
    qsort(keys, (size_t)n_keys, sizeof *keys, compare_keys);
    PZ_TRY_GOTO(st, sweep(p, keys, n_keys, live, &reused_until, err), done);
    place_views(p);
    st = mark_waits(p, reused_until, err);
done:
    pz_free(keys);
    pz_free(live);
    return st;
}
