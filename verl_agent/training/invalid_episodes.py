"""Reports of episodes that have no row in the batch: agent loops write them, the sampler reads why rows are missing.

A report is a tag in a partition of TransferQueue of its own, so that verl's replay buffer takes it for no row.
"""

from collections.abc import Collection, Mapping
from typing import Any

import transfer_queue as tq

from verl_agent.errors import EnvErrorLimitError
from verl_agent.trace.episode_summary import EpisodeSummary
from verl_agent.training.groups import group_of
from verl_agent.types import StopReason

READ_RECORDS = (
    "The episode records (episode.record_dir) hold the errors. Fix the environment, or raise env.timeout_s or "
    "env.retries."
)
SHORTEN_PROMPTS = "For the prompts, raise data.max_prompt_length or set data.overlong_prompt=truncate_observation."
PARTITION = "invalid_{}"
"""Partition of the reports, by verl's partition of the episodes: `train` or `val`."""


async def report_invalid(partition_id: str, group: str, sample: int, summary: EpisodeSummary) -> None:
    """Report an episode that is not valid."""
    await tq.async_kv_put(f"{group}_{sample}", PARTITION.format(partition_id), tag=summary.to_fields())


def take_reports(
    partitions: Mapping[str, Mapping[str, Any]],
    partition_id: str,
    groups: Collection[str],
    others: Collection[str] = (),
) -> list[EpisodeSummary]:
    """Return the reports of some groups and remove them from TransferQueue, with those of groups that are gone.

    Args:
        partitions: tags by key, by partition, as the replay buffer has polled them.
        others: uids of the prompts that are played or wait for a later step; their reports stay.
    """
    name = PARTITION.format(partition_id)
    reports = partitions.get(name, {})
    done = [key for key in reports if group_of(key) not in others]
    if done:
        tq.kv_clear(partition_id=name, keys=done)
    return [EpisodeSummary.from_fields(tag) for key, tag in reports.items() if group_of(key) in groups]


def check_invalid_rate(
    lost: int, total: int, reports: Collection[EpisodeSummary], allowed: float, action_errors: int = 0
) -> None:
    """Check the share of episodes that are not valid or ended with an action error.

    Args:
        action_errors: number of the others that ended with an action error. If every action fails, the environment is
            broken.

    Raises:
        EnvErrorLimitError: the share is larger than `allowed`, or no episode is valid.
    """
    failed = lost + action_errors
    if lost < total and failed / total <= allowed:
        return
    overlong = sum(summary.stop is StopReason.OVERLONG_PROMPT for summary in reports)
    parts, advice = [], []
    if lost > overlong:
        parts.append(f"{lost - overlong} failed in their environment after all retries")
    if action_errors:
        parts.append(f"{action_errors} ended at an action that raises the same error in every fresh session")
    if parts:
        advice.append(READ_RECORDS)
    if overlong:
        parts.append(f"{overlong} have a prompt longer than data.max_prompt_length")
        advice.append(SHORTEN_PROMPTS)
    raise EnvErrorLimitError(
        f"{failed} of {total} episodes of this step {'have errors' if action_errors else 'are not valid'}: "
        f"{', '.join(parts)}. env.max_env_error_rate allows {allowed:.0%}. {' '.join(advice)}"
    )
