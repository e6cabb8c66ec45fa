/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of the GPU kernels, tried on fake kernels: right ones pass every suite, and each kind of wrong one is found
 * by the suites that are there for it. */
#include "support_lab.h"

#include "base/fixed.h"
#include "plan/gemm_unit.h"

/* Name, and the suites that must find it. */
#define GEMM_FAULTS(X)                                                                         \
    X(RIGHT, "")                                                                               \
    X(ROW_SHIFTED, "rex")      /* row i of x gives row i + 1 of y */                           \
    X(LAST_CHUNK, "re")        /* the last chunk of K is left out */                           \
    X(K_TAIL, "re")            /* K beyond a multiple of 128 is left out */                    \
    X(LAST_K, "e")             /* the last element of K is left out */                         \
    X(LAST_COLUMN, "re")       /* a column beyond a multiple of 8 is not written */            \
    X(NAN_SWALLOWED, "x")      /* NaN comes out as 0 */                                        \
    X(NAN_SPREADS, "x")        /* a row with NaN makes the next row NaN */                     \
    X(EXTRA_COLUMN, "re")      /* writes one column too many */                                \
    X(EXTRA_ROW, "re")         /* and one row */                                               \
    X(NOT_ZEROED, "re")        /* self does not zero */                                        \
    X(DIRTY_WORKSPACE, "re")   /* a counter is left behind, so the second run does not zero */ \
    X(WORKSPACE_OVERRUN, "re") /* writes beyond the workspace that it asked for */             \
    X(WHOLE_ROUNDING, "e")     /* FIXED rounds the whole sum, not each unit's */               \
    X(TRUNCATES, "e")          /* FIXED cuts off in place of rounding */                       \
    X(BF16_PARTIALS, "r")      /* f32 adds chunks that were rounded to bf16 */                 \
    X(CONFIG_DEPENDENT, "c")   /* chunks of 64 where K is split */                             \
    X(WIDE_SPLIT, "cp")        /* the same of WIDE alone */                                    \
    X(WIDE_ROUNDS, "rfcbp")    /* FIXED of WIDE adds chunks that were rounded to bf16 */       \
    X(WIDE_ORDER, "fcbp")      /* WIDE multiplies in another order of k */                     \
    X(GROUP_ORDER, "fcb")      /* so does GROUP */                                             \
    X(DEFAULT_ORDER, "fcb")    /* and DEFAULT */                                               \
    X(GROUP_UNIT, "u")         /* GROUP has units of one chunk at every shape */               \
    X(GROUP_LONGEST, "u")      /* and of two at most where they have four */                   \
    X(SLOTS, "cu")             /* with few slots WIDE leaves a chunk out */                    \
    X(BATCH_DEPENDENT, "b")    /* chunks of 64 for one row */                                  \
    X(UNSTABLE, "f")           /* every fifth launch differs in one bit */                     \
    X(ONE_ELEMENT, "rexfcbu")  /* one element of one family is too large by a tenth */         \
    X(REFUSES_ALL, "rexfcbu")                                                                  \
    X(REFUSES_SILENTLY, "ra")                                                                  \
    X(WRITES_AND_REFUSES, "ra")                                                                \
    X(PRODUCT_WRAPS, "m") /* too many warps are counted in 32 bits */                          \
    X(LIMITS_STAGES, "m") /* more than a kernel has are refused */                             \
    X(ACCEPTS_ALL, "a")
#define ENUM_ROW(id, suites) GEMM_##id##_FAULT,
enum gemm_fault { GEMM_FAULTS(ENUM_ROW) };
#undef ENUM_ROW

#define NORM_FAULTS(X)                                                      \
    X(RIGHT, "")                                                            \
    X(RIDER_SHORT, "n") /* its last 16 bytes stay */                        \
    X(RIDER_LONG, "n")                                                      \
    X(NO_RIDER, "nk")                                                       \
    X(NORM_SMALL, "n")  /* x_norm below the norm */                         \
    X(NORM_LARGE, "n")  /* twice too large */                               \
    X(NORM_ODD, "n")    /* no power of two */                               \
    X(NORM_BEFORE, "s") /* of y before it is rounded */                     \
    X(NO_EPS, "s")                                                          \
    X(UNROUNDED, "n") /* y is made of the sum before r is rounded */        \
    X(LOST_RES, "n")  /* r in place of res is written before res is read */ \
    X(PAD_WRITTEN, "n")                                                     \
    X(LAST_COLUMN, "n")                                                     \
    X(HUGE_ZERO, "s") /* a sum of squares that overflows gives zeros */     \
    X(NAN_SWALLOWED, "s")                                                   \
    X(ACCEPTS_ALL, "a")
