/* SPDX-License-Identifier: Apache-2.0 */
/* The page of `prezero compare --html`. */
#include <math.h>

#include "cli.h"
#include "page.h"

enum { LABEL = 170, NUMBERS = 270, ROW = 34, OP_ROW = 30, CUT = 50 /* per cent */ };

static const char *colour(double lo, double hi) {
    return hi < 0 ? "good" : lo > 0 ? "bad" : "same";
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
    double pad = 0.06 * (hi - lo) + 1e-3, step = page_tick_step(hi - lo + 2 * pad, 6);
    lo -= pad;
    hi += pad;
    double left = LABEL - 80, width = PAGE_WIDTH - left - NUMBERS, scale = width / (hi - lo);
    int height = ROW * r->n_buckets + 30;
    page_drawing(f, height, "difference of the step time, on minus off, in per cent");
    for (int tick = (int)ceil(lo / step); tick * step <= hi; tick++) {
        double x = left + (tick * step - lo) * scale;
        page_line(f, x, 4, x, height - 22, tick ? "grid" : "zero");
        page_label(f, x, height - 6, "dim mid", tick ? "%+.3g %%" : "0", tick * step);
    }
    for (int i = 0; i < r->n_buckets; i++) {
        const pz_compare_bucket *b = &r->buckets[i];
        const char *c = colour(b->ci_lo_us, b->ci_hi_us);
        double y = ROW * i + 21, to = 100 / b->a_us;
        page_label(f, 0, y + 5, "", "batch %d", b->batch);
        fprintf(f, "<g class=\"%s\" stroke-width=\"2\">", c);
        page_line(f, left + (fmax(b->ci_lo_us * to, lo) - lo) * scale, y,
                  left + (fmin(b->ci_hi_us * to, hi) - lo) * scale, y, c);
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/></g>\n",
                left + (fmax(lo, fmin(hi, b->diff_us * to)) - lo) * scale, y);
        page_label(f, PAGE_WIDTH - NUMBERS + 16, y + 5, "", "%+.2f %%  [%+.2f, %+.2f]", b->diff_us * to,
                   b->ci_lo_us * to, b->ci_hi_us * to);
    }
    fputs("</svg></div>\n", f);
}

/* Two bars, off above on, and their numbers. */
static void pair(FILE *f, double y, double scale, double off, double on, const char *fmt) {
    char buf[40];
    page_bar(f, LABEL, y, off * scale, 11, "off");
    page_bar(f, LABEL, y + 12, on * scale, 11, "on");
    snprintf(buf, sizeof buf, fmt, off);
    page_label(f, LABEL + off * scale + 6, y + 10, "dim", "%s", buf);
    snprintf(buf, sizeof buf, fmt, on);
    page_label(f, LABEL + on * scale + 6, y + 22, "dim", "%s", buf);
}

static void step_chart(FILE *f, const pz_compare_result *r) {
    double max = 0;
    for (int i = 0; i < r->n_buckets; i++) max = fmax(max, fmax(r->buckets[i].a_us, r->buckets[i].b_us));
    double scale = (PAGE_WIDTH - LABEL - 110) / (max > 0 ? max : 1);
    page_drawing(f, ROW * r->n_buckets + 4, "time of one decode step");
    for (int i = 0; i < r->n_buckets; i++) {
        page_label(f, 0, ROW * i + 19, "", "batch %d", r->buckets[i].batch);
        pair(f, ROW * i + 4, scale, r->buckets[i].a_us, r->buckets[i].b_us, "%.1f µs");
    }
    fputs("</svg></div>\n", f);
}

/* Rows [begin, end) of the ops belong to one batch size. */
static void op_chart(FILE *f, const pz_compare_result *r, int begin, int end) {
    double max = 0;
    for (int i = begin; i < end; i++) max = fmax(max, fmax(r->ops[i].a_us, r->ops[i].b_us));
    double scale = (PAGE_WIDTH - LABEL - NUMBERS - 80) / (max > 0 ? max : 1);
    fprintf(f, "<details%s><summary>batch %d</summary>\n", begin == 0 ? " open" : "", r->ops[begin].batch);
    page_drawing(f, OP_ROW * (end - begin) + 26, "time per launch of each op");
    page_label(f, PAGE_WIDTH - NUMBERS + 16, 16, "dim", "on − off, µs  [95 %% interval]");
    for (int i = begin; i < end; i++) {
        const pz_compare_op *o = &r->ops[i];
        double y = OP_ROW * (i - begin) + 24;
        page_label(f, 0, y + 16, "", "%s", o->op);
        pair(f, y, scale, o->a_us, o->b_us, "%.2f");
        fprintf(f, "<circle cx=\"%d\" cy=\"%.1f\" r=\"4\" class=\"%s\"/>\n", PAGE_WIDTH - NUMBERS + 20, y + 11.5,
                colour(o->ci_lo_us, o->ci_hi_us));
        page_label(f, PAGE_WIDTH - NUMBERS + 32, y + 16, "", "%+.2f  [%+.2f, %+.2f]", o->diff_us, o->ci_lo_us,
                   o->ci_hi_us);
    }
    fputs("</svg></div></details>\n", f);
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
    page_card(f, identical == r->n_buckets ? "good" : "bad",
              identical == r->n_buckets ? "bit-identical" : "not identical", "logits of all steps, off against on");
    snprintf(text, sizeof text, "%d of %d", faster, r->n_buckets);
    page_card(f, faster ? "good" : "", text, "batch sizes faster with prezero");
    snprintf(text, sizeof text, "%d of %d", slower, r->n_buckets);
    page_card(f, slower ? "bad" : "", text, "slower");
    snprintf(text, sizeof text, "%d of %d", filled, r->n_buckets);
    page_card(f, "", text, "batch sizes where the gate lets fills ride");
    fputs("</div>\n", f);
}

static void body(FILE *f, const cli_compare_page *p) {
    const pz_compare_result *r = p->result;
    fputs("<h1>prezero: off against on</h1>\n<p class=\"dim\">", f);
    page_put(f, p->model);
    fprintf(f,
            " · %d layers · accumulator %s · activations %s · %s, tp %d, %d %s, %s · %d pairs of steps per batch "
            "size</p>\n",
            p->info.layers, p->accum, p->dtype, p->info.device, p->info.tp, p->info.threads,
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
    page_text p;
    FILE *f = page_begin(&p, "prezero: off against on");
    if (!f) return NULL;
    body(f, page);
    return page_end(&p);
}
