"""Memory, processes, files and CPU time of a sandbox, as its first process reads them.

Part of the driver's text, so it imports only the standard library. Memory is what processes show, and what the kernel
keeps for them in sockets, terminals and locks. CPU time counts each process once, also one whose parent discards it.
"""

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass

POLL_S = 0.05
"""Longest time in seconds between two looks at the limits of a running command."""
SHORTEST_POLL_S = 0.004
LONGEST_TRUST_S = 0.25
"""Longest time in seconds for which the memory of processes that seem to use no processor is not read again."""
FASTEST = 4e9
"""Bytes that one processor takes in a second at most."""
SOCKET, TERMINAL, LOCK = 1 << 18, 3 << 16, 512
"""Most bytes of the kernel for an idle or full socket without large buffers, a terminal, and a lock of a file."""
QUEUED = 4
"""Bytes of the kernel for each byte in the queues of a TCP connection."""
SIGCHLD = 1 << 16
"""Bit of SIGCHLD in a mask of signals."""
NOISE_S = 0.05
"""CPU seconds that may seem to be lost, since the kernel rounds them to ticks."""
TICKS = os.sysconf("SC_CLK_TCK")
CPU_FILE = "/sys/fs/cgroup/cpu.stat"
"""CPU time of the sandbox's control group, if it has one."""


@dataclass(frozen=True)
class Process:
    """One process, or one that has ended and that its parent has not collected.

    Attributes:
        alive: False if it has ended.
        own_s: its CPU seconds.
        children_s: CPU seconds of its ended and collected children.
        started: time of its start in ticks.
    """

    alive: bool
    own_s: float
    children_s: float
    started: int


def text_of(path: str) -> str:
    """Return the text of a file of the kernel, or "" if it is gone."""
    data = b""
    with suppress(OSError):  # `open` would take three times as long, and each look reads several files
        end = os.open(path, os.O_RDONLY)
        try:
            while more := os.read(end, 1 << 16):
                data += more
        finally:
            os.close(end)
    return data.decode("utf-8", "replace")


