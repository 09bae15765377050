"""Conversion of the values that an adapter returns, in every episode and in `check_adapter()`.

It happens once, where the answer enters: in the host of a pool, or in this process, where `CheckedSession` wraps the
adapter. Behind it every number is one of Python.
"""

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from verl_agent.actions import CALL_ERROR, CALLS
from verl_agent.envs.base import EnvAdapter, read_success_reward
from verl_agent.envs.call_error import CALL_ERRORS
from verl_agent.envs.parsing import shorten
from verl_agent.envs.session import Session
from verl_agent.errors import ContractError
from verl_agent.types import Action, Media, Message, StepResult, TaskItem
from verl_agent.values import NUMBER, text_fault, to_flag, to_number

ROLES = ("system", "user", "assistant")
"""Roles of the messages that `reset` returns."""
MOST_CHARS = 1_000_000
"""Most characters of an observation, and of the messages of `reset` together: more than the context of any model."""
TOO_LONG = f"Allowed: at most {MOST_CHARS:,}. No model reads more: cut the text, or give it in parts."
FLAG = "Allowed: True or False."
RESERVED = ("failed_attempts", "perturbed_fault", CALLS)
"""Measurements that an agent or a perturbation adds; a server with an approval policy sends `rejected_action`."""


class AnswerError(ContractError):
    """An adapter returned a value that `EnvAdapter` does not allow.

    Attributes:
        got: the value and the line of the method, as the rest of a sentence that begins with the call.
        advice: change that makes the value valid.
    """

    def __init__(self, method: str, got: str, advice: str, task: str = "") -> None:
        self.got, self.advice = got, advice
        super().__init__(f"{method} {got}{task}. {advice}")

    def __reduce__(self) -> tuple[type[ContractError], tuple[str]]:
        """Arrive in another process as the base class."""
        return ContractError, (str(self),)


class CheckedSession:
    """Session of an adapter whose answers are checked and converted."""

    def __init__(self, adapter: EnvAdapter) -> None:
        self._adapter = adapter
        self._item: TaskItem | None = None

    @property
    def success_reward(self) -> float:
        """Return from which a task counts as solved."""
        return read_success_reward(self._adapter)

    @property
    def deterministic(self) -> bool:
        """See `EnvAdapter.deterministic`."""
        return bool(self._adapter.deterministic)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin `item`; see `EnvAdapter.reset`."""
        self._item = item
        return await reset(self._adapter, item)

    async def step(self, action: Action) -> StepResult:
        """Take one action; see `EnvAdapter.step`."""
        return await step(self._adapter, action, self._item)

    async def close(self) -> None:
        """Release the session's resources; see `EnvAdapter.close`."""
        await self._adapter.close()


def checked(session: Session) -> Session:
    """Return the session, wrapped if it is an adapter; a pool, a match or another wrapper has checked its answers."""
    return CheckedSession(session) if isinstance(session, EnvAdapter) else session


async def reset(session: EnvAdapter, item: TaskItem) -> list[Message]:
    """Begin `item` and check the messages.

    Raises:
        AnswerError: the session returned something else than messages of which the last one is a user message.
    """
    refusal = partial(_refusal, session, "reset", item)
    messages = await awaited(session, "reset", session.reset(item), item)
    if not isinstance(messages, list) or not messages:
        raise refusal(f"returned {_show(messages)}", "Return a list of at least one message.")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise refusal(f"gave the message {_show(message)}", "A message is a dict with a role and a text.")
        if unknown := [key for key in message if key not in ("role", "content", "limits")]:
            raise refusal(f"gave a message with the key {unknown[0]!r}", "Allowed: role and content.")
        if message.get("role") not in ROLES:
            raise refusal(f"gave the role {message.get('role')!r}", f"Allowed: {', '.join(ROLES)}.")
    if messages[-1]["role"] != "user":
        raise refusal(f"ended with a message of {messages[-1]['role']!r}", "End with a user message.")
    if (size := sum(len(message["content"]) for message in messages)) > MOST_CHARS:
        raise refusal(f"gave messages of {size:,} characters", TOO_LONG)
    return [_plain_message(message) for message in messages]


def _plain_message(message: Message) -> Message:
    """Return a message of plain texts, with the limits that a program's request sets on the reply."""
    plain = Message(role=cast(Any, _plain(message["role"])), content=_plain(message["content"]))
    return {**plain, "limits": message["limits"]} if "limits" in message else plain


