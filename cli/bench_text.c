/* SPDX-License-Identifier: Apache-2.0 */
/* What the results say, and the results as text. */
#include "bench.h"

#include <math.h>
#include <string.h>

/* ---- what the results say ---- */
int bench_cases(const bench_gemm *b) {
    return b->n_accums * b->n_strategies + 1;
}

static pz_measure_case *cell(const bench_gemm *b, int shape, int batch) {
    return b->cases + (size_t)(shape * b->batches.n + batch) * (size_t)bench_cases(b);
}

pz_measure_case *bench_case(const bench_gemm *b, int shape, int batch, int accum, int strategy) {
    return cell(b, shape, batch) + accum * b->n_strategies + strategy;
}

pz_measure_case *bench_cublaslt(const bench_gemm *b, int shape, int batch) {
    return cell(b, shape, batch) + bench_cases(b) - 1;
}

bool bench_measured(const pz_measure_case *c) {
    return c->status == PZ_OK && c->gemm.n > 0;
}

const pz_measure_case *bench_best(const bench_gemm *b, int shape, int batch, int accum,
                                  const pz_measure_case **second) {
    const pz_measure_case *first = NULL, *next = NULL;
    for (int s = 0; s < b->n_strategies; s++) {
        const pz_measure_case *c = bench_case(b, shape, batch, accum, s);
        if (!bench_measured(c)) continue;
        if (!first || c->gemm.us < first->gemm.us) {
            next = first;
            first = c;
        } else if (!next || c->gemm.us < next->gemm.us) {
            next = c;
        }
    }
    if (second) *second = next;
    return first;
}

double bench_floor_us(const bench_shape *s) {
    return 2.0 * s->n * s->k / BENCH_FLOOR_BYTES_PER_US;
}

double bench_half(const pz_measure_times *t) {
    return fmax(t->us - t->lo, t->hi - t->us);
}

int bench_wrong(const bench_gemm *b) {
    int wrong = 0;
    for (int i = 0; i < b->measured * b->batches.n * bench_cases(b); i++) wrong += b->cases[i].status == PZ_E_VERIFY;
    return wrong;
}

bench_sum bench_sum_of(const bench_gemm *b, int batch, int accum) {
    bench_sum sum = {.measured = b->measured == b->n_shapes, .rival = true};
    for (int s = 0; s < b->measured; s++) {
        const pz_measure_case *best = bench_best(b, s, batch, accum, NULL), *rival = bench_cublaslt(b, s, batch);
        if (best)
            sum.best_us += best->gemm.us;
        else
            sum.measured = false;
        if (bench_measured(rival))
            sum.rival_us += rival->gemm.us;
        else
            sum.rival = false;
        sum.floor_us += bench_floor_us(&b->shapes[s]);
    }
    return sum;
}

/* ---- text ---- */
static const char *strategy_name(const pz_measure_case *c) {
    return bench_strategies[c->strategy];
}

void bench_device_text(FILE *f, const pz_measure_device *d) {
    fprintf(f, "%s, %d SMs, sm_%d, CUDA %d.%d (driver %d.%d), cuBLASLt %lld; copies %.0f GB/s (read and written)\n",
            d->product, d->units, d->sm, d->runtime / 1000, d->runtime % 1000 / 10, d->driver / 1000,
            d->driver % 1000 / 10, (long long)d->cublaslt, d->copy_gbs);
}

void bench_text_head(FILE *f, const bench_gemm *b) {
    bench_device_text(f, &b->device);
    fprintf(f,
            "us of [add + RMSNorm, GEMM] in a captured chain minus the norm alone; median, +- half of its 95 %% "
            "interval%s\n%s, %s; cuBLASLt: bf16 output, the fastest of all its heuristics, in the same run\n",
            b->quick ? " (quick: 3 samples, the whole range)" : "",
            b->serial ? "every kernel starts when the one before has ended"
            : b->late ? "programmatic dependent launch, with a rider after its stores"
                      : "programmatic dependent launch",
            b->search ? "the fastest of the geometries that the cost model ranks first"
                      : "geometries as the library chooses them");
}

