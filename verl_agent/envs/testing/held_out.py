"""Comparison of held-out tasks with training tasks: the same task under another id, and solutions that memory has."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from verl_agent.envs.arena import Arena
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.tasks import sample_tasks
from verl_agent.envs.testing import attacks
from verl_agent.envs.testing.attack_play import Player
from verl_agent.envs.testing.attacks import WORD, Known, Play
from verl_agent.envs.testing.statistics import upper_limit
from verl_agent.returns import reaches
from verl_agent.types import Action, TaskItem, ToolCall

MOST_PAIRS = 3
"""Most pairs of splits."""
HELD_OUT, TRAINING = 24, 2000
"""Most held-out tasks that are compared, and training tasks whose prompts are read."""
ALIKE = 3
"""Training tasks with the same prompt whose answers are compared."""
SEQUENCES, LENGTH = 2, 12
"""Sequences of actions whose answers are compared, and their most actions."""
LEAST = 12
"""Fewest held-out tasks whose share that a training solution solves may be a finding."""
TWINS, MEMORY = 0.2, 0.5
"""Shares of the held-out tasks from which equal tasks, and tasks that a training solution solves, are findings."""


def compare(env: EnvAdapter, player: Player, turns: int, limit_s: float) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each comparison of a held-out split with its training split, and True for a finding."""
    pairs = split_pairs(env.splits)
    if not pairs:
        yield "no split is held out: splits were not compared", False
    for training, held in pairs[:MOST_PAIRS]:
        trained, tested = list(env.tasks(training)), list(env.tasks(held))
        if {item.id for item in trained} & {item.id for item in tested}:
            continue  # it is not held out, such as `all`
        comparison = Comparison(env, player, turns, limit_s / min(len(pairs), MOST_PAIRS))
        yield from _compare_pair(comparison, f"{held} and {training}", trained, tested)


