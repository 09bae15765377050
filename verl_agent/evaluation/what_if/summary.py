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
    """

    policy: Key
    with_thought: bool
    replies: int
    actions: list[ActionShare]
    changed: Estimate


@dataclass(frozen=True, slots=True)
class ThoughtEffect:
    """Replies without a thought, compared with ordinary replies at the same turn.

    Attributes:
        ordinary: share of ordinary replies whose action is not the recorded one: the effect of sampling alone.
        without: the same share without the thought.
        difference: `without` minus `ordinary`.
    """

    ordinary: Estimate
    without: Estimate
    difference: Estimate


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
    pooled: dict[tuple[Key, bool], list[Replies]] = defaultdict(list)
    for result in results:
        if result["kind"] == "replies":
            pooled[_policy(result), result["with_thought"]].append(result)
    summaries = []
    for (policy, with_thought), parts in sorted(pooled.items(), key=lambda entry: (entry[0][0], not entry[0][1])):
        samples = _distinct((part, part["replies"]) for part in parts)
        if samples:
            summaries.append(_reply_summary(policy, with_thought, samples, comparable(recorded)))
    return summaries


def _reply_summary(policy: Key, with_thought: bool, samples: list[SampledReply], recorded: str | None) -> ReplySummary:
    counts = Counter(comparable(sample["action"]) for sample in samples)
    shares = [
        ActionShare(
            action,
            count,
            wilson_interval(count, len(samples)),
            action == recorded,
            next(sample["text"] for sample in samples if comparable(sample["action"]) == action),
        )
        for action, count in counts.most_common()
    ]
    changed = wilson_interval(len(samples) - counts[recorded], len(samples))
    return ReplySummary(policy, with_thought, len(samples), shares, changed)


def thought_effect(summaries: Sequence[ReplySummary], policy: Key) -> ThoughtEffect | None:
    """Return the effect of removing the thought for one policy; None unless both kinds of replies were sampled."""
    kinds = {one.with_thought: one for one in summaries if one.policy == policy}
    if len(kinds) < 2:
        return None
    with_thought, without = kinds[True], kinds[False]
    counts = [
        (sum(share.replies for share in summary.actions if not share.recorded), summary.replies)
        for summary in (without, with_thought)
    ]
    return ThoughtEffect(with_thought.changed, without.changed, difference_of_shares(*counts[0], *counts[1]))


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
        baseline = played.get(comparable(recorded), [])
        order = sorted(played, key=lambda action: (action != comparable(recorded), action or ""))
        for action in order:
            if episodes := played[action]:
                is_recorded = action == comparable(recorded)
                effects.append(
                    ActionEffect(
                        policy,
                        max_turns,
                        action,
                        by_action[action][-1]["source"],
                        len(episodes),
                        _failed(by_action[action]),
                        wilson_interval(_solved(episodes), len(episodes)),
                        mean_return({str(number): [one["reward"]] for number, one in enumerate(episodes)}),
                        fmean(len(episode["actions"]) for episode in episodes),
                        None if is_recorded or not baseline else _difference(episodes, baseline),
                    )
                )
    return effects


def stored_samples(results: Iterable[Result], like: Result) -> set[int]:
    """Return the indexes of the samples that are stored, also of those that failed.

    Args:
        like: a result of the same kind, policy, seed and action; its samples do not count.
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
    shared = (result["kind"], _policy(result), result["seed"])
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


def _solved(episodes: Sequence[PlayedEpisode]) -> int:
    return sum(episode["success"] for episode in episodes)


def _difference(episodes: Sequence[PlayedEpisode], baseline: Sequence[PlayedEpisode]) -> Estimate:
    return difference_of_shares(_solved(episodes), len(episodes), _solved(baseline), len(baseline))