#define ENUM_ROW(id, suites) NORM_##id##_FAULT,
enum norm_fault { NORM_FAULTS(ENUM_ROW) };
#undef ENUM_ROW

static enum gemm_fault gemm_fault;
static enum norm_fault norm_fault;
static long launches;

/* ---- a GEMM ---- */
static bool from_end(const pz_gemm_args *a) {
    int family = a->config.family;
    return (gemm_fault == GEMM_WIDE_ORDER_FAULT && family == PZ_GEMM_WIDE) ||
           (gemm_fault == GEMM_GROUP_ORDER_FAULT && family == PZ_GEMM_GROUP) ||
           (gemm_fault == GEMM_DEFAULT_ORDER_FAULT && family == PZ_GEMM_DEFAULT);
}

/* Values of k that are summed before they are rounded. */
static int chunk_of(const pz_gemm_args *a) {
    if (gemm_fault == GEMM_CONFIG_DEPENDENT_FAULT && a->config.split > 1) return 64;
    if (gemm_fault == GEMM_WIDE_SPLIT_FAULT && a->config.family == PZ_GEMM_WIDE && a->config.split > 1) return 64;
    if (gemm_fault == GEMM_BATCH_DEPENDENT_FAULT && a->m == 1) return 64;
    if (gemm_fault == GEMM_GROUP_UNIT_FAULT && a->config.family == PZ_GEMM_GROUP) return 128;
    int unit = pz_gemm_unit(a->n, a->k);
    if (gemm_fault == GEMM_GROUP_LONGEST_FAULT && a->config.family == PZ_GEMM_GROUP && unit > 2) unit = 2;
    return 128 * unit;
}

static int end_of_k(const pz_gemm_args *a) {
    if (gemm_fault == GEMM_LAST_CHUNK_FAULT && a->k > 128) return (a->k - 1) / 128 * 128;
    if (gemm_fault == GEMM_K_TAIL_FAULT && a->k > 128) return a->k / 128 * 128;
    if (gemm_fault == GEMM_LAST_K_FAULT) return a->k - 1;
    if (gemm_fault == GEMM_SLOTS_FAULT && a->config.family == PZ_GEMM_WIDE && a->config.warps == 3 &&
        a->config.stages > 0 && a->config.stages < 3)
        return a->k - 64;
    return a->k;
}

static float swallow(float v) {
    return gemm_fault == GEMM_NAN_SWALLOWED_FAULT && v != v ? 0 : v;
}

/* Sum of one element, in f32 and as the integer of FIXED. */
static float dot(const pz_gemm_args *a, int row, int col, int32_t *fixed) {
    const uint16_t *x = (const uint16_t *)a->x + row * a->ldx, *w = (const uint16_t *)a->w + col * a->ldw;
    float sum = 0, x_inv = 0, w_inv = 0;
    int chunk = chunk_of(a), end = end_of_k(a);
    if (a->accum == PZ_ACCUM_FIXED) {
        x_inv = pz_fixed_inv(a->x_norm[row]);
        w_inv = pz_fixed_inv(a->w_norm[col]);
    }
    *fixed = 0;
    for (int k0 = 0; k0 < end; k0 += chunk) {
        float part = 0;
        int n = k0 + chunk < end ? chunk : end - k0;
        for (int i = 0; i < n; i++) {
            int k = from_end(a) ? k0 + n - 1 - i : k0 + i;
            part += pz_bf16_to_f32(x[k]) * pz_bf16_to_f32(w[k]);
        }
        if (gemm_fault == GEMM_WIDE_ROUNDS_FAULT && a->config.family == PZ_GEMM_WIDE)
            part = pz_bf16_to_f32(pz_f32_to_bf16(part));
        float scaled = part * x_inv * w_inv;
        *fixed += gemm_fault == GEMM_TRUNCATES_FAULT ? (int32_t)(scaled * 0.5f) * 2 : pz_fixed_round(scaled);
        if (gemm_fault == GEMM_BF16_PARTIALS_FAULT) part = pz_bf16_to_f32(pz_f32_to_bf16(part));
        sum += part;
    }
    if (gemm_fault == GEMM_WHOLE_ROUNDING_FAULT) *fixed = pz_fixed_round(sum * x_inv * w_inv);
    return swallow(sum);
}

