/* SPDX-License-Identifier: Apache-2.0 */
/* The checker. It walks the launches in order over a shadow of the arena that knows, for every byte, which place's
 * value is there or which fill zeroed it, and compares every access with it. Nothing of the planner is used but
 * pz_launch_accesses, which says what a launch will touch. */
#include <stdio.h>

#include "plan/plan.h"

/* Bytes [begin, end) hold the value of place `owner`, or zeros that no GEMM has added to yet. */
typedef struct span {
    int64_t begin, end;
    int owner;  /* place */
    int fill;   /* >= 0: zeros of this fill */
    int writer; /* launch, -1: an input */
} span;

typedef struct prover {
    pz_plan *p;
    pz_error *err;
    PZ_VEC(span) spans; /* sorted, disjoint */
    int *idle;          /* [launches + 1]: launches before this one that do not wait */
    int proven;
} prover;

/* "launch 12 gemm @layers.3.qkv_a" */
static const char *describe(const prover *pr, int launch, char buf[160]) {
    if (launch < 0 || launch >= pr->p->launches.n) {
        snprintf(buf, 160, launch < 0 ? "launch %d" : "the caller, after launch %d", launch < 0 ? launch : launch - 1);
        return buf;
    }
    const pz_launch *la = &pr->p->launches.at[launch];
    const char *weight = NULL;
    for (int i = 0; i < PZ_MAX_OPERANDS && !weight; i++)
        if (la->in[i].weight) weight = la->in[i].weight->name;
    snprintf(buf, 160, "launch %d %s%s%.100s", launch, pz_op_text(la->op), weight ? " @" : "", weight ? weight : "");
    return buf;
}

#define REFUSE(pr, launch, fmt, ...) \
    pz_fail((pr)->err, PZ_E_PROOF, "%s: " fmt, describe((pr), (launch), (char[160]){0}), __VA_ARGS__)

static bool place_ok(const prover *pr, int place) {
    return place >= 0 && place < pr->p->places.n;
}

static const char *place_name(const prover *pr, int place) {
    return place_ok(pr, place) ? pr->p->places.at[place].name : "?";
}

