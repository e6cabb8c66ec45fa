#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on the built-in model: answer a word problem with prezero on, show what the pass does to the graph and
# the proof of every plan, and compare on with off.   tools/demo.sh PREZERO_BINARY
set -euo pipefail
cd "$(dirname "$0")/.."
prezero=${1:?usage: tools/demo.sh PREZERO_BINARY}
model=models/kimi-tiny

show() {
  printf '\n\033[1m$ prezero'
  printf ' %q' "$@"
  printf '\033[0m\n'
  "$prezero" "$@"
}
[ -t 1 ] || show() { printf '\n$ prezero'; printf ' %q' "$@"; printf '\n'; "$prezero" "$@"; }

echo "1. A model answers, with prezero on. It was trained to work a word problem out after ####."
show run $model --prezero --max-tokens 24 \
  --prompt $'Question: Hugo has 76 eggs and gives 67 to Kim. How many eggs are left?\nAnswer:'

echo
echo "2. What the pass does: the graph before and after, donors and slices, gate and proof of two batch sizes."
show explain $model --device cpu --batch 4 --graph

echo
echo "3. Off against on, step by step in turn: times with 95 % confidence intervals, and the bits of all logits."
report=$(mktemp)
trap 'rm -f "$report"' EXIT
show compare $model --batches 1,4,32 --steps 50 | tee "$report"

echo
if grep -qi 'identical' "$report" && ! grep -qiE 'not identical|differ' "$report"; then
  echo "All logits are bit-identical with prezero off and on."
else
  echo "Logits differ between prezero off and on." >&2
  exit 1
fi
