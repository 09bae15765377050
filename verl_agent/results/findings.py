"""Findings on a run: patterns in its latest training episodes that keep it from learning, with the episodes to read."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_agent.results.results import final_records
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.trace.frame import episode_row
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.returns import is_uniform
from verl_agent.types import StopReason

LATEST = 10
"""Number of latest training steps that are looked at."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Means over the episodes of one purpose and step.

    Attributes:
        episodes: number of valid episodes; the means are over them.
        env_errors: number of episodes that ended with an environment error.
        started_at: start of the first episode, ISO 8601.
        behaviors: turns that show a behavior over all turns, by its name.
    """

    step: int
    purpose: str
    episodes: int
    env_errors: int
    reward: float
    success: float
    turns: float
    max_turns: int
    tokens: int
    seconds: float
    started_at: str
    stops: dict[str, float]
    behaviors: dict[str, float]


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence on the run.

    Attributes:
        text: symptom with its share, and its usual cause.
        parameters: filter of the episodes that show it.
        groups: True if the filter is one of groups.
    """

    text: str
    parameters: Mapping[str, str]
    groups: bool = False


_BEHAVIORS = (
    (
        "no_action",
        0.2,
        "of the replies have no action that the parser accepts. Compare one with the format that the prompt asks for.",
    ),
    (
        "invalid_action",
        0.3,
        "of the actions are invalid in the environment. Compare one with the actions that the prompt lists.",
    ),
    (
        "truncated",
        0.1,
        "of the replies are cut by a token budget. Raise episode.max_tokens_per_turn or data.max_response_length, or "
        "ask for shorter thoughts.",
    ),
    ("no_effect", 0.4, "of the actions leave the observation as it was. The agent may not see what its action did."),
    ("repeated_action", 0.4, "of the actions repeat the one before."),
    ("loop", 0.2, "of the turns are part of a loop of actions."),
    ("wrote_observation", 0.1, "of the replies contain text of the environment: the model plays both sides."),
)
"""Behavior, share of turns from which it is reported, and sentence."""


_ERRORS = {
    StopReason.ENV_ERROR: "with an error of the environment and are not trained on.",
    StopReason.ACTION_ERROR: "at an action with which the environment fails each time, and count as failed episodes. "
    "Let the adapter answer such an action with an observation.",
}
"""Stop reason of an episode with an error, and sentence."""


def find_problems(
    steps: Sequence[StepSummary], uniform: Mapping[int, tuple[int, int]], needed_turns: Mapping[int, int]
) -> list[Finding]:
    """Return what is conspicuous in the latest training steps, the likeliest causes first.

    Args:
        steps: means of each purpose and step.
        uniform: number of groups with equal returns and of all groups by training step.
        needed_turns: number of tasks by the turns that they need.
    """
    train = [at for at in steps if at.purpose == "train" and at.episodes][-LATEST:]
    if not train:
        return []
    span = {"purpose": "train", "step": f"{train[0].step}..{train[-1].step}"}
    causes = [*_environment(train, span), *_replies(train, span)]
    acts = not any("no_action" in finding.parameters for finding in causes)
    causes += _turn_limit(train, span, needed_turns, acts)
    causes += _returns(train, span)
    return [*causes, *_groups(train, span, uniform, alone=not causes)]


def summarize_step(step: int, purpose: str, by_stop: Sequence[Mapping[str, Any]]) -> StepSummary:
    """Return the means of one purpose and step.

    Args:
        by_stop: sums over the episodes of each stop reason, those in which a person intervened apart: `episodes`, and
            the columns of an episode.
    """
    every = sum(row["episodes"] for row in by_stop)
    valid = [row for row in by_stop if StopReason(row["stop"]).valid and not row["operated"]]
    count, turns = sum(row["episodes"] for row in valid), sum(row["turns"] for row in valid)
    stops = Counter[str]()
    for row in by_stop:
        stops[row["stop"]] += row["episodes"]

    def mean(name: str) -> float:
        return sum(row[name] for row in valid) / count if count else float("nan")

    return StepSummary(
        step=step,
        purpose=purpose,
        episodes=count,
        env_errors=stops[StopReason.ENV_ERROR],
        reward=mean("reward"),
        success=mean("success"),
        turns=mean("turns"),
        max_turns=max(row["max_turns"] for row in by_stop),
        tokens=sum(row["tokens"] for row in valid),
        seconds=mean("seconds"),
        started_at=min(row["started_at"] for row in by_stop),
        stops={stop: episodes / every for stop, episodes in stops.items()},
        behaviors={
            behavior.name: sum(row[behavior.name] for row in valid) / turns if turns else 0.0 for behavior in BEHAVIORS
        },
    )


SUMMED = ("reward", "success", "turns", "tokens", "seconds", *(behavior.name for behavior in BEHAVIORS))
"""Columns of an episode that are summed."""


