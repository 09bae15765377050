"""Test the report of a study from the points of its runs."""

import json
from random import Random

import pytest
import yaml

from tests import ROOT
from verl_agent.errors import ConfigError
from verl_agent.study.plan import make_plan
from verl_agent.study.report import Results, why, write_study_report
from verl_agent.study.runs import study_runs


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    file = tmp_path_factory.mktemp("study") / "own.yaml"
    values = {
        "question": "Which limit learns faster?",
        "recipe": str(ROOT / "recipes/studies/guess_number.yaml"),
        "arms": {name: [f"horizon.max_turns=[{turns}]"] for name, turns in (("long", 12), ("same", 11), ("short", 4))},
        "seeds": list(range(1, 9)),
        "budget_turns": 1000,
        "stop": {"rule": "successive", "block": 4},
    }
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return make_plan(file)


def play(plan, seeds, out):
    """Write the points of runs of some seeds, in which the short limit learns less."""
    luck = Random(1)
    for run in study_runs(plan, seeds, list(plan.study.arms)):
        end = (0.3 if run.arm == "short" else 0.8) + 0.01 * luck.random() + 0.02 * run.seed
        points = [
            {"turns": turns, "success": 0.1 + (end - 0.1) * turns / 1200, "cpu_s": 1.0} for turns in (0, 600, 1200)
        ]
        run.folder(out).mkdir(parents=True)
        (run.folder(out) / "points.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in points))
        (run.folder(out) / "done.json").write_text("{}")


def test_one_seed_decides_nothing_and_says_nothing_about_learning(plan, tmp_path):
    play(plan, [1], tmp_path)
    write_study_report(plan, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "One seed has no interval" in text and "No arm has learned" not in text


def test_a_report_has_the_verdict_of_each_arm(plan, tmp_path):
    play(plan, plan.study.seeds, tmp_path)
    assert len(write_study_report(plan, tmp_path)) == 4
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    verdicts = {arm: one["verdict"] for arm, one in written["comparisons"].items()}
    assert verdicts == {"same": "equal within the margin", "short": "worse"}
    assert written["comparisons"]["short"]["holm"] == pytest.approx(2 * 2 / 2**8)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "24 of 24 runs" in text and "long and short (larger: long)" in text


def test_turns_of_solved_tasks_are_reported_only_if_every_run_solves_one(plan):
    runs = study_runs(plan, [1, 2], ["long", "short"])
    points = {run: [{"turns": 1000, "success": 0.5, "turns_solved": 4.0 + run.seed}] for run in runs}
    assert Results(plan, points).differences("short")["turns"].mean == 0.0
    del points[runs[-1]][0]["turns_solved"]
    assert "turns" not in Results(plan, points).measured()


def test_means_of_training_are_those_of_the_points_that_have_them(plan):
    start, first, last = [{"turns": turns, "success": 0.5} for turns in (0, 500, 1000)]
    (run,) = study_runs(plan, [1], ["long"])
    assert list(why(Results(plan, {run: [start, first, last]}))) == []
    found = {run: [start, first | {"limited": 0.2, "uniform": 3.0}, last | {"uniform": 5.0}]}
    assert list(why(Results(plan, found)))[2] == "| long | 4 | 0.2 |"


def test_a_report_without_runs_raises_config_error(plan, tmp_path):
    with pytest.raises(ConfigError, match="no arm has a seed that has ended"):
        write_study_report(plan, tmp_path)
