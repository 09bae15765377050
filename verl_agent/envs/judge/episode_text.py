"""Text of an episode as a judge reads it: lines of JSON between two marks that no text inside can contain."""

import json
import re
from collections.abc import Sequence
from typing import Any

from verl_agent.types import Episode

OPEN, CLOSE = "<episode>", "</episode>"
_BRACKET = re.compile(r"\[(?=/?[A-Za-z])")
"""Beginning of a control token such as `[INST]`; the JSON of a line has no list."""
_PLAIN_SHARE = 4
"""A single text gets at most one part in so many of an episode's characters."""


def data_line(fields: dict[str, Any]) -> str:
    """Return fields as one line of JSON in which no text is a mark, a control token of a model, or a new line.

    `<`, `[` before a letter, and characters that end a line are escapes of JSON, so the line still has every character.
    """
    text = json.dumps(fields, ensure_ascii=False).encode(errors="backslashreplace").decode()
    text = _BRACKET.sub(r"\\u005b", text.replace("<", r"\u003c"))
    return "".join(f"\\u{ord(one):04x}" if one in "\x7f\x85\u2028\u2029" else one for one in text)


def data_block(episode: Episode, turns: int, most_chars: int) -> str:
    """Return the first `turns` turns of an episode between the marks, with at most about `most_chars` characters."""
    share = most_chars // _PLAIN_SHARE
    rows: list[dict[str, Any]] = [
        {"from": message["role"], "text": _cut(message["content"], share)}
        for message in episode.messages[: episode.prompt_length]
    ]
    for number, turn in enumerate(episode.turns[:turns], start=1):
        rows.append({"turn": number, "from": "agent", "text": _cut(turn.reply.text, share)})
        if turn.step is not None:
            text = _cut(turn.step.observation, share)
            rows.append({"turn": number, "from": "environment", "text": text})
    if turns >= len(episode.turns):
        rows.append({"from": "environment", "end": str(episode.stop)})
    return "\n".join([OPEN, *_fitting(list(map(data_line, rows)), most_chars), CLOSE])


def _cut(text: str, most: int) -> str:
    """Return a text without its middle if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ({len(text) - 2 * half} characters left out) {text[-half:]}"


def _fitting(lines: Sequence[str], most_chars: int) -> list[str]:
    """Return the first lines up to half of `most_chars` and the last ones, as many as fit."""
    if sum(map(len, lines)) <= most_chars:
        return list(lines)
    first, used = 0, 0
    while first < len(lines) and used + len(lines[first]) <= most_chars // 2:
        used, first = used + len(lines[first]), first + 1
    last = len(lines)
    while last > first and used + len(lines[last - 1]) <= most_chars:
        used, last = used + len(lines[last - 1]), last - 1
    return [*lines[:first], data_line({"left_out": f"{last - first} lines"}), *lines[last:]]
