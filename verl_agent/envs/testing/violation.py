"""One call into an adapter, held against the contract: what comes back is checked, what escapes becomes a breach."""

import inspect
import math
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError
from verl_agent.types import Message, StepResult, TaskItem

MAX_MESSAGE = 20_000
"""Characters that one message of an environment may have."""


class ContractViolation(Exception):
    """An adapter did not keep the contract.

    Attributes:
        call: what was called.
        got: what came back, as the rest of a sentence that begins with the call.
        advice: what to change.
    """

    def __init__(self, call: str, got: str, advice: str) -> None:
        """State the three parts."""
        self.call, self.got, self.advice = call, got.rstrip(". \n"), advice
        super().__init__(f"{call} {self.got}. {advice}")


@contextmanager
def boundary(call: str, advice: str, settings: bool = False) -> Iterator[None]:
    """Turn whatever a call into the adapter raises into a breach.

    Args:
        call: what is called.
        advice: what to change.
        settings: whether the call may say that an option or the machine is wrong (`ConfigError`), which is no breach.
    """
    try:
        yield
    except ContractViolation:
        raise
    except ConfigError as error:
        if settings:
            raise
        raise ContractViolation(call, f"raised ConfigError: {shorten(str(error), 300)}", advice) from error
    except (Exception, SystemExit) as error:
        text = shorten(str(error), 300)
        raise ContractViolation(call, f"raised {type(error).__name__}{f': {text}' if text else ''}", advice) from error


async def reset(session: EnvAdapter, item: TaskItem) -> list[Message]:
    """Begin `item`; the messages are checked."""
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
    """Take one action; the answer is checked."""
    call = f"step({shorten(repr(action), 60)})"
    with boundary(call, "Answer an action that cannot be done with an observation that says so."):
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
    with boundary("close()", "It may be called at any time and more than once; guard what reset() creates."):
        await _awaited("close()", "close", session.close())


def check_text(call: str, text: object) -> None:
    """Check what a model is going to read."""
    if not isinstance(text, str) or not text.strip():
        raise ContractViolation(call, f"gave the text {shorten(repr(text))}", "The model must have something to read.")
    if len(text) > MAX_MESSAGE:
        raise ContractViolation(
            call, f"gave {len(text):,} characters", f"Cut texts to at most {MAX_MESSAGE:,} characters."
        )


async def _awaited(call: str, name: str, returned: Awaitable[Any]) -> Any:
    if not inspect.isawaitable(returned):
        got = f"returned {shorten(repr(returned), 60)}, which cannot be awaited"
        raise ContractViolation(call, got, f"Make it a coroutine: `async def {name}(...)`.")
    return await returned
