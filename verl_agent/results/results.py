"""Results of an evaluation, computed from its records: rates with intervals and pass@k."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from verl_agent.results.spending import episode_cost, episode_tokens
from verl_agent.results.statistics import (
    Estimate,
    clustered_wilson_interval,
    mean_return,
    pass_at_k,
    pass_hat_k,
)
from verl_agent.trace.record import EpisodeRecord, TaskKey, is_operated, task_key
from verl_agent.types import PEOPLE, StopReason

ALL = "all"
"""Category name of the result over all tasks."""
INVALID_ACTION = "invalid_action"
"""Key in `StepResult.info` that counts replies without a valid action."""


@dataclass(frozen=True, slots=True)
class CategoryResult:
    """Result of one category of tasks, or of all tasks.

    Rates and means are over valid episodes; None without a valid episode.

    Attributes:
        tasks: number of tasks with a valid episode.
        episodes: number of valid episodes.
        env_errors: number of episodes whose environment failed at the last attempt; excluded from all rates, as are
            those that were cancelled or have no reward (see `stops`).
        overlong_prompts: number of episodes whose prompt was longer than its limit; excluded from all rates.
        operated: number of episodes in which somebody intervened; excluded from all rates unless asked for.
        refused: number of episodes of which a server refused a request, by the kind of refusal; in no rate.
        success: success rate; each task has the same weight.
        pass_at: by k, probability that at least one of k samples solves a task, up to the valid episodes that nine of
            ten tasks have; tasks with fewer than k are left out.
        pass_hat: by k, probability that all of k samples solve a task (pass^k).
        mean_return: mean return, in the environment's own units; each task has the same weight.
        tokens_mean: mean number of generated tokens per episode; None if a server did not count those of a reply.
        stops: number of episodes by stop reason, excluded ones included.
        cost_usd: cost of the valid episodes in US dollars; None without a model behind an API, or if the cost of one
            of their replies is unknown.
        approved: number of valid episodes in which a person approved actions and decided nothing else.
        rejected: number of episodes in which a person rejected an action.
        rule_approved: number of actions that rules of an approval policy approved, in valid episodes.
        rule_rejected: number of actions that they rejected, also because a person did not decide in time.
        rule_rejected_episodes: number of valid episodes in which they rejected an action.
        begun_anew: number of valid episodes that replaced an attempt with an environment error.
    """

    category: str
    tasks: int
    episodes: int
    env_errors: int
    overlong_prompts: int
    operated: int
    refused: Mapping[str, int]
    success: Estimate | None
    pass_at: Mapping[int, float]
    pass_hat: Mapping[int, float]
    mean_return: Estimate | None
    turns_mean: float | None
    tokens_mean: float | None
    invalid_rate: float | None
    stops: Mapping[str, int]
    cost_usd: float | None = None
    approved: int = 0
    rejected: int = 0
    rule_approved: int = 0
    rule_rejected: int = 0
    rule_rejected_episodes: int = 0
    begun_anew: int = 0

    def __str__(self) -> str:
        """Return one line: category, tasks, episodes, success and return with intervals, mean number of turns."""
        if self.turns_mean is None:
            return f"{self.category}: no valid episode, {self.env_errors} environment errors{self._excluded}"
        tasks = f"{self.category}: {self.tasks} tasks, {self.episodes} episodes"
        rates = f"success {self.success}, return {self.mean_return}"
        return f"{tasks}, {rates}, {self.turns_mean:.1f} turns{self._excluded}"

    @property
    def played(self) -> int:
        """Number of episodes, excluded ones included."""
        return sum(self.stops.values())

    @property
    def _excluded(self) -> str:
        counts = {
            "overlong prompts not played": self.overlong_prompts,
            "with a refused request": sum(self.refused.values()),
            "with a person's decisions not counted": self.operated,
            "without a reward": self.stops.get(StopReason.UNRATED, 0),
            "cancelled": self.stops.get(StopReason.CANCELLED, 0),
        }
        return "".join(f", {count} {name}" for name, count in counts.items() if count)


@dataclass(frozen=True, slots=True)
class CountedEpisode:
    """Last attempt at an episode, with the values that results are computed from.

    Attributes:
        valid: True if its stop reason is valid and `operated` is False.
        operated: True if somebody intervened and such episodes do not count.
        reward: return, in the environment's own units.
        invalid_actions: number of replies without a valid action.
        by_person: number of decisions of people, by kind.
        by_rule: number of decisions of rules, by kind.
    """

    task: TaskKey
    category: str
    stop: StopReason
    valid: bool
    operated: bool
    success: bool
    reward: float
    turns: int
    invalid_actions: float
    attempts: int
    tokens: int | None
    cost_usd: float | None
    by_person: Counter[str]
    by_rule: Counter[str]
    success_reward: float
    error: str = ""


def final_records(records: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return the last attempt of each episode, by its start; of lines that state the same attempt, the last one."""
    last: dict[tuple[str | int, ...], EpisodeRecord] = {}
    for record in records:
        known = last.setdefault(_episode_key(record), record)
        if (record["started_at"], record["attempt"]) >= (known["started_at"], known["attempt"]):
            last[_episode_key(record)] = record
    return list(last.values())


def _episode_key(record: EpisodeRecord) -> tuple[str | int, ...]:
    """Return a key that all attempts of an episode share, and no other episode has."""
    # `evaluation.purpose` may change when an evaluation resumes.
    purpose = "evaluation" if record["purpose"] == "collection" else record["purpose"]
    return *task_key(record), purpose, record["step"], record["group"], record["sample"]


