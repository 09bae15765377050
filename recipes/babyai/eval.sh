#!/usr/bin/env bash
# Evaluate a model on this folder's environment. Arguments are Hydra's own; paths are relative to the repository:
#   eval.sh model.path=runs/my_run                        # eval.yaml; a run, a checkpoint, a model folder, a hub id
#   eval.sh --config-name eval_cpu model.path=runs/my_run # another recipe of this folder
#   eval.sh model.path=runs/my_run evaluation.samples=8   # override any value
#   eval.sh --cfg job                                     # print the config, run nothing
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
for python in "${VIRTUAL_ENV:-.venv}/bin/python" .venv/bin/python python; do
    "$python" -c 'import hydra, verl_agent' 2>/dev/null && exec "$python" -m verl_agent.evaluate --config-dir "$here" --config-name eval "$@"
done
echo "verl-agent is installed neither in .venv nor in the environment that is active. Run: make setup" >&2
exit 1
