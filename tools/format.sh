#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats all C files, or with --check says which are not formatted. Other versions of clang-format lay out some lines
# differently, so the check needs the one that wrote them.
set -euo pipefail
cd "$(dirname "$0")/.."
want=14
cf=$(command -v clang-format-$want || command -v clang-format || true)
if [ -z "$cf" ]; then echo "format: clang-format is not installed" >&2; exit 1; fi
mapfile -t files < <(git ls-files '*.c' '*.h' '*.cpp')
if [ "${1:-}" != --check ]; then exec "$cf" -i "${files[@]}"; fi
if ! "$cf" --version | grep -q "version $want\."; then
  echo "format-check: skipped, needs clang-format $want and found: $("$cf" --version)"
  exit 0
fi
"$cf" --dry-run --Werror "${files[@]}"
