#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All checks on a machine with a GPU: every program of this folder, then compute-sanitizer over reduced sets that launch
# every kernel, those of collectives over two ranks. Ranks share a GPU where there is one.
# tests/device/run.sh [BUILD_DIR] [OUT_DIR]     logs go to OUT_DIR (default BUILD_DIR/device-logs)
#   PHASES     "programs sanitizers" (default), or one of them
#   PROGRAMS   names without test_device_, default: all that are built
#   TOOLS      of compute-sanitizer, default: memcheck racecheck synccheck initcheck
#   LIMIT_S    seconds a program may take (default 170), SANITIZER_LIMIT_S (default 150), JOBS sanitizers at once (6)
# One line a run and one a test: PASS, FAIL or SKIP, name, seconds. Exit status 1 if any failed, 77 if nothing ran.
set -uo pipefail
build=$(realpath "${1:-build}")
out=${2:-$build/device-logs}
mkdir -p "$out"
out=$(realpath "$out")
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
phases=${PHASES:-programs sanitizers}
limit=${LIMIT_S:-170} sanitizer_limit=${SANITIZER_LIMIT_S:-150} jobs=${JOBS:-6}
tools=${TOOLS:-memcheck racecheck synccheck initcheck}
results=$(mktemp)
trap 'rm -f "$results"' EXIT

program() { echo "$build/tests/device/test_device_$1"; }

order="norm gemm fixed chain backend"
built=$order
for path in "$build"/tests/device/test_device_*; do
  if [ ! -f "$path" ] || [ ! -x "$path" ]; then continue; fi
  name=${path##*/test_device_}
  [[ " $built " == *" $name "* ]] || built+=" $name"
done
programs=${PROGRAMS:-$built}

# report NAME STATUS SECONDS LOG
report() {
  local verdict=FAIL why=
  case $2 in
  0) verdict=PASS ;;
  77) verdict=SKIP ;;
  3) why="a test hangs" ;;
  124 | 137) why="over its time limit" ;;
  127) why="not built" ;;
  esac
  printf '%s %-28s %6.1f s%s\n' "$verdict" "$1" "$3" "${why:+  ($why)}" | tee -a "$results"
  awk '/^  [0-9.]+ s$/ {t = $1} /^\[ +(OK|FAILED) +\] test_/ {printf "     %-6s %-24s %6.1f s\n", $2 == "OK" ? "ok" : "FAILED", $NF, t
    t = 0} /NOT TESTED/ && !seen[$0]++ {print "   " $0} /^\[=+\] [0-9]+ test\(s\) run/ {exit}' "$4"
  if [ $verdict = FAIL ]; then
    grep -vE '^(\[ +(RUN|OK) |  [0-9.]+ s$|\[=+\])' "$4" | head -25 | cut -c1-400 | sed 's/^/    /'
  fi
}

# one NAME LIMIT COMMAND...
one() {
  local name=$1 seconds=$2 log="$out/$1.log" start end status
  shift 2
  start=$(date +%s.%N)
  timeout -k 10 "$seconds" "$@" >"$log" 2>&1 </dev/null
  status=$?
  end=$(date +%s.%N)
  report "$name" $status "$(echo "$end $start" | awk '{print $1 - $2}')" "$log"
}

if [[ $phases == *programs* ]]; then
  for name in $programs; do
    one "$name" "$limit" stdbuf -oL -eL "$(program "$name")"
  done
fi

if [[ $phases == *sanitizers* ]]; then
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  if [ ! -x "$sanitizer" ]; then
    echo "SKIP compute-sanitizer is not installed" | tee -a "$results"
  else
    running=0
    for name in $programs; do
      case $name in
      backend) args=(--small --filter test_same_bits) ;;
      collective) args=(--small --patience 4 --filter test_payloads) ;;
      tp) args=(--small --patience 4 --filter test_bits_switch) ;;
      norm | gemm | fixed | chain | ops) args=(--small) ;;
      *) continue ;;
      esac
      for tool in $tools; do
        one "$tool.$name" "$sanitizer_limit" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 5 \
          --target-processes application-only "$(program "$name")" ${args[@]+"${args[@]}"} &
        running=$((running + 1))
        if [ $running -ge "$jobs" ]; then
          wait -n
          running=$((running - 1))
        fi
      done
    done
    wait
  fi
fi

passed=$(grep -c ^PASS "$results") failed=$(grep -c ^FAIL "$results") skipped=$(grep -c ^SKIP "$results")
echo "$passed passed, $failed failed, $skipped skipped; logs in $out"
[ "$failed" -eq 0 ] || exit 1
[ "$passed" -gt 0 ] || exit 77
