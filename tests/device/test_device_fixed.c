/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed-point accumulator gives a row the same bits in every run, family, geometry, strategy and batch. */
#include "lab.h"

LAB_TEST(test_repeat, suite_fixed_repeat(&l))
LAB_TEST(test_configs, suite_fixed_configs(&l))
LAB_TEST(test_batches, suite_fixed_batches(&l))
LAB_TEST(test_sums, suite_fixed_sums(&l))
LAB_TEST(test_edges, suite_fixed_edges(&l))

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {lab_test(test_repeat), lab_test(test_configs), lab_test(test_batches),
                                       lab_test(test_sums), lab_test(test_edges)};
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
