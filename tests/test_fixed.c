/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed-point accumulator against exact arithmetic. Products of f32 and their sums over a few thousand elements of
 * like size are exact in long double (64 bits of mantissa) or are compared with a bound that covers its rounding. */
#include "support.h"

#include <float.h>

#include "backend/cuda/gemm/round.h"
#include "base/fixed.h"
#include "base/rng.h"

static bool power_of_two(float f) {
    int e;
    return f > 0 && frexpf(f, &e) == 0.5f;
}

static void check_norm(double ss) {
    float norm = pz_fixed_norm(ss);
    assert_true(power_of_two(norm));
    long double n = norm;
    if (n * n < (long double)ss) fail_msg("norm %a is below the root of %a", (double)norm, ss);
    /* No larger than needed, but for the head room of 2^-20 (2^-19 on squares). */
    if (norm > PZ_NORM_MIN && n * n / 4 > (long double)ss * (1 + 0x1p-18L))
        fail_msg("norm %a is twice too large for the root of %a", (double)norm, ss);
}

static void test_norm(void **state) {
    (void)state;
    for (int e = -1060; e < 224; e++) {
        double p = ldexp(1.0, e);
        check_norm(p);
        check_norm(nextafter(p, 0));
        check_norm(nextafter(p, INFINITY));
        check_norm(p * 1.5);
        check_norm(p * (1 - 0x1p-19));
        check_norm(p * (1 - 0x1p-21));
    }
    uint64_t s = 1;
    for (int i = 0; i < 100000; i++) check_norm(ldexp(pz_rng_unit(&s) + 0.5, (int)(pz_rng_next(&s) % 400) - 200));

    /* Sums whose root is a power of two once the head room is added: that power is the norm. */
    int exact = 0;
    for (int e = -40; e <= 40; e++) {
        double power = ldexp(1.0, e), root = power / (1.0 + 0x1p-20), ss = root * root * (1 - 0x1p-50);
        for (int i = 0; i < 16; i++, ss = nextafter(ss, INFINITY))
            if (sqrt(ss) * (1.0 + 0x1p-20) == power) {
                exact++;
                assert_true(pz_fixed_norm(ss) == (float)power);
            }
    }
    assert_true(exact > 0);
    assert_true(pz_fixed_norm(0) == PZ_NORM_MIN);
    assert_true(pz_fixed_norm(DBL_TRUE_MIN) == PZ_NORM_MIN);
    assert_true(pz_fixed_norm((double)FLT_TRUE_MIN * (double)FLT_TRUE_MIN) == PZ_NORM_MIN);
    double top = (double)PZ_NORM_MAX * (double)PZ_NORM_MAX;
    assert_true(pz_fixed_norm(top * (1 - 0x1p-18)) == PZ_NORM_MAX);
    assert_true(isnan(pz_fixed_norm(top)));
    assert_true(isnan(pz_fixed_norm(DBL_MAX)));
    assert_true(isnan(pz_fixed_norm((double)INFINITY)));
    assert_true(isnan(pz_fixed_norm((double)-NAN)));
    assert_true(isnan(pz_fixed_norm((double)NAN)));
}

/* Scaling loses nothing that could change the rounded result, at every pair of norms and in both orders. */
static void test_scaling_is_exact(void **state) {
    (void)state;
    uint64_t s = 2;
    int lo = ilogbf(PZ_NORM_MIN), hi = ilogbf(PZ_NORM_MAX), step = 4;
    assert_true((hi - lo) % step == 0); /* so that the loops reach both ends */
    for (int ex = lo; ex <= hi; ex += step)
        for (int ew = lo; ew <= hi; ew += step) {
            float xn = ldexpf(1, ex), wn = ldexpf(1, ew);
            if (ex + ew > 127) {
                assert_true(isnan(pz_fixed_value(0, xn, wn)));
                continue;
            }
            for (int i = 0; i < 8; i++) {
                double part = i == 0 ? 1 : i == 1 ? -1 : ldexp(2 * pz_rng_unit(&s) - 1, -(i - 2) * 6);
                float p = (float)ldexp(part, ex + ew); /* subnormal or 0 where the bound is that small */
                double exact = ldexp((double)p, 30 - ex - ew);
                int32_t want = (int32_t)rint(exact);
                float a = p * pz_fixed_inv(xn) * pz_fixed_inv(wn), b = p * pz_fixed_inv(wn) * pz_fixed_inv(xn);
                assert_int_equal(pz_fixed_round(a), want);
                assert_int_equal(pz_fixed_round(b), want);
                /* And back: the product of the norms is exact wherever f32 can hold it. */
                if (ex + ew >= -126) {
                    float back = pz_fixed_value(want, xn, wn);
                    assert_true(back == (float)ldexp((double)(float)want, ex + ew - 30));
                }
            }
        }
}

