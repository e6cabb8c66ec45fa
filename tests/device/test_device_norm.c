/* SPDX-License-Identifier: Apache-2.0 */
/* pz_rms_norm against float64: elements, residuals, x_norm, riders. */
#include "lab.h"

LAB_TEST(test_arguments, suite_norm_arguments(&l))
LAB_TEST(test_special, suite_norm_special(&l))
LAB_TEST(test_random, suite_norm_random(&l))

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {lab_test(test_arguments), lab_test(test_special), lab_test(test_random)};
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
