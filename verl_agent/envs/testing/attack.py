"""Attack on the reward of an environment: policies without skill, and findings where one of them pays."""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.tasks import sample_tasks
from verl_agent.envs.testing import attacks, held_out
from verl_agent.envs.testing.attack_play import RESET, Player, demonstrated
from verl_agent.envs.testing.attack_report import LATE, RANDOM_EPISODES, AttackReport
from verl_agent.envs.testing.attacks import EXPLORERS, IDLE, SAME_ACTIONS, WORD, Known, Play, Policy
from verl_agent.envs.testing.contract import LUCK, check_luck
from verl_agent.envs.testing.harness import Harness
from verl_agent.envs.testing.verdict import Verdict
from verl_agent.envs.testing.violation import ContractViolation
from verl_agent.types import Action, TaskItem

CONFIRMED = 6
"""Texts that are played on all tasks, those that earned most when each was tried once."""
LATE_TASKS = 2
"""Tasks that are played idly for longer, where the time is enough."""
DISCOVER = 3
"""Tasks on which listed actions are tried, to learn which ones an environment without demonstrations accepts."""
REPORT_S = 5.0
MOST_SHARED, MOST_OWN = 60, 30
MAX_LEAF = 80
"""Most characters of a text of a task's data that is tried."""


def attack_env(
    env: EnvAdapter,
    items: int = 50,
    turns: int = 30,
    limit_s: float = 120.0,
    report: Callable[[str], None] = lambda line: None,
) -> AttackReport:
    """Attack the reward of an environment on tasks of all splits, drawn at random.

    Args:
        items: number of tasks of each split, at most.
        turns: turn limit of all policies; that of a demonstration is at least its length.
        limit_s: seconds after which nothing further begins; at least one task is attacked.
        report: receives a line at the start, and another one every `REPORT_S` seconds.
    """
    everything = list({item.id: item for split in env.splits for item in env.tasks(split)}.values())
    chosen = sample_tasks(everything, items * len(env.splits))
    harness = Harness(env, chosen, timeout_s=60.0, budget_s=limit_s / 8, replay_exact=env.deterministic)
    player = Player(harness)
    attack = Attack(env, player, turns, limit_s)
    attack.report.of, attack.report.turns = len(everything), turns
    report(f"attacking {len(chosen)} tasks, for at most about {limit_s:g} s")
    try:
        attack.play(chosen, everything, report)
        Verdict(env, attack.plays, attack.report).judge(tried=len(attack.paid))
        attack.judge_errors()
        attack.compare_splits(everything)
        attack.check_seeds()
    except ContractViolation as error:  # a call took too long
        attack.report.find("error on demand", str(error))
    finally:
        player.end()
    return attack.report