def split_pairs(splits: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of a training split and a held-out split: `x_train` and `x_test`, or the first training split."""
    training = [split for split in splits if "train" in split]
    pairs = []
    for held in splits:
        twin = held[: -len(held.rpartition("_")[2])] + "train"
        if training and held not in training:
            pairs.append((twin if twin in training else training[0], held))
    return pairs


class Comparison:
    """Plays of held-out and training tasks."""

    def __init__(self, env: EnvAdapter, player: Player, turns: int, limit_s: float) -> None:
        self.env, self.player, self.turns = env, player, turns
        self._began, self._limit_s = time.monotonic(), limit_s

    def over(self, share: float) -> bool:
        """Return True after a share of the time."""
        return time.monotonic() > self._began + share * self._limit_s

    def prompts(self, items: Sequence[TaskItem]) -> dict[str, Play]:
        """Return the prompts of tasks by id, for at most a third of the time."""
        read: dict[str, Play] = {}
        for begin in range(0, len(items), 8):
            if begin and self.over(1 / 3):
                break
            for play in self.replay(items[begin : begin + 8], ()):
                read[play.item.id] = play
        return read

    def replay(self, items: Sequence[TaskItem], actions: Sequence[Action]) -> list[Play]:
        """Play the same actions in several tasks."""
        known = [Known(item, self.env.action_format) for item in items]
        return self.player.each([(one, attacks.plan(actions), len(actions)) for one in known])

    def is_twin(self, held: TaskItem, other: TaskItem) -> bool | None:
        """Return True if two tasks with one prompt answer the same actions alike; None if all actions are refused."""
        own, others = self.player.demonstration(held), self.player.demonstration(other)
        scripts: list[Sequence[Action]] = [own, others] if own and others else []
        known = Known(held, self.env.action_format, refused=self.player.refused, turns=self.turns)
        if not scripts:
            self.player.discover(known, lambda: self.over(2 / 3))
        length = min(self.turns, LENGTH)
        random = [(known, attacks.random_policy(f"twin {number}"), length) for number in range(SEQUENCES)]
        plays = self.player.each(random)
        for script in (*scripts, *(play.actions for play in plays)):
            first, second = self.replay([held, other], script)
            plays.append(first)
            if (first.prompt, first.steps, first.error) != (second.prompt, second.steps, second.error):
                return False
        accepted = [step for play in plays for step in play.steps if not step.info.get("invalid_action")]
        return True if accepted else None


def _compare_pair(
    comparison: Comparison, names: str, trained: Sequence[TaskItem], tested: Sequence[TaskItem]
) -> Iterator[tuple[str, bool]]:
    known = {_data(item) for item in trained if item.data}
    same = [item for item in tested if _data(item) in known]
    if len(same) >= TWINS * len(tested):
        yield f"{names}: {len(same)} of {len(tested)} held-out tasks have the data of a training task", True
        return
    chosen = sample_tasks(tested, HELD_OUT)
    held = comparison.prompts(chosen)
    categories = {item.category for item in chosen}
    near = sorted(sample_tasks(trained, TRAINING), key=lambda item: item.category not in categories)
    read = comparison.prompts(near)
    if not comparison.env.deterministic or isinstance(comparison.env, Arena):
        kind = "episodes of a task differ" if not comparison.env.deterministic else "a match depends on its players"
        yield f"{names}: dynamics were not compared, since {kind}", False
    else:
        yield from _twins(comparison, names, held, read)
    yield from _remembered(comparison, names, held, read)


def _twins(
    comparison: Comparison, names: str, held: dict[str, Play], read: dict[str, Play]
) -> Iterator[tuple[str, bool]]:
    equal, compared = list[str](), 0
    for play in held.values():
        alike = [other.item for other in read.values() if other.prompt == play.prompt][:ALIKE]
        verdicts = list[bool | None]()
        while alike and True not in verdicts and not comparison.over(2 / 3):
            verdicts.append(comparison.is_twin(play.item, alike.pop()))
        compared += bool(set(verdicts) - {None}) or not (alike or verdicts)
        equal += [play.item.id] if True in verdicts else []
    text = f"{names}: {len(equal)} of {compared} held-out tasks equal one of {len(read)} training tasks"
    yield text + (f", such as {equal[0]!r}" if equal else ""), _surely(len(equal), compared, TWINS)


def _remembered(
    comparison: Comparison, names: str, held: dict[str, Play], read: dict[str, Play]
) -> Iterator[tuple[str, bool]]:
    """Play in each held-out task the demonstration of the training task with the most similar prompt.

    It is played as it is, and with the words of the held-out prompt in the places of those of the training prompt.
    """
    words = {name: _words(play.prompt) for name, play in read.items()}
    solved, tried = {"as it is": list[str](), "with the task's words": list[str]()}, 0
    for play in held.values():
        own = _words(play.prompt)
        near = sorted(read, key=lambda name: -len(own & words[name]) / max(1, len(own | words[name])))[:1]
        actions = [comparison.player.demonstration(read[name].item) for name in near]
        if (tried and comparison.over(1.0)) or not actions or not actions[0]:
            continue
        tried += 1
        scripts = (actions[0], filled(actions[0], read[near[0]].prompt, play.prompt))
        for kind, script in zip(solved, scripts, strict=True):
            (again,) = comparison.replay([play.item], script)
            if reaches([step.reward for step in again.steps], comparison.env.success_reward):
                solved[kind].append(play.item.id)
    if not tried:
        yield f"{names}: memory was not tried, since no training task has a demonstration", False
        return
    for kind, ids in solved.items():
        text = f"{names}: the solution of the most similar training task, {kind}, solves {len(ids)} of {tried} tasks"
        yield text + (f", such as {ids[0]!r}" if ids else ""), tried >= LEAST and _surely(len(ids), tried, MEMORY)


def filled(actions: Sequence[Action], prompt: str, other: str) -> list[Action]:
    """Return actions for another prompt: its words take the places of those at which the two prompts differ."""
    first, second = (re.findall(WORD, text) for text in (prompt, other))
    new = dict[str, str]()
    for _, begin, end, other_begin, other_end in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if end - begin == other_end - other_begin:
            new |= zip(first[begin:end], second[other_begin:other_end], strict=True)

    def fill(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: fill(inner) for key, inner in value.items()}
        return re.sub(WORD, lambda found: new.get(found[0], found[0]), value) if isinstance(value, str) else value

    return [replace(one, arguments=fill(one.arguments)) if isinstance(one, ToolCall) else fill(one) for one in actions]


def _surely(count: int, of: int, bound: float) -> bool:
    """Return True for a share of at least a bound whose one-sided 95 % interval begins above 0.8 of it."""
    return of > 0 and count >= bound * of and 1 - upper_limit(of - count, of) > 0.8 * bound


def _data(item: TaskItem) -> str:
    return json.dumps([item.category, item.data], sort_keys=True)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
