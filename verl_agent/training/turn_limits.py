"""Turn limits of all environments of a run, and the schedule of each."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from statistics import fmean
from typing import Any

from typing_extensions import override

from verl_agent import registry
from verl_agent.config.settings import RunEnv
from verl_agent.errors import ConfigError, describe_exception
from verl_agent.horizon import SCHEDULE_GROUP, Adaptive, Horizon, Outcome, Schedule, Staged
from verl_agent.trace.episode_summary import EpisodeSummary
from verl_agent.training.task_limits import Ladder, Signal
from verl_agent.types import StopReason, TaskItem


class FirstLimit(Schedule):
    """The lowest limit, from which `GroupLimit` lets a group go on."""

    @override
    def limit(self, step: int, item: TaskItem) -> int:
        return self.stages[0]


class AdaptiveStages(Schedule):
    """Stages, of which the next one begins by the measured shares of `horizon.adaptive`."""

    def __init__(self, horizon: Horizon, rule: Adaptive) -> None:
        super().__init__(horizon.stages)
        self._horizon, self._rule = horizon, rule
        self._stage, self._measured = 0, list[tuple[float, float]]()

    @override
    def limit(self, step: int, item: TaskItem) -> int:
        return self.stages[self._stage]

    @override
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Add the shares of a step, and begin the next stage if its conditions are met."""
        rule = self._rule
        if self._stage == len(self.stages) - 1 or not outcomes:
            return
        self._measured.append((fmean(one.solved for one in outcomes), fmean(one.limited for one in outcomes)))
        latest = self._measured[-rule.window :]
        if len(self._measured) < max(rule.window, self._horizon.steps_of(self._stage)):
            return
        solved, limited = fmean(share for share, _ in latest), fmean(share for _, share in latest)
        can_more = rule.success_above is not None and solved > rule.success_above
        needs_more = rule.turn_limit_above is not None and limited > rule.turn_limit_above
        if can_more or needs_more:
            self._stage, self._measured = self._stage + 1, []

    @override
    def saved(self) -> dict[str, Any]:
        return {"stage": self._stage, "measured": [list(pair) for pair in self._measured]}

    @override
    def restore(self, saved: Mapping[str, Any]) -> None:
        if saved["stage"] >= len(self.stages):
            raise ConfigError(
                f"the checkpoint is at stage {saved['stage'] + 1} of an adaptive horizon, but section `horizon` has "
                f"only {len(self.stages)}: {self.stages}. Restore the setting, or start a new run."
            )
        self._stage = int(saved["stage"])
        self._measured = [(float(success), float(limited)) for success, limited in saved["measured"]]


def new_schedule(horizon: Horizon, seed: str = "") -> Schedule:
    """Return the schedule of a horizon at its beginning, with the seed of its random draws.

    Raises:
        ConfigError: that of another package does not load or refuses its options.
    """
    if horizon.adaptive:
        return AdaptiveStages(horizon, horizon.adaptive)
    if horizon.per_task:
        learnt_by_signal = horizon.per_task.rule == "signal"
        return Signal(horizon, horizon.per_task, seed) if learnt_by_signal else Ladder(horizon, horizon.per_task)
    if horizon.deepen:
        return FirstLimit(horizon.stages)
    return OwnSchedule(horizon, horizon.schedule) if horizon.schedule else Staged(horizon)


def own_class(name: str) -> type[Schedule]:
    """Return the class of a schedule of another package by its registered name.

    Raises:
        ConfigError: it does not load.
    """
    return registry.load_class(SCHEDULE_GROUP, name, "horizon.schedule", Schedule)


class OwnSchedule(Schedule):
    """Schedule of another package, whose limits are checked."""

    def __init__(self, horizon: Horizon, name: str) -> None:
        super().__init__(horizon.stages)
        self._name, kind = name, own_class(name)
        with self._calling("cannot be made"):
            self._own = kind(horizon.stages, **horizon.options)

    @contextmanager
    def _calling(self, failure: str) -> Iterator[None]:
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:  # boundary: the schedule is the author's code
            raise ConfigError(f"horizon.schedule={self._name!r} {failure}: {describe_exception(error)}") from error

    @override
    def limit(self, step: int, item: TaskItem) -> int:
        with self._calling(f"failed at step {step} for task {item.id}"):
            limit = self._own.limit(step, item)
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= self.stages[-1]:
            raise ConfigError(
                f"horizon.schedule={self._name!r} returned {limit!r} at step {step}. Allowed: a whole number from 1 to "
                f"{self.stages[-1]}, the last limit of horizon.max_turns. Raise that one, or bound the schedule."
            )
        return limit

    @override
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        with self._calling("failed in observe"):
            self._own.observe(outcomes)

    @override
    def saved(self) -> dict[str, Any]:
        with self._calling("failed in saved"):
            state = self._own.saved()
        with self._calling("returned a state from saved that JSON cannot keep, so no checkpoint can"):
            json.dumps(state)
        return state

    @override
    def restore(self, saved: Mapping[str, Any]) -> None:
        with self._calling("failed in restore"):
            self._own.restore(saved)


class TurnLimits:
    """Turn limits of a run: the schedule of each of its environments, whose random draws follow from a seed."""

    def __init__(self, envs: Sequence[RunEnv], seed: int = 0) -> None:
        self._envs = {env.label: env for env in envs}
        self._schedules = {label: new_schedule(env.horizon, f"{seed} {label}") for label, env in self._envs.items()}

    @cached_property
    def _items(self) -> dict[tuple[str, str], TaskItem]:
        """Training tasks by label and id."""
        tasks = {label: env.tasks(env.env.train_tasks) for label, env in self._envs.items()}
        return {(label, item.id): item for label, items in tasks.items() for item in items}

    def of_task(self, label: str, task: str, step: int) -> int:
        """Return the turn limit of the groups of a training task, by its id; see `max_turns`."""
        return self.max_turns(label, step, self._items[label, task])

    def max_turns(self, label: str, step: int, item: TaskItem) -> int:
        """Return the turn limit of the groups of a task at a training step, counted from 1."""
        return self._schedules[label].limit(step, item)

    def observe(self, episodes: Sequence[EpisodeSummary]) -> None:
        """Pass the valid episodes of a training step to the schedules."""
        found: dict[str, list[Outcome]] = {label: [] for label in self._schedules}
        for one in episodes:
            if one.valid:
                label, limited = one.env_label or next(iter(found)), one.stop is StopReason.TURN_LIMIT
                turns = one.turns if one.solved_turns is None else one.solved_turns
                limits = (one.max_turns, turns, one.success, limited)
                found[label].append(Outcome(one.task, one.category, *limits, group=one.group))
        for label, outcomes in found.items():
            self._schedules[label].observe(outcomes)

    def saved(self) -> dict[str, Any]:
        """Return the states of the schedules in plain values, for a checkpoint; may be empty."""
        states = {label: schedule.saved() for label, schedule in self._schedules.items()}
        return {label: state for label, state in states.items() if state}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the states that `saved` returned.

        Raises:
            ConfigError: the state of a schedule of this run is missing.
        """
        for label, schedule in self._schedules.items():
            if schedule.saved() and label not in saved:
                raise ConfigError(
                    f"the checkpoint has no state of the schedule of {label!r}: it belongs to another recipe. "
                    "Choose another trainer.default_local_dir, or restore section horizon."
                )
            if label in saved:
                schedule.restore(saved[label])
