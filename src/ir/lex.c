/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/lex.h"

#include <limits.h>
#include <stdio.h>

#include "ir/ir_internal.h"

void pz_lexer_start(pz_lexer *x, const char *text, size_t size) {
    *x = (pz_lexer){.at = text, .end = text + size, .line_start = text, .line = 1};
}

static char peek(const pz_lexer *x, size_t ahead) {
    return (size_t)(x->end - x->at) > ahead ? x->at[ahead] : 0;
}

static void skip_blank(pz_lexer *x) {
    for (; x->at < x->end; x->at++) {
        char c = *x->at;
        if (c == '#') {
            while (x->at < x->end && *x->at != '\n') x->at++;
            if (x->at == x->end) return;
            c = '\n';
        }
        if (c == '\n') {
            x->line += x->line < INT_MAX;
            x->line_start = x->at + 1;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

static size_t digits(const pz_lexer *x, size_t from) {
    while (pz_is_digit(peek(x, from))) from++;
    return from;
}

static size_t name_length(const pz_lexer *x, size_t from) {
    if (!pz_is_name_start(peek(x, from))) return from;
    while (pz_is_name_char(peek(x, from))) from++;
    return from;
}

static size_t number_length(const pz_lexer *x) {
    size_t n = digits(x, peek(x, 0) == '-');
    if (peek(x, n) == '.') n = digits(x, n + 1);
    if (peek(x, n) == 'e' || peek(x, n) == 'E') {
        size_t sign = peek(x, n + 1) == '-' || peek(x, n + 1) == '+', exp = digits(x, n + 1 + sign);
        if (exp > n + 1 + sign) n = exp;
    }
    return n;
}

/* Reads the name after % or @. */
static void read_sigil(pz_lexer *x, pz_token *t) {
    bool value = *x->at == '%';
    size_t n = value ? digits(x, 1) : 1;
    if (n == 1) n = name_length(x, 1);
    t->kind = n == 1 ? PZ_TOK_BAD : value ? PZ_TOK_VALUE : PZ_TOK_GLOBAL;
    if (n == 1) {
        t->problem = value ? "expected a name or a number after '%'" : "expected a name after '@'";
        t->n = 1;
        return;
    }
    t->s++;
    t->n = n - 1;
}

void pz_lexer_next(pz_lexer *x, pz_token *t) {
    skip_blank(x);
    size_t col = (size_t)(x->at - x->line_start) + 1;
    *t = (pz_token){.kind = PZ_TOK_END, .s = x->at, .line = x->line, .col = col > INT_MAX ? INT_MAX : (int)col};
    if (x->at == x->end) return;
    char c = *x->at;
    if (c == '%' || c == '@') {
        read_sigil(x, t);
    } else if (pz_is_name_start(c)) {
        t->kind = PZ_TOK_WORD;
        t->n = name_length(x, 0);
    } else if (pz_is_digit(c) || (c == '-' && pz_is_digit(peek(x, 1)))) {
        t->kind = PZ_TOK_NUMBER;
        t->n = number_length(x);
    } else if (c == '-' && peek(x, 1) == '>') {
        t->kind = PZ_TOK_ARROW;
        t->n = 2;
    } else {
        t->kind = c && strchr("(){}[],:=?", c) ? PZ_TOK_PUNCT : PZ_TOK_BAD;
        t->problem = "unexpected character";
        t->n = 1;
    }
    bool name = t->kind == PZ_TOK_WORD || t->kind == PZ_TOK_VALUE || t->kind == PZ_TOK_GLOBAL;
    if ((name || t->kind == PZ_TOK_NUMBER) && t->n > PZ_MAX_NAME) {
        t->kind = PZ_TOK_BAD;
        t->problem = "name or number longer than 255 bytes";
    }
    if (t->kind != PZ_TOK_BAD) x->at = t->s + t->n;
}

const char *pz_token_text(const pz_token *t, char buf[PZ_TOKEN_TEXT]) {
    if (t->kind == PZ_TOK_END) {
        snprintf(buf, PZ_TOKEN_TEXT, "end of text");
        return buf;
    }
    const char *sigil = t->kind == PZ_TOK_VALUE ? "%" : t->kind == PZ_TOK_GLOBAL ? "@" : "";
    size_t show = t->n < 40 ? t->n : 40;
    int len = snprintf(buf, PZ_TOKEN_TEXT, "'%s", sigil);
    for (size_t i = 0; i < show; i++) {
        unsigned char c = (unsigned char)t->s[i];
        len += snprintf(buf + len, PZ_TOKEN_TEXT - (size_t)len, c >= 0x20 && c < 0x7f ? "%c" : "\\x%02x", c);
    }
    snprintf(buf + len, PZ_TOKEN_TEXT - (size_t)len, "%s'", show < t->n ? "..." : "");
    return buf;
}
