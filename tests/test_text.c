/* SPDX-License-Identifier: Apache-2.0 */
/* The text form: print -> parse -> print, exact positions of errors, hostile text, GraphViz output. */
#include "support.h"

#include <dirent.h>
#include <locale.h>
#include <stdio.h>

#include "base/file.h"
#include "ir/ir_internal.h"

static pz_status parse(const char *text, pz_graph **g, pz_error *err) {
    return pz_graph_parse(text, strlen(text), "t", g, err);
}

static char *print(const pz_graph *g) {
    pz_error err = {0};
    char *s;
    assert_ok(pz_graph_print(g, &s, &err), &err);
    return s;
}

/* ---- GraphViz: a reader of the language's grammar (graphviz.org/doc/info/lang.html), as far as it is needed ---- */
typedef struct dot_reader {
    const char *s;
    int edges, zero_edges, records, clusters;
} dot_reader;

static bool dot_token(dot_reader *d, char *tok, size_t cap) {
    size_t n = 0;
    d->s += strspn(d->s, " \n");
    if (!*d->s) return false;
    if (*d->s == '"') {
        tok[n++] = *d->s++;
        while (*d->s && *d->s != '"') {
            if (*d->s == '\\') {
                assert_non_null(strchr("n\"\\lr", d->s[1]));
                tok[n++] = *d->s++;
            }
            assert_true(*d->s != '\n' && n + 3 < cap);
            tok[n++] = *d->s++;
        }
        assert_int_equal(*d->s, '"');
        d->s++;
    } else if (strncmp(d->s, "->", 2) == 0) {
        memcpy(tok, d->s, n = 2);
        d->s += 2;
    } else if (strchr("{}[]=;,", *d->s)) {
        tok[n++] = *d->s++;
    } else {
        n = strspn(d->s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
        if (!n || n >= cap) fail_msg("not a token: %.20s", d->s);
        memcpy(tok, d->s, n);
        d->s += n;
    }
    tok[n] = 0;
    return true;
}

static void dot_expect(dot_reader *d, const char *want) {
    char tok[4096];
    assert_true(dot_token(d, tok, sizeof tok));
    assert_string_equal(tok, want);
}

/* [name=value, ...] after the opening bracket. */
static void dot_attrs(dot_reader *d) {
    char tok[4096];
    do {
        assert_true(dot_token(d, tok, sizeof tok) && (tok[0] == '_' || (tok[0] >= 'a' && tok[0] <= 'z')));
        dot_expect(d, "=");
        assert_true(dot_token(d, tok, sizeof tok) && !strchr("{}[]=;,", tok[0]));
        d->records += strcmp(tok, "record") == 0;
        d->zero_edges += strcmp(tok, "\"dashed,bold") == 0;
        assert_true(dot_token(d, tok, sizeof tok));
    } while (strcmp(tok, ",") == 0);
    assert_string_equal(tok, "]");
}

static void dot_statements(dot_reader *d, int depth) {
    char tok[4096];
    for (;;) {
        assert_true(dot_token(d, tok, sizeof tok));
        if (strcmp(tok, "}") == 0) return;
        if (strcmp(tok, "subgraph") == 0) {
            assert_int_equal(depth, 0);
            assert_true(dot_token(d, tok, sizeof tok) && strncmp(tok, "\"cluster", 8) == 0);
            d->clusters++;
            dot_expect(d, "{");
            dot_statements(d, depth + 1);
            continue;
        }
        assert_true(!strchr("{}[]=;,", tok[0]));
        assert_true(dot_token(d, tok, sizeof tok));
        if (strcmp(tok, "->") == 0) {
            d->edges++;
            assert_true(dot_token(d, tok, sizeof tok) && tok[0] == '"');
            assert_true(dot_token(d, tok, sizeof tok));
        }
        if (strcmp(tok, "=") == 0) {
            assert_true(dot_token(d, tok, sizeof tok) && tok[0] == '"');
        } else {
            assert_string_equal(tok, "[");
            dot_attrs(d);
        }
        dot_expect(d, ";");
    }
}

static dot_reader read_dot(const pz_graph *g) {
    pz_error err = {0};
    char *text;
    assert_ok(pz_graph_dot(g, &text, &err), &err);
    dot_reader d = {.s = text};
    dot_expect(&d, "digraph");
    dot_expect(&d, "prezero");
    dot_expect(&d, "{");
    dot_statements(&d, 0);
    d.s += strspn(d.s, " \n");
    assert_string_equal(d.s, "");
    pz_free(text);
    return d;
}

/* ---- round trip over tests/ir ---- */
typedef void (*file_fn)(const char *name, const char *text, size_t size);

static int each_file(file_fn fn) {
    DIR *dir = opendir(PZ_SOURCE_DIR "/tests/ir");
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strstr(e->d_name, ".pz")) continue;
        pz_error err = {0};
        char *path = support_path(PZ_SOURCE_DIR "/tests/ir", e->d_name), *text;
        size_t size;
        assert_ok(pz_file_read(path, &text, &size, &err), &err);
        fn(e->d_name, text, size);
        pz_free(text);
        pz_free(path);
        n++;
    }
    closedir(dir);
    return n;
}

