/* SPDX-License-Identifier: Apache-2.0 */
/* The command line as a user has it: the program is started, and exit status, output and messages are looked at. */
#include "support.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "prezero/kernels.h"

#define PROGRAM PZ_BINARY_DIR "/prezero"
#define MODEL PZ_SOURCE_DIR "/models/kimi-tiny"
#define CONFIGS PZ_SOURCE_DIR "/tests/data/configs"
#define QUESTION "Question: Hugo has 76 eggs and gives 67 to Kim. How many eggs are left?\nAnswer:"

extern char **environ;
static char *dir; /* of the files of this program */

typedef struct result {
    int rc;
    char *out, *err;
    size_t out_size;
} result;

static char *in_dir(const char *name) {
    static char buf[64][600];
    static int next;
    char *p = buf[next++ % 64];
    snprintf(p, sizeof *buf, "%s/%s", dir, name);
    return p;
}

static void write_file(const char *path, const char *data, size_t n) {
    pz_error err;
    assert_ok(pz_file_write(path, data, n, &err), &err);
}

static char *read_all(const char *path, size_t *size) {
    pz_error err;
    char *text;
    size_t n;
    assert_ok(pz_file_read(path, &text, &n, &err), &err);
    if (size) *size = n;
    return text;
}

/* Runs the program with a NULL-terminated list of arguments. `env`, if not NULL, is one more NAME=value; `in` is what
 * standard input holds; `out_path` replaces the file that takes standard output. */
