/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduces: what is measured, and the results as text and JSON. */
#include "bench.h"

#include <string.h>

static const char *const names[BENCH_REDUCES] = {
#define NAME(name, kind, rider, serial) name,
    BENCH_REDUCE_TABLE(NAME)
#undef NAME
};
static const char *const kinds[] = {
#define KIND(id, text) text,
    PZ_REDUCE_TABLE(KIND)
#undef KIND
};

static size_t rider_bytes(const bench_reduce *b, int batch) {
    return ((size_t)b->rider * (size_t)b->batches.at[batch] + 15) / 16 * 16;
}

void bench_reduce_cases(const bench_reduce *b, int batch, pz_measure_reduce_case *out) {
    static const pz_measure_reduce_case cases[BENCH_REDUCES] = {
#define CASE(name, id, rider, is_serial) {.kind = PZ_REDUCE_##id, .zero_bytes = rider, .serial = is_serial},
        BENCH_REDUCE_TABLE(CASE)
#undef CASE
    };
    memcpy(out, cases, sizeof cases);
    for (int i = 0; i < BENCH_REDUCES; i++) out[i].zero_bytes *= rider_bytes(b, batch);
}

int bench_reduce_wrong(const bench_reduce *b) {
    int wrong = 0;
    for (int i = 0; i < b->batches.n * BENCH_REDUCES; i++) wrong += b->cases[i].status == PZ_E_VERIFY;
    return wrong;
}

/* How many times longer than the fused kernel, and how much. */
static void put_against(FILE *f, const pz_measure_reduce_case *fused, const pz_measure_reduce_case *c) {
    pz_measure_times d;
    if (c == fused || fused->times.n < 1 || pz_measure_difference(&fused->times, &c->times, &d, NULL) != PZ_OK) return;
    fprintf(f, "   %5.2f x   %+7.2f [%+.2f, %+.2f]", c->times.us / fused->times.us, d.us, d.lo, d.hi);
}

static const pz_measure_reduce_case *find(const pz_measure_reduce_case *cases, pz_reduce_kind kind, int serial) {
    for (int i = 0; i < BENCH_REDUCES; i++)
        if (cases[i].kind == kind && cases[i].serial == serial) return &cases[i];
    return NULL;
}

/* What it hides that the GEMM is launched before the all-reduce has ended. False: it was not measured. */
static bool hidden_us(const bench_reduce *b, int batch, pz_measure_times *out) {
    const pz_measure_reduce_case *cases = b->cases + batch * BENCH_REDUCES;
    const pz_measure_reduce_case *early = find(cases, PZ_REDUCE_FUSED_GEMM, 0),
                                 *late = find(cases, PZ_REDUCE_FUSED_GEMM, 1);
    return early && late && early->status == PZ_OK && late->status == PZ_OK && early->times.n > 0 &&
           pz_measure_difference(&early->times, &late->times, out, NULL) == PZ_OK;
}

void bench_reduce_text(FILE *f, const bench_reduce *b) {
    bench_device_text(f, &b->device);
    fprintf(f,
            "%d ranks; us of one link of a captured chain, rows of %d in bf16; median [95 %% interval]%s; then against "
            "the first line: ratio and difference\n",
            b->ranks, b->hidden, b->quick ? " (quick: 3 samples, the whole range)" : "");
    for (int m = 0; m < b->batches.n; m++) {
        const pz_measure_reduce_case *cases = b->cases + m * BENCH_REDUCES;
        fprintf(f, "\nm %d, rider of %zu bytes\n", b->batches.at[m], rider_bytes(b, m));
        for (int i = 0; i < BENCH_REDUCES; i++) {
            const pz_measure_reduce_case *c = &cases[i];
            fprintf(f, "  %-24s", names[i]);
            if (c->status == PZ_OK) {
                fprintf(f, " %7.2f [%.2f, %.2f]", c->times.us, c->times.lo, c->times.hi);
                put_against(f, &cases[0], c);
            } else {
                fprintf(f, " %s", c->message);
            }
            fputc('\n', f);
        }
        pz_measure_times d;
        if (hidden_us(b, m, &d))
            fprintf(f, "  launching the GEMM (%d x %d) early hides %.2f us [%.2f, %.2f]\n", b->gemm_n, b->hidden, d.us,
                    d.lo, d.hi);
    }
}

static json_t *case_json(const bench_reduce *b, int batch, int i) {
    const pz_measure_reduce_case *c = &b->cases[batch * BENCH_REDUCES + i];
    json_t *v = json_pack("{s:i, s:s, s:s, s:I, s:b}", "m", b->batches.at[batch], "name", names[i], "kind",
                          kinds[c->kind], "zero_bytes", (json_int_t)c->zero_bytes, "serial", c->serial);
    if (c->status == PZ_OK) {
        json_object_set_new(v, "link", bench_times_json(&c->times, true));
    } else {
        json_object_set_new(v, "status", json_string(pz_status_name(c->status)));
        json_object_set_new(v, "message", json_string(c->message));
    }
    return v;
}

json_t *bench_reduce_json(const bench_reduce *b) {
    json_t *cases = json_array(), *hidden = json_array();
    for (int m = 0; m < b->batches.n; m++) {
        pz_measure_times d;
        for (int i = 0; i < BENCH_REDUCES; i++) json_array_append_new(cases, case_json(b, m, i));
        if (hidden_us(b, m, &d))
            json_array_append_new(
                hidden, json_pack("{s:i, s:o}", "m", b->batches.at[m], "hidden", bench_times_json(&d, false)));
    }
    return json_pack("{s:s, s:s, s:o, s:b, s:i, s:i, s:i, s:i, s:i, s:o, s:o}", "command", b->command, "version",
                     pz_version(), "device", bench_device_json(&b->device), "quick", b->quick, "ranks", b->ranks,
                     "hidden", b->hidden, "rider_bytes_per_row", b->rider, "wrong", bench_reduce_wrong(b), "gemm_n",
                     b->gemm_n, "cases", cases, "gemm_launched_early", hidden);
}
