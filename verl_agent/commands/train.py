"""Train an agent with verl: `python -m verl_agent.commands.train --config-dir recipes/<env> --config-name <recipe>`."""

from dataclasses import replace

from omegaconf import DictConfig

from verl_agent.commands.hydra_main import run_recipe
from verl_agent.config.plan import RunPlan
from verl_agent.runs.supervisor import supervise
from verl_agent.training.run import ReinforcementLearning


def train(config: DictConfig) -> None:
    """Train in a child process, which is started again where it dies."""
    plan = RunPlan.read(config)
    link, schedule = supervise(plan.schedule)
    ReinforcementLearning(replace(plan, schedule=schedule), link).run()


if __name__ == "__main__":
    run_recipe(train, "agent_base")
