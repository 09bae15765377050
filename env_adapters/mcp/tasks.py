"""File of tasks for MCP servers: one JSON object a line."""

import zlib
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.sections import explain_validation
from verl_agent.types import TaskItem

SPLITS = ("train", "test")
HELD_OUT = 5
"""Every fifth task without a split is held out, by a checksum of its id."""


@with_config(ConfigDict(extra="forbid", strict=True))
class Call(TypedDict):
    """Call of a solution."""

    name: str
    arguments: dict[str, Any]


@with_config(ConfigDict(extra="forbid", strict=True))
class RequiredKeys(TypedDict):
    """Keys that every task has."""

    id: str
    prompt: str


@with_config(ConfigDict(extra="forbid", strict=True))
class Task(RequiredKeys, total=False):
    """One line of the file of tasks."""

    split: str
    category: str
    files: dict[str, str]
    check: str
    data: dict[str, Any]
    solution: list[Call]


TASK_LINE = TypeAdapter(Task)
ALLOWED = 'Allowed: one JSON object a line, such as {"id": "1", "prompt": "Write a note."}.'


@lru_cache(8)
def read_tasks(file: Path, judge: str, version: tuple[int, int]) -> dict[str, list[TaskItem]]:
    """Return the tasks of a file by split.

    Args:
        judge: option that judges the tasks, `check` or `reward`; "" if each task has a check of its own.
        version: time and size of the file, since every session asks.

    Raises:
        ConfigError: the file is not UTF-8, a line is not a task, two have the same id, or one has no check.
    """
    found: dict[str, list[TaskItem]] = {}
    seen: set[str] = set()
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not UTF-8 ({error.reason} at byte {error.start + 1}). Save it as UTF-8."
        ) from error
    for number, line in enumerate(text.rstrip("\n").split("\n"), start=1):
        try:
            task = TASK_LINE.validate_json(line)
        except ValidationError as error:
            raise ConfigError(f"{file}:{number}: {_explained(error)}") from error
        name = task["id"]
        held_out = zlib.crc32(name.encode()) % HELD_OUT == 0
        split = task.get("split", "test" if held_out else "train")
        if split not in SPLITS:
            raise ConfigError(f"{file}:{number}: split={split!r} is not allowed. Allowed: {', '.join(SPLITS)}.")
        if name in seen:
            raise ConfigError(f"{file}:{number}: the id {name!r} occurs twice. Give each task an id of its own.")
        if not judge and not task.get("check"):
            raise ConfigError(f"{file}:{number}: the task {name!r} has no check. Add one, or set env.options.check.")
        if judge == "reward" and task.get("check"):
            raise ConfigError(f"{file}:{number}: the task {name!r} has a check beside env.options.reward. Remove one.")
        if outside := [
            one for one in task.get("files", {}) if PurePath(one).is_absolute() or ".." in PurePath(one).parts
        ]:
            raise ConfigError(f"{file}:{number}: the file {outside[0]!r} lies outside of the folder of the session.")
        seen.add(name)
        data = {key: value for key, value in task.items() if key not in ("id", "split", "category")}
        found.setdefault(split, []).append(TaskItem("mcp", name, data, task.get("category", "")))
    return found


def _explained(error: ValidationError) -> str:
    """Return the message for a line that is no task."""
    for problem in error.errors(include_url=False):
        *owner, key = problem["loc"] or ("",)
        if not problem["loc"]:
            reason = str(problem.get("ctx", {}).get("error") or problem["msg"])
            return f"the line is not allowed: {reason}. {ALLOWED}"
        if problem["type"] == "extra_forbidden":
            where, known = (f"solution[{owner[1]}]: ", Call) if owner else ("", Task)
            return f"{where}unknown key {str(key)!r}. {did_you_mean(str(key), get_type_hints(known))}"
    return explain_validation(error, "", Task)
