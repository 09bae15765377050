"""Demonstrations from the simulator's gold paths, with a thought for each action."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from env_adapters.scienceworld.simulator import SimulatorSession

MOVES = ("go ", "open door ")

THOUGHTS = {
    "look": "I look at what is here.",
    "open": "It is closed, so I open it.",
    "close": "I close it again.",
    "go": "The next part of the task is elsewhere, so I go there.",
    "focus": "This is what the task asks for, so I focus on it.",
    "pick": "I will need this, so I take it along.",
    "drop": "My hands should be free, so I put it down.",
    "move": "It belongs there, so I move it.",
    "pour": "It has to be in the other container, so I pour it.",
    "use": "I use this tool to go on.",
    "examine": "I check what has become of it.",
    "activate": "It only works when it is on, so I switch it on.",
    "deactivate": "It is no longer needed, so I switch it off.",
    "connect": "The circuit needs this connection.",
    "mix": "Everything is in one container, so I mix it.",
    "read": "It may say what I need, so I read it.",
    "wait": "This needs time, so I wait.",
    "wait1": "This needs a moment, so I wait.",
}
"""Thought for each action, by its first word."""


@lru_cache(maxsize=4096)
def solution(task: str, variation: int) -> tuple[str, ...]:
    """Return commands that solve a task: the gold path with a `look around` at each place where it acts.

    The gold path acts on objects that it has not observed, which would teach a policy to guess. Looking takes no time.
    """
    world = SimulatorSession(task, variation, gold=True)
    try:
        return tuple(with_looks(world.gold_path()))
    finally:
        world.close()


def with_looks(path: Iterable[str]) -> Iterator[str]:
    """Yield `path` with `look around` between an arrival and the next action."""
    arrived = False
    for command in path:
        if arrived and not command.startswith((*MOVES, "look around")):
            yield "look around"
        yield command
        arrived = command.startswith("go ")


def thought_for(command: str) -> str:
    """Return the thought for `command`."""
    return THOUGHTS.get(command.split()[0], "This is the next step of the task.")
