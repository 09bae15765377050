"""Error analysis: behaviors of failed episodes, first divergence from the oracle's plan, and missed sub-goals."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean, median

from verl_agent.actions import CALL_ERROR, Action, ToolCall, action_text
from verl_agent.envs.base import EnvAdapter, SubGoal
from verl_agent.envs.call_error import NO_CALL
from verl_agent.errors import EnvError
from verl_agent.results.scaling import interval_of_shares, valid_records
from verl_agent.results.spending import turn_finish
from verl_agent.results.statistics import Estimate
from verl_agent.trace.behaviors import BEHAVIORS, Played
from verl_agent.trace.record import EpisodeRecord, TaskKey, env_label, task_key, to_episode
from verl_agent.trace.turn_record import TurnRecord
from verl_agent.types import Episode, StopReason, TaskItem, Turn

PLAN_ENDED = "(the plan has ended)"
MOST_COMMON = 5
"""Number of the most frequent values that are listed."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """First action that is not in the rest of the oracle's plan.

    Attributes:
        planned: next action of the plan at that turn; `PLAN_ENDED` after its last one.
    """

    turn: int
    action: str
    planned: str


@dataclass(frozen=True, slots=True)
class FailedEpisode:
    """One failed episode.

    Attributes:
        sample: index among the samples of the task.
        behaviors: behaviors that at least one of its turns shows.
        divergence: first divergence from the oracle's plan; None without a plan, or if it follows it to its end.
        sub_goals: sub-goals as the environment counts them; empty if it has none.
        plan_turns: number of actions in the oracle's plan; None without a plan.
        error_action: action that makes the environment fail each time; None for another stop reason.
        finishes: number of its replies that an API ended for a reason such as `refusal`, by reason.
    """

    env_label: str
    task: str
    sample: int
    category: str
    stop: str
    reward: float
    turns: int
    behaviors: Sequence[str]
    divergence: Divergence | None
    sub_goals: Sequence[SubGoal]
    max_turns: int
    plan_turns: int | None
    error_action: str | None = None
    finishes: Mapping[str, int] = field(default_factory=dict)
    call_errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> TaskKey:
        """Key of the task."""
        return self.env_label, self.task

    @property
    def missed(self) -> SubGoal | None:
        """First sub-goal that was not reached; None without one."""
        return next((goal for goal in self.sub_goals if not goal.reached), None)


@dataclass(frozen=True, slots=True)
class CategoryFailures:
    """Summary of the failed episodes of a category.

    Attributes:
        episodes: number of valid episodes.
        behaviors: by name, share of failed and of solved episodes that show the behavior; None without such episodes.
        divergence_turn: median turn of the first divergence from the oracle's plan; None without a plan.
        left_for: most frequent actions of the plan that were due at the divergence, with their number.
        taken: most frequent actions that were taken in their place, with their number.
        sub_goals: share of sub-goals that a failed episode reaches, with its interval over tasks; None without any.
        missed: most frequent kinds of the first missed sub-goal, with their number.
        error_actions: most frequent actions that make the environment fail each time, with their number.
        finishes: number of replies of failed episodes that an API ended for a reason such as `refusal`, by reason.
        call_errors: number of faulty function calls in failed episodes, by kind, see
            `verl_agent.envs.call_error.CALL_ERRORS`.
        beyond_limit: number of these whose oracle needs more turns than the turn limit; None without a plan.
    """

    category: str
    failed: int
    episodes: int
    stops: Mapping[str, int]
    behaviors: Mapping[str, tuple[float | None, float | None]]
    divergence_turn: float | None
    left_for: Mapping[str, int]
    taken: Mapping[str, int]
    sub_goals: Estimate | None
    missed: Mapping[str, int]
    tasks: int
    beyond_limit: int | None
    error_actions: Mapping[str, int] = field(default_factory=dict)
    finishes: Mapping[str, int] = field(default_factory=dict)
    call_errors: Mapping[str, int] = field(default_factory=dict)


def find_failures(
    records: Sequence[EpisodeRecord], env: EnvAdapter | None, count_operated: bool = False
) -> list[FailedEpisode]:
    """Return the failed episodes among the valid ones, in the order of their categories and tasks.

    Args:
        env: environment whose oracle and sub-goals are compared; None for imported records, which have no data of it.
        count_operated: see `summarize`.
    """

    @cache
    def plan_of(task: TaskKey) -> tuple[Action, ...]:
        try:
            one = of_task[task]
            item = TaskItem(one["env"], one["task"], one["data"], one["category"])
            return tuple(_plain(demo.action) for demo in env.demonstration(item)) if env else ()
        except (NotImplementedError, EnvError):
            return ()

    failed = [record for record in valid_records(records, count_operated) if not record["success"]]
    of_task = {task_key(one): one for one in failed}

    def describe(record: EpisodeRecord) -> FailedEpisode:
        played = None if begun(record) else carried_out(record)
        return FailedEpisode(
            env_label=env_label(record),
            task=record["task"],
            sample=record["sample"],
            category=record["category"],
            stop=record["stop"],
            reward=record["reward"],
            turns=len(record["turns"]),
            behaviors=shown_behaviors(record),
            divergence=leaves_plan(played.turns, plan_of(task_key(record))) if played else None,
            sub_goals=list(env.sub_goals(played)) if env and played else [],
            max_turns=record["max_turns"],
            plan_turns=len(plan_of(task_key(record))) or None,
            error_action=action_text(failing_action(record["turns"][-1]))
            if record["stop"] == StopReason.ACTION_ERROR
            else None,
            finishes=dict(Counter(filter(None, map(turn_finish, record["turns"]))).most_common()),
            call_errors=_call_errors(record),
        )

    return [describe(one) for one in sorted(failed, key=lambda one: (one["category"], one["task"], one["sample"]))]


def begun(record: EpisodeRecord) -> bool:
    """Return True if another episode's turns precede those of the record (`horizon.replay`)."""
    return record.get("given_turns", 0) > 0


