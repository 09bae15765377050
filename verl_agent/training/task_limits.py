"""Turn limit for each task of an environment (`horizon.per_task`), from the latest episodes of the task."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from random import Random
from statistics import median
from typing import Any, TypeVar

from typing_extensions import override

from verl_agent.horizon import Horizon, Outcome, PerTask, Schedule
from verl_agent.types import TaskItem

KIND_WINDOW = 512
"""Latest episodes of a category from which the limits of tasks with few episodes of their own follow, or all of the
latest step if these are more: the tasks of a step are in the order of their ids."""
Value = TypeVar("Value")
Played = tuple[int, bool, bool]
"""Turns of an episode, of a solved one those until it solved the task, whether it did, and whether a limit ended it."""


class Ladder(Schedule):
    """A rung for each task: up after groups that the limit ended without a success, down to what solved episodes need.

    A failed group that the limit did not end changes nothing.

    A task that was never played begins at the limit that its category needs, else that of all tasks, else the lowest.
    """

    def __init__(self, horizon: Horizon, rule: PerTask) -> None:
        super().__init__(horizon.stages)
        self._rule = rule
        self._rungs: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._solved: dict[str, deque[int]] = {}
        self._kinds: dict[str, deque[int]] = {}

    @override
    def limit(self, step: int, item: TaskItem) -> int:
        if item.id in self._rungs:
            return self.stages[self._rungs[item.id]]
        known = self._kinds.get(item.category) or [*chain.from_iterable(self._kinds.values())]
        return self.stages[self._covering(known, 0)]

    @override
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        window = max(KIND_WINDOW, len(outcomes))
        for group in by_group(outcomes):
            task, solved = group[0].task, [one.turns for one in group if one.solved]
            own = _kept(self._solved, task, self._rule.window, solved)
            _kept(self._kinds, group[0].category, window, solved)
            rung = self._rungs.get(task, self.stages.index(group[0].limit))
            limited = any(one.limited and one.limit >= self.stages[rung] for one in group)  # an old group began lower
            failed = 0 if solved else self._failed.get(task, 0) + limited
            if 2 * len(solved) >= len(group):
                rung = min(rung, self._covering(own, rung))
            elif failed >= self._rule.patience:
                rung, failed = min(rung + 1, len(self.stages) - 1), 0
            self._rungs[task], self._failed[task] = rung, failed

    def _covering(self, turns: Sequence[int] | deque[int], without: int) -> int:
        """Return the lowest rung with `slack` times the median turns of solved episodes; without any, `without`."""
        if not turns:
            return without
        needed = self._rule.slack * median(turns)
        return next((rung for rung, limit in enumerate(self.stages) if limit >= needed), len(self.stages) - 1)

    @override
    def saved(self) -> dict[str, Any]:
        return {
            "rungs": dict(self._rungs),
            "failed": dict(self._failed),
            "solved": _plain(self._solved),
            "kinds": _plain(self._kinds),
        }

    @override
    def restore(self, saved: Mapping[str, Any]) -> None:
        self._rungs, self._failed = dict(saved["rungs"]), dict(saved["failed"])
        self._solved, self._kinds = {}, {}
        for name, turns in saved["solved"].items():
            _kept(self._solved, name, self._rule.window, turns)
        for name, turns in saved["kinds"].items():
            _kept(self._kinds, name, max(KIND_WINDOW, len(turns)), turns)


class Signal(Schedule):
    """The limit L of each task with the largest p(L) (1 - p(L)) / E[min(T, L)]: variance of a group's returns per turn.

    p(L) is the probability to solve the task within L turns, T the turns until it is solved or the episode ends. Both
    follow from the hazards of the latest episodes, which a limit censors (Kaplan and Meier 1958; with unsuccessful ends
    as a competing risk, Aalen and Johansen 1978). Limits with p(L) = 0 are left out, and of equal values the lowest
    limit is taken. Where p is 0 at each limit, groups play Luby's sequence of limits (Luby, Sinclair and Zuckerman
    1993): 1, 1, 2, 1, 1, 2, 4, ..., whose value 2^i is the i-th limit, counted from 0. A category that was never played
    takes the estimate of all tasks.

    Args:
        seed: decides which groups explore.
    """

    def __init__(self, horizon: Horizon, rule: PerTask, seed: str = "") -> None:
        super().__init__(horizon.stages)
        self._rule, self._seed = rule, seed
        self._tasks: dict[str, deque[Played]] = {}
        self._kinds: dict[str, deque[Played]] = {}
        self._groups: dict[str, int] = {}
        self._hazards: dict[str, list[tuple[float, float] | None]] = {}

    @override
    def limit(self, step: int, item: TaskItem) -> int:
        known = prospects(self._of_task(item), self.stages)
        solvable = [rung for rung, (p, _) in enumerate(known) if p > 0]
        if not solvable:
            best = luby(self._groups.get(item.id, 0) + 1).bit_length() - 1
            return self.stages[min(best, len(self.stages) - 1)]
        best = max(solvable, key=lambda rung: (signal_per_turn(*known[rung]), -rung))
        draw = Random(f"{self._seed} {step} {item.id}")
        if draw.random() < self._rule.explore and best + 1 < len(self.stages):
            solved = any(solved for _, solved, _ in self._tasks.get(item.id, ()))
            # While the task is unsolved, the estimate is that of its category, which may need far fewer turns.
            best = best + 1 if solved else draw.randrange(best + 1, len(self.stages))
        return self.stages[best]

    def _of_task(self, item: TaskItem) -> list[tuple[float, float] | None]:
        """Return the hazards of a task, shrunk toward those of its category."""
        kind = self._hazards.get(item.category)
        if kind is None:
            played = self._kinds.get(item.category) or [*chain.from_iterable(self._kinds.values())]
            kind = self._hazards[item.category] = hazards(played, self.stages[-1])
        return hazards(self._tasks.get(item.id, ()), self.stages[-1], kind, self._rule.prior)

    @override
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        window = max(KIND_WINDOW, len(outcomes))
        for group in by_group(outcomes):
            task, played = group[0].task, [(one.turns, one.solved, one.limited) for one in group]
            _kept(self._tasks, task, self._rule.window, played)
            _kept(self._kinds, group[0].category, window, played)
            self._groups[task] = self._groups.get(task, 0) + 1
        self._hazards.clear()

    @override
    def saved(self) -> dict[str, Any]:
        return {"tasks": _plain(self._tasks), "kinds": _plain(self._kinds), "groups": dict(self._groups)}

    @override
    def restore(self, saved: Mapping[str, Any]) -> None:
        self._tasks, self._kinds, self._groups = {}, {}, dict(saved["groups"])
        for known, name, window in ((self._tasks, "tasks", self._rule.window), (self._kinds, "kinds", KIND_WINDOW)):
            for key, played in saved[name].items():
                _kept(known, key, max(window, len(played)), map(tuple, played))
        self._hazards.clear()


def hazards(
    played: Iterable[Played],
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
    counted = Counter(played)
    ended, solved, failed = Counter[int](), Counter[int](), Counter[int]()
    for (turns, was_solved, limited), count in counted.items():
        ended[turns] += count
        solved[turns] += count * was_solved
        failed[turns] += count * (not was_solved and not limited)
    found: list[tuple[float, float] | None] = []
    at_risk = ended.total() - ended[0]
    for turn in range(1, longest + 1):
        base = kind[turn - 1] if turn <= len(kind) else None
        weight, by_kind = (0.0, (0.0, 0.0)) if base is None else (prior, base)
        counts = (solved[turn] + weight * by_kind[0], failed[turn] + weight * by_kind[1])
        total = at_risk + weight
        found.append((counts[0] / total, counts[1] / total) if total else None)
        at_risk -= ended[turn]
    return found


def prospects(hazard: Sequence[tuple[float, float] | None], limits: Sequence[int]) -> list[tuple[float, float]]:
    """Return p(L) and E[min(T, L)] of each limit L, up to the first of which a turn is unknown."""
    found, going_on, solved, turns = list[tuple[float, float]](), 1.0, 0.0, 0.0
    for turn, chances in enumerate(hazard, start=1):
        if chances is None and going_on > 0:
            break
        solving, failing = chances or (0.0, 0.0)
        turns += going_on
        solved += going_on * solving
        going_on *= max(0.0, 1.0 - solving - failing)
        if turn in limits:
            found.append((solved, turns))
    return found


def signal_per_turn(solved: float, turns: float) -> float:
    """Return p (1 - p) / E[min(T, L)], of the values that `prospects` returns."""
    return solved * (1.0 - solved) / turns


def luby(number: int) -> int:
    """Return a value of Luby's sequence 1, 1, 2, 1, 1, 2, 4, ...; `number` counts from 1."""
    size = number.bit_length()
    return 1 << (size - 1) if number == (1 << size) - 1 else luby(number - (1 << (size - 1)) + 1)


def by_group(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Return the outcomes of each group, in the order of their first ones."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for one in outcomes:
        found.setdefault((one.task, one.group), []).append(one)
    return list(found.values())


def _kept(known: dict[str, deque[Value]], name: str, window: int, more: Iterable[Value]) -> deque[Value]:
    """Add values of a name, keep the latest `window` of them, and return these."""
    kept = known[name] = deque(known.get(name, ()), maxlen=window)
    kept.extend(more)
    return kept


def _plain(known: Mapping[str, Iterable[Value]]) -> dict[str, list[Value]]:
    return {name: list(values) for name, values in known.items()}