static void put(const pz_gemm_args *a, int row, int col, float sum, int32_t fixed, bool add) {
    int64_t i = row * a->ldy + col;
    if (a->accum == PZ_ACCUM_FIXED) {
        int32_t *y = (int32_t *)a->y + i;
        *y = (int32_t)((add ? (uint32_t)*y : 0u) + (uint32_t)fixed);
    } else if (a->accum == PZ_ACCUM_F32) {
        float *y = (float *)a->y + i;
        *y = add ? *y + sum : sum;
    } else {
        uint16_t *y = (uint16_t *)a->y + i;
        *y = pz_f32_to_bf16(add ? pz_bf16_to_f32(*y) + sum : sum);
    }
}

static bool too_many(int columns, int warps, int most) {
    int64_t all = (int64_t)columns * warps;
    return (gemm_fault == GEMM_PRODUCT_WRAPS_FAULT ? (int32_t)all : all) > most;
}

/* What WIDE does not take: the rules of its geometry, and K in other pieces than 64. */
static bool bad_wide(const pz_gemm_args *a) {
    const pz_gemm_config *c = &a->config;
    return a->k % 64 || c->tile_n < 64 || c->tile_n % 64 || c->warps < 1 || too_many(c->tile_n / 64, c->warps, 3);
}

static bool bad_few(const pz_gemm_config *c) {
    int step = c->family == PZ_GEMM_GROUP ? 64 : 16;
    return c->tile_n < step || c->tile_n % step || c->warps < 1 || too_many(c->tile_n / 16, c->warps, 16);
}

static pz_status fake_check(const pz_gemm_args *a, pz_error *err) {
    const pz_gemm_config *c = &a->config;
    bool bad = a->size != sizeof *a || a->m < 1 || a->n < 1 || a->k < 16 || a->k % 16 || a->ldx < a->k ||
               a->ldw < a->k || a->ldx % 8 || a->ldw % 8 || a->ldy < a->n || (unsigned)a->accum > 2 ||
               (unsigned)a->strategy > 5 || (unsigned)c->family > PZ_GEMM_CUBLASLT;
    if (!bad && c->family != PZ_GEMM_DEFAULT)
        bad = c->split < 1 || c->split > pz_gemm_units(a->n, a->k) || (a->strategy == PZ_ZERO_NONE && c->split != 1) ||
              c->stages < 0 || c->depth < 0 || (gemm_fault == GEMM_LIMITS_STAGES_FAULT && c->stages > 24);
    if (!bad && (c->family == PZ_GEMM_SKINNY || c->family == PZ_GEMM_GROUP)) bad = bad_few(c);
    if (!bad && c->family == PZ_GEMM_WIDE) bad = bad_wide(a);
    if (!bad && gemm_fault != GEMM_REFUSES_ALL_FAULT) return PZ_OK;
    pz_fail(err, PZ_E_INVAL, "%s", "no such gemm");
    if (gemm_fault == GEMM_REFUSES_SILENTLY_FAULT) err->msg[0] = 0;
    return PZ_E_INVAL;
}

static bool has_counter(const pz_gemm_args *a) {
    return a->strategy == PZ_ZERO_SELF || a->strategy == PZ_ZERO_TICKET;
}

static pz_status fake_workspace(const pz_gemm_args *a, size_t *bytes, pz_error *err) {
    PZ_TRY(fake_check(a, err));
    *bytes = has_counter(a) ? 24 : 0;
    return PZ_OK;
}

