"""Folder in which prepared models and data are kept between runs."""

import os
from pathlib import Path

from verl_agent.errors import ConfigError


def cache_dir() -> Path:
    """Return `$VERL_AGENT_CACHE`, or a folder in the user's cache.

    Raises:
        ConfigError: no variable names the folder, and the user has no home.
    """
    if chosen := os.environ.get("VERL_AGENT_CACHE"):
        return Path(chosen)
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else home("VERL_AGENT_CACHE") / ".cache") / "verl_agent"


def home(variable: str) -> Path:
    """Return the home of the user, who may have none in a container.

    Args:
        variable: environment variable that names the wanted folder instead, for the message.

    Raises:
        ConfigError: the user has no home.
    """
    try:
        return Path.home()
    except (RuntimeError, KeyError) as error:
        raise ConfigError(f"user uid {os.getuid()} has no home folder. Set {variable} or HOME to a folder.") from error
