"""ScalingInter-RL: the turn limit of an episode as a function of the training step, or of what training measured.

ScalingInter-RL (arXiv 2509.08755, section 3.3) lengthens the horizon in stages: h_{t+1} = h_t + delta every
Delta steps. Fixed and staged schedules are pure functions of the step, so resuming from a checkpoint needs no state.
The adaptive schedule has a state, which the trainer owns and saves. A package registers a schedule of its own, a
function of the step, with an entry point:

    entry_points={"verl_agent.schedules": ["my_schedule = my_package.schedule:turn_limit"]}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_agent import registry
from verl_agent.errors import ConfigError, describe_exception
from verl_agent.sections import Needs, OnResume, settings

SCHEDULE_GROUP = "verl_agent.schedules"
Count = Annotated[int, Field(ge=1)]
"""Number of turns or of training steps."""
Share = Annotated[float, Field(ge=0, lt=1)]
"""Share of the episodes of a training step."""


@settings("horizon.adaptive")
class Adaptive:
    """Growth of the turn limit by what training measures. At least one of the first two keys is set."""

    success_above: Share | None = None
    """Share of valid episodes solved at the present limit, 0 to 1, above which the limit grows."""
    turn_limit_above: Share | None = None
    """Share of valid episodes that the turn limit ended, 0 to 1, above which the limit grows."""
    window: Count = 5
    """Number of latest training steps of the stage over which both shares are averaged."""

    def __post_init__(self) -> None:
        if self.success_above is None and self.turn_limit_above is None:
            raise ConfigError(
                "horizon.adaptive needs success_above, turn_limit_above or both: otherwise the turn limit never grows."
            )


@settings("horizon")
class Horizon:
    """Turn limits of training and of validation, in growing stages."""

    max_turns: Annotated[Sequence[Count], Field(min_length=1)]
    """Turn limit of each stage, growing; one value is a fixed horizon."""
    steps_per_stage: Count | Sequence[Count] = 1
    """Training steps that each stage but the last lasts; a list has one value for each of them. With `adaptive`, the
    fewest steps that a stage lasts."""
    eval_max_turns: Annotated[Count | None, OnResume("train")] = None
    """Turn limit of validation and evaluation at every step; null for the limit of the last stage."""
    grow_by: Count | None = None
    """Turns that each further stage adds to the one value of `max_turns` (the paper's delta)."""
    up_to: Count | None = None
    """Turn limit of the last stage that `grow_by` makes."""
    adaptive: Adaptive | None = None
    """Conditions under which the next stage begins, instead of the step; null for the step alone."""
    schedule: str | None = None
    """Registered name of a schedule of another package: a function `(step, stages, **options)` of the training step,
    from 1, and the limits of the stages, which returns a turn limit up to the last of them."""
    options: Annotated[Mapping[str, Any], Needs("horizon.schedule")] = Field(default_factory=dict)
    """Keyword arguments of the schedule."""
    order: Literal["growing", "shrinking", "random"] = "growing"
    """Order of the stages. The others are controls of an experiment: `shrinking` begins with the longest limit, and
    `random` draws one for each step, every limit equally often."""

    def __post_init__(self) -> None:
        limits = list(self.max_turns)
        if self.schedule and (self.adaptive or self.steps_per_stage != 1 or self.order != "growing"):
            raise ConfigError(
                f"horizon.schedule={self.schedule!r} chooses the limit of every step, so horizon.adaptive, "
                "horizon.steps_per_stage and horizon.order have no effect. Leave them out, or leave out the schedule."
            )
        if limits != sorted(limits):
            raise ConfigError(f"horizon.max_turns must not shrink, got {limits}. Sort it, or fix the typing error.")
        self._check_growth()
        if isinstance(self.steps_per_stage, Sequence) and len(self.steps_per_stage) != len(self.stages) - 1:
            raise ConfigError(
                f"horizon.steps_per_stage={list(self.steps_per_stage)} must have one value for each stage but the "
                f"last: {len(self.stages) - 1} for the limits {self.stages}."
            )
        if self.order != "growing" and (self.adaptive or len(self.stages) < 2):
            raise ConfigError(
                f"horizon.order={self.order} needs several limits and no horizon.adaptive. Give horizon.max_turns "
                "several limits, or leave horizon.order at growing."
            )
        if self.adaptive and len(self.stages) < 2:
            raise ConfigError(
                f"horizon.adaptive cannot grow from {self.stages}. Give horizon.max_turns several limits, or set "
                "horizon.grow_by and horizon.up_to."
            )

    def _check_growth(self) -> None:
        if (self.grow_by is None) != (self.up_to is None):
            raise ConfigError(
                f"horizon.grow_by={self.grow_by} and horizon.up_to={self.up_to} belong together. Set both, or neither."
            )
        if self.grow_by is None or self.up_to is None:
            return
        if len(self.max_turns) != 1:
            raise ConfigError(
                f"horizon.grow_by grows from one limit, horizon.max_turns has {len(self.max_turns)}: "
                f"{list(self.max_turns)}. Keep the first one, or leave grow_by out."
            )
        if self.up_to <= self.max_turns[0]:
            raise ConfigError(f"horizon.up_to={self.up_to} must exceed the first limit, {self.max_turns[0]}.")

    @property
    def stages(self) -> list[int]:
        """Turn limit of each stage."""
        if self.grow_by is None or self.up_to is None:
            return list(self.max_turns)
        return [*range(self.max_turns[0], self.up_to, self.grow_by), self.up_to]

    def steps_of(self, stage: int) -> int:
        """Return the training steps that a stage lasts, with `adaptive` at least.

        Args:
            stage: number of the stage, from 0, not the last one.
        """
        return self.steps_per_stage if isinstance(self.steps_per_stage, int) else self.steps_per_stage[stage]

    def turns_at(self, step: int) -> int:
        """Return the turn limit at training step `step`, counted from 1.

        Raises:
            ValueError: the horizon is adaptive, so its limit is not a function of the step.
        """
        if self.adaptive:
            raise ValueError("the turn limit of an adaptive horizon is not a function of the step.")
        if self.schedule:
            return self._scheduled(self.schedule, step)
        stages, end = self.stages, 0
        if self.order == "random":
            block, place = divmod(step - 1, len(stages))
            return Random(block).sample(stages, len(stages))[place]
        if self.order == "shrinking":
            stages.reverse()
        for stage in range(len(stages) - 1):
            end += self.steps_of(stage)
            if step <= end:
                return stages[stage]
        return stages[-1]

    def _scheduled(self, name: str, step: int) -> int:
        """Return the limit of a schedule of another package."""
        schedule = registry.load_registered(SCHEDULE_GROUP, name, "horizon.schedule", callable, "a function")
        try:
            limit = schedule(step, self.stages, **self.options)
        except Exception as error:  # boundary: the schedule is the author's code
            raise ConfigError(
                f"horizon.schedule={name!r} failed at step {step}: {describe_exception(error)}"
            ) from error
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= self.stages[-1]:
            raise ConfigError(
                f"horizon.schedule={name!r} returned {limit!r} at step {step}. Allowed: a whole number from 1 to "
                f"{self.stages[-1]}, the last limit of horizon.max_turns. Raise that one, or bound the schedule."
            )
        return limit

    def turns_for_evaluation(self) -> int:
        """Return the turn limit of validation and evaluation."""
        return self.eval_max_turns or self.stages[-1]


@dataclass(slots=True)
class AdaptiveState:
    """State of an adaptive horizon, updated with one measurement a training step.

    Attributes:
        horizon: horizon with `adaptive` set.
        measured: success share and turn-limit share of each step of this stage, oldest first.
    """

    horizon: Horizon
    stage: int = 0
    measured: list[tuple[float, float]] = field(default_factory=list)

    @property
    def max_turns(self) -> int:
        """Present turn limit."""
        return self.horizon.stages[self.stage]

    def observe(self, success: float, turn_limit: float) -> None:
        """Add the measurements of a step, and begin the next stage if its conditions are met.

        Args:
            success: share of valid episodes that solved their task, 0 to 1.
            turn_limit: share of valid episodes that the turn limit ended, 0 to 1.
        """
        rule = self.horizon.adaptive
        assert rule is not None  # the trainer creates states for adaptive horizons only
        if self.stage == len(self.horizon.stages) - 1:
            return
        self.measured.append((success, turn_limit))
        latest = self.measured[-rule.window :]
        if len(self.measured) < max(rule.window, self.horizon.steps_of(self.stage)):
            return
        solved, limited = fmean(share for share, _ in latest), fmean(share for _, share in latest)
        can_more = rule.success_above is not None and solved > rule.success_above
        needs_more = rule.turn_limit_above is not None and limited > rule.turn_limit_above
        if can_more or needs_more:
            self.stage, self.measured = self.stage + 1, []

    def saved(self) -> dict[str, Any]:
        """Return the state in plain values, for a checkpoint."""
        return {"stage": self.stage, "measured": [list(pair) for pair in self.measured]}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the state that `saved` returned.

        Raises:
            ConfigError: the state is at a stage that the horizon does not have.
        """
        if saved["stage"] >= len(self.horizon.stages):
            raise ConfigError(
                f"the checkpoint is at stage {saved['stage'] + 1} of an adaptive horizon, but section `horizon` has "
                f"only {len(self.horizon.stages)}: {self.horizon.stages}. Restore the setting, or start a new run."
            )
        self.stage = int(saved["stage"])
        self.measured = [(float(success), float(limited)) for success, limited in saved["measured"]]
