"""Find a Chromium on this machine that can be driven without a display, or say how to get one."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from verl_agent.errors import ConfigError

COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
"""Names of the command, the lightest first: a session in a headless shell takes half the memory."""
OVERRIDE = "CHROMIUM"
"""Environment variable that names the command to use instead."""
GET_CHROMIUM = "apt-get install chromium-headless-shell"
GET_WITHOUT_ROOT = "playwright install chromium-headless-shell"
PLAYWRIGHT_PATTERNS = ("chromium_headless_shell-*/chrome-*/*headless*shell", "chromium-*/chrome-*/chrome")
"""Where Playwright keeps those that it downloads, below its own folder."""


def installed_chromiums() -> list[str]:
    """Commands of this machine that start a Chromium, the preferred one first; none if the one that is named is not."""
    named = [os.environ[OVERRIDE]] if os.environ.get(OVERRIDE) else []
    if named and not shutil.which(named[0]):
        return []
    found = [path for name in (*named, *COMMANDS) if (path := shutil.which(name))]
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    downloaded = [str(path) for pattern in PLAYWRIGHT_PATTERNS for path in sorted(folder.glob(pattern), reverse=True)]
    return found + [path for path in downloaded if os.access(path, os.X_OK)]


def find_chromium(candidates: Iterable[str] | None = None) -> str:
    """The command of the preferred Chromium.

    Args:
        candidates: commands to choose from; None for those of `installed_chromiums()`.

    Raises:
        ConfigError: there is none, with the command that installs one, or the one that is named is not there.
    """
    named = os.environ.get(OVERRIDE)
    if candidates is None and named and not shutil.which(named):
        raise ConfigError(
            f"the environment variable {OVERRIDE}={named!r} names no command that can be run. "
            "Name a Chromium, or unset it to use one that is installed."
        )
    found = list(installed_chromiums() if candidates is None else candidates)
    if not found:
        raise ConfigError(
            f"no Chromium was found: neither {', '.join(COMMANDS)} nor one of Playwright's own. "
            f"Install it: {GET_CHROMIUM}; or without root: {GET_WITHOUT_ROOT}. "
            f"One that lies elsewhere is named by the environment variable {OVERRIDE}."
        )
    return found[0]
