"""Test the mean return: its interval against a plain definition and by simulation, and every place that shows it."""

import json
import zipfile
from io import StringIO
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.support.episodes import STARTED, played
from verl_agent.evaluation.report import comparison_table, results_table
from verl_agent.results.comparison import compare
from verl_agent.results.results import summarize
from verl_agent.results.scaling import scaling_curves
from verl_agent.results.scaling_report import Scaling, describe_ends, write_scaling
from verl_agent.results.statistics import clustered_wilson_interval, mean_return, paired_difference
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord
from verl_agent.viewer import queries
from verl_agent.viewer.export.inspect_log import write_inspect_log
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.pairs import compare_pairs, pair_tasks
from verl_agent.viewer.sources import open_source

T_975 = {1: 12.7062, 2: 4.30265, 4: 2.77645, 6: 2.44691, 19: 2.09302, 21: 2.07961, 99: 1.98422}
"""Quantiles of t by degrees of freedom, from tables."""


def by_task(values: Any) -> dict[str, list[float]]:
    return {str(task): [float(value)] for task, value in enumerate(values)}


def t_interval(values: list[float]) -> tuple[float, float]:
    half = T_975[len(values) - 1] * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


@pytest.mark.parametrize("count", [20, 100])
def test_the_interval_of_spread_returns_is_about_the_t_interval(count):
    returns = np.random.default_rng(0).uniform(size=count).tolist()
    found, (low, high) = mean_return(by_task(returns)), t_interval(returns)
    assert found.low <= low * (1 + 1e-3) and found.high >= high * (1 - 1e-3)
    assert found.high - found.low == pytest.approx(high - low, rel=0.05)
    assert found.tasks == count


def test_the_interval_is_that_over_two_more_tasks_where_it_is_wider():
    returns = [0.0, 0.0, 0.0, 0.0, 0.5]
    pair = ((0.5**2 + 1) / 2) ** 0.5
    low, high = t_interval([*returns, fmean(returns) + pair, fmean(returns) - pair])
    found = mean_return(by_task(returns))
    assert median(returns) == 0 and (found.low, found.high) == (0.0, pytest.approx(high, rel=1e-3)) and low < 0


def rare(random: np.random.Generator, shape: tuple[int, int]) -> Any:
    return (random.random(shape) < 0.1) * random.random(shape)


DRAWS = {
    "rare": (rare, 0.05, 0.92),
    "uniform": (lambda random, shape: random.random(shape), 0.5, 0.92),
    "thirds": (lambda random, shape: random.integers(0, 4, shape) / 3, 0.5, 0.92),
    "both ends": (lambda random, shape: random.beta(0.2, 0.8, shape), 0.2, 0.92),
    "binary": (lambda random, shape: (random.random(shape) < 0.05) * 1.0, 0.05, 0.92),
    "costs": (lambda random, shape: -random.random(shape), -0.5, 0.92),
    "skewed": (lambda random, shape: random.exponential(size=shape), 1.0, 0.84),  # t itself covers 0.87 for 5 tasks
}


@pytest.mark.parametrize("tasks", [5, 20, 100])
@pytest.mark.parametrize("kind", DRAWS)
def test_mean_returns_are_covered(kind, tasks):
    """The t interval alone covers 0.23 to 0.91 for `rare` and `binary`."""
    draw, truth, least = DRAWS[kind]
    found = [mean_return(by_task(row)) for row in draw(np.random.default_rng(0), (400, tasks))]
    assert fmean(one.low - 1e-9 <= truth <= one.high + 1e-9 for one in found) >= least


@pytest.mark.parametrize("tasks", [5, 40])
def test_paired_differences_of_returns_are_covered(tasks):
    """Half of the tasks gain up to 0.4, on top of a difficulty that differs widely."""
    random, covered = np.random.default_rng(0), []
    for _ in range(400):
        base = random.random(tasks)
        gain = (random.random(tasks) < 0.5) * random.random(tasks) * 0.4
        found = mean_return(by_task(base + gain), baseline_by_task=by_task(base))
        covered.append(found.low <= 0.1 <= found.high)
    assert fmean(covered) >= 0.92


def test_pairing_narrows_the_difference_of_returns():
    base = np.linspace(0, 1, 40)
    found = mean_return(by_task(base + 0.05), baseline_by_task=by_task(base))
    assert found.mean == pytest.approx(0.05) and found.low > 0 and found.high < 0.11


def test_a_difference_of_binary_returns_is_that_of_success():
    after, before = by_task([1] * 12 + [0] * 28), by_task([1] * 4 + [0] * 36)
    success, returns = paired_difference(after, before), mean_return(after, baseline_by_task=before)
    assert (returns.low, returns.high) == pytest.approx((success.low, success.high), abs=0.01)


