#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The module for GPUs exports one symbol, and a machine without NVIDIA's driver can load it.
# Usage: module.sh LIBRARY
set -euo pipefail
exported=$(nm -D --defined-only "$1" | awk '{print $3}')
[ "$exported" = pz_cuda_module_table ] || { printf 'exports, apart from pz_cuda_module_table:\n%s\n' "$exported"; exit 1; }
if readelf -d "$1" | grep -E 'NEEDED.*lib(cuda|cudart|nvidia)'; then
  echo "needs the library above, which a machine without GPU lacks"
  exit 1
fi
