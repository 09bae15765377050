"""Shares of actions, and differences of success between actions, computed from stored results."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from verl_agent.evaluation.what_if.results import Continuations, PlayedEpisode, Replies, Result, SampledReply, Source
from verl_agent.results.significance import difference_of_shares
from verl_agent.results.statistics import Estimate, mean_return, wilson_interval

Key = tuple[str, float, float, str]
"""Policy of some results: model, temperature, top-p, and the checksum of the other settings."""
Sample = TypeVar("Sample", SampledReply, PlayedEpisode)


@dataclass(frozen=True, slots=True)
class ActionShare:
    """Share of one action among the replies at a turn.

    Attributes:
        action: the action, with runs of white space as one space; None for replies without an action.
        share: that number over all replies, with Wilson's interval.
        recorded: True if the recorded turn has this action.
        example: first reply with it.
    """

    action: str | None
    replies: int
    share: Estimate
    recorded: bool
    example: str


@dataclass(frozen=True, slots=True)
class ReplySummary:
    """Replies of one policy at one turn.

    Attributes:
        with_thought: False if the replies were made to begin with the action.
        changed: share of replies whose action is not the recorded one.
        difference: `changed` minus that of ordinary replies, the effect of sampling alone; None for ordinary replies,
            or without any.
    """

    policy: Key
    with_thought: bool
    replies: int
    actions: list[ActionShare]
    changed: Estimate
    difference: Estimate | None = None


@dataclass(frozen=True, slots=True)
class ActionEffect:
    """Episodes after one action at a turn, compared with those after the recorded action.

    Attributes:
        action: the action; None for a recorded reply without one.
        episodes: number of valid episodes.
        env_errors: number of episodes that are left out.
        returns: mean return, with an interval over episodes.
        turns: mean number of turns from the action on.
        difference: success minus that after the recorded action; None for the recorded action itself.
    """

    policy: Key
    max_turns: int
    action: str | None
    source: Source
    episodes: int
    env_errors: int
    success: Estimate
    returns: Estimate
    turns: float
    difference: Estimate | None


def comparable(action: str | None) -> str | None:
    """Return an action with runs of white space as one space, as `verl_agent.trace.behaviors` compares actions."""
    return None if action is None else " ".join(action.split())


def policy_name(policy: Key) -> str:
    """Return model, sampling and the checksum of the settings of a policy for people."""
    model, temperature, top_p, settings = policy
    checkpoint = re.search(r"([^/]+/global_step_\d+)(?:/|$)", model)
    name = checkpoint[1] if checkpoint else model.rstrip("/").rpartition("/")[2]
    name += f", temperature {temperature:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")
    return name + (f", settings {settings}" if settings else "")


def of_turn(results: Iterable[Result], episode: str, turn: int) -> list[Result]:
    """Return the results of one turn of an episode.

    Args:
        episode: fingerprint of the episode.
    """
    return [result for result in results if result["episode"] == episode and result["turn"] == turn]


def summarize_replies(results: Iterable[Result], recorded: str | None) -> list[ReplySummary]:
    """Return one summary for each policy, ordinary replies before those without a thought.

    Args:
        recorded: action of the recorded turn.
    """
    pooled: dict[Key, dict[bool, list[Replies]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result["kind"] == "replies":
            pooled[_policy(result)][result["with_thought"]].append(result)
    summaries = []
    for policy, kinds in sorted(pooled.items()):
        drawn = {kind: _distinct((part, part["replies"]) for part in parts) for kind, parts in kinds.items()}
        changed = {
            kind: sum(comparable(reply["action"]) != comparable(recorded) for reply in replies)
            for kind, replies in drawn.items()
        }
        for with_thought in (True, False):
            if not (replies := drawn.get(with_thought)):
                continue
            shares = _action_shares(replies, comparable(recorded))
            share, difference = wilson_interval(changed[with_thought], len(replies)), None
            if not with_thought and drawn.get(True):
                difference = difference_of_shares(changed[False], len(replies), changed[True], len(drawn[True]))
            summaries.append(ReplySummary(policy, with_thought, len(replies), shares, share, difference))
    return summaries


def _action_shares(replies: Sequence[SampledReply], recorded: str | None) -> list[ActionShare]:
    counts = Counter(comparable(reply["action"]) for reply in replies)
    first = {comparable(reply["action"]): reply["text"] for reply in reversed(replies)}
    return [
        ActionShare(action, count, wilson_interval(count, len(replies)), action == recorded, first[action])
        for action, count in counts.most_common()
    ]


def summarize_continuations(results: Iterable[Result], recorded: str | None) -> list[ActionEffect]:
    """Return one effect for each policy and action, the recorded action first.

    Args:
        recorded: action of the recorded turn.
    """
    pooled: dict[tuple[Key, int], dict[str | None, list[Continuations]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result["kind"] == "continuations":
            pooled[_policy(result), result["max_turns"]][comparable(result["action"])].append(result)
    effects: list[ActionEffect] = []
    for (policy, max_turns), by_action in sorted(pooled.items(), key=lambda entry: entry[0]):
        played = {action: _distinct((part, part["episodes"]) for part in parts) for action, parts in by_action.items()}
        solved = {action: sum(one["success"] for one in episodes) for action, episodes in played.items()}
        before = comparable(recorded)
        for action in sorted(played, key=lambda action: (action != before, action or "")):
            if not (episodes := played[action]):
                continue
            difference = None
            if action != before and played.get(before):
                base = solved[before], len(played[before])
                difference = difference_of_shares(solved[action], len(episodes), *base)
            effects.append(
                ActionEffect(
                    policy,
                    max_turns,
                    action,
                    by_action[action][-1]["source"],
                    len(episodes),
                    _failed(by_action[action]),
                    wilson_interval(solved[action], len(episodes)),
                    mean_return({str(number): [one["reward"]] for number, one in enumerate(episodes)}),
                    fmean(len(episode["actions"]) for episode in episodes),
                    difference,
                )
            )
    return effects


def stored_samples(results: Iterable[Result], like: Result) -> set[int]:
    """Return the indexes of the samples that are stored, also of those that failed.

    Args:
        like: a result of the same turn, kind, policy, seed and action; its samples do not count.
    """
    same = [result for result in results if _series(result) == _series(like)]
    failed = {index for result in same if result["kind"] == "continuations" for index in result["failed"]}
    return failed | {index for result in same for index in result["indexes"]}


def _failed(results: Iterable[Continuations]) -> int:
    """Return the number of samples that failed and that no other result has."""
    parts = list(results)
    played = {(part["seed"], index) for part in parts for index in part["indexes"]}
    return len({(part["seed"], index) for part in parts for index in part["failed"]} - played)


def _series(result: Result) -> tuple[object, ...]:
    shared = (result["episode"], result["turn"], result["kind"], _policy(result), result["seed"])
    if result["kind"] == "replies":
        return (*shared, result["with_thought"])
    return (*shared, result["max_turns"], comparable(result["action"]))


def _policy(result: Result) -> Key:
    return result["model"], result["temperature"], result["top_p"], result["settings"]


def _distinct(parts: Iterable[tuple[Result, Sequence[Sample]]]) -> list[Sample]:
    """Return the samples of several results; those with the same seed and index are equal and count once."""
    samples: dict[tuple[int, int], Sample] = {}
    for result, drawn in parts:
        for index, sample in zip(result["indexes"], drawn, strict=False):
            samples.setdefault((result["seed"], index), sample)
    return list(samples.values())
