"""Messages for recipes and command lines that do not compose."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, GrammarParseError, OmegaConfBaseException
from yaml import MarkedYAMLError
from yaml.reader import ReaderError

from verl_agent.config.catalogue import fields_of
from verl_agent.config.keys import check_kind, leaves
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.values import read_text

SHARED = Path(__file__).parent
"""Folder of the base YAML files and overlays."""
INVALID_DEFAULTS = "Invalid defaults list"
"""Beginning of the ValueError that Hydra raises for `defaults` that are not a list."""
INVALID_GROUP = "Config group override must be"
"""Beginning of the ValueError that Hydra raises for `data=3`, because `data` is a section, and for `=3`."""
NUMBER_FOR_SECTION = re.compile(r"[\w/]*=(true|false|[-+.\de]+)", re.IGNORECASE)


def explain_failure(error: Exception, arguments: Sequence[str], base: str) -> str | None:
    """Return the message for a recipe or a command line that does not compose; None for an error of another origin."""
    if isinstance(error, HydraException):
        return _explain_override(error, arguments, base)
    if isinstance(error, MarkedYAMLError):
        return _explain_yaml(error)
    if isinstance(error, ReaderError):
        return f"{error.name} has the character U+{error.character:04X}, which YAML does not allow. Remove it."
    if isinstance(error, UnicodeDecodeError):
        folder, name = _option(arguments, "--config-dir"), _option(arguments, "--config-name")
        return _explain_encoding(Path(folder or "."), name or "")
    if str(error).startswith(INVALID_GROUP):
        overrides = " and ".join(argument for argument in arguments if NUMBER_FOR_SECTION.fullmatch(argument))
        return f"{overrides or 'an override'} is not allowed. Allowed: SECTION.KEY=VALUE, such as data.seed=1."
    return str(error) if isinstance(error, ConfigError) or str(error).startswith(INVALID_DEFAULTS) else None


def _explain_yaml(error: MarkedYAMLError) -> str:
    """Return file, line, column and the expected syntax of a YAML file that cannot be parsed."""
    mark = error.problem_mark or error.context_mark
    problem = ", ".join(text for text in (error.problem, error.context) if text)
    if mark is None:
        return f"the recipe is not valid YAML: {problem}."
    lines = Path(mark.name).read_text(encoding="utf-8").splitlines() if Path(mark.name).is_file() else []
    shown = f"\n  {lines[mark.line]}\n  {' ' * mark.column}^" if mark.line < len(lines) else ""
    remedy = "" if "duplicate" in problem else " Check indentation, brackets and the space after each colon."
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1} is not valid YAML: {problem}.{remedy}{shown}"


def _explain_encoding(folder: Path, name: str) -> str | None:
    """Return the message for a recipe that is not UTF-8, or for a file beside it that it includes; None without one."""
    own = folder / f"{name}.yaml"
    for file in (
        *([own] if own.is_file() else []),
        *sorted(folder.glob("*.yaml")),
        *sorted(folder.glob("*/**/*.yaml")),
    ):
        try:
            read_text(file)
        except ConfigError as error:
            return str(error)
    return None


def _explain_override(error: HydraException, arguments: Sequence[str], base: str) -> str:
    """Return the message for an error of Hydra, with the name that was probably meant."""
    text = re.sub(r"\s*Config search path:.*", "", str(error), flags=re.DOTALL).strip()
    folder, name = _option(arguments, "--config-dir"), _option(arguments, "--config-name")
    if isinstance(error, MissingConfigException) and folder:
        if "primary config" in text and (overlay := find_overlay(str(error.missing_cfg_file))):
            return f"there is no recipe {error.missing_cfg_file!r} in {folder}. {overlay}"
        folders = [Path(folder)] if "primary config" in text else [Path(folder), SHARED]
        group, _, file = str(error.missing_cfg_file).rpartition("/")
        hint = did_you_mean(file, (path.stem for each in folders for path in (each / group).glob("*.yaml")))
        return f"{text.partition('. ')[0]} in {folder}. {hint}" if len(folders) == 1 else f"{text} {hint}"
    cause = error.__cause__
    if isinstance(error, OverrideParseException) and "=" not in error.override:
        return f"{error.override!r} has no value. Allowed: KEY=VALUE, such as {error.override}=VALUE."
    if isinstance(error, OverrideParseException):
        return _explain_unreadable(error.override.removeprefix("++"), text.partition("\n")[0])
    if text.startswith("Ambiguous value for argument"):
        key, _, value = text.split("'")[1].removeprefix("++").partition("=")
        return f"{key}={value} is not allowed. Allowed: '{key}=[{value}]' for a list, \"{key}='{value}'\" for a text."
    if isinstance(cause, GrammarParseError):
        return f"{cause.full_key}: {str(cause).splitlines()[0]}"
    if isinstance(cause, ConfigTypeError) and " override " in text:
        allowed = "a list"
        if isinstance(cause.parent_node, DictConfig):
            keys = ", ".join(map(str, cause.parent_node))
            allowed = f"a section with the keys {keys}" if keys else "a section such as {}"
        return f"{text.partition(' override ')[2]} is not allowed. Allowed: {allowed}."
    if not isinstance(cause, OmegaConfBaseException) or not isinstance(cause.parent_node, DictConfig):
        return text
    if folder and name:
        try:
            with initialize_config_dir(str(Path(folder).resolve()), version_base=None):
                check_kind(compose(name), base)
        except ConfigError as wrong_kind:
            return str(wrong_kind)
    key, section, last = str(cause.full_key), cause.parent_node, str(cause.key)
    # Hydra's message: Could not override 'rollout.n'. Its cause knows the part that does not exist alone.
    given = text.split("'")[1] if text.startswith("Could not override '") else key
    if key == last and (full := [name for name, _ in leaves(_plain(section)) if name.endswith(f".{given}")]):
        key, hint = given, f"Did you mean {' or '.join(full)}?"
    else:
        around = key.removesuffix(f".{last}")
        known = dict.fromkeys([*map(str, section), *fields_of(around)])
        hint = did_you_mean(last, known) if known else f"{around} has no keys."
    return f"{key} is not a setting of this recipe. {hint}"


def _explain_unreadable(override: str, problem: str) -> str:
    """Return the message for an override that Hydra's grammar does not accept, with what to write instead."""
    key, _, value = override.partition("=")
    if value.startswith("~"):
        return f"{override!r} is not allowed: the shell does not expand ~ there. Write {key}=$HOME{value[1:]}."
    if not set(value) & set("[]{}'\""):
        return f"{override!r} cannot be read. A text with such characters needs quotation marks: \"{key}='{value}'\"."
    return (
        f"{override!r} cannot be read: {problem}. Close brackets and quotation marks, and put the override into "
        "quotation marks of the shell, such as 'horizon.max_turns=[4,8]'."
    )


def _plain(section: DictConfig) -> Any:
    return OmegaConf.to_container(section, resolve=False)


def find_overlay(name: str) -> str:
    """Return a sentence that names the overlay for a recipe that does not exist; empty if there is no such overlay."""
    groups = [path.parent.name for path in SHARED.glob("overlay/*/*.yaml") if path.stem == name]
    if not groups:
        return ""
    override = f"+overlay/{groups[0]}={name} trainer.experiment_name=NAME"
    return f"{name!r} is an overlay for any recipe: run grpo, for example, with {override}"


def _option(arguments: Sequence[str], name: str) -> str | None:
    """Return the value that follows an option on the command line, or None."""
    return arguments[arguments.index(name) + 1] if name in arguments[:-1] else None
