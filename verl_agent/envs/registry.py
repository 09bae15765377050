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


def load_adapter(name: str, options: Mapping[str, Any] | None = None) -> type[EnvAdapter]:
    """The adapter class registered as `name`, and with `env.options` the class that they mean.

    Raises:
        ConfigError: no such name, its package does not import, it is not an adapter, or it lacks an option.
    """
    adapter = _registered_class(name)
    if options is None:
        return adapter
    parameters = list(inspect.signature(adapter).parameters)
    for key in options:
        if key not in parameters:
            raise ConfigError(f"env.options.{key} is not an option of {name!r}. {did_you_mean(str(key), parameters)}")
    return adapter.with_options(options)


@cache  # every session asks, and looking through all installed packages takes milliseconds
def _registered_class(name: str) -> type[EnvAdapter]:
    """See `load_adapter`."""
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


def new_session(name: str, options: Mapping[str, Any]) -> EnvAdapter:
    """A session of the environment `name`, created with `env.options`.

    Raises:
        ConfigError: see `load_adapter`; an option that the adapter does not have, or refuses.
    """
    adapter = load_adapter(name, options)
    try:
        return adapter(**options)
    except TypeError as error:
        raise ConfigError(f"env.options of {name!r}: {error}") from error


def list_tasks(name: str, split: str, options: Mapping[str, Any] | None = None) -> dict[str, TaskItem]:
    """Items of one split by id, checked; `options` are those of the environment, for tasks that depend on them.

    Raises:
        ConfigError: unknown environment or split, no items, or an id that occurs twice.
    """
    adapter = load_adapter(name, options)
    if split not in adapter.splits:
        raise ConfigError(f"env {name!r} has no split {split!r}. {did_you_mean(split, adapter.splits)}")
    items = adapter.tasks(split)
    by_id = {item.id: item for item in items}
    if not by_id:
        raise ConfigError(f"env {name!r} lists no tasks for split {split!r}.")
    if len(by_id) != len(items):
        raise ConfigError(f"env {name!r} lists {len(items) - len(by_id)} task ids twice in split {split!r}.")
    return by_id
