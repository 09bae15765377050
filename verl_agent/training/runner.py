"""Process in which verl trains: a Ray actor, or the driver; this package's trainers are registered there first."""

from collections.abc import Callable
from typing import Any

import ray
from omegaconf import DictConfig
from tqdm import tqdm  # type: ignore[import-untyped]


class EpisodeRunner:
    """Runs verl's `TaskRunnerV1` (verl/trainer/main_ppo.py), which finds trainers by their name."""

    def run(self, config: DictConfig) -> None:
        """Train until the end of `config`."""
        from verl.trainer.main_ppo import TaskRunnerV1

        import verl_agent.training.partial  # noqa: F401 - registers all trainers

        TaskRunnerV1.__ray_metadata__.modified_class().run(config)


class DriverRunner:
    """`EpisodeRunner` in the driver, with the interface of an actor, which verl's `run_ppo` expects.

    Driver and actor both import verl. Without the actor, a run takes 0.6 GB less and starts seconds earlier.
    """

    def __init__(self, runner: type = EpisodeRunner) -> None:
        self._runner = runner()
        self.run = _Method(self._run)

    @classmethod
    def remote(cls) -> "DriverRunner":
        """Return a runner."""
        return cls()

    def _run(self, config: DictConfig) -> None:
        try:
            self._runner.run(config)
        finally:
            # A bar that is deleted later would print on the terminal.
            for bar in tuple(getattr(tqdm, "_instances", ())):
                bar.close()


class _Method:
    """Method that `remote` runs at once, in the caller."""

    def __init__(self, call: Callable[[DictConfig], None]) -> None:
        self._call = call

    def remote(self, config: DictConfig) -> Any:
        """Return a Ray object after the method has returned."""
        self._call(config)
        return ray.put(None)
