"""Meaning of an answer that is no reply: repeat the request, leave a setting out, end the episode, or stop."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Any

from verl_agent.envs.model_api.echo import PREFIX
from verl_agent.envs.parsing import shorten

MAX_CHARS = 300
"""Most characters of a server's message that are read and shown; a longer one may repeat the request."""
RETRIED = frozenset({408, 409, 425, 429})
"""Status codes below 500 after which the same request may succeed later."""
BROKEN_OFF = frozenset({"abort", "error", "insufficient_system_resource", "network_error"})
"""Finish reasons of a server that failed during a reply: of vLLM and SGLang, OpenRouter, DeepSeek and Z.AI."""
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
SAMPLING = ("temperature", "top_p")
"""Fields whose value a person chooses."""
OUT_OF_RANGE = re.compile(
    r"\b(range|between|(above|below) (the )?(max|min)|at (most|least)|(less|greater|more|higher|lower) than|positive|"
    r"non-negative)|[<>]=? ?-?\d|\bin [\[(]",
    re.IGNORECASE,
)
"""Words of a message that refuses a value, and not the field."""
UNKNOWN_FIELD = re.compile(
    rf"{NOT_ACCEPTED}|forbidden|additional propert|unrecogni[sz]ed|unknown name|must not|should not|"
    r"cannot (find|contain|have)|input should be|is (invalid|unsupported)",
    re.IGNORECASE,
)
"""Words of a message that refuses a field of an earlier reply."""
NEEDED_FIELD = re.compile(
    r"\b(required|missing|must (be|start|remain|contain|include|precede|match)|pass(ed)? back|cannot be modified)\b|"
    r"invalid .?signature|signature.{0,30}(invalid|verif)",
    re.IGNORECASE,
)
"""Words of a message that misses a field of an earlier reply, or its value; it names the field, too."""
FILTERED = re.compile(
    r"content[ _]?(filter|polic|management|moderation|safety|exists risk)|responsibleaipolicyviolation|"
    r"data_inspection|\b(flagged|moderation|inappropriate)\b|high risk|safety (system|filter|setting)|usage polic|"
    r"violat\w+ .{0,40}polic",
    re.IGNORECASE,
)
"""Codes and words of a filter of contents."""
CONTENT_FILTER = "content filter"
"""Name of the refusal by such a filter."""
NO_MODEL = frozenset({404, 405, 410})
"""Status codes of a server that does not have the path or the model."""
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
    NO_MODEL = auto()
    """Every other request would fail in the same way: the server has no such path or model."""
    REFUSED = auto()
    """The server refuses this request, for the reason `RequestFailure.kind`."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Failure of one request.

    Attributes:
        wait_s: seconds that the server asks to wait; None if it does not say.
        field: refused field, for `REFUSED_FIELD`; that of a message begins with `echo.PREFIX`. For `REFUSED` the field
            of `SAMPLING` whose value is out of the server's range, if that is the reason.
        kind: name of a refusal, for `REFUSED`: `content filter`, or the status, such as `status 400`.
    """

    meaning: Meaning
    message: str
    wait_s: float | None = None
    field: str = ""
    kind: str = ""


def explain_status(
    status: int,
    headers: Mapping[str, str],
    text: str,
    body: Collection[str],
    key_variable: str | None,
    extra: Collection[str] = (),
    called: bool = False,
) -> RequestFailure:
    """Return the meaning of an answer with an error.

    Args:
        key_variable: environment variable with the key; None if no key was sent.
        extra: names of the fields of messages that the server may refuse, see `echo.extra_fields`.
        called: True if the conversation has a function call.
    """
    message, codes, parameter = _read_error(text)
    said = f"status {status}: {shorten(message, MAX_CHARS)}" if message else f"status {status}"
    if status == 402 or any(map(QUOTA.search, codes)) or (status in (400, 403) and BILLING.search(message)):
        return RequestFailure(Meaning.STOP, f"the account has no quota left ({said}). Add credit, or use another key.")
    filtered = bool(FILTERED.search(" ".join([message, *codes])))
    if status in (401, 403) and not (filtered and status == 403):
        sent = f"the key in {key_variable}" if key_variable else "a request without a key; set model.api.key_env"
        return RequestFailure(Meaning.STOP, f"the server refuses {sent} ({said}).")
    if status in RETRIED or status >= 500:
        return RequestFailure(Meaning.RETRY, said, _wait_s(headers))
    if status in NO_MODEL or 300 <= status < 400:
        return RequestFailure(Meaning.NO_MODEL, said)
    if status == 413 or "context_length_exceeded" in codes or CONTEXT.search(message):
        return RequestFailure(Meaning.CONTEXT, said)
    out_of_range = _out_of_range(message, parameter, body)
    if field := _refused_field(message, parameter, set(body) - {out_of_range}):
        return RequestFailure(Meaning.REFUSED_FIELD, said, field=field)
    if filtered:
        return RequestFailure(Meaning.REFUSED, said, kind=CONTENT_FILTER)
    if field := _refused_in_message(message, parameter, extra):
        return RequestFailure(Meaning.REFUSED_FIELD, said, field=f"{PREFIX}{field}")
    if "tools" in body and not called and (parameter in ("tools", "tool_choice") or TOOLS.search(message)):
        return RequestFailure(
            Meaning.STOP,
            f"the model does not call functions, which agent.name=tools needs ({said}). Choose another agent, such as "
            "agent.name=react, or start the server with function calling.",
        )
    return RequestFailure(Meaning.REFUSED, said, field=out_of_range, kind=f"status {status}")


def _refused_in_message(message: str, parameter: str, extra: Collection[str]) -> str:
    """Return the field of an earlier reply that an error refuses; "" if it refuses none, or misses one."""
    found = [(match.start(), name) for name in extra for match in re.finditer(rf"\b{re.escape(name)}\b", message)]
    named = re.findall(r"\w+", parameter)
    if named and named[-1] in extra:
        found.append((len(message), named[-1]))
    refuses = UNKNOWN_FIELD.search(message) or not message or len(named) > 1
    return max(found)[1] if found and refuses and not NEEDED_FIELD.search(message) else ""


def _refused_field(message: str, parameter: str, body: Collection[str]) -> str:
    """Return the field that an error names; "" if it names none that the request can do without."""
    if "max_tokens" in body and OTHER_LIMIT.search(message):
        return "max_tokens"
    if parameter in DROPPABLE and parameter in body:
        return parameter
    return next((name for name in DROPPABLE if name in body and _refuses(message, name)), "")


def _out_of_range(message: str, parameter: str, body: Collection[str]) -> str:
    """Return the field of `SAMPLING` of which a server refuses the value and allows others; "" for other errors."""
    for name in (name for name in SAMPLING if name in body):
        field = re.compile(rf"\b{name}\b", re.IGNORECASE)
        said = " ".join(one for one in _sentences(message) if parameter == name or field.search(one))
        if OUT_OF_RANGE.search(said) and not re.search(NOT_ACCEPTED, said, re.IGNORECASE):
            return name
    return ""


def _refuses(message: str, field: str) -> bool:
    """Return True if a message names a field as such: in quotes, or in a sentence that says that it is refused."""
    if re.search(rf"""(?<!\w)(["'`]){field}\1""", message):
        return True
    named = (one for one in _sentences(message) if re.search(rf"\b{field}\b", one))
    return any(re.search(NOT_ACCEPTED, one, re.IGNORECASE) for one in named)


def _sentences(message: str) -> list[str]:
    return re.split(r"(?<=[.;!?])\s", message)


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
