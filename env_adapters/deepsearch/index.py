"""Interface of indexes that retrievers search."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from env_adapters.deepsearch.corpus import Passage
from verl_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hit:
    """Passage of a search result.

    Attributes:
        score: relevance, higher is better; comparable within one search only.
    """

    passage: Passage
    score: float


class PassageIndex(Protocol):
    """Index that can be searched by several threads at once."""

    def __len__(self) -> int: ...

    def search(self, query: str, count: int) -> list[Hit]:
        """Return the `count` most relevant passages, the best first; fewer if fewer match."""
        ...


def import_library(module: str, package: str = "") -> Any:
    """Import a module of an optional package.

    Args:
        package: package that pip installs; "" for the extra `deepsearch`.

    Raises:
        ConfigError: the package is not installed; the message has the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        install = package or "'verl-agent[deepsearch]'"
        raise ConfigError(f"Deep Search needs the library {module} for this: pip install {install}. {error}") from error
