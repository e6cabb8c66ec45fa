#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on the built-in model: answer a word problem with prezero on, show what the pass does to the graph and
# the proof of every plan, and compare on with off.   tools/demo.sh PREZERO_BINARY
set -euo pipefail
cd "$(dirname "$0")/.."
prezero=${1:?usage: tools/demo.sh PREZERO_BINARY}
model=models/kimi-tiny
bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi

title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
show() {
  printf '$ prezero%s\n' "$(printf ' %q' "$@")" >&2
  "$prezero" "$@"
}

# The main function before and after the pass, of its layers the first two.
first_layers() {
  awk '
    /^---- graph/ { print; next }
    /^func @decode/, /^}/ {
      if (/ = buffer\(\)/) { held = $0 "\n"; next }
      if (/@layers\.2\./ && !cut) { print "  ..."; cut = 1 }
      if (/^  return/) cut = 0
      if (!cut) print held $0
      held = ""
    }'
}

title "1. The built-in model answers, with prezero on. It was trained to give the result after ####."
show run $model --prezero --max-tokens 24 \
  --prompt $'Question: Hugo has 76 eggs and gives 67 to Kim. How many eggs are left?\nAnswer:'

title "2. What the pass does: the graph before and after (two of four layers), then donors, slices and proof."
show explain $model --device cpu --batch 4 --graph | first_layers
show explain $model --device cpu --batch 4

title "3. Off against on, step by step in turn: times with 95 % confidence intervals, and the bits of all logits."
# compare fails if any logit of any step differs.
show compare $model --batches 1,4,32 --steps 30
title "Logits with prezero off and on: identical, bit by bit."
