"""State that all pages share: the opened sources, their indexes, and the thread that follows growing files."""

import asyncio
import itertools
import logging
import resource
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from verl_agent.errors import ConfigError, counted
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.sources import RunSource, find_runs, open_source, open_sources
from verl_agent.visible import one_line

logger = logging.getLogger(__name__)

T = TypeVar("T")

FOLLOW_S = 1.0
"""Seconds between two polls of the record files."""
POLLS = 5
"""Polls of the record files after which new runs are searched in the folders that were given."""
FILES = 8
"""Open files of an index, a part of them for a moment."""
MAX_CACHED = 50
"""Number of results that are kept for each source."""
_threads = ThreadPoolExecutor(4, "query")


@dataclass(slots=True)
class OpenedSource:
    """One source with its index.

    Attributes:
        key: name of the source in URLs, unique among the opened ones.
        progress: bytes of the record files that are indexed, and all bytes.
        changes: number of updates that brought new episodes, metrics or labels; pages refresh when it changes.
        problem: message of the last failed update; empty if it worked.
        labels_problem: message of a file of labels that is not readable; the records are shown without it.
        reading: True from the start to the end of the first reading, before which the results are not known.
        invalid_lines: sentence on the lines that are not valid records; empty without such a line.
    """

    key: str
    source: RunSource
    index: RecordIndex
    progress: tuple[int, int] = (0, 0)
    metrics_size: int = 0
    changes: int = 0
    problem: str = ""
    labels_problem: str = ""
    invalid_lines: str = ""
    reading: bool = False
    memo: dict[Hashable, tuple[int, Any]] = field(default_factory=dict)

    def cached(self, name: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of a query, computed again only after the source has changed."""
        changes, value = self.memo.get(name, (-1, None))
        if changes != self.changes:
            if len(self.memo) > MAX_CACHED:
                self.memo.clear()
            changes = self.changes  # before the query: what arrives while it runs makes the result outdated
            value = compute()
            self.memo[name] = (changes, value)
        return cast(T, value)

    async def fetch(self, name: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `cached`; a thread computes it, so that other pages are served meanwhile."""
        return await in_thread(lambda: self.cached(name, compute))


async def in_thread(compute: Callable[[], T]) -> T:
    """Return the result of a function that runs in one of a few threads."""
    return await asyncio.get_running_loop().run_in_executor(_threads, compute)


class ViewerState:
    """Opened sources, followed by one thread until `close`.

    Args:
        paths: runs, evaluations and files of records, and folders of them.

    Raises:
        ConfigError: a path holds no records or occurs twice, or the runs are more than this machine lets be open.
    """

    def __init__(self, paths: Sequence[Path | str]) -> None:
        sources = [source for path in paths for source in open_sources(path)]
        if len({source.path for source in sources}) < len(sources):
            raise ConfigError("a run is given twice. Give each path once.")
        _allow_files(len(sources))
        self.opened: dict[str, OpenedSource] = {}
        for key, source in zip(short_keys([source.path for source in sources]), sources, strict=True):
            self.opened[key] = OpenedSource(key, source, RecordIndex(source))
        self._folders = [Path(path).resolve() for path in paths if Path(path).is_dir()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follow records", daemon=True)

    def start(self) -> None:
        """Start to follow the record files."""
        for opened in self.opened.values():
            opened.reading = True
        self._thread.start()

    def close(self) -> None:
        """Stop to follow, and close the indexes."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for opened in self.opened.values():
            opened.index.close()

    def get(self, key: str) -> OpenedSource:
        """Return an opened source.

        Raises:
            ConfigError: no source has this key.
        """
        if key not in self.opened:
            raise ConfigError(f"no run {key!r} is open. Open runs: {', '.join(self.opened)}.")
        return self.opened[key]

    def _find_new(self) -> None:
        """Open the runs that have appeared below the given folders since the last search."""
        known = [opened.source.path for opened in self.opened.values()]
        folders = [folder for folder in self._folders if not any(path in (folder, *folder.parents) for path in known)]
        for path in [path for folder in folders for path in find_runs(folder) if path not in known]:
            *_, key = short_keys([*known, path])
            known.append(path)
            source = open_source(path)
            opened = OpenedSource(f"{key}~{len(known)}" if key in self.opened else key, source, RecordIndex(source))
            opened.reading = True
            self.opened = {**self.opened, opened.key: opened}  # pages go through the old one

    def _follow(self) -> None:
        for poll in itertools.count(1):
            if self._stop.is_set():
                return
            if poll % POLLS == 0:
                try:
                    self._find_new()
                except (ConfigError, OSError):  # a folder is being written or was deleted
                    pass
                except Exception:  # a thread's boundary: the opened runs are followed further
                    logger.exception("new runs are not searched")
            for opened in self.opened.values():
                self._update(opened)
                if opened.reading and not self._stop.is_set():
                    opened.reading = False
                    opened.changes += 1
            self._stop.wait(FOLLOW_S)

    def _update(self, opened: OpenedSource) -> None:
        try:
            self._update_labels(opened)
            for progress in opened.index.update_in_steps():
                opened.progress = progress
                opened.changes += 1
                if self._stop.is_set():
                    return
            opened.invalid_lines = _describe_invalid(opened.index)
            metrics = opened.source.metrics_size()
            if metrics != opened.metrics_size:
                opened.metrics_size = metrics
                opened.changes += 1
            opened.problem = ""
        except ConfigError as error:
            opened.problem = str(error)
        except Exception as error:  # a thread's boundary: the viewer shows the failure and tries again
            if not opened.problem:
                logger.exception("the index of %s is not updated", opened.source.path)
            opened.problem = f"{type(error).__name__}: {error}"

    def _update_labels(self, opened: OpenedSource) -> None:
        try:
            if opened.index.update_labels():
                opened.changes += 1
            opened.labels_problem = ""
        except ConfigError as error:
            opened.labels_problem = str(error)


def _allow_files(sources: int) -> None:
    """Raise the limit of open files, of which each index has some, to what the system allows.

    Raises:
        ConfigError: that is not enough.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and sources * FILES > most:
        raise ConfigError(
            f"{sources} runs need up to {sources * FILES} open files, and this system allows {most}. Open a part of "
            "the runs, or raise the limit (ulimit -n)."
        )


def short_keys(paths: Sequence[Path]) -> list[str]:
    """Return a key for each path: its last part, with as many parts before it as distinguish it from the others.

    Parts are joined by a colon, since a slash in the key would be one of the URL: `oracle:babyai`.
    """
    keys: list[str] = []
    for path in paths:
        most = len(path.parts)
        others = [other.parts for other in paths if other != path]
        count = next((n for n in range(1, most) if all(path.parts[-n:] != parts[-n:] for parts in others)), most)
        name = one_line(":".join(part for part in path.parts[-count:] if part != path.anchor))
        key, number = name, 1
        while key in keys:  # names may have colons, too
            number += 1
            key = f"{name}~{number}"
        keys.append(key)
    return keys


def _describe_invalid(index: RecordIndex) -> str:
    count, first = index.count_bad_lines(), index.bad_lines(1)
    if not first:
        return ""
    (line,) = first
    where = f"{line.file}, byte {line.offset}"
    return f"{counted(count, 'line')} left out, not valid as records. First: {where}: {line.message}"
