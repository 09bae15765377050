"""Selection of task items by split or by a file of ids."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_agent.envs.registry import list_tasks, make_env
from verl_agent.errors import MAX_MESSAGE_CHARS, ConfigError, counted, did_you_mean
from verl_agent.types import TaskItem


def select_tasks(env: str, source: str, options: Mapping[str, Any] | None = None, key: str = "") -> list[TaskItem]:
    """Return the items that `source` names.

    Args:
        env: registered name of the environment.
        source: name of a split, or path of a text file with one task id a line (`#` begins a comment).
        options: keyword arguments of the adapter; None for its defaults.
        key: config key of the source, for messages; empty without one.

    Raises:
        ConfigError: unknown environment, split or id, a file without ids, or a duplicate id.
    """
    path = Path(source)
    if not (path.suffix or path.is_file()):
        splits = make_env(env, options).splits
        if key and source not in splits:
            hint = did_you_mean(source, splits)
            raise ConfigError(f"{key}={source!r} is not allowed: env {env!r} has no split {source!r}. {hint}")
        return list(list_tasks(env, source, options).values())
    if not path.is_file():
        raise ConfigError(f"task file {source!r} does not exist. Choose a file, or a split: {_splits(env, options)}.")
    ids = [line for raw in path.read_text(encoding="utf-8").splitlines() if (line := raw.split("#")[0].strip())]
    if not ids:
        raise ConfigError(f"task file {source!r} holds no task ids.")
    known: dict[str, TaskItem] = {}
    for split in make_env(env, options).splits:
        known |= list_tasks(env, split, options)
    for task_id in ids:
        if task_id not in known:
            hint = did_you_mean(task_id, known, MAX_MESSAGE_CHARS)
            raise ConfigError(f"{source}: env {env!r} has no task {task_id!r}. {hint}")
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{source}: {len(ids) - len(set(ids))} task ids occur more than once.")
    return [known[task_id] for task_id in ids]


def sample_tasks(tasks: Sequence[TaskItem], count: int) -> list[TaskItem]:
    """Return `count` of the tasks: the same ones on every machine and for every order of the list."""
    return sorted(tasks, key=lambda item: hashlib.sha256(item.id.encode()).hexdigest())[:count]


def check_disjoint(
    env: str,
    train: str,
    held_out: str,
    options: Mapping[str, Any] | None = None,
    keys: tuple[str, str] = ("env.train_tasks", "env.eval_tasks"),
    remedy: str = "Choose splits that do not overlap.",
) -> None:
    """Raise if a task is in both selections.

    Args:
        env: registered name of the environment.
        train: source of the training tasks, see `select_tasks`.
        held_out: source of the evaluation tasks.
        options: keyword arguments of the adapter; None for its defaults.
        keys: config keys of the two sources, for the message.
        remedy: last sentence of the message.

    Raises:
        ConfigError: the two selections share a task.
    """
    train_ids = {item.id for item in select_tasks(env, train, options, keys[0])}
    shared = train_ids & {item.id for item in select_tasks(env, held_out, options, keys[1])}
    if shared:
        raise ConfigError(
            f"{keys[0]}={train!r} and {keys[1]}={held_out!r} share {counted(len(shared), 'task')}, "
            f"such as {min(shared)!r}. {remedy}"
        )


def _splits(env: str, options: Mapping[str, Any] | None) -> str:
    return ", ".join(make_env(env, options).splits)
