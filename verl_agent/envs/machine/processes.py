"""Trees of processes: commands whose children cannot outlive them, and the end of all that this process has started.

Every place that runs a command of others uses `ProcessTree`: programs, hosts and sites. A browser, which Playwright
starts, is found by the tree's mark. What a whole run has started is ended by `end_descendants`.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from verl_agent.envs.machine import keeper
from verl_agent.envs.machine.keeper import MARK, adopt_orphans, end_with_parent

__all__ = ["ProcessTree", "adopt_orphans", "end_descendants", "end_with_parent", "guard_this_process"]

END_S = 10.0
"""Seconds that a keeper has to end its tree before it is killed itself."""
GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL."""
POLL_S = 0.02
_ALONE = (sys.executable, "-I", "-S", keeper.__file__)


class ProcessTree:
    """A command with everything that it starts, also in sessions of their own and after a double fork.

    The tree ends when the command ends, when `end` is called, and when this process ends, even by SIGKILL. Start the
    command as `command(...)` with `environment(...)` and `start_new_session=True`. Only Linux has the calls for this;
    elsewhere the command's process group is ended.

    Args:
        grace_s: seconds that the command has after SIGTERM when this process has ended; 0 to kill it at once.
    """

    def __init__(self, grace_s: float = 0.0) -> None:
        self.mark, self._grace_s = secrets.token_hex(8), grace_s

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` under a keeper. It has the same exit status."""
        if sys.platform != "linux":
            return list(command)
        return [*_ALONE, "run", str(os.getpid()), str(self._grace_s), self.mark, *command]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables with the mark of the tree."""
        return {**variables, MARK: self.mark}

    async def end(self, process: asyncio.subprocess.Process) -> None:
        """Kill the tree, and return when none of its processes is left."""
        if process.returncode is None:
            self._ask(process.pid)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_S)
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == -signal.SIGKILL:
            await asyncio.to_thread(self.sweep)

    def end_now(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the tree as `end` does, without an event loop."""
        self.kill(process)
        if process.returncode is None:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.returncode == -signal.SIGKILL:
            self.sweep()

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        """Ask for the end of the tree without waiting for it."""
        if process.poll() is None:
            self._ask(process.pid)

    def sweep(self) -> None:
        """Kill the processes that have the tree's mark; needed if the keeper was killed, or did not start them."""
        keeper.kill_all(lambda: keeper.marked(self.mark))

    def _ask(self, pid: int) -> None:
        """Ask the keeper to end the tree; it is a child that has not been waited for, so the id is its own."""
        if sys.platform != "linux":
            os.killpg(pid, signal.SIGKILL)
            return
        os.kill(pid, keeper.END)
        os.kill(pid, signal.SIGCONT)  # a child may have stopped it


def guard_this_process() -> None:
    """Let the children of this process end with it, also after a SIGKILL, where a `ProcessTree` cannot start it.

    It is for workers that Ray starts. Children that exist already, and those that drop the environment, are not found
    after a SIGKILL.
    """
    if sys.platform != "linux":
        return
    mark = secrets.token_hex(8)
    os.environ[MARK] = mark
    adopt_orphans()
    without = {name: value for name, value in os.environ.items() if name != MARK}
    subprocess.Popen([*_ALONE, "guard", str(os.getpid()), mark], env=without, stdin=subprocess.DEVNULL, close_fds=True)


def end_descendants(
    spared: Collection[int] = (), grace_s: float = GRACE_S, most_s: float = keeper.MOST_S, reap: bool = True
) -> int:
    """End all descendants of this process but the spared ones, and return the number that have ended.

    They get SIGTERM, and those that still run after `grace_s` seconds SIGKILL, as do those that were started since. A
    process of another user, such as a sandbox with its own rights, and one that waits in the kernel may be left after
    further `most_s` seconds.

    Args:
        reap: take their exit statuses; False leaves these to whoever started the processes.
    """
    found: set[int] = set()

    def left() -> dict[int, str]:
        now = {pid: at for pid, at in keeper.descendants(os.getpid()).items() if pid not in spared}
        found.update(now)
        return now

    if grace_s:
        for pid, started in left().items():
            keeper.send(pid, started, signal.SIGTERM)
        wait_until(lambda: not left(), grace_s)
    found -= keeper.kill_all(left, most_s).keys()
    for pid in found if reap else ():
        with suppress(ChildProcessError):  # not a child of this process, or waited for already
            os.waitpid(pid, os.WNOHANG)
    return len(found)


def wait_until(condition: Callable[[], bool], most_s: float) -> bool:
    """Poll `condition` until it holds, for at most `most_s` seconds; return True if it holds."""
    until = time.monotonic() + most_s
    while not (holds := condition()) and time.monotonic() < until:
        time.sleep(POLL_S)
    return holds


def process_started(pid: int) -> str:
    """Return the start time of a process of this machine as the kernel counts it; "" if it has ended.

    With the id it names a process for ever: ids are used again.
    """
    found = keeper._stat(pid) if Path("/proc/self").exists() else None
    return found[1] if found else ""


def process_space() -> str:
    """Return the name of the space in which the process ids of this process count; "" if it is not known.

    It is the boot of the kernel and the PID namespace: two containers with one host name have different ones.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except (OSError, ValueError):
        return ""
