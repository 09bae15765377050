#!/usr/bin/env bash
# Train this folder's environment. Arguments are Hydra's own; paths are relative to the repository:
#   train.sh                                      # grpo.yaml
#   train.sh --config-name grpo_cpu               # another recipe of this folder
#   train.sh trainer.total_training_steps=2       # override any value
#   train.sh --cfg job                            # print the config, run nothing
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
for python in "${VIRTUAL_ENV:-.venv}/bin/python" .venv/bin/python python; do
    "$python" -c 'import hydra, verl_agent' 2>/dev/null && exec "$python" -m verl_agent.train --config-dir "$here" --config-name grpo "$@"
done
echo "verl-agent is installed neither in .venv nor in the environment that is active. Run: make setup" >&2
exit 1
