/* SPDX-License-Identifier: Apache-2.0 */
/* Data types, tensor types, accumulators, numbers as text. */
#include <locale.h>
#include <math.h>
#include <stdio.h>

#include "ir/ir_internal.h"

typedef enum dtype_class { CLASS_NONE, CLASS_ACT, CLASS_INT, CLASS_WEIGHT } dtype_class;
static const struct {
    const char *text;
    int bits;
    dtype_class cls;
} dtypes[PZ_DT_COUNT] = {
    [PZ_DT_NONE] = {"none", 0, CLASS_NONE},
#define DTYPE(id, name, nbits, c) [PZ_DT_##id] = {name, nbits, CLASS_##c},
#include "ir/dtypes.def"
#undef DTYPE
};

const char *pz_dtype_text(pz_dtype dt) {
    return dtypes[dt].text;
}

int pz_dtype_bits(pz_dtype dt) {
    return dtypes[dt].bits;
}

bool pz_dtype_is_act(pz_dtype dt) {
    return dtypes[dt].cls == CLASS_ACT;
}

bool pz_dtype_is_quantized(pz_dtype dt) {
    return dtypes[dt].cls == CLASS_WEIGHT;
}

pz_dtype pz_dtype_from_text(const char *s, size_t n) {
    for (int i = PZ_DT_NONE + 1; i < PZ_DT_COUNT; i++)
        if (strlen(dtypes[i].text) == n && memcmp(dtypes[i].text, s, n) == 0) return (pz_dtype)i;
    return PZ_DT_NONE;
}

/* An accumulator is named as the dtype of its result. */
static const pz_dtype accum_dtypes[] = {
    [PZ_ACCUM_FIXED] = PZ_DT_FIXED, [PZ_ACCUM_F32] = PZ_DT_F32, [PZ_ACCUM_BF16] = PZ_DT_BF16};

pz_dtype pz_accum_dtype(pz_accum a) {
    return accum_dtypes[a];
}

const char *pz_accum_text(pz_accum a) {
    return pz_dtype_text(accum_dtypes[a]);
}

bool pz_accum_from_text(const char *s, pz_accum *out) {
    for (size_t i = 0; i < sizeof accum_dtypes / sizeof *accum_dtypes; i++)
        if (strcmp(s, pz_dtype_text(accum_dtypes[i])) == 0) {
            *out = (pz_accum)i;
            return true;
        }
    return false;
}

