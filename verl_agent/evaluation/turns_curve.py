"""Success within k turns for every k, from one evaluation with the longest turn limit."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl_agent.agents.registry import OPTION
from verl_agent.evaluation.results import final_records
from verl_agent.evaluation.statistics import Estimate, clustered_wilson_interval
from verl_agent.trace.record import EpisodeRecord, to_episode
from verl_agent.trace.turn_record import TurnRecord


def knows_turn_limit(agent_options: Mapping[str, Any]) -> bool:
    """Return True if the agent tells the model how many turns are left.

    Its replies then depend on the limit, and a longer evaluation says nothing about a shorter one.
    """
    return bool(agent_options.get(OPTION))


def success_within_turns(records: Iterable[EpisodeRecord]) -> dict[int, Estimate]:
    """Return the success rate within k turns, for k from 1 to the largest turn limit, with intervals over tasks.

    It is the success rate of an evaluation with turn limit k if the replies do not depend on the limit. Neither the
    prompt nor the context tells it (see `knows_turn_limit`).

    Args:
        records: records of one evaluation; of the attempts of an episode the last one counts, if it is valid and no
            person intervened.

    Returns:
        An empty dict without a valid episode.
    """
    ended = [(record, to_episode(record)) for record in final_records(records)]
    valid = [record for record, episode in ended if episode.valid and not episode.operated]
    curve = {}
    for limit in range(1, max((record["max_turns"] for record in valid), default=0) + 1):
        solved: dict[str, list[float]] = defaultdict(list)
        for record in valid:
            solved[record["task"]].append(float(return_within(record["turns"], limit) >= record["success_reward"]))
        curve[limit] = clustered_wilson_interval(solved)
    return curve


def return_within(turns: Sequence[TurnRecord], limit: int) -> float:
    """Return the return of the first `limit` turns."""
    return sum(turn["reward"] for turn in turns[:limit])
