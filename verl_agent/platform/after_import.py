"""Code that runs when a module of another package is imported, just before or after it.

`import verl` loads this package's plugin in each of a run's processes. Only the trainer needs verl's engines, whose
import takes seconds and 80 MB.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, action: Callable[[], None], before: bool = False) -> None:
    """Call a function after the import of a module, or `before` its first one; at once if it is imported already."""
    if name in sys.modules:
        action()
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, action, before))


class _Finder(MetaPathFinder):
    """Finder of one module, which leaves the search to the others."""

    def __init__(self, name: str, action: Callable[[], None], before: bool) -> None:
        self.name, self._action, self._before = name, action, before

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the other finders, with a loader that calls the action."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and self._before:
            self._action()
        elif spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


class _Loader(Loader):
    """Loader of a module that calls a function after it; the rest is that of the module's own loader."""

    def __init__(self, loader: Any, action: Callable[[], None]) -> None:
        self._loader, self._action = loader, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with the loader of its package."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then the action."""
        self._loader.exec_module(module)
        self._action()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
