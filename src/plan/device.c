/* SPDX-License-Identifier: Apache-2.0 */
#include "base/par.h"
#include "plan/plan.h"

static const pz_device devices[] = {
#define DEVICE(name, units, gemm_units, tile_n, min_k, fill, handshake, norm_base, norm_row, ar_base, ar_row) \
    {name, units, gemm_units, tile_n, min_k, fill, handshake, norm_base, norm_row, ar_base, ar_row},
#include "plan/devices.def"
#undef DEVICE
};
enum { N_DEVICES = sizeof devices / sizeof devices[0] };

pz_status pz_device_find(const char *name, int units, pz_device *out, pz_error *err) {
    if (units < 0)
        return pz_fail(err, PZ_E_INVAL, "%d execution units: must be 0 (the device's own number) or more", units);
    for (int i = 0; i < N_DEVICES; i++) {
        if (!pz_streq(devices[i].name, name)) continue;
        *out = devices[i];
        if (units) out->units = units;
        if (!out->units) out->units = pz_par_cpus();
        return PZ_OK;
    }
    pz_str known = {0};
    for (int i = 0; i < N_DEVICES; i++) pz_str_addf(&known, "%s%s", i ? ", " : "", devices[i].name);
    char *list;
    PZ_TRY(pz_str_take(&known, &list, err));
    pz_status st = pz_fail(err, PZ_E_NOTFOUND, "unknown device '%s'; there are: %s", name ? name : "", list);
    pz_free(list);
    return st;
}

static const struct {
    const char *text;
    bool adds;
} strategies[] = {
#define PZ_STRATEGY_ROW(id, text, adds) {text, adds},
    PZ_STRATEGY_TABLE(PZ_STRATEGY_ROW)
#undef PZ_STRATEGY_ROW
};
enum { N_STRATEGIES = sizeof strategies / sizeof strategies[0] };

const char *pz_strategy_text(pz_strategy s) {
    return (unsigned)s < N_STRATEGIES ? strategies[s].text : "unknown";
}

bool pz_strategy_adds(pz_strategy s) {
    return (unsigned)s < N_STRATEGIES && strategies[s].adds;
}

bool pz_strategy_from_text(const char *s, pz_strategy *out) {
    for (int i = 0; i < N_STRATEGIES; i++) {
        if (!pz_streq(strategies[i].text, s)) continue;
        *out = (pz_strategy)i;
        return true;
    }
    return false;
}

pz_gemm_config pz_gemm_configure(const pz_device *dev, int64_t n, int64_t k, pz_dtype weight) {
    pz_gemm_config config = {.tile_n = dev->tile_n, .split = 1};
    if (!pz_dtype_is_act(weight) || n < 1 || k < 1) return config;
    int64_t tiles = (n - 1) / dev->tile_n + 1;
    int64_t want = 2 * (int64_t)dev->gemm_units / tiles, most = k / dev->min_k;
    if (want > most) want = most;
    if (want > 1) config.split = (int)want;
    return config;
}

int64_t pz_split_begin(int64_t k, int split, int s) {
    return s >= split ? k : k / 32 * s / split * 32;
}
