"""Findings on a run: problems that keep it from learning, with their onset and the episodes to read."""

from collections.abc import Mapping, Sequence

from verl_agent.results.findings_onset import find_onset
from verl_agent.results.findings_steps import LATEST, RunHistory, StepSummary
from verl_agent.results.findings_trends import (
    LONGER,
    READ_SOLVED,
    SOLVED,
    Finding,
    began,
    commonest_error,
    find_causes,
    find_decline,
    guarded,
    highest,
)
from verl_agent.types import StopReason

_BEHAVIORS = (
    (
        "no_action",
        0.2,
        "of the replies have no action that the parser accepts. Compare a reply with the format in the prompt.",
    ),
    (
        "invalid_action",
        0.3,
        "of the actions are invalid in the environment. Compare an action with the actions that the prompt lists.",
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


def find_problems(history: RunHistory) -> list[Finding]:
    """Return what is conspicuous in a run, the likeliest causes first; what improves nevertheless is left out.

    Problems that began during the run stand before those that it has had from the start.
    """
    history = history.bounded()
    causes = find_causes(history)
    named = [finding.parameters for finding in causes]
    failed = guarded(lambda: _environment(history, history.played[-LATEST:]))
    found = [one for one in failed if not _has(named, "stop", one.parameters["stop"])]
    train = history.train[-LATEST:]
    if not train:
        return [*causes, *found]
    replies = guarded(lambda: _replies(history))
    found += [one for one in replies if not any(_has(named, name) for name in one.parameters.keys() - _SPAN)]
    known = [*named, *(one.parameters for one in found)]
    if not any(finding.since for finding in (*causes, *found)):
        found += guarded(lambda: _of_learning(history, train, known))
    found += guarded(lambda: _groups(history, causes, found))
    if not any(finding.since for finding in (*causes, *found)):
        causes = guarded(lambda: find_decline(history))
    return [*causes, *sorted(found, key=lambda finding: not finding.since)]


CUT = f"{StopReason.TURN_TOKENS},{StopReason.EPISODE_TOKENS}"
_SPAN = {"purpose", "step"}
"""Parameters that each finding has."""


def _has(parameters: Sequence[Mapping[str, str]], name: str, value: str = "") -> bool:
    """Return True if one of some filters has a parameter, with a value among those that it selects."""
    return any(name in one and (not value or value in one[name].split(",")) for one in parameters)


def _span(steps: Sequence[StepSummary], **parameters: str) -> dict[str, str]:
    return {"purpose": "train", "step": f"{steps[0].step}..{steps[-1].step}", **parameters}


def _of_learning(
    history: RunHistory, train: Sequence[StepSummary], known: Sequence[Mapping[str, str]]
) -> list[Finding]:
    """Return what is conspicuous only in a run that does not improve, also from its first step.

    Args:
        known: filters of the other findings, of which it repeats none.
    """
    if history.improves(history.train[0].step):
        return []
    found = [*_turn_limit(train, history.needed_turns, not _has(known, "no_action")), *_returns(train)]
    if not _has(known, "truncated") and (cut := _mean(train, [at.cut for at in train])) >= 0.3:
        found.append(Finding(f"{cut:.0%} of the episodes are cut by a token budget. {LONGER}", _span(train, stop=CUT)))
    measured = sum(at.measured for at in train)
    if measured and not _has(known, "success") and (short := sum(at.short for at in train) / measured) >= 0.5:
        text = f"{short:.0%} of the solved episodes took fewer turns than the oracle. {READ_SOLVED}"
        found.append(Finding(text, _span(train, success="yes")))
    return found


def _environment(history: RunHistory, train: Sequence[StepSummary]) -> list[Finding]:
    failed = sum(at.env_errors for at in train)
    shares = {
        StopReason.ENV_ERROR: failed / max(1, failed + sum(at.episodes for at in train)),
        StopReason.ACTION_ERROR: _mean(train, [at.stops.get(StopReason.ACTION_ERROR, 0.0) for at in train]),
    }
    error = {StopReason.ENV_ERROR: commonest_error(history)}
    return [
        Finding(f"{shares[stop]:.0%} of the episodes end {sentence}{error.get(stop, '')}", _span(train, stop=stop))
        for stop, sentence in _ERRORS.items()
        if shares[stop] >= 0.05
    ]


def _replies(history: RunHistory) -> list[Finding]:
    found = []
    for name, least, sentence in _BEHAVIORS:
        values = {at.step: at.behaviors[name] for at in history.train}
        onset = find_onset(values, 0.1) if highest(values) >= least else None
        since = onset.step if onset is not None else history.train[0].step
        steps = history.last_steps(since)
        turns = [at.turns * at.episodes for at in steps]
        share = _mean(steps, [at.behaviors[name] for at in steps], turns)
        if name == "invalid_action":  # an environment may report a missing action as invalid
            share = max(0.0, share - _mean(steps, [at.behaviors["no_action"] for at in steps], turns))
        if share < least or history.improves(since):
            continue
        if onset is None:
            found.append(Finding(f"{share:.0%} {sentence}", _span(steps, **{name: "1.."})))
        else:
            title = name.replace("_", " ").capitalize()
            symptom, _, advice = sentence.partition(". ")
            symptom = f"{share:.0%} {symptom.removesuffix('.')} ({onset.before:.0%} before)"
            found.append(began(history, title, since, symptom, advice, **{name: "1.."}))
    return found


def _turn_limit(train: Sequence[StepSummary], needed_turns: Mapping[int, int], acts: bool) -> list[Finding]:
    """Return a turn limit that is too short, or that ends most episodes; the second only if the replies act."""
    limit = max(at.max_turns for at in train)
    train = [at for at in train if at.max_turns == limit]  # of a growing horizon, the steps with the last limit
    where = _span(train, stop=StopReason.TURN_LIMIT)
    tasks = sum(needed_turns.values())
    longer = sum(count for turns, count in needed_turns.items() if turns > limit) / tasks if tasks else 0.0
    if longer >= 0.3:
        text = (
            f"The turn limit {limit} is too short: {longer:.0%} of the tasks need more turns (those of the oracle, or "
            "of the shortest solved episode). If it is the last limit of horizon.max_turns, raise it."
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


def _returns(train: Sequence[StepSummary]) -> list[Finding]:
    episodes = sum(at.episodes for at in train)
    if all(at.reward == 0 for at in train) and all(at.success == 0 for at in train):
        ended = _mean(train, [at.stops.get(StopReason.TERMINATED, 0.0) for at in train])
        text = f"The mean return is 0 at every one of the latest {len(train)} steps ({episodes} episodes)."
        if ended >= 0.2:
            text += (
                f" The environment itself ended {ended:.0%} of them. If tasks are solved there, its reward does not "
                "say so."
            )
        return [Finding(text, _span(train, **({"stop": StopReason.TERMINATED} if ended >= 0.2 else {})))]
    return []


def _groups(history: RunHistory, causes: Sequence[Finding], others: Sequence[Finding]) -> list[Finding]:
    """Return that groups have equal returns, with advice if nothing else explains it."""
    shares = {step: equal / groups for step, (equal, groups) in history.uniform.items() if groups}
    onset = find_onset(shares, 0.2) if highest(shares) >= 0.5 else None
    alone = not causes and not (any(finding.since for finding in others) if onset is not None else others)
    since = onset.step if onset is not None else history.train[0].step
    steps = history.last_steps(since)
    counts = [history.uniform[at.step] for at in steps if at.step in history.uniform]
    equal, groups = (sum(count[index] for count in counts) for index in (0, 1))
    success = _mean(steps, [at.success for at in steps])
    if not groups or (share := equal / groups) < 0.5 or success >= SOLVED or history.improves(since):
        return []
    symptom = f"{share:.0%} of the groups"
    effect = "a group estimator learns nothing from them"
    advice = "Easier or harder tasks, more samples or a finer reward give it something to compare." if alone else ""
    if onset is None:
        return [Finding(f"All returns are equal in {symptom}: {effect}. {advice}".strip(), _span(steps), groups=True)]
    symptom = f"all returns are equal in {symptom} ({onset.before:.0%} before; success {success:.0%} now): {effect}"
    finding = began(history, "Groups without signal", since, symptom, advice)
    return [Finding(finding.text.strip(), finding.parameters, groups=True, since=since)]


def _mean(train: Sequence[StepSummary], values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    weights = weights or [at.episodes for at in train]
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0