static void round_trip(const char *name, const char *text, size_t size) {
    pz_error err = {0};
    pz_graph *g, *again, *clone;
    assert_ok(pz_graph_parse(text, size, name, &g, &err), &err);
    char *first = print(g);
    assert_ok(pz_graph_parse(first, strlen(first), name, &again, &err), &err);
    char *second = print(again);
    assert_string_equal(first, second);
    assert_ok(pz_graph_clone(g, &clone, &err), &err);
    char *third = print(clone);
    assert_string_equal(first, third);
    assert_ok(pz_graph_verify(clone, &err), &err);
    assert_int_equal(read_dot(g).clusters, g->funcs.n);
    pz_free(first);
    pz_free(second);
    pz_free(third);
    pz_graph_free(again);
    pz_graph_free(clone);
    pz_graph_free(g);
}

static void test_round_trip(void **state) {
    (void)state;
    assert_true(each_file(round_trip) >= 4);
}

/* The canonical form of the file that has every freedom of the grammar, written out by hand. */
static const char syntax_printed[] = "weight @w: f32[?,64]\n"
                                     "weight @W_.9.: bf16[2048]\n"
                                     "weight @_: fp8[8,1,2]\n"
                                     "weight @n: f32[?]\n"
                                     "weight @n64: f32[64]\n"
                                     "\n"
                                     "func @main.(%0: f32[m,64], %m: i32[m], %00: i32[m,8]) {\n"
                                     "  %z.9 = gemm(%0, @w)\n"
                                     "  %_, %q = add_rms_norm(%z.9, %z.9, @n) {eps=1e-6, out=bf16}\n"
                                     "  call @nothing(%m)\n"
                                     "  %e = rms_norm(%0, @n64) {eps=0.30000000000000004}\n"
                                     "  %f = rms_norm(%0, @n64) {eps=12345678}\n"
                                     "  %g = rms_norm(%0, @n64) {eps=1e300}\n"
                                     "  %i = rms_norm(%0, @n64) {out=f32, eps=4.94065646e-324}\n"
                                     "  %r = rms_norm(%0, @n64) {eps=-0}\n"
                                     "  return %_, %q, %0, %0\n"
                                     "}\n"
                                     "\n"
                                     "func @nothing(%x: i32[m]) {\n"
                                     "  return\n"
                                     "}\n";

static void check_syntax(const char *name, const char *text, size_t size) {
    if (strcmp(name, "syntax.pz")) return;
    pz_error err = {0};
    pz_graph *g;
    assert_ok(pz_graph_parse(text, size, name, &g, &err), &err);
    char *s = print(g);
    assert_string_equal(s, syntax_printed);
    pz_free(s);
    pz_graph_free(g);
}

static void test_canonical(void **state) {
    (void)state;
    each_file(check_syntax);
    /* A decimal comma in the process's locale changes nothing. */
    const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    for (size_t i = 0; i < sizeof locales / sizeof *locales; i++) setlocale(LC_ALL, locales[i]);
    each_file(check_syntax);
    setlocale(LC_ALL, "C");
}

