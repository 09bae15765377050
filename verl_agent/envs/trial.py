"""Play an adapter as a host would, in threads with an event loop each, and hold every answer against the contract."""

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from verl_agent.envs.actions import shorten
from verl_agent.envs.base import EnvAdapter
from verl_agent.types import Message, Move, StepResult, TaskItem

T = TypeVar("T")

MAX_MESSAGE = 20_000
"""Characters that one message of an environment may have."""

SMALL_TALK = ("1", "no such action", "look", "2")
"""What is said to an environment that has no oracle."""


class BreachError(Exception):
    """An adapter did not keep the contract.

    Attributes:
        call: what was called.
        got: what came back, as the rest of a sentence that begins with the call.
        advice: what to change.
    """

    def __init__(self, call: str, got: str, advice: str) -> None:
        """State the three parts."""
        super().__init__(f"{call} {got}. {advice}")
        self.call, self.got, self.advice = call, got, advice


@contextmanager
def boundary(call: str, advice: str) -> Iterator[None]:
    """Turn whatever a call into the adapter raises into a breach."""
    try:
        yield
    except BreachError:
        raise
    except Exception as error:
        raise BreachError(call, f"raised {type(error).__name__}: {shorten(str(error), 300)}", advice) from error


@dataclass(frozen=True, slots=True)
class Transcript:
    """What one session answered."""

    prompt: Sequence[Message]
    steps: Sequence[StepResult]

    @property
    def reward(self) -> float:
        """The return."""
        return sum(step.reward for step in self.steps)


@dataclass(frozen=True, slots=True)
class Trial:
    """An adapter and how to try it out.

    Attributes:
        adapter: the class.
        options: keyword arguments of each session.
        items: tasks to play, at least one.
        timeout_s: seconds that one play of an item may take.
        replay_exact: whether the same actions must give the same texts, or only the same rewards.
    """

    adapter: type[EnvAdapter]
    options: Mapping[str, Any]
    items: Sequence[TaskItem]
    timeout_s: float
    replay_exact: bool

    def session(self) -> EnvAdapter:
        """A fresh session."""
        with boundary(f"{self.adapter.__name__}(**{dict(self.options)})", "Check the options and the constructor."):
            return self.adapter(**self.options)

    def oracle(self, item: TaskItem) -> list[str] | None:
        """Actions that solve `item`, or None where no oracle exists."""
        session = self.session()
        with boundary(f"demonstration({item.id!r})", "Without an oracle raise NotImplementedError, else return moves."):
            try:
                moves = list(session.demonstration(item))
            except NotImplementedError:
                return None
            if not moves or not all(isinstance(move, Move) for move in moves):
                raise BreachError(f"demonstration({item.id!r})", "returned no moves", "Return a list of Move.")
            for move in moves:
                found = self.adapter.form.find(self.adapter.form.mark(move.action))
                if found != move.action:
                    call = f"demonstration({item.id!r})"
                    got = f"has the action {shorten(repr(move.action))}, which `form` reads as {found!r}"
                    raise BreachError(call, got, "Return bare actions, as step() takes them, or choose another form.")
            return [move.action for move in moves]

    def play(self, item: TaskItem, replies: Sequence[str]) -> Transcript:
        """Play `item` in a thread of its own until the replies or the episode end."""
        return self.play_all([partial(self.converse, item, replies)])[0]

    async def converse(self, item: TaskItem, replies: Sequence[str]) -> Transcript:
        """Play `item` in a fresh session until the replies or the episode end."""
        session = self.session()
        prompt = await reset(session, item)
        steps: list[StepResult] = []
        for reply in replies:
            steps.append(await step(session, reply))
            if steps[-1].terminated:
                break
        await close(session)
        return Transcript(prompt, steps)

    def play_all(self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
        """Run each coroutine in a thread of its own, all at once."""
        results: dict[int, T | BreachError] = {}

        def run(index: int) -> None:
            try:
                with boundary("playing an item", "A session must not disturb the event loop or its thread."):
                    results[index] = asyncio.run(works[index]())
            except BreachError as breach:
                results[index] = breach

        threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(works))]
        for thread in threads:
            thread.start()
        answers: list[T] = []
        for index, thread in enumerate(threads):
            thread.join(self.timeout_s)
            result = results.get(index, BreachError("playing an item", f"took over {self.timeout_s} s", "Bound waits."))
            if isinstance(result, BreachError):
                raise result
            answers.append(result)
        return answers

    def script(self, item: TaskItem) -> list[str]:
        """Actions that show what a session remembers."""
        return ["no such action", *(self.oracle(item) or SMALL_TALK)]

    def compare(self, item: TaskItem, first: Transcript, second: Transcript, when: str, advice: str) -> None:
        """Raise unless two plays of `item` agree, as far as the environment can be replayed."""
        rewards = [[step.reward for step in one.steps] for one in (first, second)]
        if first == second if self.replay_exact else rewards[0] == rewards[1]:
            return
        pairs = zip(first.steps, second.steps, strict=False)
        found = next(((a, b) for a, b in pairs if a != b), (first.prompt, second.prompt))
        got = f"gave {shorten(repr(found[0]), 150)} alone and {shorten(repr(found[1]), 150)} {when}"
        raise BreachError(f"playing {item.id!r}", got, advice)


async def reset(session: EnvAdapter, item: TaskItem) -> list[Message]:
    """Begin `item`; the messages are checked."""
    call = f"reset({item.id!r})"
    with boundary(call, "A session must be able to begin every item that tasks() lists."):
        messages = await session.reset(item)
        if not isinstance(messages, list) or not messages:
            raise BreachError(call, f"returned {shorten(repr(messages))}", "Return a list of at least one message.")
        for message in messages:
            if message["role"] not in ("system", "user", "assistant"):
                raise BreachError(call, f"gave the role {message['role']!r}", "Allowed: system, user, assistant.")
            check_text(call, message["content"])
        if messages[-1]["role"] != "user":
            raise BreachError(call, f"ended with a message of {messages[-1]['role']!r}", "End with a user message.")
        return list(messages)


async def step(session: EnvAdapter, reply: str) -> StepResult:
    """Take one reply; the answer is checked."""
    call = f"step({shorten(repr(reply), 60)})"
    with boundary(call, "Answer a reply that cannot be read with an observation that says how to write it."):
        result = await session.step(reply)
        if not isinstance(result, StepResult):
            raise BreachError(call, f"returned {shorten(repr(result))}", "Return a StepResult.")
        check_text(call, result.observation)
        for name, value in {"reward": result.reward, **result.info}.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise BreachError(call, f"gave {name}={value!r}", "Rewards and measurements are finite numbers.")
        if not isinstance(result.terminated, bool):
            raise BreachError(call, f"gave terminated={result.terminated!r}", "It must be True or False.")
        return result


async def close(session: EnvAdapter) -> None:
    """Close the session."""
    with boundary("close()", "It may be called at any time and more than once; guard what reset() creates."):
        await session.close()


def check_text(call: str, text: object) -> None:
    """Check what a model is going to read."""
    if not isinstance(text, str) or not text.strip():
        raise BreachError(call, f"gave the text {shorten(repr(text))}", "The model must have something to read.")
    if len(text) > MAX_MESSAGE:
        raise BreachError(call, f"gave {len(text):,} characters", f"Cut texts to at most {MAX_MESSAGE:,} characters.")
