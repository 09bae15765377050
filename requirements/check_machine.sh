#!/usr/bin/env bash
# Name everything that the CPU packages need and this machine lacks, with one command, before anything is downloaded.
#   requirements/check_machine.sh PYTHON   # the interpreter from which the virtual environment is made
set -euo pipefail

python=$1
missing=() apt=() dnf=() zypper=() pacman=()
lacks() { # lacks WHAT APT DNF ZYPPER PACMAN: the packages that contain it
    missing+=("$1") apt+=("$2") dnf+=("$3") zypper+=("$4") pacman+=("$5")
}
has() { "$python" -c "$1" >/dev/null 2>&1; }

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
has 'import ensurepip, venv' || lacks "Python's venv module" "python$version-venv" "python$version" "python${version/./}" python
has 'import pathlib, sysconfig; assert pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file()' \
    || lacks "Python's C headers (Python.h)" "python$version-dev" "python$version-devel" "python${version/./}-devel" python
read -ra compiler <<<"${CXX:-g++}" # as PyTorch's compiler does: another one than g++ only by CXX
"${compiler[@]}" --version >/dev/null 2>&1 || lacks "a C++ compiler" g++ gcc-c++ gcc-c++ gcc
has 'import ctypes; ctypes.CDLL("libnuma.so.1")' || lacks libnuma.so.1 libnuma1 numactl-libs libnuma1 numactl
[[ ${#missing[@]} -gt 0 ]] || exit 0

printf 'This machine lacks what training on a CPU needs:\n' >&2
printf '  %s\n' "${missing[@]}" >&2
sudo=$([[ $(id -u) == 0 ]] || echo "sudo ")
if command -v apt-get >/dev/null; then command="apt-get install ${apt[*]}"
elif command -v dnf >/dev/null; then command="dnf install ${dnf[*]}"
elif command -v zypper >/dev/null; then command="zypper install ${zypper[*]}"
elif command -v pacman >/dev/null; then command="pacman -S ${pacman[*]}"
else command=""; fi
if [[ -n $command ]]; then
    printf 'Install it, then run make again:\n  %s%s\n' "$sudo" "$command" >&2
else
    echo "Install it with the package manager of this system, then run make again." >&2
fi
exit 1
