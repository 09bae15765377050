"""This machine: memory and disk that are free, what a run takes of them, and where the cache lies.

Readings are arguments where another machine's can be tried; `read_memory` reads this one's.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from verl_agent.errors import ConfigError

RL_MEMORY_GB = 14.0
"""What trainer, engine and Ray's workers hold together while a model of 135M parameters trains on the CPU; measured."""
RL_BARE_GB = 9.0
"""What they hold with a model of a few million parameters; 7.5 measured."""
SFT_MEMORY_GB = 5.0
"""What supervised training of the same model holds; 4.7 measured."""
MEASURED_PARAMETERS = 135e6
RL_BYTES = 24
"""More for each further parameter: float32 weights, gradient, two moments, the engine's copy, one on its way."""
SFT_BYTES = 16
SAVED_BYTES = {"model": 4, "optimizer": 8, "hf_model": 4}
"""Bytes that a checkpoint holds for each parameter, by what `save_contents` names."""
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that this process and its children may use, in bytes.

    Attributes:
        total: of the machine, or what its container allows.
        free: of that, now.
        limited: whether a container's limit counts.
    """

    total: int
    free: int
    limited: bool = False


def memory(meminfo: str, limit: str = "", used: str = "") -> Memory | None:
    """What three files say; None if the first says nothing.

    Args:
        meminfo: text of `/proc/meminfo`.
        limit: bytes that a container allows; "max" or "" where it does not say.
        used: bytes that the container has in use, "" if unknown.
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


def read_memory() -> Memory | None:
    """The memory of this machine, or of the container that it is."""
    limit, used = next(((a, b) for a, b in CGROUPS if Path(a).is_file()), ("", ""))
    return memory(read_text("/proc/meminfo"), read_text(limit), read_text(used))


def memory_needed(count: int | None, measured_gb: float, bytes_each: int, bare_gb: float | None = None) -> float:
    """GB of memory that training on the CPU takes.

    Args:
        count: parameters of the model, None if unknown.
        measured_gb: what a model of 135M parameters takes.
        bytes_each: for each parameter beyond these.
        bare_gb: what the smallest model takes; None: as much.
    """
    if count is None:
        return measured_gb
    below = measured_gb if bare_gb is None else bare_gb
    return (
        below
        + (measured_gb - below) * min(1.0, count / MEASURED_PARAMETERS)
        + max(0.0, count - MEASURED_PARAMETERS) * bytes_each / 1e9
    )


def disk_needed(count: int | None, saved: list[str], kept: int | None) -> float:
    """GB that the checkpoints of a run take; the next one is written before the oldest goes.

    Args:
        count: parameters of all models that are saved, None if unknown: then those of the smallest model.
        saved: what a checkpoint holds, as `save_contents` names it.
        kept: checkpoints that stay, None for all: then two are counted.
    """
    each = sum(SAVED_BYTES.get(name, 0) for name in saved)
    return (count or MEASURED_PARAMETERS) * each * ((kept or 1) + 1) / 1e9


def require_memory(found: Memory | None, needed_gb: float) -> None:
    """Refuse to begin what cannot end.

    Raises:
        ConfigError: less is free than is needed.
    """
    if found is None or found.free >= needed_gb * 1e9:
        return
    owner = "this container" if found.limited else "this machine"
    raise ConfigError(
        f"{found.free / 1e9:.1f} of {found.total / 1e9:.1f} GB of memory of {owner} are free, training this model "
        f"on the CPU takes {needed_gb:.0f} GB. Close other programs, choose a smaller model, or take a larger machine."
    )


def require_disk(free_bytes: int, needed_gb: float, folder: Path) -> None:
    """Refuse a run whose checkpoints do not fit.

    Raises:
        ConfigError: less is free than is needed.
    """
    if free_bytes < needed_gb * 1e9:
        raise ConfigError(
            f"{free_bytes / 1e9:.1f} GB are free below {folder}, its checkpoints take {needed_gb:.1f} GB. Make room, "
            "choose another trainer.default_local_dir, or save less (trainer.max_actor_ckpt_to_keep, save_contents)."
        )


def read_text(path: str) -> str:
    """The text of a file, "" where there is none."""
    file = Path(path)
    return file.read_text() if path and file.is_file() else ""


def cache_dir() -> Path:
    """Where prepared models and data are kept: `$VERL_AGENT_CACHE`, or a folder in the user's cache."""
    chosen = os.environ.get("VERL_AGENT_CACHE")
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(chosen) if chosen else root / "verl_agent"
