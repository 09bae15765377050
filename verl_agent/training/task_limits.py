"""Turn limit for each task of an environment (`horizon.per_task`), from the latest episodes of the task."""

from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

from typing_extensions import override

from verl_agent.horizon import Horizon, Outcome, PerTask, Schedule
from verl_agent.types import TaskItem

KIND_WINDOW = 512
"""Latest episodes of a category from which the limits of tasks with few episodes of their own follow."""
Played = tuple[int, bool, bool]
"""Turns of an episode, whether it solved the task, and whether its turn limit ended it."""


class Ladder(Schedule):
    """A rung for each task: up after groups that the limit ended without a success, down to what solved episodes need.

    A task that was never played begins at the limit that its category needs, else at the lowest one.
    """

    def __init__(self, horizon: Horizon, rule: PerTask) -> None:
        super().__init__(horizon.stages)
        self._rule = rule
        self._rungs: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._solved: dict[str, deque[int]] = {}

    @override
    def limit(self, step: int, item: TaskItem) -> int:
        return self.stages[self._rungs.get(item.id, self._covering(f"/{item.category}", 0))]

    @override
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for task, group in by_task(outcomes).items():
            solved = [one.turns for one in group if one.solved]
            self._remember(task, solved, self._rule.window)
            self._remember(f"/{group[0].category}", solved, KIND_WINDOW)
            rung = self._rungs.get(task, self.stages.index(group[0].limit))
            limited = any(one.limited and one.limit >= self.stages[rung] for one in group)  # an old group began lower
            failed = 0 if solved else self._failed.get(task, 0) + limited
            if 2 * len(solved) >= len(group):
                rung = min(rung, self._covering(task, rung))
            elif failed >= self._rule.patience:
                rung, failed = min(rung + 1, len(self.stages) - 1), 0
            self._rungs[task], self._failed[task] = rung, failed

    def _remember(self, name: str, solved: Sequence[int], window: int) -> None:
        self._solved.setdefault(name, deque(maxlen=window)).extend(solved)

    def _covering(self, name: str, without: int) -> int:
        """Return the lowest rung with `slack` times the median turns of solved episodes; without any, `without`."""
        if not (turns := self._solved.get(name)):
            return without
        needed = self._rule.slack * median(turns)
        return next((rung for rung, limit in enumerate(self.stages) if limit >= needed), len(self.stages) - 1)

    @override
    def saved(self) -> dict[str, Any]:
        solved = {name: list(turns) for name, turns in self._solved.items()}
        return {"rungs": dict(self._rungs), "failed": dict(self._failed), "solved": solved}

    @override
    def restore(self, saved: Mapping[str, Any]) -> None:
        self._rungs, self._failed = dict(saved["rungs"]), dict(saved["failed"])
        self._solved = {}
        for name, turns in saved["solved"].items():
            self._remember(name, turns, KIND_WINDOW if name.startswith("/") else self._rule.window)


