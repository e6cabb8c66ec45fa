#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what building and testing need and this machine lacks; does nothing, and needs no network, where all is
# there.   tools/deps.sh SET...     SET: build (compile, test, demo), dev (lint, sanitizers, fuzzing, coverage)
set -euo pipefail

# probe -> Debian package. A probe is a command, or pkg:NAME for a pkg-config module, or file:PATTERN.
build_set="cc=gcc c++=g++ make=make cmake=cmake ninja=ninja-build pkg-config=pkg-config
  pkg:jansson=libjansson-dev pkg:libpcre2-8=libpcre2-dev pkg:cmocka=libcmocka-dev"
dev_set="clang=clang clang-format=clang-format clang-tidy=clang-tidy gcovr=gcovr python3=python3
  file:/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.tsan*=libclang-rt-14-dev"

have() {
  case $1 in
    pkg:*) pkg-config --exists "${1#pkg:}" 2>/dev/null ;;
    file:*) compgen -G "${1#file:}" >/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

missing=()
for set in "$@"; do
  list="${set}_set"
  for entry in ${!list}; do
    have "${entry%=*}" || missing+=("${entry##*=}")
  done
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "missing packages: ${missing[*]}"
if ! command -v apt-get >/dev/null; then
  echo "deps.sh: no apt-get here; please install the packages above (Debian names) by hand" >&2
  exit 1
fi
sudo=
if [ "$(id -u)" -ne 0 ]; then sudo=sudo; fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get -q update
$sudo apt-get -qy install --no-install-recommends "${missing[@]}"
