"""Selection of task items by split or by a file of ids."""

import hashlib
import json
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import list_tasks
from verl_agent.errors import MAX_MESSAGE_CHARS, ConfigError, counted, did_you_mean
from verl_agent.types import TaskItem
from verl_agent.values import read_text


def task_ids(tasks: Sequence[TaskItem]) -> str:
    """Return a short hash of the ids of tasks: a file of ids may change under the same name."""
    return hashlib.sha256("\n".join(item.id for item in tasks).encode()).hexdigest()[:16]


def task_contents(tasks: Iterable[TaskItem]) -> str:
    """Return a short hash of the ids, categories and data of tasks: a question may change under the same id."""
    digest = hashlib.sha256()
    for item in tasks:
        rows = item.id, item.category, dict(item.data)
        digest.update(f"{json.dumps(rows, sort_keys=True)}\n".encode())
    return digest.hexdigest()[:16]


def stable_hash(text: str) -> str:
    """Return a hash that is the same in every process, machine and version of Python."""
    return hashlib.sha256(text.encode()).hexdigest()


def select_tasks(env: EnvAdapter, source: str, key: str = "") -> list[TaskItem]:
    """Return the items that `source` names.

    Args:
        env: environment with its options.
        source: name of a split, or path of a text file with one task id a line. `#` begins a comment at the start of
            a line and after a space, so that an id may have it.
        key: config key of the source, for messages; empty without one.

    Raises:
        ConfigError: unknown split or id, a file without ids, or a duplicate id.
    """
    path, name = Path(source), type(env).__name__
    given, is_file = f"{key}={source!r}" if key else f"task file {source!r}", False
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # its name is too long, or has a character that no name may have
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{given} is not allowed: {problem}. Choose a file of task ids, or a split.") from error
    if not is_file and (source in env.splits or not path.suffix):
        if key and source not in env.splits:
            hint = did_you_mean(source, env.splits)
            raise ConfigError(f"{key}={source!r} is not allowed: {name} has no split {source!r}. {hint}")
        return list(list_tasks(env, source).values())
    if not is_file:
        splits = ", ".join(env.splits)
        raise ConfigError(f"{given} does not exist in {Path.cwd()}. Choose a file of task ids, or a split: {splits}.")
    if not (ids := ids_in(path)):
        raise ConfigError(f"{given} holds no task ids. Write one id a line.")
    known: dict[str, TaskItem] = {}
    for split in env.splits:
        known |= list_tasks(env, split)
    for task_id in ids:
        if task_id not in known:
            hint = did_you_mean(task_id, known, MAX_MESSAGE_CHARS)
            raise ConfigError(f"{source}: {name} has no task {task_id!r}. {hint}")
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{source}: {len(ids) - len(set(ids))} task ids occur more than once.")
    return [known[task_id] for task_id in ids]


def ids_in(file: Path) -> list[str]:
    """Return the ids in a file of tasks, without comments.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    lines = read_text(file).splitlines()
    return [line for raw in lines if (line := re.split(r"(?:^|\s)#", raw)[0].strip())]


def sample_tasks(tasks: Sequence[TaskItem], count: int) -> list[TaskItem]:
    """Return `count` of the tasks: the same ones on every machine and for every order of the list."""
    return sorted(tasks, key=lambda item: stable_hash(item.id))[:count]


def check_disjoint(
    train: Sequence[TaskItem],
    held_out: Sequence[TaskItem],
    sources: Mapping[str, str],
    remedy: str = "Choose splits that do not overlap.",
) -> None:
    """Raise if a task is in both selections.

    Args:
        train: tasks to train on.
        held_out: tasks to evaluate on.
        sources: sources of the two selections by their config keys, for the message.
        remedy: last sentence of the message.

    Raises:
        ConfigError: the two selections share a task.
    """
    if shared := {item.id for item in train} & {item.id for item in held_out}:
        named = " and ".join(f"{key}={source!r}" for key, source in sources.items())
        raise ConfigError(f"{named} share {counted(len(shared), 'task')}, such as {min(shared)!r}. {remedy}")