static void test_floats(void **state) {
    (void)state;
    static const struct {
        double v;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {1e-6, "1e-6"},
                 {1e-5, "1e-5"},
                 {100, "100"},
                 {1e10, "1e10"},
                 {-2.5, "-2.5"},
                 {0, "0"},
                 {1.0 / 3, "0.3333333333333333"},
                 {0x1p-1074, "4.94065646e-324"},
                 {1.7976931348623157e308, "1.7976931348623157e308"},
                 {0.1352337788608801, "0.1352337788608801"},
                 {1e-100, "1e-100"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char buf[PZ_FLOAT_TEXT];
        double back = 0;
        pz_float_text(cases[i].v, buf);
        assert_string_equal(buf, cases[i].text);
        assert_true(pz_float_parse(buf, &back) && back == cases[i].v);
    }
    double v = 7;
    static const char *const wrong[] = {"", "x", "1x", "1e999", "nan", "inf", "-inf", "1,5"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_false(pz_float_parse(wrong[i], &v));
    assert_true(v == 7);
}

/* ---- errors ---- */
typedef struct bad_text {
    const char *text, *message;
} bad_text;

#define F "func @f(%x: f32[m,8]) {\n"
static const bad_text bad[] = {
    /* lexer */
    {"$", "t:1:1: unexpected character: '$'"},
    {"# c\n \t\xff", "t:2:3: unexpected character: '\\xff'"},
    {"weight %", "t:1:8: expected a name or a number after '%': '%'"},
    {"weight @ w", "t:1:8: expected a name after '@': '@'"},
    {"weight @1", "t:1:8: expected a name after '@': '@'"},
    {"weight @w: f32[-", "t:1:16: unexpected character: '-'"},
    {"weight @w: f32[8]\r\n\r\n  oops", "t:3:3: expected 'weight' or 'func', found 'oops'"},
    /* top level */
    {"wait @w: f32[8]", "t:1:1: expected 'weight' or 'func', found 'wait'"},
    {"weight", "t:1:7: expected @weight after 'weight', found end of text"},
    {"weight w: f32[8]", "t:1:8: expected @weight after 'weight', found 'w'"},
    {"weight @w f32[8]", "t:1:11: expected ':' after weight name, found 'f32'"},
    {"weight @w: f33[8]", "t:1:12: expected a data type, found 'f33'"},
    {"weight @w: f32", "t:1:15: expected '[' after the data type, found end of text"},
    {"weight @w: f32[]", "t:1:16: expected a dimension: a positive number, m or ?, found ']'"},
    {"weight @w: f32[8 9]", "t:1:18: expected ',' or ']' after dimension, found '9'"},
    {"weight @w: f32[0]", "t:1:16: dimension '0' is not a number in 1..2147483647"},
    {"weight @w: f32[-4]", "t:1:16: dimension '-4' is not a number"},
    {"weight @w: f32[2147483648]", "t:1:16: dimension '2147483648' is not a number"},
    {"weight @w: f32[99999999999999999999]", "t:1:16: dimension '99999999999999999999' is not a number"},
    {"weight @w: f32[1.5]", "t:1:16: dimension '1.5' is not a number"},
    {"weight @w: f32[1,2,3,4,5]", "t:1:24: more than 4 dimensions"},
    {"weight @w: f32[m]", "t:1:12: dimension 1 of f32[m] is not a number"},
    {"weight @w: i32[8]", "t:1:12: a weight cannot be i32[8]; expected bf16, f32, mxfp4 or fp8"},
    {"weight @w: fixed[8]", "t:1:12: a weight cannot be fixed[8]"},
    {"weight @w: buffer[8]", "t:1:12: a weight cannot be buffer[8]"},
    {"weight @w: mxfp4[32,33]", "t:1:12: last dimension of mxfp4[32,33] must be a multiple of 32"},
    {"weight @w: f32[1,2,3,4]", "t:1:12: weight f32[1,2,3,4] must have 1 to 3 dimensions"},
    {"weight @w: f32[2147483647,2147483647,2147483647]",
     "t:1:12: f32[2147483647,2147483647,2147483647] has more than 2^48"},
    {"weight @w: f32[8]\nweight @w: f32[8]", "t:2:8: weight @w is declared twice"},
    /* functions */
    {"func f()", "t:1:6: expected @function after 'func', found 'f'"},
    {"func @f{", "t:1:8: expected '(' after function name, found '{'"},
    {"func @f(x", "t:1:9: expected %parameter, found 'x'"},
    {"func @f(%x,", "t:1:11: expected ':' after parameter name, found ','"},
    {"func @f(%x: f32[m,8]", "t:1:21: expected ',' or ')' after parameter, found end of text"},
    {"func @f(%x: f32[m,8],)", "t:1:22: expected %parameter, found ')'"},
    {"func @f(%x: f32[4,8])", "t:1:13: value of type f32[4,8]; expected f32, bf16 or fixed [m,columns]"},
    {"func @f(%x: f32[m])", "t:1:13: value of type f32[m]"},
    {"func @f(%x: mxfp4[m,32])", "t:1:13: value of type mxfp4[m,32]"},
    {"func @f(%x: i32[m,2,2])", "t:1:13: value of type i32[m,2,2]"},
    {"func @f(%x: f32[m,m])", "t:1:13: dimension 2 of f32[m,m] is not a number"},
    {"func @f(%x: i32[m], %x: i32[m])", "t:1:21: value %x is defined twice in @f"},
    {"func @f() { return } func @f()", "t:1:27: function @f is defined twice"},
    {"func @f() -> ()", "t:1:11: expected '{' or 'opaque', found '->'"},
    {"func @f() opaque", "t:1:17: expected '{', or '->' and result types, found end of text"},
    {"func @f() opaque slots()", "t:1:24: expected a slot name, found ')'"},
    {"func @f() opaque slots(a b", "t:1:26: expected ':' after slot name, found 'b'"},
    {"func @f() opaque slots(a: i32[m])", "t:1:27: slot of type i32[m]; expected an accumulator"},
    {"func @f() opaque slots(a: f32[m,1], a: f32[m,1])", "t:1:37: slot a is declared twice in @f"},
    {"func @f() opaque slots(a: f32[m,1]", "t:1:35: expected ',' or ')' after slot, found end of text"},
    {"func @f() opaque -> f32", "t:1:21: expected '(' after '->', found 'f32'"},
    {"func @f() opaque -> (f32[m,8]", "t:1:30: expected ',' or ')' after type, found end of text"},
    {"func @f() opaque -> (f32[8,8])", "t:1:22: value of type f32[8,8]"},
    /* statements */
    {F "}", "t:2:1: expected a statement, 'return' or '}', found '}'"},
    {F "  %y", "t:2:5: expected ',' or '=' after result, found end of text"},
    {F "  %y,= ", "t:2:6: expected %value, found '='"},
    {F "  %y = %x", "t:2:8: expected an operation, found '%x'"},
    {F "  %y = mul(%x)", "t:2:8: unknown operation 'mul'"},
    {F "  %y = add %x", "t:2:12: expected '(' after the operation, found '%x'"},
    {F "  %y = add(%x", "t:2:14: expected ',' or ')' after operand, found end of text"},
    {F "  %y = add(%x %x)", "t:2:15: expected ',' or ')' after operand, found '%x'"},
    {F "  %y = add(%x,)", "t:2:15: expected an operand, found ')'"},
    {F "  %y = add(%x, %z)", "t:2:16: value %z is not defined before this use"},
    {F "  %y = add(%x, %y)", "t:2:16: value %y is not defined before this use"},
    {F "  %y = add(%x, %x, %x)", "t:2:20: add takes 2 operands without name; it takes: a:act b:act"},
    {F "  %y = add(%x, b=%x)", "t:2:16: operand b is not optional: it is given by its place"},
    {F "  %y = add(%x, c=%x)", "t:2:16: add has no operand 'c'; it takes: a:act b:act"},
    {F "  %y = gemm(%x, @w, into=%x:s, into=%x:s)", "t:2:32: into is given twice"},
    {F "  %y = gemm(%x, into=%x:s, @w)", "t:2:28: an operand without name comes after one with name"},
    {F "  %y = gemm(%x, @w, into %x)", "t:2:26: expected '=' after operand name, found '%x'"},
    {F "  %y = gemm(%x, @w, into=x)", "t:2:26: expected %value or @weight, found 'x'"},
    {F "  %y = gemm(%x, @w, into=%x:%y)", "t:2:29: expected a slice name after ':', found '%y'"},
    {F "  %y = gemm(%x:s, @w)", "t:2:15: expected ',' or ')' after operand, found ':'"},
    {F "  %x = add(%x, %x)", "t:2:3: value %x is defined twice in @f"},
    {F "  %y, %y = add_rms_norm(%x, %x, @n)", "t:2:7: value %y is defined twice in @f"},
    {F "  call f()", "t:2:8: expected @function after call, found 'f'"},
    {F "  call @g(@w)", "t:2:11: a call takes values, not weights"},
    {F "  call @g(a=%x:s, a=%x:s)", "t:2:19: a is given twice"},
    {F "  call @g(a=@w)", "t:2:13: a call takes values, not weights"},
    {F "  call @g() {a=1}", "t:2:14: call has no attribute 'a'; it has: none"},
    {F "  call @g(%x)\n return }", "t:2:8: function @g is defined nowhere"},
    {F "  %y = gemm(%x, @w)\n return }", "t:2:17: weight @w is declared nowhere"},
    /* attributes */
    {F "  %y = gemm(%x, @w) {}", "t:2:22: expected an attribute name, found '}'"},
    {F "  %y = gemm(%x, @w) {acc=f32}", "t:2:22: gemm has no attribute 'acc'; it has: accum:str=f32 slot:str="},
    {F "  %y = gemm(%x, @w) {accum=f32, accum=f32}", "t:2:33: attribute accum is given twice"},
    {F "  %y = gemm(%x, @w) {accum f32}", "t:2:28: expected '=' after attribute name, found 'f32'"},
    {F "  %y = gemm(%x, @w) {accum=1}", "t:2:28: expected a word, found '1'"},
    {F "  %y = gemm(%x, @w) {accum=f32", "t:2:31: expected ',' or '}' after attribute, found end of text"},
    {F "  %y = slice(%x) {start=a}", "t:2:25: expected a whole number, found 'a'"},
    {F "  %y = slice(%x) {start=1.5}", "t:2:25: '1.5' is not a whole number of 64 bits"},
    {F "  %y = slice(%x) {start=9223372036854775808}", "t:2:25: '9223372036854775808' is not a whole number"},
    {F "  %y = rms_norm(%x, @n) {eps=x}", "t:2:30: expected a number, found 'x'"},
    {F "  %y = rms_norm(%x, @n) {eps=1e999}", "t:2:30: '1e999' is not a finite number"},
    {F "  %y = rms_norm(%x, @n) {out=f16}", "t:2:30: expected a data type, found 'f16'"},
    {F "  %y = buffer() {slices=a}", "t:2:25: expected a list of words, [a, b], found 'a'"},
    {F "  %y = buffer() {slices=[a", "t:2:27: expected ',' or ']' after word, found end of text"},
    {F "  %y = buffer() {slices=[a,]}", "t:2:28: expected a word, found ']'"},
    /* return */
    {F "  return 1", "t:2:10: expected '}' or %value after 'return', found '1'"},
    {F "  return %x %x", "t:2:13: expected ',' or '}' after result, found '%x'"},
    {F "  return %x, }", "t:2:14: expected %value, found '}'"},
    {F "  return %y }", "t:2:10: value %y is not defined before this use"},
    {F "  return %x", "t:2:12: expected ',' or '}' after result, found end of text"},
};

static void test_errors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pz_error err = {0};
        pz_graph *g = NULL;
        pz_status st = parse(bad[i].text, &g, &err);
        if (st == PZ_OK || g) fail_msg("parsed: %s", bad[i].text);
        if (strncmp(err.msg, bad[i].message, strlen(bad[i].message)))
            fail_msg("%s\n%s\nexpected %s", bad[i].text, err.msg, bad[i].message);
        assert_int_equal(parse(bad[i].text, &g, NULL), st);
    }
}

