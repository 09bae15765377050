"""Names, rules and rewards of environments that Gymnasium describes only in its documentation."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownEnv:
    """Description of an environment for a model.

    Attributes:
        rules: explanation of the game.
        actions: name of each action, by its number.
        parts: name of each number of an observation.
        invalid_reward: reward of a text that names no action; not above that of a step.
        success: return from which a task counts as solved; None for the threshold of Gymnasium's registry.
        end_reward: reward that is added at the end of a game, where an unfinished one would be worth more than a
            finished one.
    """

    rules: str = ""
    actions: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    invalid_reward: float = 0.0
    success: float | None = None
    end_reward: float = 0.0


COMPASS = ("left", "down", "right", "up")
CLIFF = KnownEnv(
    "You are x. Walk to T. Every step costs 1. C is the cliff: stepping on it costs 100 and brings you back.",
    ("up", "right", "down", "left"),
    invalid_reward=-1.0,
    success=1.0,  # no return tells a success from a short failure, so no task counts as solved
)
KNOWN = {
    "FrozenLake": KnownEnv(
        "Walk over frozen cells (F) to the goal (G). Holes (H) end the game. You are in brackets.", COMPASS
    ),
    "Taxi": KnownEnv(
        "Pick the passenger up and drop them at the destination. `|` is a wall, `:` can be crossed.",
        ("south", "north", "east", "west", "pickup", "dropoff"),
        invalid_reward=-1.0,
        success=0.5,  # 20 for the dropoff, -1 for each step
    ),
    "CliffWalking": CLIFF,
    "CliffWalkingSlippery": CLIFF,
    "Blackjack": KnownEnv(
        "Get closer to 21 than the dealer without exceeding it.",
        ("stick", "hit"),
        ("your sum", "the dealer shows", "your usable aces"),
        success=2.0,
        end_reward=1.0,  # a loss is 0 as is an unfinished game, a draw 1, and a win 2
    ),
    "CartPole": KnownEnv(
        "Keep the pole upright.",
        ("left", "right"),
        ("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    ),
    "MountainCar": KnownEnv(
        "Drive to the flag at position 0.5. Swing to gain speed. Every step costs 1.",
        ("left", "coast", "right"),
        ("position", "velocity"),
        invalid_reward=-1.0,
    ),
    "Acrobot": KnownEnv(
        "Swing the free end of two links above the line. Every step costs 1.",
        ("negative", "none", "positive"),
        ("cos 1", "sin 1", "cos 2", "sin 2", "angular velocity 1", "angular velocity 2"),
        invalid_reward=-1.0,
    ),
}
"""Environments by the name of their id without version; an id with a namespace is somebody else's."""
GRID = KnownEnv(
    "You move in a grid and see the cells ahead. Turning left or right keeps your place.",
    success=0.05,  # a success earns at least 0.1, everything else 0
)
"""MiniGrid, which names its actions itself."""