/* ---- the shadow ---- */
/* Index of the first span that ends after `at`. */
static int span_after(const prover *pr, int64_t at) {
    int lo = 0, hi = pr->spans.n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (pr->spans.at[mid].end > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static pz_status put_span(prover *pr, span s) {
    int lo = span_after(pr, s.begin), hi = lo, n = 0;
    span piece[3];
    while (hi < pr->spans.n && pr->spans.at[hi].begin < s.end) hi++;
    if (lo < hi && pr->spans.at[lo].begin < s.begin) {
        piece[n] = pr->spans.at[lo];
        piece[n++].end = s.begin;
    }
    piece[n++] = s;
    if (lo < hi && pr->spans.at[hi - 1].end > s.end) {
        piece[n] = pr->spans.at[hi - 1];
        piece[n++].begin = s.end;
    }
    int more = n - (hi - lo);
    for (int i = 0; i < more; i++) PZ_TRY(pz_push(&pr->spans, s, pr->err)); /* room; overwritten by the move */
    int old_n = pr->spans.n - (more > 0 ? more : 0);
    memmove(&pr->spans.at[lo + n], &pr->spans.at[hi], (size_t)(old_n - hi) * sizeof(span));
    memcpy(&pr->spans.at[lo], piece, (size_t)n * sizeof(span));
    pr->spans.n = old_n + more;
    return PZ_OK;
}

/* ---- places: sizes from the types, views inside their roots ---- */
static bool type_size(const pz_type *t, int m, int64_t *rows, int64_t *cols) {
    int64_t size[2] = {1, 1}; /* rows, columns */
    for (int i = 0; i < t->rank; i++) {
        int64_t d = t->dim[i] == PZ_DIM_M ? m : t->dim[i];
        bool is_col = t->rank > 1 && i == t->rank - 1;
        if (d < 1 || __builtin_mul_overflow(size[is_col], d, &size[is_col])) return false;
    }
    *rows = size[0];
    *cols = size[1];
    return true;
}

static pz_status check_place(prover *pr, int i) {
    const pz_place *pl = &pr->p->places.at[i];
    if (!place_ok(pr, pl->root) || pr->p->places.at[pl->root].root != pl->root)
        return pz_fail(pr->err, PZ_E_PROOF, "place %s: its root is not a place that owns memory", pl->name);
    const pz_place *root = &pr->p->places.at[pl->root];
    if (pl->offset % 64 || pl->offset < root->offset || pl->bytes < 0 ||
        pl->bytes > root->bytes - (pl->offset - root->offset))
        return pz_fail(pr->err, PZ_E_PROOF,
                       "place %s: bytes [%lld, +%lld) are not aligned to 64 or not within %s [%lld, +%lld)", pl->name,
                       (long long)pl->offset, (long long)pl->bytes, root->name, (long long)root->offset,
                       (long long)root->bytes);
    if (pl->offset < 0 || pl->bytes > pr->p->arena_bytes - pl->offset)
        return pz_fail(pr->err, PZ_E_PROOF, "place %s: bytes [%lld, +%lld) are outside the arena of %lld bytes",
                       pl->name, (long long)pl->offset, (long long)pl->bytes, (long long)pr->p->arena_bytes);
    if (pl->type.dt == PZ_DT_BUFFER) return PZ_OK;
    int64_t rows, cols, need, elt = pz_dtype_bits(pl->type.dt) / 8;
    bool fits = type_size(&pl->type, pr->p->m, &rows, &cols) && pl->col >= 0 && cols <= pl->ld - pl->col &&
                !__builtin_mul_overflow(rows, pl->ld, &need) && !__builtin_mul_overflow(need, elt, &need) &&
                need == pl->bytes;
    if (!fits)
        return pz_fail(pr->err, PZ_E_PROOF, "place %s: %lld bytes are not what its type needs with %d rows", pl->name,
                       (long long)pl->bytes, pr->p->m);
    return PZ_OK;
}

static bool is_norm(const prover *pr, int place) {
    const pz_place *n = place_ok(pr, place) ? &pr->p->places.at[place] : NULL;
    return n && n->type.dt == PZ_DT_F32 && n->type.rank == 1 && n->type.dim[0] == PZ_DIM_M;
}

/* ---- launches ---- */
static pz_status check_fixed(prover *pr, int launch) {
    const pz_launch *la = &pr->p->launches.at[launch];
    for (int i = 0; i < PZ_MAX_OPERANDS; i++) {
        int x = la->in[i].place;
        if (!place_ok(pr, x) || pr->p->places.at[x].type.dt != PZ_DT_FIXED) continue;
        const pz_place *pl = &pr->p->places.at[x];
        if (!is_norm(pr, pl->scale_norm) || !pl->scale_weight)
            return REFUSE(pr, launch, "reads %s, a fixed accumulator without the x_norm or weight that give its unit",
                          pl->name);
    }
    if (la->op != PZ_OP_GEMM || la->accum != PZ_ACCUM_FIXED) return PZ_OK;
    int norm = place_ok(pr, la->in[0].place) ? pr->p->places.at[la->in[0].place].norm : -1;
    if (!is_norm(pr, norm))
        return REFUSE(pr, launch, "adds into a fixed accumulator but %s has no x_norm",
                      place_name(pr, la->in[0].place));
    const pz_place *y = place_ok(pr, la->out[0]) ? &pr->p->places.at[la->out[0]] : NULL;
    if (!y || y->scale_norm != norm || y->scale_weight != la->in[1].weight || y->scale_col != 0)
        return REFUSE(pr, launch, "%s does not say the unit of its accumulator", place_name(pr, la->out[0]));
    return PZ_OK;
}

static pz_status check_prezero(prover *pr, int launch) {
    const pz_launch *la = &pr->p->launches.at[launch];
    if (la->slice < 0 || la->slice >= pr->p->slices.n)
        return REFUSE(pr, launch, "skips its zeroing without a %s", "slice");
    const pz_slice *s = &pr->p->slices.at[la->slice];
    if (la->gemm.split < 2 || !s->active)
        return REFUSE(pr, launch, "is told to skip its zeroing (slice %s) but its kernel does not add", s->name);
    if (s->consumer != launch)
        return REFUSE(pr, launch, "consumes slice %s, which is consumed by launch %d", s->name, s->consumer);
    if (!s->filled || s->fill < 0 || s->fill >= pr->p->fills.n)
        return REFUSE(pr, launch, "skips its zeroing but slice %s is not filled", s->name);
    const pz_fill *f = &pr->p->fills.at[s->fill];
    if (f->donor < 0 || f->donor >= launch)
        return REFUSE(pr, launch, "the zeros of slice %s come from launch %d, which is not before it", s->name,
                      f->donor);
    if (pr->p->launches.at[f->donor].fill != s->fill)
        return REFUSE(pr, launch, "the zeros of slice %s are missing: launch %d does not carry its fill", s->name,
                      f->donor);
    int64_t elt = pz_dtype_bits(pz_accum_dtype(la->accum)) / 8,
            n = la->in[1].weight ? la->in[1].weight->type.dim[0] : 0;
    int64_t need = 0;
    if (n < 1 || __builtin_mul_overflow(n * elt, (int64_t)pr->p->m, &need) || s->offset % 64 ||
        s->bytes != (need + 63) / 64 * 64)
        return REFUSE(pr, launch,
                      "slice %s has %lld bytes at %lld; [%d, %lld] needs %lld, rounded up to 64 and aligned to it",
                      s->name, (long long)s->bytes, (long long)s->offset, pr->p->m, (long long)n, (long long)need);
    if (s->offset < f->offset || s->bytes > f->bytes - (s->offset - f->offset))
        return REFUSE(pr, launch, "the fill [%lld, +%lld) is too short for slice %s [%lld, +%lld)",
                      (long long)f->offset, (long long)f->bytes, s->name, (long long)s->offset, (long long)s->bytes);
    const pz_place *y = place_ok(pr, la->out[0]) ? &pr->p->places.at[la->out[0]] : NULL;
    if (!y || y->offset != s->offset || y->bytes != need || y->root != f->place)
        return REFUSE(pr, launch, "its output %s does not lie at slice %s", place_name(pr, la->out[0]), s->name);
    pr->proven++;
    return PZ_OK;
}

static pz_status check_gemm(prover *pr, int launch) {
    const pz_launch *la = &pr->p->launches.at[launch];
    if (la->strategy == PZ_ZERO_PREZERO) return check_prezero(pr, launch);
    if (la->slice >= 0) return REFUSE(pr, launch, "has a slice but strategy %s", pz_strategy_text(la->strategy));
    if (la->gemm.split > 1 && la->strategy == PZ_ZERO_NONE)
        return REFUSE(pr, launch, "adds %d splits into an output that nothing zeroes", la->gemm.split);
    if (la->strategy != PZ_ZERO_REDUCE) return PZ_OK;
    if (pr->p->device.gpu && la->workspace == -1) return PZ_OK; /* the backend has it, outside the arena */
    int64_t n = la->in[1].weight ? la->in[1].weight->type.dim[0] : 0, need;
    bool ok = n > 0 && place_ok(pr, la->workspace) &&
              !__builtin_mul_overflow(n * 4 * la->gemm.split, pr->p->m, &need) &&
              pr->p->places.at[la->workspace].bytes == need;
    return ok ? PZ_OK : REFUSE(pr, launch, "its workspace does not hold %d partial results", la->gemm.split);
}

/* ---- fills: each byte is a consumer's ---- */
/* A launch may start before its predecessor has stored anything. One that waits has all of its predecessor behind it,
 * so a chain of launches that all wait leads from the fill's stores to the consumer. */
static pz_status check_waits(prover *pr, const pz_fill *f, const pz_slice *s) {
    for (int i = f->donor + 1; i <= s->consumer; i++)
        if (!pr->p->launches.at[i].waits)
            return REFUSE(pr, i, "does not wait, so launch %d is not ordered after the fill of launch %d", s->consumer,
                          f->donor);
    return PZ_OK;
}

static pz_status check_fill(prover *pr, int fill) {
    const pz_plan *p = pr->p;
    const pz_fill *f = &p->fills.at[fill];
    if (f->donor < 0 || f->donor >= p->launches.n || p->launches.at[f->donor].fill != fill)
        return REFUSE(pr, f->donor, "fill %d is missing: the launch does not carry it", fill);
    if (!pz_node_has(p->launches.at[f->donor].node, PZ_TRAIT_DONOR))
        return REFUSE(pr, f->donor, "carries fill %d but is no donor", fill);
    int64_t at = f->offset;
    int filled = 0;
    for (int s = f->first_slice; s < f->first_slice + f->n_slices; s++) {
        if (s < 0 || s >= p->slices.n) return REFUSE(pr, f->donor, "fill %d has slices that do not exist", fill);
        const pz_slice *sl = &p->slices.at[s];
        if (!sl->filled) continue;
        if (sl->fill != fill || sl->offset != at)
            return REFUSE(pr, f->donor, "slice %s is not at byte %lld, where the slice before it ends", sl->name,
                          (long long)at);
        bool taken = sl->consumer >= 0 && sl->consumer < p->launches.n &&
                     p->launches.at[sl->consumer].strategy == PZ_ZERO_PREZERO &&
                     p->launches.at[sl->consumer].slice == s;
        if (!taken) return REFUSE(pr, f->donor, "it fills slice %s, which nobody consumes", sl->name);
        PZ_TRY(check_waits(pr, f, sl));
        at += sl->bytes;
        filled++;
    }
    int64_t over = f->bytes - (at - f->offset);
    if (over)
        return REFUSE(pr, f->donor, "its fill is %lld bytes too %s for its slices",
                      (long long)(over > 0 ? over : -over), over > 0 ? "long" : "short");
    const pz_place *buffer = place_ok(pr, f->place) ? &p->places.at[f->place] : NULL;
    if (f->bytes && (!buffer || buffer->offset != f->offset || buffer->bytes != f->bytes))
        return REFUSE(pr, f->donor, "its fill of %lld bytes is not that of its buffer", (long long)f->bytes);
    if (filled != f->level) return REFUSE(pr, f->donor, "level %d but %d slices are filled", f->level, filled);
    pr->proven++;
    return PZ_OK;
}

/* ---- accesses ---- */
static pz_status check_order(prover *pr, int launch, const pz_access *a, const span *s) {
    /* Who read an input last is not kept: whoever overwrites one has to be ordered after all before. */
    bool input = s->writer < 0, caller = launch == pr->p->launches.n; /* who waits for everything */
    if (caller || (input && a->kind == PZ_READ)) return PZ_OK;
    int from = input ? 0 : s->writer;
    if (launch <= from || pr->idle[launch + 1] == pr->idle[from + 1]) return PZ_OK;
    return REFUSE(pr, launch, "%s is not ordered after launch %d: it or a launch between does not wait",
                  place_name(pr, a->place), from);
}

static const char *state(const prover *pr, const span *s, char buf[200]) {
    if (s->fill >= 0)
        snprintf(buf, 200, "zeroed by launch %d for a later gemm", s->writer);
    else if (s->writer < 0)
        snprintf(buf, 200, "those of input %.100s", place_name(pr, s->owner));
    else
        snprintf(buf, 200, "overwritten by launch %d with %.100s", s->writer, place_name(pr, s->owner));
    return buf;
}

/* The bytes of `a` as they are before the launch: of its value, of its fill, or free to be overwritten. */
static pz_status check_span(prover *pr, int launch, const pz_access *a, const span *s) {
    const pz_place *pl = &pr->p->places.at[a->place], *owner = &pr->p->places.at[s->owner];
    char buf[200];
    switch (a->kind) {
    case PZ_READ:
        if (s->fill < 0 && owner->root == pl->root && owner->offset == pl->offset) break;
        return REFUSE(pr, launch, "reads %s, but bytes [%lld, %lld) are %s", pl->name, (long long)s->begin,
                      (long long)s->end, state(pr, s, buf));
    case PZ_ACCUMULATE:
        if (s->fill >= 0 && s->fill == pr->p->slices.at[pr->p->launches.at[launch].slice].fill) break;
        return REFUSE(pr, launch, "adds into %s, but bytes [%lld, %lld) are no longer zero: %s", pl->name,
                      (long long)s->begin, (long long)s->end, state(pr, s, buf));
    case PZ_FILL:
    case PZ_WRITE:
        if (s->fill < 0) break;
        return REFUSE(pr, launch, "%s %s over bytes [%lld, %lld), which are %s",
                      a->kind == PZ_FILL ? "fills" : "writes", pl->name, (long long)s->begin, (long long)s->end,
                      state(pr, s, buf));
    }
    return check_order(pr, launch, a, s);
}

static pz_status check_access(prover *pr, int launch, const pz_access *a) {
    if (a->offset < 0 || a->bytes < 1 || a->bytes > pr->p->arena_bytes - a->offset)
        return REFUSE(pr, launch, "%s: bytes [%lld, +%lld) are outside the arena of %lld bytes",
                      place_name(pr, a->place), (long long)a->offset, (long long)a->bytes,
                      (long long)pr->p->arena_bytes);
    int64_t at = a->offset, end = a->offset + a->bytes;
    bool must_cover = a->kind == PZ_READ || a->kind == PZ_ACCUMULATE;
    for (int i = span_after(pr, at); i < pr->spans.n && pr->spans.at[i].begin < end; i++) {
        const span *s = &pr->spans.at[i];
        if (must_cover && s->begin > at) break;
        PZ_TRY(check_span(pr, launch, a, s));
        at = s->end;
    }
    if (must_cover && at < end)
        return REFUSE(pr, launch, "%s %s, but nothing has written or zeroed byte %lld",
                      a->kind == PZ_READ ? "reads" : "adds into", place_name(pr, a->place), (long long)at);
    if (a->kind == PZ_READ) pr->proven++;
    return PZ_OK;
}

/* -1 stands for none. */
static pz_status check_places(prover *pr, int launch) {
    const pz_launch *la = &pr->p->launches.at[launch];
    int at[PZ_MAX_OPERANDS + PZ_MAX_RESULTS + 1], n = 0;
    for (int i = 0; i < PZ_MAX_OPERANDS; i++) at[n++] = la->in[i].place;
    for (int i = 0; i < PZ_MAX_RESULTS; i++) at[n++] = la->out[i];
    at[n++] = la->workspace;
    for (int i = 0; i < n; i++)
        if (at[i] != -1 && !place_ok(pr, at[i]))
            return REFUSE(pr, launch, "touches place %d, which does not exist", at[i]);
    return PZ_OK;
}

/* All accesses of one launch happen at the same time: what it writes must not meet anything else it touches. */
static pz_status check_launch(prover *pr, int launch) {
    pz_access acc[PZ_MAX_ACCESSES];
    PZ_TRY(check_places(pr, launch));
    PZ_TRY(check_fixed(pr, launch));
    if (pr->p->launches.at[launch].op == PZ_OP_GEMM) PZ_TRY(check_gemm(pr, launch));
    int n = pz_launch_accesses(pr->p, launch, acc);
    for (int i = 0; i < n; i++) {
        PZ_TRY(check_access(pr, launch, &acc[i]));
        for (int j = 0; j < i; j++) {
            if (acc[i].kind == PZ_READ && acc[j].kind == PZ_READ) continue;
            if (acc[i].offset < acc[j].offset + acc[j].bytes && acc[j].offset < acc[i].offset + acc[i].bytes)
                return REFUSE(pr, launch, "writes %s and at the same time uses %s in the same bytes",
                              place_name(pr, acc[i].place), place_name(pr, acc[j].place));
        }
    }
    for (int i = 0; i < n; i++) {
        if (acc[i].kind == PZ_READ) continue;
        span s = {acc[i].offset, acc[i].offset + acc[i].bytes, acc[i].place, -1, launch};
        if (acc[i].kind == PZ_FILL) s.fill = pr->p->launches.at[launch].fill;
        PZ_TRY(put_span(pr, s));
    }
    return PZ_OK;
}

static pz_status check_begin(prover *pr) {
    const pz_plan *p = pr->p;
    for (int i = 0; i < p->places.n; i++) PZ_TRY(check_place(pr, i));
    int64_t total = 0;
    for (int i = 0; i < p->fills.n; i++) {
        PZ_TRY(check_fill(pr, i));
        total += p->fills.at[i].bytes;
    }
    if (total != p->fill_bytes)
        return pz_fail(pr->err, PZ_E_PROOF, "the fills have %lld bytes, the plan says %lld", (long long)total,
                       (long long)p->fill_bytes);
    for (int i = 0; i < p->inputs.n; i++) {
        const pz_place *in = place_ok(pr, p->inputs.at[i]) ? &p->places.at[p->inputs.at[i]] : NULL;
        int at = in ? span_after(pr, in->offset) : 0;
        if (!in || (at < pr->spans.n && pr->spans.at[at].begin < in->offset + in->bytes))
            return pz_fail(pr->err, PZ_E_PROOF, "input %d overlaps another input", i);
        PZ_TRY(put_span(pr, (span){in->offset, in->offset + in->bytes, p->inputs.at[i], -1, -1}));
    }
    for (int i = 0; i < p->launches.n; i++) pr->idle[i + 1] = pr->idle[i] + !p->launches.at[i].waits;
    return PZ_OK;
}

/* An output is read once more, by the caller, after everything. */
static pz_status check_output(prover *pr, int place) {
    if (!place_ok(pr, place)) return pz_fail(pr->err, PZ_E_PROOF, "output place %d does not exist", place);
    const pz_place *pl = &pr->p->places.at[place];
    int after = pr->p->launches.n;
    PZ_TRY(check_access(pr, after, &(pz_access){PZ_READ, pl->offset, pl->bytes, place}));
    if (pl->type.dt != PZ_DT_FIXED) return PZ_OK;
    if (!is_norm(pr, pl->scale_norm) || !pl->scale_weight)
        return pz_fail(pr->err, PZ_E_PROOF, "%s is a fixed accumulator without a unit", pl->name);
    const pz_place *norm = &pr->p->places.at[pl->scale_norm];
    return check_access(pr, after, &(pz_access){PZ_READ, norm->offset, norm->bytes, pl->scale_norm});
}

static pz_status check_end(prover *pr) {
    const pz_plan *p = pr->p;
    for (int i = 0; i < p->outputs.n; i++)
        if (check_output(pr, p->outputs.at[i]) != PZ_OK)
            return pz_fail_context(pr->err, PZ_E_PROOF, "output %d is not in its place at the end", i);
    for (int i = 0; i < pr->spans.n; i++) {
        const span *s = &pr->spans.at[i];
        if (s->fill >= 0)
            return REFUSE(pr, s->writer, "its fill's bytes [%lld, %lld) are consumed by nobody", (long long)s->begin,
                          (long long)s->end);
    }
    return PZ_OK;
}

pz_status pz_plan_prove(pz_plan *p, pz_error *err) {
    prover pr = {.p = p, .err = err};
    p->proven = 0;
    pr.idle = pz_calloc((size_t)p->launches.n + 1, sizeof *pr.idle);
    if (!pr.idle) return PZ_NOMEM(err);
    pz_status st;
    PZ_TRY_GOTO(st, check_begin(&pr), done);
    for (int i = 0; i < p->launches.n; i++) PZ_TRY_GOTO(st, check_launch(&pr, i), done);
    PZ_TRY_GOTO(st, check_end(&pr), done);
    p->proven = pr.proven;
done:
    pz_vec_free(&pr.spans);
    pz_free(pr.idle);
    return st;
}
