"""Death of a process of a run: its name in plain words, its cause, and the check for a lack of memory."""

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
PROCESSES = (
    (re.compile(r"\S*/gcs_server( |$)"), "Ray's control service (gcs_server)"),
    (re.compile(r"\S*/raylet( |$)"), "Ray's node manager (raylet)"),
    (re.compile(r"VLLM::EngineCore"), "the rollout engine (vLLM's EngineCore)"),
    (re.compile(r"VLLM::Worker"), "a worker of the rollout engine (vLLM's Worker)"),
    (re.compile(r"VLLM::"), "a process of the rollout engine (vLLM)"),
    (re.compile(r"sglang::"), "a process of the rollout engine (SGLang)"),
)
"""Beginnings of command lines and plain names of the processes that are not Ray actors and that a run needs."""
OOM_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
"""Files with a line `oom_kill N`: processes that the kernel of this machine killed for lack of memory."""


@dataclass(frozen=True, slots=True)
class Death:
    """Unexpected end of a process that a run needs.

    Attributes:
        name: plain name, such as "the rollout engine (vLLM's EngineCore)".
        pid: id of the process.
        node: address of its machine; empty for this machine.
        cause: cause in a few words; empty if it is unknown.
    """

    name: str
    pid: int
    node: str = ""
    cause: str = ""

    def __str__(self) -> str:
        """Return the sentence that names the process and the cause."""
        place = f"process {self.pid} on {self.node}" if self.node else f"process {self.pid}"
        return f"{self.name[0].upper()}{self.name[1:]}, {place}, {self.cause or 'ended unexpectedly'}."


def name_process(command_line: str) -> str | None:
    """Return the plain name of a process that a run needs; None for any other process and for Ray actors."""
    return next((name for pattern, name in PROCESSES if pattern.match(command_line)), None)


def name_actor(command_line: str) -> str | None:
    """Return the plain name of a Ray actor by the title of its process, such as `ray::WorkerDict.train`; else None."""
    title = re.match(r"ray::(\w+)", command_line)
    return ACTORS.get(title[1]) if title else None


def describe_status(status: int) -> str:
    """Return the cause in the exit status of a child process, negative for a signal as in `subprocess`."""
    if status >= 0:
        return f"ended with exit code {status}"
    return f"was killed by signal {-status} ({signal.Signals(-status).name})"


def count_oom_kills(files: Iterable[Path] = OOM_COUNTERS) -> int:
    """Return the number of processes that the kernel has killed for lack of memory; 0 if it does not tell."""
    counts = [0]
    for file in files:
        if file.is_file():
            counts += map(int, re.findall(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE))
    return max(counts)