static void shape_header(FILE *f, const bench_gemm *b, const bench_shape *s, int accum) {
    fprintf(f, "\n%s %d x %d, %s; floor %.2f us\n%5s", s->name, s->n, s->k, bench_accums[b->accums[accum]],
            bench_floor_us(s), "m");
    for (int i = 0; i < b->n_strategies; i++) fprintf(f, " %13s", bench_strategies[b->strategies[i]]);
    fprintf(f, " | %6s %-8s %13s %6s %6s %8s\n", "best", "", "cuBLASLt", "ratio", "GB/s", "of copy");
}

static void put_case(FILE *f, const pz_measure_case *c) {
    char text[40];
    if (bench_measured(c))
        snprintf(text, sizeof text, "%.2f +-%.2f", c->gemm.us, bench_half(&c->gemm));
    else
        snprintf(text, sizeof text, "%s", c->status == PZ_E_VERIFY ? "WRONG" : "-");
    fprintf(f, " %13s", text);
}

static void shape_row(FILE *f, const bench_gemm *b, int shape, int batch, int accum) {
    const pz_measure_case *best = bench_best(b, shape, batch, accum, NULL), *rival = bench_cublaslt(b, shape, batch);
    fprintf(f, "%5d", b->batches.at[batch]);
    for (int i = 0; i < b->n_strategies; i++) put_case(f, bench_case(b, shape, batch, accum, i));
    if (best)
        fprintf(f, " | %6.2f %-8s", best->gemm.us, strategy_name(best));
    else
        fprintf(f, " | %6s %-8s", "-", "");
    put_case(f, rival);
    if (best && bench_measured(rival) && rival->gemm.us > 0)
        fprintf(f, " %6.2f", best->gemm.us / rival->gemm.us);
    else
        fprintf(f, " %6s", "-");
    if (best) fprintf(f, " %6.0f %8.2f", best->gbs, b->device.copy_gbs > 0 ? best->gbs / b->device.copy_gbs : 0);
    fputc('\n', f);
}

/* "0.85 us [0.80, 0.90]" of b - a. */
static void put_difference(FILE *f, const pz_measure_case *a, const pz_measure_case *b) {
    pz_measure_times d;
    if (pz_measure_difference(&a->gemm, &b->gemm, &d, NULL) == PZ_OK)
        fprintf(f, "%.2f us [%.2f, %.2f]", d.us, d.lo, d.hi);
}

/* Which strategy wins and by how much, and what prezero saves over self. */
static void verdict(FILE *f, const bench_gemm *b, int shape, int batch, int accum) {
    const pz_measure_case *second, *best = bench_best(b, shape, batch, accum, &second), *prezero = NULL, *self = NULL;
    if (!best) return;
    fprintf(f, "%5d: %s (%s)", b->batches.at[batch], strategy_name(best), best->name);
    if (second) {
        fprintf(f, ", before %s by ", strategy_name(second));
        put_difference(f, best, second);
    }
    for (int i = 0; i < b->n_strategies; i++) {
        const pz_measure_case *c = bench_case(b, shape, batch, accum, i);
        if (bench_measured(c) && c->strategy == PZ_ZERO_PREZERO) prezero = c;
        if (bench_measured(c) && c->strategy == PZ_ZERO_SELF) self = c;
    }
    if (prezero && self && !(prezero == best && self == second)) {
        fprintf(f, "; self - prezero ");
        put_difference(f, prezero, self);
    }
    fputc('\n', f);
}

static void problems(FILE *f, const bench_gemm *b, int shape, int batch) {
    for (int i = 0; i < bench_cases(b); i++) {
        const pz_measure_case *c = cell(b, shape, batch) + i;
        bool rival = c->config.family == PZ_GEMM_CUBLASLT;
        if (c->status == PZ_OK) continue;
        fprintf(f, "%5d: %s%s%s: %s\n", b->batches.at[batch], rival ? "cuBLASLt" : bench_accums[c->accum],
                rival ? "" : " ", rival ? "" : strategy_name(c), c->message);
    }
}

void bench_text_shape(FILE *f, const bench_gemm *b, int shape) {
    for (int accum = 0; accum < b->n_accums; accum++) {
        shape_header(f, b, &b->shapes[shape], accum);
        for (int i = 0; i < b->batches.n; i++) shape_row(f, b, shape, i, accum);
        for (int i = 0; i < b->batches.n; i++) verdict(f, b, shape, i, accum);
    }
    for (int i = 0; i < b->batches.n; i++) problems(f, b, shape, i);
}

