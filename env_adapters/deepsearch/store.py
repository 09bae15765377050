"""Store of indexes on disk: an index is built once and shared by all processes through a memory map.

A folder holds the passages, the files of bm25s or faiss, and `manifest.json`. It is built under a temporary name and
then renamed, so readers never see an incomplete index.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path

from env_adapters.deepsearch.bm25 import Bm25Index, write_bm25_index
from env_adapters.deepsearch.corpus import Passage, PassageSource, deepsearch_dir
from env_adapters.deepsearch.dense import open_dense_index, write_dense_index
from env_adapters.deepsearch.index import PassageIndex
from env_adapters.deepsearch.passages import write_passages
from verl_agent.envs.base import Requirement
from verl_agent.envs.machine.locks import locked
from verl_agent.errors import ConfigError

FORMAT = 1
"""Version of the index: of its files, its passages and its tokenization."""
BUILD = "python -m env_adapters.deepsearch build"
MANIFEST, CURRENT = "manifest.json", "current"
ShowProgress = Callable[[Iterable[Passage], str], Iterable[Passage]]
"""Wrapper of an iteration that shows its progress, with a description of the work."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of the content of an index.

    Attributes:
        format: version of the index, see `FORMAT`.
        kind: `bm25` or `dense`.
        sources: name and state of each source, in order.
        model: model that encodes the passages of a dense index; "" for bm25.
    """

    format: int
    kind: str
    sources: Sequence[Sequence[str]]
    model: str = ""

    @property
    def folder_name(self) -> str:
        """Name of the index's folder, which follows from its content."""
        return f"{self.kind}-{sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]}"


def no_progress(passages: Iterable[Passage], description: str) -> Iterable[Passage]:
    """Show no progress."""
    return passages


def build_embedded(
    sources: Sequence[PassageSource], show_progress: ShowProgress = no_progress, model: str = ""
) -> tuple[Path, bool]:
    """Build the embedded index from `sources` if it does not exist, and select it for searches.

    Concurrent builds wait for each other.

    Returns:
        The folder of the index, and True if it was built by this call.
    """
    root = deepsearch_dir()
    folder = root / manifest_of(sources, model).folder_name
    with exclusive_build(root):
        new = not (folder / MANIFEST).is_file()
        if new:
            build_index(sources, folder, show_progress, model)
        pointer = root / f"{CURRENT}.new"
        pointer.write_text(folder.name, encoding="utf-8")
        pointer.replace(root / CURRENT)
    return folder, new


def build_index(
    sources: Sequence[PassageSource], folder: Path, show_progress: ShowProgress = no_progress, model: str = ""
) -> None:
    """Build an index in `folder`, which must not exist.

    Args:
        model: model that encodes the passages of a dense index; "" for bm25.

    Raises:
        ConfigError: the folder exists, the corpus is empty, or a library is missing.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists. Remove it, or name another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    try:
        passages = write_passages(chain.from_iterable(source.read() for source in sources), temporary)
        if model:
            write_dense_index(show_progress(passages, "embedding passages"), temporary, model)
        else:
            write_bm25_index(show_progress(passages, "reading passages"), temporary)
        manifest = json.dumps(asdict(manifest_of(sources, model)), indent=1)
        (temporary / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def manifest_of(sources: Sequence[PassageSource], model: str = "") -> Manifest:
    """Return the manifest of an index of `sources`."""
    return Manifest(FORMAT, "dense" if model else "bm25", [[source.name, source.state] for source in sources], model)


def corpus_requirement(folder: Path) -> Requirement:
    """Return the requirement of a search index in `folder`; its note names the sources."""
    pointer = folder / CURRENT
    manifest = folder / pointer.read_text(encoding="utf-8").strip() / MANIFEST if pointer.is_file() else None
    if manifest is None or not manifest.is_file():
        return Requirement("search corpus", False, BUILD, "index of the embedded corpus")
    sources = json.loads(manifest.read_text(encoding="utf-8")).get("sources", [])
    return Requirement("search corpus", True, BUILD, f"{', '.join(name for name, _ in sources)} in {manifest.parent}")


def embedded_folder() -> Path:
    """Return the folder of the selected embedded index.

    Raises:
        ConfigError: no index was built; the message has the command that builds it.
    """
    pointer = deepsearch_dir() / CURRENT
    if not pointer.is_file():
        raise ConfigError(
            f"Deep Search has no corpus in {deepsearch_dir()} yet. Build it, in less than a minute: {BUILD}"
        )
    return deepsearch_dir() / pointer.read_text(encoding="utf-8").strip()


def open_passage_index(folder: Path) -> PassageIndex:
    """Open an index that `build_index` wrote.

    Raises:
        ConfigError: the folder holds no index, or one of another format.
    """
    manifest = read_manifest(folder)
    if manifest is None or manifest.format != FORMAT:
        problem = f"has format {manifest.format}" if manifest else "does not hold one"
        raise ConfigError(f"{folder} should hold an index of format {FORMAT}, but {problem}. Build it again: {BUILD}")
    return open_dense_index(folder, manifest.model) if manifest.kind == "dense" else Bm25Index(folder)


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of the index in `folder`; None without an index."""
    try:
        return Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def exclusive_build(root: Path) -> Iterator[None]:
    """Lock `root` against other processes that build, and remove the folders of interrupted builds."""
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / "build.lock"):
        for leftover in root.glob("making-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
