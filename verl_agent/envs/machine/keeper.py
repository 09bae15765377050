"""Keeper of a process tree: runs one command, and ends whatever it has started when the command or its owner ends.

`python -I -S keeper.py run OWNER GRACE_S MARK COMMAND...` ends with the exit status of the command. The kernel makes
the keeper the parent of every orphan below it (`PR_SET_CHILD_SUBREAPER`), so a new session, a double fork and `nohup`
do not leave the tree. `python -I -S keeper.py guard OWNER MARK` ends the processes with a mark when OWNER has ended. It
is for a process that something else starts, such as a worker of Ray.

It uses only the standard library, because it runs without site-packages. `verl_agent.envs.machine.processes` calls it.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

MARK = "VERL_AGENT_TREE"
"""Environment variable by which processes of a tree are found that its keeper has lost."""
END = signal.SIGUSR1
"""Signal that asks a keeper to end its tree at once."""
POLL_S = 0.2
"""Seconds between two checks that the owner runs."""
MOST_S = 5.0
"""Seconds after which a keeper gives up on processes that cannot be killed, for example in a system call."""
NOT_FOUND = 127
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that it finds them; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Let the kernel send a signal to this process when its parent ends, also after a SIGKILL; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def processes() -> Iterator[tuple[int, int, str]]:
    """Yield process id, parent and start time of each process that has not ended; nothing without /proc."""
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit() and (found := _stat(int(name))) is not None:
            yield int(name), *found


def descendants(root: int) -> dict[int, str]:
    """Return the start time of each descendant of a process, by process id."""
    children: dict[int, list[tuple[int, str]]] = {}
    for pid, parent, started in processes():
        children.setdefault(parent, []).append((pid, started))
    found: dict[int, str] = {}
    waiting = [root]
    while waiting:
        for pid, started in children.get(waiting.pop(), ()):
            if pid not in found:
                found[pid] = started
                waiting.append(pid)
    return found


def marked(mark: str) -> dict[int, str]:
    """Return the start time of each process that was started with this mark, by process id."""
    entry, found = f"{MARK}={mark}".encode(), dict[int, str]()
    for pid, _, started in processes():
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # ended, or of another user
            if entry in file.read().split(b"\0") and pid != os.getpid():
                found[pid] = started
    return found


def send(pid: int, started: str, number: int) -> None:
    """Signal a process, unless another one has its id by now."""
    with suppress(OSError):  # it has ended, or belongs to another user
        descriptor = None
        with suppress(OSError, AttributeError):  # a system without this call
            descriptor = os.pidfd_open(pid)
        try:
            if (found := _stat(pid)) is None or found[1] != started:
                return
            if descriptor is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            if descriptor is not None:
                os.close(descriptor)


def kill_all(find: Callable[[], dict[int, str]], most_s: float = MOST_S) -> dict[int, str]:
    """Kill the processes that `find` returns until it returns none, and return those that are left after `most_s`.

    They are stopped first, so that none starts another one while it is killed.
    """
    until = time.monotonic() + most_s
    while found := find():
        stopped: dict[int, str] = {}
        while new := {pid: started for pid, started in found.items() if stopped.get(pid) != started}:
            for pid, started in new.items():
                send(pid, started, signal.SIGSTOP)
            stopped |= new
            found = find()
        for pid, started in stopped.items():
            send(pid, started, signal.SIGKILL)
        if time.monotonic() > until:
            return found
        time.sleep(0.005)
    return {}


def run(owner: int, grace_s: float, mark: str, command: list[str]) -> int:
    """Run a command until it or `owner` ends or `END` arrives, then end the rest; return its wait status.

    SIGTERM and SIGINT are passed on to the command. When the owner ends first, the command gets SIGTERM and `grace_s`
    seconds.
    """
    signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, END}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    adopt_orphans()
    end_with_parent(signal.SIGCONT)  # wakes a keeper that a child has stopped, when its owner is killed
    main = os.fork()
    if not main:
        _become(command, mask)
    _close_all()
    status, until = None, None
    while status is None:
        arrived = signal.sigtimedwait(signals, POLL_S)
        status = _reap(main)
        if (arrived is not None and arrived.si_signo == END) or (until is not None and time.monotonic() > until):
            break
        if arrived is not None and arrived.si_signo in (signal.SIGTERM, signal.SIGINT) and status is None:
            os.kill(main, arrived.si_signo)
        if until is None and os.getppid() != owner:
            until = time.monotonic() + grace_s
            if status is None:
                os.kill(main, signal.SIGTERM if grace_s else signal.SIGKILL)
    statuses = [] if status is None else [status]

    def left() -> dict[int, str]:
        if (ended := _reap(main)) is not None:
            statuses.append(ended)
        return descendants(os.getpid()) | _children()

    until = time.monotonic() + MOST_S
    while True:  # a process that forks and ends at once can be missed by every look at /proc, but not by the kernel
        kill_all(left, until - time.monotonic())
        if not _has_children() or time.monotonic() > until:
            break
    left()
    kill_all(lambda: marked(mark))  # a kernel or a sandbox may refuse to hand orphans over
    return statuses[0] if statuses else signal.SIGKILL


def guard(owner: int, mark: str) -> None:
    """Kill the processes with a mark as soon as `owner` has ended."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _close_all()
    while os.getppid() == owner:
        time.sleep(POLL_S)
    kill_all(lambda: marked(mark))


def _become(command: list[str], mask: set[int | signal.Signals]) -> None:
    """Replace this forked process by the command, which leads a session of its own."""
    keeper = os.getppid()
    try:
        os.setsid()
        end_with_parent(signal.SIGKILL)  # if the keeper itself is killed
        if os.getppid() != keeper:
            os._exit(NOT_FOUND)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} does not start: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_FOUND)


def _close_all() -> None:
    """Leave the files of the command to the command: who reads its output must see the end of it."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if not os.path.isdir("/proc/self/fd") else _highest() + 1)
    os.chdir("/")


def _highest() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd"))


def _reap(main: int) -> int | None:
    """Wait for all children that have ended; return the status of the command if it is among them."""
    status = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == main:
                status = ended[1]
    return status


def _children() -> dict[int, str]:
    """Return the start time of each child of this process of one thread, by process id: faster than a look at /proc."""
    with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:  # a kernel may lack it
        return {pid: found[1] for pid in map(int, file.read().split()) if (found := _stat(pid)) is not None}
    return {}


def _has_children() -> bool:
    """Return True if this process has a child that has not ended, or one whose status nobody has read."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _stat(pid: int) -> tuple[int, str] | None:
    """Return parent and start time of a process; None if it has ended.

    A process whose first thread has ended is a zombie in its state, but its other threads run on.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, *rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    ended = state in (b"Z", b"X") and int(rest[15]) <= 1
    return None if ended else (int(parent), rest[17].decode())


def _exit_as(status: int) -> None:
    """Exit as a command with this wait status has ended, also if a signal ended it."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):  # SIGKILL has no action
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    if sys.argv[1] == "guard":
        guard(int(sys.argv[2]), sys.argv[3])
    else:
        _exit_as(run(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5:]))
