"""An index of passages on disk, memory-mapped: built once, shared by all processes that search it.

A folder holds the passages, the files of bm25s or faiss, and `manifest.json`. It is made under another name and
then renamed, so that nobody ever sees half of one.
"""

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from env_adapters.deepsearch.corpus import Passage, Source, cache_dir
from env_adapters.deepsearch.factbook import unaccented
from env_adapters.deepsearch.passages import read_passages, write_passages
from verl_agent.envs.base import Requirement
from verl_agent.errors import ConfigError

FORMAT = 1
"""Version of the passages, of how texts become words, and of what a folder holds."""
BUILD = "python -m env_adapters.deepsearch build"
MANIFEST, CURRENT = "manifest.json", "current"
WORD = re.compile(r"\w+")
K1, B = 0.9, 0.4
"""Parameters of BM25: those that Pyserini takes for passages."""
TITLE_WEIGHT = 3
"""How often a word of the title counts."""

Track = Callable[[Iterable[Passage], str], Iterable[Passage]]
"""Shows the progress of a loop that is described in words."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found.

    Attributes:
        passage: the text.
        score: how well it fits, the higher the better; comparable within one search only.
    """

    passage: Passage
    score: float


class PassageIndex(Protocol):
    """Something that can be searched; calls from several threads do not disturb each other."""

    def __len__(self) -> int:
        """Number of passages."""
        ...

    def search(self, query: str, count: int) -> list[Hit]:
        """The `count` passages that fit best, the best first; fewer where fewer fit."""
        ...


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index is made of.

    Attributes:
        format: see `FORMAT`.
        kind: `bm25` or `dense`.
        sources: name and state of each source, in order.
        model: what makes the vectors of a dense index; "" for bm25.
    """

    format: int
    kind: str
    sources: Sequence[Sequence[str]]
    model: str = ""

    @property
    def key(self) -> str:
        """Name of its folder: two indexes of the same content have the same one."""
        return f"{self.kind}-{sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]}"


class Bm25Index:
    """Search by words, with the scores of bm25s."""

    def __init__(self, folder: Path) -> None:
        """Open an index that `build` made."""
        self._passages = read_passages(folder)
        self._bm25 = need("bm25s").BM25.load(str(folder), mmap=True)
        self._stopwords = stopwords()

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._passages)

    def search(self, query: str, count: int) -> list[Hit]:
        """See `PassageIndex.search`; passages that share no word with the query are not found."""
        known = [word for word in words(query, self._stopwords) if word in self._bm25.vocab_dict]
        if not known:
            return []
        scores = self._bm25.get_scores(known)
        return [Hit(self._passages[place], float(scores[place])) for place in best(scores, count)]


def weighted(passage: Passage) -> str:
    """What is indexed of a passage: its title counts more than its text."""
    return f"{passage.title} " * TITLE_WEIGHT + passage.text


def best(scores: Any, count: int) -> list[int]:
    """Places of the highest scores above 0, the highest first; of equal ones the first places.

    Args:
        scores: float `(N,)`, >= 0.
        count: most places to give, >= 1.
    """
    places = np.flatnonzero(scores)
    if len(places) > count:
        floor = np.partition(scores[places], -count)[-count]
        places = places[scores[places] >= floor]
    return [int(place) for place in places[np.lexsort((places, -scores[places]))][:count]]


def words(text: str, leave_out: frozenset[str]) -> list[str]:
    """The words of a text in lower case and without accents."""
    return [word for word in WORD.findall(unaccented(text).lower()) if word not in leave_out]


def stopwords() -> frozenset[str]:
    """Words that every text has."""
    return frozenset(need("bm25s").stopwords.STOPWORDS_EN)


def corpus_requirement(folder: Path) -> Requirement:
    """Return the requirement of a search index in `folder`; its note names the sources."""
    pointer = folder / CURRENT
    manifest = folder / pointer.read_text(encoding="utf-8").strip() / MANIFEST if pointer.is_file() else None
    if manifest is None or not manifest.is_file():
        return Requirement("search corpus", False, BUILD, "index of the embedded corpus")
    sources = json.loads(manifest.read_text(encoding="utf-8")).get("sources", [])
    return Requirement("search corpus", True, BUILD, f"{', '.join(name for name, _ in sources)} in {manifest.parent}")


def need(module: str, package: str = "") -> Any:
    """Import a library of an extra.

    Raises:
        ConfigError: it is not installed; says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        wanted = package or "'verl-agent[deepsearch]'"
        raise ConfigError(f"Deep Search needs the library {module} for this: pip install {wanted}. {error}") from error


