/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend an engine runs on, by the name of a device. */
#include <stdio.h>

#include "base/knobs.h"
#include "engine/session.h"

/* "cpu", "cuda", "cuda:N", "auto" */
typedef struct choice {
    bool cuda, or_cpu;
    int number;
} choice;

static pz_status read_choice(const char *word, choice *out, pz_error *err) {
    *out = (choice){0};
    const char *what = "the option";
    if (!word) {
        what = pz_knob_info(PZ_KNOB_DEVICE)->env;
        PZ_TRY(pz_knob_text(PZ_KNOB_DEVICE, &word, err));
    }
    if (pz_streq(word, "cpu")) return PZ_OK;
    out->or_cpu = pz_streq(word, "auto");
    out->cuda = true;
    if (out->or_cpu || pz_streq(word, "cuda")) return PZ_OK;
    const char *digits = strncmp(word, "cuda:", 5) == 0 ? word + 5 : "";
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 4 || digits[n])
        return pz_fail(err, PZ_E_INVAL, "device \"%.40s\" (%s): must be cpu, cuda, cuda:N or auto", word, what);
    out->number = (int)strtol(digits, NULL, 10);
    return PZ_OK;
}

static pz_status open_cuda(pz_engine *e, const choice *c, pz_error *err) {
    pz_backend_options o = {.device = c->number};
    PZ_TRY(pz_knob_bool(PZ_KNOB_EAGER, &o.eager, err));
    PZ_TRY(pz_knob_bool(PZ_KNOB_CHECK, &o.check, err));
    PZ_TRY(pz_knob_bool(PZ_KNOB_NVTX, &o.ranges, err));
    pz_status st = pz_backend_cuda(&e->api, err);
    if (st == PZ_OK) st = e->api->open(&o, &e->backend, err);
    if (st != PZ_OK) return pz_fail_context(err, st, "device cuda:%d", c->number);
    snprintf(e->device_name, sizeof e->device_name, "cuda:%d (%s)", c->number, e->api->product(e->backend));
    return PZ_OK;
}

static pz_status open_cpu(pz_engine *e, int threads, pz_error *err) {
    pz_backend_options o = {.threads = threads};
    PZ_TRY(pz_knob_text(PZ_KNOB_ISA, &o.isa, err));
    e->api = pz_backend_cpu();
    snprintf(e->device_name, sizeof e->device_name, "cpu");
    return e->api->open(&o, &e->backend, err);
}

pz_status pz_engine_open_device(pz_engine *e, const char *word, int threads, pz_error *err) {
    choice c;
    PZ_TRY(read_choice(word, &c, err));
    pz_status st = c.cuda ? open_cuda(e, &c, err) : PZ_E_UNSUPPORTED;
    if (!c.cuda || (c.or_cpu && st == PZ_E_UNSUPPORTED)) st = open_cpu(e, threads, err);
    PZ_TRY(st);
    e->api->device(e->backend, &e->device);
    PZ_TRY(pz_tuned_open(&e->device, &e->tuned, err));
    pz_device_tune(&e->device, e->tuned);
    return PZ_OK;
}
