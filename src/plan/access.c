/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

typedef struct list {
    const pz_plan *p;
    pz_access *out;
    int n;
} list;

static void add(list *l, pz_access_kind kind, int place, int64_t offset, int64_t bytes) {
    if (bytes <= 0 || l->n >= PZ_MAX_ACCESSES) return;
    l->out[l->n++] = (pz_access){.kind = kind, .place = place, .offset = offset, .bytes = bytes};
}

/* From the first to the last element of the place: for a view, columns of other views lie between. */
static void add_place(list *l, pz_access_kind kind, int place) {
    if (place < 0 || place >= l->p->places.n) return;
    const pz_place *pl = &l->p->places.at[place];
    if (pl->type.rank < 2) {
        add(l, kind, place, pl->offset, pl->bytes);
        return;
    }
    int64_t elt = pz_dtype_bits(pl->type.dt) / 8, cols = pl->type.dim[pl->type.rank - 1];
    int64_t rows = pl->ld > 0 && elt > 0 ? pl->bytes / (pl->ld * elt) : 0;
    if (rows > 0) add(l, kind, place, pl->offset + pl->col * elt, ((rows - 1) * pl->ld + cols) * elt);
}

/* Reading a value means reading what gives its accumulator a unit, too. */
static void add_read(list *l, int place) {
    add_place(l, PZ_READ, place);
    if (place >= 0 && place < l->p->places.n && l->p->places.at[place].type.dt == PZ_DT_FIXED)
        add_place(l, PZ_READ, l->p->places.at[place].scale_norm);
}

int pz_launch_accesses(const pz_plan *p, int launch, pz_access out[PZ_MAX_ACCESSES]) {
    const pz_launch *la = &p->launches.at[launch];
    list l = {.p = p, .out = out};
    for (int i = 0; i < PZ_MAX_OPERANDS; i++) add_read(&l, la->in[i].place);
    bool prezero = la->op == PZ_OP_GEMM && la->strategy == PZ_ZERO_PREZERO;
    if (la->op == PZ_OP_GEMM && la->accum == PZ_ACCUM_FIXED) {
        int x = la->in[0].place;
        if (x >= 0 && x < p->places.n) add_place(&l, PZ_READ, p->places.at[x].norm);
    }
    for (int i = 0; i < PZ_MAX_RESULTS; i++) {
        if (la->out[i] < 0) continue;
        if (prezero && la->slice >= 0 && la->slice < p->slices.n)
            add(&l, PZ_ACCUMULATE, la->out[i], p->slices.at[la->slice].offset, p->slices.at[la->slice].bytes);
        else
            add_place(&l, prezero ? PZ_ACCUMULATE : PZ_WRITE, la->out[i]);
        if (la->out[i] < p->places.n) add_place(&l, PZ_WRITE, p->places.at[la->out[i]].norm);
    }
    add_place(&l, PZ_WRITE, la->workspace);
    if (la->fill >= 0 && la->fill < p->fills.n) {
        const pz_fill *f = &p->fills.at[la->fill];
        add(&l, PZ_FILL, f->place, f->offset, f->bytes);
    }
    return l.n;
}
