"""Choose the recorded episodes that a model shall learn from, and how much each of them counts.

Knows records and text, neither tokens nor tensors.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.trace.record import EpisodeRecord, to_episode
from verl_agent.trace.record_files import read_records
from verl_agent.types import Message

WEIGHTS = ("none", "reward", "task")

TaskKey = tuple[str, str]
"""Environment and id of a task."""


@dataclass(frozen=True, slots=True)
class EpisodeSource:
    """Section `episodes` of supervised training: what is learnt from.

    Attributes:
        oracle: the oracle's episodes of env.train_tasks, each counting 1.
        records: recorded episodes besides: files and folders of them.
        min_reward: least return of a recorded episode; null for those that solved their task.
        per_task: most recorded episodes of a task, the best and then the shortest first; null for all.
        weight: how much the tokens of a recorded episode count. `none`: 1. `reward`: its return divided by the one
            that solves the task, at least 0, which is r(e, u, τ) of AgentEvol (arXiv 2406.04151, J_Evol). `task`: 1
            divided by the number of episodes kept of its task, so that easy tasks do not crowd out hard ones.
    """

    oracle: bool = True
    records: Sequence[str] = ()
    min_reward: float | None = None
    per_task: int | None = None
    weight: str = "none"

    def __post_init__(self) -> None:
        if isinstance(self.records, str):
            object.__setattr__(self, "records", [self.records])
        if self.per_task is not None and self.per_task < 1:
            raise ConfigError(f"episodes.per_task must be >= 1 or null, got {self.per_task}.")
        if self.weight not in WEIGHTS:
            raise ConfigError(f"episodes.weight={self.weight!r} is not known. {did_you_mean(self.weight, WEIGHTS)}")
        if not self.oracle and not self.records:
            raise ConfigError(
                "episodes.oracle=false and episodes.records=[] leave nothing to learn from. Name recorded episodes, "
                "such as the output folder of `verl-agent eval`."
            )


@dataclass(frozen=True, slots=True)
class ChosenEpisode:
    """A recorded episode to learn from.

    Attributes:
        record: the episode.
        weight: factor of its tokens in the loss, > 0.
    """

    record: EpisodeRecord
    weight: float


def usable_records(paths: Sequence[str], key: str, held_out: frozenset[TaskKey] | None = None) -> list[EpisodeRecord]:
    """The sound episodes with a reply that were not played to validate a run.

    Args:
        paths: files and folders of records.
        key: the setting that names them, for messages.
        held_out: tasks that must not be learnt from; None where that has been checked.

    Raises:
        ConfigError: a path does not exist, a line is not a valid record, an episode is of a held-out task, or
            was played to evaluate an environment whose held-out tasks are not known, or there is nothing to learn from.
    """
    try:
        found = list(read_records(paths))
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    usable = [
        record for record in found if record["purpose"] != "validation" and record["turns"] and to_episode(record).valid
    ]
    _check_evaluated(usable, key, held_out)
    seen = {(record["env"], record["task"]) for record in usable} & (held_out or frozenset())
    if seen:
        env, task = min(seen)
        raise ConfigError(
            f"{key} holds episodes of {len(seen)} held-out tasks, such as {task!r} of env {env!r}. Play the tasks of "
            "env.train_tasks and learn from these, or choose another env.eval_tasks."
        )
    if not usable:
        raise ConfigError(
            f"{key}={list(paths)} holds no episode to learn from, of {len(found)} on record: validations, failed "
            "environments and episodes without a reply do not count."
        )
    return usable


def _check_evaluated(records: Sequence[EpisodeRecord], key: str, held_out: frozenset[TaskKey] | None) -> None:
    """Refuse an evaluation of an environment of whose tasks none are known to be held out."""
    known = {env for env, _ in held_out or ()}
    for record in records:
        if held_out is not None and record["purpose"] == "evaluation" and record["env"] not in known:
            raise ConfigError(
                f"{key} holds an evaluation of env {record['env']!r}, whose held-out tasks this recipe does not name. "
                "Episodes to learn from are played with evaluation.purpose=collection, on tasks to train on."
            )


def select_episodes(records: Iterable[EpisodeRecord], settings: EpisodeSource) -> list[ChosenEpisode]:
    """Keep what was rewarded, each conversation once, in an order that does not depend on that of the records.

    Returns:
        The episodes of each task from the best to the worst, by environment and task; may be empty.
    """
    by_task: dict[TaskKey, dict[str, EpisodeRecord]] = defaultdict(dict)
    for record in records:
        if _rewarded(record, settings.min_reward):
            by_task[record["env"], record["task"]].setdefault(fingerprint(record["messages"]), record)
    chosen: list[ChosenEpisode] = []
    for task in sorted(by_task):
        ranked = sorted(by_task[task].items(), key=lambda one: (-one[1]["reward"], len(one[1]["turns"]), one[0]))
        kept = [record for _, record in islice(ranked, settings.per_task)]
        chosen += [ChosenEpisode(record, _weight(record, settings.weight, len(kept))) for record in kept]
    return [episode for episode in chosen if episode.weight > 0]


def count_by_environment(episodes: Iterable[ChosenEpisode]) -> dict[str, int]:
    """How many episodes are of each environment."""
    return dict(Counter(episode.record["env"] for episode in episodes))


def conversation(record: EpisodeRecord) -> list[Message]:
    """The messages up to the last reply: what follows it was never answered."""
    messages = list(record["messages"])
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def prompt(record: EpisodeRecord) -> list[Message]:
    """What was said before the first reply."""
    roles = [message["role"] for message in record["messages"]]
    return list(record["messages"][: roles.index("assistant")])


def fingerprint(content: object) -> str:
    """A short hash of JSON values, the same on every machine."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _rewarded(record: EpisodeRecord, min_reward: float | None) -> bool:
    return record["success"] if min_reward is None else record["reward"] >= min_reward


def _weight(record: EpisodeRecord, kind: str, kept: int) -> float:
    if kind == "reward":
        return max(0.0, record["reward"] / record["success_reward"])
    return 1.0 / kept if kind == "task" else 1.0
