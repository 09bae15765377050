"""Check of the values that an adapter returns, in every episode and in `check_adapter()`."""

import inspect
import math
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

from verl_agent.envs.parsing import shorten
from verl_agent.envs.session import Session
from verl_agent.errors import EnvCrashError
from verl_agent.types import Media, Message, StepResult, TaskItem

ROLES = ("system", "user", "assistant")
"""Roles of the messages that `reset` returns."""


class AnswerError(EnvCrashError):
    """An adapter returned a value that `EnvAdapter` does not allow.

    Attributes:
        got: the value and the line of the method, as the rest of a sentence that begins with the call.
        advice: change that makes the value valid.
    """

    def __init__(self, method: str, got: str, advice: str) -> None:
        self.got, self.advice = got, advice
        super().__init__(f"{method} {got}. {advice}")


async def reset(session: Session, item: TaskItem) -> list[Message]:
    """Begin `item` and check the messages.

    Raises:
        AnswerError: the session returned something else than messages of which the last one is a user message.
    """
    refusal = partial(_refusal, session, "reset")
    messages = await awaited(session, "reset", session.reset(item))
    if not isinstance(messages, list) or not messages:
        raise refusal(f"returned {_show(messages)}", "Return a list of at least one message.")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise refusal(f"gave the message {_show(message)}", "A message is a dict with a role and a text.")
        if message.get("role") not in ROLES:
            raise refusal(f"gave the role {message.get('role')!r}", f"Allowed: {', '.join(ROLES)}.")
    if messages[-1]["role"] != "user":
        raise refusal(f"ended with a message of {messages[-1]['role']!r}", "End with a user message.")
    return list(messages)


async def step(session: Session, action: str) -> StepResult:
    """Take one action and check the result.

    Raises:
        AnswerError: the session returned something else than a `StepResult` with a text, finite numbers and a bool.
    """
    refusal = partial(_refusal, session, "step")
    result = await awaited(session, "step", session.step(action))
    if not isinstance(result, StepResult):
        raise refusal(f"returned {_show(result)}", "Return a StepResult.")
    if not isinstance(result.observation, str):
        raise refusal(f"gave observation={_show(result.observation)}", "It must be a text.")
    if not isinstance(result.info, Mapping):
        raise refusal(f"gave info={_show(result.info)}", "It must be a dict of numbers.")
    for name, value in {"reward": result.reward, **result.info}.items():
        if not _is_finite(value):
            raise refusal(f"gave {name}={_show(value)}", "Rewards and measurements are finite numbers.")
    if not isinstance(result.terminated, bool):
        raise refusal(f"gave terminated={_show(result.terminated)}", "It must be True or False.")
    if not isinstance(result.media, Sequence) or not all(isinstance(one, Media) for one in result.media):
        raise refusal(f"gave media={_show(result.media)}", "It must be a list of Media.")
    return result


async def awaited(session: Session, method: str, returned: Awaitable[Any]) -> Any:
    """Return the result of a method's coroutine.

    Raises:
        AnswerError: the method is no coroutine.
    """
    if not inspect.isawaitable(returned):
        got = f"returned {_show(returned)}, which cannot be awaited"
        raise _refusal(session, method, got, f"Make it a coroutine: `async def {method}(...)`.")
    return await returned


def _refusal(session: Session, method: str, got: str, advice: str) -> AnswerError:
    """Return the error with the line in which the method is defined."""
    code = getattr(inspect.unwrap(getattr(type(session), method)), "__code__", None)
    line = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return AnswerError(method, got + line, advice)


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of float
        return False


def _show(value: object) -> str:
    return shorten(repr(value), 100)