/* Every prefix of a good text, and every text with one byte changed, gives a graph or a message, never anything else.
 */
static void test_damaged(void **state) {
    (void)state;
    static const char text[] = "weight @n: f32[8] weight @w: bf16[4,8]\n"
                               "func @f(%x: f32[m,8]) {\n"
                               "%b = buffer() {slices=[s]} %y, %z = rms_norm(%x, @n, zero_fill=%b) {eps=1e-6}\n"
                               "%c = gemm(%y, @w, into=%z:s) {accum=fixed} %d = call @g(%c) return %d }\n"
                               "func @g(%x: fixed[m,4]) opaque slots(a: f32[m,4]) -> (f32[m,?]) # end";
    static const char bytes[] = "%@{}[](),:=?.-#\n 0aM\0\x80";
    pz_error err = {0};
    pz_graph *g;
    assert_ok(parse(text, &g, &err), &err);
    pz_graph_free(g);
    for (size_t n = 0; n + 1 < sizeof text; n++) {
        pz_status st = pz_graph_parse(text, n, "t", &g, &err);
        /* the closing brace of @f, and the end of the last function and of its comment, complete a graph */
        if (st == PZ_OK && n < sizeof text - 7) fail_msg("prefix of %zu bytes parses", n);
        pz_graph_free(g);
    }
    char copy[sizeof text];
    for (size_t at = 0; at + 1 < sizeof text; at++)
        for (size_t i = 0; i + 1 < sizeof bytes; i++) {
            memcpy(copy, text, sizeof text);
            copy[at] = bytes[i];
            err.msg[0] = 0;
            pz_status st = pz_graph_parse(copy, sizeof text - 1, "t", &g, &err);
            assert_true(st == PZ_OK
                            ? g != NULL
                            : !g && err.code == st && (st == PZ_E_PARSE || st == PZ_E_TYPE || st == PZ_E_VERIFY));
            if (st != PZ_OK && strncmp(err.msg, "t:", 2)) fail_msg("no position: %s", err.msg);
            pz_graph_free(g);
        }
}

