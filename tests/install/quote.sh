#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a page quotes from an example is what the example has: the lines between its marks "-- begin step --" and "-- end
# step --" stand in the page word for word. Usage: quote.sh PAGE EXAMPLE
set -euo pipefail
python3 - "$1" "$2" <<'EOF'
import re, sys
page, example = (open(path, encoding="utf-8").read() for path in sys.argv[1:])
part = re.search(r"/\* -- begin step -- \*/\n(.*?)/\* -- end step -- \*/", example, re.S)
if not part:
    sys.exit(f"{sys.argv[2]}: has no marks")
blocks = re.findall(r"```c\n(.*?)```", page, re.S)
if part[1].strip() not in [b.strip() for b in blocks]:
    sys.exit(f"{sys.argv[1]}: does not quote {sys.argv[2]} as it is")
print(f"{part[1].count(chr(10))} lines quoted")
EOF
