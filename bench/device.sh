#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that docs/performance.md says about a GPU, by one command on a machine that has one: checks, a tuned table,
# times with it, checks under compute-sanitizer. What is missing in BUILD_DIR is built first.
# bench/device.sh [BUILD_DIR] [OUT_DIR]     output goes to OUT_DIR (default BUILD_DIR/device): one .txt a step, .json and
#                                           .html of the benchmarks, tuned.json, summary.txt
#   BUDGET_S   seconds for all of it (default 1500); a step that no longer fits is left out, and said to be
#   STEPS      of "machine checks tune gemm norm allreduce shapes sanitizers", in this order; default: all
#   QUICK      1: --quick for the benchmarks and the tuner
# tune writes OUT_DIR/tuned.json: with --quick the GEMMs of other models and ranks, then those of kimi-tp4; the steps
# after it use that table. allreduce is for two GPUs or more; it is left out where there are fewer.
# Exit status 1 if a step failed; 0 with one line if there is no GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
out=${2:-$build/device}
budget=${BUDGET_S:-1500} steps=${STEPS:-machine checks tune gemm norm allreduce shapes sanitizers}
quick=()
[ "${QUICK:-0}" = 1 ] && quick=(--quick)
if ! nvidia-smi -L >/dev/null 2>&1 && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  echo "device.sh: skipped, there is no GPU"
  exit 0
fi
mkdir -p "$out"
out=$(realpath "$out")
failed=0
: >"$out/summary.txt"
say() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }
left() { echo $((budget - SECONDS)); }

# step NAME LIMIT COMMAND...: at most LIMIT seconds and what is left of the budget; output to NAME.txt, shown too.
step() {
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  if [ "$(left)" -lt 10 ]; then
    say "LEFT OUT $name: the budget of $budget s is spent"
    failed=1
    return
  fi
  [ "$limit" -le "$(left)" ] || limit=$(left)
  printf '\n== %s (at most %d s): %s\n' "$name" "$limit" "$*"
  timeout -k 10 "$limit" stdbuf -oL -eL "$@" </dev/null 2>&1 | tee "$out/$name.txt"
  status=${PIPESTATUS[0]}
  case $status in
  0) say "ok       $name, $((SECONDS - start)) s" ;;
  124 | 137) say "CUT      $name: over $limit s" ;;
  *) say "FAILED   $name: exit status $status, $((SECONDS - start)) s" ;;
  esac
  [ "$status" = 0 ] || failed=1
}

build_missing() {
  if [ -x "$build/prezero" ] && [ -e "$build/libprezero_cuda.so" ]; then return; fi
  echo "== building into $build"
  cmake -S . -B "$build" -G Ninja -DPZ_CUDA=ON --log-level=WARNING >/dev/null && cmake --build "$build" >"$out/build.txt" 2>&1 ||
    { tail -n 20 "$out/build.txt"; say "FAILED   build"; exit 1; }
}

machine() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu --format=csv
  date -u +%Y-%m-%d
  git rev-parse --short HEAD 2>/dev/null || true
  "$build/prezero" version
}

# bench NAME LIMIT ARGUMENTS...
bench() {
  local name=$1 limit=$2
  shift 2
  step "$name" "$limit" "$build/prezero" bench "$@" "${quick[@]}" --json "$out/$name.json" --html "$out/$name.html"
}

# Rows that the first call has written stay; the gate's constants are those of the last one, of norms of 7168 columns.
tune() {
  local others='256,7168;24576,1536;12288,1536;6144,1536;1536,1536;7168,16384;7168,8192;7168,4096;7168,1024'
  step tune-others 200 "$build/prezero" tune --shapes "$others;2560,8192;8192,2048;14336,8192;8192,7168" \
    --accum fixed,f32 --batches 1,16,64 --out "$out/tuned.json" --quick
  step tune 200 "$build/prezero" tune --shapes '2112,7168;384,7168;3072,1536;7168,2048' --accum fixed,f32 \
    --batches 1,2,4,8,16,32,64,128 --out "$out/tuned.json" "${quick[@]}"
  if [ -s "$out/tuned.json" ]; then export PREZERO_TUNED=$out/tuned.json; fi
}

allreduce() {
  local gpus ranks
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
  [ "$gpus" -ge 2 ] || say "skipped  allreduce: $gpus GPU"
  for ranks in 2 4 8; do
    [ "$ranks" -le "$gpus" ] || continue
    step "allreduce-$ranks" 90 "$build/prezero" bench allreduce --tp $ranks "${quick[@]}" \
      --json "$out/allreduce-$ranks.json"
  done
}

build_missing
build=$(realpath "$build")
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export -f machine
export build
for s in $steps; do
  case $s in
  machine) step machine 30 bash -c machine ;;
  checks) step checks 400 env PHASES=programs bash tests/device/run.sh "$build" "$out/logs" ;;
  tune) tune ;;
  gemm) bench gemm 240 gemm --shapes kimi-tp4 ;;
  norm) bench norm 60 norm --batches 1,2,4,8,16,32,64,128 ;;
  allreduce) allreduce ;;
  shapes)
    for set in kimi-tp1 kimi-tp2 kimi-tp8 deepseek-tp8 llama70b-tp4; do
      bench "gemm-$set" 120 gemm --shapes $set --accum fixed --batches 1,8,32,64
    done
    ;;
  sanitizers) step sanitizers 400 env PHASES=sanitizers bash tests/device/run.sh "$build" "$out/logs" ;;
  *)
    echo "device.sh: unknown step $s" >&2
    exit 2
    ;;
  esac
done
printf '\n== summary after %d s, files in %s\n' "$SECONDS" "$out"
cat "$out/summary.txt"
exit $failed