def no_progress(items: Iterable[Passage], what: str) -> Iterable[Passage]:
    """Show nothing."""
    return items


def build_embedded(sources: Sequence[Source], track: Track = no_progress, model: str = "") -> tuple[Path, bool]:
    """Make the embedded index from `sources` unless it exists, and make it the one that is searched.

    Builds that are started at once wait for each other.

    Returns:
        Its folder, and whether it had to be made.
    """
    root = cache_dir()
    folder = root / manifest_of(sources, model).key
    with locked(root):
        new = not (folder / MANIFEST).is_file()
        if new:
            build(sources, folder, track, model)
        pointer = root / f"{CURRENT}.new"
        pointer.write_text(folder.name, encoding="utf-8")
        pointer.replace(root / CURRENT)
    return folder, new


def build(sources: Sequence[Source], folder: Path, track: Track = no_progress, model: str = "") -> None:
    """Make an index in `folder`, which must not exist.

    Args:
        sources: what it holds.
        folder: where it goes.
        track: shows the progress.
        model: what makes the vectors of a dense index; "" for bm25.

    Raises:
        ConfigError: the folder exists, there are no passages, or a library is missing.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists. Remove it, or name another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    try:
        passages = write_passages(chain.from_iterable(source.read() for source in sources), making)
        if model:
            need_dense().write_index(track(passages, "embedding passages"), making, model)
        else:
            write_bm25(track(passages, "reading passages"), making)
        manifest = json.dumps(asdict(manifest_of(sources, model)), indent=1)
        (making / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
        making.chmod(0o755)
        making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def manifest_of(sources: Sequence[Source], model: str = "") -> Manifest:
    """What an index of `sources` is made of."""
    return Manifest(FORMAT, "dense" if model else "bm25", [[source.name, source.state] for source in sources], model)


def write_bm25(passages: Iterable[Passage], folder: Path) -> None:
    """Write the files of bm25s."""
    bm25s, leave_out = need("bm25s"), stopwords()
    vocabulary: dict[str, int] = {}
    ids = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in words(weighted(passage), leave_out)]
        for passage in passages
    ]
    if not ids:
        raise ConfigError("the corpus holds no passages.")
    bm25 = bm25s.BM25(k1=K1, b=B)
    bm25.index((ids, vocabulary), show_progress=False)
    bm25.save(str(folder), show_progress=False)


def need_dense() -> Any:
    """The module of dense indexes, which is rarely wanted."""
    return import_module("env_adapters.deepsearch.dense")


def embedded_folder() -> Path:
    """Folder of the index that `build` made the embedded one.

    Raises:
        ConfigError: there is none yet; says which command makes it.
    """
    pointer = cache_dir() / CURRENT
    if not pointer.is_file():
        raise ConfigError(f"Deep Search has no corpus in {cache_dir()} yet. Make it, in less than a minute: {BUILD}")
    return cache_dir() / pointer.read_text(encoding="utf-8").strip()


def open_index(folder: Path) -> PassageIndex:
    """An index that `build` made.

    Raises:
        ConfigError: the folder holds none, or one of another version.
    """
    manifest = read_manifest(folder)
    if manifest is None or manifest.format != FORMAT:
        found = f"has format {manifest.format}" if manifest else "does not hold one"
        raise ConfigError(f"{folder} should hold an index of format {FORMAT}, and {found}. Build it anew: {BUILD}")
    return need_dense().open_index(folder, manifest.model) if manifest.kind == "dense" else Bm25Index(folder)


def read_manifest(folder: Path) -> Manifest | None:
    """What the index in `folder` is made of; None if there is no index."""
    try:
        return Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Let one process at a time work in `root`, and clear what an interrupted one left there."""
    root.mkdir(parents=True, exist_ok=True)
    handle = os.open(root / "build.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for left in root.glob("making-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(handle)
