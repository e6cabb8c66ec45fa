#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The shared library exports exactly the functions that the public headers declare with PZ_API.
# Usage: symbols.sh INCLUDE_DIR LIBRARY
set -euo pipefail
declared=$(cat "$1"/prezero/*.h | tr '\n' ' ' | grep -oP 'PZ_API [^;()]*?\K\bpz_\w+(?=\()' | sort -u)
exported=$(nm -D --defined-only "$2" | awk '{print $3}' | sort -u)
echo "$(wc -w <<<"$declared") declared, $(wc -w <<<"$exported") exported"
diff <(echo "$declared") <(echo "$exported") ||
  { echo "< declared in a header but not exported; > exported but in no public header"; exit 1; }