static result run_with(const char *env, const char *in, const char *out_path, const char *const *args) {
    char *argv[32] = {(char *)(uintptr_t)PROGRAM}, *envp[512];
    int n = 1, e = 0;
    for (; args[n - 1]; n++) argv[n] = (char *)(uintptr_t)args[n - 1];
    if (env) envp[e++] = (char *)(uintptr_t)env;
    for (char **p = environ; *p && e < 510; p++) envp[e++] = *p;
    envp[e] = NULL;
    write_file(in_dir("stdin"), in ? in : "", in ? strlen(in) : 0);
    const char *out = out_path ? out_path : in_dir("stdout");
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, in_dir("stdin"), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 2, in_dir("stderr"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t pid;
    int status;
    assert_int_equal(posix_spawn(&pid, PROGRAM, &files, NULL, argv, envp), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    posix_spawn_file_actions_destroy(&files);
    if (!WIFEXITED(status)) fail_msg("%s %s ended by signal %d", args[0], args[1] ? args[1] : "", WTERMSIG(status));
    result r = {.rc = WEXITSTATUS(status), .err = read_all(in_dir("stderr"), NULL)};
    if (!out_path) r.out = read_all(out, &r.out_size);
    return r;
}

#define RUN(...) run_with(NULL, NULL, NULL, (const char *const[]){__VA_ARGS__, NULL})
#define RUN_ENV(env, ...) run_with(env, NULL, NULL, (const char *const[]){__VA_ARGS__, NULL})
#define RUN_IN(in, ...) run_with(NULL, in, NULL, (const char *const[]){__VA_ARGS__, NULL})

static void release(result *r) {
    pz_free(r->out);
    pz_free(r->err);
    *r = (result){0};
}

static void expect_ok(const result *r) {
    if (r->rc != 0) fail_msg("exit status %d: %s", r->rc, r->err);
}

/* One line on standard error that names the program and holds each text; nothing on standard output. */
static void expect_refused(result r, int rc, const char *const *texts) {
    if (r.rc != rc) fail_msg("exit status %d instead of %d: %s", r.rc, rc, r.err);
    if (strncmp(r.err, "prezero: ", 9) != 0 || strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
        fail_msg("not one line: %s", r.err);
    if (r.out_size) fail_msg("partial output: %s", r.out);
    for (; *texts; texts++) assert_contains(r.err, *texts);
    release(&r);
}
#define REFUSED(r, rc, ...) expect_refused(r, rc, (const char *const[]){__VA_ARGS__, NULL})

static json_t *parse_json(const char *text) {
    json_error_t e;
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (!v) fail_msg("%d:%d: %s in: %.200s", e.line, e.column, e.text, text);
    return v;
}

static json_t *json_file(const char *path) {
    char *text = read_all(path, NULL);
    json_t *v = parse_json(text);
    pz_free(text);
    return v;
}

/* ---- usage ---- */
static const char *const commands[] = {"run",    "compare", "eval", "logits",  "explain", "opt",
                                       "passes", "knobs",   "ops",  "version", "tune",    "bench"};

static void test_help(void **state) {
    (void)state;
    result all = RUN("--help");
    expect_ok(&all);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        assert_contains(all.out, commands[i]);
        result r = RUN(commands[i], "--help"), same = RUN("help", commands[i]), first = RUN(commands[i], "-h", "x");
        expect_ok(&r);
        expect_ok(&same);
        assert_string_equal(r.out, same.out);
        assert_string_equal(r.err, "");
        assert_contains(r.out, "usage: prezero ");
        assert_contains(r.out, commands[i]);
        assert_contains(r.out, "--help");
        assert_null(strstr(r.out, " \n"));
        release(&r);
        release(&same);
        release(&first);
    }
    release(&all);
}

static void test_usage(void **state) {
    (void)state;
    result none = run_with(NULL, NULL, NULL, (const char *const[]){NULL});
    REFUSED(none, 2, "command", "--help");
    REFUSED(RUN("rnu"), 2, "\"rnu\"", "did you mean run?");
    REFUSED(RUN("explian", "x"), 2, "did you mean explain?");
    REFUSED(RUN("zzzzzz"), 2, "unknown command \"zzzzzz\"", "--help");
    REFUSED(RUN("help", "comapre"), 2, "did you mean compare?");
    REFUSED(RUN("--frobnicate"), 2, "unknown command");
    REFUSED(RUN("run"), 2, "MODEL");
    REFUSED(RUN("run", MODEL), 2, "--prompt", "--ids");
    REFUSED(RUN("run", MODEL, "--prompt", "a", "--ids", "5"), 2, "--prompt", "--ids");
    REFUSED(RUN("run", MODEL, "--promt", "x"), 2, "--promt", "did you mean --prompt?");
    REFUSED(RUN("run", MODEL, "--max-token=4"), 2, "--max-token", "did you mean --max-tokens?");
    REFUSED(RUN("run", MODEL, "-prompt", "x"), 2, "-prompt");
    REFUSED(RUN("run", MODEL, "--qqqqqqqq"), 2, "unknown option --qqqqqqqq for run");
    REFUSED(RUN("run", MODEL, "-x"), 2, "unknown option -x");
    REFUSED(RUN("run", MODEL, "--prompt"), 2, "needs a value");
    REFUSED(RUN("run", MODEL, "--prompt", "--prezero"), 2, "needs a value", "--prompt=--prezero");
    REFUSED(RUN("run", MODEL, "second", "--prompt", "x"), 2, "\"second\"");
    REFUSED(RUN("run", MODEL, "--print-ids=3", "--ids", "5"), 2, "takes no value");
    REFUSED(RUN("version", "x"), 2, "\"x\"");
    REFUSED(RUN("logits", MODEL, "--ids", "5"), 2, "-o");
    REFUSED(RUN("logits", MODEL, "-o", "x"), 2, "--ids");
    REFUSED(RUN("explain", MODEL, "--json", "-", "--dot", "-"), 2, "standard output");
    REFUSED(RUN("knobs", "--json="), 2, "--json", "name of a file");
}

static void test_bad_values(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"--threads=abc", "an integer from 0 to 1024"},
        {"--threads=", "\"\""},
        {"--threads=1025", "\"1025\""},
        {"--threads=1x", "\"1x\""},
        {"--threads= 1", "\" 1\""},
        {"--threads=0x10", "\"0x10\""},
        {"--threads=99999999999999999999", "0 to 1024"},
        {"--max-tokens=0", "1 to 16777216"},
        {"--max-tokens=-1", "\"-1\""},
        {"--temperature=nan", "a number from 0 to 100"},
        {"--temperature=inf", "\"inf\""},
        {"--temperature=1e9", "\"1e9\""},
        {"--temperature=0x1", "\"0x1\""},
        {"--temperature=", "\"\""},
        {"--temperature=1.5.", "\"1.5.\""},
        {"--top-p=1.01", "a number from 0 to 1"},
        {"--top-p=-0.1", "0 to 1"},
        {"--accum=f64", "fixed|f32|bf16"},
        {"--accum=fixed|f32", "fixed|f32|bf16"},
        {"--dtype=", "bf16|f32"},
        {"--strategy=wish", "auto|self|reduce|none|ticket|memset"},
        {"--gate=ajar", "auto|strict|open|closed"},
        {"--prezero=2", "0|off|false|1|on|true"},
        {"--prezero=", "0|off|false|1|on|true"},
        {"--ids=5,x", "\"x\""},
        {"--ids=5,,6", "\"\""},
        {"--ids=5,", "comma"},
        {"--ids=", "no number"},
        {"--ids=-4", "\"-4\""},
        {"--ids=2147483648", "2147483647"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        REFUSED(RUN("run", MODEL, "--prompt", "a", cases[i][0]), 2, cases[i][1]);
    REFUSED(RUN("explain", MODEL, "--batch", "16,4"), 2, "4 after 16");
    REFUSED(RUN("explain", MODEL, "--batch", "0"), 2, "1 to 65536");
    REFUSED(RUN("compare", MODEL, "--steps", "2"), 2, "6 to 100000");
    REFUSED(RUN("eval", MODEL, "--limit", "-1"), 2, "--limit");
    REFUSED(RUN("tune", MODEL, "--shapes", "64,256"), 2, "MODEL and --shapes");
    REFUSED(RUN("tune", MODEL, "--accum", "fixed,"), 2, "\"fixed,\"");
    REFUSED(RUN("tune", MODEL, "--accum", "fixed;f32"), 2, "separated by commas");
    REFUSED(RUN("tune", MODEL, "--batches", "0"), 2, "1 to 65536");
}

/* ---- bad input that the library refuses ---- */
static void copy_file(const char *from, const char *to, size_t limit) {
    size_t n;
    char *data = read_all(from, &n);
    write_file(to, data, n < limit ? n : limit);
    pz_free(data);
}

/* A copy of the built-in model with one file cut off or replaced; its path. */
static const char *damaged(const char *name, const char *file, const char *content, size_t limit) {
    static const char *const files[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"};
    char *path = in_dir(name), target[700], source[700];
    snprintf(target, sizeof target, "%s", path);
    assert_int_equal(mkdir(target, 0700), 0);
    for (size_t i = 0; i < 4; i++) {
        snprintf(source, sizeof source, "%s/%s", MODEL, files[i]);
        snprintf(target, sizeof target, "%s/%s", path, files[i]);
        bool this_one = strcmp(files[i], file) == 0;
        if (this_one && content)
            write_file(target, content, strlen(content));
        else if (!this_one || limit)
            copy_file(source, target, this_one ? limit : SIZE_MAX);
    }
    return path;
}

/* Wrong usage is said before a GPU is looked for; without one there is one message. */
static void test_bench(void **state) {
    (void)state;
    static const char none[] = "PREZERO_CUDA_MODULE=/nowhere/libprezero_cuda.so";
    REFUSED(RUN("bench"), 2, "gemm|norm");
    REFUSED(RUN("bench", "gem"), 2, "\"gem\"", "gemm, norm or allreduce");
    REFUSED(RUN("bench", "gemm", "--shapes", "kimi-tp3x"), 2, "kimi-tpN", "llama70b-tpN");
    REFUSED(RUN("bench", "gemm", "--shapes", "2112,7000"), 2, "2112x7000", "multiple of 16");
    REFUSED(RUN("bench", "gemm", "--strategies", "self,fast"), 2, "self,fast", "prezero");
    REFUSED(RUN("bench", "gemm", "--accum", "fixed,fixed"), 2, "fixed twice");
    REFUSED(RUN("bench", "gemm", "--batches", "0"), 2, "--batches");
    REFUSED(RUN("bench", "gemm", "--rounds", "65"), 2, "--rounds", "64");
    REFUSED(RUN("bench", "gemm", "--early"), 2, "--early");
    REFUSED(RUN("bench", "norm", "--hidden", "60"), 2, "multiple of 8");
    REFUSED(RUN("bench", "norm", "--gemm", "0"), 2, "--gemm", "from 1 to");
    REFUSED(RUN("bench", "gemm", "--json", "-", "--html", "-"), 2, "--json", "--html");
    REFUSED(RUN("bench", "gemm", "--json", in_dir("no/where.json")), 1, "no/where.json");
    REFUSED(RUN_ENV(none, "bench", "gemm", "--json", in_dir("gemm.json")), 1, "no GPU support", "/nowhere/");
    REFUSED(RUN_ENV(none, "bench", "gemm", "--late"), 1, "no GPU support");
    REFUSED(RUN_ENV(none, "bench", "norm"), 1, "no GPU support");
    REFUSED(RUN("bench", "allreduce", "--tp", "1"), 2, "--tp", "from 2 to 8");
    REFUSED(RUN("bench", "allreduce", "--hidden", "60"), 2, "multiple of 8");
    REFUSED(RUN("bench", "allreduce", "--html", in_dir("reduce.html")), 2, "--json has everything");
    REFUSED(RUN("bench", "allreduce", "--one-shot", "257"), 2, "--one-shot", "0 to 256");
    REFUSED(RUN("bench", "allreduce", "--gemm", "0"), 2, "--gemm", "from 1 to");
    REFUSED(RUN_ENV(none, "bench", "allreduce"), 1, "no GPU support");
    struct stat st;
    assert_int_not_equal(stat(in_dir("gemm.json"), &st), 0);
}

static void test_bad_models(void **state) {
    (void)state;
    REFUSED(RUN("run", "/nonexistent", "--prompt", "a"), 1, "/nonexistent", "expected a model directory");
    REFUSED(RUN("run", "", "--prompt", "a"), 1, "expected a model directory");
    REFUSED(RUN("eval", MODEL "/config.json"), 1, "is a file");
    REFUSED(RUN("compare", "/nonexistent"), 1, "expected a model directory");
    REFUSED(RUN("explain", "/nonexistent"), 1, "/nonexistent", "expected a model directory or a file of graph text");
    REFUSED(RUN("run", dir, "--prompt", "a"), 1, "tokenizer.json");
    const char *m = damaged("cut", "model.safetensors", NULL, 100000);
    REFUSED(RUN("run", m, "--prompt", "a"), 1, "model.safetensors");
    m = damaged("gone", "model.safetensors", NULL, 0);
    REFUSED(RUN("run", m, "--ids", "5", "--print-ids"), 1, "model.safetensors");
    m = damaged("lying", "model.safetensors", "\xff\xff\xff\xff\xff\xff\xff\x7f{}", 0);
    REFUSED(RUN("run", m, "--ids", "5", "--print-ids"), 1, "model.safetensors");
    m = damaged("words", "tokenizer.json", NULL, 5000);
    REFUSED(RUN("run", m, "--prompt", "a"), 1, "tokenizer.json", "not valid JSON");
    m = damaged("other", "config.json", "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"}", 0);
    REFUSED(RUN("run", m, "--prompt", "a"), 1, "Llama");
    REFUSED(RUN("explain", m), 1, "Llama");
    m = damaged("half", "config.json", NULL, 300);
    REFUSED(RUN("explain", m), 1, "config.json", "not valid JSON");
}

static void test_bad_requests(void **state) {
    (void)state;
    char *long_prompt = malloc(5001);
    memset(long_prompt, 'z', 5000);
    long_prompt[5000] = 0;
    REFUSED(RUN("run", MODEL, "--prompt", long_prompt), 1, "5001 tokens", "context holds 1024");
    free(long_prompt);
    REFUSED(RUN("run", MODEL, "--prompt", "abc", "--context", "3"), 1, "context holds 3");
    REFUSED(RUN("run", MODEL, "--prompt", "a\xff"), 1, "UTF-8", "offset 1");
    REFUSED(RUN_IN("ok\xe2\x82", "run", MODEL, "--prompt", "-"), 1, "UTF-8", "offset 2");
    REFUSED(RUN("run", MODEL, "--ids", "1024", "--print-ids"), 1, "1024", "0 to 1023");
    REFUSED(RUN("run", MODEL, "--prompt", "a", "--context", "1000000"), 1, "context");
    REFUSED(RUN("eval", MODEL, "--data", "/nonexistent"), 1, "/nonexistent");
    write_file(in_dir("bad.jsonl"), "{\"question\": \"a\", \"answer\": \"#### 1\"}\n{\"question\": 3}\n", 55);
    REFUSED(RUN("eval", MODEL, "--data", in_dir("bad.jsonl")), 1, "bad.jsonl", "2");
    /* An empty result would match every output without an answer. */
    write_file(in_dir("bad.jsonl"), "{\"question\": \"a\", \"answer\": \"b #### \"}\n", 39);
    REFUSED(RUN("eval", MODEL, "--data", in_dir("bad.jsonl")), 1, "bad.jsonl:1", "expected result");
    REFUSED(RUN("eval", MODEL, "--data", "/dev/zero"), 1, "/dev/zero", "128 MiB");
    REFUSED(RUN("explain", "/dev/zero"), 1, "/dev/zero", "128 MiB");
    write_file(in_dir("ids"), "5, 6 seven", 10);
    REFUSED(RUN("logits", MODEL, "--ids-file", in_dir("ids"), "-o", in_dir("l")), 1, "\"seven\"");
    REFUSED(RUN("logits", MODEL, "--ids-file", "/nonexistent", "-o", in_dir("l")), 1, "/nonexistent");
}

/* A file above the limit of the shell's ulimit -f is a message, not a signal, and leaves nothing. */
static void test_file_size_limit(void **state) {
    (void)state;
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 1 << 20; /* 300 x 1024 logits are more */
    char ids[601];
    for (int i = 0; i < 300; i++) memcpy(ids + 2 * i, "5 ", 3);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    result r = RUN_IN(ids, "logits", MODEL, "--ids-file", "-", "-o", in_dir("large"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    REFUSED(r, 1, "large", "cannot write", "too large");
    assert_false(pz_file_exists(in_dir("large")));
}

static void test_environment(void **state) {
    (void)state;
    REFUSED(RUN_ENV("PREZERO=2", "run", MODEL, "--prompt", "a"), 1, "PREZERO", "\"2\"", "0|off|false|1|on|true");
    REFUSED(RUN_ENV("PREZERO=ON", "run", MODEL, "--prompt", "a"), 1, "PREZERO", "\"ON\"");
    REFUSED(RUN_ENV("PREZERO_GATE=ajar", "run", MODEL, "--prompt", "a"), 1, "PREZERO_GATE", "closed");
    REFUSED(RUN_ENV("PREZERO_THREADS=many", "run", MODEL, "--prompt", "a"), 1, "PREZERO_THREADS");
    REFUSED(RUN_ENV("PREZERO_ISA=z80", "run", MODEL, "--prompt", "a"), 1, "PREZERO_ISA");
    static const struct {
        const char *env, *option;
        bool on;
    } cases[] = {{"PREZERO=0", NULL, false},
                 {"PREZERO=off", NULL, false},
                 {"PREZERO=false", NULL, false},
                 {"PREZERO=", NULL, false},
                 {"PREZERO=1", NULL, true},
                 {"PREZERO=on", NULL, true},
                 {"PREZERO=true", NULL, true},
                 {"PREZERO=1", "--prezero=off", false},
                 {"PREZERO=0", "--prezero", true},
                 {"UNRELATED=1", NULL, false},
                 {"UNRELATED=1", "--prezero=1", true},
                 {"UNRELATED=1", "--prezero=false", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r = RUN_ENV(cases[i].env, "run", MODEL, "--ids", "5", "--print-ids", "--max-tokens", "1", "--json", "-",
                           cases[i].option);
        expect_ok(&r);
        json_t *v = parse_json(r.out);
        if (json_is_true(json_object_get(v, "prezero")) != cases[i].on)
            fail_msg("%s %s", cases[i].env, cases[i].option ? cases[i].option : "");
        json_decref(v);
        release(&r);
    }
}

static void test_bad_graphs(void **state) {
    (void)state;
    REFUSED(RUN_IN("func @f(", "opt", "-"), 1, "standard input:1:");
    REFUSED(RUN_IN("", "explain", "-"), 1, "standard input");
    write_file(in_dir("bad.pz"), "func @f(%x: bf16[m,8]) {\n  %y = nonsense(%x)\n}\n", 48);
    REFUSED(RUN("opt", in_dir("bad.pz")), 1, "bad.pz:2:", "nonsense");
    REFUSED(RUN("explain", in_dir("bad.pz")), 1, "bad.pz:2:");
    REFUSED(RUN("opt", MODEL, "--passes", "prezroe"), 1, "prezroe", "fuse_allreduce_rmsnorm");
    REFUSED(RUN("explain", MODEL, "--device", "abacus"), 1, "abacus", "h200");
    REFUSED(RUN("explain", MODEL, "--tp", "3"), 1, "3");
}

static void test_unwritable(void **state) {
    (void)state;
    char *out = in_dir("empty"), file[700];
    assert_int_equal(mkdir(out, 0700), 0);
    snprintf(file, sizeof file, "%s/file", out);
    REFUSED(RUN("logits", MODEL, "--ids", "5", "-o", "/nonexistent/x"), 1, "/nonexistent");
    REFUSED(RUN("logits", MODEL, "--ids", "5", "-o", out), 1, "is a directory");
    REFUSED(RUN("logits", MODEL, "--ids", "5", "-o", file, "--json", "/nonexistent/x"), 1, "/nonexistent");
    REFUSED(RUN("logits", MODEL, "--ids", "9999", "-o", file), 1, "9999");
    REFUSED(RUN("run", MODEL, "--prompt", "a", "--json", "/nonexistent/x"), 1, "/nonexistent");
    REFUSED(RUN("compare", MODEL, "--html", "/nonexistent/x"), 1, "/nonexistent");
    REFUSED(RUN("explain", MODEL, "--dot", out), 1, "is a directory");
    REFUSED(RUN("tune", MODEL, "--out", "/nonexistent/x"), 1, "/nonexistent");
    REFUSED(RUN("tune", "/nonexistent"), 1, "expected a model directory");
    REFUSED(RUN("tune", "--shapes", "64,255"), 1, "\"64,255\"", "multiple of 16");
    REFUSED(RUN_IN("func @f(", "opt", "-", "-o", file), 1, "standard input");
    REFUSED(RUN("knobs", "--json", "/nonexistent/x"), 1, "/nonexistent");
    assert_int_equal(support_count_entries(out), 0);
    result full = run_with(NULL, NULL, "/dev/full", (const char *const[]){"ops", NULL});
    REFUSED(full, 1, "standard output");
}

/* ---- what works ---- */
static void test_tables(void **state) {
    (void)state;
    static const char *const tables[][2] = {
        {"knobs", "PREZERO_GATE"}, {"ops", "fused_allreduce_rmsnorm"}, {"passes", "prezero"}, {"version", "0.1.0"}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        result text = RUN(tables[i][0]), json = RUN(tables[i][0], "--json", "-"),
               both = RUN(tables[i][0], "--json", in_dir("table.json"));
        expect_ok(&text);
        expect_ok(&json);
        expect_ok(&both);
        assert_contains(text.out, tables[i][1]);
        assert_string_equal(both.out, text.out);
        json_t *a = parse_json(json.out), *b = json_file(in_dir("table.json"));
        assert_true(json_equal(a, b));
        json_decref(a);
        json_decref(b);
        release(&text);
        release(&json);
        release(&both);
    }
    result version = RUN("--version");
    assert_contains(version.out, "baseline");
    release(&version);
}

static void test_run(void **state) {
    (void)state;
    result text = RUN("run", MODEL, "--prompt", QUESTION, "--max-tokens", "32", "--json", in_dir("run.json"));
    expect_ok(&text);
    assert_string_equal(text.out, " 76-67=9 #### 9\n");
    assert_contains(text.err, "tokens/s");
    assert_non_null(strchr(text.err, '\n'));
    assert_ptr_equal(strchr(text.err, '\n'), text.err + strlen(text.err) - 1);
    json_t *v = json_file(in_dir("run.json"));
    assert_string_equal(json_string_value(json_object_get(v, "text")), " 76-67=9 #### 9");
    assert_string_equal(json_string_value(json_object_get(v, "stopped_by")), "end token");
    assert_int_equal(json_integer_value(json_object_get(v, "prompt_tokens")), 25);
    result in = RUN_IN(QUESTION, "run", MODEL, "--prompt", "-", "--prezero", "on", "--threads", "3");
    expect_ok(&in);
    assert_string_equal(in.out, text.out);
    assert_contains(in.err, "prezero on");
    result ranks = RUN("run", MODEL, "--prompt", QUESTION, "--tp", "2", "--json", in_dir("ranks.json"));
    expect_ok(&ranks);
    assert_string_equal(ranks.out, text.out);
    json_t *tp = json_file(in_dir("ranks.json"));
    assert_int_equal(json_integer_value(json_object_get(tp, "tp")), 2);
    json_decref(tp);
    release(&ranks);
    result ids = RUN("run", MODEL, "--prompt", QUESTION, "--print-ids");
    expect_ok(&ids);
    pz_str want = {0};
    size_t i;
    json_t *id;
    json_array_foreach(json_object_get(v, "ids"), i, id)
        pz_str_addf(&want, "%s%d", i ? "," : "", (int)json_integer_value(id));
    pz_str_add(&want, "\n");
    assert_string_equal(ids.out, want.s);
    pz_str_free(&want);
    json_decref(v);
    release(&in);
    release(&ids);
    result few = RUN("run", MODEL, "--prompt", QUESTION, "--max-tokens", "3", "--json", "-");
    v = parse_json(few.out);
    assert_string_equal(json_string_value(json_object_get(v, "stopped_by")), "length");
    assert_int_equal(json_array_size(json_object_get(v, "ids")), 3);
    json_decref(v);
    release(&few);
    release(&text);
}

/* --ids with --print-ids reads no tokenizer. */
static void test_run_without_tokenizer(void **state) {
    (void)state;
    const char *m = damaged("mute", "tokenizer.json", NULL, 0);
    result r = RUN("run", m, "--ids", "5,6,7", "--print-ids", "--max-tokens", "4");
    expect_ok(&r);
    assert_int_equal(strspn(r.out, "0123456789,\n"), r.out_size);
    release(&r);
    REFUSED(RUN("run", m, "--ids", "5,6,7"), 1, "tokenizer.json");
}

static void test_sampling_seed(void **state) {
    (void)state;
    result r[3];
    static const char *const seeds[] = {"1", "1", "2"};
    for (int i = 0; i < 3; i++) {
        r[i] = RUN("run", MODEL, "--ids", "5,6,7", "--print-ids", "--max-tokens", "16", "--temperature", "50", "--seed",
                   seeds[i], "--top-k", "500", "--top-p", "0.999");
        expect_ok(&r[i]);
    }
    assert_string_equal(r[0].out, r[1].out);
    assert_string_not_equal(r[0].out, r[2].out);
    for (int i = 0; i < 3; i++) release(&r[i]);
}

static void test_logits(void **state) {
    (void)state;
    write_file(in_dir("list"), "5,6 7\n8\t 9", 10);
    write_file(in_dir("list.json"), " [5, 6, 7,\n 8, 9]\n", 19);
    result a = RUN("logits", MODEL, "--ids", "5,6,7,8,9", "-o", in_dir("a.safetensors"), "--json", "-"),
           b = RUN("logits", MODEL, "--ids-file", in_dir("list"), "-o", in_dir("b.safetensors"), "--prezero"),
           c = RUN("logits", MODEL, "--ids-file", in_dir("list.json"), "-o", in_dir("c.safetensors"), "--chunk", "1",
                   "--prezero", "--threads", "3");
    expect_ok(&a);
    expect_ok(&b);
    expect_ok(&c);
    json_t *v = parse_json(a.out);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(v, "shape"), 0)), 5);
    json_decref(v);
    size_t n[3];
    char *data[3] = {read_all(in_dir("a.safetensors"), &n[0]), read_all(in_dir("b.safetensors"), &n[1]),
                     read_all(in_dir("c.safetensors"), &n[2])};
    assert_true(n[0] > 5 * 1024 * 4 && n[0] == n[1] && n[0] == n[2]);
    assert_memory_equal(data[0], data[1], n[0]);
    assert_memory_equal(data[0], data[2], n[0]);
    for (int i = 0; i < 3; i++) pz_free(data[i]);
    release(&a);
    release(&b);
    release(&c);
}

static void test_explain(void **state) {
    (void)state;
    static const struct {
        const char *dir, *tp, *text;
    } cases[] = {{CONFIGS "/kimi-k2", "4", "qkv_a | q_b | o_proj"},
                 {CONFIGS "/kimi-k2.5", "4", "qkv_a | q_b | o_proj"},
                 {CONFIGS "/deepseek-v3", "1", "quantized weights (fp8)"}};
    setenv("PREZERO_TUNED", "none", 1); /* what is built in changes with every run of the tuner */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r = RUN("explain", cases[i].dir, "--tp", cases[i].tp, "--batch", "16", "--json", in_dir("explain.json"),
                       "--dot", in_dir("explain.dot"));
        expect_ok(&r);
        assert_contains(r.out, cases[i].text);
        assert_contains(r.out, "proven");
        assert_string_equal(r.err, "");
        json_t *v = json_file(in_dir("explain.json"));
        assert_true(json_is_object(v));
        json_decref(v);
        char *dot = read_all(in_dir("explain.dot"), NULL);
        assert_true(strncmp(dot, "digraph", 7) == 0);
        pz_free(dot);
        result only = RUN("explain", cases[i].dir, "--tp", cases[i].tp, "--batch", "16", "--json", "-");
        v = parse_json(only.out);
        json_decref(v);
        release(&only);
        release(&r);
    }
    unsetenv("PREZERO_TUNED");
    result plain = RUN("explain", MODEL, "--batch", "4,16", "--device", "cpu", "--units", "2"),
           more = RUN("explain", MODEL, "--batch", "4,16", "--device", "cpu", "--units", "2", "--plan", "--graph");
    assert_contains(plain.out, "m = 16");
    assert_contains(more.out, "func @decode");
    assert_true(more.out_size > plain.out_size);
    release(&plain);
    release(&more);
}

/* The kernel of the collectives, by the table for so many ranks. */
static void test_explain_ranks(void **state) {
    (void)state;
    static const char table[] =
        "{\"device\": \"h200\", \"units\": 132, \"kernels\": \"" PZ_GEMM_KERNEL_VERSION
        "\", \"date\": \"\", \"command\": \"\", \"collectives\": [{\"kernels\": \"" PZ_REDUCE_KERNEL_VERSION
        "\", \"ranks\": 4, \"hidden\": 7168, \"one_shot\": 16, \"ar_base\": 5, \"ar_row\": 0.5, \"rider\": 0}], "
        "\"rows\": []}";
    static const struct {
        const char *tp, *text;
    } cases[] = {{"2", "7168 columns: one-shot (one step up to 64 rows), 128 blocks for 32 rows\n"},
                 {"4", "7168 columns: two-step (one step up to 16 rows), 128 blocks for 32 rows\n"},
                 {"4", "132 units idle, donor 13.00 us"},
                 {"4", "7168 columns: one-shot (one step up to 16 rows), 112 blocks for 16 rows\n"}};
    write_file(in_dir("table.json"), table, strlen(table));
    setenv("PREZERO_TUNED", in_dir("table.json"), 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r = RUN("explain", CONFIGS "/kimi-k2", "--tp", cases[i].tp, "--batch", "16,32");
        expect_ok(&r);
        assert_contains(r.out, cases[i].text);
        release(&r);
    }
    unsetenv("PREZERO_TUNED");
}

static void test_opt(void **state) {
    (void)state;
    result raw = RUN("opt", MODEL, "--passes", "");
    expect_ok(&raw);
    result again = RUN_IN(raw.out, "opt", "-", "--passes", ""), direct = RUN("opt", MODEL, "--report"),
           piped = RUN_IN(raw.out, "opt", "-", "-o", in_dir("out.pz"));
    assert_string_equal(again.out, raw.out);
    assert_contains(direct.out, "zero_fill=");
    assert_contains(direct.err, "prezero:");
    assert_string_equal(piped.out, "");
    char *file = read_all(in_dir("out.pz"), NULL);
    assert_string_equal(file, direct.out);
    pz_free(file);
    result fused = RUN("opt", in_dir("out.pz"), "--passes", "dce");
    expect_ok(&fused);
    release(&fused);
    release(&raw);
    release(&again);
    release(&direct);
    release(&piped);
}

static void test_eval(void **state) {
    (void)state;
    static const char lines[] = "{\"question\": \"Hugo has 76 eggs and gives 67 to Kim. How many eggs are left?\", "
                                "\"answer\": \"76-67=9 #### 9\"}\n"
                                "{\"question\": \"Hugo has 76 eggs and gives 67 to Kim. How many eggs are left?\", "
                                "\"answer\": \"#### 10\"}\n";
    write_file(in_dir("two.jsonl"), lines, strlen(lines));
    result r = RUN("eval", MODEL, "--data", in_dir("two.jsonl"), "--failures", "--json", in_dir("eval.json"));
    expect_ok(&r);
    assert_contains(r.out, "1 of 2 correct (50.00 %)");
    assert_contains(r.out, "expected 10, got 9");
    assert_string_equal(r.err, "");
    json_t *v = json_file(in_dir("eval.json"));
    assert_int_equal(json_integer_value(json_object_get(v, "correct")), 1);
    assert_int_equal(json_array_size(json_object_get(v, "items")), 2);
    json_decref(v);
    release(&r);
    r = RUN("eval", MODEL, "--limit", "3", "--batch", "2", "--prezero");
    expect_ok(&r);
    assert_contains(r.out, "3 of 3 correct");
    release(&r);
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p += strlen(part)) n++;
    return n;
}

static void check_page(const char *path) {
    char *page = read_all(path, NULL);
    static const char *const balanced[] = {"html",  "head",    "body", "main", "svg",
                                           "table", "details", "g",    "text", "div"};
    for (size_t i = 0; i < sizeof balanced / sizeof *balanced; i++) {
        char open[2][20], close[20];
        snprintf(open[0], sizeof *open, "<%s>", balanced[i]);
        snprintf(open[1], sizeof *open, "<%s ", balanced[i]);
        snprintf(close, sizeof close, "</%s>", balanced[i]);
        assert_int_equal(count(page, open[0]) + count(page, open[1]), count(page, close));
    }
    assert_true(count(page, "<svg ") >= 4);
    assert_null(strstr(page, "http"));
    assert_null(strstr(page, "src="));
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "inf"));
    assert_contains(page, "bit-identical");
    pz_free(page);
}

