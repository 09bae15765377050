"""Training data of verl, created from the task items of environments without a parquet file."""

from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.data import Dataset

from verl_agent.envs.tasks import sample_tasks, select_tasks
from verl_agent.errors import ConfigError
from verl_agent.training.mixture import MixtureOrder

PURPOSES = ("train", "validation")
ENDLESS = 10**9
"""Length of the training data of a mixture, longer than any run."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task of the dataset; see `verl_agent.training.rollout_row.RolloutRow` for the columns."""

    purpose: str
    env_label: str
    tasks: str
    task_id: str


class TaskDataset(Dataset[dict[str, Any]]):
    """Dataset with one row for each task; verl creates it through `data.custom_cls`.

    A row has no prompt: the rollout asks the environment for its first messages. The training rows of a mixture are
    endless and in the order of `MixtureOrder`.

    Args:
        data_files: `train:<tasks>` or `validation:<tasks>`, see `verl_agent.envs.tasks.select_tasks`. Each environment
            of a mixture names its own tasks, so there only the purpose counts.
        tokenizer: unused, required by verl.
        config: verl's section `data`, with `env_name`, `env_options`, `env_mixture` and `seed`.
        processor: unused, required by verl.
        max_samples: most tasks of each source, chosen by a stable hash of their ids; -1 for all.

    Raises:
        ConfigError: an entry of `data_files` has another form.
    """

    def __init__(
        self, data_files: str | list[str], tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        sources = [data_files] if isinstance(data_files, str) else list(data_files)
        mixture: Any = OmegaConf.to_container(config.env_mixture) if config.get("env_mixture") else None
        self.rows: list[TaskRow] = []
        self._order: MixtureOrder | None = None
        for source in sources:
            purpose, _, tasks = source.partition(":")
            if purpose not in PURPOSES or not tasks:
                raise ConfigError(f"data files must read `train:<tasks>` or `validation:<tasks>`, got {source!r}.")
            only_env = {"name": config.env_name, "options": OmegaConf.to_container(config.env_options)}
            for env in mixture or [only_env]:
                selection = env.get("train_tasks" if purpose == "train" else "eval_tasks", tasks)
                items = select_tasks(env["name"], selection, env.get("options") or {})
                kept = sample_tasks(items, max_samples) if max_samples > 0 else items
                label = env.get("label") or env["name"]
                self.rows += [TaskRow(purpose, label, selection, item.id) for item in kept]
            if mixture and purpose == "train":
                labels = [row.env_label for row in self.rows]
                sizes = {label: labels.count(label) for label in dict.fromkeys(labels)}
                self._first_rows = {label: labels.index(label) for label in sizes}
                self._order = MixtureOrder(sizes, [float(env.get("weight", 1.0)) for env in mixture], config.seed)

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
            "data_source": row.env_label,
            "agent_name": "verl_agent",
            "purpose": row.purpose,
            "env_label": row.env_label,
            "tasks": row.tasks,
            "task_id": row.task_id,
            "index": index,
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        }
