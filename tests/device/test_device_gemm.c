/* SPDX-License-Identifier: Apache-2.0 */
/* pz_gemm and pz_weight_norms against float64: shapes, strides, strategies, accumulators, families, special values. */
#include "lab.h"

/* The references of the GPU's lab are those of the host's, bit by bit where nothing but additions in one order is
 * involved, and its comparison finds an element that is off. */
static void test_lab(void **state) {
    (void)state;
    lab gpu, host;
    lab_gpu(&gpu);
    lab_host(&host);
    gemm_spec s = {.m = 5, .n = 37, .k = 400, .pad_x = 8, .seed = 3};
    gemm_problem a, b;
    gemm_problem_open(&a, &gpu, &s);
    gemm_problem_open(&b, &host, &s);
    enum { N = 5 * 37 };
    double sum[N], squares[N];
    float norms[37];
    gpu.get(&gpu, sum, a.sum, sizeof sum);
    gpu.get(&gpu, squares, a.squares, sizeof squares);
    gpu.get(&gpu, norms, a.w_norm, sizeof norms);
    for (int i = 0; i < N; i++) {
        assert_true(fabs(sum[i] - b.sum[i]) <= 1e-13 * b.abs[i]);
        assert_true(fabs(squares[i] - b.squares[i]) <= 1e-12 * b.squares[i]);
    }
    assert_memory_equal(norms, b.w_norm, sizeof norms);

    float *y = (float *)(void *)(a.y + a.y_begin), off = (float)sum[40] * 1.01f, all[N];
    for (int i = 0; i < N; i++) all[i] = (float)sum[i];
    gpu.put(&gpu, y, all, sizeof all);
    elem_check check = {{y, 37, PZ_ELEM_F32, NULL, NULL}, a.sum,  a.abs, a.squares, 37,
                        {PZ_ACCUM_F32, 0, 0, 400, 128},   a.wrong};
    lab_check(&gpu, check, N, NULL);
    assert_int_equal(lab_result_get(&gpu, a.wrong).wrong, 0);
    gpu.put(&gpu, y + 40, &off, sizeof off);
    lab_check(&gpu, check, N, NULL);
    assert_int_equal(lab_result_get(&gpu, a.wrong).wrong, 1);
    assert_int_equal(lab_result_get(&gpu, a.wrong).first, 40);
    gemm_problem_close(&a);
    gemm_problem_close(&b);
}

LAB_TEST(test_weight_norms, suite_weight_norms(&l))
LAB_TEST(test_arguments, suite_gemm_arguments(&l))
LAB_TEST(test_extremes, suite_gemm_extremes(&l))
LAB_TEST(test_exact, suite_gemm_exact(&l))
LAB_TEST(test_special, suite_gemm_special(&l))
LAB_TEST(test_random, suite_gemm_random(&l))

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {lab_test(test_lab),      lab_test(test_weight_norms), lab_test(test_arguments),
                                       lab_test(test_extremes), lab_test(test_exact),        lab_test(test_special),
                                       lab_test(test_random)};
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
