"""The things to be found: every combination of four traits, and which of them a question is about."""

import itertools
from collections.abc import Iterable

TRAITS = {
    "size": ("small", "large"),
    "colour": ("red", "blue", "green", "white"),
    "material": ("wooden", "iron", "glass"),
    "kind": ("box", "bowl", "lamp", "ring", "key"),
}
WORDS = frozenset(itertools.chain.from_iterable(TRAITS.values()))
THINGS = tuple(" ".join(words) for words in itertools.product(*TRAITS.values()))
"""All 120, such as `small red wooden box`."""


def words_in(text: str) -> list[str]:
    """The traits that a text names, in its order, each once."""
    said = (word.strip("?.,:;!'\"").lower() for word in text.split())
    return list(dict.fromkeys(word for word in said if word in WORDS))


def fits(thing: str, word: str) -> bool:
    """Whether a thing has a trait."""
    return word in thing.split()


def left_over(things: Iterable[str], word: str, answer: bool) -> list[str]:
    """The things for which the question has this answer."""
    return [thing for thing in things if fits(thing, word) == answer]


def best_question(things: list[str]) -> str:
    """The trait that halves the things best; the first of several."""
    words = [word for trait in TRAITS.values() for word in trait]
    return min(words, key=lambda word: abs(2 * len(left_over(things, word, True)) - len(things)))
