"""Ray actor in which verl trains; it registers this package's trainer and estimators in its process first."""

import ray
from omegaconf import DictConfig


@ray.remote
class EpisodeRunner:
    """Actor that runs verl's `TaskRunnerV1` (verl/trainer/main_ppo.py), which finds trainers by their name."""

    def run(self, config: DictConfig) -> None:
        """Train until the end of `config`."""
        from verl.trainer.main_ppo import TaskRunnerV1

        import verl_agent.training.trainer  # noqa: F401 - registers it

        TaskRunnerV1.__ray_metadata__.modified_class().run(config)
