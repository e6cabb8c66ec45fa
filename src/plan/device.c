/* SPDX-License-Identifier: Apache-2.0 */
#include "base/par.h"
#include "plan/cost.h"
#include "plan/tuned.h"

static const pz_device devices[] = {
#define DEVICE(name_, sm_, units_, gemm_units_, tile_n_, min_k_, bandwidth_, ...) \
    {.name = name_,                                                               \
     .gpu = sm_ > 0,                                                              \
     .sm = sm_,                                                                   \
     .units = units_,                                                             \
     .gemm_units = gemm_units_,                                                   \
     .tile_n = tile_n_,                                                           \
     .min_k = min_k_,                                                             \
     .bandwidth = bandwidth_,                                                     \
     .gate = {__VA_ARGS__, 0}},
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

void pz_device_gpu(const char *product, int sm, int units, pz_device *out) {
    char name[PZ_DEVICE_NAME];
    size_t n = 0;
    if (strncmp(product, "NVIDIA ", 7) == 0) product += 7;
    for (const char *s = product; *s && n + 1 < sizeof name; s++) {
        bool word = (*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z');
        if (word)
            name[n++] = *s >= 'A' && *s <= 'Z' ? (char)(*s - 'A' + 'a') : *s;
        else if (n && name[n - 1] != '-')
            name[n++] = '-';
    }
    name[n] = 0;
    *out = devices[0];
    for (int i = 0; i < N_DEVICES; i++)
        if (devices[i].gpu && pz_streq(devices[i].name, name)) *out = devices[i];
    memcpy(out->name, n ? name : "gpu", n ? n + 1 : sizeof "gpu");
    out->sm = sm;
    if (units > 0) out->units = units;
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

bool pz_strategy_option(const char *word, int *out) {
    pz_strategy s;
    if (pz_streq(word, "auto")) {
        *out = PZ_STRATEGY_AUTO;
        return true;
    }
    if (!pz_strategy_from_text(word, &s)) return false;
    *out = (int)s;
    return true;
}

pz_gemm_choices pz_gemm_choose(const pz_device *dev, const pz_gemm_shape *shape) {
    if (!dev->gpu) {
        pz_gemm_config c = pz_gemm_configure(dev, shape->n, shape->k, shape->weight);
        pz_gemm_choices plain = {.on = {.strategy = c.split > 1 ? PZ_ZERO_PREZERO : PZ_ZERO_NONE, .config = c},
                                 .off = {.strategy = c.split > 1 ? PZ_ZERO_SELF : PZ_ZERO_NONE, .config = c}};
        return plain;
    }
    pz_gemm_shape s = *shape;
    s.weight = PZ_DT_BF16; /* the kernels read bf16, whatever the checkpoint has */
    const pz_tuned_row *row = dev->tuned ? pz_tuned_find(dev->tuned, &s) : NULL;
    if (!row) return pz_gemm_model(dev, &s);
    return (pz_gemm_choices){.on = row->on, .off = row->off, .tuned = true};
}

static const char *const families[] = {
#define PZ_FAMILY_ROW(id, text) text,
    PZ_GEMM_FAMILY_TABLE(PZ_FAMILY_ROW)
#undef PZ_FAMILY_ROW
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

const char *pz_gemm_family_text(int family) {
    return family >= 0 && family < N_FAMILIES ? families[family] : "unknown";
}

bool pz_gemm_family_from_text(const char *s, int *out) {
    for (int i = 0; i < N_FAMILIES; i++) {
        if (!pz_streq(families[i], s)) continue;
        *out = i;
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
