#!/usr/bin/env bash
# Train a small language-model agent on this machine without a GPU, and compare it before and after.
# `make quickstart` installs everything first. An interrupted run resumes when you run the same command again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export VERL_PLATFORM=${VERL_PLATFORM:-cpu} # also on a machine with a GPU, because the installed packages are for the CPU
python=${VIRTUAL_ENV:-.venv}/bin/python
"$python" -c 'import hydra' 2>/dev/null || python=.venv/bin/python # another virtual environment is active
[[ -x $python ]] || python=python
"$python" -c 'import hydra' 2>/dev/null || { echo "verl-agent is not installed here. Run: make quickstart" >&2; exit 1; }

echo "1/2  Supervised training: SmolLM2-135M-Instruct sees 32 solved crafting goals (about a minute, plus unpacking the model the first time)"
"$python" -m verl_agent.commands.sft --config-dir "$PWD/recipes/textcraft" --config-name sft_cpu
echo
echo "2/2  Reinforcement learning with verl, Ray and vLLM: the turn limit grows from 4 to 6 (about ten minutes, one of them for the start)"
"$python" -m verl_agent.commands.train --config-dir "$PWD/recipes/textcraft" --config-name quickstart
viewer=$(dirname "$python")/verl-agent
[[ -x $viewer ]] || viewer=verl-agent
cat <<TEXT

Next:
  runs/textcraft_quickstart/curves.png       learning curves; every conversation is in episodes/ beside it
  docs/results/index.md                      measured results
  bash recipes/textcraft/train.sh --config-name scaling_inter_cpu      the longer run of this kind (40 minutes)
  bash recipes/textcraft/eval.sh --config-name eval_cpu model.path=runs/textcraft_quickstart
  docs/start/own-environment.md              how to write an environment

See in a browser what the agent did, turn by turn:
  $viewer view runs/textcraft_quickstart
TEXT