static void test_round(void **state) {
    (void)state;
    assert_int_equal(pz_fixed_round(0.5f), 0); /* ties to even */
    assert_int_equal(pz_fixed_round(1.5f), 2);
    assert_int_equal(pz_fixed_round(-2.5f), -2);
    assert_int_equal(pz_fixed_round(0x1p30f), 1 << 30);
    assert_int_equal(pz_fixed_round(-0x1p30f), -(1 << 30));
    assert_int_equal(pz_fixed_round(nextafterf(0x1p30f, INFINITY)), (1 << 30) + 128);
    assert_int_equal(pz_fixed_round(PZ_FIXED_LIMIT), 3 << 29);
    assert_int_equal(pz_fixed_round(nextafterf(PZ_FIXED_LIMIT, INFINITY)), 0);
    assert_int_equal(pz_fixed_round(INFINITY), 0);
    assert_int_equal(pz_fixed_round(-INFINITY), 0);
    assert_int_equal(pz_fixed_round(NAN), 0);
    assert_int_equal(pz_fixed_round(-0.0f), 0);
    assert_int_equal(pz_fixed_round(FLT_TRUE_MIN), 0);
}

/* The GPU's rounding by additions, of `scaled` split into v and a power of two, against exact arithmetic. */
static void check_round_scaled(float scaled, int exponent) {
    float v = ldexpf(scaled, -exponent), inv = ldexpf(1, exponent);
    double exact = (double)v * (double)inv; /* not `scaled` where v is subnormal or 0 */
    int32_t got = pz_round_scaled(v, inv), want = (int32_t)rint(exact);
    if (got != want) fail_msg("%a * %a is rounded to %d, not %d", (double)v, (double)inv, got, want);
}

static void test_round_scaled(void **state) {
    (void)state;
    static const float special[] = {0,   FLT_TRUE_MIN, FLT_MIN, 0x1p-11f, 0.5f,    511.5f,
                                    512, 512.5f,       1023.5f, 1024.5f,  0x1p30f, PZ_FIXED_LIMIT};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        for (int exponent = 15 - 112; exponent <= 15 + 100; exponent++)
            for (int side = -1; side <= 1; side++) {
                float v = side < 0   ? nextafterf(special[i], -1)
                          : side > 0 ? nextafterf(special[i], INFINITY)
                                     : special[i];
                check_round_scaled(v, exponent);
                check_round_scaled(-v, exponent);
            }
    check_round_scaled(-0x1p31f, 0);
    check_round_scaled(nextafterf(0x1p31f, 0), 0);
    check_round_scaled(-0.0f, 0);
    for (int n = 0; n < 1 << 23; n += n < 1 << 16 ? 1 : 61) { /* ties and their neighbours */
        float tie = (float)n + 0.5f;
        for (int sign = -1; sign <= 1; sign += 2) {
            check_round_scaled((float)sign * tie, 15);
            check_round_scaled((float)sign * nextafterf(tie, 0), -15);
            check_round_scaled((float)sign * nextafterf(tie, INFINITY), 0);
        }
    }
    for (int e = -4; e < 31; e++) /* every binade, mantissas evenly; 83 and 2^23 have no factor in common */
        for (uint32_t m = 0; m < 1 << 23; m += 83) {
            float v = ldexpf(1.0f + (float)m * 0x1p-23f, e);
            check_round_scaled(m & 1 ? v : -v, (int)(m % 200) - 97);
        }
}

