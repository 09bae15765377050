"""Decision between the CPU device and an accelerator."""

import os
from pathlib import Path

ACCELERATOR_NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/davinci0", "/dev/dxg")
"""Device files of NVIDIA, AMD, Ascend and WSL accelerators. A process sees them even if Ray assigned it no device."""


def accelerator_present(nodes: tuple[str, ...] = ACCELERATOR_NODES) -> bool:
    """Return True if the machine has an accelerator that verl supports."""
    return any(Path(node).exists() for node in nodes)


def use_cpu_device() -> bool:
    """Return True if verl uses the CPU device in this process.

    verl's own variable `VERL_PLATFORM` decides if it is set: `cpu` selects the CPU device, any other value leaves the
    choice to verl. Otherwise the CPU device is used if the machine has no accelerator.
    """
    platform = os.environ.get("VERL_PLATFORM", "").strip().lower()
    return platform == "cpu" if platform else not accelerator_present()
