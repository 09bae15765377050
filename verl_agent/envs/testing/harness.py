"""Play an adapter as a host would: in threads with an event loop each, or in those that its sessions share."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.loops import EventLoopThread
from verl_agent.envs.parsing import shorten
from verl_agent.envs.testing import violation
from verl_agent.envs.testing.violation import ContractViolation, boundary
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

SMALL_TALK = ("1", "no such action", "look", "2")
"""What is said to an environment that has no oracle."""
SCRIPT_TURNS = 24
"""Actions of a play that is compared with another one; an oracle may know hundreds."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What one session answered."""

    prompt: Sequence[Message]
    steps: Sequence[StepResult]

    @property
    def reward(self) -> float:
        """The return."""
        return sum(step.reward for step in self.steps)


def configure(adapter: type[EnvAdapter], options: Mapping[str, Any]) -> EnvAdapter:
    """Return the environment with `options`."""
    with boundary(f"{adapter.__name__}(**{dict(options)})", "Check the options and the constructor.", settings=True):
        return adapter(**options)


class Harness:
    """An adapter and how to try it out.

    Args:
        env: the environment with its options.
        items: tasks to play, at least one.
        timeout_s: seconds that one call may take.
        budget_s: seconds after which a check leaves further items out.
        replay_exact: whether the same actions must give the same texts, or only the same rewards.
    """

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
        self.left_out: dict[str, int] = {}
        self._shared: list[EventLoopThread] = []
        self._oracles: dict[str, list[str] | None] = {}
        self._alone: dict[str, Transcript] = {}
        self._answered_at = 0.0

    def session(self) -> EnvAdapter:
        """A fresh session."""
        with boundary("new_session()", "The constructor must work every time it is called.", settings=True):
            return self.env.new_session()

    def within_budget(self, what: str, items: Sequence[T]) -> Iterator[T]:
        """The items as long as time allows, at least the first; the others are counted under `what`."""
        until = time.monotonic() + self.budget_s
        for place, item in enumerate(items):
            if place and time.monotonic() > until:
                self.left_out[what] = len(items) - place
                return
            yield item

    def oracle(self, item: TaskItem) -> list[str] | None:
        """Actions that solve `item`, or None where no oracle exists."""
        if item.id not in self._oracles:
            self._oracles[item.id] = self._ask_oracle(item)
        return self._oracles[item.id]

    def _ask_oracle(self, item: TaskItem) -> list[str] | None:
        session, call = self.session(), f"demonstration({item.id!r})"
        with boundary(call, "Without an oracle raise NotImplementedError, else return moves."):
            try:
                moves = list(session.demonstration(item))
            except NotImplementedError:
                return None
            if not moves or not all(isinstance(move, DemoAction) for move in moves):
                raise ContractViolation(call, "returned no moves", "Return a list of Move.")
            for move in moves:
                found = self.env.action_format.parse(self.env.action_format.format(move.action))
                if found != move.action:
                    got = f"has the action {shorten(repr(move.action))}, which `form` reads as {found!r}"
                    raise ContractViolation(
                        call, got, "Return bare actions, as step() takes them, or choose another form."
                    )
            return [move.action for move in moves]

    def script(self, item: TaskItem) -> list[str]:
        """Actions that show what a session remembers."""
        return ["no such action", *(self.oracle(item) or SMALL_TALK)][:SCRIPT_TURNS]

    def play(self, item: TaskItem, actions: Sequence[str]) -> Transcript:
        """Play `item` until the actions or the episode end."""
        return self.play_all([partial(self.converse, item, actions)])[0]

    def alone(self, item: TaskItem) -> Transcript:
        """The script of `item`, played with nothing beside it; played once, then remembered."""
        if item.id not in self._alone:
            self._alone[item.id] = self.play(item, self.script(item))
        return self._alone[item.id]

    async def converse(self, item: TaskItem, actions: Sequence[str]) -> Transcript:
        """Play `item` in a fresh session until the actions or the episode end."""
        session = self.session()
        prompt = await self.reset(session, item)
        steps: list[StepResult] = []
        for action in actions:
            steps.append(await self.step(session, action))
            if steps[-1].terminated:
                break
        await self.close(session)
        return Transcript(prompt, steps)

    async def reset(self, session: EnvAdapter, item: TaskItem) -> list[Message]:
        """See `violation.reset`."""
        messages = await violation.reset(session, item)
        self._answered_at = time.monotonic()
        return messages

    async def step(self, session: EnvAdapter, action: str) -> StepResult:
        """See `violation.step`."""
        result = await violation.step(session, action)
        self._answered_at = time.monotonic()
        return result

    async def close(self, session: EnvAdapter) -> None:
        """See `violation.close`."""
        await violation.close(session)
        self._answered_at = time.monotonic()

    def play_all(self, works: Sequence[Work[T]]) -> list[T]:
        """Run the coroutines at once, each in the thread in which a host would call its session."""
        lanes = self.lanes(len(works))
        try:
            return self.run(works, lanes)
        finally:
            self.end(lanes)

    def lanes(self, count: int) -> list[EventLoopThread]:
        """Threads for so many sessions: one each, or those that `hosting` lets them share; the host's loop is one."""
        threads = self.env.hosting.threads
        if threads is None:
            return [EventLoopThread() for _ in range(count)]
        threads = max(threads, 1)
        self._shared += [EventLoopThread() for _ in range(min(threads, count) - len(self._shared))]
        return [self._shared[place % threads] for place in range(count)]

    def run(self, works: Sequence[Work[T]], lanes: Sequence[EventLoopThread]) -> list[T]:
        """Run each coroutine in its lane; the time limit is for the wait between two answers."""
        self._answered_at = time.monotonic()
        asked = [asyncio.run_coroutine_threadsafe(work(), lane.loop) for work, lane in zip(works, lanes, strict=True)]
        waiting = set(asked)
        while waiting:
            left = self._answered_at + self.timeout_s - time.monotonic()
            if left <= 0:
                self._shared, stuck = [], self._shared
                self.end([*lanes, *stuck])
                raise ContractViolation(
                    "a call", f"took over {self.timeout_s:g} s", "Bound what it waits for and computes."
                )
            waiting = wait(waiting, timeout=left).not_done
        with boundary("playing an item", "A session must not disturb the event loop or its thread."):
            return [future.result() for future in asked]

    def end(self, lanes: Sequence[EventLoopThread]) -> None:
        """Let the threads end that no other session shares."""
        for lane in lanes:
            if lane not in self._shared:
                lane.end()

    def finish(self) -> None:
        """Let all threads end."""
        self._shared, shared = [], self._shared
        self.end(shared)

    def compare(self, item: TaskItem, first: Transcript, second: Transcript, when: str, advice: str) -> None:
        """Raise unless two plays of `item` agree, as far as the environment can be replayed."""
        rewards = [[step.reward for step in one.steps] for one in (first, second)]
        if first == second if self.replay_exact else rewards[0] == rewards[1]:
            return
        pairs = zip(first.steps, second.steps, strict=False)
        found = next(((a, b) for a, b in pairs if a != b), (first.prompt, second.prompt))
        got = f"gave {shorten(repr(found[0]), 150)} alone and {shorten(repr(found[1]), 150)} {when}"
        raise ContractViolation(f"playing {item.id!r}", got, advice)
