"""Memory of processes and of those that they started."""

import time

import psutil


class MemoryGauge:
    """Memory of a process and its descendants in MiB, cached between measurements.

    Args:
        every_s: seconds between two measurements; each one reads the whole process table.
        pid: id of the process; None for this one.
    """

    def __init__(self, every_s: float = 30.0, pid: int | None = None) -> None:
        self._process, self._every_s = psutil.Process(pid), every_s
        self._measured_at, self._mb = -every_s, 0.0

    def __call__(self) -> float:
        """Return the cached value, or measure again if it is too old."""
        now = time.monotonic()
        if now - self._measured_at >= self._every_s:
            self._measured_at, self._mb = now, sum(map(_resident_mb, with_descendants(self._process)))
        return self._mb


def with_descendants(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all its descendants, or an empty list if it has ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def proportional_mb(process: psutil.Process) -> float:
    """Return the memory of a process in MiB, in which shared pages are divided; 0 if it has ended."""
    try:
        info = process.memory_full_info()
    except psutil.Error:
        return 0.0
    return float(getattr(info, "pss", info.uss) / 2**20)


def _resident_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss / 2**20)
    except psutil.Error:  # the process has just ended
        return 0.0
