#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every benchmark of bench/ with the build directory as its argument.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tools/bench.sh BUILD_DIR}
shopt -s nullglob
for script in bench/*.sh; do
  echo "== $script"
  bash "$script" "$build"
done
