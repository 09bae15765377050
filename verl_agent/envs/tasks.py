"""Choose task items by split or by a file of ids, and check them against the environment."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_agent.envs.registry import list_tasks, make_env
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import TaskItem


def select_tasks(env: str, source: str, options: Mapping[str, Any] | None = None) -> list[TaskItem]:
    """The items that `source` names.

    Args:
        env: registered name of the environment.
        source: a split, or the path of a text file with one task id a line (`#` begins a comment).
        options: keyword arguments of its adapter, for environments whose tasks depend on them.

    Raises:
        ConfigError: unknown environment, split or id, a file without ids, or an id that occurs twice.
    """
    path = Path(source)
    if not (path.suffix or path.is_file()):
        return list(list_tasks(env, source, options).values())
    if not path.is_file():
        raise ConfigError(f"task file {source!r} does not exist. Name a file, or a split: {_splits(env, options)}.")
    ids = [line for raw in path.read_text(encoding="utf-8").splitlines() if (line := raw.split("#")[0].strip())]
    if not ids:
        raise ConfigError(f"task file {source!r} holds no task ids.")
    known: dict[str, TaskItem] = {}
    for split in make_env(env, options).splits:
        known |= list_tasks(env, split, options)
    for task_id in ids:
        if task_id not in known:
            raise ConfigError(f"{source}: env {env!r} has no task {task_id!r}. {did_you_mean(task_id, known)[:300]}")
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{source}: {len(ids) - len(set(ids))} task ids occur twice.")
    return [known[task_id] for task_id in ids]


def sample_tasks(tasks: Sequence[TaskItem], count: int) -> list[TaskItem]:
    """`count` of the tasks, the same ones on every machine and for every order of the list."""
    return sorted(tasks, key=lambda item: hashlib.sha256(item.id.encode()).hexdigest())[:count]


def check_disjoint(
    env: str,
    train: str,
    held_out: str,
    options: Mapping[str, Any] | None = None,
    keys: tuple[str, str] = ("env.train_tasks", "env.eval_tasks"),
) -> None:
    """Refuse to evaluate on tasks that are trained on.

    Args:
        env: registered name of the environment.
        train: what is trained on, see `select_tasks`.
        held_out: what is not, likewise.
        options: keyword arguments of its adapter.
        keys: the settings that name the two, for the message.

    Raises:
        ConfigError: the two selections share a task.
    """
    trained = {item.id for item in select_tasks(env, train, options)}
    shared = trained & {item.id for item in select_tasks(env, held_out, options)}
    if shared:
        raise ConfigError(
            f"{keys[0]}={train!r} and {keys[1]}={held_out!r} share {len(shared)} tasks, "
            f"such as {min(shared)!r}. Choose splits that do not overlap."
        )


def _splits(env: str, options: Mapping[str, Any] | None) -> str:
    return ", ".join(make_env(env, options).splits)
