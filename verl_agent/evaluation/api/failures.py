"""Meaning of an answer that is no reply: repeat the request, leave a setting out, end the episode, or stop."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Any

from verl_agent.envs.parsing import shorten

MAX_CHARS = 300
"""Most characters of a server's message that are read and shown; a longer one may repeat the request."""
RETRIED = frozenset({408, 409, 425, 429})
"""Status codes below 500 after which the same request may succeed later."""
DROPPABLE = ("seed", "parallel_tool_calls", "top_p", "temperature")
"""Fields that a request can do without, in the order in which they are left out. A message that refuses the pair of
`temperature` and `top_p` names both."""
QUOTA = re.compile(r"insufficient_quota|billing|spend_limit_reached|organization_on_hold")
"""Codes of an account that pays for no more requests, of both protocols."""
BILLING = re.compile(r"credit balance|billing|insufficient (funds|credits|balance)", re.IGNORECASE)
CONTEXT = re.compile(
    r"context[ _](length|window|size|limit)|maximum context|prompt is too long|input is too long|input token count|"
    r"too many (input|prompt) tokens",
    re.IGNORECASE,
)
OTHER_LIMIT = re.compile(r"\buse\b.{0,10}max_completion_tokens", re.IGNORECASE)
NOT_ACCEPTED = (
    r"(un|not )(supported|recognized|known|expected)|not (allowed|permitted|accepted)|deprecated|extra inputs?|"
    r"does not (support|accept|recognize)|cannot (both )?be (used|specified|set)|only the default|"
    r"(unknown|unexpected|invalid|unsupported) (parameter|field|argument|value|key|option|keyword)"
)
"""Words of a message that refuses a field; a message may also repeat a prompt that contains the field's name."""
TOOLS = re.compile(r"\b(tools?|tool_choice|function[ _]call\w*)\b", re.IGNORECASE)


class Meaning(Enum):
    """Meaning of a failure."""

    RETRY = auto()
    """The same request may succeed later."""
    REFUSED_FIELD = auto()
    """The server refuses one field of the request, `RequestFailure.field`; the request is repeated without it."""
    CONTEXT = auto()
    """The conversation does not fit into the model's context."""
    STOP = auto()
    """Every other request would fail in the same way: key, quota, or functions that the model does not have."""
    REFUSED = auto()
    """The server refuses this request, for another reason."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Failure of one request.

    Attributes:
        wait_s: seconds that the server asks to wait; None if it does not say.
        field: refused field, for `REFUSED_FIELD`.
    """

    meaning: Meaning
    message: str
    wait_s: float | None = None
    field: str = ""


def explain_status(
    status: int, headers: Mapping[str, str], text: str, body: Collection[str], key_variable: str | None
) -> RequestFailure:
    """Return the meaning of an answer with an error.

    Args:
        key_variable: environment variable with the key; None if no key was sent.
    """
    message, codes, parameter = _read_error(text)
    said = f"status {status}: {shorten(message, MAX_CHARS)}" if message else f"status {status}"
    if status == 402 or any(map(QUOTA.search, codes)) or (status in (400, 403) and BILLING.search(message)):
        return RequestFailure(Meaning.STOP, f"the account has no quota left ({said}). Add credit, or use another key.")
    if status in (401, 403):
        sent = f"the key in {key_variable}" if key_variable else "a request without a key; set model.api.key_env"
        return RequestFailure(Meaning.STOP, f"the server refuses {sent} ({said}).")
    if status in RETRIED or status >= 500:
        return RequestFailure(Meaning.RETRY, said, _wait_s(headers))
    if status == 413 or "context_length_exceeded" in codes or CONTEXT.search(message):
        return RequestFailure(Meaning.CONTEXT, said)
    if field := _refused_field(message, parameter, body):
        return RequestFailure(Meaning.REFUSED_FIELD, said, field=field)
    if "tools" in body and (parameter in ("tools", "tool_choice") or TOOLS.search(message)):
        return RequestFailure(
            Meaning.STOP,
            f"the model does not call functions, which agent.name=tools needs ({said}). Choose another agent, such as "
            "agent.name=react, or start the server with function calling.",
        )
    return RequestFailure(Meaning.REFUSED, said)


def _refused_field(message: str, parameter: str, body: Collection[str]) -> str:
    """Return the field that an error names; "" if it names none that the request can do without."""
    if "max_tokens" in body and OTHER_LIMIT.search(message):
        return "max_tokens"
    if parameter in DROPPABLE and parameter in body:
        return parameter
    return next((name for name in DROPPABLE if name in body and _refuses(message, name)), "")


def _refuses(message: str, field: str) -> bool:
    """Return True if a message names a field as such: in quotes, or in a sentence that says that it is refused."""
    if re.search(rf"""(?<!\w)(["'`]){field}\1""", message):
        return True
    sentences = re.split(r"(?<=[.;!?])\s", message)
    return any(re.search(rf"\b{field}\b", one) and re.search(NOT_ACCEPTED, one, re.IGNORECASE) for one in sentences)


def _read_error(text: str) -> tuple[str, frozenset[str], str]:
    """Return message, codes and parameter of an error in any of the forms that servers use."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return shorten(" ".join(text.split()), MAX_CHARS), frozenset(), ""
    if isinstance(value, list) and value:
        value = value[0]
    error = value.get("error", value) if isinstance(value, Mapping) else value
    if not isinstance(error, Mapping):
        return shorten(str(error), MAX_CHARS), frozenset(), ""
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    message = message if isinstance(message, str) else json.dumps(message)
    codes = {str(error[name]) for name in ("code", "type") if error.get(name)}
    if isinstance(details := error.get("details"), Mapping):
        codes.add(str(details.get("error_code")))
    return message[:MAX_CHARS], frozenset(codes), str(error.get("param") or "")


def _wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in `Retry-After`, which holds a number or a date."""
    value = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
