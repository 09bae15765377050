"""Folder in which prepared models and data are kept between runs."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return `$VERL_AGENT_CACHE`, or a folder in the user's cache."""
    chosen = os.environ.get("VERL_AGENT_CACHE")
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(chosen) if chosen else root / "verl_agent"
