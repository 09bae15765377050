"""Turn limits of all environments of a run at each training step; the trainer decides them."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_agent.config.settings import RunEnv
from verl_agent.errors import ConfigError
from verl_agent.horizon import AdaptiveState
from verl_agent.types import StopReason

SINGLE_ENV_METRICS = ("episode/success_rate", "stop/turn_limit")
MIXTURE_METRICS = ("env/{}/success_rate", "env/{}/turn_limit")
"""Metrics that an adaptive horizon follows, for a run with one environment and for one of a mixture."""


class TurnLimits:
    """Turn limits of a run. Adaptive horizons have a state, the others are functions of the step."""

    def __init__(self, envs: Sequence[RunEnv]) -> None:
        self._horizons = {env.label: env.horizon for env in envs}
        self.adaptive = {label: AdaptiveState(h) for label, h in self._horizons.items() if h.adaptive}

    def max_turns(self, label: str, step: int) -> int:
        """Return the turn limit of an environment at a training step, counted from 1."""
        state = self.adaptive.get(label)
        return state.max_turns if state else self._horizons[label].turns_at(step)

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Pass the metrics of a training step to the adaptive horizons.

        The state of an environment without episodes in the step does not change.
        """
        single = len(self._horizons) == 1
        for label, state in self.adaptive.items():
            names = SINGLE_ENV_METRICS if single else tuple(name.format(label) for name in MIXTURE_METRICS)
            if all(name in metrics for name in names):
                success, turn_limit = (float(metrics[name]) for name in names)
                # `stop/turn_limit` is a share of all episodes, `env/<label>/turn_limit` one of the valid episodes
                invalid = sum(float(metrics.get(f"stop/{reason}", 0.0)) for reason in StopReason if not reason.valid)
                state.observe(success, turn_limit / (1.0 - invalid) if single else turn_limit)

    def saved(self) -> dict[str, Any]:
        """Return the state of the adaptive horizons in plain values, for a checkpoint; may be empty."""
        return {label: state.saved() for label, state in self.adaptive.items()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the state that `saved` returned.

        Raises:
            ConfigError: the state lacks an adaptive horizon of this run.
        """
        for label, state in self.adaptive.items():
            if label not in saved:
                raise ConfigError(
                    f"the checkpoint has no state of the adaptive horizon of {label!r}: it belongs to another recipe. "
                    "Choose another trainer.default_local_dir, or remove horizon.adaptive."
                )
            state.restore(saved[label])
