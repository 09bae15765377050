#!/usr/bin/env bash
# Name everything that the packages need and this machine lacks, with one command, before anything is downloaded.
#   requirements/check_machine.sh PYTHON VENV [DEVICE]
# PYTHON is the interpreter from which the virtual environment VENV is made; `uv` for one that uv brings; "" for none.
# ROOT=no leaves out what install.sh replaces without root: compiler, headers and libnuma.
set -euo pipefail

case $(uname -s) in
    Linux) ;;
    Darwin)
        echo "macOS: the packages exist for Linux only. Run this in a container:" \
            "docker run -it --shm-size=8g -v \"\$PWD:/work\" -w /work python:3.11 bash" >&2
        exit 1 ;;
    *)
        echo "$(uname -s): the packages exist for Linux only. On Windows install WSL 2 (wsl --install) and run this in it." >&2
        exit 1 ;;
esac

python=$1 venv=$2 device=${3:-cpu}
disk_gb=15 # packages 4, downloads 1, models 2.5, and the 6.5 that the quickstart asks for
[[ $device == cpu ]] || disk_gb=40
if [[ -d $venv ]]; then disk_gb=0; fi # its packages are there already

missing=() notes=() apt=() dnf=() zypper=() pacman=() uv="" incomplete=""
lacks() { # lacks WHAT [APT DNF ZYPPER PACMAN]: the packages that contain it, if a package does
    missing+=("$1")
    [[ $# -eq 1 ]] || { apt+=("$2") dnf+=("$3") zypper+=("$4") pacman+=("$5"); }
}
has() { "$python" -c "$1" >/dev/null 2>&1; }
# shellcheck disable=SC1091
release() { [[ -r /etc/os-release ]] && (source /etc/os-release && echo "${VERSION_CODENAME:-}"); }

check_python() {
    local version=${1:-} system
    case $version in
        3.11 | 3.12)
            has 'import ensurepip, venv' || incomplete=yes
            [[ -z $incomplete ]] || lacks "Python's venv module" \
                "python$version-venv" "python$version" "python${version/./}" python
            [[ $device != cpu || ${ROOT:-} == no ]] \
                || has 'import pathlib, sysconfig; assert pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file()' \
                || lacks "Python's C headers (Python.h)" \
                    "python$version-dev" "python$version-devel" "python${version/./}-devel" python
            return ;;
    esac
    system=$(release) incomplete=yes
    missing+=("Python 3.11 (tested) or 3.12${version:+; $python is $version}")
    dnf+=(python3.11 python3.11-devel) zypper+=(python311 python311-devel)
    case $system in
        bookworm) apt+=(python3.11-venv python3.11-dev) ;;
        noble) apt+=(python3.12-venv python3.12-dev) ;;
        *) uv=yes ;; # other releases of Debian and Ubuntu, and Arch, have neither
    esac
}

check_hardware() {
    local folder free memory limit
    case $(uname -m) in
        x86_64 | aarch64) ;;
        *) lacks "a processor of type x86_64 or aarch64; this one is $(uname -m), for which there are no packages" ;;
    esac
    folder=$(dirname "$venv")
    free=$(df -Pk "$folder" 2>/dev/null | { read -r && read -r _ _ _ free _ && echo $((free / 976562)); } || true)
    [[ ${free:-$disk_gb} -ge $disk_gb ]] || lacks "$disk_gb GB of free disk; $folder has $free (VENV=/another/disk/venv)"
    memory=$(awk '/^MemTotal:/ {print int($2 / 976562)}' /proc/meminfo 2>/dev/null || echo 10) # of 10^9 bytes
    for limit in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do # of the container
        [[ -r $limit && $(<"$limit") =~ ^[0-9]{1,14}$ ]] || continue
        [[ $(($(<"$limit") / 1000000000)) -ge $memory ]] || memory=$(($(<"$limit") / 1000000000))
    done
    [[ $memory -ge 10 ]] || notes+=("Note: $memory GB of memory. The quickstart needs 10 GB free; setup goes on.")
}

check_libraries() {
    "${CXX:-g++}" --version >/dev/null 2>&1 || lacks "a C++ compiler" g++ gcc-c++ gcc-c++ gcc # as torch.compile finds it
    { [[ -n $python ]] && has 'import ctypes; ctypes.CDLL("libnuma.so.1")'; } \
        || { [[ -z $python ]] && compgen -G '/usr/lib*/libnuma.so.1' >/dev/null; } \
        || { [[ -z $python ]] && compgen -G '/usr/lib/*/libnuma.so.1' >/dev/null; } \
        || lacks libnuma.so.1 libnuma1 numactl-libs libnuma1 numactl
}

if [[ $python == uv || $python == */uv ]]; then python=""
else check_python "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)"; fi
check_hardware
[[ $device != cpu || ${ROOT:-} == no ]] || check_libraries
[[ ${#notes[@]} -eq 0 ]] || printf '%s\n' "${notes[@]}" >&2
[[ ${#missing[@]} -gt 0 ]] || exit 0

get_uv="curl -LsSf https://astral.sh/uv/install.sh | sh"
printf 'This machine lacks what training needs:\n' >&2
printf '  %s\n' "${missing[@]}" >&2
sudo=$([[ $(id -u) == 0 ]] || echo "sudo ")
[[ -z $uv ]] || command -v curl >/dev/null || { apt+=(curl) dnf+=(curl) zypper+=(curl) pacman+=(curl); }
command=""
if [[ ${ROOT:-} == no ]]; then [[ ${#apt[@]} -eq 0 ]] || uv=yes # it replaces the interpreter and its modules
elif [[ ${#apt[@]} -eq 0 ]]; then :
elif command -v apt-get >/dev/null; then command="apt-get install ${apt[*]}"
elif command -v dnf >/dev/null; then command="dnf install ${dnf[*]}" uv=""
elif command -v zypper >/dev/null; then command="zypper install ${zypper[*]}" uv=""
elif command -v pacman >/dev/null; then command="pacman -S ${pacman[*]}"
else echo "Install it with the package manager of this system, then run make again." >&2; fi
command=${command:+$sudo$command}${uv:+${command:+ && }$get_uv}
[[ -z $command ]] || printf 'Install it, then run make again:\n  %s\n' "$command" >&2
if [[ ${ROOT:-} != no && ${#apt[@]} -gt 0 ]]; then
    echo "Without root: add ROOT=no to the command of make, which does without compiler, headers and libnuma." >&2
    [[ -z $incomplete ]] || printf 'uv brings Python:\n  %s\n' "$get_uv" >&2
fi
exit 1