static void test_compare(void **state) {
    (void)state;
    result r = RUN("compare", MODEL, "--batches", "1,3", "--steps", "6", "--gate", "open", "--threads", "2", "--html",
                   in_dir("c.html"), "--json", in_dir("c.json"));
    expect_ok(&r);
    static const char last[] = "logits: bit-identical in every step\n";
    assert_string_equal(r.out + r.out_size - strlen(last), last);
    assert_contains(r.out, "gemm qkv_a");
    assert_string_equal(r.err, "");
    json_t *v = json_file(in_dir("c.json"));
    assert_true(json_is_true(json_object_get(v, "identical")));
    assert_int_equal(json_array_size(json_object_get(v, "batches")), 2);
    const json_t *first = json_array_get(json_object_get(v, "batches"), 0), *ci = json_object_get(first, "ci95_us");
    double lo = json_number_value(json_array_get(ci, 0)), hi = json_number_value(json_array_get(ci, 1));
    double diff = json_number_value(json_object_get(first, "diff_us"));
    assert_true(lo <= diff && diff <= hi && isfinite(lo) && isfinite(hi));
    assert_true(json_integer_value(json_object_get(first, "slices")) > 0);
    json_decref(v);
    check_page(in_dir("c.html"));
    release(&r);
    r = RUN("compare", MODEL, "--batches", "2", "--steps", "6", "--gate", "closed", "--json", "-");
    expect_ok(&r);
    v = parse_json(r.out);
    json_decref(v);
    release(&r);
    r = RUN("compare", MODEL, "--batches", "2", "--steps", "6", "--gate", "closed");
    expect_ok(&r);
    assert_contains(r.out, "the gate closes every fill, so off and on run the same plan");
    release(&r);
}