def table() -> dict[int, Process]:
    """Return all processes but this one by id."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        words = text_of(f"/proc/{name}/stat").rpartition(")")[2].split()
        if not words or int(name) == os.getpid():
            continue
        user, system, user_of_children, system_of_children = map(int, words[11:15])
        exact = text_of(f"/proc/{name}/schedstat").split()  # in nanoseconds, of the first thread
        own = max((user + system) / TICKS, int(exact[0]) / 1e9 if exact else 0.0)
        # The first thread of a process may have ended while others run.
        alive = words[0] not in "ZX" or int(words[17]) > 1
        found[int(name)] = Process(alive, own, (user_of_children + system_of_children) / TICKS, int(words[19]))
    return found


def processes(keep: int = 0) -> list[int]:
    """Return the ids of all living processes but this one and `keep`."""
    return [pid for pid, process in table().items() if process.alive and pid != keep]


class Usage:
    """Counts of what a sandbox uses, and when to look again."""

    def __init__(self, places: list[str], memory: int) -> None:
        self.places, self.memory = places, memory
        self.free = self.free_files()
        self.next_look, self.before, self.looked_at = 0.0, dict[int, Process](), time.monotonic()
        self.held, self.trusted_until = 0, 0.0
        self.collected_s, self.counted_s, self.lost_s, self.owed_s = 0.0, 0.0, 0.0, 0.0
        self.hides, self.created = False, 0
        self.group_s = self.group_cpu_s()

    def free_files(self) -> int:
        """Return the number of files that may still be created."""
        return sum(os.statvfs(place).f_ffree for place in self.places)

    def begin(self) -> None:
        """Begin a command: look at once, and believe again that no CPU time is lost."""
        self.next_look, self.looked_at, self.hides, self.trusted_until = 0.0, time.monotonic(), False, 0.0

    def look(self, now: float) -> tuple[int, int, int, float]:
        """Return memory in bytes, number of living processes, number of created files, and CPU seconds.

        Memory takes most of the time of a look. It is not read while all processes sleep, which harnesses of agents
        do most of the time: to take memory needs a processor.
        """
        found = table()
        living = [pid for pid, process in found.items() if process.alive]
        if found != self.before or now >= self.trusted_until:
            self.held, self.trusted_until = sum(map(self.memory_of, living)) + kernel_memory(), now + LONGEST_TRUST_S
        memory, cpu = self.held, self.cpu_s(found, now)
        self.before = found
        parallel = min(len(os.sched_getaffinity(0)), len(living) + 1)
        pause = (self.memory - memory) / (FASTEST * parallel)
        self.next_look = time.monotonic() + min(max(pause, SHORTEST_POLL_S), POLL_S)
        return memory, len(living), self.free - self.free_files(), cpu

    def memory_of(self, pid: int) -> int:
        """Return the bytes that a process holds, and note if it lets CPU time of its children be lost."""
        status = text_of(f"/proc/{pid}/status")
        if "\nVmRSS:" not in status:  # its first thread has ended
            with suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    status = max(status, text_of(f"/proc/{pid}/task/{thread}/status"), key=len)
        kilobytes = 0
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssShmem", "VmSwap", "VmPTE", "HugetlbPages"):
                kilobytes += int(value.split()[0])
            elif name == "SigIgn" and int(value, 16) & SIGCHLD:
                self.hides = True
        return kilobytes << 10

    def group_cpu_s(self) -> float | None:
        """Return the CPU seconds of the control group; None without one."""
        words = text_of(CPU_FILE).split()
        return int(words[words.index("usage_usec") + 1]) / 1e6 if "usage_usec" in words else None

    def cpu_s(self, found: dict[int, Process], now: float) -> float:
        """Return the CPU seconds of all processes since the sandbox began.

        A parent that ignores SIGCHLD, or sets SA_NOCLDWAIT, discards the time of its children. A process that has gone
        must appear in the time of some collected children. If it does not, its time is added. From then on, and while
        a process ignores SIGCHLD, the command is charged with all processors for the time in which it made processes.
        """
        if self.group_s is not None:
            return (self.group_cpu_s() or 0.0) - self.group_s
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        collected = ended.ru_utime + ended.ru_stime
        counted = collected + sum(one.own_s + one.children_s for one in found.values())
        credit, gone, collectors = collected - self.collected_s, 0.0, 0
        for pid, old in self.before.items():
            new = found.get(pid)
            if new is None or new.started != old.started:
                gone += old.own_s + old.children_s
                continue
            credit += new.children_s - old.children_s
            collectors += new.children_s > old.children_s
        self.owed_s = max(self.owed_s + gone - credit, -NOISE_S)
        if self.owed_s > NOISE_S + 2 * collectors / TICKS:
            self.lost_s, self.owed_s, self.hides = self.lost_s + self.owed_s, 0.0, True
        created = int((text_of("/proc/loadavg").split() or ["0"])[-1])
        if self.hides and created != self.created:
            most = min(len(os.sched_getaffinity(0)), max(1, created - self.created))
            self.lost_s += max(0.0, (now - self.looked_at) * most - max(counted - self.counted_s, 0.0))
        self.collected_s, self.counted_s = collected, counted
        self.looked_at, self.created = now, created
        return counted + self.lost_s


def kernel_memory() -> int:
    """Return the bytes that the kernel may hold for sockets, terminals and locks of this sandbox."""
    used = text_of("/proc/net/sockstat").split()
    sockets = int(used[2]) if used[:2] == ["sockets:", "used"] else 0
    queued = 0
    for name in ("tcp", "tcp6") if sockets else ():
        for line in text_of(f"/proc/net/{name}").splitlines()[1:]:
            queued += sum(int(size, 16) for size in line.split()[4].split(":"))
    with suppress(OSError):
        return (
            sockets * SOCKET
            + queued * QUEUED
            + max(0, len(os.listdir("/dev/pts")) - 1) * TERMINAL
            + text_of("/proc/locks").count("\n") * LOCK
        )
    return 0