def find_in_records(records: Iterable[EpisodeRecord]) -> list[Finding]:
    """Return the findings on the training episodes among some records, of which the latest steps count."""
    played = final_records(records)
    steps = sorted({one["step"] for one in played if one["purpose"] == "train"})[-LATEST:]
    rows = [episode_row(one) for one in played if one["purpose"] == "train" and one["step"] in steps]
    sums = defaultdict[int, defaultdict[tuple[str, bool], list[dict[str, Any]]]](lambda: defaultdict(list))
    groups = defaultdict[tuple[int, str], list[float]](list)
    needs = defaultdict[tuple[str, str], list[int]](list)
    for row in rows:
        sums[row["step"]][row["stop"], row["operated"]].append(row)
        if StopReason(row["stop"]).valid and not row["operated"]:
            returned = row["shaped_return"]
            groups[row["step"], row["group"]].append(row["reward"] if returned is None else returned)
    for one in played:
        if turns := one.get("oracle_turns") or (len(one["turns"]) if one["success"] else None):
            needs[one["env"], one["task"]].append(turns)
    uniform = {
        step: [is_uniform(values) for (at, _), values in groups.items() if at == step and len(values) > 1]
        for step in steps
    }
    needed = [min(turns) for turns in needs.values()]
    return find_problems(
        [summarize_step(step, "train", [_sum(rows) for rows in sums[step].values()]) for step in steps],
        {step: (sum(equal), len(equal)) for step, equal in uniform.items()},
        {turns: needed.count(turns) for turns in set(needed)},
    )


def _sum(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of the episodes of a step that ended with the same `stop` and are `operated` alike."""
    return {
        "stop": rows[0]["stop"],
        "operated": rows[0]["operated"],
        "episodes": len(rows),
        "max_turns": max(row["max_turns"] for row in rows),
        "started_at": min(row["started_at"] for row in rows),
        **{name: sum(row[name] for row in rows) for name in SUMMED},
    }


def _environment(train: Sequence[StepSummary], span: Mapping[str, str]) -> list[Finding]:
    failed = sum(at.env_errors for at in train)
    shares = {
        StopReason.ENV_ERROR: failed / (failed + sum(at.episodes for at in train)),
        StopReason.ACTION_ERROR: _mean(train, [at.stops.get(StopReason.ACTION_ERROR, 0.0) for at in train]),
    }
    return [
        Finding(f"{shares[stop]:.0%} of the episodes end {sentence}", {**span, "stop": stop})
        for stop, sentence in _ERRORS.items()
        if shares[stop] >= 0.05
    ]


def _replies(train: Sequence[StepSummary], span: Mapping[str, str]) -> list[Finding]:
    found = []
    turns = [at.turns * at.episodes for at in train]
    without_action = _mean(train, [at.behaviors["no_action"] for at in train], turns)
    for name, least, sentence in _BEHAVIORS:
        share = _mean(train, [at.behaviors[name] for at in train], turns)
        if name == "invalid_action":
            share = max(0.0, share - without_action)  # an environment may report a missing action as invalid
        if share >= least:
            found.append(Finding(f"{share:.0%} {sentence}", {**span, name: "1.."}))
    return found


def _turn_limit(
    train: Sequence[StepSummary], span: Mapping[str, str], needed_turns: Mapping[int, int], acts: bool
) -> list[Finding]:
    """Return what the turn limit does; with replies that do not act, that they reach it follows from that."""
    limit = train[-1].max_turns
    train = [at for at in train if at.max_turns == limit]  # of a growing horizon, the steps with the last limit
    where = {**span, "step": f"{train[0].step}..{train[-1].step}", "stop": StopReason.TURN_LIMIT}
    tasks = sum(needed_turns.values())
    longer = sum(count for turns, count in needed_turns.items() if turns > limit) / tasks if tasks else 0.0
    if longer >= 0.3:
        text = (
            f"The turn limit {limit} is too short: {longer:.0%} of the tasks need more turns (those of the oracle, or "
            "of the shortest solved episode). Raise horizon.max_turns."
        )
        return [Finding(text, where)]
    cut = _mean(train, [at.stops.get(StopReason.TURN_LIMIT, 0.0) for at in train])
    if cut >= 0.5 and acts:
        text = (
            f"The turn limit {limit} ends {cut:.0%} of the episodes. If their actions make sense until then, raise "
            "horizon.max_turns."
        )
        return [Finding(text, where)]
    return []


def _returns(train: Sequence[StepSummary], span: Mapping[str, str]) -> list[Finding]:
    episodes = sum(at.episodes for at in train)
    if all(at.reward == 0 for at in train) and all(at.success == 0 for at in train):
        ended = _mean(train, [at.stops.get(StopReason.TERMINATED, 0.0) for at in train])
        text = f"The mean return is 0 at every one of the latest {len(train)} steps ({episodes} episodes)."
        if ended >= 0.2:
            text += (
                f" The environment itself ended {ended:.0%} of them. If tasks are solved there, its reward does not "
                "say so."
            )
        return [Finding(text, {**span, "stop": StopReason.TERMINATED} if ended >= 0.2 else span)]
    return []


def _groups(
    train: Sequence[StepSummary], span: Mapping[str, str], uniform: Mapping[int, tuple[int, int]], alone: bool
) -> list[Finding]:
    """Return that groups have equal returns, with advice if nothing else explains it."""
    counts = [uniform[at.step] for at in train if at.step in uniform]
    equal, groups = (sum(count[place] for count in counts) for place in (0, 1))
    if groups and (share := equal / groups) >= 0.5:
        text = f"All returns are equal in {share:.0%} of the groups: a group estimator learns nothing from them."
        if alone:
            text += " Easier or harder tasks, more samples or a finer reward give it something to compare."
        return [Finding(text, span, groups=True)]
    return []


def _mean(train: Sequence[StepSummary], values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    weights = weights or [at.episodes for at in train]
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0
