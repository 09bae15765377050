"""Reward of a test of MCP servers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def score(task: Mapping[str, Any], folder: Path, answer: str) -> float:
    """Return a tenth for each character that is stored, and a quarter for the prompt as answer."""
    return len((folder / "stored").read_text()) / 10 + (0.25 if answer == task["prompt"] else 0.0)
