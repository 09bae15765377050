#!/usr/bin/env bash
# Evaluate a model on this folder's environment. Arguments are Hydra's own; paths are relative to the repository:
#   eval.sh model.path=runs/my_run                        # eval.yaml; a run, a checkpoint, a model folder, a hub id
#   eval.sh --config-name eval_cpu model.path=runs/my_run # another recipe of this folder
#   eval.sh model.path=runs/my_run evaluation.samples=8   # override any value
#   eval.sh --cfg job                                     # print the config, run nothing
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
python=${VIRTUAL_ENV:-.venv}/bin/python
"$python" -c 'import hydra' 2>/dev/null || python=.venv/bin/python # some other environment is active
[[ -x $python ]] || python=python
"$python" -c 'import hydra' 2>/dev/null || { echo "verl-agent is not installed here. Run: make setup" >&2; exit 1; }
exec "$python" -m verl_agent.commands.evaluate --config-dir "$here" --config-name eval "$@"
