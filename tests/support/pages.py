"""Code blocks and commands of the pages, and a check of commands against the programs that they call."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from tests import ROOT
from tests.support.composing import kind, recipe
from verl_agent.commands.cli import RECIPE_COMMANDS, app
from verl_agent.config.checks import check_keys

BLOCK = re.compile(r"^(?:<!-- (not run: .+?) -->\n)?```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`((?:verl-agent|make|python|pytest|bash) [^`\n]+)`")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
EXTRAS = set(re.findall(r'^        "([a-z0-9_]+)": \[', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE))
OTHERS = {"sbatch", "kubectl", "sky", "source", "export", "cd", "apt-get", "ray", "tensorboard", "vllm", "torchrun"}
OTHERS |= {"playwright", "pip", "requirements/lock.sh"}
"""Programs whose arguments are not checked."""
TEMPLATES = ROOT / "verl_agent" / "commands" / "templates" / "environment"
RECIPES = {name for name, *_ in RECIPE_COMMANDS}


@dataclass(frozen=True)
class Block:
    """Code block of a page.

    Attributes:
        page: path of the page, relative to the repository.
        language: word after the opening fence.
        text: lines between the fences.
        not_run: reason for which it is not run, from the comment above it; empty without one.
    """

    page: str
    language: str
    text: str
    not_run: str

    def __str__(self) -> str:
        return f"{self.page}:{self.text.strip().splitlines()[0][:40]}"


def blocks(pages: list[Path], *languages: str) -> list[Block]:
    """Return the code blocks of the pages in these languages."""
    return [
        Block(str(page.relative_to(ROOT)), language, text, reason)
        for page in pages
        for reason, language, text in BLOCK.findall(page.read_text(encoding="utf-8"))
        if language in languages
    ]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block, without variables before it and comments after it."""
    for line in re.sub(r"\$\([^)]*\)", "x", text.replace("\\\n", " ")).splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words:
            yield words


def fault(words: list[str]) -> str | None:
    """Return what is wrong with a command, None for nothing."""
    program, *rest = words
    if program == "verl-agent":
        return _of_verl_agent(rest)
    if program == "make":
        unknown = [word for word in rest if "=" not in word and word not in TARGETS]
        return f"make has no target {unknown}" if unknown else None
    if program in ("python", "pytest", "bash"):
        return _of_file(program, rest)
    if program == "pip":
        extras = {
            extra
            for word in rest
            for found in re.findall(r"^(?:verl-agent|\.)\[(.+)\]$", word)
            for extra in found.split(",")
        }
        return f"setup.py has no extra {extras - EXTRAS}" if extras - EXTRAS else None
    return None if program in OTHERS else f"{program!r} is not a known program"


def _of_file(program: str, rest: list[str]) -> str | None:
    if program == "python" and rest[:1] == ["-m"]:
        place = ROOT / rest[1].replace(".", "/")
        exists = (
            place.is_dir()
            or place.with_suffix(".py").is_file()
            or not rest[1].startswith(("tests", "env_adapters", "verl_agent"))
        )
        return None if exists else f"there is no module {rest[1]}"
    for path in (word for word in rest if "/" in word and not word.startswith("-") and "=" not in word):
        if not path.startswith(("runs/", "http")) and not (ROOT / path).exists():
            return f"there is no file {path}"
    script = next((word for word in rest if word.endswith((".sh"))), "")
    if program == "bash" and script.startswith("recipes/"):
        values = rest[rest.index(script) + 1 :]
        name = "grpo" if script.endswith("train.sh") else "eval"
        if values[:1] == ["--config-name"]:
            name, values = values[1], values[2:]
        return _of_recipe(ROOT / Path(script).parent / f"{name}.yaml", values)
    return None


def _of_verl_agent(rest: list[str]) -> str | None:
    command = typer.main.get_command(app).commands.get(rest[0])  # type: ignore[attr-defined]
    if command is None:
        return f"verl-agent has no command {rest[0]!r}"
    if rest[0] in RECIPES:
        return _of_recipe(ROOT / rest[1], rest[2:]) if rest[1].startswith(("recipes/", "examples/")) else None
    try:
        command.make_context(rest[0], rest[1:])
    except Exception as error:  # typer brings a click of its own, whose errors have no public name
        return getattr(error, "format_message", error.__str__)()
    return None


def _of_recipe(path: Path, values: list[str]) -> str | None:
    """Return what is wrong with a recipe and the settings after it."""
    if path.parent == ROOT / "recipes" and (TEMPLATES / f"{path.name}.txt").is_file():
        return None  # of a package that `verl-agent new-env` wrote
    if not path.is_file():
        return f"there is no recipe {path.relative_to(ROOT)}"
    if path.parent.name == "recipes" and path.parents[1].name in ("questions",):
        return None  # built on packages outside of this repository
    if "--explain" in values:
        return None
    overrides = [value for value in values if not value.startswith("-") and value != "job"]
    try:
        check_keys(recipe(path, *overrides), kind(path))
    except Exception as error:  # whatever Hydra raises, the page is wrong
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def toml_fault(text: str) -> str | None:
    """Return what is wrong with a TOML block, None for nothing."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return str(error)
    return None
