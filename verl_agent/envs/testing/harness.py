"""Harness that plays an adapter as a host process does: each session in its own thread, or several in one thread."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from reprlib import Repr
from typing import Any, TypeVar

from verl_agent.envs.action_format import ToolFormat
from verl_agent.envs.base import EnvAdapter, read_success_reward
from verl_agent.envs.hosts.loops import EventLoopThread
from verl_agent.envs.parsing import shorten
from verl_agent.envs.testing import violation
from verl_agent.envs.testing.violation import ContractViolation, boundary
from verl_agent.returns import reaches
from verl_agent.types import Action, DemoAction, Message, StepResult, TaskItem, ToolCall

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

UNGUIDED = ("1", "no such action", "look", "2")
"""Actions for an item without a demonstration."""
SHORT = Repr()
"""Writes the values of which a change is noticed."""
SHORT.maxdict = SHORT.maxlist = SHORT.maxset = SHORT.maxstring = SHORT.maxother = 100
SCRIPT_TURNS = 24
"""Most actions of an episode that is compared with another one; a demonstration may have hundreds."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Texts and rewards of one episode."""

    prompt: Sequence[Message]
    steps: Sequence[StepResult]


def configure(adapter: type[EnvAdapter], options: Mapping[str, Any]) -> EnvAdapter:
    """Return the environment with `options`."""
    call = f"{adapter.__name__}(**{dict(options)})"
    with boundary(call, "Check the options and the constructor.", settings=True):
        return adapter(**options)


