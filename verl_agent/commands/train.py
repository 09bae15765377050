"""Train an agent with verl: `python -m verl_agent.commands.train --config-dir recipes/<env> --config-name <recipe>`."""

import hydra
from omegaconf import DictConfig

from verl_agent.commands.hydra_main import launch
from verl_agent.runs.console import exit_with
from verl_agent.runs.supervisor import supervise
from verl_agent.training.run import run


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Run the command on a composed config."""
    supervise(lambda link: exit_with(lambda composed: run(composed, link), config), config)


if __name__ == "__main__":
    launch(main, "agent_base")