/* ---- limits and size ---- */
static pz_status parse_str(pz_str *s, pz_graph **g, pz_error *err) {
    char *text;
    assert_ok(pz_str_take(s, &text, err), err);
    pz_status st = pz_graph_parse(text, strlen(text), "t", g, err);
    pz_free(text);
    return st;
}

static void repeat(pz_str *s, const char *text, int n) {
    for (int i = 0; i < n; i++) pz_str_add(s, text);
}

static void test_limits(void **state) {
    (void)state;
    pz_error err = {0};
    pz_graph *g;
    for (int over = 0; over < 2; over++) {
        pz_str s = {0};
        pz_str_add(&s, "func @f() { return }\nweight @");
        repeat(&s, "n", PZ_MAX_NAME + over);
        pz_str_add(&s, ": f32[8]");
        if (over)
            assert_fails(parse_str(&s, &g, &err), PZ_E_PARSE, &err,
                         "t:2:8: name or number longer than 255 bytes: 'nnnnn");
        else
            assert_ok(parse_str(&s, &g, &err), &err);
        pz_graph_free(g);

        s = (pz_str){0};
        pz_str_add(&s, "func @f(%x: f32[m,8]) {\nreturn %x");
        repeat(&s, ",%x", PZ_MAX_RETURNS - 1 + over);
        pz_str_add(&s, " }");
        if (over)
            assert_fails(parse_str(&s, &g, &err), PZ_E_PARSE, &err, "t:2:200: more than 64 results");
        else
            assert_ok(parse_str(&s, &g, &err), &err);
        pz_graph_free(g);

        s = (pz_str){0};
        pz_str_add(&s, "func @f(%x: f32[m,8]) { return }\nfunc @g() opaque slots(a: f32[m,8]");
        for (int i = 1; i < PZ_MAX_SLOTS + over; i++) pz_str_addf(&s, ", s%d: f32[m,8]", i);
        pz_str_add(&s, ") -> ()");
        if (over)
            assert_fails(parse_str(&s, &g, &err), PZ_E_VERIFY, &err, "function @g has more than 256 slots");
        else
            assert_ok(parse_str(&s, &g, &err), &err);
        pz_graph_free(g);
    }
    static const struct {
        const char *head, *part, *message;
        int n;
    } lists[] = {
        {"func @f() {\n", "%x,", "t:2:193: more than 64 results", 70},
        {"func @f() {\n%b = buffer() {slices=[", "s,", "more than 256 words", 300},
        {"func @f(%x: f32[m,8]) {\n%b = add(", "%x,", "add takes 2 operands without name", 300},
        {"func @f() opaque -> (", "i32[m],", "function @f has more than 64 results", 70},
        {"func @f(", "(", "t:1:9: expected %parameter, found '('", 100000},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        pz_str s = {0};
        pz_str_add(&s, lists[i].head);
        repeat(&s, lists[i].part, lists[i].n);
        pz_status st = parse_str(&s, &g, &err);
        assert_true(st == PZ_E_PARSE || st == PZ_E_VERIFY);
        assert_contains(err.msg, lists[i].message);
    }
    pz_str s = {0};
    pz_str_add(&s, "func @f(%x: f32[m,8]) {\ncall @f(");
    for (int i = 0; i < 300; i++) pz_str_addf(&s, "s%d=%%x:a,", i);
    assert_fails(parse_str(&s, &g, &err), PZ_E_VERIFY, &err, "more than 256 slots are given");
}

