/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of the graph text. Lines and columns count from 1, columns in bytes. */
#ifndef PZ_LEX_H
#define PZ_LEX_H

#include "ir/ir.h"

typedef enum pz_token_kind {
    PZ_TOK_END,
    PZ_TOK_BAD,    /* `problem` says why; the lexer stays there */
    PZ_TOK_WORD,   /* name */
    PZ_TOK_NUMBER, /* -?digits[.digits][e[+-]digits] */
    PZ_TOK_VALUE,  /* %name or %digits; s starts after the % */
    PZ_TOK_GLOBAL, /* @name; s starts after the @ */
    PZ_TOK_ARROW,  /* -> */
    PZ_TOK_PUNCT,  /* one of ( ) { } [ ] , : = ? */
} pz_token_kind;

typedef struct pz_token {
    pz_token_kind kind;
    const char *s;
    size_t n;
    int line, col;
    const char *problem;
} pz_token;

typedef struct pz_lexer {
    const char *at, *end, *line_start;
    int line;
} pz_lexer;

void pz_lexer_start(pz_lexer *x, const char *text, size_t size);
void pz_lexer_next(pz_lexer *x, pz_token *out);
/* What stands there, for messages: "'gemm'", "end of text"; at most 40 bytes of it, unprintable ones as \xNN. */
enum { PZ_TOKEN_TEXT = 192 };
const char *pz_token_text(const pz_token *t, char buf[PZ_TOKEN_TEXT]);

#endif
