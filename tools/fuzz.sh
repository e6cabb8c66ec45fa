#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every libFuzzer target for SECONDS. New inputs go to BUILD_DIR/corpus; a crash leaves its input there and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tools/fuzz.sh BUILD_DIR SECONDS}
seconds=${2:?usage: tools/fuzz.sh BUILD_DIR SECONDS}
export ASAN_OPTIONS=allocator_may_return_null=1
for source in tests/fuzz/fuzz_*.c; do
  target=$(basename "$source" .c)
  name=${target#fuzz_}
  echo "== $target, $seconds s"
  mkdir -p "$build/corpus/$name"
  "$build/tests/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$build/corpus/crash-$name-" "$build/corpus/$name" "tests/fuzz/corpus/$name" 2>&1 |
    grep -vE '^#[0-9]+\s+(NEW|REDUCE|RELOAD|pulse)|# Uses:|failed to allocate'
done
