/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of a launch: places, weights, scratch, and the checks that kernels share. */
#include <stdio.h>

#include "backend/cuda/state.h"

pz_status(pz_cuda_refuse)(const pz_launch *l, pz_status code, pz_error *err, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return pz_fail(err, code, "cuda, %s: %s", l->role ? l->role : pz_op_text(l->op), text);
}

/* ---- finding ---- */
int pz_cuda_in(const pz_launch *l, const char *operand) {
    int i = pz_op_operand_index(l->op, operand);
    return i < 0 ? -1 : l->in[i].place;
}

const pz_cuda_weight *pz_cuda_weight_of(const pz_backend *b, const pz_weight *w) {
    if (w->index >= 0 && w->index < b->weights.n && pz_streq(b->weights.at[w->index].name, w->name))
        return &b->weights.at[w->index];
    for (int i = 0; i < b->weights.n; i++)
        if (pz_streq(b->weights.at[i].name, w->name)) return &b->weights.at[i];
    return NULL;
}

static const pz_weight *graph_weight(const pz_launch *l, const char *operand) {
    int i = pz_op_operand_index(l->op, operand);
    return i < 0 ? NULL : l->in[i].weight;
}

const pz_cuda_weight *pz_cuda_in_weight(const pz_cuda_run *r, const pz_launch *l, const char *operand) {
    const pz_weight *w = graph_weight(l, operand);
    return w ? pz_cuda_weight_of(r->b, w) : NULL;
}

static const pz_place *place_of(const pz_cuda_run *r, int place) {
    return place >= 0 && place < r->plan->places.n ? &r->plan->places.at[place] : NULL;
}

static unsigned char *address(const pz_cuda_run *r, int place) {
    return r->arena + r->plan->places.at[place].offset;
}

pz_matrix pz_cuda_matrix(const pz_cuda_run *r, int place) {
    const pz_place *p = &r->plan->places.at[place];
    pz_matrix m = {.data = address(r, place) + p->col * (pz_dtype_bits(p->type.dt) / 8), .ld = p->ld};
    m.elem = p->type.dt == PZ_DT_BF16 ? PZ_ELEM_BF16 : p->type.dt == PZ_DT_F32 ? PZ_ELEM_F32 : PZ_ELEM_FIXED;
    if (p->type.dt != PZ_DT_FIXED) return m;
    m.x_norm = (const float *)(const void *)address(r, p->scale_norm);
    m.w_norm = pz_cuda_weight_of(r->b, p->scale_weight)->w_norm + p->scale_col;
    return m;
}

float *pz_cuda_norm(const pz_cuda_run *r, int place) {
    int norm = r->plan->places.at[place].norm;
    return norm < 0 ? NULL : (float *)(void *)address(r, norm);
}

const int32_t *pz_cuda_in_i32(const pz_cuda_run *r, const pz_launch *l, const char *operand) {
    return (const int32_t *)(const void *)address(r, pz_cuda_in(l, operand));
}

/* ---- scratch ---- */
void pz_cuda_want(pz_cuda_run *r, const pz_launch *l, size_t bytes) {
    pz_cuda_scratch_part *part = &r->state->parts[l - r->plan->launches.at];
    if (bytes > part->bytes) part->bytes = bytes;
}

void *pz_cuda_scratch(const pz_cuda_run *r, const pz_launch *l) {
    const pz_cuda_scratch_part *part = &r->state->parts[l - r->plan->launches.at];
    return part->bytes ? (unsigned char *)r->state->scratch.data + part->offset : NULL;
}

void pz_cuda_want_group(pz_cuda_run *r, const pz_launch *l, int hidden) {
    if (hidden > r->state->hidden) r->state->hidden = hidden;
    if (l->donor.one_shot > r->state->one_shot) r->state->one_shot = l->donor.one_shot;
}

/* ---- checks ---- */
pz_status pz_cuda_check_act(const pz_cuda_run *r, const pz_launch *l, const char *operand, int64_t cols,
                            pz_error *err) {
    const pz_place *p = place_of(r, pz_cuda_in(l, operand));
    if (!p) return pz_cuda_refuse(l, PZ_E_INTERNAL, err, "operand %s has no place", operand);
    if (!pz_dtype_is_act(p->type.dt) || p->type.rank != 2)
        return pz_cuda_refuse(l, PZ_E_UNSUPPORTED, err, "operand %s is %s of rank %d; an activation [m, n] is read",
                              operand, pz_dtype_text(p->type.dt), p->type.rank);
    if (cols > 0 && p->type.dim[1] != cols)
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "operand %s has %lld columns, expected %lld", operand,
                              (long long)p->type.dim[1], (long long)cols);
    if (p->type.dt != PZ_DT_FIXED) return PZ_OK;
    const pz_cuda_weight *w = p->scale_weight ? pz_cuda_weight_of(r->b, p->scale_weight) : NULL;
    if (!place_of(r, p->scale_norm) || !w || !w->w_norm || p->scale_col < 0 || p->scale_col + p->type.dim[1] > w->rows)
        return pz_cuda_refuse(l, PZ_E_INTERNAL, err, "operand %s is a fixed-point sum without its scale", operand);
    return PZ_OK;
}

pz_status pz_cuda_check_out(const pz_cuda_run *r, const pz_launch *l, int index, int64_t cols, pz_error *err) {
    const pz_place *p = place_of(r, l->out[index]);
    if (!p) return pz_cuda_refuse(l, PZ_E_INTERNAL, err, "result %d has no place", index);
    if (p->type.dt != PZ_DT_F32 && p->type.dt != PZ_DT_BF16)
        return pz_cuda_refuse(l, PZ_E_UNSUPPORTED, err, "result %d is %s; f32 and bf16 are written", index,
                              pz_dtype_text(p->type.dt));
    if (cols > 0 && p->type.dim[p->type.rank - 1] != cols)
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "result %d has %lld columns, expected %lld", index,
                              (long long)p->type.dim[p->type.rank - 1], (long long)cols);
    return PZ_OK;
}

pz_status pz_cuda_check_i32(const pz_cuda_run *r, const pz_launch *l, const char *operand, int64_t count,
                            pz_error *err) {
    const pz_place *p = place_of(r, pz_cuda_in(l, operand));
    if (!p || p->type.dt != PZ_DT_I32 ||
        (count > 0 && (p->type.rank != 2 || p->type.dim[1] != count || p->ld != count)))
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "operand %s must be i32, %lld a row", operand,
                              (long long)(count ? count : 1));
    return PZ_OK;
}

pz_status pz_cuda_check_vector(const pz_cuda_run *r, const pz_launch *l, const char *operand, int64_t n,
                               pz_error *err) {
    const pz_weight *w = graph_weight(l, operand);
    const pz_cuda_weight *e = w ? pz_cuda_weight_of(r->b, w) : NULL;
    if (!e || !e->vector)
        return pz_cuda_refuse(l, PZ_E_INVAL, err, "weight %s (%s) is not loaded", w ? w->name : "?", operand);
    if (e->cols != n)
        return pz_cuda_refuse(l, PZ_E_TYPE, err, "weight %s has %lld values, expected %lld", w->name,
                              (long long)e->cols, (long long)n);
    return PZ_OK;
}
