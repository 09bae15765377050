"""Retrieval by words: BM25 over memory-mapped files of bm25s."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from env_adapters.deepsearch.corpus import Passage
from env_adapters.deepsearch.factbook import strip_accents
from env_adapters.deepsearch.index import Hit, PassageIndex, import_library
from env_adapters.deepsearch.passages import open_passages
from verl_agent.errors import ConfigError

WORD = re.compile(r"\w+")
K1, B = 0.9, 0.4
"""Parameters of BM25; Pyserini's values for passages."""
TITLE_WEIGHT = 3
"""Number of times that a word of the title counts."""


class Bm25Index(PassageIndex):
    """Index that is searched by words, with BM25 scores of bm25s."""

    def __init__(self, folder: Path) -> None:
        self._passages = open_passages(folder)
        self._bm25 = import_library("bm25s").BM25.load(str(folder), mmap=True)
        self._stopwords = stopwords()

    @override
    def __len__(self) -> int:
        return len(self._passages)

    @override
    def search(self, query: str, count: int) -> list[Hit]:
        """Passages that share no word with the query do not match."""
        known = [word for word in tokenize(query, self._stopwords) if word in self._bm25.vocab_dict]
        if not known:
            return []
        scores = self._bm25.get_scores(known)
        return [Hit(self._passages[position], float(scores[position])) for position in top_positions(scores, count)]


def top_positions(scores: Any, count: int) -> list[int]:
    """Return the positions of the highest scores above 0, the highest first; lower positions win ties.

    Args:
        scores: float `(N,)`, >= 0.
        count: maximum number of positions, >= 1.
    """
    positions = np.flatnonzero(scores)
    if len(positions) > count:
        threshold = np.partition(scores[positions], -count)[-count]
        positions = positions[scores[positions] >= threshold]
    return [int(position) for position in positions[np.lexsort((positions, -scores[positions]))][:count]]


def tokenize(text: str, ignored: frozenset[str]) -> list[str]:
    """Return the words of a text in lower case and without accents, except the ignored ones."""
    return [word for word in WORD.findall(strip_accents(text).lower()) if word not in ignored]


def stopwords() -> frozenset[str]:
    """Return the English stop words of bm25s."""
    return frozenset(import_library("bm25s").stopwords.STOPWORDS_EN)


def write_bm25_index(passages: Iterable[Passage], folder: Path) -> None:
    """Write the files of bm25s.

    Raises:
        ConfigError: the corpus is empty.
    """
    bm25s, ignored = import_library("bm25s"), stopwords()
    vocabulary: dict[str, int] = {}
    word_ids = [
        [
            vocabulary.setdefault(word, len(vocabulary))
            for word in tokenize(f"{passage.title} " * TITLE_WEIGHT + passage.text, ignored)
        ]
        for passage in passages
    ]
    if not word_ids:
        raise ConfigError("the corpus holds no passages.")
    bm25 = bm25s.BM25(k1=K1, b=B)
    bm25.index((word_ids, vocabulary), show_progress=False)
    bm25.save(str(folder), show_progress=False)