async def step(session: EnvAdapter, action: Action, item: TaskItem | None = None) -> StepResult:
    """Take one action and return the result with the numbers of Python.

    Args:
        item: task that is played, for the message; None if it is not known.

    Raises:
        AnswerError: the session returned something else than a `StepResult` with a text, finite numbers and a flag.
    """
    refusal = partial(_refusal, session, "step", item)
    result = await awaited(session, "step", session.step(action), item)
    if not isinstance(result, StepResult):
        raise refusal(f"returned {_show(result)}", "Return a StepResult.")
    if not isinstance(result.observation, str):
        raise refusal(f"gave observation={_show(result.observation)}", "Allowed: a text.")
    if len(result.observation) > MOST_CHARS:
        raise refusal(f"gave an observation of {len(result.observation):,} characters", TOO_LONG)
    if not isinstance(result.info, Mapping) or not all(isinstance(key, str) for key in result.info):
        raise refusal(f"gave info={_show(result.info)}", "Allowed: a dict of numbers with texts as keys.")
    reward, terminated = to_number(result.reward), to_flag(result.terminated)
    if reward is None:
        raise refusal(f"gave reward={_show(result.reward)}", NUMBER)
    if terminated is None:
        raise refusal(f"gave terminated={_show(result.terminated)}", FLAG)
    info = {_plain(key): to_number(value) for key, value in result.info.items()}
    if remedy := next(filter(None, (text_fault(key, may_be_empty=True) for key in info)), ""):
        raise refusal(f"gave info={_show(result.info)}", remedy)
    if wrong := [key for key, value in info.items() if value is None]:
        raise refusal(f"gave info[{wrong[0]!r}]={_show(result.info[wrong[0]])}", NUMBER)
    kinds = {f"{CALL_ERROR}_{kind}" for kind in CALL_ERRORS}
    if taken := [key for key in info if key in RESERVED or (key.startswith(f"{CALL_ERROR}_") and key not in kinds)]:
        got = f"gave info[{taken[0]!r}]={_show(result.info[taken[0]])}"
        raise refusal(got, "This name has a meaning for agents and tools. Choose another one.")
    if not isinstance(result.media, Sequence) or not all(isinstance(one, Media) for one in result.media):
        raise refusal(f"gave media={_show(result.media)}", "Allowed: a list of Media.")
    media = []
    for index, one in enumerate(result.media):
        if not isinstance(one.path, str) or not isinstance(one.title, str):
            raise refusal(f"gave media[{index}]={_show(one)}", "Allowed: texts as path and title.")
        box = _box(one.box)
        if box is None and one.box is not None:
            raise refusal(f"gave media[{index}].box={_show(one.box)}", "Allowed: None, or four finite numbers.")
        media.append(Media(_plain(one.path), _plain(one.title), box))
    return StepResult(_plain(result.observation), reward, terminated, cast(dict[str, float], info), tuple(media))


def awaited(session: EnvAdapter, method: str, returned: Awaitable[Any], item: TaskItem | None = None) -> Awaitable[Any]:
    """Return a method's coroutine.

    Raises:
        AnswerError: the method is no coroutine.
    """
    if not inspect.isawaitable(returned):
        got = f"returned {_show(returned)}, which cannot be awaited"
        raise _refusal(session, method, item, got, f"Make it a coroutine: `async def {method}(...)`.")
    return returned


def _refusal(session: EnvAdapter, method: str, item: TaskItem | None, got: str, advice: str) -> AnswerError:
    """Return the error with the line in which the method is defined."""
    code = getattr(inspect.unwrap(getattr(type(session), method)), "__code__", None)
    line = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    task = f" in task {item.id!r} of env {item.env!r}" if item else ""
    return AnswerError(method, got + line, advice, task)


def _plain(text: str) -> str:
    """Return a text as exactly `str`: a subclass such as that of NumPy needs its library to be unpickled."""
    return str.__str__(text)


def _box(box: Any) -> tuple[float, ...] | None:
    try:
        numbers = [to_number(share) for share in box]
    except TypeError:  # it cannot be iterated
        return None
    return tuple(cast(list[float], numbers)) if len(numbers) == 4 and None not in numbers else None


def _show(value: object) -> str:
    return shorten(repr(value), 100)
