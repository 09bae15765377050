"""Stacks of the processes of a run, in one file of its folder: by py-spy, or by each process itself.

py-spy needs the right to trace another process, which containers often withhold. Each process of a run therefore
writes its stacks when it gets a signal; one that is stopped cannot.
"""

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

STACKS_FILE = "VERL_AGENT_STACKS"
"""Environment variable with the file that the processes of a run write to."""
SIGNAL = signal.SIGUSR2
DUMP_S = 30.0
"""Most seconds for the stacks of all processes."""
ANSWER_S = 0.5
"""Seconds that a process has to write its stacks."""


def stacks_file(run: Path) -> Path:
    """Return the file in the folder of a run."""
    return run / "logs" / "stacks.txt"


def answer_signal() -> None:
    """Write the stacks of this process when it gets `SIGNAL`, unless it is no run's or uses the signal otherwise."""
    file = os.environ.get(STACKS_FILE)
    if not file or signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    with suppress(OSError):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        _OPEN.append(Path(file).open("a", encoding="utf-8"))  # noqa: SIM115 - faulthandler keeps it
        faulthandler.register(SIGNAL, file=_OPEN[-1])


_OPEN: list[Any] = []
"""File that `faulthandler` writes to, which must stay open."""


def write_stacks(file: Path, processes: Iterable[tuple[str, psutil.Process]]) -> None:
    """Append the stacks of processes to a file.

    Raises:
        OSError: the file cannot be written.
    """
    until_s = time.monotonic() + DUMP_S
    py_spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    file.parent.mkdir(exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(f"\n==== {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        for name, process in processes:
            out.write(f"\n== {name}, process {process.pid}\n")
            out.flush()
            if py_spy is None or not _dumped(py_spy, process.pid, out, max(0.1, until_s - time.monotonic())):
                out.write(f"{_ask(process)}\n")
                out.flush()


def _dumped(py_spy: str, pid: int, out: Any, timeout_s: float) -> bool:
    # --nonblocking: py-spy could not pause a process that is stopped
    command = [py_spy, "dump", "--nonblocking", "--pid", str(pid)]
    with suppress(subprocess.TimeoutExpired, OSError):
        return subprocess.run(command, stdout=out, stderr=out, timeout=timeout_s, check=False).returncode == 0
    return False


def _ask(process: psutil.Process) -> str:
    """Ask a process for its stacks; return what to write after them."""
    with suppress(psutil.Error, OSError):
        if not _answers(process.pid):
            return "no stacks: it does not answer the signal"
        if process.status() == psutil.STATUS_STOPPED:
            return "no stacks: it is stopped"
        process.send_signal(SIGNAL)
        time.sleep(ANSWER_S)
    return ""


def _answers(pid: int) -> bool:
    """Return True if a process handles `SIGNAL`, which would end any other one."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False
