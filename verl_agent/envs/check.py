"""The contract of an environment as a tool for its author: try an adapter out and say what to change."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from verl_agent.envs.actions import shorten
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.trial import BreachError, Transcript, Trial, boundary, close, reset, step
from verl_agent.types import StepResult, TaskItem

BAD_ACTIONS = (
    "",
    " \n\t ",
    "no such action",
    "Action:",
    "\u202e\U0001f600\u0301 \x00 \ufffd",
    "-1",
    "9" * 5_000,
    "([{<%s%n{}\\\"'",
    "x" * 1_000_000,
)
"""Actions that no environment asks for and that a model writes sooner or later."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which an adapter breaks the contract.

    Attributes:
        check: what was looked at.
        call: what was called.
        got: what came back.
        advice: what to change.
    """

    check: str
    call: str
    got: str
    advice: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.check}: {self.call} {self.got}. {self.advice}"


@dataclass(slots=True)
class Report:
    """What `check_adapter` saw.

    Attributes:
        passed: checks that found nothing.
        notes: what could not be checked, and why.
        findings: what to change, at most one from each check; empty if the adapter keeps the contract.
    """

    passed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        """One line for each check."""
        lines = [f"ok    {check}" for check in self.passed]
        lines += [f"note  {note}" for note in self.notes]
        return "\n".join(lines + [f"FAIL  {finding}" for finding in self.findings])

    def run(self, check: str, what: Callable[[], None]) -> None:
        """Run one check and record how it went."""
        try:
            what()
            self.passed.append(check)
        except BreachError as breach:
            self.findings.append(Finding(check, breach.call, breach.got, breach.advice))


def check_adapter(
    adapter: type[EnvAdapter],
    options: Mapping[str, Any] | None = None,
    items: int = 4,
    timeout_s: float = 60.0,
    replay_exact: bool = True,
) -> Report:
    """Hold an adapter against the contract of `EnvAdapter`.

    Args:
        adapter: the class.
        options: keyword arguments of each session, as in `env.options`.
        items: tasks of each split to play, >= 1.
        timeout_s: seconds that one play of an item may take.
        replay_exact: whether the same actions must give the same texts; False compares only rewards, for
            a world that also moves by itself.
    """
    report, adapter = Report(), adapter.with_options(options or {})
    listed: dict[str, list[TaskItem]] = {}
    report.run("tasks are listed", lambda: listed.update(list_all(adapter)))
    if report.findings:
        return report
    report.run("ids are unique and splits apart", lambda: check_ids(listed))
    report.run("items are JSON", lambda: check_json(listed))
    report.run("tasks are the same twice", lambda: check_repeat(adapter, listed))
    chosen = [item for split in listed.values() for item in spread(split, items)]
    trial = Trial(adapter, options or {}, chosen, timeout_s, replay_exact)
    report.run("sessions begin and close", lambda: check_life(trial))
    if report.findings:
        return report
    report.run("bad actions are answered", lambda: check_bad_actions(trial))
    report.run("episodes replay", lambda: check_replay(trial))
    report.run("sessions do not mix", lambda: check_isolation(trial))
    report.run("threads do not mix", lambda: check_threads(trial))
    solvable: list[TaskItem] = []
    report.run("an oracle answers", lambda: solvable.extend(i for i in chosen if trial.oracle(i) is not None))
    if len(solvable) < len(chosen):
        report.notes.append(f"{len(chosen) - len(solvable)} of {len(chosen)} items have no oracle to be solved with.")
    if solvable:
        report.run("demonstrations solve", lambda: check_demonstrations(trial, solvable))
        report.run("nothing is earned after the end", lambda: check_after_end(trial, solvable))
    return report


def spread(items: Sequence[TaskItem], count: int) -> Sequence[TaskItem]:
    """At most `count` items, evenly from the whole list."""
    return [items[i * len(items) // count] for i in range(min(count, len(items)))]


def list_all(adapter: type[EnvAdapter]) -> dict[str, list[TaskItem]]:
    """The items of every split."""
    listed: dict[str, list[TaskItem]] = {}
    for split in adapter.splits:
        call = f"tasks({split!r})"
        with boundary(call, "Every name in `splits` must list its items."):
            listed[split] = list(adapter.tasks(split))
        if not listed[split]:
            raise BreachError(call, "returned no items", "List at least one, or take the name out of `splits`.")
        for item in listed[split]:
            if not isinstance(item, TaskItem) or not isinstance(item.id, str) or not item.id:
                raise BreachError(call, f"listed {shorten(repr(item))}", "List TaskItems whose id is a text.")
    if not listed:
        raise BreachError("splits", "is empty", "Name at least one split.")
    return listed


def check_ids(listed: Mapping[str, Sequence[TaskItem]]) -> None:
    """An id occurs once in a split, means the same item in all, and is never in both train and test."""
    known: dict[str, TaskItem] = {}
    for split, items in listed.items():
        call, ids = f"tasks({split!r})", {item.id for item in items}
        if len(ids) < len(items):
            raise BreachError(call, f"listed {len(items) - len(ids)} ids twice", "Give each item an id of its own.")
        twin = split[: -len("train")] + "test"
        both = sorted(ids & {item.id for item in listed.get(twin, ())}) if split.endswith("train") else []
        if both:
            raise BreachError(call, f"shares {len(both)} ids with {twin!r}, such as {both[0]!r}", "Keep them apart.")
        for item in items:
            if known.setdefault(item.id, item) != item:
                raise BreachError(call, f"reuses the id {item.id!r} for another item", "One id, one item.")


def check_json(listed: Mapping[str, Sequence[TaskItem]]) -> None:
    """The data of an item survives being written and read, since it travels between processes."""
    for split, items in listed.items():
        for item in items:
            call, advice = (
                f"tasks({split!r})",
                "Use only texts, finite numbers, booleans, None, lists and dicts of those.",
            )
            with boundary(f"{call} has item {item.id!r}, whose data", advice):
                data = dict(item.data)
                if json.loads(json.dumps(data, allow_nan=False)) != data:
                    raise BreachError(call, f"has data that JSON changes in item {item.id!r}", advice)


def check_repeat(adapter: type[EnvAdapter], listed: Mapping[str, Sequence[TaskItem]]) -> None:
    """The same items in the same order, every time."""
    if list_all(adapter) != listed:
        raise BreachError("tasks()", "listed other items the second time", "Sort, and draw from a seeded generator.")


def check_life(trial: Trial) -> None:
    """A session begins every item, and closes at any time."""

    async def live(item: TaskItem) -> None:
        await close(trial.session())
        session = trial.session()
        await reset(session, item)
        await close(session)
        await close(session)

    for item in trial.items:
        trial.play_all([partial(live, item)])


def check_bad_actions(trial: Trial) -> None:
    """What cannot be read is answered, briefly, and does not solve the task."""

    async def annoy() -> None:
        session, item = trial.session(), trial.items[0]
        await reset(session, item)
        for reply in BAD_ACTIONS:
            result = await step(session, reply)
            if result.reward >= trial.adapter.success_reward:
                call = f"step({shorten(repr(reply), 60)})"
                raise BreachError(call, f"earned {result.reward}", "Reward only what solves the task.")
            if result.terminated:
                await close(session)
                session = trial.session()
                await reset(session, item)
        await close(session)

    trial.play_all([annoy])


def check_replay(trial: Trial) -> None:
    """The same item and actions give the same episode."""
    for item in trial.items:
        replies = trial.script(item)
        first, second = trial.play(item, replies), trial.play(item, replies)
        trial.compare(item, first, second, "when played again", "Draw from a generator seeded by the item.")


def check_isolation(trial: Trial) -> None:
    """A session is not changed by another one that is played in turn with it."""
    item, other = trial.items[0], trial.items[-1]
    replies, others = trial.script(item), trial.script(other)

    async def alternate() -> Transcript:
        session, neighbour = trial.session(), trial.session()
        prompt = await reset(session, item)
        await reset(neighbour, other)
        steps: list[StepResult] = []
        neighbour_ended = False
        for turn, reply in enumerate(replies):
            if turn < len(others) and not neighbour_ended:
                neighbour_ended = (await step(neighbour, others[turn])).terminated
            steps.append(await step(session, reply))
            if steps[-1].terminated:
                break
        await close(neighbour)
        await close(session)
        return Transcript(prompt, steps)

    mixed = trial.play_all([alternate])[0]
    advice = "Keep state on the instance, not on the class or module."
    trial.compare(item, trial.play(item, replies), mixed, "beside another session", advice)


def check_threads(trial: Trial) -> None:
    """Sessions in threads of their own do not disturb each other."""
    scripts = [(item, trial.script(item)) for item in trial.items] * 2
    alone = [trial.play(item, replies) for item, replies in scripts]
    together = trial.play_all([partial(trial.converse, item, replies) for item, replies in scripts])
    for (item, _), first, second in zip(scripts, alone, together, strict=True):
        advice = "Share nothing that changes between threads, or guard it by a lock."
        trial.compare(item, first, second, "beside other threads", advice)


def check_demonstrations(trial: Trial, items: Sequence[TaskItem]) -> None:
    """The oracle solves its items."""
    for item in items:
        reward, need = trial.play(item, trial.oracle(item) or []).reward, trial.adapter.success_reward
        if reward < need:
            call = f"demonstration({item.id!r})"
            raise BreachError(call, f"earned {reward} of {need}", "Return replies that solve the item.")


def check_after_end(trial: Trial, items: Sequence[TaskItem]) -> None:
    """A finished episode answers, and earns nothing more."""

    async def linger(item: TaskItem) -> None:
        session, ended = trial.session(), False
        await reset(session, item)
        replies = trial.oracle(item) or []
        for reply in [*replies, "no such action", *replies]:
            result = await step(session, reply)
            if ended and result.reward:
                call = f"step({shorten(repr(reply), 60)}) after the end of {item.id!r}"
                raise BreachError(call, f"earned {result.reward}", "Remember the end; answer with reward 0.")
            ended = ended or result.terminated
        await close(session)

    for item in items:
        trial.play_all([partial(linger, item)])
