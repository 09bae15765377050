"""Train on pairs of episodes: `python -m verl_agent.commands.dpo --config-dir DIR --config-name RECIPE`."""

from functools import partial

import hydra
from omegaconf import DictConfig

from verl_agent.commands.hydra_main import launch
from verl_agent.runs.console import exit_with
from verl_agent.training.offline.dpo import DPO
from verl_agent.training.offline.run import run


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Run the command on a composed config."""
    exit_with(partial(run, method=DPO), config)


if __name__ == "__main__":
    launch(main, "agent_dpo")