class Attack:
    """Episodes of all policies on the tasks of an environment."""

    def __init__(self, env: EnvAdapter, player: Player, turns: int, limit_s: float) -> None:
        self.env, self.player, self.turns = env, player, turns
        self.began, self.limit_s = time.monotonic(), limit_s
        self.report = AttackReport()
        self.known: dict[str, Known] = {}
        self.demonstrations: dict[str, Sequence[Action]] = {}
        self.counts: dict[str | None, Counter[Action]] = {}
        self.plays: dict[str, dict[str, list[Play]]] = {}
        self.paid: dict[tuple[str, str], list[float]] = {}

    def over(self, share: float) -> bool:
        """Return True after a share of the time."""
        return time.monotonic() > self.began + share * self.limit_s

    def play(self, chosen: Sequence[TaskItem], everything: Sequence[TaskItem], report: Callable[[str], None]) -> None:
        """Play the policies on one task after another, and then the texts that paid on all of them."""
        for item in chosen:
            self.demonstrations[item.id] = self.player.demonstration(item)
            if self.over(0.1):
                break
        self._count_actions()
        shared = shared_words(sample_tasks(everything, 2000))
        paths, said = self._own_paths(chosen), self.began
        for item in chosen[:DISCOVER]:
            known = self._know(item, shared, paths)
            if not known.vocabulary:
                self.player.discover(known, lambda: self.over(0.15))
        self.known.clear()
        for number, item in enumerate(chosen):
            if number and self.over(0.5):
                break
            self._play_task(self._know(item, shared, paths), number)
            if time.monotonic() > said + REPORT_S:
                said = time.monotonic()
                report(f"{number + 1} of {len(chosen)} tasks after {said - self.began:.0f} s")
        self.report.tasks, self.report.texts = len(self.plays), len(self.paid)
        means = {name: sum(values) / (1 + len(values)) for name, values in self.paid.items() if max(values) > 0}
        for name, form in sorted(means, key=lambda name: -means[name])[:CONFIRMED]:
            self._on_all(f"always {name}{form and f' as {form}'}", partial(attacks.always_text, name, form))
        for place in range(SAME_ACTIONS):
            self._on_all(f"always the same action ({place + 1})", partial(attacks.always_option, place))

    def _own_paths(self, items: Sequence[TaskItem]) -> list[str]:
        """Return the places of the tasks' data that hold no answer of a demonstration; none without demonstrations.

        A list with one answer has further ones, so no place of it is returned.
        """
        solved = [(item, "\n".join(map(str, self.demonstrations.get(item.id, ()))).casefold()) for item in items]
        texts = [(leaves(item.data), shown) for item, shown in solved if shown]
        used = {_list_of(path) for found, shown in texts for path, text in found.items() if text.casefold() in shown}
        return [
            path for path in dict.fromkeys(path for found, _ in texts for path in found) if _list_of(path) not in used
        ]

    def _know(self, item: TaskItem, shared: Sequence[str], paths: Sequence[str]) -> Known:
        shown = "\n".join(map(str, self.demonstrations.get(item.id) or ())).casefold()
        data = leaves(item.data)
        own = {path: data[path] for path in paths[:MOST_OWN] if path in data}
        if item.id.casefold() not in shown:
            own |= {"id of the task": item.id, "category of the task": item.category}
        self.known[item.id] = Known(
            item, self.env.action_format, self._vocabulary(item), shared, own, self.player.refused, self.turns
        )
        return self.known[item.id]

    def _count_actions(self) -> None:
        """Count the demonstrations that have each action, by category and, under None, of all; the commonest first."""
        counts: dict[str | None, Counter[Action]] = defaultdict(Counter)
        for item in self.player.harness.items:
            for action in sorted(set(self.demonstrations.get(item.id) or ()), key=str):
                counts[item.category][action] += 1
                counts[None][action] += 1
        self.counts = {category: Counter(dict(found.most_common())) for category, found in counts.items()}

    def _vocabulary(self, item: TaskItem) -> list[Action]:
        """Return the actions of other tasks' demonstrations, of its category if any; without others, its own."""
        own = Counter(set(self.demonstrations.get(item.id) or ()))
        of_category, of_all = (self.counts.get(name, Counter()) for name in (item.category, None))
        return [action for action, _ in (of_category - own or of_all - own or of_all).most_common()]

    def _play_task(self, known: Known, number: int) -> None:
        """Play the policies of one task, and try each text once."""
        jobs = [(f"random {n}", attacks.random_policy(f"{known.item.id} {n}")) for n in range(RANDOM_EPISODES)]
        jobs += [*IDLE.items(), *((name, explorer()) for name, explorer in EXPLORERS.items())]
        plays = self.player.each([(known, policy, self.turns) for _, policy in jobs])
        played = self.plays.setdefault(known.item.id, {})
        for (name, _), play in zip(jobs, plays, strict=True):
            played.setdefault("random" if name.startswith("random ") else name, []).append(play)
        if actions := self.demonstrations.get(known.item.id):
            self._play_demonstration(known, actions, played)
        else:
            self._repeat_paid(known, played)
        if number < LATE_TASKS and not self.over(0.3):
            same = {f"the same action ({place + 1})": attacks.always_option(place) for place in range(SAME_ACTIONS)}
            policies = {**IDLE, **same}
            late = self.player.each([(known, policy, LATE * self.turns) for policy in policies.values()])
            played |= {f"{name}, {LATE * self.turns} turns": [play] for name, play in zip(policies, late, strict=True)}
        self._sweep(known, number)

    def _sweep(self, known: Known, number: int) -> None:
        """Try each text once, in each form; where the time is short, each task begins with others."""
        forms, until = known.forms(), time.monotonic() + max(0.05 * self.limit_s, 0.5)
        names = [(name, form) for name in (*known.fixed(), *attacks.DUMPS) for form in forms]
        begin = number * 97 % len(names)
        names = names[begin:] + names[:begin]
        tries = [lambda play, name=name, form=form: forms[form](known.text(name, play)) for name, form in names]
        steps = self.player.sweep(known, tries, lambda: time.monotonic() > until)
        for key, step in zip(names, steps, strict=False):
            self.paid.setdefault(key, []).append(step.reward)

    def _play_demonstration(self, known: Known, actions: Sequence[Action], played: dict[str, list[Play]]) -> None:
        limit = max(self.turns, 3 * len(actions) + 8)
        (play,) = played["demonstration"] = self.player.each([(known, attacks.plan(actions), limit)], again=True)
        if play.paid is not None and self.env.deterministic:
            for name, variant in demonstrated(actions, play.paid).items():
                played[name] = self.player.each([(known, attacks.plan(variant), limit)])

    def _repeat_paid(self, known: Known, played: dict[str, list[Play]]) -> None:
        """Repeat the first action that paid in a random episode, where its task goes on."""
        for play in played["random"]:
            if play.paid is not None and self.env.deterministic and len(play.steps) > play.paid + 1:
                earning = play.actions[play.paid]
                actions = [*play.actions[: play.paid], *[earning] * (self.turns - play.paid)]
                played["paid action again"] = self.player.each([(known, attacks.plan(actions), self.turns)])
                return

    def _on_all(self, name: str, new_policy: Callable[[], Policy]) -> None:
        """Play a policy on all tasks that were attacked, while the time lasts."""
        jobs = [] if self.over(0.7) else [(known, new_policy(), self.turns) for known in self.known.values()]
        for play in self.player.each(jobs):
            self.plays[play.item.id][name] = [play]

    def judge_errors(self) -> None:
        """Find exceptions of a step that recur with the same actions, and so depend on them."""
        causes = {play.error[:60]: play for play in reversed(self.player.failed)}
        for play in list(causes.values())[:3]:
            known = Known(play.item, self.env.action_format)
            jobs = [(known, attacks.plan(play.actions), len(play.actions))] * 2
            if play.error.startswith(RESET):
                self.report.notes.append(f"{play.item.id!r} does not begin: {play.error}")
            elif all(again.error for again in self.player.each(jobs)):
                self.report.find("error on demand", f"{str(play.actions[-1])[:60]!r} raises {play.error[:300]}")

    def compare_splits(self, everything: Sequence[TaskItem]) -> None:
        """Find held-out tasks that are training tasks, and those that the memory of training solves."""
        for text, is_finding in held_out.compare(self.env, self.player, self.turns, 0.3 * self.limit_s):
            if is_finding:
                self.report.find("held-out tasks", text)
            else:
                self.report.notes.append(text)

    def check_seeds(self) -> None:
        """Find episodes of one task that differ."""
        if not self.env.deterministic:
            self.report.notes.append("rewards that are paid twice were not tried, since `deterministic` is False")
            return
        try:
            self.report.notes.append(f"{LUCK}: {check_luck(self.player.harness)}")
        except ContractViolation as error:
            self.report.find("seeds", str(error))


def _list_of(path: str) -> str:
    """Return the path of a place of a task's data, without its indexes in lists."""
    return re.sub(r"\.\d+(?=\.|$)", "", path)


def shared_words(items: Sequence[TaskItem]) -> list[str]:
    """Return the words that most tasks share in ids, categories and data, and the keys of their data."""
    counts: Counter[str] = Counter()
    for item in items:
        texts = {item.id, item.category, *leaves(item.data).values()}
        counts.update({*texts, *item.data, *(word for text in texts for word in re.findall(WORD, text))} - {""})
    return [word for word, count in counts.most_common(MOST_SHARED) if count > 1]


def leaves(value: Any, path: str = "data") -> dict[str, str]:
    """Return the short texts and the numbers inside a JSON value, by their paths."""
    if isinstance(value, str | int | float):
        return {path: str(value)} if len(str(value)) <= MAX_LEAF else {}
    inner = value.items() if isinstance(value, Mapping) else enumerate(value[:50]) if isinstance(value, list) else ()
    return {name: text for key, one in inner for name, text in leaves(one, f"{path}.{key}").items()}
