"""Explore, select, train, repeat: `python -m verl_agent.commands.evolve --config-dir DIR --config-name RECIPE`."""

from verl_agent.commands.hydra_main import run_recipe
from verl_agent.training.offline.evolve.run import Evolving

if __name__ == "__main__":
    run_recipe(lambda config: Evolving(config).run(), "agent_evolve")
