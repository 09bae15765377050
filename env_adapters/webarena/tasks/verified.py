"""Tasks of WebArena-Verified: the 812 tasks of WebArena with audited intents and references."""

import json
from collections.abc import Sequence
from functools import cache

from env_adapters.webarena.grading.verified import KIND, data_file
from env_adapters.webarena.tasks.items import make_item
from env_adapters.webarena.tasks.site_urls import TABS
from verl_agent.types import TaskItem

FILE = "webarena-verified.json"
ORIGINAL_FILE = "test.raw.json"
HARD_FILE = "subsets/webarena-verified-hard.json"
HARD = "hard"
"""Split with the 258 tasks that the authors select as difficult."""
START_FIELDS = ("require_login", "storage_state", "geolocation", "require_reset")
"""Fields that only the original tasks have."""


@cache
def verified_items() -> Sequence[TaskItem]:
    """Return all tasks, in the order of the package.

    Raises:
        ConfigError: the package is not installed.
    """
    originals = {task["task_id"]: task for task in json.loads(data_file(ORIGINAL_FILE).read_text(encoding="utf-8"))}
    items = []
    for task in json.loads(data_file(FILE).read_text(encoding="utf-8")):
        fields = {name: originals[task["task_id"]].get(name) for name in START_FIELDS}
        fields |= {name: task[name] for name in ("task_id", "sites", "intent", "intent_template_id")}
        fields |= {"start_url": TABS.join(task["start_urls"]), "eval": {"eval_types": [KIND]}}
        items.append(make_item(fields))
    return tuple(items)


def hard_items(items: Sequence[TaskItem]) -> list[TaskItem]:
    """Return the tasks of the split `hard`."""
    ids = set(map(str, json.loads(data_file(HARD_FILE).read_text(encoding="utf-8"))["task_ids"]))
    return [item for item in items if item.id in ids]
