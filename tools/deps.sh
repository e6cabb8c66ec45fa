#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what building and testing need and this machine lacks; does nothing, and needs no network, where all is
# there.   tools/deps.sh SET...     SET: build (compile, test, demo), dev (lint, sanitizers, fuzzing, coverage),
#                                   cuda (nvcc and what it needs, into ~/.cache/prezero/cuda, where CMake finds it)
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

# nvcc 13.0, 270 MB unpacked; without cuBLASLt, which alone has 400 MB and which the build can do without.
cuda_wheels="nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-nvtx==13.0.85"
cuda_dir=$HOME/.cache/prezero/cuda
have_nvcc() {
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || [ -x "$cuda_dir/bin/nvcc" ]
}
fetch_cuda() {
  if have_nvcc; then return; fi
  echo "fetching nvcc into $cuda_dir"
  local tmp
  mkdir -p "$(dirname "$cuda_dir")"
  tmp=$(mktemp -d "$cuda_dir.XXXXXX")
  # shellcheck disable=SC2086
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target "$tmp" $cuda_wheels
  ln -s lib "$tmp/nvidia/cu13/lib64" # where nvcc looks
  rm -rf "$cuda_dir"
  mv "$tmp/nvidia/cu13" "$cuda_dir"
  rm -rf "$tmp"
}

missing=()
cuda=no
for set in "$@"; do
  if [ "$set" = cuda ]; then
    cuda=yes
    have_nvcc || python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    continue
  fi
  list="${set}_set"
  for entry in ${!list}; do
    have "${entry%=*}" || missing+=("${entry##*=}")
  done
done
if [ ${#missing[@]} -gt 0 ]; then
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
fi
if [ "$cuda" = yes ]; then fetch_cuda; fi
