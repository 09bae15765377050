"""Search for a Chromium on this machine that runs without a display."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from verl_agent.envs.base import Requirement
from verl_agent.errors import ConfigError

COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
"""Names of the command, the preferred one first: a session in a headless shell takes half the memory."""
OVERRIDE = "CHROMIUM"
"""Environment variable that names the command to use instead."""
GET_CHROMIUM = "apt-get install chromium-headless-shell"
GET_WITHOUT_ROOT = "playwright install chromium-headless-shell"
PLAYWRIGHT_PATTERNS = ("chromium_headless_shell-*/chrome-*/*headless*shell", "chromium-*/chrome-*/chrome")
"""Paths of the browsers that Playwright downloads, below its own folder."""


def installed_chromiums() -> list[str]:
    """Return the commands that start a Chromium, the preferred one first.

    The list is empty if the command that `CHROMIUM` names does not exist.
    """
    named = [os.environ[OVERRIDE]] if os.environ.get(OVERRIDE) else []
    if named and not shutil.which(named[0]):
        return []
    on_path = [path for name in (*named, *COMMANDS) if (path := shutil.which(name))]
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    downloaded = [str(path) for pattern in PLAYWRIGHT_PATTERNS for path in sorted(folder.glob(pattern), reverse=True)]
    return on_path + [path for path in downloaded if os.access(path, os.X_OK)]


def find_chromium() -> str:
    """Return the command of the preferred Chromium."""
    named = os.environ.get(OVERRIDE)
    if named and not shutil.which(named):
        raise ConfigError(
            f"the environment variable {OVERRIDE}={named!r} is not an executable command. "
            "Set it to the command of a Chromium, or unset it to use an installed one."
        )
    installed = installed_chromiums()
    if not installed:
        raise ConfigError(
            f"no Chromium was found: neither {', '.join(COMMANDS)} nor one of Playwright's own. "
            f"Install it: {GET_CHROMIUM}; or without root: {GET_WITHOUT_ROOT}. "
            f"To use one in another place, set the environment variable {OVERRIDE} to its command."
        )
    return installed[0]


def chromium_requirement(installed: Sequence[str] | None = None) -> Requirement:
    """Return the requirement of a browser."""
    commands = installed_chromiums() if installed is None else installed
    install = f"{GET_CHROMIUM}, or {GET_WITHOUT_ROOT}"
    return Requirement("Chromium", bool(commands), install, commands[0] if commands else "the browser")
