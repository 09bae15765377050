"""NVIDIA GPUs of this machine: their number and memory, the driver, and the CUDA toolkit.

Functions take readings as arguments, so tests can pass those of another machine; `read_gpus` reads this one.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from verl_agent.system.resources import read_text

DRIVER_OF_CUDA = {12: 525, 13: 580}
"""Oldest major version of the driver for each major version of CUDA (CUDA Toolkit release notes, table 3)."""
PROBE_TIMEOUT_S = 60.0
"""Seconds that a program may take to answer; `nvidia-smi` may take 3 for each GPU if persistence mode is off."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """NVIDIA GPUs of a machine.

    Attributes:
        names: model of each GPU that this process may use.
        memory_mib: memory of the first GPU in MiB; None if it shares the memory of the machine.
        driver: version of the driver; "" if unknown.
        torch_cuda: CUDA version that torch was built for; "" for a CPU build or without torch.
        toolkit: version of the CUDA toolkit (`nvcc`); "" if it is not installed.
        capability: compute capability of the first GPU, such as (9, 0); None if unknown.
    """

    names: tuple[str, ...] = ()
    memory_mib: int | None = None
    driver: str = ""
    torch_cuda: str = ""
    toolkit: str = ""
    capability: tuple[int, int] | None = None

    @property
    def oldest_driver(self) -> int | None:
        """Major version of the oldest driver that the installed torch runs on, if the driver is older; else None."""
        oldest = DRIVER_OF_CUDA.get(int(self.torch_cuda.split(".")[0] or 0)) if self.torch_cuda else None
        major = re.match(r"\d+", self.driver)
        return oldest if oldest and major and int(major[0]) < oldest else None


def parse_gpus(nvidia_smi: str, visible: str | None = None, torch_cuda: str = "", nvcc: str = "") -> Gpus:
    """Return the GPUs that the output of programs describes.

    Args:
        nvidia_smi: lines `name, memory in MiB, driver, compute capability` of `nvidia-smi`; "" without a GPU.
        visible: `CUDA_VISIBLE_DEVICES`; None if it is not set.
        torch_cuda: see `Gpus`.
        nvcc: output of `nvcc --version`; "" if it is not installed.
    """
    found = re.findall(r"^(.+), *(\d+|\[N/A\]), *([\d.]+)(?:, *(\d+)\.(\d+))?$", nvidia_smi, re.MULTILINE)
    if visible is not None:
        found = found[: len([one for one in visible.split(",") if one.strip() and one.strip() != "-1"])]
    release = re.search(r"release ([\d.]+)", nvcc)
    memory = next((int(size) for _, size, *_ in found[:1] if size.isdigit()), None)
    driver = found[0][2] if found else ""
    names, toolkit = tuple(name for name, *_ in found), release[1] if release else ""
    capability = (int(found[0][3]), int(found[0][4])) if found and found[0][3] else None
    return Gpus(names, memory, driver, torch_cuda, toolkit, capability)


def read_gpus() -> Gpus:
    """Return the GPUs of this machine; takes some seconds on a machine with eight."""
    query = "--query-gpu=name,memory.total,driver_version,compute_cap"
    nvidia_smi = output_of("nvidia-smi", query, "--format=csv,noheader,nounits")
    return parse_gpus(
        nvidia_smi, os.environ.get("CUDA_VISIBLE_DEVICES"), torch_cuda(), output_of(nvcc_path(), "--version")
    )


def output_of(*command: str) -> str:
    """Return the output of a program; "" if it does not exist, fails or hangs."""
    try:
        reply = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return reply.stdout + reply.stderr


def nvcc_path() -> str:
    """Return the path of the CUDA compiler, which is often not in PATH."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") or f"{home}/bin/nvcc"


def torch_cuda() -> str:
    """Return the CUDA version that torch was built for, from its version file, because importing it takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    version = read_text(str(Path(spec.origin).with_name("version.py")))
    line = re.search(r"^cuda\b.*=\s*'([\d.]+)'", version, re.MULTILINE)
    return line[1] if line else ""
