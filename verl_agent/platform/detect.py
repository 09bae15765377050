"""Whether this process shall use the CPU as its device."""

import os
from pathlib import Path

ACCELERATOR_NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/davinci0", "/dev/dxg")
"""Device files of NVIDIA, AMD, Ascend and WSL accelerators; visible to processes that Ray gave no accelerator too."""


def accelerator_present(nodes: tuple[str, ...] = ACCELERATOR_NODES) -> bool:
    """Whether the machine has an accelerator that verl knows."""
    return any(Path(node).exists() for node in nodes)


def use_cpu_device() -> bool:
    """Whether verl runs on the CPU device here.

    `VERL_PLATFORM`, verl's own variable, decides if it is set: `cpu` forces the CPU device, any other
    name leaves verl alone. Otherwise the CPU device is used where no accelerator is present.
    """
    chosen = os.environ.get("VERL_PLATFORM", "").strip().lower()
    return chosen == "cpu" if chosen else not accelerator_present()
