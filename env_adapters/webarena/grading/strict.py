"""Strict evaluators of the embedded sites' tasks: one answer, the final page, and the complete change of the sites.

Each accepts one result. An answer is reduced to one value and compared, so a list of values is never an answer. A
change of the sites must be complete: every expected record, and no other one.
"""

import asyncio
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from env_adapters.webarena.browser.session import BrowserSession
from env_adapters.webarena.grading.changes import ADDED, ADDRESS, Change
from verl_agent.errors import EnvError

KINDS = ("single_answer", "final_page", "state_change")
PERMANENT = frozenset(("order", "post", "topic", "message", "comment", "ticket"))
"""Records that their author cannot remove. One wrong record before the right one counts as a corrected mistake."""
MISTAKES = 2
"""Most values in which such a wrong record may differ from the right one."""
LONGER = 30
"""Characters by which a wrong value may be longer than twice the right one."""
PLACE = frozenset((*ADDRESS, "country", "phone", "notes"))
"""Values of an address in the address book that an order names."""
IDLE_TIMEOUT_S = 15.0
IDLE_POLL_S = 0.02
QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " "})
SEPARATOR = re.compile(r"\s*(?:;|(?<!\d),|,(?!\d{3}(?!\d)))\s*")
"""Separates the parts of an answer; a comma between a digit and three digits belongs to a number."""
NUMBER = re.compile(r"\d{1,3}(?:,\d{3}){1,3}|\d{1,12}", re.ASCII)
MONEY = re.compile(
    rf"(?:(?:us ?)?\$|usd)? ?({NUMBER.pattern})(?:\.(\d\d?))? ?(?:\$|usd|(?:us )?dollars?)?", re.ASCII | re.IGNORECASE
)
GRAMS = re.compile(rf"({NUMBER.pattern}) ?(?:g|grams?)?", re.ASCII | re.IGNORECASE)
TIME = re.compile(r"([01]?\d|2[0-3])(?:[:.]([0-5]\d))? ?(?:([ap])\.?m)?", re.ASCII | re.IGNORECASE)

Value = str | int


@dataclass(frozen=True, slots=True)
class FinalState:
    """Final state of an episode, which the evaluators score.

    Attributes:
        answer: answer of the agent, "" if it gave none.
        session: browser session as the agent left it.
        intent: objective of the task.
        site_urls: URL of each site by its placeholder, for checks on other pages than the last one.
        acted_at: monotonic time in seconds after the last action, since which the last page may add content.
        changes: function that reads the changes of the sites' state; None for sites that are not embedded.
    """

    answer: str
    session: BrowserSession
    intent: str
    site_urls: Mapping[str, str]
    acted_at: float = 0.0
    changes: Callable[[], Sequence[Change]] | None = None


def text_value(text: str) -> Value:
    """Return a text in one case, with single spaces, without outer quotes and a final full stop."""
    text = " ".join(text.translate(QUOTES).split()).removesuffix(".")
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip().removesuffix(".")
    return text.casefold()


def integer_value(text: str) -> Value | None:
    """Return a whole number, for example of `1,234`, or None."""
    cleaned = str(text_value(text))
    return int(cleaned.replace(",", "")) if NUMBER.fullmatch(cleaned) else None


def money_value(text: str) -> Value | None:
    """Return an amount in cents, for example of `$1,234.50` or `1234.5`, or None."""
    match = MONEY.fullmatch(str(text_value(text)))
    return None if match is None else int(match[1].replace(",", "")) * 100 + int((match[2] or "").ljust(2, "0"))


def time_value(text: str) -> Value | None:
    """Return a time of day in minutes, for example of `19:30` or `7.30 pm`, or None."""
    match = TIME.fullmatch(str(text_value(text)))
    if match is None or not (match[2] or match[3]):
        return None
    hour = int(match[1])
    if match[3]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match[3].casefold() == "p" else 0)
    return hour * 60 + int(match[2] or 0)


def grams_value(text: str) -> Value | None:
    """Return a weight in grams, for example of `195 g`, or None."""
    match = GRAMS.fullmatch(str(text_value(text)))
    return None if match is None else int(match[1].replace(",", ""))


VALUES: Mapping[str, Callable[[str], Value | None]] = {
    "text": text_value,
    "number": integer_value,
    "money": money_value,
    "grams": grams_value,
    "time": time_value,
}
"""Function that reduces a part of an answer to its value, by the kind of the part."""


def answer_values(kinds: Sequence[str], answer: str) -> tuple[Value | None, ...] | None:
    """Return the value of each part of an answer, or None if the answer has another number of parts.

    Example:
        >>> answer_values(["text", "money"], "pending, 1,234.50")
        ('pending', 123450)
    """
    parts = [answer] if len(kinds) == 1 else SEPARATOR.split(str(text_value(answer)))
    if len(parts) != len(kinds):
        return None
    return tuple(VALUES[kind](part) for kind, part in zip(kinds, parts, strict=True))


