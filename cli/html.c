/* SPDX-License-Identifier: Apache-2.0 */
/* The page of `prezero compare --html`: tables and inline SVG, nothing from elsewhere. */
#include "cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfbfa;--fg:#1f2328;--dim:#636c76;--line:#d9dde2;--card:#fff;--off:#8d96a0;"
    "--on:#2563eb;--good:#1a7f37;--bad:#c62828}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e8eb;--dim:#98a1ab;--line:#31373e;--card:#1b1f24;"
    "--off:#6e7781;--on:#6ea8fe;--good:#4ac26b;--bad:#ff7b72}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}\n"
    "main{max-width:60rem;margin:0 auto;padding:2rem 1.25rem 4rem}h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;"
    "margin:2.5rem 0 .25rem}p{margin:.25rem 0;max-width:48rem}.dim{color:var(--dim)}\n"
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.75rem;margin:1.25rem 0}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.7rem .9rem}\n"
    ".card b{display:block;font-size:1.15rem}.card span{color:var(--dim);font-size:.85rem}\n"
    ".good{color:var(--good)}.bad{color:var(--bad)}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;margin:.75rem "
    "0}\n"
    "th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}\n"
    "th{font-weight:600;color:var(--dim);font-size:.85rem}th:first-child,td:first-child{text-align:left}\n"
    "svg{display:block;width:100%;min-width:38rem;height:auto;margin:.75rem 0}svg text{fill:var(--fg);font:13px "
    "system-ui,sans-serif}\n"
    "svg .dim{fill:var(--dim);font-size:12px}svg .end{text-anchor:end}svg .mid{text-anchor:middle}\n"
    "svg .off{fill:var(--off)}svg .on{fill:var(--on)}svg .grid{stroke:var(--line)}svg .zero{stroke:var(--dim)}\n"
    "svg .good{stroke:var(--good);fill:var(--good)}svg .bad{stroke:var(--bad);fill:var(--bad)}\n"
    "svg .same{stroke:var(--dim);fill:var(--dim)}\n"
    ".key i{display:inline-block;width:.8em;height:.8em;border-radius:.15em;margin:0 .35em 0 "
    "1em;vertical-align:-.05em}\n"
    ".key i:first-child{margin-left:0}summary{cursor:pointer;font-weight:600;padding:.35rem 0}details{border-top:1px "
    "solid var(--line)}\n";

enum { WIDTH = 920, LABEL = 170, NUMBERS = 270, ROW = 34, OP_ROW = 30, CUT = 50 /* per cent */ };

static void put_text(FILE *f, const char *s) {
    for (; *s; s++) switch (*s) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '"': fputs("&quot;", f); break;
        default: fputc(*s, f);
        }
}

/* Text at a place of a drawing. */
static void label(FILE *f, double x, double y, const char *class, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void label(FILE *f, double x, double y, const char *class, const char *fmt, ...) {
    char buf[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
    put_text(f, buf);
    fputs("</text>\n", f);
}

static void line(FILE *f, double x1, double y1, double x2, double y2, const char *class) {
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class);
}

static void bar(FILE *f, double x, double y, double width, double height, const char *class) {
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" class=\"%s\"/>\n", x, y,
            width < 1 ? 1 : width, height, class);
}

static void open_drawing(FILE *f, int height, const char *title) {
    fprintf(f, "<div class=\"wide\"><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", WIDTH, height,
            title);
}

static const char *colour(double lo, double hi) {
    return hi < 0 ? "good" : lo > 0 ? "bad" : "same";
}

