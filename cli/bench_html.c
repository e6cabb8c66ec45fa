/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of `prezero bench gemm --html` and `prezero bench norm --html`. */
#include <math.h>

#include "bench.h"
#include "page.h"

enum { LEFT = 70, RIGHT = 40, ROW = 26, RIVAL = BENCH_STRATEGIES };

/* Readable on light and dark; by strategy, the last is cuBLASLt's. */
static const char *const colours[BENCH_STRATEGIES + 1] = {"#0d9488", "#2563eb", "#d97706", "#a16207",
                                                          "#9333ea", "#db2777", "#8d96a0"};

static void device_line(FILE *f, const pz_measure_device *d, const char *command) {
    fputs("<p class=\"dim\">", f);
    page_put(f, d->product);
    fprintf(f, " · %d SMs · CUDA %d.%d · cuBLASLt %lld · copies %.0f GB/s · <code>", d->units, d->runtime / 1000,
            d->runtime % 1000 / 10, (long long)d->cublaslt, d->copy_gbs);
    page_put(f, command);
    fputs("</code></p>\n", f);
}

/* ---- one shape and accumulator ---- */
static void dot(FILE *f, double x, double y, const char *fill, const char *what, const pz_measure_times *t) {
    fprintf(f,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\" fill-opacity=\".85\"><title>%s: %.2f µs [%.2f, "
            "%.2f]</title></circle>\n",
            x, y, fill, what, t->us, t->lo, t->hi);
}

static double longest(const bench_gemm *b, int shape, int accum) {
    double most = bench_floor_us(&b->shapes[shape]);
    for (int m = 0; m < b->batches.n; m++) {
        for (int s = 0; s < b->n_strategies; s++) {
            const pz_measure_case *c = bench_case(b, shape, m, accum, s);
            if (bench_measured(c)) most = fmax(most, c->gemm.us);
        }
        if (bench_measured(bench_cublaslt(b, shape, m))) most = fmax(most, bench_cublaslt(b, shape, m)->gemm.us);
    }
    return most;
}

/* One row a batch, one dot a strategy; the line is the floor. */
static void chart(FILE *f, const bench_gemm *b, int shape, int accum) {
    double most = longest(b, shape, accum) * 1.03, scale = (PAGE_WIDTH - LEFT - RIGHT) / most;
    double step = page_tick_step(most, 8), floor_x = LEFT + bench_floor_us(&b->shapes[shape]) * scale;
    int height = ROW * b->batches.n + 34;
    page_drawing(f, height, "time of each strategy in microseconds");
    for (int tick = 0; tick * step <= most; tick++) {
        double x = LEFT + tick * step * scale;
        page_line(f, x, 4, x, height - 24, tick ? "grid" : "zero");
        page_label(f, x, height - 8, "dim mid", "%.3g", tick * step);
    }
    page_line(f, floor_x, 4, floor_x, height - 24, "good");
    for (int m = 0; m < b->batches.n; m++) {
        double y = ROW * m + 18;
        page_label(f, 0, y + 5, "", "m %d", b->batches.at[m]);
        const pz_measure_case *rival = bench_cublaslt(b, shape, m);
        if (bench_measured(rival)) dot(f, LEFT + rival->gemm.us * scale, y, colours[RIVAL], "cuBLASLt", &rival->gemm);
        for (int s = 0; s < b->n_strategies; s++) {
            const pz_measure_case *c = bench_case(b, shape, m, accum, s);
            if (bench_measured(c))
                dot(f, LEFT + c->gemm.us * scale, y, colours[c->strategy], bench_strategies[c->strategy], &c->gemm);
        }
    }
    fputs("</svg></div>\n", f);
}

static void put_cell(FILE *f, const pz_measure_case *c, bool best) {
    if (c->status == PZ_E_VERIFY)
        fputs("<td class=\"bad\">wrong</td>", f);
    else if (!bench_measured(c))
        fputs("<td class=\"dim\">–</td>", f);
    else
        fprintf(f, "<td title=\"%.3f to %.3f\"%s>%.2f ± %.2f</td>", c->gemm.lo, c->gemm.hi,
                best ? " class=\"good\"" : "", c->gemm.us, bench_half(&c->gemm));
}

