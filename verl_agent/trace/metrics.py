"""Table of the metrics that this package logs, and their computation from a batch of episodes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from verl_agent.actions import CALL_ERROR, CALLS
from verl_agent.envs.program.conversation import NEW_SEGMENTS
from verl_agent.trace.behaviors import BEHAVIORS, OVER_INTERACTION
from verl_agent.trace.episode_summary import EpisodeSummary
from verl_agent.types import StopReason

TURN_BANDS = {"1": 1, "2": 2, "3-4": 3, "5-8": 5, "9-16": 9, "17-32": 17, "33-64": 33, "65_up": 65}
"""Names of the bands of turns in metrics, and the number of the first turn of each, counted from 1."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of a logged number.

    Attributes:
        name: name as `area/name`; `<...>` stands for a family of names.
        unit: unit of the value; a share lies in 0 to 1.
        meaning: definition of the value. An episode is *valid* if its prompt fits, its environment worked to the end
            and the run did not cancel it; other episodes do not measure the policy.
    """

    name: str
    unit: str
    meaning: str


METRICS = (
    Metric("episode/reward_mean", "environment's own", "mean return of valid episodes"),
    Metric(
        "episode/reward_margin",
        "environment's own",
        "half the width of the 95 % interval of the mean return over the tasks of the step, at least two; of one "
        "environment of a mixture as env/<label>/reward_margin",
    ),
    Metric("episode/shaped_return_mean", "as set by credit", "mean return of valid episodes after reward shaping"),
    Metric("episode/success_rate", "share", "valid episodes that solved their task"),
    Metric("episode/turns_mean", "turns", "mean number of replies in valid episodes"),
    Metric("episode/turns_max", "turns", "number of replies in the longest valid episode"),
    Metric("episode/tokens_mean", "tokens", "mean number of generated tokens in valid episodes"),
    Metric("episode/segments", "count", "mean number of conversations in valid episodes of programs; each is a sample"),
    Metric("episode/horizon", "turns", "largest turn limit of an episode of the step"),
    Metric("episode/horizon_mean", "turns", "mean turn limit of the episodes of the step"),
    Metric("horizon/<turns>", "share", "episodes with this turn limit, where those of the step differ"),
    Metric("episode/hit_horizon", "share", "valid episodes that used all allowed turns, solved or not"),
    *(Metric(f"stop/{reason}", "share", f"episodes that ended with {reason.name}") for reason in StopReason),
    *(
        Metric(f"behavior/{one.name}", "share", f"valid episodes with a turn in which {one.meaning}")
        for one in BEHAVIORS
    ),
    Metric(
        "episode/thought_length_mean", "characters", "mean characters of a reply outside its action, in valid episodes"
    ),
    Metric("episode/turns_over_oracle", "ratio", "mean of turns over the oracle's turns in solved episodes"),
    Metric("action/<key>", "per turn", "measurement reported by the environment, divided by the number of turns"),
    Metric("call/error_rate", "share", "faulty function calls, and replies without one, of all calls"),
    Metric("success/<category>", "share", "valid episodes of one task category that solved their task"),
    Metric("env/<label>/<name>", "as <name>", "metric of one environment of a mixture, over its valid episodes"),
    Metric("env/retries", "count", "attempts that began anew after an environment error"),
    Metric("env/replays", "count", "environment errors after which the episode's actions were replayed"),
    Metric("env/lost_connections", "count", "connections to an environment's server that ended during an episode"),
    Metric("env/errors", "count", "episodes whose environment failed at the last attempt"),
    Metric("env/error_rate", "share", "env/errors over all episodes"),
    Metric(
        "episode/uniform_groups",
        "count",
        "groups whose episodes all have the same return, and no advantage",
    ),
    Metric(
        "episode/divergence_turn_mean",
        "turns",
        "mean number, from 1, of the first turn in which the actions of a group's valid episodes differ, over the "
        "groups in which they do",
    ),
    Metric("env/groups_dropped", "count", "groups left out because too few valid episodes remained"),
    Metric("turn/<turns>/alive", "share", "valid episodes that reached the first of these turns; turns count from 1"),
    Metric("turn/<turns>/advantage", "as set by the estimator", "mean advantage of the tokens of these turns"),
    Metric("turn/<turns>/entropy", "nats", "mean entropy of the policy at the tokens of these turns"),
    Metric(
        "turn/<turns>/ref_kl",
        "nats",
        "KL divergence of the policy from the reference model or the teacher, estimate k3",
    ),
    Metric("turn/<turns>/rollout_kl", "nats", "KL divergence of the engine's policy from the trainer's, estimate k3"),
    Metric(
        "turn/<turns>/ratio_outside",
        "share",
        "tokens whose ratio between trainer and engine is outside of the clip range, before the update",
    ),
    Metric(
        "turn/<turns>/clip_fraction",
        "share",
        "tokens of these turns whose ratio the update clips, over all its mini-batches",
    ),
    Metric("distillation/reverse_kl", "nats", "mean over written tokens of log-prob of the policy minus the teacher's"),
    Metric("credit/dropped_share", "share", "rows left out of the loss by credit.truncated=drop"),
    Metric("staleness/mean", "updates", "mean number of updates since a token was sampled"),
    Metric("staleness/max", "updates", "number of updates since the oldest token was sampled"),
    Metric("staleness/mixed_episodes", "share", "episodes with tokens of several versions of the weights"),
    Metric("staleness/<updates>/tokens", "share", "tokens that were sampled this number of updates before"),
    Metric(
        "staleness/<updates>/rollout_kl", "nats", "turn/<turns>/rollout_kl of these tokens; with drift, except at 0"
    ),
    Metric("staleness/<updates>/probs_diff", "probability", "mean absolute difference of engine and trainer there"),
    Metric("time/generate_s_mean", "s", "mean time that valid episodes waited for the model"),
    Metric("time/paused_s_mean", "s", "mean time that valid episodes waited for an update of the weights"),
    Metric("time/env_s_mean", "s", "mean time that valid episodes waited for their environment"),
)


def episode_metrics(
    summaries: Iterable[EpisodeSummary],
    groups_dropped: int = 0,
    uniform_groups: int = 0,
    divergence: Sequence[int] = (),
) -> dict[str, float]:
    """Return the metrics of one batch of episodes.

    A metric without a value is left out, not reported as 0: without valid episodes there is no `episode/reward_mean`.

    Args:
        summaries: summaries of all episodes of the batch, failed ones included.
        groups_dropped: number of groups left out because of failed episodes.
        uniform_groups: number of groups whose episodes all have the same return.
        divergence: first different turn, from 1, of each group with different actions.
    """
    every = list(summaries)
    if not every:
        return {"env/groups_dropped": float(groups_dropped)}
    valid, limits = [summary for summary in every if summary.valid], Counter(one.max_turns for one in every)
    errors = sum(summary.stop is StopReason.ENV_ERROR for summary in every)
    metrics = {
        "episode/horizon": float(max(limits)),
        "episode/horizon_mean": fmean(limits.elements()),
        "env/retries": float(sum(summary.attempts - 1 for summary in every)),
        "env/replays": float(sum(summary.replays for summary in every)),
        "env/lost_connections": float(sum(summary.lost_connections for summary in every)),
        "env/errors": float(errors),
        "env/error_rate": errors / len(every),
        "env/groups_dropped": float(groups_dropped),
        "episode/uniform_groups": float(uniform_groups),
    }
    if len(limits) > 1:
        metrics |= {f"horizon/{turns}": count / len(every) for turns, count in sorted(limits.items())}
    if divergence:
        metrics["episode/divergence_turn_mean"] = fmean(divergence)
    for reason in StopReason:
        metrics[f"stop/{reason}"] = fmean(summary.stop is reason for summary in every)
    return metrics | (_policy_metrics(valid) if valid else {})


def _policy_metrics(valid: Sequence[EpisodeSummary]) -> dict[str, float]:
    metrics = {
        "episode/reward_mean": fmean(summary.reward for summary in valid),
        "episode/shaped_return_mean": fmean(summary.effective_return for summary in valid),
        "episode/success_rate": fmean(summary.success for summary in valid),
        "episode/turns_mean": fmean(summary.turns for summary in valid),
        "episode/turns_max": float(max(summary.turns for summary in valid)),
        "episode/tokens_mean": fmean(summary.tokens for summary in valid),
        "time/generate_s_mean": fmean(summary.generate_s for summary in valid),
        "time/env_s_mean": fmean(summary.env_s for summary in valid),
        "time/paused_s_mean": fmean(summary.paused_s for summary in valid),
        "episode/hit_horizon": fmean(summary.turns >= summary.max_turns for summary in valid),
    }
    for label, first in TURN_BANDS.items():
        if alive := fmean(summary.turns >= first for summary in valid):
            metrics[f"turn/{label}/alive"] = alive
    metrics |= _behavior_metrics(valid)
    turns = sum(summary.turns for summary in valid)
    if segments := [1 + summary.info[NEW_SEGMENTS] for summary in valid if NEW_SEGMENTS in summary.info]:
        metrics["episode/segments"] = fmean(segments)
    for key in sorted({key for summary in valid for key in summary.info} - {NEW_SEGMENTS}):
        metrics[f"action/{key}"] = sum(summary.info.get(key, 0.0) for summary in valid) / max(turns, 1)
    if calls := sum(summary.info.get(CALLS, 0.0) for summary in valid):
        metrics["call/error_rate"] = sum(summary.info.get(CALL_ERROR, 0.0) for summary in valid) / calls
    for category in sorted({summary.category for summary in valid} - {""}):
        solved = [summary.success for summary in valid if summary.category == category]
        metrics[f"success/{category}"] = fmean(solved)
    for label in sorted({summary.env_label for summary in valid} - {""}):
        metrics |= _env_metrics(label, [summary for summary in valid if summary.env_label == label])
    return metrics


def _behavior_metrics(valid: Sequence[EpisodeSummary]) -> dict[str, float]:
    shown = [set(summary.behaviors.split(",")) for summary in valid]
    metrics = {f"behavior/{one.name}": fmean(one.name in names for names in shown) for one in BEHAVIORS}
    metrics["episode/thought_length_mean"] = fmean(summary.thought_length for summary in valid)
    known = [names for names, summary in zip(shown, valid, strict=True) if summary.oracle_turns is not None]
    del metrics[f"behavior/{OVER_INTERACTION}"]
    if known:
        metrics[f"behavior/{OVER_INTERACTION}"] = fmean(OVER_INTERACTION in names for names in known)
    ratios = [summary.turns / summary.oracle_turns for summary in valid if summary.oracle_turns and summary.success]
    return metrics | ({"episode/turns_over_oracle": fmean(ratios)} if ratios else {})


def turn_band(number: int) -> int:
    """Return the index of the band in `TURN_BANDS` that has a turn.

    Args:
        number: number of the turn, from 1.
    """
    return sum(number >= first for first in TURN_BANDS.values()) - 1


def _env_metrics(label: str, valid: Sequence[EpisodeSummary]) -> dict[str, float]:
    values = {
        "episodes": float(len(valid)),
        "success_rate": fmean(summary.success for summary in valid),
        "reward_mean": fmean(summary.reward for summary in valid),
        "turns_mean": fmean(summary.turns for summary in valid),
        "tokens_mean": fmean(summary.tokens for summary in valid),
        "horizon": float(max(summary.max_turns for summary in valid)),
        "horizon_mean": fmean(summary.max_turns for summary in valid),
        "hit_horizon": fmean(summary.turns >= summary.max_turns for summary in valid),
        "turn_limit": fmean(summary.stop is StopReason.TURN_LIMIT for summary in valid),
    }
    return {f"env/{label}/{name}": value for name, value in values.items()}