/* Long chains and cycles of calls use no stack; the work grows with the text, not with the paths through the calls. */
static void test_calls(void **state) {
    (void)state;
    enum { N = 5000 };
    for (int cycle = 0; cycle < 2; cycle++) {
        pz_error err = {0};
        pz_graph *g;
        pz_str s = {0};
        for (int i = 0; i < N; i++)
            pz_str_addf(&s, "func @f%d(%%x: f32[m,8]) { %%y = call @f%d(%%x) %%z = call @f%d(%%y) return %%z }\n", i,
                        i + 1, i + 1);
        if (cycle)
            pz_str_addf(&s, "func @f%d(%%x: f32[m,8]) { %%y = call @f0(%%x) return %%y }", N);
        else
            pz_str_addf(&s, "func @f%d(%%x: f32[m,8]) { return %%x }", N);
        if (cycle)
            assert_fails(parse_str(&s, &g, &err), PZ_E_VERIFY, &err, "t:5001:29: @f5000: call @f0: recursive call");
        else
            assert_ok(parse_str(&s, &g, &err), &err);
        pz_graph_free(g);
    }
}

/* 61 layers of tests/ir/mla_moe.pz's kind. */
static void test_deep_model(void **state) {
    (void)state;
    pz_error err = {0};
    pz_graph *g, *again;
    pz_str s = {0};
    pz_str_add(&s, "func @decode(%h0: bf16[m,7168]) {\n");
    for (int i = 0; i < 61; i++)
        pz_str_addf(&s,
                    "%%z%d = buffer() {slices=[qkv_a, gate]}\n"
                    "%%x%d, %%r%d, %%y%d = add_rms_norm(%%h%d, %%h%d, @layers.%d.norm, zero_fill=%%z%d)\n"
                    "%%q%d = gemm(%%x%d, @layers.%d.qkv_a, into=%%y%d:qkv_a) {accum=fixed}\n"
                    "%%g%d = gemm(%%x%d, @layers.%d.gate, into=%%y%d:gate) {accum=fixed}\n"
                    "%%i%d, %%w%d = router(%%g%d) {top_k=8}\n"
                    "%%h%d = moe_experts(%%x%d, %%i%d, %%w%d, @layers.%d.up, @layers.%d.down) {out=bf16}\n",
                    i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, i + 1, i, i, i, i, i);
    pz_str_add(&s, "return %h61 }\n");
    for (int i = 0; i < 61; i++)
        pz_str_addf(&s,
                    "weight @layers.%d.norm: bf16[7168] weight @layers.%d.qkv_a: bf16[2112,7168]\n"
                    "weight @layers.%d.gate: bf16[384,7168] weight @layers.%d.up: mxfp4[384,1024,7168]\n"
                    "weight @layers.%d.down: mxfp4[384,7168,512]\n",
                    i, i, i, i, i);
    assert_ok(parse_str(&s, &g, &err), &err);
    assert_int_equal(g->funcs.at[0]->nodes.n, 61 * 6);
    char *text = print(g);
    assert_ok(parse(text, &again, &err), &err);
    char *second = print(again);
    assert_string_equal(text, second);
    dot_reader d = read_dot(g);
    assert_int_equal(d.records, 61);
    assert_int_equal(d.zero_edges, 61 * 3);
    pz_free(text);
    pz_free(second);
    pz_graph_free(g);
    pz_graph_free(again);
}

