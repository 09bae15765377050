"""Files with the tasks of a program: one JSON object a line."""

import json
from pathlib import Path

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import TaskItem
from verl_agent.values import read_text

MAX_DATA = 100_000
"""Most bytes of a task's data, which the program reads from its environment."""


def read_tasks(file: Path) -> dict[str, list[TaskItem]]:
    """Return the tasks of a file by split.

    Raises:
        ConfigError: a line is not a task.
    """
    found: dict[str, list[TaskItem]] = {}
    # Only a line feed ends a line: `splitlines` would break a text at U+2028, which JSON need not escape.
    for number, line in enumerate(read_text(file).rstrip("\n").split("\n"), start=1):
        try:
            task = json.loads(line)
            unknown = set(task) - {"id", "split", "data", "category"}
            if unknown:
                raise ConfigError(
                    f"{file}:{number}: {min(unknown)!r} is not a field of a task. "
                    f"{did_you_mean(min(unknown), ('id', 'split', 'data', 'category'))}"
                )
            item = TaskItem("program", task["id"], task.get("data", {}), task.get("category", ""))
            if not all(isinstance(text, str) for text in (item.id, task["split"], item.category)):
                raise TypeError("id, split and category must be texts")
            found.setdefault(task["split"], []).append(item)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file}:{number} is not a task ({error!r}). It needs id and split.") from error
        if len(json.dumps(item.data).encode()) > MAX_DATA:
            raise ConfigError(f"{file}:{number}: data has more than {MAX_DATA} bytes. Put it into a file.")
    return found
