"""Find environments by name, in this package and in every other one that registers them.

A package registers an adapter with an entry point:

    entry_points={"verl_agent.envs": ["my_env = my_package.adapter:MyEnv"]}
"""

import inspect
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import TaskItem

ENTRY_POINT_GROUP = "verl_agent.envs"


def registered() -> dict[str, str]:
    """The package that registers each environment, by the environment's name."""
    return {entry.name: entry.dist.name if entry.dist else "?" for entry in entry_points(group=ENTRY_POINT_GROUP)}


@cache  # every episode asks, and searching all installed packages takes milliseconds
def load_adapter(name: str) -> type[EnvAdapter]:
    """Return the adapter class registered as `name`.

    Raises:
        ConfigError: the name is not registered, its package does not import, or it is not an adapter.
    """
    known = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in known:
        raise ConfigError(f"env.name={name!r} is not registered. {did_you_mean(name, known)}")
    try:
        adapter = known[name].load()
    except ImportError as error:
        raise ConfigError(
            f"env.name={name!r} ({known[name].value}) does not import: {error}. "
            f"Install what it needs: pip install 'verl-agent[{name}]', or see its README."
        ) from error
    if not (isinstance(adapter, type) and issubclass(adapter, EnvAdapter)):
        raise ConfigError(f"env.name={name!r} points to {known[name].value}, which is not a subclass of EnvAdapter.")
    return adapter


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
    required = [one.name for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if missing := [key for key in required if key not in chosen]:
        raise ConfigError(f"env {name!r} needs {' and '.join(f'env.options.{key}' for key in missing)}.")
    try:
        return adapter(**chosen)
    except TypeError as error:
        raise ConfigError(f"env.options of {name!r}: {error}") from error


def list_tasks(name: str, split: str, options: Mapping[str, Any] | None = None) -> dict[str, TaskItem]:
    """Return the items of one split by id.

    Args:
        name: registered name of the environment.
        split: name of the split.
        options: keyword arguments of the adapter; None for its defaults.

    Raises:
        ConfigError: unknown environment or split, no items, or an id that occurs twice.
    """
    env = make_env(name, options)
    if split not in env.splits:
        raise ConfigError(f"env {name!r} has no split {split!r}. {did_you_mean(split, env.splits)}")
    items = env.tasks(split)
    by_id = {item.id: item for item in items}
    if not by_id:
        raise ConfigError(f"env {name!r} lists no tasks for split {split!r}.")
    if len(by_id) != len(items):
        raise ConfigError(f"env {name!r} lists {len(items) - len(by_id)} task ids twice in split {split!r}.")
    return by_id
