"""Supervisor of a run: runs it in a child process, and restarts it from its last checkpoint when a process dies.

The command forks before it imports Ray or torch. The child trains, and starts every other process of the run. The
parent waits for the first process that the run needs and that ends unexpectedly. It names that process, ends the
others and forks again, so that the run resumes as if the command had been given again.
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType

import psutil
from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from verl_agent.runs.deaths import Death, count_oom_kills, describe_status
from verl_agent.runs.folder import RunFolder
from verl_agent.runs.process_watch import ProcessWatch
from verl_agent.runs.processes import adopt_orphans, end, remove_unused, shared_memory

PR_SET_PDEATHSIG = 1
"""Linux, sys/prctl.h: the kernel sends a signal to this process when its parent ends."""
POLL_S = 0.2
STOP_S = 60.0
"""Seconds that the child has to end after Ctrl-C, before everything is killed."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LEAVING: dict[str, object] = {"leaving": True}
STATUS_FAILED = 1
STATUS_STOPPED = 130


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


@dataclass(frozen=True, slots=True)
class Ending:
    """End of the child.

    Attributes:
        status: exit status as in `subprocess`, negative for a signal.
        death: death that ended the run; None if it ended by itself or was stopped.
    """

    status: int
    death: Death | None = None


def supervise(run: Callable[[Link], None], config: DictConfig) -> None:
    """Call `run` in a child process; restart it from its last checkpoint after the death of a process.

    Returns in the child when `run` has returned, and exits in the parent. The parent does not restart a run that died
    `trainer.max_restarts` times since its last checkpoint, nor one that died before it logged a step.

    Args:
        run: trains to the end of `config`; it needs to resume from its folder when it is called again.
        config: composed config of a training run.
    """
    restarts = 0
    adopt_orphans()
    while True:
        sys.stdout.flush()
        sys.stderr.flush()
        saved, logged, killed = *_progress(config), count_oom_kills()
        own_end, child_end = socket.socketpair()
        supervisor, pid = os.getpid(), os.fork()
        if not pid:
            own_end.close()
            _become_child(supervisor)
            run(Link(child_end))
            return
        child_end.close()
        with own_end:
            ending = _Child(pid, own_end).follow()
        console = Console()
        console.show_cursor(True)
        if ending.death is None:
            sys.exit(ending.status if ending.status >= 0 else STATUS_STOPPED)
        step, logged_now = _progress(config)
        restarts = 1 if step > saved else restarts + 1
        lack = count_oom_kills() > killed
        allowed = int(config.trainer.max_restarts) if logged_now > logged else 0
        console.print(_message(ending.death, config, restarts, allowed, lack), highlight=False, soft_wrap=True)
        if restarts > allowed:
            sys.exit(STATUS_FAILED)
        config.trainer.resume_mode = "auto"


def _progress(config: DictConfig) -> tuple[int, int]:
    """Return the step of the last checkpoint of a run, and the size of its metrics files; zeros before its checks."""
    try:
        folder = RunFolder.at(config.trainer.default_local_dir)
        return folder.last_step, sum(path.stat().st_size for path in folder.all_metrics)
    except Exception:  # boundary: the child checks the config and reports what is wrong with it
        return 0, 0


def _message(death: Death, config: DictConfig, restarts: int, allowed: int, lack: bool) -> str:
    folder = RunFolder.at(config.trainer.default_local_dir)
    logs = sorted(folder.log.parent.glob("*.log"))
    cause = (
        "In the meantime the kernel killed a process of this machine because memory ran out."
        if lack
        else "The most frequent cause is a lack of memory."
    )
    text = f"[red]{death}[/] {cause} Log: {escape(str(logs[-1] if logs else folder.log))}"
    if restarts <= allowed:
        return f"{text}\nRestart {restarts} of {allowed}: the run resumes after step {folder.last_step}."
    if not allowed and config.trainer.max_restarts:
        why = "It is not restarted, because it died before its first step."
    else:
        why = f"trainer.max_restarts={config.trainer.max_restarts} allows no further restart without a new checkpoint."
    return f"{text}\n{why} Run the same command again to resume after step {folder.last_step}."


def _become_child(supervisor: int) -> None:
    """Make this process end with the supervisor, and take Ctrl-C from it alone instead of from the terminal."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != supervisor:  # it has ended in the meantime
        sys.exit(STATUS_STOPPED)


class _Child:
    """Child process as the supervisor sees it."""

    def __init__(self, pid: int, stream: socket.socket) -> None:
        self._pid, self._stream, self._received = pid, stream, b""
        self._watch: ProcessWatch | None = ProcessWatch(psutil.Process(pid))
        self._status: int | None = None
        self._stopped_s: float | None = None

    def follow(self) -> Ending:
        """Wait for the end of the child or the first death, and end all processes that are left."""
        obeyed = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, self._stop) for number in obeyed}
        try:
            death = None
            while death is None and not self._ended() and not self._late():
                death = self._receive() or (None if self._ended() else self._check())
            if self._status is not None and self._status < 0:
                death = self._explain_signal(self._status)
            self._end_all()
            return Ending(self._status or 0, None if self._stopped_s is not None else death)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Hand Ctrl-C and SIGTERM to the child as SIGINT, once."""
        if self._stopped_s is None:
            self._stopped_s = time.monotonic()
            if not self._ended():
                os.kill(self._pid, signal.SIGINT)

    def _late(self) -> bool:
        return self._stopped_s is not None and time.monotonic() - self._stopped_s > STOP_S

    def _check(self) -> Death | None:
        return self._watch.check() if self._watch else None

    def _explain_signal(self, status: int) -> Death:
        """Return the death behind a signal that ended the child; Ray aborts its driver when it loses a service."""
        lost = self._check() if status == -signal.SIGABRT else None
        return lost or Death("the driver of the run", self._pid, cause=describe_status(status))

    def _ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status is not None

    def _receive(self) -> Death | None:
        """Wait for a message for at most `POLL_S`; answer that the child leaves, or return the death it reports."""
        readable, _, _ = select.select([self._stream], [], [], POLL_S)
        if not readable:
            return None
        received = self._stream.recv(65536)
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
            self._watch = None
            self._stream.sendall(b"\n")
        return death

    def _end_all(self) -> None:
        children = psutil.Process().children(recursive=True)
        held = shared_memory(children)
        if not self._ended():
            os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        while children := psutil.Process().children(recursive=True):
            end(children)
        remove_unused(held)