static void row(FILE *f, const bench_gemm *b, int shape, int m, int accum) {
    const pz_measure_case *second, *best = bench_best(b, shape, m, accum, &second),
                                   *rival = bench_cublaslt(b, shape, m);
    pz_measure_times d;
    fprintf(f, "<tr><td>%d</td>", b->batches.at[m]);
    for (int s = 0; s < b->n_strategies; s++) {
        const pz_measure_case *c = bench_case(b, shape, m, accum, s);
        put_cell(f, c, c == best);
    }
    put_cell(f, rival, false);
    if (!best) {
        fputs("<td>–</td><td>–</td><td>–</td><td>–</td><td>–</td></tr>\n", f);
        return;
    }
    fprintf(f, "<td>%s</td>", bench_strategies[best->strategy]);
    if (second && pz_measure_difference(&best->gemm, &second->gemm, &d, NULL) == PZ_OK)
        fprintf(f, "<td>%.2f [%.2f, %.2f] to %s</td>", d.us, d.lo, d.hi, bench_strategies[second->strategy]);
    else
        fputs("<td>–</td>", f);
    if (bench_measured(rival) && rival->gemm.us > 0) {
        double ratio = best->gemm.us / rival->gemm.us;
        fprintf(f, "<td class=\"%s\">%.2f</td>", ratio <= 1 ? "good" : "bad", ratio);
    } else {
        fputs("<td>–</td>", f);
    }
    fprintf(f, "<td>%.0f</td><td>%.2f</td></tr>\n", best->gbs,
            b->device.copy_gbs > 0 ? best->gbs / b->device.copy_gbs : 0);
}

static void table(FILE *f, const bench_gemm *b, int shape, int accum) {
    fputs("<div class=\"wide\"><table><thead><tr><th>m</th>", f);
    for (int s = 0; s < b->n_strategies; s++) fprintf(f, "<th>%s</th>", bench_strategies[b->strategies[s]]);
    fputs("<th>cuBLASLt</th><th>best</th><th>by</th><th>to cuBLASLt</th><th>GB/s</th><th>of copy</th></tr>"
          "</thead>\n<tbody>\n",
          f);
    for (int m = 0; m < b->batches.n; m++) row(f, b, shape, m, accum);
    fputs("</tbody></table></div>\n", f);
}

static void legend(FILE *f, const bench_gemm *b) {
    fputs("<p class=\"key dim\">", f);
    for (int s = 0; s < b->n_strategies; s++)
        fprintf(f, "<i style=\"background:%s\"></i>%s", colours[b->strategies[s]], bench_strategies[b->strategies[s]]);
    fprintf(f, "<i style=\"background:%s\"></i>cuBLASLt<i style=\"background:var(--good)\"></i>floor</p>\n",
            colours[RIVAL]);
}

/* ---- the page ---- */
static void summary(FILE *f, const bench_gemm *b) {
    int cells = 0, faster = 0, compared = 0, prezero = 0;
    for (int s = 0; s < b->measured; s++)
        for (int m = 0; m < b->batches.n; m++)
            for (int a = 0; a < b->n_accums; a++) {
                const pz_measure_case *best = bench_best(b, s, m, a, NULL), *rival = bench_cublaslt(b, s, m);
                if (!best) continue;
                cells++;
                prezero += best->strategy == PZ_ZERO_PREZERO;
                if (!bench_measured(rival)) continue;
                compared++;
                faster += best->gemm.us < rival->gemm.us;
            }
    char text[64];
    int wrong = bench_wrong(b);
    fputs("<div class=\"cards\">\n", f);
    snprintf(text, sizeof text, "%d", wrong);
    page_card(f, wrong ? "bad" : "good", text, "cases with a wrong result");
    snprintf(text, sizeof text, "%d of %d", faster, compared);
    page_card(f, compared && faster == compared ? "good" : "", text, "faster than the best of cuBLASLt");
    snprintf(text, sizeof text, "%d of %d", prezero, cells);
    page_card(f, "", text, "where prezero is the fastest strategy");
    fputs("</div>\n", f);
}

static void sums(FILE *f, const bench_gemm *b) {
    if (b->n_shapes < 2) return;
    fprintf(
        f,
        "<h2>All %d GEMMs together</h2>\n<div class=\"wide\"><table><thead><tr><th>m</th><th>accumulator</th>"
        "<th>best, µs</th><th>cuBLASLt, µs</th><th>to cuBLASLt</th><th>floor, µs</th><th>to floor</th></tr></thead>\n"
        "<tbody>\n",
        b->n_shapes);
    for (int a = 0; a < b->n_accums; a++)
        for (int m = 0; m < b->batches.n; m++) {
            bench_sum s = bench_sum_of(b, m, a);
            if (!s.measured) continue;
            fprintf(f, "<tr><td>%d</td><td>%s</td><td>%.2f</td>", b->batches.at[m], bench_accums[b->accums[a]],
                    s.best_us);
            if (s.rival)
                fprintf(f, "<td>%.2f</td><td>%.2f</td>", s.rival_us, s.best_us / s.rival_us);
            else
                fputs("<td>–</td><td>–</td>", f);
            fprintf(f, "<td>%.2f</td><td>%.2f</td></tr>\n", s.floor_us, s.best_us / s.floor_us);
        }
    fputs("</tbody></table></div>\n", f);
}

