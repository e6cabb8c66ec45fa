/* SPDX-License-Identifier: Apache-2.0 */
/* Self-contained pages: tables and inline SVG, nothing from elsewhere. */
#ifndef PZ_PAGE_H
#define PZ_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { PAGE_WIDTH = 920 }; /* of a drawing */

typedef struct page_text {
    FILE *f;
    char *text;
    size_t size;
} page_text;

/* Everything up to the body's begin; NULL if out of memory. */
FILE *page_begin(page_text *p, const char *title);
/* The page's end. The text (free with free), or NULL if out of memory. */
char *page_end(page_text *p);

/* Text, with what HTML reserves replaced. */
void page_put(FILE *f, const char *s);
/* A number and what it is, inside <div class="cards">. */
void page_card(FILE *f, const char *class, const char *value, const char *name);

/* ---- drawings ---- */
/* Opens one; the caller ends it with </svg></div>. */
void page_drawing(FILE *f, int height, const char *title);
/* Text at a place. */
void page_label(FILE *f, double x, double y, const char *class, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void page_line(FILE *f, double x1, double y1, double x2, double y2, const char *class);
void page_bar(FILE *f, double x, double y, double width, double height, const char *class);
/* 1, 2 or 5 times a power of ten: the step of about `n` ticks over `range`. */
double page_tick_step(double range, int n);

#endif