/* ---- GraphViz ---- */
static void check_dot(const char *name, const char *text, size_t size) {
    if (strcmp(name, "prezeroed.pz")) return;
    pz_error err = {0};
    pz_graph *g;
    char *dot;
    assert_ok(pz_graph_parse(text, size, name, &g, &err), &err);
    dot_reader d = read_dot(g);
    assert_int_equal(d.clusters, 2);
    assert_int_equal(d.records, 2);
    assert_int_equal(d.zero_edges, 2 + 4); /* two fills; qkv_a, q_b, o_proj, gate */
    assert_ok(pz_graph_dot(g, &dot, &err), &err);
    assert_contains(dot, "label=\"{buffer %z0|{qkv_a|q_b|o_proj}}\"");
    assert_contains(dot, "\"@decode %z0\" -> \"@decode %x\" [label=\"zero_fill\", style=\"dashed,bold\"");
    assert_contains(dot, "\"@decode %x\" -> \"@decode %attn\" [label=\"o_proj\", style=\"dashed,bold\"");
    assert_contains(dot, "\"@decode %x\" -> \"@decode %qkv\" [label=\"%x: bf16[m,7168]\"]");
    assert_contains(
        dot, "\"@decode %x\" [fillcolor=\"#f5a742\", label=\"fused_allreduce_rmsnorm\\n@layers.1.input_layernorm\"]");
    assert_contains(dot, "\"@decode %qkv\" [fillcolor=\"#8fd19e\"");
    assert_contains(dot, "\"@decode %attn\" [fillcolor=\"#8fd19e\"");
    assert_contains(dot, "\"@attention.1 %q\" [fillcolor=\"#dcecf9\"");
    pz_free(dot);
    pz_graph_free(g);
}

static void test_dot(void **state) {
    (void)state;
    each_file(check_dot);
}

/* ---- memory ---- */
static pz_status work(void *text) {
    pz_graph *g, *clone = NULL;
    char *out = NULL, *dot = NULL;
    pz_status st = parse(text, &g, NULL);
    if (st == PZ_OK) st = pz_graph_clone(g, &clone, NULL);
    if (st == PZ_OK) st = pz_graph_print(clone, &out, NULL);
    if (st == PZ_OK) st = pz_graph_dot(clone, &dot, NULL);
    pz_free(out);
    pz_free(dot);
    pz_graph_free(clone);
    pz_graph_free(g);
    return st;
}

static void sweep(const char *name, const char *text, size_t size) {
    (void)name, (void)size;
    assert_true(support_alloc_sweep(work, (void *)text) > 20);
}

static void test_no_memory(void **state) {
    (void)state;
    each_file(sweep);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_canonical),  cmocka_unit_test(test_floats),
        cmocka_unit_test(test_errors),     cmocka_unit_test(test_damaged),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_calls),      cmocka_unit_test(test_deep_model), cmocka_unit_test(test_dot),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
