"""Sign of life of a run in its folder, for viewers that cannot see its lock, such as one outside its container."""

import atexit
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from verl_agent.envs.machine.processes import process_space

HEARTBEAT_FILE = ".alive"
"""Name of the file in the folder of a run, which is written anew while the run lasts."""
EVERY_S = 10.0
"""Seconds between two beats."""
LOST_S = 60.0
"""Age in seconds from which a heartbeat tells nothing: the clocks of two machines may differ by some of it."""

_folders: set[Path] = set()
_ended = threading.Event()
os.register_at_fork(after_in_child=_folders.clear)  # a forked process has neither the lock nor the thread


def beat(folder: Path) -> None:
    """Write a heartbeat into a folder until this process ends; one that cannot be written is left out."""
    _write(folder)
    if not _folders:
        atexit.register(_end)
        threading.Thread(target=_beat, name="heartbeat", daemon=True).start()
    _folders.add(folder)


def is_beating(folder: Path) -> bool:
    """Return True if a run has written its heartbeat lately, and is not known to have ended on this machine."""
    file = folder / HEARTBEAT_FILE
    try:
        host, process, *space = file.read_text(encoding="utf-8").split()
        number = int(process)
        age_s = time.time() - file.stat().st_mtime
    except (OSError, ValueError):  # none, or one that is being written
        return False
    here = [host, *space] == [socket.gethostname(), process_space()]  # two containers may share a host name
    ended = here and not Path(f"/proc/{number}").exists()
    return age_s < LOST_S and not ended


def _beat() -> None:
    while not _ended.wait(EVERY_S):
        for folder in list(_folders):
            _write(folder)


def _write(folder: Path) -> None:
    with suppress(OSError):  # the folder was removed, or the disk is full
        text = f"{socket.gethostname()} {os.getpid()} {process_space()}\n"
        (folder / HEARTBEAT_FILE).write_text(text, encoding="utf-8")


def _end() -> None:
    _ended.set()
    for folder in _folders:
        with suppress(OSError):
            (folder / HEARTBEAT_FILE).unlink(missing_ok=True)
