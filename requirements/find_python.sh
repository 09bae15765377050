#!/usr/bin/env bash
# Print the interpreter for a new virtual environment: one that fits and is complete, else uv, which brings one, else the
# best of the others, which check_machine.sh refuses with the reason. Prints nothing without any.
set -euo pipefail
complete='import ensurepip, pathlib, sys, sysconfig, venv
fits = (3, 11) <= sys.version_info[:2] < (3, 13)
sys.exit(not (fits and pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file()))'
fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))'

for name in python3.11 python3.12 python3; do
    "$name" -c "$complete" 2>/dev/null && command -v "$name" && exit
done
PATH=$PATH:$HOME/.local/bin:$HOME/.cargo/bin command -v uv && exit
for name in python3.11 python3.12 python3; do
    "$name" -c "$fits" 2>/dev/null && command -v "$name" && exit
done
command -v python3 || true
