"""Division of the tasks of a training run: tasks to train on, to choose a checkpoint on, and to test on."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from verl_agent.config.settings import AgentEnv
from verl_agent.envs.settings import AUTO, EnvSettings
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

MOST_DEV_TASKS = 100
"""Most training tasks that are held out, and the most that a validation plays by default."""
FEW_DEV_TASKS = 10
"""Held-out tasks below which a fifth of the training tasks is held out instead of a tenth."""


@dataclass(frozen=True, slots=True)
class TaskSplits:
    """Tasks of one environment of a run, in the order of their sources.

    Attributes:
        dev: tasks of the validations during training, on which the best checkpoint is chosen.
        dev_source: split or file that holds the tasks of `dev`.
        test: tasks to play before the first and after the last step; empty if `dev` are the tasks of `env.eval_tasks`.
    """

    train: Sequence[TaskItem]
    dev: Sequence[TaskItem]
    dev_source: str
    test: Sequence[TaskItem]


def split_tasks(envs: Sequence[AgentEnv]) -> list[TaskSplits]:
    """Return the tasks of each environment of a run.

    With `dev_tasks: auto` a tenth of the training tasks, at most `MOST_DEV_TASKS`, is held out: those with the smallest
    hashes of their ids, which are the same on every machine. Of fewer than 100 tasks, up to `FEW_DEV_TASKS` are held
    out, at most a fifth. No entry of a mixture trains on a task that another entry of the same environment holds out.

    Raises:
        ConfigError: a source is invalid, or no task is left to train on.
    """
    splits: list[TaskSplits] = []
    held_out: dict[str, set[str]] = defaultdict(set)
    for one in envs:
        env, train, test = one.env, one.tasks(one.env.train_tasks), one.tasks(one.env.eval_tasks)
        if validates_on_test(env):
            splits.append(TaskSplits(train, test, env.eval_tasks, []))
        elif holds_out(env):
            dev = sample_tasks(train, count_held_out(len(train)))
            held_out[env.name] |= {item.id for item in dev}
            splits.append(TaskSplits(train, dev, env.train_tasks, test))
        else:
            assert env.dev_tasks is not None  # validates_on_test
            splits.append(TaskSplits(train, one.tasks(env.dev_tasks), env.dev_tasks, test))
    without = []
    for env, split in zip((one.env for one in envs), splits, strict=True):
        kept = [item for item in split.train if item.id not in held_out[env.name]]
        if not kept:
            raise ConfigError(
                f"env.train_tasks={env.train_tasks!r} has too few tasks ({len(split.train)}) for "
                f"env.dev_tasks={AUTO!r}, which holds all of them out. Set env.dev_tasks to other tasks, or "
                "to null to validate on env.eval_tasks."
            )
        without.append(replace(split, train=kept))
    return without


def validates_on_test(env: EnvSettings) -> bool:
    """Return True if validations during training play `env.eval_tasks`.

    That is `dev_tasks: null`; with `overlap` also `auto`, and the same source for both.
    """
    return env.dev_tasks is None or (env.overlap and env.dev_tasks in (AUTO, env.eval_tasks))


def holds_out(env: EnvSettings) -> bool:
    """Return True if `env.dev_tasks` holds training tasks out."""
    return env.dev_tasks == AUTO and not env.overlap


def count_held_out(tasks: int) -> int:
    """Return the number of training tasks that `dev_tasks: auto` holds out, at least one."""
    return max(1, min(MOST_DEV_TASKS, max(tasks // 10, min(FEW_DEV_TASKS, tasks // 5))))
