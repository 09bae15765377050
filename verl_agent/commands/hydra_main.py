"""Start an entry point through Hydra, and answer a command line that does not compose in our own words."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.markup import escape

import verl_agent.config
from verl_agent.config.keys import FREE
from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError, did_you_mean


def launch(main: Callable[[], None]) -> None:
    """Run what `@hydra.main` made; ends the process with 2 if the recipe and its overrides do not compose."""
    register_config()
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises what it would print
    try:
        check_overlays(sys.argv)
        main()
    except (HydraException, ConfigError) as error:
        said = explain(error, sys.argv) if isinstance(error, HydraException) else str(error)
        Console(stderr=True).print(f"[red]error:[/] {escape(said)}", highlight=False, soft_wrap=True)
        sys.exit(2)


def check_overlays(arguments: Sequence[str]) -> None:
    """Every group of overlays on a command line exists: Hydra takes one that does not for a new key.

    Raises:
        ConfigError: it does not.
    """
    places = [Path(verl_agent.config.__file__).parent]
    for place, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            places += map(Path, [value] if value else arguments[place + 1 : place + 2])
    groups = {f"overlay/{folder.name}" for place in places for folder in place.glob("overlay/*") if folder.is_dir()}
    for argument in arguments:
        group = argument.removeprefix("+").partition("=")[0].partition("@")[0]
        if argument.startswith("+overlay") and group not in groups:
            raise ConfigError(f"{argument}: {group!r} is no group of overlays. Groups: {', '.join(sorted(groups))}.")


def explain(error: HydraException, arguments: Sequence[str] = ()) -> str:
    """What is wrong with the command line, with a hint where a name was meant.

    Args:
        error: what Hydra raised.
        arguments: the command line, for the folder of its recipe.
    """
    text = re.sub(r"\s*Config search path:.*", "", str(error), flags=re.DOTALL).strip()
    cause = error.__cause__
    if isinstance(error, MissingConfigException) and "primary config" in text and "--config-dir" in arguments[:-1]:
        folder = Path(arguments[arguments.index("--config-dir") + 1])
        return f"{text.partition('. ')[0]} in {folder}. " + did_you_mean(
            str(error.missing_cfg_file), (path.stem for path in folder.glob("*.yaml"))
        )
    if not isinstance(cause, OmegaConfBaseException) or not isinstance(cause.parent_node, DictConfig):
        return text
    key, section, last = str(cause.full_key), cause.parent_node, str(cause.key)
    hint = did_you_mean(last, map(str, section)) if len(section) else f"{key.removesuffix('.' + last)} has no keys."
    add = text.rpartition("use ")[2]  # Hydra ends with the override that would add the key
    free = f" To set it all the same: {add}" if key.startswith(FREE) and add.startswith("+") else ""
    return f"{key} is not a setting of this recipe. {hint}{free}"