static pz_status fake_pointers(const pz_gemm_args *a, pz_error *err) {
    bool bad = !a->x || !a->w || !a->y || (uintptr_t)a->x % 16 || (uintptr_t)a->w % 16 || (uintptr_t)a->y % 4 ||
               (a->accum == PZ_ACCUM_FIXED && (!a->x_norm || !a->w_norm)) || (has_counter(a) && !a->workspace);
    if (!bad) return PZ_OK;
    return pz_fail(err, PZ_E_INVAL, "a pointer is missing or unaligned");
}

/* Whether the kernel adds into what is there: zeroed by itself before, or by the caller. */
static bool prepare(const pz_gemm_args *a) {
    uint32_t *counter = a->workspace;
    int64_t size = a->accum == PZ_ACCUM_BF16 ? 2 : 4;
    bool zeroes = a->strategy == PZ_ZERO_SELF || a->strategy == PZ_ZERO_MEMSET;
    if (gemm_fault == GEMM_NOT_ZEROED_FAULT && a->strategy == PZ_ZERO_SELF) zeroes = false;
    if (gemm_fault == GEMM_DIRTY_WORKSPACE_FAULT && a->strategy == PZ_ZERO_SELF && counter[0]++) zeroes = false;
    if (gemm_fault == GEMM_WORKSPACE_OVERRUN_FAULT && has_counter(a)) counter[6] = 0;
    for (int row = 0; zeroes && row < a->m; row++) memset((char *)a->y + row * a->ldy * size, 0, (size_t)(a->n * size));
    return zeroes || a->strategy == PZ_ZERO_PREZERO || a->strategy == PZ_ZERO_SELF;
}

static void fake_row(const pz_gemm_args *a, int row, bool add) {
    bool spoilt = false;
    int to = gemm_fault == GEMM_ROW_SHIFTED_FAULT && a->m > 1 ? (row + 1) % a->m : row;
    int n = gemm_fault == GEMM_LAST_COLUMN_FAULT && a->n > 8 ? a->n / 8 * 8 : a->n;
    for (int k = 0; gemm_fault == GEMM_NAN_SPREADS_FAULT && row > 0 && k < a->k; k++) {
        float v = pz_bf16_to_f32(((const uint16_t *)a->x)[(row - 1) * a->ldx + k]);
        spoilt = spoilt || v != v;
    }
    for (int col = 0; col < n; col++) {
        int32_t fixed;
        float sum = dot(a, row, col, &fixed);
        if (spoilt) {
            sum = NAN;
            fixed = INT32_MIN;
        }
        if (gemm_fault == GEMM_ONE_ELEMENT_FAULT && row == a->m - 1 && col == 5 &&
            a->config.family == (row > 0 ? PZ_GEMM_SKINNY : PZ_GEMM_DEFAULT)) {
            sum *= 1.1f;
            fixed += fixed / 10 + 1;
        }
        if (gemm_fault == GEMM_UNSTABLE_FAULT && launches % 5 == 4 && col == 1) fixed ^= 1;
        put(a, to, col, sum, fixed, add);
    }
    if (gemm_fault == GEMM_EXTRA_COLUMN_FAULT && a->ldy > a->n) put(a, to, a->n, 0, 0, false);
}

static pz_status fake_gemm(const pz_gemm_args *a, pz_error *err) {
    if (gemm_fault == GEMM_ACCEPTS_ALL_FAULT) return PZ_OK;
    pz_status st = fake_check(a, err);
    if (st != PZ_OK && gemm_fault == GEMM_WRITES_AND_REFUSES_FAULT && a->y) *(uint16_t *)a->y = 1;
    PZ_TRY(st);
    PZ_TRY(fake_pointers(a, err));
    bool add = prepare(a);
    for (int row = 0; row < a->m; row++) fake_row(a, row, add);
    if (gemm_fault == GEMM_EXTRA_ROW_FAULT) put(a, a->m, 0, 0, 0, false);
    launches++;
    return PZ_OK;
}

static pz_status fake_weight_norms(const void *w, int64_t ldw, int n, int k, float *w_norm, void *stream,
                                   pz_error *err) {
    (void)stream, (void)err;
    for (int row = 0; row < n; row++) {
        double sum = 0;
        for (int i = 0; i < k; i++) {
            double v = (double)pz_bf16_to_f32(((const uint16_t *)w)[row * ldw + i]);
            sum += v * v;
        }
        w_norm[row] = pz_fixed_norm(sum) * (gemm_fault == GEMM_ONE_ELEMENT_FAULT && row == n - 1 ? 2 : 1);
    }
    return PZ_OK;
}

