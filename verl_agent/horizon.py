"""How many turns an episode may take: fixed, in stages, or as far as what was measured allows.

ScalingInter-RL (arXiv 2509.08755, section 3.3) lengthens the horizon in stages: h_{t+1} = h_t + delta every
Delta steps. Fixed and staged schedules are pure functions of the step, so resuming from a checkpoint needs no state;
the adaptive one has a state, which the trainer owns and saves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from verl_agent.errors import ConfigError


def _whole(value: object) -> bool:
    """Whether a value is a whole number: YAML's true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Section `horizon.adaptive`: when the next stage begins. At least one of the first two is given.

    Attributes:
        success_above: share of sound episodes solved at the present limit, 0 to 1, above which it grows.
        cut_above: share of episodes that the limit ended unsolved, 0 to 1, above which it grows.
        window: latest training steps of the stage that both shares are averaged over, >= 1.
    """

    success_above: float | None = None
    cut_above: float | None = None
    window: int = 5

    def __post_init__(self) -> None:
        if self.success_above is None and self.cut_above is None:
            raise ConfigError("horizon.adaptive needs success_above, cut_above or both: else it would never grow.")
        for name in ("success_above", "cut_above"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"horizon.adaptive.{name} must be a share from 0 to below 1 or null, got {value}.")
        if not _whole(self.window) or self.window < 1:
            raise ConfigError(f"horizon.adaptive.window must be >= 1 step, got {self.window}.")


@dataclass(frozen=True, slots=True)
class Horizon:
    """Stages of growing turn limits.

    Attributes:
        max_turns: turn limit of each stage, growing, each >= 1; one value is a fixed horizon.
        steps_per_stage: training steps that each stage but the last lasts, >= 1; a list has one value for each of
            them. Under `adaptive` the fewest that it lasts.
        eval_max_turns: turn limit of validation and evaluation, whatever the step; the last stage's if None.
        grow_by: turns that each further stage adds to the one value of `max_turns` (the paper's delta), >= 1.
        up_to: limit of the last stage that `grow_by` makes.
        adaptive: begin the next stage by what is measured rather than by the step, or None.
    """

    max_turns: Sequence[int]
    steps_per_stage: int | Sequence[int] = 1
    eval_max_turns: int | None = None
    grow_by: int | None = None
    up_to: int | None = None
    adaptive: Adaptive | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.max_turns, Sequence) or not all(map(_whole, self.max_turns)):
            wanted = [self.max_turns] if _whole(self.max_turns) else [8]
            raise ConfigError(
                f"horizon.max_turns must be a list of whole numbers such as {wanted}, got {self.max_turns!r}."
            )
        limits = list(self.max_turns)
        if not limits or min(limits) < 1:
            raise ConfigError(f"horizon.max_turns must hold limits >= 1, got {limits}.")
        if limits != sorted(limits):
            raise ConfigError(f"horizon.max_turns must not shrink, got {limits}. Sort it, or fix the typing error.")
        for name in ("grow_by", "up_to", "eval_max_turns"):
            value = getattr(self, name)
            if value is not None and not _whole(value):
                raise ConfigError(f"horizon.{name} must be a whole number of turns or null, got {value!r}.")
        self._check_growth()
        listed = isinstance(self.steps_per_stage, Sequence)
        durations = list(self.steps_per_stage) if isinstance(self.steps_per_stage, Sequence) else [self.steps_per_stage]
        if not all(_whole(steps) and steps >= 1 for steps in durations):
            raise ConfigError(f"horizon.steps_per_stage must be >= 1, got {self.steps_per_stage}.")
        if listed and len(durations) != len(self.stages) - 1:
            raise ConfigError(
                f"horizon.steps_per_stage={durations} must have one value for each stage but the last: "
                f"{len(self.stages) - 1} for the limits {self.stages}."
            )
        if self.eval_max_turns is not None and self.eval_max_turns < 1:
            raise ConfigError(f"horizon.eval_max_turns must be >= 1 or null, got {self.eval_max_turns}.")
        if self.adaptive and len(self.stages) < 2:
            raise ConfigError(
                f"horizon.adaptive has nowhere to grow from {self.stages}. Give horizon.max_turns several limits, or "
                "horizon.grow_by and horizon.up_to."
            )

    def _check_growth(self) -> None:
        if (self.grow_by is None) != (self.up_to is None):
            raise ConfigError("horizon.grow_by and horizon.up_to belong together: give both, or neither.")
        if self.grow_by is None or self.up_to is None:
            return
        if len(self.max_turns) != 1:
            raise ConfigError(
                f"horizon.grow_by grows from one limit, horizon.max_turns has {len(self.max_turns)}: "
                f"{list(self.max_turns)}. Give the first one, or leave grow_by out."
            )
        if self.grow_by < 1:
            raise ConfigError(f"horizon.grow_by must be >= 1 turn, got {self.grow_by}: the horizon must not shrink.")
        if self.up_to <= self.max_turns[0]:
            raise ConfigError(f"horizon.up_to={self.up_to} must exceed the first limit, {self.max_turns[0]}.")

    @property
    def stages(self) -> list[int]:
        """Turn limit of each stage."""
        if self.grow_by is None or self.up_to is None:
            return list(self.max_turns)
        return [*range(self.max_turns[0], self.up_to, self.grow_by), self.up_to]

    def steps_of(self, stage: int) -> int:
        """Training steps that a stage lasts (adaptive: at least), counted from 0; not asked of the last one."""
        return self.steps_per_stage if isinstance(self.steps_per_stage, int) else self.steps_per_stage[stage]

    def turns_at(self, step: int) -> int:
        """Turn limit at training step `step`, counted from 1.

        Raises:
            ValueError: the horizon is adaptive, so the step does not tell.
        """
        if self.adaptive:
            raise ValueError("an adaptive horizon is no function of the step; the trainer hands it down.")
        stages, end = self.stages, 0
        for stage in range(len(stages) - 1):
            end += self.steps_of(stage)
            if step <= end:
                return stages[stage]
        return stages[-1]

    def turns_for_evaluation(self) -> int:
        """Turn limit outside training."""
        return self.eval_max_turns or self.stages[-1]


@dataclass(slots=True)
class AdaptiveState:
    """Where an adaptive horizon stands; fed one measurement a training step.

    Attributes:
        horizon: with `adaptive` set.
        stage: the present stage, from 0.
        measured: success and cut share of each step of this stage, oldest first.
    """

    horizon: Horizon
    stage: int = 0
    measured: list[tuple[float, float]] = field(default_factory=list)

    @property
    def max_turns(self) -> int:
        """The present turn limit."""
        return self.horizon.stages[self.stage]

    def observe(self, success: float, cut: float) -> None:
        """Take what a step measured, and begin the next stage if it is time.

        Args:
            success: share of its sound episodes that solved their task, 0 to 1.
            cut: share of its episodes that the limit ended, 0 to 1.
        """
        rule = self.horizon.adaptive
        assert rule is not None  # the trainer makes states of adaptive horizons only
        if self.stage == len(self.horizon.stages) - 1:
            return
        self.measured.append((success, cut))
        latest = self.measured[-rule.window :]
        if len(self.measured) < max(rule.window, self.horizon.steps_of(self.stage)):
            return
        solved, ended = fmean(s for s, _ in latest), fmean(c for _, c in latest)
        can_more = rule.success_above is not None and solved > rule.success_above
        needs_more = rule.cut_above is not None and ended > rule.cut_above
        if can_more or needs_more:
            self.stage, self.measured = self.stage + 1, []

    def saved(self) -> dict[str, Any]:
        """The state in plain values, for a checkpoint."""
        return {"stage": self.stage, "measured": [list(pair) for pair in self.measured]}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `saved` gave.

        Raises:
            ConfigError: it is of a horizon with fewer stages.
        """
        if saved["stage"] >= len(self.horizon.stages):
            raise ConfigError(
                f"the checkpoint is at stage {saved['stage'] + 1} of an adaptive horizon, horizon has only "
                f"{len(self.horizon.stages)}: {self.horizon.stages}. Restore the setting, or begin another run."
            )
        self.stage = int(saved["stage"])
        self.measured = [(float(success), float(cut)) for success, cut in saved["measured"]]
