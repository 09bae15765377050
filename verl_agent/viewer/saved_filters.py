"""Filters that a reader saved by name, in one file of the user for all runs."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from verl_agent.envs.cache import home
from verl_agent.errors import ConfigError
from verl_agent.trace.provenance import write_json_atomically
from verl_agent.viewer.filters import Filter


class SavedFilters:
    """Saved filters of a user.

    Args:
        path: path of the file; `verl-agent/filters.json` in the folder of configurations unless given.
    """

    def __init__(self, path: Path | None = None) -> None:
        chosen = os.environ.get("XDG_CONFIG_HOME")
        root = path or (Path(chosen) if chosen else home("XDG_CONFIG_HOME") / ".config")
        self.path = path or root / "verl-agent" / "filters.json"

    def read(self) -> dict[str, Filter]:
        """Return the filters by name, in alphabetical order; those that this version does not allow are left out.

        Raises:
            ConfigError: the file is not readable.
        """
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            pairs = [(str(name), {str(key): str(value) for key, value in one.items()}) for name, one in content.items()]
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{self.path} is not readable ({error}). Repair or delete it.") from error
        found = {}
        for name, values in sorted(pairs):
            try:
                found[name] = Filter.parse(values)
            except ConfigError:
                continue
        return found

    def change(self, name: str, values: Mapping[str, str] | None) -> None:
        """Save a filter; None as `values` removes it.

        Raises:
            ConfigError: the name is empty, or the file cannot be written.
        """
        if not name.strip():
            raise ConfigError("a saved filter needs a name.")
        filters = {other: dict(chosen.values) for other, chosen in self.read().items()}
        filters.pop(name.strip(), None)
        if values is not None:
            filters[name.strip()] = dict(values)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomically(self.path, filters)
        except OSError as error:
            raise ConfigError(f"the filter is not saved: {self.path} cannot be written ({error}).") from error
