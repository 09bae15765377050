#!/usr/bin/env bash
# Evaluate a model on the environment of this folder. Arguments are Hydra overrides; paths are relative to the repository.
#   eval.sh model.path=runs/my_run                        # eval.yaml; a run, checkpoint, model folder or hub id
#   eval.sh --config-name eval_cpu model.path=runs/my_run # another recipe of this folder
#   eval.sh model.path=runs/my_run evaluation.samples=8   # override a value
#   eval.sh --cfg job                                     # print the config without running it
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
python=${VIRTUAL_ENV:-.venv}/bin/python
"$python" -c 'import hydra' 2>/dev/null || python=.venv/bin/python # another virtual environment is active
[[ -x $python ]] || python=python
"$python" -c 'import hydra' 2>/dev/null || { echo "verl-agent is not installed here. Run: make setup" >&2; exit 1; }
exec "$python" -m verl_agent.commands.evaluate --config-dir "$here" --config-name eval "$@"
