"""Calls into an adapter whose results are checked; an exception in the adapter becomes a `ContractViolation`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from verl_agent.envs import answers
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, describe_exception
from verl_agent.types import Action, Message, StepResult, TaskItem

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
        settings: let `ConfigError` pass: the call may report an option or a machine that is not suitable.
    """
    try:
        yield
    except ContractViolation:
        raise
    except answers.AnswerError as error:
        raise ContractViolation(call, error.got, error.advice) from error
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
        messages = await answers.reset(session, item)
        for message in messages:
            check_text(call, message["content"])
        return messages


async def step(session: EnvAdapter, action: Action) -> StepResult:
    """Take one action and check the result."""
    call = f"step({shorten(repr(action), 60)})"
    advice = "Answer an action that is not possible with an observation that explains it."
    with boundary(call, advice):
        result = await answers.step(session, action)
        check_text(call, result.observation)
        return result


async def close(session: EnvAdapter) -> None:
    """Close the session."""
    advice = "close() may be called at any time and more than once; guard what reset() creates."
    with boundary("close()", advice):
        await answers.awaited(session, "close", session.close())


def check_text(call: str, text: str) -> None:
    """Check a text for the model: not empty, not too long."""
    if not text.strip():
        raise ContractViolation(call, f"gave the text {shorten(repr(text))}", "The model must have something to read.")
    if len(text) > MAX_MESSAGE:
        raise ContractViolation(
            call, f"gave {len(text):,} characters", f"Truncate texts to at most {MAX_MESSAGE:,} characters."
        )
