"""Train on episodes: `python -m verl_agent.commands.sft --config-dir DIR --config-name RECIPE`."""

from functools import partial

from verl_agent.commands.hydra_main import run_recipe
from verl_agent.training.offline.run import run
from verl_agent.training.offline.sft import SFT

if __name__ == "__main__":
    run_recipe(partial(run, method=SFT), "agent_sft")
