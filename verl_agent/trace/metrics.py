"""Every metric of ours, defined in one table, and how a batch of episodes becomes them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Self

from verl_agent.types import Episode, StopReason

INFO_PREFIX = "info/"
"""Marks the measurements of an environment in `EpisodeSummary.to_fields()`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What a number in the log is.

    Attributes:
        name: `area/name`; a name that ends with `<...>` stands for a family.
        unit: unit of the value; a share lies in 0 to 1.
        meaning: what is counted, and over what. Episodes are *sound* if their environment did its
            part to the end; only these say something about the policy.
    """

    name: str
    unit: str
    meaning: str


METRICS = (
    Metric("episode/reward_mean", "environment's own", "return of a sound episode, on average"),
    Metric("episode/shaped_return_mean", "credit's", "what a sound episode teaches, on average: scaled, with costs"),
    Metric("episode/success_rate", "share", "sound episodes that solved their task"),
    Metric("episode/turns_mean", "turns", "replies in a sound episode, on average"),
    Metric("episode/turns_max", "turns", "replies in the longest sound episode"),
    Metric("episode/tokens_mean", "tokens", "tokens that the model wrote in a sound episode, on average"),
    Metric("episode/horizon", "turns", "turn limit of the step; the largest if episodes of several steps are mixed"),
    Metric("episode/hit_horizon", "share", "sound episodes that used every turn allowed, solved or not"),
    *(Metric(f"stop/{reason}", "share", f"episodes that ended with {reason.name}") for reason in StopReason),
    Metric("action/<key>", "per turn", "a measurement that the environment reports, summed and divided by turns"),
    Metric("success/<category>", "share", "sound episodes of one category of tasks that solved their task"),
    Metric("env/<label>/<name>", "as <name>", "a metric of one environment of a mixture, over its valid episodes"),
    Metric("env/retries", "count", "replays after a failed environment"),
    Metric("env/errors", "count", "episodes whose environment failed at the last attempt too"),
    Metric("env/error_rate", "share", "env/errors over all episodes"),
    Metric("episode/uniform_groups", "count", "groups whose episodes all earned the same, so that none is better"),
    Metric("env/groups_dropped", "count", "groups left out because too few sound episodes remained"),
    Metric("time/generate_s_mean", "s", "time that a sound episode waited for the model, on average"),
    Metric("time/env_s_mean", "s", "time that a sound episode waited for its environment, on average"),
)


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """What the metrics need of an episode, without its text.

    Attributes:
        reward: its return, in the environment's own units.
        success: whether the task was solved.
        turns: number of replies.
        max_turns: the horizon that it was played under.
        stop: why it ended.
        tokens: number of tokens that the model wrote.
        attempts: how often it was played, >= 1.
        generate_s: seconds spent waiting for the model.
        env_s: seconds spent waiting for the environment.
        category: group of tasks that is reported separately, or "".
        info: measurements of the environment, summed over turns.
        env_label: label of its environment in a mixture; "" for a run with one environment.
        shaped_return: what it teaches; None where that is its reward.
    """

    reward: float
    success: bool
    turns: int
    max_turns: int
    stop: StopReason
    tokens: int = 0
    attempts: int = 1
    generate_s: float = 0.0
    env_s: float = 0.0
    category: str = ""
    info: Mapping[str, float] = field(default_factory=dict)
    env_label: str = ""
    shaped_return: float | None = None

    @property
    def effective_return(self) -> float:
        """The return that the update sees."""
        return self.reward if self.shaped_return is None else self.shaped_return

    @property
    def valid(self) -> bool:
        """Whether the episode says something about the policy, as `Episode.valid`."""
        return self.stop not in (StopReason.ENV_ERROR, StopReason.CANCELLED)

    def to_fields(self) -> dict[str, float | int | str | bool]:
        """A flat dict of plain values, the form in which a summary travels between processes."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "info"}
        plain["stop"] = str(self.stop)
        if self.shaped_return is None:
            del plain["shaped_return"]
        return plain | {INFO_PREFIX + key: value for key, value in self.info.items()}

    @classmethod
    def from_fields(cls, values: Mapping[str, float | int | str | bool]) -> Self:
        """The inverse of `to_fields`; keys that are not its own are left out."""
        return cls(
            reward=float(values["reward"]),
            success=bool(values["success"]),
            turns=int(values["turns"]),
            max_turns=int(values["max_turns"]),
            stop=StopReason(str(values["stop"])),
            tokens=int(values["tokens"]),
            attempts=int(values["attempts"]),
            generate_s=float(values["generate_s"]),
            env_s=float(values["env_s"]),
            category=str(values["category"]),
            info={
                key.removeprefix(INFO_PREFIX): float(value)
                for key, value in values.items()
                if key.startswith(INFO_PREFIX)
            },
            env_label=str(values.get("env_label", "")),
            shaped_return=float(values["shaped_return"]) if "shaped_return" in values else None,
        )


