#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the build into an empty prefix, moves that prefix, and builds and runs two small programs against it as a
# user would: a C program through pkg-config and a C++ program through find_package.
# Usage: package.sh BUILD_DIR VERSION
set -euo pipefail
build=$1 version=$2
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

cmake --install "$build" --prefix "$tmp/first" >"$tmp/log" || { cat "$tmp/log"; exit 1; }
mv "$tmp/first" "$tmp/moved"
pc=$(dirname "$(find "$tmp/moved" -name prezero.pc)")
export PKG_CONFIG_PATH=$pc
lib=$(pkg-config --variable=libdir prezero)
[ "$(pkg-config --modversion prezero)" = "$version" ]

# shellcheck disable=SC2046
cc -std=c99 -Wall -Wextra -Werror "$here/use.c" -o "$tmp/use_c" $(pkg-config --cflags --libs prezero)
[ "$(LD_LIBRARY_PATH=$lib "$tmp/use_c")" = "prezero $version" ]

cmake -S "$here" -B "$tmp/cpp" -DCMAKE_PREFIX_PATH="$tmp/moved" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
cmake --build "$tmp/cpp" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
[ "$("$tmp/cpp/use_cpp")" = "prezero $version" ]

"$tmp/moved/bin/prezero" version | grep -qF "$version"
# Nothing private came along.
if find "$tmp/moved" -name '*.h' | grep -v '/include/prezero/'; then exit 1; fi
if grep -rl "$build" "$tmp/moved" --include='*.cmake' --include='*.pc'; then
  echo "the files above name the build directory"
  exit 1
fi
echo "C and C++ programs run against the installed package"
