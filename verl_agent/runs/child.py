"""Child process of a supervisor: its start by a fork, the wait for its end or a death, and the end of all the rest."""

import atexit
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

import psutil

from verl_agent.envs.machine.processes import end_descendants, end_with_parent
from verl_agent.platform.exits import KILLED, describe_status
from verl_agent.runs.deaths import Death, MemoryWatch
from verl_agent.runs.first_error import first_error_in, read_beginnings
from verl_agent.runs.hang_watch import HangWatch
from verl_agent.runs.process_watch import ProcessWatch
from verl_agent.runs.processes import remove_unused, shared_memory

POLL_S = 0.2
STOP_S = 60.0
"""Seconds that the child has to end after Ctrl-C, before everything is killed."""
STOPPED = 130
"""Exit status of a run that was stopped."""
LEAVING: dict[str, object] = {"leaving": True}


class Link:
    """Child's side of the connection to the supervisor; both calls are safe in any thread."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream, self._lock, self._left = stream, threading.Lock(), False

    def report(self, death: Death) -> None:
        """Report a death and wait until the supervisor kills this process; return at once after `leave`."""
        with self._lock:
            if not self._left:
                self._ask(asdict(death))

    def leave(self) -> None:
        """Announce that this process ends its children now, so that their ends are expected.

        Does not return if one of them has died before.
        """
        with self._lock:
            if not self._left:
                self._ask(LEAVING)
                self._left = True

    def _ask(self, message: dict[str, object]) -> None:
        try:
            self._stream.sendall(json.dumps(message).encode() + b"\n")
            self._stream.recv(1)
        except OSError:  # the supervisor has ended; this process gets its signal
            return


@dataclass(slots=True)
class StopRequest:
    """Request to stop the run, by Ctrl-C or SIGTERM.

    Attributes:
        since_s: time of the request, as `time.monotonic` gives it; None without one.
    """

    since_s: float | None = None

    @property
    def late(self) -> bool:
        """True if the time in which the child has to end is over."""
        return self.since_s is not None and time.monotonic() - self.since_s > STOP_S


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM while the block runs; one that this process was started to ignore stays ignored.

    A child that is forked in the block keeps its own handlers at the end of the block.
    """
    stop, owner = StopRequest(), os.getpid()

    def record(number: int, frame: FrameType | None) -> None:
        stop.since_s = stop.since_s or time.monotonic()

    numbers = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, record) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items() if os.getpid() == owner else ():
            signal.signal(number, handler)


class Child:
    """Child process as its supervisor sees it.

    Attributes:
        status: exit status as in `subprocess`, negative for a signal; None while the process runs.
    """

    def __init__(self, pid: int, stream: socket.socket) -> None:
        self.status: int | None = None
        self.memory = MemoryWatch()
        self._pid, self._stream, self._received = pid, stream, b""
        self._watch = ProcessWatch(psutil.Process(pid))
        self._leaves = False
        self._segments: set[Path] = set()

    def wait(self, stop: StopRequest, hangs: HangWatch | None = None) -> Death | None:
        """Wait until the child ends, or a process dies or hangs that it needs; the child has ended when this returns.

        Returns:
            The death; None if the child ended by itself or was stopped.
        """
        death, asked = None, False
        while death is None and not self._ended() and not stop.late:
            if stop.since_s is not None and not asked:
                os.kill(self._pid, signal.SIGINT)
                asked = True
            self.memory.sample()
            death = self._receive() or (None if self._ended() else self._check())
            if death is None and hangs is not None and not self._leaves and not self._ended():
                death = hangs.check(psutil.Process(self._pid))
        if death is not None and not self._ended():
            time.sleep(POLL_S)  # a child that is killed at the same moment explains the other death
        if self._ended() and self.status is not None and self.status < 0:
            death = self._explain_signal(self.status, death)
        self._segments = shared_memory(psutil.Process().children(recursive=True))
        if not self._ended():
            os.kill(self._pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return None if stop.since_s is not None or death is None else self._with_cause(death)

    def first_error(self, death: Death) -> str:
        """Return the first error that the process of a death has written; "" if it has no file or wrote none.

        A process that SIGKILL ended wrote none: the errors in its file followed, in the process that had started it.
        """
        return "" if "SIGKILL" in death.cause else first_error_in(self._watch.outputs(death.pid))

    def end_others(self) -> None:
        """End the processes that the child has left, and remove their shared memory."""
        end_descendants()
        remove_unused(self._segments)
        self._stream.close()

    def _with_cause(self, death: Death) -> Death:
        """Add the signal that ended a process, if the one that had started it has written which (`report_kills`)."""
        if death.cause or death.node:
            return death
        lines = (KILLED.finditer(text) for text in read_beginnings(self._watch.outputs(death.pid)))
        causes = [match[2] for matches in lines for match in matches if int(match[1]) == death.pid]
        return replace(death, cause=causes[0]) if causes else death

    def _check(self) -> Death | None:
        return None if self._leaves else self._watch.check()

    def _explain_signal(self, status: int, seen: Death | None) -> Death:
        """Return the death behind a signal that ended the child; Ray aborts its driver when it loses a service.

        Args:
            seen: death of another process; if the signal was not Ray's, it followed from the child's.
        """
        lost = (seen or self._check()) if status == -signal.SIGABRT else None
        return lost or Death("the driver of the run", self._pid, cause=describe_status(status))

    def _ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def _receive(self) -> Death | None:
        """Wait for a message for at most `POLL_S`; answer that the child leaves, or return the death it reports."""
        readable, _, _ = select.select([self._stream], [], [], POLL_S)
        if not readable:
            return None
        received = self._read()
        if not received:  # the child is ending
            time.sleep(POLL_S)
        self._received += received
        if not self._received.endswith(b"\n"):
            return None
        message, self._received = json.loads(self._received), b""
        if message != LEAVING:
            return Death(**message)
        death = self._check()
        if death is None:
            self._leaves = True
            with suppress(ConnectionError):  # the child has ended before it reads the answer
                self._stream.sendall(b"\n")
        return death

    def _read(self) -> bytes:
        """Return what the child has sent; nothing if it has ended."""
        try:
            return self._stream.recv(65536)
        except ConnectionError:  # it left an answer unread
            return b""


def fork() -> Child | Link:
    """Fork this process; return the child in the parent, and the connection to the parent in the child.

    The child ends with the parent, and takes Ctrl-C from it alone instead of from the terminal.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    own_end, child_end = socket.socketpair()
    parent, pid = os.getpid(), os.fork()
    if pid:
        child_end.close()
        return Child(pid, own_end)
    own_end.close()
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, _interrupt_once)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Python's own end restores the default action, which would kill, for every handler but this one.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGINT)
    if os.getppid() != parent:  # it has ended in the meantime
        sys.exit(STOPPED)
    return Link(child_end)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for the first signal; when a parent is killed, the kernel may send one per thread of it.

    A second one would interrupt the end of the run's own processes.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which programs that are started later would inherit
    raise KeyboardInterrupt
