#!/usr/bin/env bash
# Train on the environment of this folder. Arguments are Hydra overrides; paths are relative to the repository.
#   train.sh                                      # grpo.yaml
#   train.sh --config-name grpo_cpu               # another recipe of this folder
#   train.sh trainer.total_training_steps=2       # override a value
#   train.sh --cfg job                            # print the config without running it
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
python=${VIRTUAL_ENV:-.venv}/bin/python
"$python" -c 'import hydra' 2>/dev/null || python=.venv/bin/python # another virtual environment is active
[[ -x $python ]] || python=python
"$python" -c 'import hydra' 2>/dev/null || { echo "verl-agent is not installed here. Run: make setup" >&2; exit 1; }
exec "$python" -m verl_agent.commands.train --config-dir "$here" --config-name grpo "$@"
