"""Transcripts so far of the episodes in play, for readers outside the process: a file, written while somebody reads.

Each process that plays writes `.live/<host>-<process>.json` beside its records, twice a second, as long as a reader has
asked for it within the last seconds. Without a reader nothing is written. A process removes its file when it ends.
"""

import atexit
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.rollout.actions import ReplySession
from verl_agent.rollout.episode import Oversight
from verl_agent.rollout.policy import Policy
from verl_agent.trace.provenance import write_json_atomically
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, Purpose, to_record
from verl_agent.types import Episode

FOLDER, WANTED = ".live", "wanted"
"""Folder beside the records, and the file in it that readers touch."""
WANTED_S = 10.0
"""Seconds for which one request of a reader holds, and age from which a file is that of a process that was killed."""
POLL_S = 0.5
"""Seconds between two checks for a reader."""


@dataclass(frozen=True, slots=True)
class RunningEpisode:
    """Episode in play, as its process wrote it last.

    Attributes:
        number: number of the episode: as `verl-agent control` lists it in an evaluation, unique in a training run.
        record: record so far. Its `stop`, `success` and `seconds` are those of an episode that ended now.
    """

    number: int
    record: EpisodeRecord


class LiveEpisodes:
    """Episodes in play of this process.

    Args:
        records: folder of the records; None shows nothing.
        first: number before that of the first episode.
    """

    def __init__(self, records: Path | str | None, first: int = 0) -> None:
        self._folder, self._number = None if records is None else Path(records) / FOLDER, first
        self._playing: dict[int, tuple[Episode, EpisodeMeta]] = {}
        self._began = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def playing(self, episode: Episode, purpose: Purpose, split: str, **meta: Any) -> Iterator[None]:
        """Show an episode while the block runs.

        Args:
            meta: further fields of `EpisodeMeta`, such as `step`; see there.
        """
        if self._folder is None:
            yield
            return
        self._number += 1
        number, at = self._number, datetime.fromtimestamp(episode.started_at, UTC)
        known = {"step": 0, "group": episode.item.id, "sample": 0, **meta}
        self._playing[number] = (episode, EpisodeMeta(purpose, split, started_at=at, seconds=0.0, **known))
        if self._thread is None:
            file = self._folder / f"{socket.gethostname()}-{os.getpid()}.json"
            self._thread = threading.Thread(target=self._follow, args=(file,), name="live episodes", daemon=True)
            self._thread.start()
            atexit.register(remove, file)
        self._began.set()
        try:
            yield
        finally:
            del self._playing[number]

    def _follow(self, file: Path) -> None:
        while True:
            if not self._playing:
                remove(file)
                self._began.clear()
                if not self._playing:
                    self._began.wait()
            with suppress(OSError, RuntimeError):  # the disk is full, or an episode changes: the next round has it
                if time.time() - (file.parent / WANTED).stat().st_mtime < WANTED_S:
                    playing = list(self._playing.items())
                    write_json_atomically(file, {number: _record(*shown) for number, shown in playing})
            time.sleep(POLL_S)


def _record(episode: Episode, meta: EpisodeMeta) -> EpisodeRecord:
    """Return the record of an episode that would end now."""
    return to_record(episode, replace(meta, seconds=time.time() - episode.started_at))


def remove(file: Path) -> None:
    """Remove the file of a process, if it has one."""
    with suppress(OSError):
        file.unlink()


@dataclass(frozen=True, slots=True)
class Shown(Oversight):
    """Oversight that shows its episodes to readers, around another one or alone.

    Attributes:
        meta: arguments of `LiveEpisodes.playing`.
        then: oversight of the actions; None to carry out everything.
    """

    live: LiveEpisodes
    meta: Mapping[str, Any]
    then: Oversight | None = None

    @asynccontextmanager
    async def oversee(
        self, episode: Episode, agent: Agent, policy: Policy, session: Session
    ) -> AsyncIterator[tuple[Policy, ReplySession]]:
        """Yield policy and session as the other oversight has them."""
        with self.live.playing(episode, **self.meta):
            if self.then is None:
                yield policy, ReplySession(session)
            else:
                async with self.then.oversee(episode, agent, policy, session) as overseen:
                    yield overseen


def read_running(records: Path) -> list[RunningEpisode]:
    """Return the episodes in play of a run, in order of their numbers, and ask its processes to write them.

    The first call of a reader may find none; later ones have them. A folder that cannot be written shows none.
    """
    folder = records / FOLDER
    found: list[RunningEpisode] = []
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        (folder / WANTED).touch()
        for file in folder.glob("*.json"):
            with suppress(OSError, ValueError):
                if time.time() - file.stat().st_mtime > WANTED_S:  # of a process that was killed
                    remove(file)
                else:
                    read = json.loads(file.read_text(encoding="utf-8"))
                    found += [RunningEpisode(int(number), record) for number, record in read.items()]
    return sorted(found, key=lambda one: one.number)
