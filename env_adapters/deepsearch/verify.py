"""Check of the gold chains: each query retrieves its passage among the first, and the passage contains the answer."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from env_adapters.deepsearch.answers import contains
from env_adapters.deepsearch.index import PassageIndex
from env_adapters.deepsearch.questions import SINGLE, Hop, Question, candidates
from env_adapters.deepsearch.templates import TEST, TRAIN

TOP_K = 3
HEADER = """# Excluded questions: their gold queries do not retrieve the passages that contain the answer among the
# first three (as the first one for a single hop), in the Factbook alone or together with the dictionaries of Debian 12.
# Written by `python -m env_adapters.deepsearch verify --write`, once without and once with the dictionaries.
"""


def all_candidates() -> list[Question]:
    """Return the candidate questions of training and test."""
    return [*candidates(TRAIN), *candidates(TEST)]


def unsupported_questions(questions: Iterable[Question], index: PassageIndex) -> Iterator[Question]:
    """Yield the questions whose gold queries do not retrieve their passages from `index`."""
    is_supported = hop_checker(index)
    for question in questions:
        limit = 1 if question.kind == SINGLE else TOP_K
        if not all(is_supported(hop, limit) for hop in question.hops):
            yield question


def hop_checker(index: PassageIndex) -> Callable[[Hop, int], bool]:
    """Return a check that a hop's passage is among the first `limit` results and contains the expected fact.

    The check searches once for each distinct query.
    """
    search = cache(lambda query: [hit.passage for hit in index.search(query, TOP_K)])

    def is_supported(hop: Hop, limit: int) -> bool:
        return any(
            passage.id == hop.passage and any(contains(passage.text, form) for form in hop.expected)
            for passage in search(hop.query)[:limit]
        )

    return is_supported


def add_ids(ids: Iterable[str], file: Path) -> int:
    """Add ids to a sorted file of ids and return the number of ids in it."""
    known = {line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")}
    every = sorted(known | set(ids))
    file.write_text(HEADER + "".join(f"{question_id}\n" for question_id in every), encoding="utf-8")
    return len(every)
