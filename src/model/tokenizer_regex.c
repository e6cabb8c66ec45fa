/* SPDX-License-Identifier: Apache-2.0 */
/* Oniguruma patterns, as tokenizer files hold them, rewritten for PCRE2. */
#include "model/tokenizer.h"

/* What \s, \S and \w match in Oniguruma, as the inside of a class. (PCRE2 counts U+180E as a space and leaves marks out
 * of words.) */
static const char SPACE[] =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
static const char NO_SPACE[] =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";
static const char WORD[] =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";

typedef struct reader {
    const char *s;
    size_t n, at;
    pz_str *out;
    const char *where;
    pz_error *err;
} reader;

static pz_status unsupported(const reader *r, const char *what) {
    return pz_fail(r->err, PZ_E_UNSUPPORTED, "%s: regular expression has %s at byte %zu, which is not supported",
                   r->where, what, r->at);
}

static bool have(const reader *r, const char *text) {
    size_t n = strlen(text);
    return r->n - r->at >= n && memcmp(r->s + r->at, text, n) == 0;
}

static void copy(reader *r, size_t n) {
    if (n > r->n - r->at) n = r->n - r->at;
    pz_str_addn(r->out, r->s + r->at, n);
    r->at += n;
}

/* In PCRE2 since 10.40 \p{Han} is the Script_Extensions property, which holds more than the script; \p{sc:Han} is the
 * script. Older versions know only the first form, and mean the script. */
static bool is_script(const char *name, size_t n) {
    char probe[64];
    int error;
    size_t offset, size = (size_t)snprintf(probe, sizeof probe, "\\p{sc:%.*s}", (int)n, name);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)probe, size, PCRE2_UTF, &error, &offset, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* \p{Name}, \p{^Name}, \P{Name} */
static void property(reader *r) {
    const char *name = r->s + r->at + 3, *close = memchr(name, '}', r->n - r->at - 3);
    size_t n = close ? (size_t)(close - name) : 0, skip = n && *name == '^';
    if (n - skip > 2 && n < 40 && is_script(name + skip, n - skip))
        pz_str_addf(r->out, "\\%c{%ssc:%.*s}", r->s[r->at + 1], skip ? "^" : "", (int)(n - skip), name + skip);
    else
        pz_str_addn(r->out, r->s + r->at, 3 + n + (close != NULL));
    r->at += 3 + n + (close != NULL);
}

static pz_status escape(reader *r, bool in_class) {
    char c = r->at + 1 < r->n ? r->s[r->at + 1] : 0;
    const char *set = c == 's' ? SPACE : c == 'S' ? NO_SPACE : c == 'w' || c == 'W' ? WORD : NULL;
    if (c == 'h' || c == 'H') return unsupported(r, "\\h");
    if (c == 'W' && in_class) return unsupported(r, "\\W in a class");
    if (set) {
        const char *open = c == 'W' ? "[^" : "[";
        pz_str_addf(r->out, in_class ? "%.0s%s" : "%s%s]", open, set);
        r->at += 2;
    } else if ((c == 'p' || c == 'P') && r->at + 3 < r->n && r->s[r->at + 2] == '{') {
        property(r);
    } else {
        copy(r, 2);
    }
    return PZ_OK;
}

/* The inside of a class up to its ']' or "&&". */
static pz_status class_items(reader *r, size_t open) {
    while (r->at < r->n && !have(r, "&&")) {
        char c = r->s[r->at];
        if (c == ']' && r->at > open) return PZ_OK;
        if (c == '\\') {
            PZ_TRY(escape(r, true));
        } else if (have(r, "[:")) {
            const char *end = memmem(r->s + r->at, r->n - r->at, ":]", 2);
            if (!end) return unsupported(r, "an unfinished POSIX class");
            copy(r, (size_t)(end + 2 - (r->s + r->at)));
        } else if (c == '[') {
            return unsupported(r, "a class in a class");
        } else {
            copy(r, 1);
        }
    }
    return PZ_OK;
}

static pz_status simple_class(reader *r) {
    copy(r, have(r, "[^") ? 2 : 1);
    PZ_TRY(class_items(r, r->at));
    if (have(r, "&&")) return unsupported(r, "&& inside an inner or a negated class");
    copy(r, 1);
    return PZ_OK;
}

