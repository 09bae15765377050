"""Groups of a batch: verl's keys of rows, and groups whose episodes have equal returns."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeVar

from verl_agent.trace.returns import is_uniform

T = TypeVar("T")

UNIFORM = "uniform"
"""Tag of a row, True if the episodes of its group have equal returns; `EpisodeSampler` sets it."""


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


def groups_of_equal_returns(returns: Mapping[str, float]) -> set[str]:
    """Return the groups whose episodes all have the same return."""
    return {group for group, values in by_group(returns).items() if is_uniform(values)}


def by_group(values: Mapping[str, T]) -> dict[str, list[T]]:
    """Return the values of episodes by group."""
    of_group: dict[str, list[T]] = defaultdict(list)
    for episode, value in values.items():
        of_group[group_of(episode)].append(value)
    return of_group
