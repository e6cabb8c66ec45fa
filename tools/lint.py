#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the code base that no compiler checks. Prints `file:line: rule: what is wrong` and fails if there is any.

Every rule has samples, one that breaks it and one that does not; they are checked first, on every run, so that a rule
that has stopped working is seen."""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Which parts a part may include besides itself and the public headers. Downward only; pass, plan and model do not see
# each other.
ALLOWED = {
    "src/base": set(),
    "src/ir": {"base"},
    "src/pass": {"base", "ir"},
    "src/plan": {"base", "ir"},
    "src/model": {"base", "ir"},
    "src/comm": {"base"},
    "src/backend": {"base", "ir", "plan", "comm"},
    "src/engine": {"base", "ir", "pass", "plan", "model", "comm", "backend"},
    "cli": set(),
    "include": set(),
}
PARTS = {part.removeprefix("src/") for part in ALLOWED if part.startswith("src/")}
MAX_FUNCTION, MAX_FILE = 120, 1000
C_FILES = ("src", "include", "cli", "tests", "bench")
SPDX_SUFFIXES = {".c", ".h", ".def", ".cpp", ".sh", ".py", ".in", ".cu", ".cuh"}
SPDX_NAMES = {"CMakeLists.txt", "Makefile", "run"}


def blank(text):
    """The code without comments and string contents; the line structure stays."""
    def keep_newlines(m):
        token = m.group()
        if token[0] == "/":
            return re.sub(r"[^\n]", " ", token)
        return token[0] + " " * (len(token) - 2) + token[-1]
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', keep_newlines, text, flags=re.S)


def part_of(path):
    return next((part for part in ALLOWED if path.startswith(part + "/")), None)


def check_includes(path, text):
    part = part_of(path)
    if not part:
        return
    for number, line in enumerate(text.splitlines(), 1):
        m = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if not m:
            continue
        top = m[1].split("/")[0]
        if "/" not in m[1] or top == "prezero" or top == part.removeprefix("src/"):
            continue
        if ".." in m[1] or (top in PARTS and top not in ALLOWED[part]) or part in ("cli", "include"):
            yield number, f'{part} must not include "{m[1]}"'


def check_functions(path, text):
    start = name = None
    for number, line in enumerate(blank(text).splitlines(), 1):
        if re.match(r"[A-Za-z_].*\)\s*\{$", line) or (line == "{" and start is None):
            start, name = number, re.search(r"(\w+)\s*\(", line)
        elif line.startswith("}") and start:
            if number - start + 1 > MAX_FUNCTION:
                yield start, f"function {name[1] if name else ''} has {number - start + 1} lines, at most {MAX_FUNCTION}"
            start = None


def check_size(path, text):
    lines = text.count("\n")
    if lines > MAX_FILE:
        yield lines, f"file has {lines} lines, at most {MAX_FILE}"


def matches(text, pattern, message):
    for number, line in enumerate(blank(text).splitlines(), 1):
        m = re.search(pattern, line)
        if m:
            yield number, message.format(m[1])


def check_environment(path, text):
    if path.startswith(("src/", "cli/")) and path != "src/base/knobs.c":
        yield from matches(text, r"\b(getenv|secure_getenv|setenv|putenv|environ)\b",
                           "{} outside src/base/knobs.c; add a row to knobs.def")


def check_quiet(path, text):
    if path.startswith("src/"):
        yield from matches(text, r"\b(printf|fprintf|vprintf|puts|perror|exit|_exit|abort|assert)\s*\(",
                           "{} in the library, which reports by pz_fail alone")


def check_allocation(path, text):
    if path.startswith("src/") and path != "src/base/base.c":
        yield from matches(text, r"(?<![\w.>])(malloc|calloc|realloc|aligned_alloc|strdup|strndup|free|asprintf)\s*\(",
                           "{}; use the pz_ function, whose failures tests can play")


def check_leftovers(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        m = re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line)
        if m:
            yield number, f"{m[1]} left behind"


def check_spdx(path, text):
    lines = text.splitlines()[:2]
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    if not lines or "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
        yield 1, "first line must be SPDX-License-Identifier: Apache-2.0"


def is_c(path):
    return path.startswith(tuple(d + "/" for d in C_FILES)) and path.endswith((".c", ".h", ".def", ".cu", ".cuh"))


def has_spdx(path):
    p = pathlib.PurePath(path)
    return p.suffix in SPDX_SUFFIXES or p.name in SPDX_NAMES


LONG = "static void f(void) {\n" + "    g();\n" * MAX_FUNCTION + "}\n"
# rule: (applies to, check, [(path, text) that must be found], [(path, text) that must pass])
RULES = {
    "include-direction": (
        is_c, check_includes,
        [("src/ir/a.c", '#include "plan/plan.h"\n'), ("src/backend/cuda/a.cu", '#include "engine/session.h"\n'),
         ("src/pass/a.c", '#include "plan/plan.h"\n'),
         ("src/base/a.c", '#include "ir/ir.h"\n'), ("src/plan/a.c", '# include "backend/backend.h"\n'),
         ("src/backend/cpu/a.c", '#include "engine/session.h"\n'), ("cli/a.c", '#include "base/base.h"\n'),
         ("src/ir/a.c", '#include "../plan/plan.h"\n'), ("include/prezero/a.h", '#include "base/base.h"\n')],
        [("src/engine/a.c", '#include "plan/plan.h"\n'), ("src/ir/a.c", '#include "ir/ir.h"\n#include "lex.h"\n'),
         ("cli/a.c", '#include "prezero/graph.h"\n#include "cli.h"\n#include <jansson.h>\n'),
         ("src/plan/a.c", '#include "prezero/graph.h"\n')]),
    "function-size": (
        is_c, check_functions,
        [("src/a.c", LONG), ("src/a.c", "int\nf(void)\n{\n" + "    g();\n" * MAX_FUNCTION + "}\n"),
         ("src/a.c", "static const int t[] = {\n    1,\n};\n" + LONG)],
        [("src/a.c", LONG.replace("    g();\n", "", 2)),
         ("src/a.c", "static const int t[] = {\n" + "    1,\n" * 2 * MAX_FUNCTION + "};\n")]),
    "file-size": (is_c, check_size, [("src/a.c", "\n" * (MAX_FILE + 1))], [("src/a.c", "\n" * MAX_FILE)]),
    "environment": (
        is_c, check_environment,
        [("src/plan/a.c", 'x = getenv("A");\n'), ("cli/a.c", "extern char **environ;\n")],
        [("src/base/knobs.c", 'getenv("A");\n'), ("src/a.c", "/* getenv */ my_getenv(1);\n")]),
    "quiet-library": (
        is_c, check_quiet,
        [("src/a.c", 'printf("x");\n'), ("src/backend/cuda/a.cuh", "if (x) abort();\n"), ("src/a.c", "fprintf (stderr, x);\n")],
        [("src/a.c", 'snprintf(b, n, "printf(");\nvsnprintf(b);\npz_exit(1);\n'), ("cli/a.c", 'printf("x");\n')]),
    "allocation": (
        is_c, check_allocation,
        [("src/a.c", "p = malloc(3);\n"), ("src/a.c", "free(p);\n"), ("src/a.c", "p = (char *)strdup(s);\n")],
        [("src/a.c", "p = pz_strdup(s); ops->free(p); o.free(p); pz_free(p);\n"), ("cli/a.c", "free(p);\n")]),
    "leftover": (is_c, check_leftovers, [("src/a.c", "/* TODO: x */\n")], [("src/a.c", "/* TODOS */\n")]),
    "licence": (
        has_spdx, check_spdx,
        [("src/a.c", "int x;\n"), ("a.py", "#!/usr/bin/env python3\nimport x\n"), ("tools/a.sh", "")],
        [("src/a.c", "/* SPDX-License-Identifier: Apache-2.0 */\n"),
         ("a.py", "#!/usr/bin/env python3\n# SPDX-License-Identifier: Apache-2.0\n")]),
}


def self_test():
    for rule, (applies, check, bad, good) in RULES.items():
        for path, text in bad:
            if not applies(path) or not list(check(path, text)):
                sys.exit(f"lint.py: rule {rule} no longer finds its sample {path}: {text[:60]!r}")
        for path, text in good:
            found = list(check(path, text))
            if found:
                sys.exit(f"lint.py: rule {rule} finds {found} in its good sample {path}: {text[:60]!r}")


def files():
    """What git knows or would add; without git or its data, everything outside build directories."""
    if shutil.which("git") and (ROOT / ".git").exists():
        git = ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"]
        names = subprocess.run(git, check=True, capture_output=True, text=True).stdout.splitlines()
    else:
        names = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*")]
    for name in sorted(names):
        if not name.startswith("build") and (ROOT / name).is_file():
            yield name, ROOT / name


def main():
    self_test()
    count = findings = 0
    for path, p in files():
        rules = [(rule, r[1]) for rule, r in RULES.items() if r[0](path)]
        if not rules:
            continue
        count += 1
        text = p.read_text(encoding="utf-8")
        for rule, check in rules:
            for line, message in check(path, text):
                print(f"{path}:{line}: {rule}: {message}")
                findings += 1
    if count < 50:
        sys.exit(f"lint.py: only {count} files found in {ROOT}")
    print(f"lint.py: {len(RULES)} rules, {count} files, {findings} findings")
    sys.exit(findings != 0)


if __name__ == "__main__":
    main()