/* [a] or [a&&b&&[^c]]; the latter becomes (?:(?=[b])(?=[^c])[a]). */
static pz_status bracket(reader *r) {
    if (have(r, "[^")) return simple_class(r);
    r->at++;
    pz_str *out = r->out, first = {0}, rest = {0};
    r->out = &first;
    pz_str_add(r->out, "[");
    pz_status st = class_items(r, r->at);
    pz_str_add(r->out, "]");
    while (st == PZ_OK && have(r, "&&")) {
        r->at += 2;
        r->out = &rest;
        pz_str_add(r->out, "(?=");
        if (have(r, "[")) {
            st = simple_class(r);
        } else {
            pz_str_add(r->out, "[");
            st = class_items(r, r->at);
            pz_str_add(r->out, "]");
        }
        pz_str_add(r->out, ")");
        if (st == PZ_OK && r->at < r->n && !have(r, "&&") && !have(r, "]"))
            st = unsupported(r, "an item after a class in a class");
    }
    r->out = out;
    bool closed = r->at < r->n;
    r->at += closed;
    if (!closed) first.n--; /* leave the class open, so that PCRE2 reports it */
    if (rest.n)
        pz_str_addf(out, "(?:%s%.*s)", rest.s, (int)first.n, first.s ? first.s : "");
    else
        pz_str_addn(out, first.s, first.s ? first.n : 0);
    out->failed |= first.failed || rest.failed;
    pz_str_free(&first);
    pz_str_free(&rest);
    return st;
}

/* (?i:...) is the same in both; the other letters mean other things. */
static pz_status group_flags(reader *r) {
    size_t i = r->at + 2;
    while (i < r->n && ((r->s[i] >= 'a' && r->s[i] <= 'z') || r->s[i] == '-')) i++;
    bool flags = i < r->n && i > r->at + 2 && (r->s[i] == ':' || r->s[i] == ')');
    for (size_t j = r->at + 2; flags && j < i; j++)
        if (r->s[j] != 'i' && r->s[j] != '-') return unsupported(r, "a group flag other than i");
    copy(r, 2);
    return PZ_OK;
}

pz_status pz_tok_translate(const char *pattern, size_t size, pz_str *out, const char *where, pz_error *err) {
    reader r = {.s = pattern, .n = size, .out = out, .where = where, .err = err};
    while (r.at < r.n) {
        char c = r.s[r.at];
        if (c == '\\') {
            PZ_TRY(escape(&r, false));
        } else if (c == '[') {
            PZ_TRY(bracket(&r));
        } else if (have(&r, "(?")) {
            PZ_TRY(group_flags(&r));
        } else if (have(&r, "}+")) {
            return unsupported(&r, "{...}+");
        } else {
            copy(&r, 1);
        }
    }
    return out->failed ? PZ_NOMEM(err) : PZ_OK;
}

static pcre2_code *compile(const pz_tokenizer *t, const char *pattern, size_t size, uint32_t options, int *error) {
    size_t offset;
    *error = PCRE2_ERROR_NOMEMORY;
    pcre2_compile_context *context = pcre2_compile_context_create(t->pcre);
    if (!context) return NULL;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, size, options, error, &offset, context);
    pcre2_compile_context_free(context);
    return code;
}

pz_status pz_tok_compile(pz_tokenizer *t, const char *pattern, size_t size, bool literal, const char *where,
                         pcre2_code **out, pz_error *err) {
    if (size > PZ_TOK_MAX_PATTERN)
        return pz_fail(err, PZ_E_FORMAT, "%s: pattern of %zu bytes, at most %d are allowed", where, size,
                       PZ_TOK_MAX_PATTERN);
    int error;
    if (literal) {
        *out = compile(t, pattern, size, PCRE2_UTF | PCRE2_LITERAL, &error);
    } else {
        pz_str b = {0};
        pz_status st = pz_tok_translate(pattern, size, &b, where, err);
        if (st == PZ_OK) /* ^ and $ match at lines in Oniguruma */
            *out = compile(t, b.s ? b.s : "", b.n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                           &error);
        pz_str_free(&b);
        PZ_TRY(st);
    }
    if (!*out) {
        char why[120];
        if (error == PCRE2_ERROR_NOMEMORY || error == PCRE2_ERROR_HEAP_FAILED) return PZ_NOMEM(err);
        if (pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why) < 0) why[0] = 0;
        return pz_fail(err, PZ_E_FORMAT, "%s: bad regular expression \"%.200s\": %s", where, pattern, why);
    }
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* where there is no JIT, matching is only slower */
    return PZ_OK;
}
