"""Train an agent with verl: `python -m verl_agent.commands.train --config-dir recipes/<env> --config-name <recipe>`."""

from omegaconf import DictConfig

from verl_agent.commands.hydra_main import run_recipe
from verl_agent.runs.console import exit_with
from verl_agent.runs.supervisor import supervise
from verl_agent.training.run import run


def start(config: DictConfig) -> None:
    """Train in a child process, which is started again where it dies."""
    supervise(lambda link: exit_with(lambda composed: run(composed, link), config), config)


if __name__ == "__main__":
    run_recipe(start, "agent_base")