void bench_text_sums(FILE *f, const bench_gemm *b) {
    if (b->n_shapes < 2) return;
    for (int accum = 0; accum < b->n_accums; accum++) {
        fprintf(f, "\nall %d shapes, %s: the best of each, us\n%5s %8s %9s %6s %8s %9s\n", b->n_shapes,
                bench_accums[b->accums[accum]], "m", "best", "cuBLASLt", "ratio", "floor", "to floor");
        for (int i = 0; i < b->batches.n; i++) {
            bench_sum s = bench_sum_of(b, i, accum);
            if (!s.measured) {
                fprintf(f, "%5d %8s\n", b->batches.at[i], "-");
                continue;
            }
            fprintf(f, "%5d %8.2f", b->batches.at[i], s.best_us);
            if (s.rival)
                fprintf(f, " %9.2f %6.2f", s.rival_us, s.best_us / s.rival_us);
            else
                fprintf(f, " %9s %6s", "-", "-");
            fprintf(f, " %8.2f %9.2f\n", s.floor_us, s.best_us / s.floor_us);
        }
    }
    if (bench_wrong(b)) fprintf(f, "\n%d cases gave WRONG results and were not timed\n", bench_wrong(b));
}

/* ---- norms ---- */
const char *const bench_norm_names[BENCH_NORMS] = {
#define NAME(name, rider, is_late, is_serial, has_norm, has_gemm, is_shared) name,
    BENCH_NORM_TABLE(NAME)
#undef NAME
};

void bench_norm_cases(const bench_norm *b, int batch, pz_measure_norm_case *out) {
    static const pz_measure_norm_case cases[BENCH_NORMS] = {
#define CASE(name, rider, is_late, is_serial, has_norm, has_gemm, is_shared) \
    {.zero_bytes = rider,                                                    \
     .late = is_late,                                                        \
     .serial = is_serial,                                                    \
     .x_norm = has_norm,                                                     \
     .gemm = has_gemm,                                                       \
     .shared = is_shared},
        BENCH_NORM_TABLE(CASE)
#undef CASE
    };
    memcpy(out, cases, sizeof cases);
    size_t bytes = ((size_t)b->rider * (size_t)b->batches.at[batch] + 15) / 16 * 16;
    for (int i = 0; i < BENCH_NORMS; i++) out[i].zero_bytes *= bytes;
}

int bench_norm_wrong(const bench_norm *b) {
    int wrong = 0;
    for (int i = 0; i < b->batches.n * BENCH_NORMS; i++) wrong += b->cases[i].status == PZ_E_VERIFY;
    return wrong;
}

void bench_norm_text(FILE *f, const bench_norm *b) {
    bench_device_text(f, &b->device);
    fprintf(f,
            "us of one add + RMSNorm of %d columns in a captured chain, or of it and the GEMM (%d x %d) behind it, and "
            "what that takes more than without rider and x_norm; median [95 %% interval]%s\nrider: %d bytes a row, of "
            "memory of its own in each link, or of the same\n",
            b->hidden, b->gemm_n, b->hidden, b->quick ? " (quick: 3 samples, the whole range)" : "", b->rider);
    for (int m = 0; m < b->batches.n; m++) {
        fprintf(f, "\nm %d, rider of %zu bytes\n", b->batches.at[m],
                ((size_t)b->rider * (size_t)b->batches.at[m] + 15) / 16 * 16);
        for (int i = 0; i < BENCH_NORMS; i++) {
            const pz_measure_norm_case *c = &b->cases[m * BENCH_NORMS + i];
            if (c->status == PZ_OK)
                fprintf(f, "  %-28s %7.2f [%.2f, %.2f]   %+6.2f [%+.2f, %+.2f]\n", bench_norm_names[i], c->norm.us,
                        c->norm.lo, c->norm.hi, c->added.us, c->added.lo, c->added.hi);
            else
                fprintf(f, "  %-28s %s\n", bench_norm_names[i], c->message);
        }
    }
}
