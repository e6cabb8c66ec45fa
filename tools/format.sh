#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats all C files, or with --check says which are not formatted. Other versions of clang-format lay out some lines
# differently, so the check needs the one that wrote them.
set -euo pipefail
cd "$(dirname "$0")/.."
want=14
cf=$(command -v clang-format-$want || command -v clang-format || true)
if [ -z "$cf" ]; then echo "format: clang-format is not installed" >&2; exit 1; fi
list() {
  if [ -e .git ] && command -v git >/dev/null; then
    git ls-files -co --exclude-standard '*.c' '*.h' '*.cpp' '*.cu' '*.cuh'
  else
    find src include cli tests bench -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'
  fi
}
mapfile -t files < <(list)
if [ ${#files[@]} -eq 0 ]; then echo "format: no files found" >&2; exit 1; fi
if [ "${1:-}" != --check ]; then exec "$cf" -i "${files[@]}"; fi
if ! "$cf" --version | grep -q "version $want\."; then
  echo "format-check: skipped, needs clang-format $want and found: $("$cf" --version)"
  exit 0
fi
"$cf" --dry-run --Werror "${files[@]}"
