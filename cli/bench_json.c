/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that was measured, samples included, as JSON. */
#include "bench.h"

json_t *bench_times_json(const pz_measure_times *t, bool samples) {
    if (t->n < 1) return json_null();
    json_t *v = json_pack("{s:f, s:[f,f]}", "us", t->us, "ci95_us", t->lo, t->hi);
    if (!samples) return v;
    json_t *list = json_array();
    for (int i = 0; i < t->n; i++) json_array_append_new(list, json_real(t->samples[i]));
    json_object_set_new(v, "samples_us", list);
    return v;
}

json_t *bench_device_json(const pz_measure_device *d) {
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:f}", "product", d->product, "sms", d->units, "sm",
                     d->sm, "driver", d->driver, "runtime", d->runtime, "cublaslt", (json_int_t)d->cublaslt, "l2_bytes",
                     (json_int_t)d->l2_bytes, "memory_bytes", (json_int_t)d->memory_bytes, "copy_gbs", d->copy_gbs);
}

static const char *const families[] = {
#define NAME(id, text) text,
    PZ_GEMM_FAMILY_TABLE(NAME)
#undef NAME
};

static json_t *config_json(const pz_measure_case *c) {
    const pz_gemm_config *g = &c->used;
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "family", families[g->family], "name", c->name,
                     "tile_n", g->tile_n, "split", g->split, "warps", g->warps, "stages", g->stages, "depth", g->depth,
                     "tried", c->tried);
}

static json_t *case_json(const pz_measure_case *c, int m) {
    bool rival = c->config.family == PZ_GEMM_CUBLASLT;
    json_t *v = json_pack("{s:i, s:s, s:s}", "m", m, rival ? "output" : "accum", bench_accums[c->accum], "strategy",
                          rival ? "cublaslt" : bench_strategies[c->strategy]);
    if (!bench_measured(c)) {
        json_object_set_new(v, "status", json_string(pz_status_name(c->status)));
        json_object_set_new(v, "message", json_string(c->message));
        return v;
    }
    json_object_set_new(v, "config", config_json(c));
    json_object_set_new(v, "gemm", bench_times_json(&c->gemm, true));
    json_object_set_new(v, "pair", bench_times_json(&c->pair, true));
    json_object_set_new(v, "gbs", json_real(c->gbs));
    json_object_set_new(v, "max_error", json_real(c->max_error));
    return v;
}

/* The paired difference of the next best strategy and the best, for each accumulator. */
static void add_winners(json_t *list, const bench_gemm *b, int shape, int batch) {
    for (int a = 0; a < b->n_accums; a++) {
        const pz_measure_case *second, *best = bench_best(b, shape, batch, a, &second),
                                       *rival = bench_cublaslt(b, shape, batch);
        pz_measure_times d;
        if (!best) continue;
        json_t *v = json_pack("{s:i, s:s, s:s, s:f}", "m", b->batches.at[batch], "accum", bench_accums[b->accums[a]],
                              "strategy", bench_strategies[best->strategy], "us", best->gemm.us);
        if (second && pz_measure_difference(&best->gemm, &second->gemm, &d, NULL) == PZ_OK) {
            json_object_set_new(v, "before", json_string(bench_strategies[second->strategy]));
            json_object_set_new(v, "by", bench_times_json(&d, false));
        }
        if (bench_measured(rival) && rival->gemm.us > 0)
            json_object_set_new(v, "to_cublaslt", json_real(best->gemm.us / rival->gemm.us));
        if (b->device.copy_gbs > 0) json_object_set_new(v, "of_copy", json_real(best->gbs / b->device.copy_gbs));
        json_array_append_new(list, v);
    }
}

static json_t *shape_json(const bench_gemm *b, int shape) {
    const bench_shape *s = &b->shapes[shape];
    json_t *norms = json_array(), *cases = json_array(), *winners = json_array();
    for (int m = 0; m < b->batches.n; m++) {
        json_t *norm = bench_times_json(&b->norms[shape * b->batches.n + m], true);
        json_object_set_new(norm, "m", json_integer(b->batches.at[m]));
        json_array_append_new(norms, norm);
        for (int i = 0; i < bench_cases(b); i++)
            json_array_append_new(cases, case_json(bench_case(b, shape, m, 0, 0) + i, b->batches.at[m]));
        add_winners(winners, b, shape, m);
    }
    return json_pack("{s:s, s:i, s:i, s:f, s:o, s:o, s:o}", "name", s->name, "n", s->n, "k", s->k, "floor_us",
                     bench_floor_us(s), "norms", norms, "cases", cases, "best", winners);
}

static json_t *sums_json(const bench_gemm *b) {
    json_t *list = json_array();
    for (int a = 0; a < b->n_accums; a++)
        for (int m = 0; m < b->batches.n; m++) {
            bench_sum s = bench_sum_of(b, m, a);
            if (!s.measured) continue;
            json_t *v = json_pack("{s:i, s:s, s:f, s:f}", "m", b->batches.at[m], "accum", bench_accums[b->accums[a]],
                                  "best_us", s.best_us, "floor_us", s.floor_us);
            if (s.rival) json_object_set_new(v, "cublaslt_us", json_real(s.rival_us));
            json_array_append_new(list, v);
        }
    return list;
}

json_t *bench_json(const bench_gemm *b) {
    json_t *shapes = json_array();
    for (int s = 0; s < b->measured; s++) json_array_append_new(shapes, shape_json(b, s));
    return json_pack("{s:s, s:s, s:o, s:b, s:b, s:b, s:b, s:f, s:i, s:o, s:o}", "command", b->command, "version",
                     pz_version(), "device", bench_device_json(&b->device), "quick", b->quick, "search", b->search,
                     "serial", b->serial, "late", b->late, "floor_gbs", BENCH_FLOOR_BYTES_PER_US * 1e-3, "wrong",
                     bench_wrong(b), "shapes", shapes, "sums", sums_json(b));
}

static json_t *norm_case_json(const bench_norm *b, int batch, int i) {
    const pz_measure_norm_case *c = &b->cases[batch * BENCH_NORMS + i];
    json_t *v = json_pack("{s:i, s:s, s:I, s:b, s:b, s:b, s:b, s:b}", "m", b->batches.at[batch], "name",
                          bench_norm_names[i], "zero_bytes", (json_int_t)c->zero_bytes, "late", c->late, "serial",
                          c->serial, "x_norm", c->x_norm, "gemm", c->gemm, "shared", c->shared);
    if (c->status == PZ_OK) {
        json_object_set_new(v, "norm", bench_times_json(&c->norm, true));
        json_object_set_new(v, "added", bench_times_json(&c->added, true));
    } else {
        json_object_set_new(v, "status", json_string(pz_status_name(c->status)));
        json_object_set_new(v, "message", json_string(c->message));
    }
    return v;
}

json_t *bench_norm_json(const bench_norm *b) {
    json_t *cases = json_array();
    for (int m = 0; m < b->batches.n; m++)
        for (int i = 0; i < BENCH_NORMS; i++) json_array_append_new(cases, norm_case_json(b, m, i));
    return json_pack("{s:s, s:s, s:o, s:b, s:i, s:i, s:i, s:i, s:o}", "command", b->command, "version", pz_version(),
                     "device", bench_device_json(&b->device), "quick", b->quick, "hidden", b->hidden, "gemm_n",
                     b->gemm_n, "rider_bytes_per_row", b->rider, "wrong", bench_norm_wrong(b), "cases", cases);
}
