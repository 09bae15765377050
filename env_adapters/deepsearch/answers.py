"""Comparison of answers as in SQuAD: case, punctuation, articles and extra spaces are ignored."""

import re
import string
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and articles, with one space between words.

    Example:
        >>> normalize_answer("The Côte d'Ivoire, (a republic)!")
        'côte divoire republic'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def is_accepted(answer: str, accepted: Sequence[str]) -> bool:
    """Return True if `answer` equals one of the `accepted` answers after normalization."""
    normalized = normalize_answer(answer)
    return any(normalized == normalize_answer(form) for form in accepted)


def contains(text: str, phrase: str) -> bool:
    """Return True if `text` contains the words of `phrase` in sequence."""
    words = normalize_answer(phrase)
    return bool(words) and f" {words} " in f" {normalize_answer(text)} "


def contains_all(answer: str, needed: Sequence[str]) -> bool:
    """Return True if `answer` contains every one of the `needed` phrases."""
    return bool(needed) and all(contains(answer, phrase) for phrase in needed)
