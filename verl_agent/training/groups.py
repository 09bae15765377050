"""Groups of a batch: verl's keys of rows, and groups whose episodes have equal returns."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

from verl_agent.returns import is_uniform

T = TypeVar("T")
Part: TypeAlias = tuple[str, str]
"""Group and seat of the episodes that are compared with one another; the seat is "" where one policy plays alone."""

UNIFORM = "uniform"
"""Tag of a row, True if the episodes of its `Part` have equal returns; `EpisodeSampler` sets it."""


def group_of(key: str) -> str:
    """Return the group of a row or an episode; verl's key of a row is `<group>_<sample>_<segment>`."""
    return key.split("_")[0]


def episode_key(key: str) -> str:
    """Return the key `<group>_<sample>` of a row's episode."""
    return key.rsplit("_", 1)[0]


def row_order(key: str) -> tuple[str, int, int]:
    """Return the sort key of a row: group, sample, segment. Groups of `EpisodeTrainer` sort in the order of tasks."""
    group, sample, segment = key.rsplit("_", 2)
    return group, int(sample), int(segment)


def parts_of_equal_returns(returns: Mapping[str, float], seats: Mapping[str, str]) -> set[Part]:
    """Return the parts whose episodes all have the same return; `seats` as in `by_part`."""
    return {part for part, values in by_part(returns, seats).items() if is_uniform(values)}


def by_part(values: Mapping[str, T], seats: Mapping[str, str]) -> dict[Part, list[T]]:
    """Return the values of episodes by group and seat.

    Args:
        seats: seat of each episode in an arena, or another text that all episodes of a group share.
    """
    of_part: dict[Part, list[T]] = defaultdict(list)
    for episode, value in values.items():
        of_part[group_of(episode), seats.get(episode, "")].append(value)
    return of_part
