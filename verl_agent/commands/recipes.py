"""Commands `verl-agent recipes list` and `copy`: the recipes that come with the package."""

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line
from verl_agent.errors import ConfigError, did_you_mean

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
        ConfigError: a folder of recipes does not exist, or has a copy already.
    """
    source = recipes_folder()
    known = sorted(path.name for path in source.iterdir() if path.is_dir())
    for name in names:
        if name not in known:
            raise ConfigError(f"{name!r} is no folder of recipes. {did_you_mean(name, known)}")
    targets = {source / name: into / "recipes" / name for name in names} or {source: into / "recipes"}
    for target in targets.values():
        if target.exists():
            raise ConfigError(f"{target} exists already. Move it away, or copy into another folder with --into.")
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


@recipes.command("list")
def list_recipes(
    env: Annotated[str | None, typer.Argument(help="Only the recipes of this folder.", show_default=False)] = None,
) -> None:
    """List the recipes that come with the package, each with its purpose."""
    folder = recipes_folder()
    found = sorted(folder.glob(f"{env or '**'}/*.yaml"))
    if not found:
        known = [path.name for path in folder.iterdir() if path.is_dir()]
        fail(f"{env!r} is no folder of recipes. {did_you_mean(str(env), known)}")
    for path in found:
        if not path.name.startswith(("env", "limits")):
            purpose = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
            print_line(f"{f'recipes/{path.relative_to(folder)}':<45} {purpose}")


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
