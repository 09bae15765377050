"""Train an agent with verl: `python -m verl_agent.train --config-dir recipes/<env> --config-name <recipe> [overrides]`."""

import os

import hydra
from omegaconf import DictConfig

from verl_agent.config.search_path import register_config
from verl_agent.plugin import require_plugin
from verl_agent.prepare import prepare


def run(config: DictConfig) -> None:
    """Train to the end of a composed recipe."""
    config, _ = prepare(config)
    os.environ["VERL_FILE_LOGGER_PATH"] = os.path.join(config.trainer.default_local_dir, "metrics.jsonl")
    require_plugin()
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, need_reference_policy(config), need_critic(config))
    run_ppo(config, TaskRunnerV1)


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Entry point of `python -m verl_agent.train`."""
    run(config)


if __name__ == "__main__":
    register_config()
    main()