def carried_out(record: EpisodeRecord) -> Episode:
    """Return the episode with the turns of its last attempt that reached the environment.

    Earlier attempts (`agent.options.retry_failed`) ended in worlds of their own, and actions that were rejected or that
    a perturbation let fail never reached one.
    """
    episode = to_episode(record)
    infos = [turn.step.info if turn.step else {} for turn in episode.turns]
    begins = max((number + 1 for number, info in enumerate(infos) if info.get("failed_attempts")), default=0)
    last = episode.turns[begins:]
    episode.turns = [turn for turn in last if turn.action is None or turn.step is None or turn.carried_out]
    return episode


def summarize_failures(
    records: Sequence[EpisodeRecord], failures: Sequence[FailedEpisode], count_operated: bool = False
) -> list[CategoryFailures]:
    """Return one summary for each category with a failed episode; arguments as of `find_failures`."""
    by_category, records_of = defaultdict[str, list[FailedEpisode]](list), defaultdict[str, list[EpisodeRecord]](list)
    for failure in failures:
        by_category[failure.category].append(failure)
    for record in valid_records(records, count_operated):
        records_of[record["category"]].append(record)
    summaries = []
    for category, failed in by_category.items():
        of_category = records_of[category]
        solved = [shown_behaviors(record) for record in of_category if record["success"]]
        shown = {behavior.name: (_share(behavior.name, [f.behaviors for f in failed]), _share(behavior.name, solved))
                 for behavior in BEHAVIORS}  # fmt: skip
        diverged = [failure.divergence for failure in failed if failure.divergence]
        missed = Counter(failure.missed.kind for failure in failed if failure.missed)
        errors = Counter(failure.error_action for failure in failed if failure.error_action is not None)
        plans = {failure.key: failure.plan_turns > failure.max_turns for failure in failed if failure.plan_turns}
        summaries.append(
            CategoryFailures(
                category=category,
                failed=len(failed),
                episodes=len(of_category),
                stops=dict(Counter(failure.stop for failure in failed).most_common()),
                behaviors={name: shares for name, shares in shown.items() if any(shares)},
                divergence_turn=median(one.turn for one in diverged) if diverged else None,
                left_for=dict(Counter(one.planned for one in diverged).most_common(MOST_COMMON)),
                taken=dict(Counter(one.action for one in diverged).most_common(MOST_COMMON)),
                sub_goals=_reached(failed),
                missed=dict(missed.most_common(MOST_COMMON)),
                tasks=len({failure.key for failure in failed}),
                beyond_limit=sum(plans.values()) if plans else None,
                error_actions=dict(errors.most_common(MOST_COMMON)),
                finishes=dict(sum((Counter(one.finishes) for one in failed), Counter[str]()).most_common()),
                call_errors=dict(sum((Counter(one.call_errors) for one in failed), Counter[str]()).most_common()),
            )
        )
    return summaries


