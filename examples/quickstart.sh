#!/usr/bin/env bash
# Train a language-model agent on this machine, without a GPU, and see what it learnt. `make quickstart` installs
# what it needs first. Interrupt it whenever you like: run again, it goes on from where it was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export VERL_PLATFORM=${VERL_PLATFORM:-cpu} # also on a machine with a GPU: the packages are those for the CPU
python=${VIRTUAL_ENV:-.venv}/bin/python
"$python" -c 'import hydra' 2>/dev/null || python=.venv/bin/python # some other environment is active
[[ -x $python ]] || python=python
"$python" -c 'import hydra' 2>/dev/null || { echo "verl-agent is not installed here. Run: make quickstart" >&2; exit 1; }

echo "1/2  SmolLM2-135M-Instruct sees 32 solved crafting goals, for a first idea of the format (about a minute; the first time the model is unpacked too)"
"$python" -m verl_agent.commands.sft --config-dir "$PWD/recipes/textcraft" --config-name sft_cpu
echo
echo "2/2  Reinforcement learning: verl, Ray, FSDP2 and vLLM; the horizon grows from 4 to 6 turns (about twelve minutes, of which two to start)"
"$python" -m verl_agent.commands.train --config-dir "$PWD/recipes/textcraft" --config-name quickstart
cat <<'TEXT'

Where to look next:
  runs/textcraft_quickstart/curves.png     the curves; episodes/ beside it holds every conversation
  recipes/README.md                        the longer run of this kind, and what was measured
  recipes/textcraft/train.sh --config-name scaling_inter_cpu        that run (40 minutes)
  recipes/textcraft/eval.sh --config-name eval_cpu model.path=runs/textcraft_quickstart
  CONTRIBUTING.md                          an environment of your own
TEXT
