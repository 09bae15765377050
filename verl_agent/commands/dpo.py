"""Train on pairs of episodes: `python -m verl_agent.commands.dpo --config-dir DIR --config-name RECIPE`."""

from verl_agent.commands.hydra_main import run_recipe
from verl_agent.config.plan import OfflinePlan
from verl_agent.training.offline.dpo import DPO
from verl_agent.training.offline.run import OfflineTraining

if __name__ == "__main__":
    run_recipe(lambda config: OfflineTraining(OfflinePlan.read(config), DPO).run(), DPO.base)
