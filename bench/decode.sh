#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Speed of the built-in model and of the pass pipeline; JSON goes to BUILD_DIR/bench-decode.json.
set -euo pipefail
build=${1:?usage: bench/decode.sh BUILD_DIR [bench_decode options]}
shift
"$build/bench_decode" models/kimi-tiny tests/data/configs/kimi-k2 --json "$build/bench-decode.json" "$@"
