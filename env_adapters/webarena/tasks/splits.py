"""Splits of WebArena's 812 tasks, close to those of the paper.

The paper (AgentGym-RL, arXiv 2509.08755) leaves out tasks that change a site. It has 372 training tasks and 50 test
tasks (15 shopping, 15 CMS, 10 maps, 10 GitLab and Reddit), but does not list them. Here a task is read-only if
webarena-verified 1.2.3 classifies all tasks of its template as retrieval or navigation. A hash of the ids selects 50
of them, in the paper's proportions, for the test split.
"""

from collections.abc import Callable, Mapping, Sequence

from env_adapters.webarena.tasks.items import CATEGORIES, SEVERAL_SITES
from verl_agent.envs.tasks import stable_hash
from verl_agent.types import TaskItem

PAPER_TEST = {
    CATEGORIES[site]: count
    for site, count in {"shopping": 15, "shopping_admin": 15, "map": 10, "gitlab": 5, "reddit": 5}.items()
}
"""Number of test tasks by category; the paper has 10 of GitLab and Reddit together."""
# fmt: off
READ_ONLY_TEMPLATES = frozenset((
    17, 33, 35, 36, 39, 41, 42, 46, 47, 49, 51, 52, 54, 58, 59, 64, 65, 66, 67, 68, 69, 70, 72, 73, 75, 77, 78,
    79, 85, 94, 120, 134, 135, 136, 137, 138, 139, 147, 151, 155, 159, 160, 161, 162, 169, 171, 180, 182, 188,
    193, 197, 204, 206, 207, 208, 210, 211, 212, 213, 214, 222, 234, 244, 245, 248, 249, 250, 253, 255, 266,
    268, 270, 271, 274, 276, 277, 279, 285, 288, 289, 290, 291, 298, 299, 300, 303, 310, 312, 316, 320, 321,
    322, 323, 324, 325, 329, 349, 364, 366, 367, 368, 370, 371, 500, 501, 666, 781, 782, 1001, 1002, 1355, 1356,
))
# fmt: on
"""Ids of the templates whose tasks do not change a site."""


def reading_items(items: Sequence[TaskItem]) -> list[TaskItem]:
    """Return the tasks that do not change a site."""
    return [item for item in items if item.data.get("intent_template_id") in READ_ONLY_TEMPLATES]


def held_out_items(items: Sequence[TaskItem]) -> list[TaskItem]:
    """Return the test tasks."""
    test_ids: set[str] = set()
    for category, count in PAPER_TEST.items():
        ids = [item.id for item in reading_items(items) if item.category == category]
        test_ids |= set(sorted(ids, key=stable_hash)[:count])
    return [item for item in items if item.id in test_ids]


def training_items(items: Sequence[TaskItem]) -> list[TaskItem]:
    """Return the training tasks: read-only tasks of one site that are not in the test split."""
    test_ids = {item.id for item in held_out_items(items)}
    return [item for item in reading_items(items) if item.id not in test_ids and item.category != SEVERAL_SITES]


SPLITS: Mapping[str, Callable[[Sequence[TaskItem]], list[TaskItem]]] = {
    "train": training_items,
    "test": held_out_items,
    "reading": reading_items,
    "all": list,
}
"""Function that selects the items of each split among the 812."""
