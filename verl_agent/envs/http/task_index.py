"""Index of a server's tasks: by number in one split, by name in all splits."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from verl_agent.envs.action_format import action_format_to_json
from verl_agent.envs.base import read_success_reward
from verl_agent.envs.http.requests import RequestError
from verl_agent.envs.parsing import shorten
from verl_agent.envs.registry import list_tasks, make_env
from verl_agent.envs.tasks import stable_hash, task_contents
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import TaskItem


class TaskIndex:
    """Tasks that a server offers.

    Args:
        options: keyword arguments of its adapter; in some environments they change the tasks.
        split: split to which item numbers refer.
    """

    def __init__(self, env: str, options: Mapping[str, Any], split: str) -> None:
        adapter = make_env(env, options)
        if split not in adapter.splits:
            raise ConfigError(f"env {env!r} has no split {split!r}. {did_you_mean(split, adapter.splits)}")
        self.env, self.split = env, split
        self.success_reward, self.action_format = read_success_reward(adapter), adapter.action_format
        self.deterministic, self.seeded = bool(adapter.deterministic), bool(adapter.seeded)
        self.ends_failed_tasks = bool(adapter.ends_failed_tasks)
        self.splits: Mapping[str, Sequence[TaskItem]] = {
            name: list(list_tasks(adapter, name).values()) for name in adapter.splits
        }
        self._by_name = {item.id: item for items in self.splits.values() for item in items}

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def numbered(self) -> Sequence[TaskItem]:
        """Items of the split to which numbers refer, counted from 0."""
        return self.splits[self.split]

    def find(self, key: object) -> TaskItem:
        """Return the item with this number or name."""
        if isinstance(key, int) and not isinstance(key, bool):
            if not 0 <= key < len(self.numbered):
                allowed = f"0 to {len(self.numbered) - 1}, the items of split {self.split!r}"
                raise RequestError(422, f"there is no item {shorten(str(key), 30)}. Allowed: {allowed}.")
            return self.numbered[key]
        if not isinstance(key, str) or key not in self._by_name:
            raise RequestError(
                422, f"there is no item {shorten(repr(key), 60)}. GET /tasks?split={self.split} lists them."
            )
        return self._by_name[key]

    def describe(self) -> dict[str, Any]:
        """Return the description that `/info` sends; equal digests mean equal tasks and properties."""
        return {**self._properties, "split": self.split, "digest": self.digest}

    @property
    def _properties(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "splits": {name: len(items) for name, items in self.splits.items()},
            "success_reward": self.success_reward,
            "deterministic": self.deterministic,
            "seeded": self.seeded,
            "ends_failed_tasks": self.ends_failed_tasks,
            "form": action_format_to_json(self.action_format),
        }

    @cached_property
    def digest(self) -> str:
        """Digest of all tasks and properties."""
        contents = {name: task_contents(items) for name, items in self.splits.items()}
        return stable_hash(repr((self.action_format, sorted(self._properties.items()), contents)))

    def list_split(self, split: str) -> list[dict[str, str]]:
        """Return names and categories of one split. The data is left out because it may hold answers."""
        if split not in self.splits:
            raise RequestError(422, f"there is no split {shorten(split, 60)!r}. {did_you_mean(split, self.splits)}")
        return [{"id": item.id, "category": item.category} for item in self.splits[split]]
