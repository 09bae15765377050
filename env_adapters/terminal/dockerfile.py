"""Dockerfile of a task in Harbor's format, as far as a sandbox without an image of its own can follow it."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

PLAIN = re.compile(r"(?:debian|ubuntu|python|buildpack-deps|bash)(?::[\w.-]+)?(?: AS \w+)?", re.IGNORECASE)
"""Base images whose programs the system of the host has as well, apart from versions."""
VARIABLE = re.compile(r"""(\w+)=(["']?)([^\s"'$\\]+)\2""")
"""Argument of ENV that needs no other variable."""
SYSTEM = frozenset(
    ("usr", "bin", "sbin", "lib", "lib64", "etc", "proc", "dev", "sys", "run", "tests", "logs", "tmp", "solution")
)
FOLDER = re.compile(r"(?:/(?!\.\.?(?:/|$))[\w.+@-]+)+", re.ASCII)
"""Absolute path without spaces, variables and parts such as `..`."""
WORKDIR = "/app"
"""Working folder of a Dockerfile that names none."""
MAX_FILES = 200


def is_folder(path: str) -> bool:
    """Return True if a path can be the working folder of a sandbox."""
    return len(path) <= 200 and FOLDER.fullmatch(path) is not None and path.split("/")[1] not in SYSTEM


def read_dockerfile(lines: Sequence[str], environment: Path) -> tuple[str, dict[str, str], dict[str, Path], list[str]]:
    """Return working folder, variables, copied files, and what a plain base image does not provide."""
    folders: list[str] = []
    environ: dict[str, str] = {}
    copying: list[tuple[str, str, str, str]] = []
    missing = [f"environment/{path.name}" for path in environment.glob("docker-compose*")]
    for line in map(str.strip, lines):
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word.upper() == "WORKDIR" and is_folder(rest):
            folders.append(rest)
        elif word.upper() == "ENV" and (variable := VARIABLE.fullmatch(rest)):
            environ[variable[1]] = variable[3]
        elif word.upper() in ("COPY", "ADD") and len(parts := rest.split()) == 2 and not rest.startswith("--"):
            copying.append((line, parts[0], parts[1], folders[-1] if folders else ""))
        elif not (
            line.startswith("#")
            or word.upper() in ("", "LABEL", "CMD")
            or (word.upper() == "FROM" and PLAIN.fullmatch(rest))
        ):
            missing.append(f"`{line[:80]}`")
    workdir = folders[-1] if folders else WORKDIR
    copies: dict[str, Path] = {}
    for line, source, target, folder in copying:
        found = copied(environment, source, target, folder or ("/" if folders else workdir), workdir)
        copies |= found or {}
        missing += [] if found is not None else [f"`{line[:80]}`"]
    return workdir, environ, copies, missing


def copied(environment: Path, source: str, target: str, folder: str, workdir: str) -> dict[str, Path] | None:
    """Return the files that a line COPY puts below the working folder, by name, or None if it does something else.

    Args:
        folder: working folder at the line, from which the target counts.
        workdir: working folder in the end.
    """
    path, to = (environment / source.lstrip("/")).resolve(), PurePosixPath(folder, target)
    if (
        not path.is_relative_to(environment.resolve())
        or not path.exists()
        or ".." in to.parts
        or not to.is_relative_to(workdir)
    ):
        return None
    if path.is_file():
        into = re.search(r"(^|/)\.?$", target) or str(to) in (folder, workdir)
        return {str((to / path.name if into else to).relative_to(workdir)): path}
    files = [one for one in sorted(path.rglob("*")) if one.is_file() and not one.is_symlink()]
    names = {str((to / one.relative_to(path)).relative_to(workdir)): one for one in files if one.name != "Dockerfile"}
    return names if len(names) <= MAX_FILES and not any(".." in name for name in names) else None
