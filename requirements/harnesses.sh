#!/usr/bin/env bash
# Install agents of others, each in an environment of its own below .harnesses: requirements/harnesses.sh [--lock] [NAME...]
# The packages are those of `install` in verl_agent/envs/program/harnesses/NAME.yaml. harnesses/NAME.txt, written by
# --lock, has the versions of what they need. Needs Python 3.11 or later, and npm for those of npm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
data=verl_agent/envs/program/harnesses

lock=no
if [[ ${1:-} == --lock ]]; then lock=yes; shift; fi
if [[ $# == 0 ]]; then # those of this package
    for file in "$data"/*.yaml; do set -- "$@" "$(basename "$file" .yaml)"; done
fi
python=${PYTHON:-$(requirements/find_python.sh)}
failed=0
for name in "$@"; do
    file=$data/$name.yaml folder=.harnesses/$name pins=requirements/harnesses/$name.txt
    if [[ ! -f $file ]]; then
        echo "$name is not a harness. Allowed: $(basename -s .yaml "$data"/*.yaml | xargs)." >&2
        exit 1
    fi
    install=$(sed -n 's/^install: //p' "$file")
    [[ $lock == yes || $(cat "$folder/.installed" 2>/dev/null) != "$install" ]] || continue
    echo "$name: $install"
    rm -f "$folder/.installed"
    if [[ $install == npm* ]]; then
        if ! command -v npm >/dev/null; then
            echo "$name needs npm: sudo apt-get install npm" >&2
            failed=1
            continue
        fi
        bash -c "$install --no-fund --no-audit --loglevel=error" || { failed=1; continue; }
    else
        [[ -x $folder/bin/python ]] || "$python" -m venv "$folder"
        constraint=""
        [[ $lock == yes || ! -f $pins ]] || constraint="--constraint $PWD/$pins"
        PATH="$PWD/$folder/bin:$PATH" bash -c "$install --quiet --disable-pip-version-check $constraint" \
            || { failed=1; continue; }
        if [[ $lock == yes ]]; then
            mkdir -p requirements/harnesses
            "$folder/bin/pip" freeze --disable-pip-version-check >"$pins"
        fi
    fi
    echo "$install" >"$folder/.installed"
done
exit "$failed"
