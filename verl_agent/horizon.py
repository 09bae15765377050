"""ScalingInter-RL and other schedules: the turn limit of a group of episodes, by step, task and what training has seen.

ScalingInter-RL (arXiv 2509.08755, section 3.3) lengthens the horizon in stages: h_{t+1} = h_t + delta every
Delta steps. `verl_agent.training.turn_limits` has the schedules that learn from episodes. A package registers one of
its own, a subclass of `Schedule`, with an entry point:

    entry_points={"verl_agent.schedules": ["my_schedule = my_package.schedule:MySchedule"]}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from verl_agent.errors import ConfigError
from verl_agent.sections import Needs, OnResume, settings
from verl_agent.types import TaskItem

SCHEDULE_GROUP = "verl_agent.schedules"
Count = Annotated[int, Field(ge=1)]
"""Number of turns or of training steps."""
Share = Annotated[float, Field(ge=0, lt=1)]
"""Share of the episodes of a training step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Valid episode of a training step, as a schedule sees it.

    Attributes:
        task: id of its task.
        category: category of its task.
        limit: its turn limit.
        turns: turns that it took; of a solved one, those until it solved the task.
        solved: True if it solved the task.
        limited: True if the turn limit ended it.
        group: name of its group, whose episodes of the task have the same limit.
    """

    task: str
    category: str
    limit: int
    turns: int
    solved: bool
    limited: bool
    group: str = ""


class Schedule:
    """Turn limits of one environment over training: a function of the step, the task and the outcomes so far.

    All episodes of a group have the same limit, so estimators may compare them.

    Args:
        stages: limits of `horizon.max_turns`, growing; the last one is the highest that `limit` may return.
        options: `horizon.options`.
    """

    def __init__(self, stages: Sequence[int], **options: Any) -> None:
        self.stages = list(stages)
        if options:
            raise ConfigError(f"horizon.options has {', '.join(options)}, which {type(self).__name__} does not take.")

    def limit(self, step: int, item: TaskItem) -> int:
        """Return the turn limit of the groups of a task at a training step, from 1."""
        raise NotImplementedError

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from the valid episodes of a training step."""

    def saved(self) -> dict[str, Any]:
        """Return the state in values that JSON keeps, for a checkpoint; empty without a state."""
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the state that `saved` returned."""


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


@settings("horizon.per_task")
class PerTask:
    """A turn limit for each task, one of the limits of `horizon.max_turns`, from the latest episodes of the task."""

    rule: Literal["signal", "ladder"] = "signal"
    """`signal`: the limit with the most learning signal per turn. `ladder`: a higher limit after groups that the limit
    ended without a success, a lower one when the task is solved in fewer turns."""
    window: Count = 32
    """Latest episodes of a task from which its limit follows; with `ladder` the latest solved ones."""
    explore: Annotated[Share, Needs("horizon.per_task.rule", "signal")] = 0.1
    """Share of the groups that play the next higher limit, or any higher one while no episode has solved the task."""
    prior: Annotated[float, Field(ge=0), Needs("horizon.per_task.rule", "signal")] = 4.0
    """Episodes that those of the whole category count at each turn, >= 0; 0 to leave the category out."""
    patience: Annotated[Count, Needs("horizon.per_task.rule", "ladder")] = 2
    """Groups that the limit ended since the last success, after which the limit grows."""
    slack: Annotated[float, Field(ge=1), Needs("horizon.per_task.rule", "ladder")] = 1.5
    """The limit is at least this many times the median turns of the latest solved episodes, >= 1."""


@settings("horizon.replay")
class Replay:
    """Replay of the first turns of a solved episode without loss, so that the policy plays the last ones."""

    records: Sequence[str] = ()
    """Files and folders of recorded episodes, such as a teacher's. The solved one with the fewest turns of each task is
    replayed. Empty for the environment's demonstrations."""
    spare: Annotated[int, Field(ge=0)] = 0
    """Turns of the limit beyond those that the replayed episode has left, >= 0 and below the first limit."""

    def given(self, turns: int, limit: int) -> int:
        """Return the number of turns to replay of a solved episode, where the policy may take `limit` turns."""
        return max(0, turns - (limit - self.spare))


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
    per_task: PerTask | None = None
    """A turn limit for each task instead of one by step; null for none."""
    deepen: bool = False
    """A group plays up to the first limit. While none of its episodes has solved the task and the limit has ended at
    least one, those go on to the next limit."""
    replay: Replay | None = None
    """Replay of a solved episode up to its last turns, which the policy plays; null to play from the prompt. The limits
    count the turns of the policy."""
    schedule: Annotated[str, Field(min_length=1)] | None = None
    """Registered name of a schedule of another package, a subclass of `verl_agent.Schedule`."""
    options: Annotated[Mapping[str, Any], Needs("horizon.schedule")] = Field(default_factory=dict)
    """Keyword arguments of the schedule."""
    order: Literal["growing", "shrinking", "random"] = "growing"
    """Order of the stages. The others are controls of an experiment: `shrinking` begins with the longest limit, and
    `random` draws one for each step, every limit equally often."""

    def __post_init__(self) -> None:
        limits = list(self.max_turns)
        if limits != sorted(limits):
            raise ConfigError(f"horizon.max_turns must not shrink, got {limits}. Sort it, or fix the typing error.")
        self._check_growth()
        self._check_schedule()
        self._check_replay()
        if isinstance(self.steps_per_stage, Sequence) and len(self.steps_per_stage) != len(self.stages) - 1:
            raise ConfigError(
                f"horizon.steps_per_stage={list(self.steps_per_stage)} must have one value for each stage but the "
                f"last: {len(self.stages) - 1} for the limits {self.stages}."
            )

    def _check_schedule(self) -> None:
        """Check that one schedule decides, reads its settings, and has several limits to choose from."""
        chosen = [name for name in ("adaptive", "per_task", "deepen", "schedule") if getattr(self, name)]
        ordered = [] if self.order == "growing" else ["order"]
        if len(chosen) + len(ordered) > 1:
            names = " and ".join(f"horizon.{name}" for name in (*chosen, *ordered))
            raise ConfigError(f"{names} each decide the turn limit. Keep one of them.")
        without_steps = [name for name in chosen if name != "adaptive"] or ["order=random"] * (self.order == "random")
        if without_steps and self.steps_per_stage != 1:
            raise ConfigError(
                f"horizon.steps_per_stage={self.steps_per_stage} has no effect with horizon.{without_steps[0]}, which "
                "has no stages that last. Leave it out, or set it to 1."
            )
        if chosen + ordered not in ([], ["schedule"]) and len(set(self.stages)) < 2:
            raise ConfigError(
                f"horizon.{(chosen + ordered)[0]} cannot choose between the limits {self.stages}. Give "
                "horizon.max_turns several limits, or set horizon.grow_by and horizon.up_to."
            )
        if (self.per_task or self.deepen) and len(set(self.stages)) < len(self.stages):
            raise ConfigError(
                f"horizon.{chosen[0]} chooses between limits, of which horizon.max_turns={self.stages} has one twice. "
                "Leave the second one out."
            )

    def _check_replay(self) -> None:
        """Check that the policy has a turn left, and that the limit does not follow from whole episodes."""
        if self.replay is None:
            return
        if self.replay.spare >= self.stages[0]:
            raise ConfigError(
                f"horizon.replay.spare={self.replay.spare} must be below the first limit of horizon.max_turns, "
                f"{self.stages[0]}: the policy plays the turns between. Lower it, or raise that limit."
            )
        if other := next((name for name in ("per_task", "deepen") if getattr(self, name)), None):
            raise ConfigError(
                f"horizon.replay is not allowed with horizon.{other}, which measures episodes from the prompt on. Set "
                "one of them to null or false."
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
            ValueError: the limit is not a function of the step alone.
        """
        if self.adaptive or self.by_group:
            raise ValueError("the turn limit of this horizon is not a function of the step alone.")
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

    @property
    def by_group(self) -> bool:
        """True if groups of one training step may have different turn limits."""
        return bool(self.per_task or self.deepen or self.schedule)

    @property
    def first_limit(self) -> int:
        """Turn limit of the first training step, as an estimate.

        The mean of the lowest and the highest one with `deepen`, and the lowest where tasks have their own.
        """
        if self.deepen:
            return (self.stages[0] + self.stages[-1]) // 2
        return self.stages[0] if self.adaptive or self.by_group else self.turns_at(1)

    def turns_for_evaluation(self) -> int:
        """Return the turn limit of validation and evaluation."""
        return self.eval_max_turns or self.stages[-1]


class Staged(Schedule):
    """Limits by the step alone: fixed, growing in stages, or in another order. It has no state."""

    def __init__(self, horizon: Horizon) -> None:
        super().__init__(horizon.stages)
        self._horizon = horizon

    @override
    def limit(self, step: int, item: TaskItem) -> int:
        return self._horizon.turns_at(step)
