"""The 40 levels of BabyAI in AgentGym, in its order, and their task items, split by seed.

AgentGym's 900 items are the seeds 0 to 22 of the 40 levels. Training never uses those grids, so a model trained here
can be evaluated on AgentGym's items too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_agent.types import TaskItem


@dataclass(frozen=True, slots=True)
class Level:
    """Generator of one kind of grid and mission.

    Attributes:
        name: name in BabyAI, without prefix and version.
        category: group in evaluation reports: one of the paper's six, or the family of the level.
        builder: name of the class in `minigrid.envs.babyai`.
    """

    name: str
    category: str
    builder: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


LEVELS = (
    Level("GoToRedBallGrey", "GoTo", "GoToRedBallGrey"),
    Level("GoToRedBall", "GoTo", "GoToRedBall"),
    Level("GoToRedBallNoDists", "GoTo", "GoToRedBallNoDists"),
    Level("GoToObjS4", "GoTo", "GoToObj", {"room_size": 4}),  # minigrid 2 and AgentGym call it GoToObjS6
    Level("GoToLocalS8N7", "GoTo", "GoToLocal", {"room_size": 8, "num_dists": 7}),
    Level("GoToObjMazeS7", "GoTo", "GoTo", {"num_dists": 1, "room_size": 7}),
    Level("GoToImpUnlock", "GoTo", "GoToImpUnlock"),
    Level("GoToSeqS5R2", "GoTo", "GoToSeq", {"room_size": 5, "num_rows": 2, "num_cols": 2, "num_dists": 4}),
    Level("GoToRedBlueBall", "GoTo", "GoToRedBlueBall"),
    Level("GoToDoor", "GoTo", "GoToDoor"),
    Level("GoToObjDoor", "GoTo", "GoToObjDoor"),
    Level("Open", "Open", "Open"),
    Level("OpenRedDoor", "Open", "OpenRedDoor"),
    Level("OpenDoorLoc", "Open", "OpenDoor", {"select_by": "loc"}),
    Level(
        "OpenRedBlueDoorsDebug", "Open", "OpenTwoDoors", {"first_color": "red", "second_color": "blue", "strict": True}
    ),
    Level("OpenDoorsOrderN4Debug", "Open", "OpenDoorsOrder", {"debug": True, "num_doors": 4}),
    Level("Pickup", "Pickup", "Pickup"),
    Level("UnblockPickup", "Pickup", "UnblockPickup"),
    Level("PickupLoc", "Pickup", "PickupLoc"),
    Level("PickupDistDebug", "Pickup", "PickupDist", {"debug": True}),
    Level("PickupAbove", "Pickup", "PickupAbove"),
    Level("PutNextLocalS6N4", "PutNext", "PutNextLocal", {"room_size": 6, "num_objs": 4}),
    Level("PutNextS7N4Carrying", "PutNext", "PutNext", {"room_size": 7, "objs_per_room": 4, "start_carrying": True}),
    Level("Unlock", "Unlock", "Unlock"),
    Level("UnlockLocalDist", "Unlock", "UnlockLocal", {"distractors": True}),
    Level("KeyInBox", "Unlock", "KeyInBox"),
    Level("UnlockPickupDist", "Unlock", "UnlockPickup", {"distractors": True}),
    Level("BlockedUnlockPickup", "Unlock", "BlockedUnlockPickup"),
    Level("UnlockToUnlock", "Unlock", "UnlockToUnlock"),
    Level("ActionObjDoor", "ActionObjDoor", "ActionObjDoor"),
    Level("FindObjS7", "FindObjS7", "FindObjS5", {"room_size": 7}),
    Level("KeyCorridorS6R3", "KeyCorridor", "KeyCorridor", {"room_size": 6, "num_rows": 3}),
    Level("OneRoomS20", "OneRoomS20", "OneRoomS8", {"room_size": 20}),
    Level("MoveTwoAcrossS8N9", "PutNext", "MoveTwoAcross", {"room_size": 8, "objs_per_room": 9}),
    Level("SynthS5R2", "Synth", "Synth", {"room_size": 5, "num_rows": 2}),
    Level("SynthLoc", "SynthLoc", "SynthLoc"),
    Level("SynthSeq", "Synth", "SynthSeq"),
    Level("MiniBossLevel", "Boss", "MiniBossLevel"),
    Level("BossLevel", "Boss", "BossLevel"),
    Level("BossLevelNoUnlock", "Boss", "BossLevelNoUnlock"),
)

PAPER_CATEGORIES = ("GoTo", "Pickup", "ActionObjDoor", "FindObjS7", "OneRoomS20", "SynthLoc")
"""Groups of levels in the paper."""

EASY_LEVELS = (
    "GoToRedBallNoDists",
    "GoToObjS4",
    "GoToDoor",
    "OpenRedDoor",
    "OpenDoorLoc",
    "OpenRedBlueDoorsDebug",
    "OpenDoorsOrderN4Debug",
    "PickupDistDebug",
    "PickupAbove",
)
"""Levels with few visible objects, whose missions the oracle completes in at most seven commands."""

LEVEL_BY_NAME = {level.name: level for level in LEVELS}


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
        level_item(level, seed)
        for level in group_levels(group)
        for seed in seeds
        if seed not in IMPOSSIBLE.get(level.name, ()) and seed not in TWINS.get(level.name, ())
    ]


def group_levels(group: str) -> Sequence[Level]:
    """Return the levels of the group `all`, `paper` or `easy`."""
    if group == "paper":
        return [level for level in LEVELS if level.category in PAPER_CATEGORIES]
    return [level for level in LEVELS if level.name in EASY_LEVELS] if group == "easy" else LEVELS


def level_item(level: Level, seed: int) -> TaskItem:
    """Return the task item of one level and seed."""
    return TaskItem("babyai", f"{level.name}:{seed}", {"level": level.name, "seed": seed}, level.category)
