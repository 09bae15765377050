"""Explore, select, train, repeat: `python -m verl_agent.commands.evolve --config-dir DIR --config-name RECIPE`."""

import hydra
from omegaconf import DictConfig

from verl_agent.commands.hydra_main import launch
from verl_agent.runs.console import exit_with
from verl_agent.training.offline.evolve.run import run


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Run the command on a composed config."""
    exit_with(run, config)


if __name__ == "__main__":
    launch(main, "agent_evolve")
