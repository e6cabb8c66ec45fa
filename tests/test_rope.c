/* SPDX-License-Identifier: Apache-2.0 */
/* Expected numbers are not ours: they come from the formulas of transformers' modeling_rope_utils.py and
 * modeling_deepseek_v3.py evaluated with Python floats:
 *
 *   python3 -c '
 *   import math
 *   def freqs(dim, base, f, orig, bf, bs, trunc=True):
 *       corr = lambda r: dim * math.log(orig / (r * 2 * math.pi)) / (2 * math.log(base))
 *       lo, hi = corr(bf), corr(bs)
 *       if trunc: lo, hi = math.floor(lo), math.ceil(hi)
 *       lo, hi = max(lo, 0), min(hi, dim - 1)
 *       if lo == hi: hi += 0.001
 *       for i in (0, 4, 8, 12, 16, 20, 24, 31):
 *           p = base ** (2 * i / dim); e = 1 - min(max((i - lo) / (hi - lo), 0), 1)
 *           print("%.9g" % (1 / (f * p) * (1 - e) + 1 / p * e))
 *   ms = lambda f, m: 1.0 if f <= 1 else 0.1 * m * math.log(f) + 1
 *   cos = lambda f, m, al: ms(f, m) / ms(f, al) if m and al else ms(f, 1)
 *   soft = lambda d, f, al: d ** -.5 * (ms(f, al) ** 2 if al else 1)
 *   freqs(64, 50000., 4., 256, 32., 1.); print(cos(4, 1, 1), soft(192, 4, 1))'
 */
#include "support.h"

#include <math.h>

#include "model/model.h"

enum { N_PAIRS = 8 };
static const int pairs[N_PAIRS] = {0, 4, 8, 12, 16, 20, 24, 31};

typedef struct rope_case {
    const char *name;
    double theta, linear;
    bool yarn;
    double factor, beta_fast, beta_slow;
    int64_t original;
    bool truncate;
    double mscale, mscale_all_dim, attention_factor;
    double freq[N_PAIRS], cos_scale, softmax_scale;
} rope_case;

static const rope_case cases[] = {
    {"kimi-tiny",
     50000,
     1,
     true,
     4,
     32,
     1,
     256,
     true,
     1,
     1,
     0,
     {1, 0.188072826, 0.0303972866, 0.00432340835, 0.00111803399, 0.000289123742, 7.47674391e-05, 7.01153033e-06},
     1,
     0.093565167597512156},
    {"kimi-k2: both betas 1, the ramp is one pair wide",
     50000,
     1,
     true,
     32,
     1,
     1,
     4096,
     true,
     1,
     1,
     0,
     {1, 0.258600136, 0.0668740305, 0.0172936334, 0.00447213595, 3.61404677e-05, 9.34592988e-06, 8.76441291e-07},
     1,
     0.13086079996295005},
    {"kimi-k2.5",
     50000,
     1,
     true,
     64,
     32,
     1,
     4096,
     true,
     1,
     1,
     0,
     {1, 0.258600136, 0.0668740305, 0.0116191599, 0.00153729673, 1.80702339e-05, 4.67296494e-06, 4.38220646e-07},
     1,
     0.14467962580268923},
    {"deepseek-v3",
     10000,
     1,
     true,
     40,
     32,
     1,
     4096,
     true,
     1,
     1,
     0,
     {1, 0.316227766, 0.1, 0.0268793601, 0.0055, 0.000790569415, 2.5e-05, 3.33380358e-06},
     1,
     0.13523377886088009},
    {"deepseek-v2-lite: mscale 0.707 twice",
     10000,
     1,
     true,
     40,
     32,
     1,
     4096,
     true,
     0.707,
     0.707,
     0,
     {1, 0.316227766, 0.1, 0.0268793601, 0.0055, 0.000790569415, 2.5e-05, 3.33380358e-06},
     1,
     0.11472138679292611},
    {"unequal mscales",
     10000,
     1,
     true,
     40,
     32,
     1,
     4096,
     true,
     1,
     0.5,
     0,
     {1, 0.316227766, 0.1, 0.0268793601, 0.0055, 0.000790569415, 2.5e-05, 3.33380358e-06},
     1.1557219901962608,
     0.10124612961325218},
    {"no mscale_all_dim",
     10000,
     1,
     true,
     40,
     32,
     1,
     4096,
     true,
     1,
     0,
     0,
     {1, 0.316227766, 0.1, 0.0268793601, 0.0055, 0.000790569415, 2.5e-05, 3.33380358e-06},
     1.3688879454113936,
     0.072168783648703216},
    {"an attention_factor goes before the mscales",
     10000,
     1,
     true,
     40,
     32,
     1,
     4096,
     true,
     1,
     0.5,
     1.25,
     {1, 0.316227766, 0.1, 0.0268793601, 0.0055, 0.000790569415, 2.5e-05, 3.33380358e-06},
     1.25,
     0.10124612961325218},
    {"truncate false",
     50000,
     1,
     true,
     4,
     32,
     1,
     256,
     false,
     1,
     1,
     0,
     {1, 0.196431324, 0.0312244253, 0.00432340835, 0.00111803399, 0.000289123742, 7.47674391e-05, 7.01153033e-06},
     1,
     0.093565167597512156},
    {"default",
     10000,
     1,
     false,
     1,
     32,
     1,
     0,
     true,
     0,
     0,
     0,
     {1, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000133352143},
     1,
     0.072168783648703216},
    {"linear",
     10000,
     4,
     false,
     1,
     32,
     1,
     0,
     true,
     0,
     0,
     0,
     {0.25, 0.0790569415, 0.025, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 3.33380358e-05},
     1,
     0.072168783648703216},
    {"linear with mscale_all_dim: its factor counts in the softmax scale",
     10000,
     4,
     false,
     1,
     32,
     1,
     0,
     true,
     0,
     1,
     0,
     {0.25, 0.0790569415, 0.025, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 3.33380358e-05},
     1,
     0.093565167597512156},
};