class Harness:
    """An environment under test, with the items, limits and threads of its checks."""

    def __init__(
        self,
        env: EnvAdapter,
        items: Sequence[TaskItem],
        timeout_s: float = 60.0,
        budget_s: float = 10.0,
        replay_exact: bool = True,
    ) -> None:
        self.env, self.items = env, items
        self.timeout_s, self.budget_s, self.replay_exact = timeout_s, budget_s, replay_exact
        self.skipped: dict[str, int] = {}
        self._class_state = class_state(env)
        self._shared: list[EventLoopThread] = []
        self._demonstrations: dict[str, list[Action] | None] = {}
        self._references: dict[str, Transcript] = {}
        self._answered_at = 0.0
        self._steps: dict[int, Action] = {}
        self._rewards: dict[int, list[float]] = {}
        self.solved = False
        """True if an episode has reached `success_reward`."""

    def new_session(self) -> EnvAdapter:
        """Return a fresh session."""
        advice = "The constructor must work every time it is called."
        with boundary("new_session()", advice, settings=True):
            return self.env.new_session()

    def within_budget(self, check: str, items: Sequence[T]) -> Iterator[T]:
        """Yield the items while the time budget lasts, at least the first; count the others as skipped by `check`."""
        until = time.monotonic() + self.budget_s
        for index, item in enumerate(items):
            if index and time.monotonic() > until:
                self.skipped[check] = len(items) - index
                return
            yield item

    def demonstration(self, item: TaskItem) -> list[Action] | None:
        """Return the actions of the demonstration of `item`, or None if it has none."""
        if item.id not in self._demonstrations:
            self._demonstrations[item.id] = self._demonstrate(item)
        return self._demonstrations[item.id]

    def _demonstrate(self, item: TaskItem) -> list[Action] | None:
        session, call = self.new_session(), f"demonstration({item.id!r})"
        action_format = self.env.action_format
        with boundary(call, "Without an oracle raise NotImplementedError, else return actions."):
            try:
                demos = list(session.demonstration(item))
            except NotImplementedError:
                return None
            if not demos:
                raise ContractViolation(call, "returned no actions", "Return a list of DemoAction.")
            if other := [demo for demo in demos if not isinstance(demo, DemoAction)]:
                got, advice = shorten(repr(other[0])), "Return each action in a DemoAction: DemoAction(action)."
                raise ContractViolation(call, f"returned {got} of type {type(other[0]).__name__}", advice)
            for demo in demos:
                parsed = action_format.parse(action_format.format(demo.action))
                if parsed != demo.action and not isinstance(action_format, ToolFormat):  # `tool_checks` explains it
                    got = f"has the action {shorten(repr(demo.action))}, which `action_format` parses as {parsed!r}"
                    advice = "Return bare actions, as step() takes them, or choose another action format."
                    raise ContractViolation(call, got, advice)
        with boundary(call := f"oracle_turns({item.id!r})", "Return a number of actions, or None."):
            turns = session.oracle_turns(item)
            if turns is not None and not 1 <= turns <= len(demos):
                advice = "Return the length of the shortest known solution, or None."
                raise ContractViolation(call, f"is {turns!r}, but {len(demos)} actions are demonstrated", advice)
        return [demo.action for demo in demos]

    def script(self, item: TaskItem) -> list[Action]:
        """Return actions for episodes that are compared: an invalid one, then those of the demonstration."""
        return ["no such action", *(self.demonstration(item) or UNGUIDED)][:SCRIPT_TURNS]

    def play(self, item: TaskItem, actions: Sequence[Action]) -> Transcript:
        """Play `item` in a fresh session until the actions or the episode end."""
        return self.play_all([partial(self.converse, item, actions)])[0]

    def reference(self, item: TaskItem) -> Transcript:
        """Return the transcript of the script of `item`, played while no other session is open."""
        if item.id not in self._references:
            self._references[item.id] = self.play(item, self.script(item))
        return self._references[item.id]

    async def converse(self, item: TaskItem, actions: Sequence[Action]) -> Transcript:
        """Play `item` in a fresh session of the current thread until the actions or the episode end."""
        session = self.new_session()
        prompt = await self.reset(session, item)
        steps: list[StepResult] = []
        for action in actions:
            steps.append(await self.step(session, action))
            if steps[-1].terminated:
                break
        await self.close(session)
        return Transcript(prompt, steps)

    async def reset(self, session: EnvAdapter, item: TaskItem) -> list[Message]:
        """Begin an episode; reset the time of the last answer."""
        messages = await violation.reset(session, item)
        self._rewards[id(session)] = []
        self.answered()
        return messages

    def answered(self) -> None:
        """Reset the time of the last answer."""
        self._answered_at = time.monotonic()

    async def step(self, session: EnvAdapter, action: Action) -> StepResult:
        """Play an action; reset the time of the last answer."""
        self._steps[id(session)] = action
        try:
            result = await violation.step(session, action)
        finally:
            self._steps.pop(id(session), None)
        self._rewards[id(session)].append(result.reward)
        self.solved = self.solved or reaches(self._rewards[id(session)], read_success_reward(self.env))
        self._answered_at = time.monotonic()
        return result

    async def close(self, session: EnvAdapter) -> None:
        """Close a session; reset the time of the last answer."""
        await violation.close(session)
        self._answered_at = time.monotonic()

    def play_all(self, works: Sequence[Work[T]], limit_s: float = math.inf) -> list[T]:
        """Run the coroutines concurrently, each in the thread in which a host would call its session."""
        threads = self.threads(len(works))
        try:
            return self.run(works, threads, limit_s)
        finally:
            self.end(threads)

    def threads(self, count: int) -> list[EventLoopThread]:
        """Return a thread for each of `count` sessions: its own, or one that `hosting.threads` lets it share."""
        limit = self.env.hosting.threads
        if limit is None:
            return [EventLoopThread() for _ in range(count)]
        limit = max(limit, 1)  # 0 means the host's own loop, which is one thread too
        self._shared += [EventLoopThread() for _ in range(min(limit, count) - len(self._shared))]
        return [self._shared[number % limit] for number in range(count)]

    def run(self, works: Sequence[Work[T]], threads: Sequence[EventLoopThread], limit_s: float = math.inf) -> list[T]:
        """Run each coroutine in its thread; the time limit applies to the wait between two answers."""
        self._answered_at, limit_s = time.monotonic(), min(limit_s, self.timeout_s)
        self._steps.clear()
        futures = [
            asyncio.run_coroutine_threadsafe(work(), thread.loop) for work, thread in zip(works, threads, strict=True)
        ]
        waiting = set(futures)
        while waiting:
            left = self._answered_at + limit_s - time.monotonic()
            if left <= 0:
                self._shared, stuck = [], self._shared
                self.end([*threads, *stuck])
                raise _too_slow(next(iter(self._steps.values()), None), limit_s)
            waiting = wait(waiting, timeout=left).not_done
        with boundary("playing an item", "A session must not disturb the event loop or its thread.", settings=True):
            return [future.result() for future in futures]

    def end(self, threads: Sequence[EventLoopThread]) -> None:
        """End the threads that no other session shares."""
        for thread in threads:
            if thread not in self._shared:
                thread.end()

    def finish(self) -> None:
        """End all threads."""
        self._shared, shared = [], self._shared
        self.end(shared)

    def compare(self, item: TaskItem, first: Transcript, second: Transcript, when: str, advice: str) -> None:
        """Check that two episodes of `item` agree."""
        rewards = [[step.reward for step in transcript.steps] for transcript in (first, second)]
        if first == second if self.replay_exact else rewards[0] == rewards[1]:
            return
        pairs = zip(first.steps, second.steps, strict=False)
        differing = next(((a, b) for a, b in pairs if a != b), (first.prompt, second.prompt))
        got = f"gave {shorten(repr(differing[0]), 150)} alone and {shorten(repr(differing[1]), 150)} {when}"
        changed = [name for name, held in class_state(self.env).items() if held != self._class_state.get(name)]
        if changed:
            advice += f" `{changed[0]}` belongs to the class, so that all sessions share it, and it has changed."
        raise ContractViolation(f"playing {item.id!r}", got, advice)


def class_state(env: EnvAdapter) -> dict[str, str]:
    """Return the dicts, lists and sets that the classes of an environment hold, shortened, by name."""
    classes = [one for one in type(env).__mro__ if issubclass(one, EnvAdapter) and one is not EnvAdapter]
    held = {f"{one.__name__}.{name}": value for one in classes for name, value in vars(one).items()}
    kept = {name: value for name, value in held.items() if isinstance(value, dict | list | set)}
    return {name: f"{len(value)} {SHORT.repr(value)}" for name, value in kept.items()}


def _too_slow(action: Action | None, limit_s: float) -> ContractViolation:
    """Return the violation of a step, or of another call, that took too long."""
    advice = "Limit the time that it waits and computes."
    if isinstance(action, ToolCall):
        advice += " Often the cause is an integer without bounds: use Annotated[int, Field(ge=1, le=100)]."
    call = "a call" if action is None else f"step({shorten(str(action), 200)})"
    return ContractViolation(call, f"took over {limit_s:g} s", advice)
