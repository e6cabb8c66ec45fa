/* SPDX-License-Identifier: Apache-2.0 */
/* Tuned tables: what is accepted prints as a table that reads back the same, has only rows that a plan can take, and
 * finds each of them. */
#include <math.h>

#include "fuzz.h"
#include "plan/donor.h"
#include "plan/tuned.h"

static pz_tuned *parse(const char *text, size_t size, const pz_device *dev) {
    pz_tuned *t = NULL;
    pz_error err = {0};
    pz_status st = pz_tuned_parse(text, size, "tuned.json", dev, &t, &err);
    FUZZ_CHECK((st == PZ_OK) == (t != NULL), "status %d", st);
    FUZZ_CHECK(st == PZ_OK || (err.msg[0] && st == PZ_E_FORMAT), "status %d: %s", st, err.msg);
    return t;
}

static void check_row(const pz_tuned *t, const pz_tuned_row *r) {
    FUZZ_CHECK(pz_tuned_exact(t, &r->shape) == r, "a row that is not found");
    FUZZ_CHECK(r->on.strategy == PZ_ZERO_PREZERO || r->on.strategy == PZ_ZERO_NONE, "on %d", (int)r->on.strategy);
    FUZZ_CHECK(r->off.strategy != PZ_ZERO_PREZERO, "off %d", (int)r->off.strategy);
    const pz_gemm_choice *c[] = {&r->on, &r->off};
    for (int i = 0; i < 2; i++) {
        FUZZ_CHECK((c[i]->config.split == 1) == (c[i]->strategy == PZ_ZERO_NONE), "split %d", c[i]->config.split);
        FUZZ_CHECK(c[i]->us > 0 && isfinite(c[i]->us), "us %g", c[i]->us);
        FUZZ_CHECK(c[i]->config.family != PZ_GEMM_DEFAULT, "family");
    }
}

static void check_collective(const pz_tuned *t, const pz_tuned_collective *c) {
    FUZZ_CHECK(pz_tuned_collective_exact(t, c->ranks, c->hidden) == c, "a collective that is not found");
    FUZZ_CHECK(c->ranks >= 2 && c->one_shot >= 1 && c->one_shot <= PZ_GROUP_ROWS, "%d ranks, %d rows", c->ranks,
               c->one_shot);
    FUZZ_CHECK(isfinite(c->ar_base) && isfinite(c->ar_row) && isfinite(c->rider), "times");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pz_device dev;
    pz_error err;
    FUZZ_CHECK(pz_device_find("h200", 0, &dev, &err) == PZ_OK, "%s", err.msg);
    pz_tuned *t = parse((const char *)data, size, &dev);
    if (!t) return 0;
    FUZZ_CHECK(t->stale == 0 || t->rows.n == 0, "%d rows beside stale ones", t->rows.n);
    for (int i = 0; i < t->rows.n; i++) check_row(t, &t->rows.at[i]);
    for (int i = 0; i < t->collectives.n; i++) check_collective(t, &t->collectives.at[i]);
    pz_device_tune(&dev, t);
    FUZZ_CHECK(dev.gate.fill > 0 && dev.gate.handshake >= 0, "constants of the gate");
    char *first, *second;
    FUZZ_CHECK(pz_tuned_text(t, &first, &err) == PZ_OK, "%s", err.msg);
    pz_tuned *again = parse(first, strlen(first), &dev);
    FUZZ_CHECK(again, "what is printed is not read:\n%s", first);
    FUZZ_CHECK(pz_tuned_text(again, &second, &err) == PZ_OK, "%s", err.msg);
    FUZZ_CHECK(strcmp(first, second) == 0, "printed\n%s\nand then\n%s", first, second);
    pz_free(first);
    pz_free(second);
    pz_tuned_free(again);
    pz_tuned_free(t);
    return 0;
}