/* Progress is shown on a terminal, and taken away again. */
static void test_progress(void **state) {
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) skip();
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    char *argv[] = {(char *)(uintptr_t)PROGRAM, "eval", MODEL, "--limit", "100", "--batch", "8", NULL};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, in_dir("stdout"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, slave, 2);
    pid_t pid;
    assert_int_equal(posix_spawn(&pid, PROGRAM, &files, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&files);
    close(slave);
    pz_str shown = {0};
    char part[4096];
    ssize_t n;
    while ((n = read(master, part, sizeof part)) > 0) pz_str_addn(&shown, part, (size_t)n);
    close(master);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_non_null(shown.s);
    assert_contains(shown.s, "of 100 questions");
    assert_string_equal(shown.s + shown.n - 4, "\r\033[K");
    pz_str_free(&shown);
}

static int set_up(void **state) {
    (void)state;
    dir = support_tmp_dir();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    support_tmp_remove(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help),          cmocka_unit_test(test_usage),
        cmocka_unit_test(test_bad_values),    cmocka_unit_test(test_bad_models),
        cmocka_unit_test(test_bad_requests),  cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_environment),   cmocka_unit_test(test_bad_graphs),
        cmocka_unit_test(test_unwritable),    cmocka_unit_test(test_tables),
        cmocka_unit_test(test_run),           cmocka_unit_test(test_run_without_tokenizer),
        cmocka_unit_test(test_sampling_seed), cmocka_unit_test(test_logits),
        cmocka_unit_test(test_explain),       cmocka_unit_test(test_explain_ranks),
        cmocka_unit_test(test_opt),           cmocka_unit_test(test_eval),
        cmocka_unit_test(test_compare),       cmocka_unit_test(test_progress),
        cmocka_unit_test(test_bench),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