static void how(FILE *f, const bench_gemm *b) {
    fprintf(
        f,
        "<h2>How it was measured</h2>\n<p class=\"dim\">A captured graph of a chain [add + RMSNorm, GEMM] over at "
        "least 24 weights, more than four times the L2 cache; the time of a pair minus that of the norm alone, "
        "without rider and launched normally. The cases take turns, in another order each round; times are medians "
        "of the rounds, ± half of the 95 %% interval of the median%s. %s. %s. cuBLASLt: bf16 in and out, the fastest "
        "of all heuristics it returns, in the same rounds. Every case was compared with a GEMM in f64 before and "
        "after, from poisoned outputs. Floor: the bytes of the weight at 4.3 TB/s.</p>\n",
        b->quick ? " (quick: of 3 samples, so the whole range)" : "",
        b->serial ? "Every kernel starts when the one before has ended" : "Programmatic dependent launch",
        b->search ? "Each strategy has the fastest of the geometries that the cost model ranks first"
                  : "Geometries are those that the library chooses");
}

char *bench_html(const bench_gemm *b) {
    page_text p;
    FILE *f = page_begin(&p, "prezero: split-K GEMMs");
    if (!f) return NULL;
    fputs("<h1>prezero: split-K GEMMs</h1>\n", f);
    device_line(f, &b->device, b->command);
    summary(f, b);
    sums(f, b);
    for (int s = 0; s < b->measured; s++) {
        fputs("<h2>", f);
        page_put(f, b->shapes[s].name);
        fprintf(f, " %d × %d</h2>\n<p class=\"dim\">Times in µs; floor %.2f µs.</p>\n", b->shapes[s].n, b->shapes[s].k,
                bench_floor_us(&b->shapes[s]));
        legend(f, b);
        for (int a = 0; a < b->n_accums; a++) {
            fprintf(f, "<details%s><summary>%s</summary>\n", a == 0 ? " open" : "", bench_accums[b->accums[a]]);
            chart(f, b, s, a);
            table(f, b, s, a);
            fputs("</details>\n", f);
        }
    }
    how(f, b);
    return page_end(&p);
}

/* ---- norms ---- */
char *bench_norm_html(const bench_norm *b) {
    page_text p;
    FILE *f = page_begin(&p, "prezero: norms and riders");
    if (!f) return NULL;
    fputs("<h1>prezero: norms and riders</h1>\n", f);
    device_line(f, &b->device, b->command);
    fprintf(f,
            "<p class=\"dim\">add + RMSNorm of %d columns in a captured chain, alone or with the GEMM (%d x %d) behind "
            "it, rider of %d bytes a row. Medians and 95 %% intervals of the median; what is added is the paired "
            "difference to the same without rider and x_norm, launched the same way.</p>\n<div "
            "class=\"wide\"><table><thead><tr><th>m</th><th>norm</th><th>µs</th><th>95 %% interval</th>"
            "<th>added, µs</th><th>95 %% interval</th></tr></thead>\n<tbody>\n",
            b->hidden, b->gemm_n, b->hidden, b->rider);
    for (int m = 0; m < b->batches.n; m++)
        for (int i = 0; i < BENCH_NORMS; i++) {
            const pz_measure_norm_case *c = &b->cases[m * BENCH_NORMS + i];
            fprintf(f, "<tr><td>%d</td><td>%s</td>", b->batches.at[m], bench_norm_names[i]);
            if (c->status == PZ_OK) {
                fprintf(f, "<td>%.2f</td><td>[%.2f, %.2f]</td><td>%+.2f</td><td>[%+.2f, %+.2f]</td></tr>\n", c->norm.us,
                        c->norm.lo, c->norm.hi, c->added.us, c->added.lo, c->added.hi);
            } else {
                fputs("<td colspan=\"4\" class=\"bad\">", f);
                page_put(f, c->message);
                fputs("</td></tr>\n", f);
            }
        }
    fputs("</tbody></table></div>\n", f);
    return page_end(&p);
}