static void test_cases(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const rope_case *t = &cases[i];
        pz_hf_config c = {.nope = 128,
                          .rope = 64,
                          .rope_theta = t->theta,
                          .rope_linear = t->linear,
                          .yarn = t->yarn,
                          .yarn_factor = t->factor,
                          .yarn_beta_fast = t->beta_fast,
                          .yarn_beta_slow = t->beta_slow,
                          .yarn_original = t->original,
                          .yarn_truncate = t->truncate,
                          .yarn_mscale = t->mscale,
                          .yarn_mscale_all_dim = t->mscale_all_dim,
                          .yarn_attention_factor = t->attention_factor};
        float freq[32];
        pz_rope_frequencies(&c, freq);
        for (int p = 0; p < N_PAIRS; p++)
            if (!(fabs((double)freq[pairs[p]] / t->freq[p] - 1) < 2e-7))
                fail_msg("%s: pair %d is %.9g, expected %.9g", t->name, pairs[p], (double)freq[pairs[p]], t->freq[p]);
        if (!(fabs(pz_rope_cos_scale(&c) / t->cos_scale - 1) < 1e-14))
            fail_msg("%s: cos scale %.17g, expected %.17g", t->name, pz_rope_cos_scale(&c), t->cos_scale);
        if (!(fabs(pz_softmax_scale(&c) / t->softmax_scale - 1) < 1e-14))
            fail_msg("%s: softmax scale %.17g, expected %.17g", t->name, pz_softmax_scale(&c), t->softmax_scale);
    }
}

/* Whatever the configuration lets through, the frequencies are numbers between 0 and 1. */
static void test_extremes(void **state) {
    (void)state;
    static const double thetas[] = {1.001, 2, 1e12}, factors[] = {1, 1.5, 1e6}, betas[] = {1e-3, 1, 1e6};
    static const int64_t originals[] = {1, 4096, 1 << 30}, dims[] = {2, 64, 4096};
    float *freq = calloc(2048, sizeof *freq);
    assert_non_null(freq);
    for (int i = 0; i < 3 * 3 * 3 * 3 * 3 * 3; i++) {
        pz_hf_config c = {.nope = 128,
                          .rope = dims[i % 3],
                          .rope_theta = thetas[i / 3 % 3],
                          .rope_linear = 1,
                          .yarn = true,
                          .yarn_factor = factors[i / 9 % 3],
                          .yarn_beta_fast = betas[i / 27 % 3],
                          .yarn_beta_slow = betas[i / 81 % 3],
                          .yarn_original = originals[i / 243 % 3],
                          .yarn_truncate = true};
        pz_rope_frequencies(&c, freq);
        for (int64_t p = 0; p < c.rope / 2; p++) assert_true(freq[p] >= 0 && freq[p] <= 1);
    }
    free(freq);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
