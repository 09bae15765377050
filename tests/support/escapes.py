"""Children that leave the process which started them, in the ways that programs do."""

import os
import subprocess
import time
from pathlib import Path

import psutil

WAYS = {
    "child": [],
    "nohup": ["nohup"],
    "session": ["setsid"],
    "orphan": ["setsid", "-f"],
    "orphan without environment": ["env", "-i", "setsid", "-f"],
}
"""Commands before the child's own command."""
REPORTS = 'echo $$ > "$0.part"; mv "$0.part" "$0"; exec sleep 1000'


def spawn(way: str, file: str | Path) -> int:
    """Start a child that sleeps, and return its process id, which it writes into a file."""
    command = [*WAYS[way], "sh", "-c", REPORTS, str(file)]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists(file):
        time.sleep(0.01)
    return int(Path(file).read_text(encoding="utf-8"))


def alive(pid: int) -> bool:
    """Return True if a process runs."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def left(pids: list[int], seconds: float = 15.0) -> list[int]:
    """Return the processes that do not end in time."""
    give_up = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < give_up:
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]
