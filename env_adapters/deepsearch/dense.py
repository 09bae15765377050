"""Dense retrieval with vectors of a model in a faiss index. Needs sentence-transformers and faiss."""

import threading
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from typing_extensions import override

from env_adapters.deepsearch.corpus import Passage, deepsearch_dir, file_fingerprint
from env_adapters.deepsearch.index import Hit, PassageIndex, import_library
from env_adapters.deepsearch.passages import PassageFile, open_jsonl, open_passages
from verl_agent.errors import ConfigError

VECTORS = "vectors.faiss"
BATCH = 256
"""Number of passages that are encoded at once."""


class Encoder:
    """Encoder of texts as unit vectors; E5 models get the prefixes that they were trained with."""

    def __init__(self, model: str) -> None:
        library = import_library("sentence_transformers", "sentence-transformers")
        self._model = library.SentenceTransformer(model)
        self._e5 = "e5" in Path(model).name.lower()
        self._lock = threading.Lock()

    def encode(self, texts: list[str], kind: str) -> Any:
        """Return vectors of length 1, float32 `(len(texts), dimensions)`.

        Args:
            kind: `query` or `passage`.
        """
        prefix = f"{kind}: " if self._e5 else ""
        with self._lock:
            return self._model.encode(
                [prefix + text for text in texts], normalize_embeddings=True, show_progress_bar=False
            ).astype("float32")


class DenseIndex(PassageIndex):
    """Index that is searched by the inner product of vectors."""

    def __init__(self, vectors: Any, passages: PassageFile, encoder: Any) -> None:
        """Combine vectors, passages and encoder.

        Args:
            vectors: faiss index; its positions are the line numbers of the passages.

        Raises:
            ConfigError: the numbers of vectors and passages differ.
        """
        if vectors.ntotal != len(passages):
            raise ConfigError(
                f"the faiss index holds {vectors.ntotal} vectors, the corpus {len(passages)} passages. "
                "Use the index of this corpus."
            )
        self._vectors, self._passages, self._encoder = vectors, passages, encoder

    @override
    def __len__(self) -> int:
        return len(self._passages)

    @override
    def search(self, query: str, count: int) -> list[Hit]:
        scores, positions = self._vectors.search(self._encoder.encode([query], "query"), min(count, len(self)))
        return [
            Hit(self._passages[int(position)], float(score))
            for score, position in zip(scores[0], positions[0], strict=True)
        ]


def write_dense_index(passages: Iterable[Passage], folder: Path, model: str) -> None:
    """Encode passages and write their vectors.

    Raises:
        ConfigError: a library is missing, or the corpus is empty.
    """
    faiss, encoder, vectors = import_faiss(), Encoder(model), None
    remaining = iter(passages)
    while batch := list(islice(remaining, BATCH)):
        encoded = encoder.encode([passage.contents for passage in batch], "passage")
        vectors = vectors or faiss.IndexFlatIP(encoded.shape[1])
        vectors.add(encoded)
    if vectors is None:
        raise ConfigError("the corpus holds no passages.")
    faiss.write_index(vectors, str(folder / VECTORS))


def open_dense_index(folder: Path, model: str) -> DenseIndex:
    """Open a dense index that `build_index` wrote."""
    return DenseIndex(import_faiss().read_index(str(folder / VECTORS)), open_passages(folder), Encoder(model))


def open_search_r1_files(corpus: Path, vectors: Path, model: str) -> DenseIndex:
    """Open Search-R1's files as they are downloaded: a corpus as JSONL and its faiss index."""
    for file in (corpus, vectors):
        if not file.is_file():
            raise ConfigError(f"{str(file)!r} does not exist.")
    passages = open_jsonl(corpus, deepsearch_dir() / "offsets" / f"{file_fingerprint(corpus)}.npy")
    return DenseIndex(import_faiss().read_index(str(vectors)), passages, Encoder(model))


def import_faiss() -> Any:
    """Return the module `faiss`."""
    return import_library("faiss", "faiss-cpu")
