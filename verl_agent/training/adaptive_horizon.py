"""The turn limit of every environment of a run, step by step, as the trainer hands it down."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_agent.config.mixture import MixtureEnv
from verl_agent.errors import ConfigError
from verl_agent.horizon import AdaptiveState

ALONE = ("episode/success_rate", "stop/turn_limit")
AMONG = ("env/{}/success_rate", "env/{}/turn_limit")
"""Metrics that an adaptive horizon follows, of a single environment and of one in a mixture."""


class Curriculum:
    """Limits of all parts; those of adaptive horizons have a state, the others follow the step.

    Args:
        parts: the environments of the run.
    """

    def __init__(self, parts: Sequence[MixtureEnv]) -> None:
        self._horizons = {part.label: part.settings.horizon for part in parts}
        self.adaptive = {label: AdaptiveState(h) for label, h in self._horizons.items() if h.adaptive}

    def max_turns(self, label: str, step: int) -> int:
        """Turn limit of a part's episodes at a training step, counted from 1."""
        state = self.adaptive.get(label)
        return state.max_turns if state else self._horizons[label].turns_at(step)

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Take what a training step measured; a part that was not played in it stays as it is."""
        for label, state in self.adaptive.items():
            names = ALONE if len(self._horizons) == 1 else tuple(name.format(label) for name in AMONG)
            if all(name in metrics for name in names):
                success, cut = (float(metrics[name]) for name in names)
                valid = 1.0 - float(metrics.get("env/error_rate", 0.0)) if names is ALONE else 1.0
                state.observe(success, cut / valid)  # of a part, verl_agent.trace.metrics counts sound episodes alone

    def saved(self) -> dict[str, Any]:
        """The state in plain values, for a checkpoint; empty where every limit follows the step."""
        return {label: state.saved() for label, state in self.adaptive.items()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `saved` gave.

        Raises:
            ConfigError: it lacks an adaptive horizon of this run.
        """
        for label, state in self.adaptive.items():
            if label not in saved:
                raise ConfigError(
                    f"the checkpoint has no state of the adaptive horizon of {label!r}: it is of another recipe. "
                    "Choose another trainer.default_local_dir, or take horizon.adaptive back."
                )
            state.restore(saved[label])
