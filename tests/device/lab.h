/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's lab: memory of device 0, the work of support_elem.h as kernels, and the public kernels under test. */
#ifndef PZ_TEST_DEVICE_LAB_H
#define PZ_TEST_DEVICE_LAB_H

#include "support_lab.h"

enum { LAB_SKIPPED = 77 };

void lab_gpu(lab *l);

/* Whether the program was called with --small. */
bool lab_small(void);

/* A time-out of ranks: `ms`, or longer by the factor of --patience. */
int lab_timeout_ms(int ms);

/* A test with its time printed, and a watchdog that ends the program when it takes too long: a kernel that hangs is a
 * failure. */
#define lab_test(fn) cmocka_unit_test_setup_teardown(fn, lab_begin, lab_end)
int lab_begin(void **state);
int lab_end(void **state);

/* Command line: --small for few and small shapes, --filter PATTERN for tests by name, --patience N for tools that make
 * kernels slow: ranks wait N times as long for each other. LAB_SKIPPED without a GPU;
 * a failure where there is one and the kernels cannot be loaded. */
int lab_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n);

/* Defines a test that runs `call` on the lab `l` and fails if that counts a fault. */
#define LAB_TEST(name, call)           \
    static void name(void **state) {   \
        (void)state;                   \
        lab l;                         \
        lab_gpu(&l);                   \
        call;                          \
        assert_int_equal(l.faults, 0); \
    }

#endif
