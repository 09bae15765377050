"""Train on episodes: `python -m verl_agent.commands.sft --config-dir DIR --config-name RECIPE`."""

from functools import partial

import hydra
from omegaconf import DictConfig

from verl_agent.commands.hydra_main import launch
from verl_agent.runs.console import exit_with
from verl_agent.training.offline.run import run
from verl_agent.training.offline.sft import SFT


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Run the command on a composed config."""
    exit_with(partial(run, method=SFT), config)


if __name__ == "__main__":
    launch(main, "agent_sft")
