#!/usr/bin/env bash
# Prints a Python that is new enough for the project, or says what to do. PYTHON, if set, is the only one tried.
set -euo pipefail

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [[ -n "${PYTHON:-}" ]]; then
    candidates=("$PYTHON")
else
    candidates=(python3 python3.14 python3.13 python3.12 python3.11 python)
fi

for candidate in "${candidates[@]}"; do
    if is_new_enough "$candidate"; then
        echo "$candidate"
        exit 0
    fi
done

{
    echo "setup: Python 3.11 or newer is needed; none of these is: ${candidates[*]}."
    if command -v "${candidates[0]}" >/dev/null; then
        echo "setup: ${candidates[0]} is $("${candidates[0]}" --version 2>&1)."
    fi
    echo "setup: install one, or name it: make setup PYTHON=/path/to/python3.11"
} >&2
exit 1
