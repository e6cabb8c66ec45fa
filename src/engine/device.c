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

/* All ranks or none: another device may be tried after this one. */
static pz_status open_all(pz_engine *e, pz_backend_options o, pz_error *err) {
    if (e->tp > 1 && e->tp > e->api->max_ranks)
        return pz_fail(err, PZ_E_UNSUPPORTED, "tp %d: the %s backend runs at most %d rank%s", e->tp, e->api->name,
                       e->api->max_ranks ? e->api->max_ranks : 1, e->api->max_ranks > 1 ? "s" : "");
    pz_status st = PZ_OK;
    int n = 0;
    for (; n < e->tp && st == PZ_OK; n++) {
        o.comm = e->group ? pz_group_comm(e->group, n) : NULL;
        st = e->api->open(&o, &e->rank[n].backend, err);
        o.device++;
    }
    for (int r = 0; r < n && st != PZ_OK; r++) {
        if (e->rank[r].backend) e->api->close(e->rank[r].backend);
        e->rank[r].backend = NULL;
    }
    return st;
}

static pz_status open_cuda(pz_engine *e, const choice *c, pz_error *err) {
    pz_backend_options o = {.device = c->number};
    PZ_TRY(pz_knob_bool(PZ_KNOB_EAGER, &o.eager, err));
    PZ_TRY(pz_knob_bool(PZ_KNOB_CHECK, &o.check, err));
    PZ_TRY(pz_knob_bool(PZ_KNOB_NVTX, &o.ranges, err));
    PZ_TRY(pz_knob_bool(PZ_KNOB_SHARE_DEVICE, &o.share_device, err));
    PZ_TRY(pz_knob_bool(PZ_KNOB_NCCL, &o.nccl, err));
    pz_status st = pz_backend_cuda(&e->api, err);
    if (st == PZ_OK) st = open_all(e, o, err);
    if (st != PZ_OK) return pz_fail_context(err, st, "device cuda:%d", c->number);
    char last[16] = "";
    if (e->tp > 1) snprintf(last, sizeof last, "-%d", c->number + e->tp - 1);
    snprintf(e->device_name, sizeof e->device_name, "cuda:%d%s (%s)", c->number, last,
             e->api->product(e->rank[0].backend));
    return PZ_OK;
}

static pz_status open_cpu(pz_engine *e, int threads, pz_error *err) {
    pz_backend_options o = {.threads = threads / e->tp > 1 ? threads / e->tp : 1};
    PZ_TRY(pz_knob_text(PZ_KNOB_ISA, &o.isa, err));
    e->api = pz_backend_cpu();
    snprintf(e->device_name, sizeof e->device_name, "cpu");
    return open_all(e, o, err);
}

pz_status pz_engine_open_device(pz_engine *e, const char *word, int threads, pz_error *err) {
    choice c;
    PZ_TRY(read_choice(word, &c, err));
    pz_status st = c.cuda ? open_cuda(e, &c, err) : PZ_E_UNSUPPORTED;
    if (!c.cuda || (c.or_cpu && st == PZ_E_UNSUPPORTED)) st = open_cpu(e, threads, err);
    PZ_TRY(st);
    e->api->device(e->rank[0].backend, &e->device);
    PZ_TRY(pz_tuned_open(&e->device, &e->tuned, err));
    pz_device_tune(&e->device, e->tuned);
    return pz_device_group(&e->device, e->tp, err);
}
