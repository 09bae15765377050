"""Free memory and disk of this machine, the need of a run, and folders to write.

Functions take readings as arguments, so tests can pass those of another machine; `machine_memory` reads this one.
"""

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from verl_agent.errors import ConfigError

RL_MEMORY_GB = 10.0
"""GB of trainer, engine and Ray's workers while a model of 135M parameters trains on the CPU; 8.8 measured."""
RL_BARE_GB = 6.0
"""GB that they use with a model of a few million parameters; 4.7 measured with one rank and no critic."""
PASS_TOKENS = 960
"""Tokens of a pass of the update at which `RL_MEMORY_GB` was measured: two rows of the quickstart."""
TOKEN_BYTES = 1e6
"""Bytes of activations for each further token of a pass with 135M parameters; 0.8e6 measured."""
RANK_GB = 3.5
"""GB of each further rank on the CPU: a trainer, an engine and its server, with a model of a few million parameters."""
SFT_MEMORY_GB = 5.0
"""GB that supervised training of the 135M model uses; 4.7 measured."""
MEASURED_PARAMETERS = 135e6
RL_BYTES = 24
"""Bytes for each further parameter: float32 weights, gradient, two moments, the engine's copy and one in transit."""
TEACHER_BYTES = 4
"""Bytes for each parameter of a teacher, which has weights in float32 only."""
SFT_BYTES = 16
"""Bytes for each further parameter of supervised training."""
SAVED_BYTES = {"model": 4, "optimizer": 8, "hf_model": 4}
"""Bytes of a checkpoint for each parameter, by entry of `save_contents`."""
TEMPORARY_GB = 0.1
"""GB of temporary files: sockets and logs of Ray, kernels of torch.compile; 0.01 measured in a short run."""
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that this process and its children may use, in bytes.

    Attributes:
        total: memory of the machine, or the limit of its container.
        free: free part of the total.
    """

    total: int
    free: int
    limited: bool = False


def parse_memory(meminfo: str, limit: str = "", used: str = "") -> Memory | None:
    """Return the memory that three files describe; None if the first one has no total.

    Args:
        meminfo: text of `/proc/meminfo`.
        limit: limit of the container in bytes; "max" or "" without a limit.
        used: bytes that the container uses; "" if unknown.
    """
    kib = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.MULTILINE)}
    if "MemTotal" not in kib:
        return None
    total, free = kib["MemTotal"] * 1024, kib.get("MemAvailable", 0) * 1024
    if not limit.strip().isdigit() or int(limit) >= total:
        return Memory(total, free)
    bounded = int(limit)
    inside = bounded - int(used) if used.strip().isdigit() else bounded
    return Memory(bounded, max(0, min(free, inside)), limited=True)


def machine_memory() -> Memory | None:
    """Return the memory of this machine, or of its container."""
    limit, used = next(((a, b) for a, b in CGROUPS if Path(a).is_file()), ("", ""))
    return parse_memory(read_text("/proc/meminfo"), read_text(limit), read_text(used))


def memory_needed(count: int | None, measured_gb: float, bytes_each: int, bare_gb: float | None = None) -> float:
    """Return the GB of memory that training on the CPU needs.

    Args:
        count: number of parameters of the model; None if unknown.
        measured_gb: GB for a model of 135M parameters.
        bytes_each: bytes for each parameter beyond 135M.
        bare_gb: GB for the smallest model; None for `measured_gb`.
    """
    if count is None:
        return measured_gb
    below = measured_gb if bare_gb is None else bare_gb
    return (
        below
        + (measured_gb - below) * min(1.0, count / MEASURED_PARAMETERS)
        + max(0.0, count - MEASURED_PARAMETERS) * bytes_each / 1e9
    )


def activations_gb(count: int | None, tokens: int) -> float:
    """Return the GB of activations beyond those in `RL_MEMORY_GB`.

    Args:
        count: number of parameters of the model; None, if unknown, counts as 135M.
        tokens: most tokens of a pass of the update.
    """
    size = min(1.0, (count or MEASURED_PARAMETERS) / MEASURED_PARAMETERS)
    return size * TOKEN_BYTES * max(0, tokens - PASS_TOKENS) / 1e9


def checkpoint_gb(count: int | None, saved: list[str]) -> float:
    """Return the GB of disk that a checkpoint takes.

    Args:
        count: number of parameters of all saved models; None, if unknown, counts as 135M.
        saved: entries of `save_contents`.
    """
    return (count or MEASURED_PARAMETERS) * sum(SAVED_BYTES.get(name, 0) for name in saved) / 1e9


def most_checkpoints(kept: int | None) -> int:
    """Return the number of checkpoints that exist at once: the next one is complete before the oldest is removed.

    Args:
        kept: number of checkpoints that are kept; None, for all, counts as one.
    """
    return (kept or 1) + 1


def spell_gb(size: float) -> str:
    """Return a size in words.

    Example:
        >>> [spell_gb(size) for size in (390.2, 6.48, 0.0124, 0)]
        ['390 GB', '6.5 GB', '12 MB', '0 MB']
    """
    if size < 0.1:
        return f"{size * 1000:.0f} MB"
    return f"{size:.0f} GB" if size >= 100 else f"{size:.1f} GB"


def require_memory(memory: Memory | None, needed_gb: float, purpose: str = "training this model on the CPU") -> None:
    """Raise if the memory does not suffice."""
    if memory is None or memory.free >= needed_gb * 1e9:
        return
    owner = "this container" if memory.limited else "this machine"
    raise ConfigError(
        f"{owner} has {memory.free / 1e9:.1f} of {memory.total / 1e9:.1f} GB of memory free, but {purpose} takes "
        f"{needed_gb:.0f} GB. Close other programs, choose a smaller model, or use a larger machine."
    )


def require_disk(free_bytes: int, needed_gb: float, folder: Path) -> None:
    """Raise if the disk has no room for what will be written."""
    if free_bytes < needed_gb * 1e9:
        raise ConfigError(
            f"{folder} has {spell_gb(free_bytes / 1e9)} of free disk space, but {spell_gb(needed_gb)} will be written "
            "there. Free disk space, choose another trainer.default_local_dir, or save less "
            "(trainer.max_actor_ckpt_to_keep, save_contents)."
        )


def require_temporary_space(needed_gb: float) -> None:
    """Raise if the folder of temporary files has too little space, also one that Python would skip because it is full.

    Raises:
        ConfigError: the folder does not exist or has too little space.
    """
    key = next((name for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)), None)
    folder = Path(os.environ[key] if key else tempfile.gettempdir())
    name = f"{key}={folder}" if key else f"{folder}, the folder of temporary files,"
    if not folder.is_dir():
        raise ConfigError(f"{name} does not exist. Create it, or set {key} to another folder.")
    free = shutil.disk_usage(folder).free
    if free < needed_gb * 1e9:
        raise ConfigError(
            f"{name} has {free / 1e9:.2f} GB of free disk space, but temporary files take {needed_gb:.1f} GB. Free "
            "disk space there, or set TMPDIR to another folder."
        )


def read_text(path: str) -> str:
    """Return the text of a file; "" if it does not exist."""
    file = Path(path)
    return file.read_text() if path and file.is_file() else ""


def make_folder(folder: Path, key: str) -> None:
    """Create the folder of a run, if it is missing.

    Raises:
        ConfigError: it cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK) else "it is read-only"
    except FileExistsError:
        reason = "there is a file of this name"
    except OSError as error:
        reason = f"it cannot be created ({(error.strerror or str(error)).lower()})"
    if reason:
        raise ConfigError(f"{key}={str(folder)!r} is not allowed: {reason}. Name a folder that can be written.")
