/* SPDX-License-Identifier: Apache-2.0 */
/* Captured chains of norms and GEMMs with changing inputs: every value of every replay is compared on the device. */
#include "lab.h"

/* `replays` of the full run; with --small a few of a small chain. */
static void replay(lab *l, int replays, chain_options o) {
    o.kimi = !l->small;
    o.layers = l->small ? 3 : 8;
    suite_chain_replay(l, &o, l->small ? 5 : replays);
}

static int count(const lab *l, int replays) {
    return l->small ? 5 : replays;
}

LAB_TEST(test_control, suite_chain_control(&l))
LAB_TEST(test_prezero,
         replay(&l, 100000, (chain_options){.m = 4, .strategy = PZ_ZERO_PREZERO, .dependent = 1, .seed = 1}))
LAB_TEST(test_prezero_late,
         replay(&l, 10000, (chain_options){.m = 1, .strategy = PZ_ZERO_PREZERO, .dependent = 1, .late = 1, .seed = 2}))
LAB_TEST(test_prezero_shared,
         replay(&l, 10000,
                (chain_options){.m = 16, .strategy = PZ_ZERO_PREZERO, .dependent = 1, .shared = 1, .seed = 3}))
LAB_TEST(test_prezero_serial, replay(&l, 2000, (chain_options){.m = 3, .strategy = PZ_ZERO_PREZERO, .seed = 4}))
LAB_TEST(test_prezero_wide,
         replay(&l, 2000,
                (chain_options){.m = 100, .strategy = PZ_ZERO_PREZERO, .dependent = 1, .shared = 1, .seed = 5}))
LAB_TEST(test_self, replay(&l, 5000, (chain_options){.m = 5, .strategy = PZ_ZERO_SELF, .dependent = 1, .seed = 6}))
LAB_TEST(test_ticket, replay(&l, 5000, (chain_options){.m = 6, .strategy = PZ_ZERO_TICKET, .dependent = 1, .seed = 7}))
LAB_TEST(test_reduce, replay(&l, 5000, (chain_options){.m = 7, .strategy = PZ_ZERO_REDUCE, .dependent = 1, .seed = 8}))
LAB_TEST(test_memset, replay(&l, 5000, (chain_options){.m = 8, .strategy = PZ_ZERO_MEMSET, .dependent = 1, .seed = 9}))
LAB_TEST(test_none, replay(&l, 5000, (chain_options){.m = 9, .strategy = PZ_ZERO_NONE, .dependent = 1, .seed = 10}))
LAB_TEST(test_streams, suite_chain_streams(&l, count(&l, 5000)))
LAB_TEST(test_alternate, suite_chain_alternate(&l, count(&l, 10000)))
LAB_TEST(test_other_stream, suite_chain_other_stream(&l, count(&l, 5000)))
LAB_TEST(test_occupied, suite_chain_occupied(&l, count(&l, 1000)))

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        lab_test(test_control),        lab_test(test_prezero),        lab_test(test_prezero_late),
        lab_test(test_prezero_shared), lab_test(test_prezero_serial), lab_test(test_prezero_wide),
        lab_test(test_self),           lab_test(test_ticket),         lab_test(test_reduce),
        lab_test(test_memset),         lab_test(test_none),           lab_test(test_streams),
        lab_test(test_alternate),      lab_test(test_other_stream),   lab_test(test_occupied)};
    return lab_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
