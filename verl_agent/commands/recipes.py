"""Commands `verl-agent recipes list` and `copy`: the recipes that come with the package."""

import re
import shutil
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line
from verl_agent.errors import MAX_MESSAGE_CHARS, ConfigError, did_you_mean
from verl_agent.system.resources import make_folder

PARTS = ("env", "limits")
"""Beginnings of the names of files that recipes include."""
COMMANDS = {
    "study run": r"^question:",
    "suite": r"^evaluations:",
    **{name: rf"\bagent_{name}\b" for name in ("sft", "dpo", "evolve", "eval")},
}
"""Patterns in the recipes of each command; all others are recipes of `train`."""
recipes = typer.Typer(help="List the recipes of this package, or copy them to edit.", no_args_is_help=True)


def recipes_folder() -> Path:
    """Return the folder of the recipes: inside of an installed package, beside that of a clone."""
    package = Path(str(files("verl_agent")))
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def copy_recipes(names: list[str], into: Path) -> list[Path]:
    """Copy folders of recipes to `into`/recipes, where commands and paths inside of recipes find them.

    Args:
        names: folders, each of one environment; empty for all recipes.
        into: folder in which the commands will be run.

    Returns:
        The new folders.

    Raises:
        ConfigError: a folder of recipes does not exist, or has a copy already; or `into` cannot be written.
    """
    source = recipes_folder()
    known = sorted(path.name for path in source.iterdir() if path.is_dir())
    for name in names:
        if name not in known:
            raise ConfigError(f"{name!r} is no folder of recipes. {did_you_mean(name, known)}")
    targets = {source / name: into / "recipes" / name for name in names} or {source: into / "recipes"}
    for target in targets.values():
        if target.exists() and target.resolve().is_relative_to(source.resolve()):
            raise ConfigError(f"{target} is the original, which you may edit. To copy it, give a folder with --into.")
        if target.exists():
            raise ConfigError(f"{target} exists already. Move it away, or copy into another folder with --into.")
    make_folder(into, "--into")
    for folder, target in targets.items():
        shutil.copytree(folder, target)
    return list(targets.values())


def copy_hint(recipe: Path) -> str:
    """Return the sentence that says how to get a recipe which only the package has; empty for any other file."""
    first, *inside = recipe.parts
    if first != "recipes" or not recipes_folder().joinpath(*inside).is_file():
        return ""
    name = "" if len(inside) == 1 else f" {inside[0]}"
    return f"It comes with the package: `verl-agent recipes copy{name}` writes it into this folder."


def check_recipe(recipe: Path) -> None:
    """Check that a recipe is a file.

    Raises:
        ConfigError: it is a folder, an option, of another suffix than `.yaml`, or does not exist.
    """
    if str(recipe).startswith("-"):
        raise ConfigError(
            f"{str(recipe)!r} is an option; only the scripts recipes/*/train.sh begin with one. This command takes the "
            "file of a recipe, and then KEY=VALUE: verl-agent train recipes/guess_number/grpo_cpu.yaml data.seed=1."
        )
    if recipe.is_dir():
        names = sorted(path.name for path in recipe.glob("*.yaml") if not path.name.startswith(PARTS))
        raise ConfigError(
            f"recipe {str(recipe)!r} is a folder. Choose one of its recipes: {', '.join(names) or 'none'}."
        )
    if not recipe.is_file():
        from verl_agent.config.explanation import find_overlay

        known = [str(path) for path in Path("recipes").rglob("*.yaml") if not path.name.startswith(PARTS)]
        hint = find_overlay(recipe.stem) or copy_hint(recipe) or did_you_mean(str(recipe), known, MAX_MESSAGE_CHARS)
        raise ConfigError(f"recipe {str(recipe)!r} does not exist. {hint}")
    if (file := recipe.resolve()).suffix != ".yaml":
        raise ConfigError(f"recipe {str(file)!r} is not allowed. Allowed: a file *.yaml. Rename it.")


def first_lines(recipe: Path) -> tuple[str, str]:
    """Return purpose and requirements of a recipe, which its first lines state; the purpose ends before a command."""
    comment = takewhile(lambda line: line.startswith("#"), recipe.read_text(encoding="utf-8").splitlines())
    purpose, _, needs = " ".join(line.strip("# ") for line in comment).partition("Needs: ")
    return purpose.partition(" verl-agent ")[0].strip(), needs


def command_of(recipe: Path) -> str:
    """Return the command that runs a recipe, with its arguments before the recipe."""
    keys = recipe.read_text(encoding="utf-8")
    for command, pattern in COMMANDS.items():
        if re.search(pattern, keys, re.MULTILINE):
            return command
    included = re.search(r"^defaults:\s*(?:\n\s*- |\[)(\w+)", keys, re.MULTILINE)
    base = recipe.with_name(f"{included[1]}.yaml") if included else recipe
    return command_of(base) if base != recipe and base.is_file() else "train"


@recipes.command("list")
def list_recipes(
    env: Annotated[str | None, typer.Argument(help="Only the recipes of this folder.", show_default=False)] = None,
) -> None:
    """List the recipes that come with the package, each with the command that runs it and its purpose."""
    folder = recipes_folder()
    found = sorted(folder.glob(f"{env or '**'}/*.yaml"))
    if not found:
        known = [path.name for path in folder.iterdir() if path.is_dir()]
        fail(f"{env!r} is no folder of recipes. {did_you_mean(str(env), known)}")
    for path in found:
        if not path.name.startswith(PARTS):
            purpose, _ = first_lines(path)
            print_line(f"{command_of(path):<10} {f'recipes/{path.relative_to(folder)}':<45} {purpose}")
    print_line("Run one by `verl-agent COMMAND RECIPE`, such as verl-agent train recipes/guess_number/grpo_cpu.yaml")


@recipes.command()
def copy(
    env: Annotated[
        list[str] | None, typer.Argument(help="Folders to copy. Default: all, and suites.", show_default=False)
    ] = None,
    into: Annotated[Path, typer.Option(help="Folder that gets recipes/.")] = Path(),
) -> None:
    """Copy recipes into recipes/ of a folder, to edit them and to run them there."""
    for folder in copy_recipes(env or [], into):
        print_line(f"wrote {folder}")
