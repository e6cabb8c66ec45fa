/* SPDX-License-Identifier: Apache-2.0 */
#include "page.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "prezero/status.h"

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

void page_put(FILE *f, const char *s) {
    for (; *s; s++) switch (*s) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '"': fputs("&quot;", f); break;
        default: fputc(*s, f);
        }
}

void page_label(FILE *f, double x, double y, const char *class, const char *fmt, ...) {
    char buf[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
    page_put(f, buf);
    fputs("</text>\n", f);
}

void page_line(FILE *f, double x1, double y1, double x2, double y2, const char *class) {
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class);
}

void page_bar(FILE *f, double x, double y, double width, double height, const char *class) {
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" class=\"%s\"/>\n", x, y,
            width < 1 ? 1 : width, height, class);
}

void page_drawing(FILE *f, int height, const char *title) {
    fprintf(f, "<div class=\"wide\"><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", PAGE_WIDTH, height,
            title);
}

double page_tick_step(double range, int n) {
    if (!(range > 0)) return 1;
    double base = pow(10, floor(log10(range / n))), rest = range / n / base;
    return base * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

void page_card(FILE *f, const char *class, const char *value, const char *name) {
    fprintf(f, "<div class=\"card\"><b class=\"%s\">%s</b><span>%s</span></div>\n", class, value, name);
}

FILE *page_begin(page_text *p, const char *title) {
    *p = (page_text){0};
    p->f = open_memstream(&p->text, &p->size);
    if (!p->f) return NULL;
    fprintf(p->f, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                  "content=\"width=device-width,initial-scale=1\">\n<title>");
    page_put(p->f, title);
    fprintf(p->f, "</title>\n<style>\n%s</style></head>\n<body><main>\n", style);
    return p->f;
}

char *page_end(page_text *p) {
    fprintf(p->f, "<p class=\"dim\">prezero %s</p>\n</main></body></html>\n", pz_version());
    bool ok = ferror(p->f) == 0;
    if (fclose(p->f) == 0 && ok) return p->text;
    free(p->text);
    return NULL;
}
