"""Requests of a server as JSON: what is allowed, and the error codes that client and server share.

The codes are OpenEnv's, with four of this package: its clients read them as any other error.
"""

import json
from collections.abc import Mapping
from typing import Any

from verl_agent.envs.action_format import ActionFormat, ToolFormat
from verl_agent.envs.parsing import shorten
from verl_agent.envs.strict_json import DECODER, check_value
from verl_agent.errors import (
    AgentError,
    ConfigError,
    EnvCrashError,
    EnvError,
    EnvTimeoutError,
    HostLostError,
    PoolFullError,
    UnknownSessionError,
)
from verl_agent.types import Action, ToolCall

INVALID = "VALIDATION_ERROR"
CODES: Mapping[type[AgentError], str] = {
    UnknownSessionError: "SESSION_ERROR",
    PoolFullError: "CAPACITY_REACHED",
    EnvTimeoutError: "TIMEOUT_ERROR",
    HostLostError: "HOST_ERROR",
    EnvCrashError: "EXECUTION_ERROR",
    EnvError: "ENV_ERROR",
    ConfigError: "CONFIG_ERROR",
}
"""Code of each error on the wire; a class comes after its subclasses."""
STATUS: Mapping[type[AgentError], int] = {
    UnknownSessionError: 404,
    PoolFullError: 503,
    EnvTimeoutError: 504,
    EnvCrashError: 500,
    EnvError: 502,
    ConfigError: 501,
}
"""HTTP status of each error; a class comes after its subclasses."""
SESSION_ENDED = 4404
"""Code with which a server closes a connection whose session ended between two requests; its reason says why."""
Body = Mapping[str, Any]


class RequestError(Exception):
    """Invalid or rejected request; `status` is its status over HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def code_of(error: AgentError) -> str:
    """Return the code of an error."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), "EXECUTION_ERROR")


def read_object(text: str | bytes) -> Body:
    """Return the JSON object of a request; a key that occurs twice is refused, and so is NaN.

    Raises:
        RequestError: it is no such object.
    """
    try:
        body = DECODER.decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {shorten(str(error))}") from error
    if not isinstance(body, dict):
        raise RequestError(422, f"the body must be a JSON object, got {quote(body)}.")
    return body


def only_one(body: Body, keys: tuple[str, ...]) -> str | None:
    """Return the key of a body that gives a value; None if none does.

    Raises:
        RequestError: two keys contradict each other.
    """
    given = [key for key in keys if body.get(key) is not None]
    for key in given[1:]:
        if body[key] != body[given[0]] or type(body[key]) is not type(body[given[0]]):
            raise RequestError(
                422, f"{given[0]} and {key} contradict each other: {quote(body[given[0]])}, {quote(body[key])}."
            )
    return given[0] if given else None


def read_text(value: Any, name: str, max_chars: int) -> str:
    """Return an action that must be a text."""
    if not isinstance(value, str):
        raise RequestError(422, f"{name} must be a text, got {quote(value)}.")
    if len(value) > max_chars:
        raise RequestError(422, f"{name} has {len(value)} characters. Allowed: at most {max_chars}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(422, f"{name} is not valid Unicode: {error.reason} at {error.start}.") from error
    return value


def read_action(value: Any, name: str, action_format: ActionFormat, max_chars: int) -> Action:
    """Return a bare action: a text, or the call of a function as an object with `name` and `arguments`."""
    if not isinstance(value, Mapping) or not isinstance(action_format, ToolFormat):
        return action_format.from_text(read_text(value, name, max_chars))
    try:
        call = ToolCall.from_json(value)
        check_value(dict(call.arguments))
    except ValueError as error:
        raise RequestError(422, f"{name} is no call: {error}, got {quote(value)}.") from error
    read_text(str(call), name, max_chars)
    return call


def quote(value: object) -> str:
    """Return the beginning of a value as JSON."""
    return shorten(json.dumps(value, default=str), 60)
