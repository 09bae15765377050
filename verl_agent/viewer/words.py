"""Word differences of two texts as HTML in which everything that a model wrote is escaped."""

import re
from difflib import SequenceMatcher
from html import escape

from verl_agent.viewer.text import make_visible

MAX_WORDS = 1_500
"""Words of each text that are compared; the rest is left out."""
_WORD = re.compile(r"\s+|[^\s]+")


def word_difference(first: str, second: str) -> tuple[str, str]:
    """Return both texts as HTML, with `<mark>` around the words that the other one does not have."""
    one, two = _WORD.findall(first)[: 2 * MAX_WORDS], _WORD.findall(second)[: 2 * MAX_WORDS]
    sides: tuple[list[str], list[str]] = ([], [])
    for kind, start, end, other_start, other_end in SequenceMatcher(None, one, two, autojunk=True).get_opcodes():
        for side, words in zip(sides, (one[start:end], two[other_start:other_end]), strict=True):
            text = escape(make_visible("".join(words)))
            side.append(text if kind == "equal" or not text else f"<mark>{text}</mark>")
    return "".join(sides[0]), "".join(sides[1])