/* 1, 2 or 5 times a power of ten: the step of about `n` ticks over `range`. */
static double tick_step(double range, int n) {
    if (!(range > 0)) return 1;
    double base = pow(10, floor(log10(range / n))), rest = range / n / base;
    return base * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

/* ---- the parts of the page ---- */
static void table(FILE *f, const pz_compare_result *r) {
    fputs(
        "<div class=\"wide\"><table><thead><tr><th>batch</th><th>off, µs</th><th>on, µs</th><th>on − off, µs</th>"
        "<th>95 % interval</th><th>off, tokens/s</th><th>on, tokens/s</th><th>fills</th><th>logits</th></tr></thead>\n"
        "<tbody>\n",
        f);
    for (int i = 0; i < r->n_buckets; i++) {
        const pz_compare_bucket *b = &r->buckets[i];
        fprintf(
            f,
            "<tr><td>%d</td><td>%.1f</td><td>%.1f</td><td class=\"%s\">%+.1f</td><td>[%+.1f, %+.1f]</td><td>%.0f</td>"
            "<td>%.0f</td><td>%d of %d</td><td class=\"%s\">%s</td></tr>\n",
            b->batch, b->a_us, b->b_us, colour(b->ci_lo_us, b->ci_hi_us), b->diff_us, b->ci_lo_us, b->ci_hi_us,
            b->a_tokens_per_s, b->b_tokens_per_s, b->slices, b->active_slices, b->identical ? "good" : "bad",
            b->identical ? "identical" : "differ");
    }
    fputs("</tbody></table></div>\n", f);
}

/* Differences in per cent, with their intervals, one row a batch size. */
static void difference_chart(FILE *f, const pz_compare_result *r) {
    double lo = 0, hi = 0;
    for (int i = 0; i < r->n_buckets; i++) {
        const pz_compare_bucket *b = &r->buckets[i];
        lo = fmin(lo, 100 * b->ci_lo_us / b->a_us);
        hi = fmax(hi, 100 * b->ci_hi_us / b->a_us);
    }
    lo = fmax(lo, -CUT);
    hi = fmin(hi, CUT);
    double pad = 0.06 * (hi - lo) + 1e-3, step = tick_step(hi - lo + 2 * pad, 6);
    lo -= pad;
    hi += pad;
    double left = LABEL - 80, width = WIDTH - left - NUMBERS, scale = width / (hi - lo);
    int height = ROW * r->n_buckets + 30;
    open_drawing(f, height, "difference of the step time, on minus off, in per cent");
    for (int tick = (int)ceil(lo / step); tick * step <= hi; tick++) {
        double x = left + (tick * step - lo) * scale;
        line(f, x, 4, x, height - 22, tick ? "grid" : "zero");
        label(f, x, height - 6, "dim mid", tick ? "%+.3g %%" : "0", tick * step);
    }
    for (int i = 0; i < r->n_buckets; i++) {
        const pz_compare_bucket *b = &r->buckets[i];
        const char *c = colour(b->ci_lo_us, b->ci_hi_us);
        double y = ROW * i + 21, to = 100 / b->a_us;
        label(f, 0, y + 5, "", "batch %d", b->batch);
        fprintf(f, "<g class=\"%s\" stroke-width=\"2\">", c);
        line(f, left + (fmax(b->ci_lo_us * to, lo) - lo) * scale, y, left + (fmin(b->ci_hi_us * to, hi) - lo) * scale,
             y, c);
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/></g>\n",
                left + (fmax(lo, fmin(hi, b->diff_us * to)) - lo) * scale, y);
        label(f, WIDTH - NUMBERS + 16, y + 5, "", "%+.2f %%  [%+.2f, %+.2f]", b->diff_us * to, b->ci_lo_us * to,
              b->ci_hi_us * to);
    }
    fputs("</svg></div>\n", f);
}

/* Two bars, off above on, and their numbers. */
static void pair(FILE *f, double y, double scale, double off, double on, const char *fmt) {
    char buf[40];
    bar(f, LABEL, y, off * scale, 11, "off");
    bar(f, LABEL, y + 12, on * scale, 11, "on");
    snprintf(buf, sizeof buf, fmt, off);
    label(f, LABEL + off * scale + 6, y + 10, "dim", "%s", buf);
    snprintf(buf, sizeof buf, fmt, on);
    label(f, LABEL + on * scale + 6, y + 22, "dim", "%s", buf);
}

static void step_chart(FILE *f, const pz_compare_result *r) {
    double max = 0;
    for (int i = 0; i < r->n_buckets; i++) max = fmax(max, fmax(r->buckets[i].a_us, r->buckets[i].b_us));
    double scale = (WIDTH - LABEL - 110) / (max > 0 ? max : 1);
    open_drawing(f, ROW * r->n_buckets + 4, "time of one decode step");
    for (int i = 0; i < r->n_buckets; i++) {
        label(f, 0, ROW * i + 19, "", "batch %d", r->buckets[i].batch);
        pair(f, ROW * i + 4, scale, r->buckets[i].a_us, r->buckets[i].b_us, "%.1f µs");
    }
    fputs("</svg></div>\n", f);
}

