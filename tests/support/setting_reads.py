"""Record of the config keys that a training run reads, in all of its processes.

`import verl` loads this module in every process of a run whose environment has `VERL_USE_EXTERNAL_MODULES` with its
name, and `READS` with a folder. Each process appends its reads to a file there: key, tab, and reader as `file:line`.

A read is an attribute, an item or `get` of an OmegaConf node, of a dataclass that verl makes of one, or of a dict in
such a dataclass. Conversions and copies of whole sections are not reads. Neither is validation, which accepts a value
and does nothing with it: `IGNORED` lists its places.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import DictConfig, OmegaConf

READS = "VERL_AGENT_TEST_READS"
"""Environment variable with the folder of the reads."""
PATH = "_settings_path"
"""Attribute of a traced object: dotted key of its section."""
ACCESS = ("__getattr__", "__getitem__", "get", "pop", "select", "items", "values")
"""Methods of OmegaConf by which code reads a value; the others convert, copy, merge or write."""
CONTAINERS = ("/omegaconf/", "/verl/base_config.py", "_collections_abc", __file__)
"""Files between a reader and a value."""
IGNORED = (
    *("/hydra/", "/dataclasses.py", "/copy.py", "pickle", "<string>", "/pprint.py", "/json/"),
    *("/verl/utils/config.py", "/verl/utils/tracking.py", "/verl_agent/training/preflight/", "/verl_agent/config/"),
)
"""Files whose reads convert, print or validate settings."""
VALIDATION = ("__post_init__", "validate", "_validate")
"""Functions of verl's settings classes (workers/config) that validate, except those of the model's class, which loads
its files there."""


def write(key: str, frame: FrameType | None) -> None:
    """Append a read to the file of this process, once for each place."""
    entry = ""
    while frame is not None and any(part in frame.f_code.co_filename for part in CONTAINERS):
        entry, frame = frame.f_code.co_name if "/omegaconf/" in frame.f_code.co_filename else entry, frame.f_back
    if frame is None or (entry and entry not in ACCESS):
        return
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    validates = "/verl/workers/config/" in file and not file.endswith("/model.py") and function in VALIDATION
    if validates or any(part in file for part in IGNORED):
        return
    read = f"{key}\t{file}:{frame.f_lineno}\n"
    if read not in _written:
        _written.add(read)
        with Path(os.environ[READS], f"{os.getpid()}.txt").open("a") as output:
            output.write(read)


_written: set[str] = set()


class TracedDict(dict[str, Any]):
    """Dict of settings inside a dataclass."""

    def __init__(self, values: dict[str, Any], path: str) -> None:
        super().__init__(values)
        self.path = path

    def __reduce__(self) -> Any:
        return TracedDict, (dict(self.copy()), self.path)

    def __getitem__(self, key: str) -> Any:
        write(f"{self.path}.{key}", sys._getframe(1))
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        write(f"{self.path}.{key}", sys._getframe(1))
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        write(f"{self.path}.{key}", sys._getframe(1))
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[str]:  # `**section` then reads each item by its key
        return super().__iter__()

    def items(self) -> Any:
        for key in list(super().__iter__()):
            write(f"{self.path}.{key}", sys._getframe(1))
        return super().items()


def path_of(node: Any) -> str:
    """Return the dotted key of a section; that of its nearest traced parent is the beginning."""
    parts: list[str] = []
    while node is not None:
        own = node.__dict__.get(PATH)
        if own is not None:
            return ".".join([own, *reversed(parts)])
        name = node._key()
        if name is not None:
            parts.append(str(name))
        node = node._get_parent()
    return ".".join(reversed(parts))


def install() -> None:  # noqa: PLR0915 - one place for all that is replaced
    """Trace the reads of this process."""
    import hydra._internal.instantiate._instantiate2 as hydra_instantiate
    import verl.utils.config
    from verl.base_config import BaseConfig

    upstream_node, upstream_attribute = DictConfig._get_node, BaseConfig.__getattribute__

    def get_node(self: DictConfig, key: Any, *args: Any, **kwargs: Any) -> Any:
        if type(key) is str and not key.startswith("_"):
            section = path_of(self)
            write(f"{section}.{key}" if section else key, sys._getframe(1))
        return upstream_node(self, key, *args, **kwargs)

    def get_attribute(self: BaseConfig, name: str) -> Any:
        value = upstream_attribute(self, name)
        if not name.startswith("_"):
            own = upstream_attribute(self, "__dict__")
            if PATH in own and name in own:
                write(f"{own[PATH]}.{name}", sys._getframe(1))
        return value

    waiting: list[tuple[type, str]] = []

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        instance = object.__new__(cls)
        if waiting and waiting[-1][0] is cls:
            instance.__dict__[PATH] = waiting.pop()[1]
        return instance

    nodes: list[str] = []
    upstream_instantiate, upstream_call = hydra_instantiate.instantiate_node, hydra_instantiate._call_target

    def instantiate_node(node: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(node, DictConfig):
            return upstream_instantiate(node, *args, **kwargs)
        nodes.append(path_of(node))
        try:
            made = upstream_instantiate(node, *args, **kwargs)
            return TracedDict(made, nodes[-1]) if type(made) is dict else made
        finally:
            nodes.pop()

    def call_target(target: Any, partial: bool, args: Any, kwargs: Any, full_key: str) -> Any:
        path = nodes[-1]
        for name, value in kwargs.items():
            if isinstance(value, DictConfig):
                value.__dict__[PATH] = f"{path}.{name}"
        if isinstance(target, type) and issubclass(target, BaseConfig):
            waiting.append((target, path))
        return upstream_call(target, partial, args, kwargs, full_key)

    def tag(value: Any, path: str) -> None:
        """Trace a dataclass that OmegaConf made, and those in it."""
        own = value.__dict__
        own.setdefault(PATH, path)
        for name, inner in own.items():
            if isinstance(inner, BaseConfig):
                tag(inner, f"{path}.{name}")
            elif type(inner) is dict:
                own[name] = TracedDict(inner, f"{path}.{name}")

    upstream_convert: Callable[..., Any] = verl.utils.config.omega_conf_to_dataclass

    @wraps(upstream_convert)
    def convert(config: Any, dataclass_type: type | None = None) -> Any:
        known = isinstance(config, DictConfig)
        if known and dataclass_type is not None:
            waiting.append((dataclass_type, path_of(config)))
        made = upstream_convert(config, dataclass_type)
        if known and isinstance(made, BaseConfig):
            tag(made, path_of(config))
        return made

    DictConfig._get_node = get_node
    BaseConfig.__getattribute__ = get_attribute
    BaseConfig.__new__ = new
    hydra_instantiate.instantiate_node, hydra_instantiate._call_target = instantiate_node, call_target
    verl.utils.config.omega_conf_to_dataclass = convert
    Path(os.environ[READS]).mkdir(parents=True, exist_ok=True)


if READS in os.environ:
    install()
assert OmegaConf  # the module that holds the methods of ACCESS
