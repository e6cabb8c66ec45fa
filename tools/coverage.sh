#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of an instrumented build and prints the line coverage of src/, file by file; fails under MINIMUM %.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tools/coverage.sh BUILD_DIR MINIMUM}
minimum=${2:?usage: tools/coverage.sh BUILD_DIR MINIMUM}
find "$build" -name '*.gcda' -delete
ctest --test-dir "$build" --output-on-failure -j "$(nproc)"
gcovr --root . --filter src/ --object-directory "$build" --fail-under-line "$minimum" --print-summary \
  --json-summary "$build/coverage.json" "$build"
