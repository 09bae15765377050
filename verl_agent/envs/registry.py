"""Registry of environments: those of this package and of every other package that registers some.

A package registers an adapter with an entry point:

    entry_points={"verl_agent.envs": ["my_env = my_package.adapter:MyEnv"]}
"""

import inspect
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, cast

from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import AgentError, ConfigError, describe_exception, did_you_mean
from verl_agent.types import TaskItem

ENTRY_POINT_GROUP = "verl_agent.envs"
PACKAGE = "verl-agent"
CORRECT_ENTRY_POINT = "Correct the entry point in its package, then run `pip install -e .` in the package's folder."


def registered() -> dict[str, str]:
    """Return the package that registers each environment, by the environment's name."""
    return {entry.name: entry.dist.name if entry.dist else "?" for entry in entry_points(group=ENTRY_POINT_GROUP)}


@cache  # every episode asks, and searching all installed packages takes milliseconds
def load_adapter(name: str) -> type[EnvAdapter]:
    """Return the adapter class registered as `name`.

    Raises:
        ConfigError: the name is not registered, its module does not import, or the entry point names no adapter.
    """
    known = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in known:
        raise ConfigError(
            f"env.name={name!r} is not registered. {did_you_mean(name, known)} "
            "If it is your own environment, install its package: run `pip install -e .` in its folder."
        )
    entry = known[name]
    module = _import_module(entry)
    adapter: Any = module
    for attribute in entry.attr.split("."):
        if not hasattr(adapter, attribute):
            classes = [one for one, value in vars(module).items() if _is_adapter(value) and value is not EnvAdapter]
            raise ConfigError(
                f"env.name={name!r} points to {entry.value}, but {module.__file__} has no {entry.attr!r}. "
                f"{did_you_mean(entry.attr, classes)} {CORRECT_ENTRY_POINT}"
            )
        adapter = getattr(adapter, attribute)
    if not _is_adapter(adapter):
        raise ConfigError(
            f"env.name={name!r} points to {entry.value}, which is not a subclass of EnvAdapter. {CORRECT_ENTRY_POINT}"
        )
    return cast(type[EnvAdapter], adapter)


def _import_module(entry: EntryPoint) -> ModuleType:
    """Import the module that an entry point names."""
    try:
        return import_module(entry.module)
    except Exception as error:  # boundary: the module is the author's code
        start = f"env.name={entry.name!r} ({entry.value}) does not import"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{entry.module}.".startswith(f"{missing}."):
            raise ConfigError(f"{start}: the module {missing} does not exist. {CORRECT_ENTRY_POINT}") from error
        extras = (entry.dist.metadata.get_all("Provides-Extra") or []) if entry.dist else []
        foreign = missing is not None and missing.partition(".")[0] != entry.module.partition(".")[0]
        if foreign and entry.dist is not None and entry.dist.name == PACKAGE and entry.name in extras:
            install = f"Install what it needs: pip install '{PACKAGE}[{entry.name}]'."
            raise ConfigError(f"{start}: the package {missing} is not installed. {install}") from error
        raise ConfigError(f"{start}: {describe_exception(error)}") from error


def _is_adapter(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, EnvAdapter)


def make_env(name: str, options: Mapping[str, Any] | None = None) -> EnvAdapter:
    """Return the environment `name` configured with `options`.

    Args:
        name: registered name of the environment.
        options: keyword arguments of the adapter, as in `env.options`; None for its defaults.

    Raises:
        ConfigError: see `load_adapter`; an option is unknown, missing or not allowed.
    """
    adapter, chosen = load_adapter(name), dict(options or {})
    _, *parameters = inspect.signature(adapter.__init__).parameters.values()
    known = [one.name for one in parameters]
    for key in chosen:
        if key not in known and not any(one.kind is one.VAR_KEYWORD for one in parameters):
            raise ConfigError(f"env.options.{key} is not an option of {name!r}. {did_you_mean(str(key), known)}")
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [one.name for one in parameters if one.default is one.empty and one.kind not in variadic]
    if missing := [f"env.options.{key}" for key in required if key not in chosen]:
        values = " ".join(f"{key}=VALUE" for key in missing)
        raise ConfigError(f"env {name!r} needs {' and '.join(missing)}. Set {values}.")
    if methods := sorted(getattr(adapter, "__abstractmethods__", ())):
        raise ConfigError(
            f"env {name!r}: {adapter.__name__} does not define {', '.join(methods)}. Add what is missing."
        )
    try:
        return adapter(**chosen)
    except ConfigError:
        raise
    except Exception as error:  # boundary: the constructor is the author's code
        raise ConfigError(f"env.options of {name!r}: {describe_exception(error)}") from error


def list_tasks(env: EnvAdapter, split: str) -> dict[str, TaskItem]:
    """Return the items of one split by id.

    Raises:
        ConfigError: unknown split, no items, or an id that occurs twice.
    """
    name = type(env).__name__
    env.check_split(split)
    try:
        items = env.tasks(split)
    except AgentError:
        raise
    except Exception as error:  # boundary: tasks() is the author's code
        raise ConfigError(f"{name} does not list the tasks of {split!r}: {describe_exception(error)}") from error
    by_id = {item.id: item for item in items}
    if not by_id:
        raise ConfigError(f"{name} lists no tasks for split {split!r}.")
    if len(by_id) != len(items):
        raise ConfigError(f"{name} lists {len(items) - len(by_id)} task ids more than once in split {split!r}.")
    return by_id
