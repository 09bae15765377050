"""Tests of the library, its environments and this repository."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Root directory of the repository."""