static void test_value(void **state) {
    (void)state;
    assert_true(pz_fixed_value(1 << 29, 4, 2) == 4.0f);
    assert_true(pz_fixed_value(-(1 << 30), 0x1p100f, 0x1p27f) == -0x1p127f);
    assert_true(pz_fixed_value(0, PZ_NORM_MIN, PZ_NORM_MIN) == 0.0f);
    assert_true(isnan(pz_fixed_value(0, NAN, 1)));
    assert_true(isnan(pz_fixed_value(5, 1, NAN)));
    assert_true(isnan(pz_fixed_value(5, NAN, NAN)));
    assert_true(isnan(pz_fixed_value(1, 0x1p112f, 0x1p16f)));
}

/* One output element as a kernel makes it: partial sums in f32 over `split` parts of k, rounded and added in 32 bits.
 * Returns the sum in 64 bits, so that leaving int32 can be seen. */
static int64_t accumulate(const float *x, const float *w, int k, int split, float *xn, float *wn) {
    double sx = 0, sw = 0;
    for (int i = 0; i < k; i++) {
        sx += (double)x[i] * (double)x[i];
        sw += (double)w[i] * (double)w[i];
    }
    *xn = pz_fixed_norm(sx);
    *wn = pz_fixed_norm(sw);
    int64_t acc = 0;
    for (int s = 0; s < split; s++) {
        float p = 0;
        for (int i = (int)((int64_t)k * s / split); i < (int)((int64_t)k * (s + 1) / split); i++) p += x[i] * w[i];
        acc += pz_fixed_round(p * pz_fixed_inv(*xn) * pz_fixed_inv(*wn));
    }
    return acc;
}

static void check_dot(const float *x, const float *w, int k, int split) {
    float xn, wn;
    int64_t acc = accumulate(x, w, k, split, &xn, &wn);
    assert_in_range(llabs(acc), 0, INT32_MAX);
    long double exact = 0, size = 0;
    for (int i = 0; i < k; i++) {
        exact += (long double)x[i] * (long double)w[i];
        size += fabsl((long double)x[i] * (long double)w[i]);
    }
    float got = pz_fixed_value((int32_t)acc, xn, wn);
    /* Half a unit for each split, the rounding of the f32 partial sums (k adds), one rounding to f32 at the end. */
    long double bound =
        0x1p-31L * split * (long double)xn * (long double)wn + size * k * 0x1p-24L + fabsl(exact) * 0x1p-23L;
    if (!(fabsl((long double)got - exact) <= bound))
        fail_msg("k %d split %d: got %a, exact %La, bound %La", k, split, (double)got, exact, bound);
}

enum { K = 7168 };
static float x[K], w[K];

static void test_dot(void **state) {
    (void)state;
    uint64_t s = 3;
    for (int trial = 0; trial < 60; trial++) {
        int ex = (int)(pz_rng_next(&s) % 60) - 30, ew = (int)(pz_rng_next(&s) % 60) - 30, k = 1 + trial * K / 60;
        for (int i = 0; i < k; i++) {
            x[i] = (float)ldexp(pz_rng_unit(&s) * 2 - 1, ex);
            w[i] = trial % 3 == 0 ? x[i] : (float)ldexp(pz_rng_unit(&s) * 2 - 1, ew);
        }
        for (int split = 1; split <= 16; split *= 2) check_dot(x, w, k, split);
    }
}

/* Where Cauchy-Schwarz is an equality and the norms are hardly rounded up: the sum reaches the bound, and its rounding
 * may pass it. Also with a sum of splits that each round up. */
static void test_dot_at_the_bound(void **state) {
    (void)state;
    int passed = 0;
    for (int k = 1; k <= K; k += 61) {
        float c = (float)(sqrt(1.0 / k) / (1 + 0x1p-20));
        for (int step = 0; step < 4; step++) {
            c = nextafterf(c, 0);
            for (int i = 0; i < k; i++) x[i] = w[i] = c;
            float xn, wn;
            passed += accumulate(x, w, k, 1, &xn, &wn) > 1 << 30;
            assert_true(xn == 1.0f && wn == 1.0f);
            for (int split = 1; split <= 64; split *= 4) check_dot(x, w, k, split);
            for (int i = 0; i < k; i++) w[i] = -c;
            check_dot(x, w, k, 16);
        }
    }
    assert_true(passed > 0); /* or the case is not the one it is meant to be */
    /* Alternating signs: partial sums of half the bound that cancel. */
    for (int i = 0; i < K; i++) {
        x[i] = 1;
        w[i] = i < K / 2 ? 1 : -1;
    }
    for (int split = 1; split <= 64; split *= 2) check_dot(x, w, K, split);
    for (int i = 0; i < K; i++) x[i] = i == 5 ? 0x1.fffffep+0f : 0, w[i] = i == 5 ? 0x1.fffffep-3f : 0;
    check_dot(x, w, K, 8);
}