def summarize(records: Iterable[EpisodeRecord], count_operated: bool = False) -> list[CategoryResult]:
    """Return one result per category, in natural order, and one over all tasks at the end; empty without records.

    All episodes count, of every purpose and step. Pass the records of one purpose and step to measure a policy.

    Args:
        records: records of episodes; of the attempts of an episode the last one counts.
        count_operated: count episodes in which somebody intervened, unless they were ended.
    """
    return category_results(counted_episodes(records, count_operated))


def category_results(played: Sequence[CountedEpisode]) -> list[CategoryResult]:
    """Return the results of episodes; see `summarize`."""
    if not played:
        return []
    return [*(_result(name, part) for name, part in by_category(played).items()), _result(ALL, played)]


def counted_episodes(records: Iterable[EpisodeRecord], count_operated: bool = False) -> list[CountedEpisode]:
    """Convert the last attempts at episodes; see `summarize`."""
    return [_counted(record, count_operated) for record in final_records(records)]


def _counted(record: EpisodeRecord, count_operated: bool) -> CountedEpisode:
    stop, turns = StopReason(record["stop"]), record["turns"]
    operated = is_operated(record) and (stop is StopReason.OPERATOR or not count_operated)
    reviews = [turn["review"] for turn in turns if "review" in turn]
    return CountedEpisode(
        task=task_key(record),
        category=record["category"],
        stop=stop,
        valid=stop.valid and not operated,
        operated=operated,
        success=record["success"],
        reward=record["reward"],
        turns=len(turns),
        invalid_actions=sum(turn["info"].get(INVALID_ACTION, 0.0) for turn in turns),
        attempts=record["attempt"],
        tokens=episode_tokens(record),
        cost_usd=episode_cost(record),
        by_person=Counter(review["decision"] for review in reviews if review["by"] in PEOPLE),
        by_rule=Counter(review["decision"] for review in reviews if review["by"] not in PEOPLE),
        success_reward=record["success_reward"],
        error=record["error"],
    )


def by_category(played: Sequence[CountedEpisode]) -> dict[str, list[CountedEpisode]]:
    """Return the episodes of each category, in natural order; those without one are left out."""
    categories: dict[str, list[CountedEpisode]] = defaultdict(list)
    for episode in played:
        if episode.category:
            categories[episode.category].append(episode)
    return {name: categories[name] for name in sorted(categories, key=_natural)}


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts `depth 10` behind `depth 2`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def solved_by_task(played: Iterable[CountedEpisode]) -> dict[TaskKey, list[float]]:
    """Return 1.0 or 0.0 for each valid episode of each task."""
    solved: dict[TaskKey, list[float]] = defaultdict(list)
    for episode in played:
        if episode.valid:
            solved[episode.task].append(float(episode.success))
    return dict(solved)


def returns_by_task(played: Iterable[CountedEpisode]) -> dict[TaskKey, list[float]]:
    """Return the return of each valid episode of each task."""
    earned: dict[TaskKey, list[float]] = defaultdict(list)
    for episode in played:
        if episode.valid:
            earned[episode.task].append(episode.reward)
    return dict(earned)


def _result(category: str, played: Sequence[CountedEpisode]) -> CategoryResult:
    counting = [one for one in played if one.valid]
    solved, earned = solved_by_task(counting), returns_by_task(counting)
    turns = sum(one.turns for one in counting)
    others = [one for one in played if not one.operated]
    ended = Counter(one.stop for one in others)
    refused = Counter(one.error.partition(":")[0] for one in others if one.stop is StopReason.REQUEST_REFUSED)
    known = [one.cost_usd for one in counting if one.cost_usd is not None]
    counted = [one.tokens for one in counting if one.tokens is not None]
    return CategoryResult(
        category=category,
        tasks=len(solved),
        episodes=len(counting),
        env_errors=ended[StopReason.ENV_ERROR],
        overlong_prompts=ended[StopReason.OVERLONG_PROMPT],
        operated=len(played) - len(others),
        refused=dict(refused.most_common()),
        success=clustered_wilson_interval(solved) if solved else None,
        pass_at=_over_tasks(pass_at_k, solved),
        pass_hat=_over_tasks(pass_hat_k, solved),
        mean_return=mean_return(earned, max(one.success_reward for one in counting)) if earned else None,
        turns_mean=turns / len(counting) if counting else None,
        tokens_mean=fmean(counted) if counted and len(counted) == len(counting) else None,
        invalid_rate=sum(one.invalid_actions for one in counting) / turns if turns else None,
        stops=dict(Counter(str(one.stop) for one in played).most_common()),
        cost_usd=sum(known) if known and len(known) == len(counting) else None,
        approved=sum(one.by_person.keys() == {"approved"} for one in counting),
        rejected=sum("rejected" in one.by_person for one in played),
        rule_approved=sum(one.by_rule["approved"] for one in counting),
        rule_rejected=sum(one.by_rule["rejected"] for one in counting),
        rule_rejected_episodes=sum(one.by_rule["rejected"] > 0 for one in counting),
        begun_anew=sum(one.attempts > 1 for one in counting),
    )


def _over_tasks(
    estimator: Callable[[int, int, int], float], solved_by_task: Mapping[TaskKey, Sequence[float]]
) -> dict[int, float]:
    """Return the mean of pass@k or pass^k over tasks, for k = 1, 2, 4, ... and the samples that nine of ten tasks have.

    Tasks with fewer than k samples are left out.
    """
    counts = sorted((len(samples), round(sum(samples))) for samples in solved_by_task.values())
    most = counts[len(counts) // 10][0] if counts else 0
    ks = sorted({2**power for power in range(most.bit_length())} | {most}) if most else []
    return {k: fmean(estimator(samples, solved, k) for samples, solved in counts if samples >= k) for k in ks}