/* ---- a norm ---- */
static float get(const pz_matrix *a, int row, int col) {
    int64_t i = row * a->ld + col;
    if (a->elem == PZ_ELEM_F32) return ((const float *)a->data)[i];
    if (a->elem == PZ_ELEM_BF16) return pz_bf16_to_f32(((const uint16_t *)a->data)[i]);
    return pz_fixed_value(((const int32_t *)a->data)[i], a->x_norm[row], a->w_norm[col]);
}

static float store(const pz_matrix *a, int row, int col, float v) {
    int64_t i = row * a->ld + col;
    if (a->elem == PZ_ELEM_F32) {
        ((float *)a->data)[i] = v;
        return v;
    }
    ((uint16_t *)a->data)[i] = pz_f32_to_bf16(v);
    return pz_bf16_to_f32(pz_f32_to_bf16(v));
}

static pz_status fake_norm_check(const pz_norm_args *a, pz_error *err) {
    bool bad = a->size != sizeof *a || a->m < 1 || a->hidden < 8 || a->hidden % 8 || a->hidden > 16384 || !a->x.data ||
               !a->w || !a->y.data || (a->x.elem == PZ_ELEM_FIXED && (!a->x.x_norm || !a->x.w_norm)) ||
               a->y.elem == PZ_ELEM_FIXED || (a->r.data && a->r.elem != a->y.elem) || (uintptr_t)a->x.data % 16 ||
               (uintptr_t)a->y.data % 16 || (a->zero && ((uintptr_t)a->zero % 16 || a->zero_bytes % 16));
    return bad ? pz_fail(err, PZ_E_INVAL, "no such norm") : PZ_OK;
}

static float x_norm_of(double sum) {
    float up = pz_fixed_norm(sum);
    if (norm_fault == NORM_NORM_SMALL_FAULT) return up / 2;
    if (norm_fault == NORM_NORM_LARGE_FAULT) return up * 2;
    if (norm_fault == NORM_NORM_ODD_FAULT) return up * 1.25f;
    return up;
}

static void fake_norm_row(const pz_norm_args *a, int row, float *v) {
    double sum = 0, norm = 0;
    for (int i = 0; i < a->hidden; i++) {
        v[i] = get(&a->x, row, i);
        if (norm_fault == NORM_LOST_RES_FAULT && a->res.data && a->res.data == a->r.data) store(&a->r, row, i, v[i]);
        if (a->res.data) v[i] += get(&a->res, row, i);
        float stored = a->r.data ? store(&a->r, row, i, v[i]) : v[i];
        if (norm_fault != NORM_UNROUNDED_FAULT) v[i] = stored;
        sum += (double)v[i] * (double)v[i];
    }
    double eps = norm_fault == NORM_NO_EPS_FAULT ? 0 : (double)a->eps, scale = 1 / sqrt(sum / a->hidden + eps);
    if (norm_fault == NORM_HUGE_ZERO_FAULT && sum > 0x1p128) scale = 0;
    int n = norm_fault == NORM_LAST_COLUMN_FAULT ? a->hidden - 1 : a->hidden;
    for (int i = 0; i < n; i++) {
        double y = (double)v[i] * scale * (double)a->w[i];
        if (norm_fault == NORM_NAN_SWALLOWED_FAULT && y != y) y = 0;
        double stored = (double)store(&a->y, row, i, (float)y);
        if (norm_fault == NORM_NORM_BEFORE_FAULT) stored = y;
        norm += stored * stored;
    }
    if (norm_fault == NORM_PAD_WRITTEN_FAULT && a->y.ld > a->hidden) store(&a->y, row, a->hidden, 0);
    if (a->x_norm) a->x_norm[row] = x_norm_of(norm);
}

