"""The Ray actor that verl trains in: verl's own, after our trainer and estimators are registered in its process."""

import ray
from omegaconf import DictConfig


@ray.remote
class EpisodeRunner:
    """Runs verl's `TaskRunnerV1` (verl/trainer/main_ppo.py), which looks trainers up by name."""

    def run(self, config: DictConfig) -> None:
        """Train to the end of `config`."""
        from verl.trainer.main_ppo import TaskRunnerV1

        import verl_agent.training.trainer  # noqa: F401 - registers it

        TaskRunnerV1.__ray_metadata__.modified_class().run(config)
