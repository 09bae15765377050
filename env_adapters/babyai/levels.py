"""The 40 levels of BabyAI in AgentGym, in its order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
        "OpenRedBlueDoorsDebug",
        "Open",
        "OpenTwoDoors",
        {"first_color": "red", "second_color": "blue", "strict": True},
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
