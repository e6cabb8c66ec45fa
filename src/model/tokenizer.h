/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE as tokenizer.json describes it (Hugging Face "tokenizers"). A text goes through
 *   added tokens (tokenizer.c) -> splits by regular expressions (tokenizer_split.c) -> merges (tokenizer_bpe.c). */
#ifndef PZ_TOKENIZER_H
#define PZ_TOKENIZER_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>

#include "base/base.h"
#include "prezero/engine.h"

enum {
    PZ_TOK_MAX_ID = 1 << 22,    /* ids are indices of a table: a lying file must not make it huge */
    PZ_TOK_MAX_TEXT = 1 << 28,  /* bytes of one text */
    PZ_TOK_MAX_STEPS = 64,      /* steps of the pre-tokenizer */
    PZ_TOK_MAX_PATTERN = 65535, /* bytes of one regular expression */
};

/* One id. `text` is what the file says: for a vocabulary word, bytes written as characters (see pz_tok_byte_char). */
typedef struct pz_tok_word {
    const char *text; /* NULL: no such id */
    uint32_t size;
    bool special;
} pz_tok_word;

typedef struct pz_tok_added {
    const char *text;
    size_t size;
    int32_t id;
    bool lstrip, rstrip;
    int round; /* 0: looked for in the whole text; 1 ("normalized"): in what round 0 leaves */
} pz_tok_added;

typedef enum pz_tok_behavior {
    PZ_TOK_ISOLATED,
    PZ_TOK_REMOVED,
    PZ_TOK_MERGED_WITH_PREVIOUS,
    PZ_TOK_MERGED_WITH_NEXT,
    PZ_TOK_CONTIGUOUS
} pz_tok_behavior;

/* One split of the pre-tokenizer. */
typedef struct pz_tok_step {
    pcre2_code *code;
    pz_tok_behavior behavior;
    bool invert;
} pz_tok_step;

typedef struct pz_tok_merge {
    int32_t left, right, id; /* left + right gives id */
    int32_t rank;            /* lower goes first; -1: empty place of the hash table */
} pz_tok_merge;

struct pz_tokenizer {
    pz_arena arena;
    pz_tok_word *words; /* [n_ids] */
    int n_ids;
    int32_t *lookup; /* hash of the vocabulary: ids, -1 empty; a power of two places */
    size_t lookup_size;
    pz_tok_merge *merges; /* hash of the merges */
    size_t merges_size;
    PZ_VEC(pz_tok_added) added; /* sorted: round, first byte, longest first */
    int32_t unk, bos;           /* -1: none */
    bool fuse_unk, ignore_merges, add_bos;
    PZ_VEC(pz_tok_step) steps;
    bool byte_level, prefix_space; /* the ByteLevel step, always the last */
    pcre2_code *byte_level_split;  /* NULL: use_regex is false */
    pcre2_general_context *pcre;   /* allocates through base */
};

/* Reads both files from memory; config_text NULL: there is no tokenizer_config.json. `where` names tokenizer.json in
 * messages. */
pz_status pz_tokenizer_parse(const char *text, size_t size, const char *config_text, size_t config_size,
                             const char *where, pz_tokenizer **out, pz_error *err);

/* ---- loading: tokenizer_load.c reads the model and the added tokens, tokenizer_steps.c the rest ---- */
pz_tokenizer *pz_tok_new(void); /* empty; NULL if out of memory */
pz_status pz_tok_load_steps(pz_tokenizer *t, const json_t *root, const char *where, pz_error *err);

/* ---- the byte alphabet: printable bytes stand for themselves, the others are characters from U+0100 on ---- */
uint32_t pz_tok_byte_char(unsigned char byte);
/* -1 if the character stands for no byte. */
int pz_tok_char_byte(uint32_t ch);
/* Decodes one character of valid UTF-8 and moves *at behind it. */
uint32_t pz_tok_next_char(const char *s, size_t *at);
size_t pz_tok_put_char(uint32_t ch, char out[4]);

/* ---- vocabulary ---- */
int32_t pz_tok_find(const pz_tokenizer *t, const char *text, size_t size); /* -1: not in the vocabulary */
const pz_tok_merge *pz_tok_find_merge(const pz_tokenizer *t, int32_t left, int32_t right); /* NULL: none */
/* Where that pair's merge is, or would be put. There is always an empty place. */
pz_tok_merge *pz_tok_merge_place(const pz_tokenizer *t, int32_t left, int32_t right);
/* The id of a text among the added tokens, then the vocabulary. */
int32_t pz_tok_find_any(const pz_tokenizer *t, const char *text);

/* ---- regular expressions ---- */
/* Rewrites an Oniguruma pattern (what "tokenizers" uses) for PCRE2: \s \w, \p{Script}, and && in classes mean other
 * things there. E_UNSUPPORTED names what has no counterpart. */
pz_status pz_tok_translate(const char *pattern, size_t size, pz_str *out, const char *where, pz_error *err);
/* literal: no regular expression but a text to look for. */
pz_status pz_tok_compile(pz_tokenizer *t, const char *pattern, size_t size, bool literal, const char *where,
                         pcre2_code **out, pz_error *err);

/* ---- encoding ---- */
typedef struct pz_tok_symbol {
    int32_t id, prev, next; /* -1: end of the list; id -1: merged into its left neighbour */
} pz_tok_symbol;
typedef struct pz_tok_candidate {
    int32_t rank, at, id; /* the pair that begins at symbol `at` would become id */
} pz_tok_candidate;

/* What one encode call needs besides the tokenizer. */
typedef struct pz_tok_encoder {
    const pz_tokenizer *t;
    PZ_VEC(int32_t) ids;
    PZ_VEC(pz_tok_symbol) symbols;
    PZ_VEC(pz_tok_candidate) heap;
    pz_str mapped, prefixed;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *jit_stack;
} pz_tok_encoder;
pz_status pz_tok_encoder_init(pz_tok_encoder *e, const pz_tokenizer *t, pz_error *err);
void pz_tok_encoder_free(pz_tok_encoder *e);
/* Text without added tokens, through the pre-tokenizer, to ids. */
pz_status pz_tok_encode_text(pz_tok_encoder *e, const char *s, size_t n, pz_error *err);
/* One piece (in the byte alphabet if the tokenizer is byte level), to ids. */
pz_status pz_tok_encode_piece(pz_tok_encoder *e, const char *s, size_t n, pz_error *err);

#endif