static pz_status fake_norm(const pz_norm_args *a, pz_error *err) {
    if (norm_fault == NORM_ACCEPTS_ALL_FAULT) return PZ_OK;
    PZ_TRY(fake_norm_check(a, err));
    float *v = pz_calloc((size_t)a->hidden, sizeof *v);
    if (!v) return PZ_NOMEM(err);
    for (int row = 0; row < a->m; row++) fake_norm_row(a, row, v);
    pz_free(v);
    size_t bytes = a->zero ? a->zero_bytes : 0;
    if (norm_fault == NORM_RIDER_SHORT_FAULT && bytes) bytes -= 16;
    if (norm_fault == NORM_RIDER_LONG_FAULT && bytes) bytes += 16;
    if (norm_fault == NORM_NO_RIDER_FAULT) bytes = 0;
    if (bytes) memset(a->zero, 0, bytes);
    return PZ_OK;
}

/* ---- suites ---- */
static void replays(lab *l) {
    for (int strategy = 0; strategy < 6; strategy++)
        for (int shared = 0; shared < 2; shared++) {
            chain_options o = {.m = 3, .layers = 3, .strategy = (pz_strategy)strategy, .shared = shared, .seed = 1};
            suite_chain_replay(l, &o, 10);
        }
}

static void other_chains(lab *l) {
    suite_chain_streams(l, 7);
    suite_chain_alternate(l, 8);
    suite_chain_other_stream(l, 7);
    suite_chain_occupied(l, 7);
}

static const struct {
    char name;
    bool norm;
    void (*run)(lab *l);
} suites[] = {{'r', false, suite_gemm_random},    {'e', false, suite_gemm_exact},    {'x', false, suite_gemm_special},
              {'a', false, suite_gemm_arguments}, {'m', false, suite_gemm_extremes}, {'w', false, suite_weight_norms},
              {'f', false, suite_fixed_repeat},   {'c', false, suite_fixed_configs}, {'b', false, suite_fixed_batches},
              {'u', false, suite_fixed_edges},    {'p', false, suite_fixed_sums},    {'n', true, suite_norm_random},
              {'s', true, suite_norm_special},    {'a', true, suite_norm_arguments}, {'k', true, replays},
              {'o', true, other_chains},          {'z', true, suite_chain_control}};

static lab fake_lab(void) {
    lab l;
    lab_host(&l);
    l.gemm_workspace = fake_workspace;
    l.gemm = fake_gemm;
    l.weight_norms = fake_weight_norms;
    l.rms_norm = fake_norm;
    gemm_fault = GEMM_RIGHT_FAULT;
    norm_fault = NORM_RIGHT_FAULT;
    return l;
}

static void test_right(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        lab l = fake_lab();
        suites[i].run(&l);
        if (l.faults) fail_msg("suite %c: %ld faults of right kernels", suites[i].name, l.faults);
    }
}

static void found_by(const char *names, bool norm, const char *fault, int gemm, int rms) {
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        if (suites[i].norm != norm || !strchr(names, suites[i].name)) continue;
        lab l = fake_lab();
        l.quiet = true;
        gemm_fault = (enum gemm_fault)gemm;
        norm_fault = (enum norm_fault)rms;
        suites[i].run(&l);
        if (l.faults == 0) fail_msg("suite %c does not find %s", suites[i].name, fault);
    }
}

static void test_wrong_gemms(void **state) {
    (void)state;
    int i = 0;
#define FOUND(id, names) found_by(names, false, #id, i++, 0);
    GEMM_FAULTS(FOUND)
#undef FOUND
    found_by("w", false, "a weight norm", GEMM_ONE_ELEMENT_FAULT, 0);
}

static void test_wrong_norms(void **state) {
    (void)state;
    int i = 0;
#define FOUND(id, names) found_by(names, true, #id, 0, i++);
    NORM_FAULTS(FOUND)
#undef FOUND
}

/* Wrong GEMMs in a chain; and a control that does not fail: riders that were never needed. */
static void test_wrong_chains(void **state) {
    (void)state;
    found_by("ko", true, "one element", GEMM_ONE_ELEMENT_FAULT, 0);
    found_by("ko", true, "unstable", GEMM_UNSTABLE_FAULT, 0);
    found_by("ko", true, "self does not zero", GEMM_NOT_ZEROED_FAULT, 0);
    found_by("z", true, "a rider is always removed", 0, NORM_NO_RIDER_FAULT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right), cmocka_unit_test(test_wrong_gemms),
                                       cmocka_unit_test(test_wrong_norms), cmocka_unit_test(test_wrong_chains)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
