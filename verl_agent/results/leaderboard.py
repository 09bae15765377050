"""Leaderboard of evaluations: models as rows, categories as columns, one board for equal conditions."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from verl_agent.envs.tasks import task_ids
from verl_agent.errors import ConfigError
from verl_agent.results.folder import RECORDS, REPORT, evaluations_in, model_name, planned_records, read_report
from verl_agent.results.results import (
    ALL,
    CategoryResult,
    category_results,
    counted_episodes,
    returns_by_task,
    solved_by_task,
)
from verl_agent.results.significance import holm, sign_flip_p_value
from verl_agent.results.statistics import Estimate, macro_mean, mean_return, paired_difference
from verl_agent.trace.provenance import UNKNOWN
from verl_agent.trace.record import TaskKey
from verl_agent.types import TaskItem

SOURCE = "AgentGym-RL, arXiv 2509.08755, main results"
TASKS: Mapping[str, int] = {"webarena": 50, "deepsearch": 400, "textcraft": 100, "babyai": 90, "scienceworld": 200}
"""Number of test tasks of each benchmark in the source."""
_COLUMNS = tuple(TASKS)
_RATES = {
    "GPT-4o": (16.00, 26.75, 83.00, 86.67, 21.00),
    "OpenAI o3": (34.00, 49.50, 93.00, 94.44, 41.50),
    "Gemini-2.5-Pro": (28.00, 36.50, 94.00, 87.77, 12.50),
    "DeepSeek-R1-0528": (28.00, 40.25, 93.00, 93.33, 4.50),
    "Qwen2.5-3B-Instruct": (10.00, 13.50, 14.00, 52.22, 1.00),
    "Qwen2.5-7B-Instruct": (9.76, 18.75, 42.00, 66.67, 1.50),
    "AgentGym-RL-3B": (18.00, 25.75, 75.00, 93.33, 22.50),
    "AgentGym-RL-7B": (22.00, 34.00, 89.00, 92.22, 50.50),
    "ScalingInter-7B": (26.00, 38.25, 91.00, 96.67, 57.00),
}

NOT_SENT = "not sent"
"""Value of a sampling setting that the model of a row refused."""


def published_rates(env: str) -> dict[str, float]:
    """Return the published success rate of each model on an environment, 0 to 1; empty if the source has none."""
    if env not in _COLUMNS:
        return {}
    return {model: round(rates[_COLUMNS.index(env)] / 100, 4) for model, rates in _RATES.items()}


@dataclass(frozen=True, slots=True)
class BoardRow:
    """Results of one model under the conditions of a board.

    Attributes:
        label: name of the model, of a folder a short one; with the folder of the evaluation if two rows have the same.
        commit: commit of this package that played the evaluation.
        results: results by category; the last one is over all tasks.
        macro: mean of the success rates of the categories; None without a valid episode.
        unmeasured: categories of the board in which no episode is valid; `macro` and the rate over all tasks lack them.
        cost_usd: mean cost of a valid episode in US dollars; None if it is unknown.
        pareto: True if no other row has a higher success rate at a cost that is not higher; False without a cost.
    """

    label: str
    model: str
    folder: str
    commit: str
    planned: int
    played: int
    results: Sequence[CategoryResult]
    macro: Estimate | None
    unmeasured: Sequence[str]
    cost_usd: float | None
    pareto: bool

    @property
    def overall(self) -> CategoryResult:
        """Result over all tasks."""
        return self.results[-1]

    @property
    def priced(self) -> tuple[float, Estimate] | None:
        """Mean cost of an episode and success rate over all tasks; None if one of them is unknown."""
        success = self.overall.success
        return None if self.cost_usd is None or success is None else (self.cost_usd, success)


@dataclass(frozen=True, slots=True)
class Difference:
    """Comparison of two rows of a board, paired by task.

    Attributes:
        difference: success rate of the first minus that of the second.
        return_difference: mean return of the first minus that of the second.
        p_value: p value of the difference of success, by permutation of signs.
        adjusted: the p value after Holm's correction for all pairs of the board.
    """

    first: str
    second: str
    difference: Estimate
    return_difference: Estimate
    p_value: float
    adjusted: float


@dataclass(frozen=True, slots=True)
class Board:
    """Rows that are comparable: equal tasks, options, agent, horizon, budgets, sampling and version.

    Attributes:
        key: hash of the conditions.
        conditions: settings that all rows share.
        rows: one row for each evaluation, the highest success rate first; rows that lack a category follow.
        published: published success rates of other models, 0 to 1. Their conditions differ.
    """

    env: str
    key: str
    conditions: Mapping[str, Any]
    rows: Sequence[BoardRow]
    differences: Sequence[Difference]
    published: Mapping[str, float]

    @property
    def categories(self) -> list[str]:
        """Names of the categories of all rows, without `ALL`."""
        return list(dict.fromkeys(one.category for row in self.rows for one in row.results if one.category != ALL))


@dataclass(frozen=True, slots=True)
class _Evaluation:
    folder: Path
    report: Mapping[str, Any]
    conditions: Mapping[str, Any]
    results: Sequence[CategoryResult]
    solved: Mapping[TaskKey, Sequence[float]]
    returns: Mapping[TaskKey, Sequence[float]]
    success_reward: float

    @property
    def key(self) -> str:
        return _hash(self.conditions)


def make_boards(folders: Sequence[Path], broken: dict[Path, str] | None = None) -> list[Board]:
    """Read evaluations and return their boards, by environment.

    Args:
        folders: output folders of evaluations, or folders that contain such folders.
        broken: receives the message about each evaluation that cannot be read, by folder; None to raise it.

    Raises:
        ConfigError: a folder holds no evaluation, or, without `broken`, one that cannot be read.
    """
    by_key: dict[tuple[str, str], list[_Evaluation]] = defaultdict(list)
    for folder in dict.fromkeys(found for given in folders for found in evaluations_in(given)):
        try:
            evaluation = _read(folder)
        except ConfigError as error:
            if broken is None:
                raise
            broken[folder] = str(error)
            continue
        by_key[evaluation.conditions["env"], evaluation.key].append(evaluation)
    return [_board(env, key, by_key[env, key]) for env, key in sorted(by_key)]


def _read(folder: Path) -> _Evaluation:
    try:
        report, records = read_report(folder, "planned", "played", "model", "provenance"), planned_records(folder)
        if not records:
            raise ConfigError(f"{folder / RECORDS} has no episode. Run eval again with the same folder.")
        tasks = task_ids(
            [TaskItem(report["config"]["env"]["name"], task) for task in sorted({record["task"] for record in records})]
        )
        conditions = _conditions(report, tasks)
        episodes = counted_episodes(records, conditions["count_operated"])
        needed = max((one.success_reward for one in episodes), default=1.0)
        played = (category_results(episodes), solved_by_task(episodes), returns_by_task(episodes), needed)
        if not episodes:
            raise ValueError("no episode of the planned tasks is recorded")
        _ = (report["provenance"]["commit"], report["planned"], report["played"], report["model"])
        return _Evaluation(folder, report, conditions, *played)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{folder / REPORT} cannot be read: {type(error).__name__} {error}. Evaluate again with this version."
        ) from error


def _conditions(report: Mapping[str, Any], tasks: str) -> dict[str, Any]:
    """Return what has to be equal for two rows to be comparable."""
    config = report["config"]
    api = (config["model"].get("api") or {}) if isinstance(config["model"], Mapping) else {}
    turn_tokens = api.get("max_output_tokens") or config["episode"]["max_tokens_per_turn"]
    judge = config.get("judge") or {}
    judged = {"judge": _hash([judge, report["rubric"]])} if judge.get("rubric") else {}
    refused = (report.get("api") or {}).get("dropped", ())
    sampling = {
        name: NOT_SENT if name in refused else float(config["evaluation"].get(name, 1.0))
        for name in ("temperature", "top_p")
    }
    return judged | {
        "env": config["env"]["name"],
        "tasks": tasks,
        "options": config["env"].get("options") or {},
        "agent": config["agent"],
        "turns": config["horizon"].get("eval_max_turns") or config["horizon"]["max_turns"],
        "turn_tokens": turn_tokens,
        "truncated_turn": config["episode"].get("on_truncated_turn", "stop"),
        "prompt_tokens": config["data"]["max_prompt_length"],
        "response_tokens": config["data"]["max_response_length"],
        "overlong_prompt": config["data"].get("overlong_prompt", "drop"),
        "on_action_error": config["env"].get("on_action_error", "count"),
        **sampling,
        "perturb": {key: value for key, value in (config["evaluation"].get("perturb") or {}).items() if value},
        "approval": _hash(report["approval"]) if config["evaluation"].get("approve") else None,
        "count_operated": bool(config["evaluation"].get("count_operated")),
        "version": report["provenance"]["versions"]["verl_agent"],
    }


def _hash(value: object) -> str:
    """Return a short hash of JSON values, in which 2 and 2.0 are the same number."""
    same = json.loads(json.dumps(value), parse_float=_to_number)
    return sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]


def _to_number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _board(env: str, key: str, evaluations: Sequence[_Evaluation]) -> Board:
    models = [str(one.report["model"]) for one in evaluations]
    labels = [model_name(model) if Path(model).is_absolute() else model for model in models]
    costs = {one.folder: _mean_cost(one.results[-1]) for one in evaluations}
    rates = {one.folder: one.results[-1].success for one in evaluations}
    categories = dict.fromkeys(result.category for one in evaluations for result in one.results[:-1])
    rows = []
    for evaluation, model, label in zip(evaluations, models, labels, strict=True):
        named = {result.category: result.success for result in evaluation.results[:-1] if result.success is not None}
        cost, rate = costs[evaluation.folder], rates[evaluation.folder]
        rows.append(
            BoardRow(
                label=label if labels.count(label) == 1 else f"{label} ({evaluation.folder.name})",
                model=model,
                folder=str(evaluation.folder),
                commit=str(evaluation.report["provenance"].get("commit", UNKNOWN)),
                planned=evaluation.report["planned"],
                played=evaluation.report["played"],
                results=evaluation.results,
                macro=macro_mean(list(named.values())) if named else rate,
                unmeasured=[name for name in categories if name not in named],
                cost_usd=cost,
                pareto=cost is not None and rate is not None and not _dominated(cost, rate.mean, costs, rates),
            )
        )
    rows.sort(key=lambda row: (len(row.unmeasured), -row.overall.success.mean if row.overall.success else 1.0))
    differences = _differences(rows, {str(one.folder): one for one in evaluations})
    return Board(env, key, evaluations[0].conditions, rows, differences, published_rates(env))


def _mean_cost(result: CategoryResult) -> float | None:
    return None if result.cost_usd is None else result.cost_usd / result.episodes


def _dominated(
    cost: float, rate: float, costs: Mapping[Path, float | None], rates: Mapping[Path, Estimate | None]
) -> bool:
    """Return True if another row is cheaper and not worse, or better and not more expensive."""
    for folder, other_cost in costs.items():
        other = rates[folder]
        if other_cost is None or other is None:
            continue
        if other_cost <= cost and other.mean >= rate and (other_cost < cost or other.mean > rate):
            return True
    return False


def _differences(rows: Sequence[BoardRow], evaluations: Mapping[str, _Evaluation]) -> list[Difference]:
    """Compare all pairs of rows on the tasks that both have a valid episode of."""
    found: list[tuple[str, str, Estimate, Estimate, float]] = []
    for first, second in combinations(rows, 2):
        left, right = evaluations[first.folder], evaluations[second.folder]
        if shared := sorted(left.solved.keys() & right.solved.keys()):
            mine, theirs = ({task: side[task] for task in shared} for side in (left.solved, right.solved))
            earned, baseline = ({task: side[task] for task in shared} for side in (left.returns, right.returns))
            returns = mean_return(earned, left.success_reward, baseline)
            p_value = sign_flip_p_value([fmean(mine[task]) - fmean(theirs[task]) for task in shared])
            found.append((first.label, second.label, paired_difference(mine, theirs), returns, p_value))
    adjusted = holm([p_value for *_, p_value in found])
    return [Difference(*one, corrected) for one, corrected in zip(found, adjusted, strict=True)]