def summarize(
    episode: Episode, attempts: int = 1, env_label: str = "", shaped_return: float | None = None
) -> EpisodeSummary:
    """The summary of an episode that was played `attempts` times, the last of them recorded here."""
    info_totals: dict[str, float] = defaultdict(float)
    for turn in episode.turns:
        for key, value in turn.step.info.items() if turn.step else ():
            info_totals[key] += float(value)
    return EpisodeSummary(
        reward=float(episode.reward),
        success=bool(episode.success),
        turns=len(episode.turns),
        max_turns=episode.max_turns,
        stop=episode.stop,
        tokens=sum(turn.reply.tokens for turn in episode.turns),
        attempts=attempts,
        generate_s=sum(turn.generate_s for turn in episode.turns),
        env_s=sum(turn.env_s for turn in episode.turns),
        category=episode.item.category,
        info=dict(info_totals),
        env_label=env_label,
        shaped_return=shaped_return,
    )


def episode_metrics(
    summaries: Iterable[EpisodeSummary], groups_dropped: int = 0, uniform_groups: int = 0
) -> dict[str, float]:
    """The metrics of one batch of episodes.

    What has no value is left out rather than reported as 0: a batch without a sound episode has
    no `episode/reward_mean`.

    Args:
        summaries: every episode of the batch, failed ones included.
        groups_dropped: groups that the batch lost to failed episodes.
        uniform_groups: groups whose episodes all earned the same.
    """
    every = list(summaries)
    if not every:
        return {"env/groups_dropped": float(groups_dropped)}
    valid = [summary for summary in every if summary.valid]
    faults = sum(summary.stop is StopReason.ENV_ERROR for summary in every)
    metrics = {
        "episode/horizon": float(max(summary.max_turns for summary in every)),
        "env/retries": float(sum(summary.attempts - 1 for summary in every)),
        "env/errors": float(faults),
        "env/error_rate": faults / len(every),
        "env/groups_dropped": float(groups_dropped),
        "episode/uniform_groups": float(uniform_groups),
    }
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
        "episode/hit_horizon": fmean(summary.turns >= summary.max_turns for summary in valid),
    }
    turns = sum(summary.turns for summary in valid)
    for key in sorted({key for summary in valid for key in summary.info}):
        metrics[f"action/{key}"] = sum(summary.info.get(key, 0.0) for summary in valid) / max(turns, 1)
    for category in sorted({summary.category for summary in valid} - {""}):
        solved = [summary.success for summary in valid if summary.category == category]
        metrics[f"success/{category}"] = fmean(solved)
    for label in sorted({summary.env_label for summary in valid} - {""}):
        metrics |= _env_metrics(label, [summary for summary in valid if summary.env_label == label])
    return metrics


def _env_metrics(label: str, valid: Sequence[EpisodeSummary]) -> dict[str, float]:
    values = {
        "episodes": float(len(valid)),
        "success_rate": fmean(summary.success for summary in valid),
        "reward_mean": fmean(summary.reward for summary in valid),
        "turns_mean": fmean(summary.turns for summary in valid),
        "tokens_mean": fmean(summary.tokens for summary in valid),
        "horizon": float(max(summary.max_turns for summary in valid)),
        "hit_horizon": fmean(summary.turns >= summary.max_turns for summary in valid),
        "turn_limit": fmean(summary.stop is StopReason.TURN_LIMIT for summary in valid),
    }
    return {f"env/{label}/{name}": value for name, value in values.items()}
