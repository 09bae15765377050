"""Train on pairs of episodes: `python -m verl_agent.commands.dpo --config-dir DIR --config-name RECIPE`."""

from functools import partial

from verl_agent.commands.hydra_main import run_recipe
from verl_agent.training.offline.dpo import DPO
from verl_agent.training.offline.run import run

if __name__ == "__main__":
    run_recipe(partial(run, method=DPO), "agent_dpo")