/* Rows [begin, end) of the ops belong to one batch size. */
static void op_chart(FILE *f, const pz_compare_result *r, int begin, int end) {
    double max = 0;
    for (int i = begin; i < end; i++) max = fmax(max, fmax(r->ops[i].a_us, r->ops[i].b_us));
    double scale = (WIDTH - LABEL - NUMBERS - 80) / (max > 0 ? max : 1);
    fprintf(f, "<details%s><summary>batch %d</summary>\n", begin == 0 ? " open" : "", r->ops[begin].batch);
    open_drawing(f, OP_ROW * (end - begin) + 26, "time per launch of each op");
    label(f, WIDTH - NUMBERS + 16, 16, "dim", "on − off, µs  [95 %% interval]");
    for (int i = begin; i < end; i++) {
        const pz_compare_op *o = &r->ops[i];
        double y = OP_ROW * (i - begin) + 24;
        label(f, 0, y + 16, "", "%s", o->op);
        pair(f, y, scale, o->a_us, o->b_us, "%.2f");
        fprintf(f, "<circle cx=\"%d\" cy=\"%.1f\" r=\"4\" class=\"%s\"/>\n", WIDTH - NUMBERS + 20, y + 11.5,
                colour(o->ci_lo_us, o->ci_hi_us));
        label(f, WIDTH - NUMBERS + 32, y + 16, "", "%+.2f  [%+.2f, %+.2f]", o->diff_us, o->ci_lo_us, o->ci_hi_us);
    }
    fputs("</svg></div></details>\n", f);
}

static void card(FILE *f, const char *class, const char *value, const char *name) {
    fprintf(f, "<div class=\"card\"><b class=\"%s\">%s</b><span>%s</span></div>\n", class, value, name);
}

static void summary(FILE *f, const pz_compare_result *r) {
    int identical = 0, faster = 0, slower = 0, filled = 0;
    for (int i = 0; i < r->n_buckets; i++) {
        const pz_compare_bucket *b = &r->buckets[i];
        identical += b->identical;
        faster += b->ci_hi_us < 0;
        slower += b->ci_lo_us > 0;
        filled += b->slices > 0;
    }
    char text[64];
    fputs("<div class=\"cards\">\n", f);
    card(f, identical == r->n_buckets ? "good" : "bad", identical == r->n_buckets ? "bit-identical" : "not identical",
         "logits of all steps, off against on");
    snprintf(text, sizeof text, "%d of %d", faster, r->n_buckets);
    card(f, faster ? "good" : "", text, "batch sizes faster with prezero");
    snprintf(text, sizeof text, "%d of %d", slower, r->n_buckets);
    card(f, slower ? "bad" : "", text, "slower");
    snprintf(text, sizeof text, "%d of %d", filled, r->n_buckets);
    card(f, "", text, "batch sizes where the gate lets fills ride");
    fputs("</div>\n", f);
}

static void body(FILE *f, const cli_compare_page *p) {
    const pz_compare_result *r = p->result;
    fputs("<h1>prezero: off against on</h1>\n<p class=\"dim\">", f);
    put_text(f, p->model);
    fprintf(f,
            " · %d layers · accumulator %s · activations %s · %s, %d %s, %s · %d pairs of steps per batch size</p>\n",
            p->info.layers, p->accum, p->dtype, p->info.device, p->info.threads,
            p->info.device_total_bytes ? "SMs" : "threads", p->info.isa, p->steps);
    summary(f, r);
    fputs("<h2>Difference of one decode step</h2>\n<p class=\"dim\">On − off in per cent of off, median and 95 % "
          "confidence "
          "interval. Left of zero: prezero is faster. Grey: the interval holds zero. What lies beyond ±50 % "
          "is cut off.</p>\n",
          f);
    difference_chart(f, r);
    static const char key[] = "<p class=\"key dim\"><i style=\"background:var(--off)\"></i>off<i "
                              "style=\"background:var(--on)\"></i>on</p>\n";
    fprintf(f, "<h2>Time of one decode step</h2>\n%s", key);
    step_chart(f, r);
    table(f, r);
    fprintf(f,
            "<h2>Time of each op</h2>\n<p class=\"dim\">Microseconds per launch, which is once per layer and step; a "
            "GEMM is named after its weight.</p>\n%s",
            key);
    for (int i = 0, end; i < r->n_ops; i = end) {
        for (end = i; end < r->n_ops && r->ops[end].batch == r->ops[i].batch;) end++;
        op_chart(f, r, i, end);
    }
    fputs(
        "<h2>How it was measured</h2>\n<p class=\"dim\">Both sides run the same tokens, one step each in turn, the "
        "side "
        "that goes first alternating. Times are medians; intervals are those of the median of the paired differences, "
        "from order statistics. Ops are timed in a run of their own. Fills: slices that a donor zeroes, of those whose "
        "GEMM adds into its output.</p>\n",
        f);
}

char *cli_compare_html(const cli_compare_page *page) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f) return NULL;
    fprintf(
        f,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width,initial-scale=1\">\n<title>prezero: off against on</title>\n<style>\n%s</style>"
        "</head>\n<body><main>\n",
        style);
    body(f, page);
    fprintf(f, "<p class=\"dim\">prezero %s</p>\n</main></body></html>\n", pz_version());
    bool ok = ferror(f) == 0;
    if (fclose(f) != 0 || !ok) {
        free(text);
        return NULL;
    }
    return text;
}
