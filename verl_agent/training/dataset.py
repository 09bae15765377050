"""Training data of verl, created from the task items of environments without a parquet file."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from verl_agent.config.plan import RUN
from verl_agent.envs.settings import EnvSettings
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import ConfigError
from verl_agent.training.mixture import MixtureOrder
from verl_agent.training.splits import TaskSplits, split_tasks
from verl_agent.types import TaskItem

TASKS_OF: Mapping[str, Callable[[EnvSettings, TaskSplits], tuple[str, Sequence[TaskItem]]]] = {
    "train": lambda env, splits: (env.train_tasks, splits.train),
    "validation": lambda env, splits: (splits.dev_source, splits.dev),
    "test": lambda env, splits: (env.eval_tasks, splits.test),
}
"""Source and tasks of each purpose."""
ENDLESS = 10**9
"""Length of the training data of a mixture, longer than any run."""


class TaskDataset(Dataset[dict[str, Any]]):
    """Dataset with one row for each task; verl creates it through `data.custom_cls`.

    The tasks are those of `RUN`. A row has no prompt: the rollout asks the environment for its first messages. The
    training rows of several environments are endless and in the order of `MixtureOrder`.

    Args:
        data_files: purpose of the tasks, a key of `TASKS_OF`.
        max_samples: most tasks of each source, chosen by a stable hash of their ids; -1 for all.
    """

    def __init__(
        self,
        data_files: str | list[str],
        tokenizer: Any = None,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        purpose = data_files if isinstance(data_files, str) else ", ".join(data_files)
        if purpose not in TASKS_OF:
            raise ConfigError(
                f"data.train_files and data.val_files must be the purpose of the tasks, got {purpose!r}. Allowed: "
                f"{', '.join(TASKS_OF)}. Choose the tasks with env.train_tasks, env.dev_tasks and env.eval_tasks."
            )
        self.rows: list[dict[str, str]] = []
        """Columns of each task, see `verl_agent.training.rollout_row.RolloutRow`."""
        self._order: MixtureOrder | None = None
        plan = RUN.get()
        envs = plan.envs
        for one, splits in zip(envs, split_tasks(envs), strict=True):
            source, items = TASKS_OF[purpose](one.env, splits)
            kept = sample_tasks(items, max_samples) if max_samples > 0 else items
            own = {"purpose": purpose, "env_label": one.label, "tasks": source}
            self.rows += [{**own, "task_id": item.id} for item in kept]
        if len(envs) > 1 and purpose == "train":
            labels = [row["env_label"] for row in self.rows]
            sizes = {label: labels.count(label) for label in dict.fromkeys(labels)}
            self._first_rows = {label: labels.index(label) for label in sizes}
            self._order = MixtureOrder(sizes, [one.weight for one in envs], plan.batch.seed)

    def __len__(self) -> int:
        return ENDLESS if self._order else len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the columns for the rollout; `dummy_tensor` because verl's batches need a tensor."""
        if self._order:
            label, number = self._order.at(index)
            row = self.rows[self._first_rows[label] + number]
        else:
            row = self.rows[index]
        return {
            "raw_prompt": [],
            "data_source": row["env_label"],
            "agent_name": "verl_agent",
            **row,
            "index": index,
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        }
