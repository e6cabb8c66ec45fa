/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the command and runs it. */
#include "cli.h"

#include <signal.h>
#include <string.h>

static const cli_command *const commands[] = {
    &cli_run,  &cli_compare, &cli_eval,   &cli_logits, &cli_explain, &cli_opt,
    &cli_tune, &cli_bench,   &cli_passes, &cli_ops,    &cli_knobs,   &cli_version,
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_manual(void) {
    printf("prezero %s - LLM decoding with the zeroing of split-K GEMMs moved into the norm before them\n\n"
           "usage: prezero COMMAND [arguments]\n\n",
           pz_version());
    for (int i = 0; i < N_COMMANDS; i++) {
        int at = printf("  %s %s", commands[i]->name, commands[i]->positional ? commands[i]->positional : "");
        printf("%*s%s\n", at < 32 ? 32 - at : 1, "", commands[i]->summary);
    }
    printf("\nMODEL is a directory with config.json, safetensors and tokenizer.json, as Hugging Face has them\n"
           "(DeepSeek-V2/V3, Kimi-K2/K2.5). GRAPH is a file of graph text, or - for standard input.\n"
           "`prezero COMMAND --help` explains a command and its options, `prezero knobs` the environment variables.\n\n"
           "examples:\n"
           "  prezero run models/kimi-tiny --prompt $'Question: Hugo has 76 eggs and gives 67 to Kim. How many "
           "eggs are left?\\nAnswer:'\n"
           "  prezero compare models/kimi-tiny --html compare.html\n"
           "  prezero explain models/kimi-tiny --batch 16\n\n"
           "exit status: 0 success; 1 error or a result that is not as it should be; 2 wrong usage\n");
}

static int unknown_command(const char *word) {
    const char *names[N_COMMANDS];
    char buf[120];
    for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i]->name;
    cli_suggest(word, names, N_COMMANDS, buf, sizeof buf);
    return cli_usage("unknown command \"%.60s\"%s%s", word, buf, *buf ? "" : "; see prezero --help");
}

static const cli_command *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static int run_command(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    bool help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0;
    if (strcmp(name, "--version") == 0) name = cli_version.name;
    if (argc < 2) return cli_usage("a command is missing; see prezero --help");
    if (help && argc == 2) {
        print_manual();
        return CLI_OK;
    }
    const cli_command *c = find_command(help ? argv[2] : name);
    if (!c) return unknown_command(help ? argv[2] : name);
    if (help) {
        cli_print_help(c);
        return CLI_OK;
    }
    cli_args a;
    int rc = cli_parse(c, argc - 2, argv + 2, &a);
    if (rc == CLI_OK && a.help)
        cli_print_help(c);
    else if (rc == CLI_OK)
        rc = c->run(&a);
    cli_args_free(&a);
    return rc;
}

int main(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN); /* a file above the limit of its size is a write that fails, with a message */
    int rc = run_command(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        int failed = cli_fail("cannot write to standard output");
        if (rc == CLI_OK) rc = failed;
    }
    return rc;
}