static void test_dot_special_rows(void **state) {
    (void)state;
    float xn, wn;
    for (int i = 0; i < K; i++) x[i] = 0, w[i] = 3;
    int64_t acc = accumulate(x, w, K, 8, &xn, &wn);
    assert_true(acc == 0 && xn == PZ_NORM_MIN && pz_fixed_value(0, xn, wn) == 0.0f);
    for (int i = 0; i < K; i++) x[i] = FLT_TRUE_MIN; /* below what the smallest norm resolves: 0 or right */
    acc = accumulate(x, w, K, 8, &xn, &wn);
    assert_true(pz_fixed_value((int32_t)acc, xn, wn) < 0x1p-95f);

    static const float bad[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX};
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++)
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < K; i++) x[i] = w[i] = 1;
            (side ? x : w)[K / 3] = bad[b];
            acc = accumulate(x, w, K, 4, &xn, &wn);
            assert_in_range(llabs(acc), 0, INT32_MAX);
            assert_true(isnan(pz_fixed_value((int32_t)acc, xn, wn)));
            w[K / 2] = x[K / 2] = 0; /* and beside zeros */
            acc = accumulate(x, w, K, 4, &xn, &wn);
            assert_true(isnan(pz_fixed_value((int32_t)acc, xn, wn)));
        }
}

/* ---- bf16 ---- */
static uint32_t bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static void test_bf16(void **state) {
    (void)state;
    for (uint32_t h = 0; h <= 0xFFFF; h++) {
        float f = pz_bf16_to_f32((uint16_t)h);
        assert_int_equal(bits(f), h << 16);
        uint16_t back = pz_f32_to_bf16(f);
        if (isnan(f))
            assert_true(isnan(pz_bf16_to_f32(back)) && (back >> 15) == (h >> 15));
        else
            assert_int_equal(back, h);
    }
    /* Nearest of the two neighbours, in double where the distances are exact; ties to the even pattern. */
    uint64_t s = 4;
    for (int i = 0; i < 400000; i++) {
        uint32_t u = (uint32_t)pz_rng_next(&s);
        if (i % 4 == 0) u = (u & 0xFFFF0000u) | 0x8000u;
        float f;
        memcpy(&f, &u, 4);
        if (isnan(f)) {
            assert_true(isnan(pz_bf16_to_f32(pz_f32_to_bf16(f))));
            continue;
        }
        uint16_t lo = (uint16_t)(u >> 16), hi = (uint16_t)(lo + 1); /* toward zero, away from zero */
        double a = (double)pz_bf16_to_f32(lo), b = (double)pz_bf16_to_f32(hi);
        if (isinf(b)) b = copysign(0x1p128, b);
        double down = fabs((double)f - a), up = fabs(b - (double)f);
        uint16_t want = isinf(a) || down < up || (down == up && lo % 2 == 0) ? lo : hi;
        assert_int_equal(pz_f32_to_bf16(f), want);
    }
    assert_int_equal(pz_f32_to_bf16(FLT_MAX), 0x7F80); /* overflows to infinity */
    uint32_t quiet_bits_below = 0x7F800001u;           /* a NaN whose upper half alone would be infinity */
    float f;
    memcpy(&f, &quiet_bits_below, 4);
    assert_true(isnan(pz_bf16_to_f32(pz_f32_to_bf16(f))));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_scaling_is_exact),
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_round_scaled),
        cmocka_unit_test(test_value),
        cmocka_unit_test(test_dot),
        cmocka_unit_test(test_dot_at_the_bound),
        cmocka_unit_test(test_dot_special_rows),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
