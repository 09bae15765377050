"""Groups of a batch: verl's keys of rows, and groups whose episodes have equal returns."""

from collections import defaultdict
from collections.abc import Mapping

from verl_agent.trace.returns import is_uniform

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


def uniform_groups(returns: Mapping[str, float]) -> set[str]:
    """Return the groups whose episodes all have the same return.

    Args:
        returns: return of each episode, by its key `<group>_<sample>`.
    """
    of_group: dict[str, list[float]] = defaultdict(list)
    for episode, value in returns.items():
        of_group[group_of(episode)].append(value)
    return {group for group, values in of_group.items() if is_uniform(values)}
