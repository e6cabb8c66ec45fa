#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles each public header alone, as C99, C11 and C++, with all warnings as errors. Usage: headers.sh INCLUDE_DIR
set -euo pipefail
include=$1
count=0
for path in "$include"/prezero/*.h; do
  header=prezero/$(basename "$path")
  for mode in "cc -xc -std=c99" "cc -xc -std=c11" "c++ -xc++ -std=c++11" "c++ -xc++ -std=c++20"; do
    # The header twice: its guard works.
    printf '#include <%s>\n#include <%s>\n' "$header" "$header" |
      $mode -pedantic-errors -Wall -Wextra -Werror -I"$include" -fsyntax-only - ||
      { echo "$header does not compile alone with: $mode"; exit 1; }
    count=$((count + 1))
  done
done
echo "$count compilations"
[ "$count" -ge 12 ]
