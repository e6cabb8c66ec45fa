#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of an instrumented build (but for whole evaluation sets) and prints the line coverage of src/, file by
# file; fails under MINIMUM %.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tools/coverage.sh BUILD_DIR MINIMUM}
minimum=${2:?usage: tools/coverage.sh BUILD_DIR MINIMUM}
find "$build" -name '*.gcda' -delete
ctest --test-dir "$build" --output-on-failure -j "$(nproc)" -LE slow
table=$build/coverage.txt
gcovr --root . --filter src/ --object-directory "$build" --txt "$table" --print-summary --fail-under-line "$minimum" \
  "$build" >"$build/summary.txt" || failed=$?
cat "$table" "$build/summary.txt"
exit "${failed:-0}"