class Signal(Schedule):
    """The limit L of each task with the largest p(L) (1 - p(L)) / E[min(T, L)]: variance of a group's returns per turn.

    p(L) is the probability to solve the task within L turns, T the turns of an episode. Both follow from the hazards of
    the latest episodes, which a limit censors (Kaplan and Meier 1958; with unsuccessful ends as a competing risk,
    Aalen and Johansen 1978). While neither the task nor its category, if that counts, has a success, its groups play
    Luby's sequence of limits (Luby, Sinclair and Zuckerman 1993): 1, 1, 2, 1, 1, 2, 4, ... as powers of two of the
    number of a limit.
    """

    def __init__(self, horizon: Horizon, rule: PerTask) -> None:
        super().__init__(horizon.stages)
        self._rule = rule
        self._tasks: dict[str, deque[Played]] = {}
        self._kinds: dict[str, deque[Played]] = {}
        self._groups: dict[str, int] = {}
        self._hazards: dict[str, list[tuple[float, float] | None]] = {}

    @override
    def limit(self, step: int, item: TaskItem) -> int:
        values = self._values(item)
        best = max(range(len(values)), key=lambda rung: (values[rung], -rung)) if values else 0
        own = self._tasks.get(item.id, ())
        of_kind = self._kinds.get(item.category, ()) if self._rule.prior else ()
        if not any(values):
            if not any(solved for _, solved, _ in (*own, *of_kind)):
                best = luby(self._groups.get(item.id, 0) + 1).bit_length() - 1
        elif (draw := Random(f"{step} {item.id}")).random() < self._rule.explore:
            best += 1
            if not any(solved for _, solved, _ in own):  # its category may need far fewer turns
                best = draw.randrange(best, max(best + 1, len(self.stages)))
        return self.stages[min(best, len(self.stages) - 1)]

    def _values(self, item: TaskItem) -> list[float]:
        """Return the signal per turn of each limit of which something is known."""
        kind = self._hazards.get(item.category)
        if kind is None:
            kind = self._hazards[item.category] = hazards(self._kinds.get(item.category, ()), self.stages[-1])
        own = hazards(self._tasks.get(item.id, ()), self.stages[-1], kind, self._rule.prior)
        return signal_per_turn(own, self.stages)

    @override
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for task, group in by_task(outcomes).items():
            played = [(one.turns, one.solved, one.limited) for one in group]
            self._tasks.setdefault(task, deque(maxlen=self._rule.window)).extend(played)
            self._kinds.setdefault(group[0].category, deque(maxlen=KIND_WINDOW)).extend(played)
            self._groups[task] = self._groups.get(task, 0) + 1
        self._hazards.clear()

    @override
    def saved(self) -> dict[str, Any]:
        both = (("tasks", self._tasks), ("kinds", self._kinds))
        return {name: {key: list(one) for key, one in known.items()} for name, known in both} | {
            "groups": dict(self._groups)
        }

    @override
    def restore(self, saved: Mapping[str, Any]) -> None:
        for known, name, window in ((self._tasks, "tasks", self._rule.window), (self._kinds, "kinds", KIND_WINDOW)):
            known.clear()
            known.update({key: deque(map(tuple, one), maxlen=window) for key, one in saved[name].items()})
        self._groups = dict(saved["groups"])
        self._hazards.clear()


def hazards(
    played: Sequence[Played] | deque[Played],
    longest: int,
    kind: Sequence[tuple[float, float] | None] = (),
    prior: float = 0.0,
) -> list[tuple[float, float] | None]:
    """Return for each turn the probabilities that an episode at this turn solves the task, and that it ends otherwise.

    Args:
        played: latest episodes.
        longest: number of turns to return.
        kind: hazards of the category, toward which those of a task shrink.
        prior: episodes that `kind` counts.

    Returns:
        None for a turn that no episode has played.
    """
    found: list[tuple[float, float] | None] = []
    for turn in range(1, longest + 1):
        at_risk = sum(turns >= turn for turns, _, _ in played)
        solved = sum(turns == turn and solved for turns, solved, _ in played)
        failed = sum(turns == turn and not solved and not limited for turns, solved, limited in played)
        base = kind[turn - 1] if turn <= len(kind) else None
        weight = prior if base is not None else 0.0
        by_kind = base or (0.0, 0.0)
        total = at_risk + weight
        counts = (solved + weight * by_kind[0], failed + weight * by_kind[1])
        found.append((counts[0] / total, counts[1] / total) if total else None)
    return found


def signal_per_turn(hazard: Sequence[tuple[float, float] | None], limits: Sequence[int]) -> list[float]:
    """Return p(L) (1 - p(L)) / E[min(T, L)] of each limit L, up to the first of which a turn is unknown."""
    values, going_on, solved, turns = list[float](), 1.0, 0.0, 0.0
    for turn, chances in enumerate(hazard, start=1):
        if chances is None and going_on > 0:
            break
        solving, failing = chances or (0.0, 0.0)
        turns += going_on
        solved += going_on * solving
        going_on *= max(0.0, 1.0 - solving - failing)
        if turn in limits:
            values.append(max(0.0, solved * (1.0 - solved)) / turns)
    return values


def luby(number: int) -> int:
    """Return a value of Luby's sequence 1, 1, 2, 1, 1, 2, 4, ...; `number` counts from 1."""
    size = number.bit_length()
    return 1 << (size - 1) if number == (1 << size) - 1 else luby(number - (1 << (size - 1)) + 1)


def by_task(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return the outcomes of each task."""
    found: dict[str, list[Outcome]] = {}
    for one in outcomes:
        found.setdefault(one.task, []).append(one)
    return found
