"""Calls into an adapter whose results are checked; an exception in the adapter becomes a `ContractViolation`."""

import inspect
import math
import re
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, describe_exception
from verl_agent.types import Message, StepResult, TaskItem

MAX_MESSAGE = 20_000
"""Most characters in one message of an environment."""


@dataclass(slots=True)
class Violation:
    """Violation of the contract by an adapter.

    Attributes:
        check: name of the check that failed.
        call: the call, as source code.
        got: its result, as the rest of a sentence that begins with the call.
        advice: change that keeps the contract.
        cause: error and position in the code, or the kind of result; equal for violations with the same cause.
        also: names of further checks that failed with the same cause.
    """

    check: str
    call: str
    got: str
    advice: str
    cause: str
    also: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return one line."""
        also = f" Also fails: {', '.join(self.also)}." if self.also else ""
        return f"{self.check}: {self.call} {self.got}. {self.advice}{also}"


class ContractViolation(Exception):
    """An adapter did not keep the contract; the attributes are those of `Violation`."""

    def __init__(self, call: str, got: str, advice: str, cause: str = "") -> None:
        self.call, self.got, self.advice = call, got.rstrip(". \n"), advice
        self.cause = cause or f"{call.partition('(')[0]} {self.got} {advice}"
        super().__init__(f"{call} {self.got}. {advice}")


@contextmanager
def boundary(call: str, advice: str, settings: bool = False) -> Iterator[None]:
    """Turn an exception of a call into the adapter into a `ContractViolation` with its position in the code.

    Args:
        call: the call, as source code.
        advice: change that keeps the contract.
        settings: let `ConfigError` pass: the call may report an option or a machine that is not suitable.
    """
    try:
        yield
    except ContractViolation:
        raise
    except (Exception, SystemExit) as error:  # boundary to the adapter, which may raise anything
        if settings and isinstance(error, ConfigError):
            raise
        text = describe_exception(error)
        position = re.search(r"\([^()]*:\d+\)\Z", text)
        cause = f"{type(error).__name__} {position[0]}" if position else text
        raise ContractViolation(call, f"raised {text}", advice, cause) from error


async def reset(session: EnvAdapter, item: TaskItem) -> list[Message]:
    """Begin `item` and check the messages."""
    call = f"reset({item.id!r})"
    with boundary(call, "A session must be able to begin every item that tasks() lists.", settings=True):
        messages = await _awaited(call, "reset", session.reset(item))
        if not isinstance(messages, list) or not messages:
            raise ContractViolation(
                call, f"returned {shorten(repr(messages))}", "Return a list of at least one message."
            )
        for message in messages:
            if message["role"] not in ("system", "user", "assistant"):
                raise ContractViolation(call, f"gave the role {message['role']!r}", "Allowed: system, user, assistant.")
            check_text(call, message["content"])
        if messages[-1]["role"] != "user":
            raise ContractViolation(
                call, f"ended with a message of {messages[-1]['role']!r}", "End with a user message."
            )
        return list(messages)


async def step(session: EnvAdapter, action: str) -> StepResult:
    """Take one action and check the result."""
    call = f"step({shorten(repr(action), 60)})"
    advice = "Answer an action that is not possible with an observation that explains it."
    with boundary(call, advice):
        result = await _awaited(call, "step", session.step(action))
        if not isinstance(result, StepResult):
            raise ContractViolation(call, f"returned {shorten(repr(result))}", "Return a StepResult.")
        check_text(call, result.observation)
        for name, value in {"reward": result.reward, **result.info}.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ContractViolation(call, f"gave {name}={value!r}", "Rewards and measurements are finite numbers.")
        if not isinstance(result.terminated, bool):
            raise ContractViolation(call, f"gave terminated={result.terminated!r}", "It must be True or False.")
        return result


async def close(session: EnvAdapter) -> None:
    """Close the session."""
    advice = "close() may be called at any time and more than once; guard what reset() creates."
    with boundary("close()", advice):
        await _awaited("close()", "close", session.close())


def check_text(call: str, text: object) -> None:
    """Check a text for the model: not empty, not too long."""
    if not isinstance(text, str) or not text.strip():
        raise ContractViolation(call, f"gave the text {shorten(repr(text))}", "The model must have something to read.")
    if len(text) > MAX_MESSAGE:
        raise ContractViolation(
            call, f"gave {len(text):,} characters", f"Truncate texts to at most {MAX_MESSAGE:,} characters."
        )


async def _awaited(call: str, name: str, returned: Awaitable[Any]) -> Any:
    if not inspect.isawaitable(returned):
        got = f"returned {shorten(repr(returned), 60)}, which cannot be awaited"
        raise ContractViolation(call, got, f"Make it a coroutine: `async def {name}(...)`.")
    return await returned
