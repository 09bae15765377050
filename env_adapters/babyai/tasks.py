"""Task items of BabyAI, split by seed so that no grid is in both training and test.

AgentGym's 900 items are the seeds 0 to 22 of the 40 levels. Training never uses those grids, so a model trained here
can be evaluated on AgentGym's items too.
"""

from collections.abc import Sequence

from env_adapters.babyai.levels import EASY_LEVELS, LEVELS, PAPER_CATEGORIES, Level
from verl_agent.types import TaskItem

TRAIN_SEEDS = range(100, 200)
TEST_SEEDS = range(5)
EASY_TEST_SEEDS = range(13)
"""More seeds than `TEST_SEEDS`, since there are few easy levels."""
IMPOSSIBLE = {"GoToImpUnlock": (107, 110, 157, 163, 169, 171), "Unlock": (161, 165, 178)}
"""Excluded training seeds: every key to the locked room lies inside it. Minigrid 3.2.0 tries to prevent this, but
compares room numbers with `is`, which is never true for numpy's integers (unlock.py, goto.py)."""

TWINS = {
    "GoToObjS4": (101, 113, 126, 140, 152, 160, 179, 198),
    "OpenRedDoor": (
        101, 102, 109, 114, 119, 124, 132, 138, 141, 152, 154, 156, 165, 168, 170, 174,
        180, 182, 183, 184, 189, 191, 194, 198, 199,
    ),
}  # fmt: skip
"""Excluded training seeds: in these small levels they build the same grid as a seed from 0 to 22."""


def split_items(split: str) -> list[TaskItem]:
    """Return the items of a split: all levels, the paper's categories (`paper_`), or the easy levels (`easy_`)."""
    group, part = split.split("_") if "_" in split else ("all", split)
    test_seeds = EASY_TEST_SEEDS if group == "easy" else TEST_SEEDS
    seeds = TRAIN_SEEDS if part == "train" else test_seeds
    return [
        task_item(level, seed)
        for level in group_levels(group)
        for seed in seeds
        if seed not in IMPOSSIBLE.get(level.name, ()) and seed not in TWINS.get(level.name, ())
    ]


def group_levels(group: str) -> Sequence[Level]:
    """Return the levels of the group `all`, `paper` or `easy`."""
    if group == "paper":
        return [level for level in LEVELS if level.category in PAPER_CATEGORIES]
    return [level for level in LEVELS if level.name in EASY_LEVELS] if group == "easy" else LEVELS


def task_item(level: Level, seed: int) -> TaskItem:
    """Return the task item of one level and seed."""
    return TaskItem("babyai", f"{level.name}:{seed}", {"level": level.name, "seed": seed}, level.category)
