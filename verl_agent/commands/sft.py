"""Train on episodes: `python -m verl_agent.commands.sft --config-dir DIR --config-name RECIPE`."""

from verl_agent.commands.hydra_main import run_recipe
from verl_agent.config.plan import OfflinePlan
from verl_agent.training.offline.run import OfflineTraining
from verl_agent.training.offline.sft import SFT

if __name__ == "__main__":
    run_recipe(lambda config: OfflineTraining(OfflinePlan.read(config), SFT).run(), SFT.base)
