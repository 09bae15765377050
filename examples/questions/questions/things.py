"""The things to find: every combination of four traits, and the search for the best question."""

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
"""All 120 things, for example `small red wooden box`."""


def traits_in(text: str) -> list[str]:
    """Return the traits in a text in their order, each once."""
    words = (word.strip("?.,:;!'\"`").lower() for word in text.split())
    return list(dict.fromkeys(word for word in words if word in WORDS))


def has(thing: str, trait: str) -> bool:
    """Return True if a thing has a trait."""
    return trait in thing.split()


def remaining(things: Iterable[str], trait: str, answer: bool) -> list[str]:
    """Return the things for which the question about `trait` has this answer."""
    return [thing for thing in things if has(thing, trait) == answer]


def best_question(things: list[str]) -> str:
    """Return the trait that divides the things most evenly; the first of several."""
    traits = [trait for group in TRAITS.values() for trait in group]
    return min(traits, key=lambda trait: abs(2 * len(remaining(things, trait, True)) - len(things)))