@pytest.mark.parametrize("unit", [1e-3, 100.0])
def test_the_interval_has_the_unit_of_the_returns(unit):
    returns = np.array([0, 0, 0.3, 0.4, 1, 0.2])
    plain, scaled = mean_return(by_task(returns)), mean_return(by_task(returns * unit), unit)
    assert (scaled.mean, scaled.low, scaled.high) == pytest.approx(
        [x * unit for x in (plain.mean, plain.low, plain.high)]
    )


@pytest.mark.parametrize("returns", [[0.5], [0.0] * 3, [0.5] * 8, [-2.0, -2.0]])
def test_equal_returns_have_an_interval_with_a_width(returns):
    found = mean_return(by_task(returns))
    assert found.low < found.high and found.low <= found.mean <= found.high


def test_more_samples_of_a_task_count_as_one_draw():
    few = mean_return({"a": [0.0], "b": [1.0], "c": [0.5]})
    assert mean_return({"a": [0.0] * 50, "b": [1.0] * 50, "c": [0.25, 0.75] * 25}) == few


@pytest.mark.parametrize("unit", [1.0, 10.0])
def test_returns_of_zero_or_of_a_solved_task_have_the_interval_of_a_rate(unit):
    solved = {"a": [1.0, 1.0], "b": [0.0, 1.0], "c": [0.0, 0.0]}
    rate = clustered_wilson_interval(solved)
    found = mean_return({task: [unit * one for one in samples] for task, samples in solved.items()}, unit)
    assert (found.mean, found.low, found.high) == (unit * rate.mean, unit * rate.low, unit * rate.high)


def episode(task: int, rewards: tuple[float, ...], step: int = 0) -> EpisodeRecord:
    meta = EpisodeMeta("evaluation", "test", step, str(task), 0, STARTED, seconds=1.0)
    record = played(*(("go", "on") for _ in rewards), task=str(task), meta=meta)
    for turn, reward in zip(record["turns"], rewards, strict=True):
        turn["reward"] = reward
    return {**record, "reward": sum(rewards), "success": sum(rewards) >= 1, "max_turns": len(rewards)}


WORSE = [episode(task, (0.1, 0.1)) for task in range(8)]
BETTER = [episode(task, (0.1, 0.4 + task / 100)) for task in range(8)]
"""Neither solves a task, and the second earns more on each."""


def shown(renderable: Any) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(renderable)
    return console.file.getvalue()


def test_partial_credit_shows_where_success_does_not():
    overall, comparison = summarize(BETTER)[-1], compare(WORSE, BETTER)[-1]
    assert overall.success.mean == 0 and overall.mean_return.mean == pytest.approx(0.535)
    assert (comparison.difference.mean, comparison.return_difference.mean) == (0, pytest.approx(0.335))
    assert comparison.difference.low < 0 < comparison.return_difference.low
    assert str(overall.mean_return) in str(overall)
    assert str(overall.mean_return) in shown(results_table([overall], "talk"))
    text = shown(comparison_table([comparison], "before"))
    assert str(comparison.return_difference) in text and "return" in text and "0.200" in text


def test_scaling_has_the_return_within_each_budget(tmp_path):
    curve = next(one for one in scaling_curves(BETTER) if one.name == "turns")
    assert [curve.returns[turns].mean for turns in (1.0, 2.0)] == pytest.approx([0.1, 0.535])
    assert str(curve.returns[2.0]) in describe_ends(curve)
    file, plot = write_scaling(Scaling("model", [curve], []), tmp_path)
    assert json.loads(file.read_text())["curves"][0]["returns"]["2.0"]["high"] == pytest.approx(curve.returns[2.0].high)
    assert plot.stat().st_size > 5000


def test_the_viewer_and_its_export_have_the_interval_of_the_report(tmp_path):
    for name, records in (("worse", WORSE), ("better", BETTER)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    with (
        RecordIndex(open_source(tmp_path / "worse.jsonl")) as worse,
        RecordIndex(open_source(tmp_path / "better.jsonl")) as better,
    ):
        worse.update(), better.update()
        expected = summarize(BETTER)[-1].mean_return
        found = queries.mean_returns(better)["evaluation", 0]
        assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
        pairs = compare_pairs(pair_tasks(worse, better, (Filter(), Filter())))
        difference = compare(WORSE, BETTER)[-1].return_difference
        assert (pairs.returns.low, pairs.returns.high) == pytest.approx((difference.low, difference.high))
    write_inspect_log(BETTER, tmp_path / "log.eval", "run")
    with zipfile.ZipFile(tmp_path / "log.eval") as log:
        scores = {one["name"]: one["metrics"] for one in json.loads(log.read("header.json"))["results"]["scores"]}
    assert scores["return"]["low_95"]["value"] == pytest.approx(expected.low)
    rate = clustered_wilson_interval(by_task([0] * 8))
    assert scores["success"]["high_95"]["value"] == pytest.approx(rate.high)
