"""Registry of environments: those of this package and of every other package that registers some.

A package registers an adapter with an entry point:

    entry_points={"verl_agent.envs": ["my_env = my_package.adapter:MyEnv"]}
"""

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from verl_agent import registry
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.parsing import shorten
from verl_agent.errors import AgentError, ConfigError, describe_exception, did_you_mean
from verl_agent.types import TaskItem
from verl_agent.values import text_fault

ENTRY_POINT_GROUP = "verl_agent.envs"


def registered_envs() -> dict[str, str]:
    """Return the package that registers each environment, by the environment's name."""
    return registry.registered_packages(ENTRY_POINT_GROUP)


@cache  # every episode asks, and searching all installed packages takes milliseconds
def load_adapter(name: str) -> type[EnvAdapter]:
    """Return the adapter class registered as `name`.

    Raises:
        ConfigError: see `verl_agent.registry.load_registered`.
    """
    return registry.load_class(ENTRY_POINT_GROUP, name, "env.name", EnvAdapter)  # type: ignore[type-abstract]


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


def item_fault(item: object) -> tuple[str, str] | None:
    """Return the place and value in an item of `tasks()` that is not allowed, and the remedy; None without one."""
    if not isinstance(item, TaskItem):
        return shorten(repr(item), 100), "Allowed: a TaskItem."
    if remedy := text_fault(item.id):
        return f"a TaskItem with id={shorten(repr(item.id), 100)}", f"Allowed: a text that is not empty. {remedy}"
    if remedy := text_fault(item.category, may_be_empty=True):
        shown = shorten(repr(item.category), 100)
        return f"TaskItem {item.id!r} with category={shown}", f"Allowed: a text. {remedy}"
    return None


def list_tasks(env: EnvAdapter, split: str) -> dict[str, TaskItem]:
    """Return the items of one split by id.

    Raises:
        ConfigError: unknown split, no items, an id or a category that is no text, or an id that occurs twice.
    """
    name = type(env).__name__
    env.check_split(split)
    try:
        items = list(env.tasks(split))
    except AgentError:
        raise
    except Exception as error:  # boundary: tasks() is the author's code
        raise ConfigError(f"{name} does not list the tasks of {split!r}: {describe_exception(error)}") from error
    if fault := next(filter(None, map(item_fault, items)), None):
        raise ConfigError(f"{name} lists {fault[0]} in split {split!r}. {fault[1]}")
    by_id = {item.id: item for item in items}
    if not by_id:
        raise ConfigError(f"{name} lists no tasks for split {split!r}.")
    if len(by_id) != len(items):
        raise ConfigError(f"{name} lists {len(items) - len(by_id)} task ids more than once in split {split!r}.")
    return by_id