def _call_errors(record: EpisodeRecord) -> dict[str, int]:
    """Return the number of faulty function calls of each kind."""
    counts: Counter[str] = Counter()
    for turn in record["turns"]:
        for key, value in turn["info"].items():
            if key.startswith(f"{CALL_ERROR}_"):
                counts[key.removeprefix(f"{CALL_ERROR}_")] += int(value)
    return dict(counts.most_common())


def failing_action(turn: TurnRecord) -> object:
    """Return the action of a turn that was not answered, as in the record: the last one of several calls."""
    unanswered = [one["action"] for one in turn.get("calls", ()) if one["observation"] is None]
    return next((action for action in unanswered if action is not None), turn["action"])


def leaves_plan(turns: Sequence[Turn], plan: Sequence[Action]) -> Divergence | None:
    """Return the first action that does not occur in the rest of a plan.

    Steps of the plan may be left out: the rest begins after the last action that was found, and is empty after the last
    step. An action that is not in it is the divergence, also one that repeats an earlier step.

    Args:
        turns: turns, also those without an action.
        plan: actions of the oracle, in the form of `_plain`.

    Returns:
        None if all actions are in the plan, or if there is no plan.
    """
    if not plan:
        return None
    at = 0
    for number, turn in enumerate(turns, start=1):
        plain = _plain(turn.action or "")
        if plain not in plan[at:]:
            return Divergence(number, str(plain) or _without_action(turn), str(plan[at]) if plan[at:] else PLAN_ENDED)
        at = plan.index(plain, at) + 1
    return None


def shown_behaviors(record: EpisodeRecord) -> list[str]:
    """Return the names of the behaviors that at least one turn of an episode shows."""
    played = Played.from_record(record)
    turns = range(len(record["turns"]))
    return [behavior.name for behavior in BEHAVIORS if any(behavior.rule(played, turn) for turn in turns)]


def _reached(failed: Sequence[FailedEpisode]) -> Estimate | None:
    shares: dict[TaskKey, list[float]] = defaultdict(list)
    for failure in failed:
        if failure.sub_goals:
            shares[failure.key].append(fmean(float(goal.reached) for goal in failure.sub_goals))
    return interval_of_shares({task: fmean(values) for task, values in shares.items()}) if shares else None


def _share(name: str, episodes: Sequence[Sequence[str]]) -> float | None:
    return fmean(float(name in shown) for shown in episodes) if episodes else None


def _plain(action: Action) -> Action:
    """Return a line in lower case and with single spaces, and a call as it is."""
    return action if isinstance(action, ToolCall) else " ".join(action.split()).lower()


def _without_action(turn: Turn) -> str:
    """Return a text in place of the action: name and errors of the first faulty call, if the reply has one."""
    faulty = next((one for one in turn.calls if one.errors and NO_CALL not in one.errors), None)
    return (
        f"({' '.join(filter(None, ('faulty call', faulty.name)))}: {', '.join(faulty.errors)})"
        if faulty
        else "(no action)"
    )