def single_answer(reference: Sequence[Mapping[str, str]], answer: str) -> float:
    """Return 1.0 if the answer is the reference and nothing else, else 0.0.

    Args:
        reference: kind and text of each part; parts are separated by commas in the answer.
    """
    kinds = [part["kind"] for part in reference]
    values = answer_values(kinds, answer)
    return float(values is not None and values == tuple(VALUES[part["kind"]](part["text"]) for part in reference))


def final_page(reference: Mapping[str, Any], url: str) -> float:
    """Return 1.0 if a URL is one of the reference, else 0.0.

    Host, path and all parameters must be equal; the fragment and a slash at the end of the path do not count.

    Args:
        reference: `urls`, the URLs that are right, and `ignored`, names of parameters that do not matter.
    """
    return float(url_value(url, reference["ignored"]) in [url_value(right) for right in reference["urls"]])


def url_value(url: str, ignored: Sequence[str] = ()) -> tuple[str, str, list[tuple[str, str]]]:
    """Return host, path and sorted parameters of a URL."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    query = [(name, " ".join(text.split()).casefold()) for name, text in given if name not in ignored]
    return parts.netloc, unquote(parts.path).removesuffix("/"), sorted(query)


def state_change(expected: Sequence[Mapping[str, Any]], changes: Sequence[Change]) -> float:
    """Return 1.0 if the sites have changed as expected and in no other way, else 0.0.

    Before an expected record of a kind that its author cannot remove (`PERMANENT`), there may be one wrong record of
    this kind. It is the mistake that the expected record corrects, so it must resemble it.

    Args:
        expected: expected changes; a key of "" stands for any key.
    """
    left = list(changes)
    for one in expected:
        place = next((place for place, change in enumerate(left) if matches(one, change)), None)
        if place is None:
            return 0.0
        if any(is_permanent(later) and later.record == left[place].record for later in left[place + 1 :]):
            return 0.0
        del left[place]
    return float(not left or any(is_mistake(one, left) for one in expected))


def is_mistake(expected: Mapping[str, Any], changes: Sequence[Change]) -> bool:
    """Return True if changes are one wrong attempt at a record that cannot be removed.

    Another project, or one or two other values, none of them much longer, make a wrong attempt. The shop also keeps
    the address of an order in the address book.
    """
    for place, change in enumerate(changes):
        if is_permanent(change) and resembles(expected, change):
            others = [*changes[:place], *changes[place + 1 :]]
            return not others or (len(others) == 1 and is_address_of(others[0], change))
    return False


def resembles(expected: Mapping[str, Any], change: Change) -> bool:
    """Return True if a change is of the expected kind with at most `MISTAKES` other values."""
    right = expected["values"]
    if expected["change"] != change.change or record_kind(expected["record"]) != record_kind(change.record):
        return False
    if set(right) != set(change.values):
        return False
    wrong = [name for name, value in change.values.items() if value != right[name]]
    bounded = all(len(change.values[name]) <= 2 * len(right[name]) + LONGER for name in wrong)
    return bounded and len(wrong) + (expected["record"] != change.record) <= MISTAKES


def is_address_of(change: Change, order: Change) -> bool:
    """Return True if a change has added the address of an order to the address book."""
    place = ", ".join(text for name, text in change.values.items() if text and name in PLACE)
    return (change.change, change.record) == (ADDED, "address") and place == order.values.get("ship_to")


def matches(expected: Mapping[str, Any], change: Change) -> bool:
    """Return True if a change is the expected one."""
    same_record = expected["change"] == change.change and expected["record"] == change.record
    return same_record and expected["key"] in ("", change.key) and expected["values"] == dict(change.values)


def is_permanent(change: Change) -> bool:
    """Return True if a change has added a record that its author cannot remove."""
    return change.change == ADDED and record_kind(change.record) in PERMANENT


def record_kind(record: str) -> str:
    """Return the kind of a record without the project of the code host."""
    return record.rpartition(" ")[2]


async def strict_score(kind: str, evaluation: Mapping[str, Any], final: FinalState) -> float:
    """Return the score of a final state by one strict evaluator.

    Raises:
        EnvError: the state of the sites cannot be read.
    """
    if kind == "single_answer":
        return single_answer(evaluation[kind], final.answer)
    if kind == "final_page":
        return final_page(evaluation[kind], final.session.tab.url)
    if final.changes is None:
        raise EnvError("the changes of these sites cannot be read; only the embedded sites record them.")
    await wait_for_requests(final.session)
    try:
        return state_change(evaluation[kind], await asyncio.to_thread(final.changes))
    except sqlite3.Error as error:
        raise EnvError(f"the state of the sites cannot be read: {error}") from error


async def wait_for_requests(session: BrowserSession) -> None:
    """Wait until the sites have answered all requests, because they may still change the state."""
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while session.network_proxy.traffic.busy and time.monotonic() < deadline:
        await asyncio.sleep(IDLE_POLL_S)
