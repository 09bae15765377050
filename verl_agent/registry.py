"""Objects that installed packages register by entry points: environments, agents and algorithms."""

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, TypeVar, cast

from verl_agent.errors import ConfigError, describe_exception, did_you_mean

PACKAGE = "verl-agent"
T = TypeVar("T")
CORRECT = "Correct the entry point in its package, then run `pip install -e .` in the package's folder."


def registered_packages(group: str) -> dict[str, str]:
    """Return the package that registers each object of a group, by the object's name."""
    return {entry.name: entry.dist.name if entry.dist else "?" for entry in entry_points(group=group)}


def load_registered(
    group: str, name: str, key: str, is_kind: Callable[[object], bool], kind: str, built_in: Iterable[str] = ()
) -> Any:
    """Return the object that is registered as `name`.

    Args:
        group: group of entry points.
        name: registered name.
        key: setting that has the name, for messages.
        is_kind: returns True for an object that the group may hold.
        kind: description of such an object, for messages, such as `a subclass of Agent`.
        built_in: names that are known without an entry point, for messages.

    Raises:
        ConfigError: the name is not registered, its module does not import, or the entry point names another object.
    """
    known = {entry.name: entry for entry in entry_points(group=group)}
    if name not in known:
        raise ConfigError(
            f"{key}={name!r} is not registered. {did_you_mean(name, [*built_in, *known])} "
            "If it is your own, install its package: run `pip install -e .` in its folder."
        )
    entry = known[name]
    module = _import(entry, key)
    found: Any = module
    for attribute in entry.attr.split("."):
        if not hasattr(found, attribute):
            own = [one for one, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
            fitting = [one for one in own if is_kind(getattr(module, one))]
            raise ConfigError(
                f"{key}={name!r} points to {entry.value}, but {module.__file__} has no {entry.attr!r}. "
                f"{did_you_mean(entry.attr, fitting)} {CORRECT}"
            )
        found = getattr(found, attribute)
    if not is_kind(found):
        raise ConfigError(f"{key}={name!r} points to {entry.value}, which is not {kind}. {CORRECT}")
    return found


def load_class(group: str, name: str, key: str, base: type[T], built_in: Iterable[str] = ()) -> type[T]:
    """Return the subclass of `base` that is registered as `name`; see `load_registered`."""

    def is_kind(value: object) -> bool:
        return isinstance(value, type) and issubclass(value, base)

    return cast(type[T], load_registered(group, name, key, is_kind, f"a subclass of {base.__name__}", built_in))


def _import(entry: EntryPoint, key: str) -> ModuleType:
    """Import the module that an entry point names.

    Raises:
        ConfigError: it does not exist, or an exception escapes from it.
    """
    try:
        return import_module(entry.module)
    except Exception as error:  # boundary: the module is the author's code
        start = f"{key}={entry.name!r} ({entry.value}) does not import"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{entry.module}.".startswith(f"{missing}."):
            raise ConfigError(f"{start}: the module {missing} does not exist. {CORRECT}") from error
        extras = (entry.dist.metadata.get_all("Provides-Extra") or []) if entry.dist else []
        extra = entry.name.replace("_", "-")  # as packages list extras
        foreign = missing is not None and missing.partition(".")[0] != entry.module.partition(".")[0]
        if foreign and entry.dist is not None and entry.dist.name == PACKAGE and extra in extras:
            install = f"Install what it needs: pip install '{PACKAGE}[{extra}]'."
            raise ConfigError(f"{start}: the package {missing} is not installed. {install}") from error
        raise ConfigError(f"{start}: {describe_exception(error)}") from error