bool pz_type_equal(const pz_type *a, const pz_type *b) {
    if (a->dt != b->dt || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

bool pz_type_match(const pz_type *a, const pz_type *b) {
    if (a->dt != b->dt || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i] && a->dim[i] != PZ_DIM_UNKNOWN && b->dim[i] != PZ_DIM_UNKNOWN) return false;
    return true;
}

const char *pz_type_text(const pz_type *t, char buf[PZ_TYPE_TEXT]) {
    int n = snprintf(buf, PZ_TYPE_TEXT, "%s", pz_dtype_text(t->dt));
    for (int i = 0; i < t->rank; i++) {
        char lead = i ? ',' : '[';
        if (t->dim[i] > 0)
            n += snprintf(buf + n, PZ_TYPE_TEXT - (size_t)n, "%c%lld", lead, (long long)t->dim[i]);
        else
            n += snprintf(buf + n, PZ_TYPE_TEXT - (size_t)n, "%c%s", lead, t->dim[i] == PZ_DIM_M ? "m" : "?");
    }
    if (t->rank) snprintf(buf + n, PZ_TYPE_TEXT - (size_t)n, "]");
    return buf;
}

void pz_type_print(const pz_type *t, pz_str *out) {
    char buf[PZ_TYPE_TEXT];
    pz_str_add(out, pz_type_text(t, buf));
}

static pz_status check_dims(const pz_type *t, int first, const char *text, pz_error *err) {
    int64_t elements = 1;
    for (int i = first; i < t->rank; i++) {
        int64_t d = t->dim[i];
        if (d != PZ_DIM_UNKNOWN && (d < 1 || d > PZ_MAX_DIM))
            return pz_fail(err, PZ_E_TYPE, "dimension %d of %s is not a number in 1..%lld or ?", i + 1, text,
                           (long long)PZ_MAX_DIM);
        if (d != PZ_DIM_UNKNOWN && (__builtin_mul_overflow(elements, d, &elements) || elements > PZ_MAX_ELEMENTS))
            return pz_fail(err, PZ_E_TYPE, "%s has more than 2^48 elements", text);
    }
    return PZ_OK;
}

pz_status pz_type_check(const pz_type *t, pz_type_use use, pz_error *err) {
    char buf[PZ_TYPE_TEXT];
    if (t->rank < 0 || t->rank > PZ_MAX_RANK || t->dt <= PZ_DT_NONE || t->dt >= PZ_DT_COUNT)
        return pz_fail(err, PZ_E_TYPE, "type without a dtype, or with a rank that is not in 0..%d", PZ_MAX_RANK);
    pz_type_text(t, buf);
    bool act = pz_dtype_is_act(t->dt);
    if (use == PZ_TYPE_WEIGHT) {
        if ((!act && dtypes[t->dt].cls != CLASS_WEIGHT) || t->dt == PZ_DT_FIXED)
            return pz_fail(err, PZ_E_TYPE, "a weight cannot be %s; expected bf16, f32, mxfp4 or fp8", buf);
        if (t->rank < 1 || t->rank > 3) return pz_fail(err, PZ_E_TYPE, "weight %s must have 1 to 3 dimensions", buf);
        PZ_TRY(check_dims(t, 0, buf, err));
        int64_t last = t->dim[t->rank - 1];
        if (t->dt == PZ_DT_MXFP4 && last > 0 && last % 32)
            return pz_fail(err, PZ_E_TYPE, "last dimension of %s must be a multiple of 32, the block of one scale",
                           buf);
        return PZ_OK;
    }
    bool rows = t->rank >= 1 && t->dim[0] == PZ_DIM_M;
    if (use == PZ_TYPE_SLOT && !(act && t->rank == 2 && rows))
        return pz_fail(err, PZ_E_TYPE, "slot of type %s; expected an accumulator: fixed, f32 or bf16 [m,columns]", buf);
    if (!(rows && ((act && t->rank == 2) || (t->dt == PZ_DT_I32 && t->rank <= 2))))
        return pz_fail(err, PZ_E_TYPE, "value of type %s; expected f32, bf16 or fixed [m,columns], i32[m] or i32[m,k]",
                       buf);
    return check_dims(t, 1, buf, err);
}

/* The C locale object is static in the C library; the calling thread's locale is put back. */
static locale_t enter_c_locale(locale_t *made) {
    *made = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return *made ? uselocale(*made) : (locale_t)0;
}
static void leave_c_locale(locale_t made, locale_t old) {
    if (!made) return;
    uselocale(old);
    freelocale(made);
}

void pz_float_text(double v, char buf[PZ_FLOAT_TEXT]) {
    locale_t made, old = enter_c_locale(&made);
    for (int digits = 9; digits <= 17; digits++) {
        snprintf(buf, PZ_FLOAT_TEXT, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) break;
    }
    leave_c_locale(made, old);
    /* 1e-06 -> 1e-6, 1e+10 -> 1e10 */
    char *e = strchr(buf, 'e');
    if (!e) return;
    char *to = e + 1, *from = to;
    if (*from == '-') to++;
    from++;
    while (*from == '0') from++;
    memmove(to, from, strlen(from) + 1);
}

bool pz_float_parse(const char *s, double *out) {
    char *end = NULL;
    locale_t made, old = enter_c_locale(&made);
    double v = strtod(s, &end);
    leave_c_locale(made, old);
    if (end == s || *end || !isfinite(v)) return false;
    *out = v;
    return true;
}
