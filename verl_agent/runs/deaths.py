"""Death of a process of a run: its name in plain words, its cause, and the evidence for a lack of memory."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from verl_agent.system.resources import Memory, machine_memory

ACTORS = {
    "EpisodeRunner": "the trainer",
    "WorkerDict": "a training worker",
    "AgentLoopWorkerTQ": "an agent-loop worker",
    "RunScopedHttpServer": "the server of a rollout engine",
    "vLLMHttpServer": "the server of a rollout engine",
    "SGLangHttpServer": "the server of a rollout engine",
    "FullContextServer": "the server of a rollout engine",
    "GlobalRequestLoadBalancer": "the load balancer of the rollout engines",
    "SimpleStorageUnit": "a storage unit of TransferQueue",
    "TransferQueueController": "the controller of TransferQueue",
    "PoolActor": "the pool of environment hosts",
}
"""Plain names of Ray actors by class; any other actor keeps the name of its class."""
REPLACED_ACTORS = frozenset({"HostActor"})
"""Classes of actors that their pool starts again; their death does not end a run."""
NODE_MANAGER = "Ray's node manager (raylet)"
PROCESSES = (
    (re.compile(r"\S*/gcs_server( |$)"), "Ray's control service (gcs_server)"),
    (re.compile(r"\S*/raylet( |$)"), NODE_MANAGER),
    (re.compile(r"VLLM::EngineCore"), "the rollout engine (vLLM's EngineCore)"),
    (re.compile(r"VLLM::Worker"), "a worker of the rollout engine (vLLM's Worker)"),
    (re.compile(r"VLLM::"), "a process of the rollout engine (vLLM)"),
    (re.compile(r"sglang::"), "a process of the rollout engine (SGLang)"),
)
"""Beginnings of command lines and plain names of the processes that are not Ray actors and that a run needs."""
OOM_COUNTERS = (
    Path("/proc/vmstat"),
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
)
"""Files with a line `oom_kill N`: processes that the kernel of this machine killed for lack of memory."""
EVIDENCE_S = 60.0
"""Seconds before a death in which a lack of memory counts as its cause."""
FULL = 0.03
"""Share of free memory below which memory has run out."""


@dataclass(frozen=True, slots=True)
class Death:
    """Unexpected end of a process that a run needs.

    Attributes:
        name: plain name, such as "the rollout engine (vLLM's EngineCore)".
        node: address of its machine; empty for this machine.
        cause: cause in a few words; empty if it is unknown.
    """

    name: str
    pid: int
    node: str = ""
    cause: str = ""

    def __str__(self) -> str:
        """Return the sentence that names the process and the cause."""
        process = f"process {self.pid} on {self.node}" if self.node else f"process {self.pid}"
        return f"{self.name[0].upper()}{self.name[1:]}, {process}, {self.cause or 'ended unexpectedly'}."


def command_line(process: psutil.Process) -> str:
    """Return the command line of a process; empty if it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def name_process(command_line: str) -> str | None:
    """Return the plain name of a process that a run needs; None for any other process and for Ray actors."""
    return next((name for pattern, name in PROCESSES if pattern.match(command_line)), None)


def name_actor(command_line: str) -> str | None:
    """Return the plain name of a Ray actor by the title of its process, such as `ray::WorkerDict.train`; else None."""
    title = re.match(r"ray::(\w+)", command_line)
    return ACTORS.get(title[1]) if title else None


def count_oom_kills(files: Iterable[Path] = OOM_COUNTERS) -> int:
    """Return the number of processes that the kernel has killed for lack of memory; 0 if it does not tell."""
    counts = [0]
    for file in files:
        if file.is_file():
            counts += map(int, re.findall(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE))
    return max(counts)


class MemoryWatch:
    """Watch on the memory of this machine or container, which has the evidence after a death."""

    def __init__(
        self, read: Callable[[], Memory | None] = machine_memory, count: Callable[[], int] = count_oom_kills
    ) -> None:
        self._read, self._count = read, count
        self._readings: deque[tuple[float, int, Memory | None]] = deque()

    def sample(self) -> None:
        """Read the memory, at most once a second, and forget what was read more than `EVIDENCE_S` ago."""
        now = time.monotonic()
        if not self._readings or now - self._readings[-1][0] > 1.0:
            self._readings.append((now, self._count(), self._read()))
        while now - self._readings[0][0] > EVIDENCE_S:
            self._readings.popleft()

    def evidence(self) -> str:
        """Return a sentence that says how memory ran out lately; "" if nothing shows that it did."""
        if self._readings and self._count() > self._readings[0][1]:
            return "The kernel killed a process of this machine because memory ran out."
        fullest = min((one for *_, one in self._readings if one), key=lambda one: one.free / one.total, default=None)
        if fullest is None or fullest.free > FULL * fullest.total:
            return ""
        owner = "container" if fullest.limited else "machine"
        free, total = (f"{size / 1e9:.1f}" for size in (fullest.free, fullest.total))
        return f"Memory had run out: {free} of the {total} GB of this {owner} were free shortly before."
