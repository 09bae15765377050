"""Harnesses: agents of others as data, with the command, the variables and the files that start them for a task."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
import yaml

from verl_agent.envs.machine.proxies import LOOPBACK, child_environment
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.values import read_plain_yaml, read_text

FOLDER = Path(__file__).with_name("harnesses")
INSTALLED = (Path(".harnesses"), Path(__file__).parents[3] / ".harnesses")
"""Folders of `make setup-harnesses`: that of the current folder, and that of the clone."""
PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Variables that every program gets from the run."""
KEYS = ("name", "program", "arguments", "prompt")
_TEXTS = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
_TEXTS.filters |= {"json": partial(json.dumps, ensure_ascii=False), "python": repr}


@dataclass(frozen=True)
class Harness:
    """Agent of others. Texts are Jinja templates of `instruction`, `prompt`, `url`, `key`, `home` and `data`.

    Attributes:
        command: program and arguments. The program is searched in the folder of `make setup-harnesses` and in PATH.
        install: command that installs it.
        variables: environment variables.
        files: texts to write, by path below the home folder. `from: NAME` takes a file beside the harness.
        prompt: text for the agent, which has the task's.
        acts: reply that runs `command` in the agent's shell, for the oracle.
        ends: reply after which the agent ends.
        statuses: exit statuses with which an episode is judged; with others the reward is 0.
        folder: folder of the harness.
    """

    command: Sequence[str]
    install: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = "{{ instruction }}"
    acts: str = ""
    ends: str = "Done."
    statuses: Sequence[int] = (0,)
    folder: Path = FOLDER

    def render(self, **values: Any) -> tuple[list[str], dict[str, str], dict[str, str]]:
        """Return command, variables and files for one task."""
        known = {**values, "prompt": _rendered(self.prompt, values)}
        return (
            [_rendered(part, known) for part in self.command],
            {name: _rendered(text, known) for name, text in self.variables.items()},
            {
                name: _rendered(text, known) if isinstance(text, str) else _text_of(self.folder / text["from"])
                for name, text in self.files.items()
            },
        )

    def act(self, command: str) -> str:
        """Return the reply that runs a command in the agent's shell."""
        return _rendered(self.acts, {"command": command})


def _rendered(text: str, values: Mapping[str, Any]) -> str:
    try:
        return _TEXTS.from_string(text).render(values)
    except jinja2.TemplateError as error:
        raise ConfigError(f"env.options.harness: the text {text[:200]!r} cannot be filled in: {error}.") from error


@cache
def _text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def harness_names() -> list[str]:
    """Return the names of the harnesses of this package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def _read(name: str) -> Harness:
    path = FOLDER / f"{name}.yaml" if name in harness_names() else Path(name)
    if not path.is_file():
        raise ConfigError(
            f"env.options.harness={name!r} is neither a harness nor a YAML file. {did_you_mean(name, harness_names())}"
        )
    try:
        values = read_plain_yaml(path)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}. Check brackets and indentation.") from error
    known = [one.name for one in fields(Harness) if one.name != "folder"]
    if not isinstance(values, dict) or "command" not in values or set(values) - set(known):
        raise ConfigError(f"{path} is no harness. It has a command; allowed: {', '.join(known)}.")
    return Harness(**values, folder=path.resolve().parent)


def read_harness(chosen: str | Mapping[str, Any]) -> Harness:
    """Return the harness of `env.options.harness`: a name or a YAML file, or an object with more.

    Its keys are `name`; `program`, the path of the executable; `arguments`, which are added to the command; and
    `prompt`, a file with the text for the agent.

    Raises:
        ConfigError: it is unknown or not installed.
    """
    options = {"name": chosen} if isinstance(chosen, str) else dict(chosen)
    if unknown := [key for key in options if key not in KEYS]:
        raise ConfigError(f"env.options.harness.{unknown[0]} is not a key. {did_you_mean(str(unknown[0]), KEYS)}")
    name = str(options.get("name", ""))
    harness = _read(name)
    program = str(options.get("program") or harness.command[0])
    places = [installed / name / folder for installed in INSTALLED for folder in ("bin", "node_modules/.bin")]
    found = shutil.which(program, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise ConfigError(
            f"env.options.harness={name!r}: {program!r} is not installed. Install it ({harness.install}), or set "
            "env.options.harness.program to its path."
        )
    if options.get("prompt"):
        if not Path(options["prompt"]).is_file():
            raise ConfigError(f"env.options.harness.prompt={options['prompt']!r} is not a file.")
        harness = replace(harness, prompt=read_text(Path(options["prompt"])).rstrip("\n"))
    arguments = [str(part) for part in options.get("arguments") or ()]
    return replace(harness, command=[os.path.abspath(found), *harness.command[1:], *arguments])


def absolute_command(command: Sequence[str], key: str) -> list[str]:
    """Return a command with absolute paths of its program and of its files in the current folder.

    Args:
        key: config key of the command, for the message.

    Raises:
        ConfigError: the program is not on this machine.
    """
    program, here = shutil.which(command[0]), Path.cwd()
    if program is None:
        raise ConfigError(f"{key}: {command[0]!r} is not a program on this machine.")
    return [str(here / program), *(str(here / part) if (here / part).is_file() else part for part in command[1:])]


def clean_environment(home: str, listed: Sequence[str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: `PASSED`, the variables of `env.options.environment`, and its own.

    Args:
        home: home folder, unless HOME is listed.
        listed: `NAME` for the value that the run has, or `NAME=value`.
        own: variables of the episode.
    """
    found = {"HOME": home, **{name: os.environ[name] for name in PASSED if name in os.environ}}
    for entry in listed:
        name, given, value = entry.partition("=")
        found |= {one: os.environ[one] for one in (name, name.lower()) if not given and one in os.environ}
        found |= {name: value} if given else {}
    found = child_environment(found)
    loopback = ",".join(LOOPBACK)
    return {"NO_PROXY": loopback, "no_proxy": loopback, **found, **own}


def check_environment(listed: Sequence[str], own: Sequence[str]) -> list[str]:
    """Return `env.options.environment`.

    Raises:
        ConfigError: an entry has no name, one is not set, or one is set by each episode.
    """
    if not all(entry.split("=")[0] for entry in listed):
        raise ConfigError(f"env.options.environment={listed!r} is not allowed. Allowed: a list of NAME or NAME=value.")
    for entry in listed:
        name, given, _ = entry.partition("=")
        if name in own:
            raise ConfigError(f"env.options.environment: each episode has its own {name}. Remove it.")
        if not given and not {name, name.lower()} & set(os.environ):
            raise ConfigError(f"env.options.environment: {name} is not set here. Set it, or write {name}=value.")
    return list(listed)
