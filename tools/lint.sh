#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rules of the code base (tools/lint.py), then clang-tidy over src and cli.
# tools/lint.sh [FILE...] limits clang-tidy to the files given.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 tools/lint.py

db=build-lint
configure() { cmake -S . -B $db -G Ninja -DCMAKE_C_COMPILER=clang -DPZ_TESTS=OFF "-DPZ_CUDA=$1" --log-level=WARNING; }
skip='src/backend/cuda/*' # needs the headers of CUDA
if configure ON >/dev/null 2>&1; then skip=; else configure OFF >/dev/null; fi
tidy=$(command -v clang-tidy-14 || command -v clang-tidy)
run() { printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -n 1 "$tidy" -p $db --quiet 2>/dev/null; }

# Control: a file with a null dereference and a leak must be found.
bad=$(mktemp --suffix=.c)
trap 'rm -f "$bad"' EXIT
printf '#include <stdlib.h>\nint f(int n);\nint f(int n) { int *p = malloc(4); if (n) p = NULL; return *p; }\n' >"$bad"
if "$tidy" --quiet --config-file=.clang-tidy "$bad" -- >/dev/null 2>&1; then
  echo "lint: clang-tidy does not find the faults of its control" >&2
  exit 1
fi

if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(find src cli -name '*.c' -not -path "$skip" | sort); fi
run "${files[@]}" || { echo "lint: clang-tidy has findings" >&2; exit 1; }
echo "clang-tidy: ${#files[@]} files, no findings"
