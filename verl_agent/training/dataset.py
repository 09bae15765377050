"""verl's training data, straight from an environment's task items: no parquet file in between."""

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
"""Length of a mixture that is trained on: longer than any run."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """What the rollout is told of a task."""

    purpose: str
    env_label: str
    tasks: str
    task_id: str


class TaskDataset(Dataset[dict[str, Any]]):
    """One row an item; verl creates it through `data.custom_cls`.

    The conversation begins in the environment, so a row has no prompt: the rollout asks the adapter. The training
    rows of a mixture are endless and in the order in which they are played (`MixtureOrder`).

    Args:
        data_files: `train:<tasks>` or `validation:<tasks>`, see `verl_agent.envs.tasks.select_tasks`; of a mixture
            only the purpose counts, each part names its own tasks.
        tokenizer: not used; part of verl's call.
        config: verl's section `data`, with `env_name`, `env_options`, `env_mixture` and `seed`.
        processor: not used.
        max_samples: keep so many items of each source, drawn by a stable hash of their ids; -1 for all.
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
            alone = {"name": config.env_name, "options": OmegaConf.to_container(config.env_options)}
            for part in mixture or [alone]:
                options = part.get("options") or {}
                chosen = part.get(f"{'train' if purpose == 'train' else 'eval'}_tasks", tasks)
                items = select_tasks(part["name"], chosen, options)
                kept = sample_tasks(items, max_samples) if max_samples > 0 else items
                label = part.get("label") or part["name"]
                self.rows += [TaskRow(purpose, label, chosen, item.id) for item in kept]
            if mixture and purpose == "train":
                labels = [row.env_label for row in self.rows]
                sizes = {label: labels.count(label) for label in dict.fromkeys(labels)}
                self._begins = {label: labels.index(label) for label in sizes}
                self._order = MixtureOrder(sizes, [float(part.get("weight", 1.0)) for part in mixture], config.seed)

    def __len__(self) -> int:
        return ENDLESS if self._order else len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Columns that reach the rollout; `dummy_tensor` because verl's batches want a tensor."""
        if self._order:
            label, number = self._order.at(index)
            row = self.rows[self._begins[label] + number]
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
